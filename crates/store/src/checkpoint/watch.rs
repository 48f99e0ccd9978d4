//! Whether the files in use are still what they were when they were opened.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::CheckpointError;

/// What the system says of a file: enough to tell that it was written to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stamp {
    pub name: String,
    pub size_bytes: u64,
    pub modified_ns: i64,
    pub inode: u64,
}

impl Stamp {
    /// Of a file as it is now, and the device that it lies on.
    ///
    /// # Errors
    /// The operating system's.
    pub fn of(path: &Path) -> io::Result<(Stamp, u64)> {
        let file = fs::metadata(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let seconds = file.mtime().saturating_mul(1_000_000_000);
        let modified_ns = seconds.saturating_add(file.mtime_nsec());
        let (size_bytes, inode) = (file.len(), file.ino());
        Ok((Stamp { name, size_bytes, modified_ns, inode }, file.dev()))
    }
}

/// The files of a checkpoint as they were.
///
/// A file that was replaced or deleted does no harm: what is mapped and open is the old one. One
/// that was written to or cut is another matter, and the system tells it by size and time only.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    files: Vec<Watched>,
}

#[derive(Clone, Debug)]
struct Watched {
    path: PathBuf,
    stamp: Stamp,
    device: u64,
}

impl Watch {
    /// Of files as they are now.
    ///
    /// # Errors
    /// `Io` for one that is not there.
    pub fn new(paths: impl Iterator<Item = PathBuf>) -> Result<Watch, CheckpointError> {
        let watched = |path: PathBuf| match Stamp::of(&path) {
            Ok((stamp, device)) => Ok(Watched { path, stamp, device }),
            Err(source) => Err(CheckpointError::Io { path, source }),
        };
        Ok(Watch { files: paths.map(watched).collect::<Result<_, _>>()? })
    }

    /// These files too, as they are now; those it has stay as they were.
    ///
    /// # Errors
    /// As `new`.
    pub fn and(self, paths: impl Iterator<Item = PathBuf>) -> Result<Watch, CheckpointError> {
        let Watch { mut files } = self;
        let new = |path: &PathBuf| files.iter().all(|file| file.path != *path);
        let more: Vec<PathBuf> = paths.filter(new).collect();
        files.extend(Watch::new(more.into_iter())?.files);
        Ok(Watch { files })
    }

    /// Costs one call of the system for each file.
    ///
    /// # Errors
    /// `Changed` for a file that was written to since; what was computed from it is to be dropped.
    pub fn check(&self) -> Result<(), CheckpointError> {
        for Watched { path, stamp, device } in &self.files {
            // Gone or replaced: the old file is still the one in use.
            let Ok((now, on)) = Stamp::of(path) else { continue };
            let same_file = (on, now.inode) == (*device, stamp.inode);
            if same_file && now != *stamp {
                return Err(CheckpointError::Changed { path: path.clone() });
            }
        }
        Ok(())
    }
}
