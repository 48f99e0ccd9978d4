//! The checkpoint as a conversion reads it: whole reads or errors, and proof that it stayed as it
//! was.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::error::ConvertError;
use crate::checkpoint::{Checkpoint, Stamp};

/// The files of a checkpoint, opened.
pub struct Sources {
    files: BTreeMap<PathBuf, Held>,
}

enum Held {
    File(File),
    /// A part of the program.
    Bytes(Bytes),
}

impl Sources {
    /// Opens all shards.
    ///
    /// Errors: `Read`.
    pub fn open(checkpoint: &Checkpoint) -> Result<Sources, ConvertError> {
        let mut files = BTreeMap::new();
        for shard in checkpoint.shards() {
            let path = checkpoint.shard_path(shard);
            let held = match checkpoint.folder() {
                None => Held::Bytes(shard.bytes.clone()),
                Some(_) => match File::open(&path) {
                    Ok(file) => Held::File(file),
                    Err(source) => return Err(ConvertError::Read { path, offset: 0, source }),
                },
            };
            files.insert(path, held);
        }
        Ok(Sources { files })
    }

    /// Appends `size_bytes` bytes from `offset` to a buffer: all of them, or an error.
    ///
    /// Errors: `Read`. Panics for a path that is no shard.
    pub fn read(
        &self,
        path: &Path,
        offset: u64,
        size_bytes: u64,
        into: &mut Vec<u8>,
    ) -> Result<(), ConvertError> {
        let held = self.files.get(path).expect("blocks lie in the checkpoint's shards");
        let begin = into.len();
        into.resize(begin + size_bytes as usize, 0);
        let target = &mut into[begin..];
        let done = match held {
            Held::File(file) => file.read_exact_at(target, offset),
            Held::Bytes(bytes) => {
                match bytes.get(offset as usize..(offset + size_bytes) as usize) {
                    Some(found) => {
                        target.copy_from_slice(found);
                        Ok(())
                    }
                    None => Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
        };
        done.map_err(|source| ConvertError::Read { path: path.to_path_buf(), offset, source })
    }
}

/// Stamps of config.json and all shards; none for what is a part of the program.
///
/// Errors: `Read`.
pub fn stamps(checkpoint: &Checkpoint) -> Result<Vec<Stamp>, ConvertError> {
    let Some(folder) = checkpoint.folder() else { return Ok(Vec::new()) };
    let shards = checkpoint.shards().iter().map(|shard| checkpoint.shard_path(shard));
    let files = std::iter::once(folder.join("config.json")).chain(shards);
    let stamp = |path: PathBuf| match Stamp::of(&path) {
        Ok((stamp, _)) => Ok(stamp),
        Err(source) => Err(ConvertError::Read { path, offset: 0, source }),
    };
    files.map(stamp).collect()
}

/// Compares the files with what they were.
///
/// Errors: `SourceChanged`.
pub fn compare(
    checkpoint: &Checkpoint,
    before: &[Stamp],
    now: &[Stamp],
) -> Result<(), ConvertError> {
    let root = checkpoint.folder().unwrap_or(Path::new(checkpoint.label()));
    let changed = |name: &str, field, expected: String, found: String| {
        Err(ConvertError::SourceChanged { path: root.join(name), field, expected, found })
    };
    for (then, now) in before.iter().zip(now) {
        let name = &then.name;
        if then.size_bytes != now.size_bytes {
            let (expected, found) = (then.size_bytes.to_string(), now.size_bytes.to_string());
            return changed(name, "the size in bytes", expected, found);
        }
        if then.modified_ns != now.modified_ns {
            let (expected, found) = (then.modified_ns.to_string(), now.modified_ns.to_string());
            return changed(name, "the time of change in ns", expected, found);
        }
        if then != now {
            let (expected, found) = (then.inode.to_string(), now.inode.to_string());
            return changed(name, "the inode", expected, found);
        }
    }
    if before.len() != now.len() {
        let (expected, found) = (before.len().to_string(), now.len().to_string());
        return changed("", "the number of files", expected, found);
    }
    Ok(())
}
