//! The seam for writing: everything that a conversion does to a disk goes through here, so that
//! tests can let any single step of it fail.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

use crate::jnf::PARTIAL_SUFFIX;

/// A file system as a conversion uses it.
pub trait Disk: Sync {
    /// Makes a folder and those above it; fine if it is there.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// A new, empty file in place of whatever was there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile + '_>>;
    /// Atomic; replaces a file, or an absent folder.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Afterwards the names in this folder survive a crash.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes a file, or a folder with all it holds; fine if it is not there.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// What can still be written below an existing folder.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// A file being written.
pub trait DiskFile {
    /// Appends all of it.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Afterwards its bytes survive a crash.
    fn sync(&mut self) -> io::Result<()>;
}

/// The operating system's.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile + '_>> {
        Ok(Box::new(WrittenOut { file: File::create(path)?, end: 0, handed_over: 0 }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(path)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}

/// Bytes after which the drive is told to begin.
const WRITE_OUT_BYTES: u64 = 16 << 20;

/// A file whose bytes go to the drive while more are made, not all of them at the end.
struct WrittenOut {
    file: File,
    end: u64,
    handed_over: u64,
}

impl DiskFile for WrittenOut {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.end += bytes.len() as u64;
        if self.end - self.handed_over >= WRITE_OUT_BYTES {
            // begins to write what is dirty and waits for nothing; `sync` is what counts
            let len = NonZeroU64::new(self.end - self.handed_over);
            let _ = fadvise(&self.file, self.handed_over, len, Advice::DontNeed);
            self.handed_over = self.end;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// The name of a file or folder until all of it is on the disk.
pub fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(PARTIAL_SUFFIX);
    PathBuf::from(name)
}

/// Puts a small file in its place: after a crash it is the old one or the new one, whole.
pub fn publish(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = partial(path);
    let mut file = disk.create(&partial)?;
    file.write_all(bytes)?;
    file.sync()?;
    drop(file);
    disk.rename(&partial, path)?;
    disk.sync_dir(path.parent().expect("a file is in a folder"))
}
