//! Reads that go wrong on purpose.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use super::file::ReadAt;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// At most this many bytes come back.
    Short { count: usize },
    /// The call is interrupted.
    Interrupted,
    /// EIO.
    Io,
    /// One bit of the byte at this offset of the file is inverted.
    Flip { offset_bytes: u64 },
    /// Nothing comes back, as at the end of a file.
    End,
    /// It takes this long.
    Slow { delay: Duration },
}

/// A fault, and how many calls it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Injection {
    pub fault: Fault,
    /// Calls that touch what it is about; `u64::MAX` for always.
    pub times: u64,
}

/// A file whose reads go wrong as asked.
pub struct FaultyFile {
    inner: Box<dyn ReadAt>,
    injections: Mutex<Vec<Injection>>,
}

impl FaultyFile {
    pub fn new(inner: Box<dyn ReadAt>, injections: Vec<Injection>) -> FaultyFile {
        FaultyFile { inner, injections: Mutex::new(injections) }
    }

    /// The faults of this call, each used up by one.
    fn faults(&self, offset_bytes: u64, len: usize) -> Vec<Fault> {
        let mut all = self.injections.lock().expect("no thread panics while it holds the list");
        let mut out = Vec::new();
        for injection in all.iter_mut().filter(|i| i.times > 0) {
            let concerned = match injection.fault {
                Fault::Flip { offset_bytes: at } => {
                    (offset_bytes..offset_bytes + len as u64).contains(&at)
                }
                _ => true,
            };
            if concerned {
                injection.times -= 1;
                out.push(injection.fault);
            }
        }
        out
    }
}

impl ReadAt for FaultyFile {
    fn read_at(&self, into: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        let faults = self.faults(offset_bytes, into.len());
        let mut limit = into.len();
        for fault in &faults {
            match fault {
                Fault::Short { count } => limit = limit.min((*count).max(1)),
                Fault::Interrupted => return Err(io::ErrorKind::Interrupted.into()),
                Fault::Io => return Err(rustix::io::Errno::IO.into()),
                Fault::End => return Ok(0),
                Fault::Slow { delay } => std::thread::sleep(*delay),
                Fault::Flip { .. } => {}
            }
        }
        let mut count = self.inner.read_at(into, offset_bytes)?;
        count = count.min(limit);
        for fault in &faults {
            if let Fault::Flip { offset_bytes: at } = fault {
                let at = (at - offset_bytes) as usize;
                if at < count {
                    into[at] ^= 1 << (at % 8);
                }
            }
        }
        Ok(count)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.inner.len_bytes()
    }
}
