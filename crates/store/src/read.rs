//! Experts from disk into memory: whole, checked, the urgent ones first.
//!
//! Every fetch brings its own slot and gets an answer, whatever happens. A block is given out only
//! when its checksum is what the manifest or the first reading said.

mod check;
mod error;
mod layout;
mod queue;
mod raw;
mod work;

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Instant;

use bytes::Bytes;

pub use crate::io::arena::{Arena, ArenaSlot};
pub use crate::io::fault::{Fault, FaultyFile, Injection};
pub use check::{Known, check_block};
pub use error::ReadError;
pub use raw::RawProbe;

use crate::experts::{Digests, ExpertFile, ExpertMap};
use crate::io::file::{DiskFile, MemoryFile, ReadAt};
use crate::io::ring::Ring;
use queue::{Job, Queue};
use work::Shared;

/// Threads that read where there is no ring: as many reads are in flight.
const POOL_THREADS: usize = 8;
/// Reads in flight in the ring.
pub const DEPTH: usize = 16;
/// Most bytes of a read in the ring.
pub const PIECE_BYTES: usize = 1 << 20;

/// How to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Io {
    /// The ring where it is to be had.
    #[default]
    Auto,
    /// The ring or an error.
    Uring,
    /// A pool of threads.
    Pread,
}

/// What reads, and why it is not something faster.
#[derive(Debug)]
pub enum Backend {
    /// io_uring around the page cache; `fixed` where the arena is registered.
    Uring { fixed: bool },
    /// A pool of threads.
    Pread { reason: PreadReason },
    /// The files are part of the program.
    Memory,
}

/// Why a pool reads.
#[derive(Debug, thiserror::Error)]
pub enum PreadReason {
    #[error("as asked")]
    Asked,
    /// Reads pass through the page cache.
    #[error("this file system has no O_DIRECT")]
    NoDirect,
    #[error("no io_uring here: {0}")]
    NoRing(std::io::Error),
}

/// Options of a reader.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    pub io: Io,
    pub depth: usize,
    pub piece_bytes: usize,
    /// Faults of a file, by its index; for tests.
    pub faults: Vec<(usize, Vec<Injection>)>,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions { io: Io::Auto, depth: DEPTH, piece_bytes: PIECE_BYTES, faults: Vec::new() }
    }
}

/// Whether somebody waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    Demand,
    /// Only while nothing urgent waits or is being read.
    Ahead,
}

/// An expert to be read.
pub struct Fetch {
    pub layer: u32,
    pub expert: u32,
    pub urgency: Urgency,
    /// Of at least `ExpertMap::slot_bytes`.
    pub slot: ArenaSlot,
    pub reply: Sender<Fetched>,
}

/// The answer to a fetch.
#[derive(Debug)]
pub struct Fetched {
    pub layer: u32,
    pub expert: u32,
    pub urgency: Urgency,
    pub result: Result<ExpertBytes, ReadError>,
    pub tally: FetchTally,
}

/// The blocks of an expert; the slot is free when all slices are gone.
#[derive(Clone, Debug)]
pub struct ExpertBytes {
    /// Stored bytes of each block, in the order of `ExpertMap::blocks`.
    pub blocks: Vec<Bytes>,
}

/// What a fetch took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FetchTally {
    /// Calls to the system, or entries in the ring.
    pub reads: u32,
    /// Bytes asked of the file, alignment included.
    pub bytes: u64,
    /// Blocks equal to a manifest, equal to the first reading, seen for the first time.
    pub manifest: u32,
    pub first_seen: u32,
    pub new: u32,
    /// Times that it was read again because a checksum was wrong.
    pub retries: u32,
    /// Nanoseconds in the queue, being read, being checked.
    pub queue_ns: u64,
    pub read_ns: u64,
    pub check_ns: u64,
}

/// Reads the experts of a model; dropping it ends its threads.
pub struct ExpertReader {
    shared: Arc<Shared>,
    backend: Backend,
    threads: Vec<JoinHandle<()>>,
}

