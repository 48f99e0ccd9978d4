//! A disk that fails at any single step, or from some step on, which is what a kill leaves.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use store::convert::{ConvertError, Disk, DiskFile, RealDisk};
use store::jnf::{Store, StoreError};

use crate::fixture::{Fixture, Layout, files};

/// The operating system's disk until step `at`.
struct BrokenDisk {
    at: u64,
    /// Whether all later steps fail too.
    dead: bool,
    errno: i32,
    steps: AtomicU64,
    free_bytes: u64,
}

impl BrokenDisk {
    fn new(at: u64, dead: bool, errno: i32) -> BrokenDisk {
        BrokenDisk { at, dead, errno, steps: AtomicU64::new(0), free_bytes: u64::MAX }
    }

    fn step(&self) -> io::Result<()> {
        let step = self.steps.fetch_add(1, Ordering::SeqCst);
        match step == self.at || (self.dead && step > self.at) {
            true => Err(io::Error::from_raw_os_error(self.errno)),
            false => Ok(()),
        }
    }
}

impl Disk for BrokenDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        RealDisk.create_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile + '_>> {
        self.step()?;
        let file = std::fs::File::create(path)?;
        Ok(Box::new(BrokenFile { disk: self, file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        RealDisk.rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        RealDisk.sync_dir(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        RealDisk.remove(path)
    }

    fn free_bytes(&self, _path: &Path) -> io::Result<u64> {
        self.step()?;
        Ok(self.free_bytes)
    }
}

struct BrokenFile<'a> {
    disk: &'a BrokenDisk,
    file: std::fs::File,
}

impl DiskFile for BrokenFile<'_> {
    /// A step that fails leaves half of the bytes.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let step = self.disk.step();
        let bytes = if step.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        io::Write::write_all(&mut self.file, bytes)?;
        step
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.step()
    }
}

const ENOSPC: i32 = 28;
const EIO: i32 = 5;

#[test]
fn a_failure_at_any_step_leaves_a_store_that_says_so_and_can_be_completed() {
    let fixture = Fixture::in_memory(Layout::Fused);
    for pack in [false, true] {
        let whole = files(&fixture.store(&format!("whole-{pack}"), pack));
        for (dead, errno) in [(false, ENOSPC), (false, EIO), (true, EIO)] {
            let mut failures = 0;
            for at in 0.. {
                let out = fixture.out(&format!("broken-{pack}-{dead}-{errno}-{at}"));
                let disk = BrokenDisk::new(at, dead, errno);
                let result = fixture.convert(&out, pack, &disk);
                if result.is_ok() && disk.steps.load(Ordering::SeqCst) <= at {
                    break;
                }
                failures += 1;
                match result.unwrap_err() {
                    ConvertError::Write { source, .. } => {
                        assert_eq!(source.raw_os_error(), Some(errno), "step {at}")
                    }
                    error => panic!("step {at}: {error}"),
                }
                let complete = match Store::open(&out) {
                    Err(StoreError::Incomplete { .. } | StoreError::NotAStore { .. }) => false,
                    // Everything was there when the last steps, which only tidy up, failed.
                    Ok(_) => true,
                    Err(error) => panic!("step {at}: {error}"),
                };
                assert!(fixture.convert(&out, pack, &RealDisk).unwrap().complete, "step {at}");
                Store::open(&out).unwrap();
                let found = files(&out);
                assert!(found == whole, "step {at}, complete before: {complete}");
                std::fs::remove_dir_all(&out).unwrap();
            }
            assert!(failures > 50, "{failures} steps");
        }
    }
}

#[test]
fn too_little_space_is_told_before_anything_large_is_written() {
    let fixture = Fixture::new(Layout::Fused);
    let out = fixture.out("small");
    let disk = BrokenDisk { free_bytes: 1000, ..BrokenDisk::new(u64::MAX, false, EIO) };
    match fixture.convert(&out, false, &disk).unwrap_err() {
        ConvertError::NoSpace { needed, free, missing, .. } => {
            assert_eq!((free, missing), (1000, needed - 1000));
        }
        error => panic!("{error}"),
    }
    assert!(matches!(Store::open(&out), Err(StoreError::Incomplete { .. })));
    assert!(fixture.convert(&out, false, &RealDisk).unwrap().complete);
}
