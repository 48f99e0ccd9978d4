//! Whether the files in use are still what they were when they were opened.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::error::CheckpointError;

/// The files of a checkpoint as they were.
///
/// A file that was replaced or deleted does no harm: what is mapped and open is the old one. One
/// that was written to or cut is another matter, and the system tells it by size and time only.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    files: Vec<Stamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    path: PathBuf,
    device: u64,
    inode: u64,
    size_bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Watch {
    /// Of files as they are now.
    ///
    /// # Errors
    /// `Io` for one that is not there.
    pub fn new(paths: impl Iterator<Item = PathBuf>) -> Result<Watch, CheckpointError> {
        let stamp = |path: PathBuf| {
            stamp(&path).map_err(|source| CheckpointError::Io { path: path.clone(), source })
        };
        Ok(Watch { files: paths.map(stamp).collect::<Result<_, _>>()? })
    }

    /// These files too, as they are now; those it has stay as they were.
    ///
    /// # Errors
    /// As `new`.
    pub fn and(self, paths: impl Iterator<Item = PathBuf>) -> Result<Watch, CheckpointError> {
        let Watch { mut files } = self;
        let new = |path: &PathBuf| files.iter().all(|stamp| stamp.path != *path);
        let more: Vec<PathBuf> = paths.filter(new).collect();
        files.extend(Watch::new(more.into_iter())?.files);
        Ok(Watch { files })
    }

    /// Costs one call of the system for each file.
    ///
    /// # Errors
    /// `Changed` for a file that was written to since; what was computed from it is to be dropped.
    pub fn check(&self) -> Result<(), CheckpointError> {
        for before in &self.files {
            // Gone or replaced: the old file is still the one in use.
            let Ok(now) = stamp(&before.path) else { continue };
            let same_file = (now.device, now.inode) == (before.device, before.inode);
            if same_file && now != *before {
                return Err(CheckpointError::Changed { path: now.path });
            }
        }
        Ok(())
    }
}

fn stamp(path: &std::path::Path) -> io::Result<Stamp> {
    let file = fs::metadata(path)?;
    Ok(Stamp {
        path: path.to_path_buf(),
        device: file.dev(),
        inode: file.ino(),
        size_bytes: file.len(),
        modified: (file.mtime(), file.mtime_nsec()),
    })
}