impl ExpertReader {
    /// Opens every file and starts the threads.
    ///
    /// # Errors
    /// `Open`, `Length` where a file is not as long as the map says, `Ring` where only a ring
    /// would do, `Thread`.
    pub fn open(
        map: Arc<ExpertMap>,
        digests: Arc<Digests>,
        arena: &Arena,
        options: &ReadOptions,
    ) -> Result<ExpertReader, ReadError> {
        assert!(arena.slot_bytes() >= map.slot_bytes(), "slots hold any expert");
        let shared = Arc::new(Shared { map, digests, queue: Queue::default() });
        if shared.map.files().iter().all(|file| file.embedded) {
            let files = shared.map.files().iter();
            let files = files.map(|f| Box::new(MemoryFile(f.bytes.clone())) as Box<dyn ReadAt>);
            let files = with_faults(files.collect(), options);
            let threads = pool(&shared, files, 1)?;
            return Ok(ExpertReader { shared, backend: Backend::Memory, threads });
        }
        let files = open_files(shared.map.files())?;
        let reason = match options.io {
            Io::Pread => PreadReason::Asked,
            _ if !options.faults.is_empty() => PreadReason::Asked,
            _ if files.iter().any(|file| !file.direct) => PreadReason::NoDirect,
            _ => match ring(&shared, arena, options) {
                Ok((fixed, threads)) => {
                    let backend = Backend::Uring { fixed };
                    return Ok(ExpertReader { shared, backend, threads });
                }
                Err(source) => PreadReason::NoRing(source),
            },
        };
        match (options.io, reason) {
            (Io::Uring, PreadReason::NoRing(source)) => Err(ReadError::Ring { source }),
            (_, reason) => {
                let files = files.into_iter().map(|f| Box::new(f) as Box<dyn ReadAt>);
                let files = with_faults(files.collect(), options);
                let threads = pool(&shared, files, POOL_THREADS)?;
                Ok(ExpertReader { shared, backend: Backend::Pread { reason }, threads })
            }
        }
    }

    /// What reads.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Asks for an expert; the answer comes through `fetch.reply`.
    pub fn fetch(&self, fetch: Fetch) {
        let (asked, tally) = (Instant::now(), FetchTally::default());
        if let Some(job) = self.shared.queue.push(Job { fetch, asked, again: false, tally }) {
            job.answer(Err(ReadError::Stopped));
        }
    }

    /// Calls off what was to be read ahead and has not begun; each is answered `Cancelled`.
    pub fn cancel_ahead(&self) {
        for job in self.shared.queue.cancel_ahead() {
            job.answer(Err(ReadError::Cancelled));
        }
    }
}

impl Drop for ExpertReader {
    fn drop(&mut self) {
        for job in self.shared.queue.stop() {
            job.answer(Err(ReadError::Stopped));
        }
        for thread in self.threads.drain(..) {
            // A reader thread that panicked has said so on stderr; there is nothing to add.
            let _ = thread.join();
        }
    }
}

fn open_files(files: &[ExpertFile]) -> Result<Vec<DiskFile>, ReadError> {
    let open = |file: &ExpertFile| {
        let failed = |source| ReadError::Open { path: file.path.clone(), source };
        let opened = DiskFile::open(&file.path).map_err(failed)?;
        let found = opened.len_bytes().map_err(failed)?;
        let (path, expected) = (file.path.clone(), file.len_bytes);
        if found == expected {
            Ok(opened)
        } else {
            Err(ReadError::Length { path, expected, found })
        }
    };
    files.iter().map(open).collect()
}

fn with_faults(files: Vec<Box<dyn ReadAt>>, options: &ReadOptions) -> Vec<Box<dyn ReadAt>> {
    let faults = |i: usize| options.faults.iter().find(|(at, _)| *at == i);
    let wrap = |(i, file): (usize, Box<dyn ReadAt>)| match faults(i) {
        Some((_, injections)) => Box::new(FaultyFile::new(file, injections.clone())),
        None => file,
    };
    files.into_iter().enumerate().map(wrap).collect()
}

fn pool(
    shared: &Arc<Shared>,
    files: Vec<Box<dyn ReadAt>>,
    count: usize,
) -> Result<Vec<JoinHandle<()>>, ReadError> {
    let files = Arc::new(files);
    let start = |i: usize| {
        let (shared, files) = (shared.clone(), files.clone());
        spawn(format!("tarfa-read-{i}"), move || work::pool(&shared, &files))
    };
    (0..count).map(start).collect()
}

/// A thread for the ring and one that checks what it brings.
fn ring(
    shared: &Arc<Shared>,
    arena: &Arena,
    options: &ReadOptions,
) -> std::io::Result<(bool, Vec<JoinHandle<()>>)> {
    // The ring has its own descriptors: it is gone before they are.
    let files = open_files(shared.map.files()).map_err(std::io::Error::other)?;
    let ring = Ring::new(files, arena, options.depth, options.piece_bytes)?;
    let fixed = ring.is_fixed();
    let (send, receive) = std::sync::mpsc::channel();
    let (reading, checking) = (shared.clone(), shared.clone());
    let threads = vec![
        spawn("tarfa-ring".into(), move || work::ring(&reading, ring, &send)),
        spawn("tarfa-check".into(), move || work::check_arrivals(&checking, receive)),
    ];
    let threads: Result<Vec<_>, _> = threads.into_iter().collect();
    Ok((fixed, threads.map_err(std::io::Error::other)?))
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ReadError> {
    let built = std::thread::Builder::new().name(name).spawn(work);
    built.map_err(|source| ReadError::Thread { source })
}
