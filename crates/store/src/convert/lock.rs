//! One conversion at a time: a file lock that the kernel drops with its holder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::ConvertError;
use crate::jnf::LOCK_NAME;

/// Held while converting; the file is removed at the end, and if it is not, it locks nobody out.
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Takes the lock of a store's folder.
    ///
    /// Errors: `Busy` with who holds it, `Write` where the file cannot be made.
    pub fn take(root: &Path) -> Result<Lock, ConvertError> {
        let path = root.join(LOCK_NAME);
        let failed = |source| ConvertError::Write { path: path.clone(), source };
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let mut file = options.open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::Error(source)) => return Err(failed(source)),
                Err(TryLockError::WouldBlock) => {
                    return Err(ConvertError::Busy { holder: holder(&mut file), path });
                }
            }
            // the one before us removes the file as it leaves: then ours has no name any more
            if !is_at(&file, &path) {
                continue;
            }
            file.set_len(0).map_err(failed)?;
            write!(file, "process {}", std::process::id()).map_err(failed)?;
            return Ok(Lock { path, _file: file });
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // whoever finds a file left behind can lock it all the same
        let _ = fs::remove_file(&self.path);
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    match file.read_to_string(&mut text) {
        Ok(_) if !text.is_empty() => text,
        _ => "a process that did not leave its number".to_string(),
    }
}
