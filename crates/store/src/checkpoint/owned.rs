//! Weights copied into memory of our own, where a file that changes or shrinks cannot reach them
//! and the system does not drop them under pressure.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Mutex;

use rustix::fs::{Advice, fadvise};

use super::error::CheckpointError;
use super::{Checkpoint, Part, part_of};
use crate::io::arena::Arena;

/// Tensors start at multiples of it: a cache line.
const ALIGN: usize = 64;
/// Read at once by one thread.
const PIECE_BYTES: usize = 8 << 20;
/// Reads at the same time.
const THREADS: usize = 4;

/// A part of a tensor that is still to be read.
struct Piece<'a> {
    path: &'a PathBuf,
    offset_bytes: u64,
    into: &'a mut [u8],
}

impl Checkpoint {
    /// Reads the tensors of some parts into memory; all slices given out later are of that.
    ///
    /// Units: gives the bytes read. Does nothing to a checkpoint that is part of the program.
    ///
    /// # Errors
    /// `Io` for a file that cannot be read, or holds less than when it was opened.
    pub fn own(&mut self, wanted: impl Fn(Part) -> bool) -> Result<u64, CheckpointError> {
        if self.folder().is_none() {
            return Ok(0);
        }
        let mut tensors: Vec<_> =
            self.tensors.iter_mut().filter(|(name, _)| wanted(part_of(name))).collect();
        tensors.sort_by(|(_, a), (_, b)| (&a.file, a.offset).cmp(&(&b.file, b.offset)));
        let room = |len: usize| len.next_multiple_of(ALIGN);
        let total: usize = tensors.iter().map(|(_, t)| room(t.bytes.len())).sum();
        let failed = |path: &PathBuf, source| CheckpointError::Io { path: path.clone(), source };
        let arena =
            Arena::new(total, 1).map_err(|error| failed(&PathBuf::from("memory"), error))?;
        let mut memory = arena.take().expect("its only slot");
        let (mut rest, mut pieces) = (&mut memory[..], Vec::new());
        for (_, tensor) in &tensors {
            let into = rest.split_off_mut(..room(tensor.bytes.len())).expect("room for each");
            let parts = into[..tensor.bytes.len()].chunks_mut(PIECE_BYTES).enumerate();
            pieces.extend(parts.map(|(i, into)| {
                let offset_bytes = tensor.offset + (i * PIECE_BYTES) as u64;
                Piece { path: &tensor.file, offset_bytes, into }
            }));
        }
        read(pieces).map_err(|(path, error)| failed(&path, error))?;
        let (memory, mut at, mut read_bytes) = (memory.freeze(), 0, 0);
        for (_, tensor) in tensors {
            let len = tensor.bytes.len();
            tensor.bytes = memory.slice(at..at + len);
            at += room(len);
            read_bytes += len as u64;
        }
        Ok(read_bytes)
    }
}

/// Fills every piece; the page cache keeps nothing of it.
fn read(pieces: Vec<Piece<'_>>) -> Result<(), (PathBuf, io::Error)> {
    let mut files = BTreeMap::new();
    for piece in &pieces {
        if !files.contains_key(piece.path) {
            let file = File::open(piece.path).map_err(|error| (piece.path.clone(), error))?;
            files.insert(piece.path.clone(), file);
        }
    }
    let queue = Mutex::new(pieces.into_iter());
    let next = || queue.lock().expect("no thread panics while it holds the queue").next();
    let work = || -> Result<(), (PathBuf, io::Error)> {
        while let Some(Piece { path, offset_bytes, into }) = next() {
            let file = &files[path];
            file.read_exact_at(into, offset_bytes).map_err(|error| (path.clone(), error))?;
            // Advice only.
            let len = NonZeroU64::new(into.len() as u64);
            let _ = fadvise(file, offset_bytes, len, Advice::DontNeed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a reader"))
    })
}
