//! Weights copied into memory of our own, where a file that changes or shrinks cannot reach them
//! and the system does not drop them under pressure.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bytes::Bytes;
use rustix::fs::{Advice, fadvise};

use super::error::CheckpointError;
use super::{Checkpoint, Dtype, Part, Tensor, part_of};
use crate::io::arena::Arena;
use crate::pack::encode;

/// Tensors start at multiples of it: a cache line.
const ALIGN: usize = 64;
/// Matrices below this are not worth packing.
const PACKED_BYTES_MIN: usize = 64 << 10;
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

/// What becomes of a part of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// It stays in the mapped file.
    Mapped,
    Owned,
    /// Losslessly packed where that makes a matrix smaller, else as `Owned`.
    Packed,
}

impl Checkpoint {
    /// Reads the tensors of some parts into memory; all slices given out later are of that.
    ///
    /// Does nothing to a checkpoint that is part of the program.
    ///
    /// # Errors
    /// `Io` for a file that cannot be read, or holds less than when it was opened.
    pub fn own(&mut self, keep: impl Fn(Part) -> Keep) -> Result<(), CheckpointError> {
        if self.folder().is_none() {
            return Ok(());
        }
        let (mut plain, mut packed) = (Vec::new(), Vec::new());
        for (name, tensor) in &mut self.tensors {
            match keep(part_of(name)) {
                Keep::Mapped => {}
                Keep::Packed if is_matrix(tensor) => packed.push(tensor),
                Keep::Owned | Keep::Packed => plain.push(tensor),
            }
        }
        plain.extend(pack(packed)?);
        own_plain(plain)
    }
}

/// What the kernels read packed: a matrix of some size.
fn is_matrix(tensor: &Tensor) -> bool {
    let large = tensor.bytes.len() >= PACKED_BYTES_MIN;
    large && tensor.shape.len() == 2 && tensor.dtype == Dtype::Bf16
}

fn failed(path: &Path, source: io::Error) -> CheckpointError {
    CheckpointError::Io { path: path.to_path_buf(), source }
}

/// Reads and packs; gives back those that packing would not make smaller, untouched.
fn pack(tensors: Vec<&mut Tensor>) -> Result<Vec<&mut Tensor>, CheckpointError> {
    let queue = Mutex::new(tensors.into_iter());
    let next = || queue.lock().expect("no thread panics while it holds the queue").next();
    let work = || {
        let mut left = Vec::new();
        while let Some(tensor) = next() {
            match packed_bytes(tensor).map_err(|error| failed(&tensor.file, error))? {
                Some(bytes) => (tensor.bytes, tensor.packed) = (bytes, true),
                None => left.push(tensor),
            }
        }
        Ok(left)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let done = threads.into_iter().map(|thread| thread.join().expect("a packer"));
        let left: Vec<Vec<_>> = done.collect::<Result<_, CheckpointError>>()?;
        Ok(left.into_iter().flatten().collect())
    })
}

/// In huge pages where there are any, at the start of one.
fn packed_bytes(tensor: &Tensor) -> io::Result<Option<Bytes>> {
    let file = File::open(&tensor.file)?;
    let mut plain = vec![0; tensor.bytes.len()];
    file.read_exact_at(&mut plain, tensor.offset)?;
    forget(&file, tensor.offset, plain.len());
    let Some(packed) = encode(tensor.shape[0], tensor.shape[1], &plain) else { return Ok(None) };
    let mut memory = Arena::new(packed.len(), 1)?.take().expect("its only slot");
    memory[..packed.len()].copy_from_slice(&packed);
    Ok(Some(memory.freeze().slice(..packed.len())))
}

fn own_plain(mut tensors: Vec<&mut Tensor>) -> Result<(), CheckpointError> {
    tensors.sort_by(|a, b| (&a.file, a.offset).cmp(&(&b.file, b.offset)));
    let room = |len: usize| len.next_multiple_of(ALIGN);
    let total: usize = tensors.iter().map(|t| room(t.bytes.len())).sum();
    let arena = Arena::new(total, 1).map_err(|error| failed(Path::new("memory"), error))?;
    let mut memory = arena.take().expect("its only slot");
    let (mut rest, mut pieces) = (&mut memory[..], Vec::new());
    for tensor in &tensors {
        let into = rest.split_off_mut(..room(tensor.bytes.len())).expect("room for each");
        let parts = into[..tensor.bytes.len()].chunks_mut(PIECE_BYTES).enumerate();
        pieces.extend(parts.map(|(i, into)| {
            let offset_bytes = tensor.offset + (i * PIECE_BYTES) as u64;
            Piece { path: &tensor.file, offset_bytes, into }
        }));
    }
    read(pieces).map_err(|(path, error)| failed(&path, error))?;
    let (memory, mut at) = (memory.freeze(), 0);
    for tensor in tensors {
        let len = tensor.bytes.len();
        tensor.bytes = memory.slice(at..at + len);
        at += room(len);
    }
    Ok(())
}

/// The page cache need not keep what we have; advice only.
fn forget(file: &File, offset_bytes: u64, len: usize) {
    let _ = fadvise(file, offset_bytes, NonZeroU64::new(len as u64), Advice::DontNeed);
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
            forget(file, offset_bytes, into.len());
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a reader"))
    })
}
