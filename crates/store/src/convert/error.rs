//! Why a conversion did not happen, or stopped, each with the way out.

use std::path::PathBuf;

use crate::checkpoint::CheckpointError;
use crate::experts::BlockId;
use crate::jnf::StoreError;

/// Why a conversion did not happen, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error("{label}: no layer has routed experts; there is nothing to convert")]
    NoExperts { label: String },

    #[error(
        "{path}: tensor {tensor}: the experts are stored in {found}; a store holds bf16 experts \
         only, because a conversion must not change a weight: use this checkpoint in place"
    )]
    ExpertDtype { path: PathBuf, tensor: String, found: &'static str },

    #[error(
        "{label}: {id:?} has rows x columns {found:?}, the layer's first expert has {expected:?}; \
         experts of different shapes cannot be stored: use this checkpoint in place"
    )]
    UnevenExperts { label: String, id: BlockId, expected: (usize, usize), found: (usize, usize) },

    #[error("layers {first}-{last}: the model has layers 0-{model_last}; ask for some of these")]
    NoSuchLayers { first: u32, last: u32, model_last: u32 },

    #[error(
        "{path}: not empty, and not a store that a conversion began (it holds {found}); give a \
         new or empty folder"
    )]
    NotEmpty { path: PathBuf, found: String },

    #[error(
        "{path}: a store of another conversion: its {field} is {found}, this one's is {expected}; \
         give a new or empty folder, or the same checkpoint and flags"
    )]
    OtherConversion { path: PathBuf, field: &'static str, expected: String, found: String },

    #[error("{path}: another conversion is at work here: {holder}; wait for it, or end it")]
    Busy { path: PathBuf, holder: String },

    #[error(
        "{path}: {needed} bytes are needed, {free} are free, {missing} are missing; free that \
         much, or convert fewer layers with --layers"
    )]
    NoSpace { path: PathBuf, needed: u64, free: u64, missing: u64 },

    #[error(
        "{path}: changed while it was being converted: {field} was {expected}, is {found}; put \
         the old file back, or convert again into an empty folder"
    )]
    SourceChanged { path: PathBuf, field: &'static str, expected: String, found: String },

    #[error(
        "interrupted; {layers_done} of {layers} layers are done: the same command goes on from \
         there"
    )]
    Interrupted { layers_done: usize, layers: usize },

    #[error(
        "writing {path}: {source}; the store is incomplete: mend the cause, and the same command \
         goes on from there"
    )]
    Write { path: PathBuf, source: std::io::Error },

    #[error("reading {path} at byte {offset}: {source}; check the disk, or download it again")]
    Read { path: PathBuf, offset: u64, source: std::io::Error },

    #[error(transparent)]
    Store(#[from] StoreError),

    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}
