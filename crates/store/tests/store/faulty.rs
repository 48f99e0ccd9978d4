//! A disk of which any single operation can fail, and whose power can fail with it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use store::convert::{Disk, DiskFile, RealDisk};

pub const EIO: i32 = 5;
pub const ENOSPC: i32 = 28;

/// What happens at the chosen operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// This one fails, with that error number, and none after it.
    Once(i32),
    /// This one and all after it.
    Onwards(i32),
    /// As `Onwards`, and then the power is gone: see [`Faulty::lose_power`].
    PowerLoss,
}

/// What is done, but not yet safe from a power failure.
#[derive(Default)]
struct Unsafe {
    operations: usize,
    /// Written and not synced.
    files: BTreeSet<PathBuf>,
    /// Made, and the folder above not synced.
    folders: Vec<PathBuf>,
    /// Renamed, and the folder not synced: from, to, and the file that was there.
    renames: Vec<(PathBuf, PathBuf, Option<Vec<u8>>)>,
}

/// The real disk, except that nothing waits for the hardware.
pub struct Faulty {
    at: usize,
    failure: Failure,
    state: Mutex<Unsafe>,
}

impl Faulty {
    /// Fails at an operation, counted from 0.
    pub fn new(at: usize, failure: Failure) -> Faulty {
        Faulty { at, failure, state: Mutex::default() }
    }

    /// Never fails.
    pub fn sound() -> Faulty {
        Faulty::new(usize::MAX, Failure::Once(EIO))
    }

    pub fn operations(&self) -> usize {
        self.state.lock().unwrap().operations
    }

    fn step(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        let now = state.operations;
        state.operations += 1;
        match self.failure {
            Failure::Once(number) if now == self.at => Err(io::Error::from_raw_os_error(number)),
            Failure::Onwards(number) if now >= self.at => Err(io::Error::from_raw_os_error(number)),
            Failure::PowerLoss if now >= self.at => Err(io::Error::from_raw_os_error(EIO)),
            _ => Ok(()),
        }
    }

    /// What was not synced is lost: files are cut to half, renames undone, the last one first, and
    /// folders gone with what is in them.
    pub fn lose_power(&self) {
        let state = self.state.lock().unwrap();
        for path in &state.files {
            if let Ok(file) = fs::OpenOptions::new().write(true).open(path) {
                file.set_len(file.metadata().unwrap().len() / 2).unwrap();
            }
        }
        for (from, to, before) in state.renames.iter().rev() {
            fs::rename(to, from).unwrap();
            if let Some(bytes) = before {
                fs::write(to, bytes).unwrap();
            }
        }
        for folder in &state.folders {
            if folder.exists() {
                fs::remove_dir_all(folder).unwrap();
            }
        }
    }
}

impl Disk for Faulty {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        let new = path.ancestors().take_while(|folder| !folder.exists()).map(Path::to_path_buf);
        let new: Vec<PathBuf> = new.collect();
        RealDisk.create_dir(path)?;
        self.state.lock().unwrap().folders.extend(new);
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile + '_>> {
        self.step()?;
        let file = RealDisk.create(path)?;
        self.state.lock().unwrap().files.insert(path.to_path_buf());
        Ok(Box::new(FaultyFile { disk: self, path: path.to_path_buf(), file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        let before = fs::read(to).ok();
        RealDisk.rename(from, to)?;
        let mut state = self.state.lock().unwrap();
        let moved = |path: PathBuf| match path.strip_prefix(from) {
            Ok(rest) if rest.as_os_str().is_empty() => to.to_path_buf(),
            Ok(rest) => to.join(rest),
            Err(_) => path,
        };
        state.files = std::mem::take(&mut state.files).into_iter().map(moved).collect();
        // Its name is the rename's now.
        state.folders.retain(|folder| folder != from);
        state.renames.push((from.to_path_buf(), to.to_path_buf(), before));
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        let mut state = self.state.lock().unwrap();
        state.renames.retain(|(_, to, _)| to.parent() != Some(path));
        state.folders.retain(|folder| folder.parent() != Some(path));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.state.lock().unwrap().files.retain(|file| !file.starts_with(path));
        RealDisk.remove(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.step()?;
        RealDisk.free_bytes(path)
    }
}

struct FaultyFile<'a> {
    disk: &'a Faulty,
    path: PathBuf,
    file: Box<dyn DiskFile + 'static>,
}

impl DiskFile for FaultyFile<'_> {
    /// A write that fails has written half.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.disk.step() {
            self.file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.step()?;
        self.disk.state.lock().unwrap().files.remove(&self.path);
        Ok(())
    }
}

/// A disk with little room.
pub struct Full(pub u64);

impl Disk for Full {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile + '_>> {
        RealDisk.create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_dir(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(self.0)
    }
}
