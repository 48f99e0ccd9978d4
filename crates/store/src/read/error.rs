//! Why an expert did not arrive.

use std::io;
use std::path::PathBuf;

use crate::experts::{BlockId, Provenance};
use crate::pack::PackError;

/// Why experts cannot be read, or one of them was not.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{path}: {source}")]
    Open { path: PathBuf, source: io::Error },

    #[error(
        "{path}: {found} bytes long, where {expected} were found when the model was opened; the \
         file was changed meanwhile: start again, or restore the file"
    )]
    Length { path: PathBuf, expected: u64, found: u64 },

    #[error(
        "{path}: no memory for {slot_count} experts of {slot_bytes} bytes: {source}; use a \
         smaller --ram-budget",
        path = "RAM"
    )]
    Arena { slot_count: usize, slot_bytes: usize, source: io::Error },

    #[error("io_uring is not to be had here: {source}; use --io pread")]
    Ring { source: io::Error },

    #[error("cannot start a thread that reads: {source}")]
    Thread { source: io::Error },

    #[error(
        "{path}: reading at {offset_bytes} ({id}) failed: {source}; if it stays, the drive or the \
         file is damaged: check the drive's log, download the file again",
        id = name(.id)
    )]
    Io { path: PathBuf, offset_bytes: u64, id: BlockId, source: io::Error },

    #[error(
        "{path}: the block at {offset_bytes} ({id}) is damaged: its checksum is {found:032x}, \
         {whence} {expected:032x}, and reading it again changed nothing; run `tarfa verify`, and \
         restore the file",
        id = name(.id), whence = whence(*.from)
    )]
    Differs {
        path: PathBuf,
        offset_bytes: u64,
        id: BlockId,
        expected: u128,
        from: Provenance,
        found: u128,
    },

    #[error(
        "{path}: the packed block at {offset_bytes} ({id}) is none that this program writes: \
         {problem}; convert the checkpoint again",
        id = name(.id)
    )]
    Packed { path: PathBuf, offset_bytes: u64, id: BlockId, problem: PackError },

    #[error("called off before it began")]
    Cancelled,

    #[error("the reader has stopped")]
    Stopped,
}

fn name(id: &BlockId) -> String {
    format!("layer {}, expert {}, {}", id.layer, id.expert, id.projection.name())
}

fn whence(from: Provenance) -> &'static str {
    match from {
        Provenance::Manifest => "the manifest says",
        Provenance::FirstSeen => "the first reading gave",
    }
}
