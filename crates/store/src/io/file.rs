//! Files as readers see them: whole or not at all.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use bytes::Bytes;
use rustix::fs::{Advice, OFlags, fadvise};

/// Positioned reads; the seam under which faults are injected.
pub trait ReadAt: Send + Sync {
    /// As `pread`: may give fewer bytes than asked for, and none at the end.
    ///
    /// # Errors
    /// The operating system's.
    fn read_at(&self, into: &mut [u8], offset_bytes: u64) -> io::Result<usize>;

    /// Length of the file now.
    ///
    /// # Errors
    /// The operating system's.
    fn len_bytes(&self) -> io::Result<u64>;
}

/// A file on disk, opened for reading around the page cache where that is possible.
pub struct DiskFile {
    pub file: File,
    /// False where the file system refused; reads then leave the page cache as they found it.
    pub direct: bool,
}

impl DiskFile {
    /// Opens a file.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(path: &Path) -> io::Result<DiskFile> {
        let mut options = OpenOptions::new();
        options.read(true);
        let direct = options.clone().custom_flags(OFlags::DIRECT.bits() as i32).open(path);
        match direct {
            Ok(file) => Ok(DiskFile { file, direct: true }),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                Ok(DiskFile { file: options.open(path)?, direct: false })
            }
            Err(error) => Err(error),
        }
    }
}

impl ReadAt for DiskFile {
    fn read_at(&self, into: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        let count = self.file.read_at(into, offset_bytes)?;
        if !self.direct {
            let len = std::num::NonZeroU64::new(count as u64);
            // Advice only.
            let _ = fadvise(&self.file, offset_bytes, len, Advice::DontNeed);
        }
        Ok(count)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

/// A file that is part of the program.
pub struct MemoryFile(pub Bytes);

impl ReadAt for MemoryFile {
    fn read_at(&self, into: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        let start = usize::try_from(offset_bytes).unwrap_or(usize::MAX).min(self.0.len());
        let count = into.len().min(self.0.len() - start);
        into[..count].copy_from_slice(&self.0[start..start + count]);
        Ok(count)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
}

/// Reads until `needed` bytes are there; the rest of `into` is only room that alignment asks for.
///
/// Returns how many calls it took.
///
/// # Errors
/// The operating system's; `UnexpectedEof` where the file ends before.
pub fn read_whole(
    file: &dyn ReadAt,
    into: &mut [u8],
    offset_bytes: u64,
    needed: usize,
    align: usize,
) -> io::Result<u32> {
    let (mut have, mut calls) = (0, 0);
    while have < needed {
        calls += 1;
        match file.read_at(&mut into[have..], offset_bytes + have as u64) {
            Ok(count) => {
                let after = resume(have, count, needed, align)?;
                have = after;
            }
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(calls)
}

/// Where to go on after `count` more bytes: whole blocks only, unless everything is there.
pub(super) fn resume(have: usize, count: usize, needed: usize, align: usize) -> io::Result<usize> {
    let reached = have + count;
    if reached >= needed {
        return Ok(reached);
    }
    let after = reached / align * align;
    if after > have { Ok(after) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Errors after which the same call may succeed.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}
