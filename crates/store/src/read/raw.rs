//! The same bytes as an `ExpertReader` reads, at the same depth, and nothing done with them.

use std::io;
use std::sync::Arc;

use super::layout::Layout;
use super::{ReadOptions, open_files};
use crate::experts::ExpertMap;
use crate::io::raw::RawReader;

/// Probes the drive under a model's experts.
pub struct RawProbe {
    map: Arc<ExpertMap>,
    reader: RawReader,
}

impl RawProbe {
    /// Opens every file.
    ///
    /// # Errors
    /// A file that cannot be opened or is not as long as the map says, a system without io_uring.
    pub fn new(map: Arc<ExpertMap>, options: &ReadOptions) -> io::Result<RawProbe> {
        let files = open_files(map.files()).map_err(io::Error::other)?;
        let reader = RawReader::new(files, options.depth, options.piece_bytes)?;
        Ok(RawProbe { map, reader })
    }

    /// Reads experts, given by layer and index.
    ///
    /// Units: gives the bytes read, alignment included.
    ///
    /// # Errors
    /// The operating system's.
    pub fn read(&mut self, experts: &[(u32, u32)]) -> io::Result<u64> {
        let layouts = experts.iter().map(|(l, e)| Layout::new(self.map.blocks(*l, *e)));
        let parts: Vec<_> = layouts.flat_map(|layout| layout.parts).collect();
        self.reader.read(&parts)
    }
}
