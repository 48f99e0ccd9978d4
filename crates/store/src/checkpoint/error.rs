//! What can be wrong with a checkpoint, each with the cause and the way out.

use std::fmt;
use std::path::PathBuf;

/// Why a checkpoint was refused, or a tensor of it.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(
        "{path}: not a folder; give the folder of a Hugging Face checkpoint, the one that \
             holds config.json"
    )]
    NotADirectory { path: PathBuf },

    #[error(
        "{path}: there is no config.json here; give the folder of a Hugging Face checkpoint, \
             or download the missing file"
    )]
    MissingConfig { path: PathBuf },

    #[error("{path}, line {line}: bad JSON: {reason}; download the file again")]
    BadJson { path: PathBuf, line: usize, reason: String },

    #[error(
        "{path}: no weights here: no tensor in any *.safetensors file (GGUF and PyTorch .bin \
             files are not read); download the safetensors files of the checkpoint"
    )]
    NoWeights { path: PathBuf },

    #[error(
        "{path}: the index names a shard `{shard}`, which is not a plain *.safetensors file \
             name; download model.safetensors.index.json again"
    )]
    BadShardName { path: PathBuf, shard: String },

    #[error(
        "{path}: this shard is missing, {named_by} names it; download it (a download that \
             stopped half-way leaves this)"
    )]
    MissingShard { path: PathBuf, named_by: &'static str },

    #[error(
        "{path}: this shard is not named by model.safetensors.index.json; it belongs to \
             another checkpoint or revision: move it away, or download the matching index"
    )]
    ExtraShard { path: PathBuf },

    #[error(
        "tensor {tensor}: the index places it in {path}, which does not hold it; the index \
             and the shard are of different revisions: download both again"
    )]
    TensorNotInShard { tensor: String, path: PathBuf },

    #[error(
        "tensor {tensor}: {path} holds it, but the index does not name it; the index and the \
             shard are of different revisions: download both again"
    )]
    TensorNotInIndex { tensor: String, path: PathBuf },

    #[error(
        "tensor {tensor}: held twice, in {first} and in {second}; two checkpoints are mixed \
             in this folder: download the checkpoint again into an empty one"
    )]
    DuplicateTensor { tensor: String, first: PathBuf, second: PathBuf },

    #[error("{path}: truncated: expected {expected} bytes, found {found}; download it again")]
    Truncated { path: PathBuf, expected: u64, found: u64 },

    #[error("{path}: bad safetensors header: {problem}; download it again")]
    BadHeader { path: PathBuf, problem: HeaderProblem },

    #[error(
        "{label}: no tensor {tensor}; expected one of shape {expected:?}: config.json and the \
             weights disagree, or this model family is not supported"
    )]
    TensorAbsent { label: String, tensor: String, expected: Vec<usize> },

    #[error(
        "{path}: tensor {tensor}: dtype {found}, but weights must be BF16 or F32; get the \
             unquantized BF16 checkpoint"
    )]
    WrongDtype { path: PathBuf, tensor: String, found: &'static str },

    #[error(
        "{path}: tensor {tensor}: expected shape {expected:?}, found {found:?}; config.json \
             and the weights disagree: download both again from one revision"
    )]
    WrongShape { path: PathBuf, tensor: String, expected: Vec<usize>, found: Vec<usize> },

    #[error(
        "{path}: it was written to while it was in use, so this answer was dropped; start again \
             with a file that stays as it is"
    )]
    Changed { path: PathBuf },

    #[error("{path}: {source}; check that it is a readable file on a healthy disk")]
    Io { path: PathBuf, source: std::io::Error },
}

/// What is wrong with the header of one safetensors file.
///
/// Units: offsets and lengths in bytes; offsets count from the end of the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderProblem {
    /// The length field exceeds what the format allows.
    TooLong { length: u64, limit: u64 },
    /// Not UTF-8 JSON of the expected form; the reason names the tensor where there is one.
    NotJson { line: usize, column: usize, reason: String },
    /// One name, two entries: parsers differ in which of them they believe.
    DuplicateName { tensor: String },
    /// A tensor begins inside the one before it.
    Overlap { tensor: String, begin: u64, expected: u64 },
    /// Bytes before a tensor belong to none.
    Hole { tensor: String, begin: u64, expected: u64 },
    /// The range ends before it begins.
    BackwardRange { tensor: String, begin: u64, end: u64 },
    /// Shape times element size does not fit the address space.
    SizeOverflow { tensor: String, shape: Vec<usize> },
    /// Shape times element size is not the length of the range.
    SizeMismatch { tensor: String, expected: u64, found: u64 },
    /// The range lies beyond any possible file.
    OutOfRange { tensor: String, end: u64 },
    /// Bytes after the last tensor belong to none.
    TrailingBytes { expected: u64, found: u64 },
}

impl fmt::Display for HeaderProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { length, limit } => {
                write!(f, "its length field says {length} bytes, the limit is {limit}")
            }
            Self::NotJson { line, column, reason } => {
                write!(f, "not JSON of the right form at line {line}, column {column}: {reason}")
            }
            Self::DuplicateName { tensor } => write!(f, "tensor {tensor} is listed twice"),
            Self::Overlap { tensor, begin, expected } => write!(
                f,
                "tensor {tensor} begins at {begin} and overlaps the one that ends at {expected}"
            ),
            Self::Hole { tensor, begin, expected } => {
                write!(f, "a hole before tensor {tensor}: expected at {expected}, found at {begin}")
            }
            Self::BackwardRange { tensor, begin, end } => {
                write!(f, "tensor {tensor} begins at {begin} and ends before that, at {end}")
            }
            Self::SizeOverflow { tensor, shape } => {
                write!(f, "tensor {tensor}: the size of shape {shape:?} overflows")
            }
            Self::SizeMismatch { tensor, expected, found } => write!(
                f,
                "tensor {tensor}: its shape and dtype need {expected} bytes, its range has {found}"
            ),
            Self::OutOfRange { tensor, end } => {
                write!(f, "tensor {tensor} ends at {end}, beyond any possible file")
            }
            Self::TrailingBytes { expected, found } => {
                write!(f, "its tensors end at byte {expected}, the file at {found}")
            }
        }
    }
}
