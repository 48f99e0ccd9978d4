//! Reading everything and comparing it with what it must be: a store, or a checkpoint in place.

mod in_place;
mod scan;
mod store;

use std::fmt;
use std::path::PathBuf;

use crate::checkpoint::CheckpointError;
use crate::convert::ConvertError;
use crate::experts::BlockId;
use crate::jnf::StoreError;
use crate::sidecar::SidecarError;

pub use in_place::{InPlace, Sums, verify_in_place};
pub use scan::{Advance, BlockHash, Scanned, Span, scan};
pub use store::verify_store;

/// Why something could not be compared. What differs is no error but a [`Difference`].
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("interrupted after {read_bytes} bytes; nothing was recorded")]
    Interrupted { read_bytes: u64 },

    #[error("{path}: {source}; check the disk")]
    Io { path: PathBuf, source: std::io::Error },

    #[error("{path}, line {line}: not a line of sha256sum: expected 64 hex digits and a name")]
    BadSums { path: PathBuf, line: usize },

    #[error(
        "{path}: the store was made from a checkpoint with fingerprint {expected}, this one has \
         {found}; give the folder that it was converted from"
    )]
    OtherSource { path: PathBuf, expected: String, found: String },

    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Sidecar(#[from] SidecarError),
    #[error(transparent)]
    Convert(#[from] ConvertError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub differences: Vec<Difference>,
    pub files: usize,
    pub blocks: u64,
    pub read_bytes: u64,
}

/// Something that is not what it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub file: PathBuf,
    /// The checkpoint's tensor, where it is about one.
    pub tensor: Option<String>,
    pub block: Option<BlockId>,
    pub what: What,
    pub expected: String,
    pub found: String,
}

/// What of it differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    SizeBytes,
    Sha256,
    /// XXH3-128.
    Checksum,
    /// The weights of the store beside those of the checkpoint.
    Weights,
    /// Packed bytes that cannot be unpacked.
    Packing,
    /// A file that must be there is not.
    Absent,
}

impl What {
    pub fn name(self) -> &'static str {
        match self {
            Self::SizeBytes => "size in bytes",
            Self::Sha256 => "SHA-256",
            Self::Checksum => "XXH3-128",
            Self::Weights => "weights",
            Self::Packing => "packed bytes",
            Self::Absent => "file",
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        if let Some(tensor) = &self.tensor {
            write!(f, "tensor {tensor}: ")?;
        }
        if let Some(BlockId { layer, expert, projection }) = self.block {
            write!(f, "layer {layer}, expert {expert}, {projection:?}: ")?;
        }
        let (what, expected, found) = (self.what.name(), &self.expected, &self.found);
        write!(f, "{what}: expected {expected}, found {found}")
    }
}

impl Findings {
    /// Takes a difference down where two values differ.
    fn compare<T>(&mut self, at: &Place, what: What, expected: T, found: T)
    where
        T: PartialEq + fmt::Display,
    {
        if expected != found {
            self.differ(at, what, expected.to_string(), found.to_string());
        }
    }

    fn differ(&mut self, at: &Place, what: What, expected: String, found: String) {
        self.differences.push(Difference {
            file: at.file.clone(),
            tensor: at.tensor.clone(),
            block: at.block,
            what,
            expected,
            found,
        });
    }
}

/// What a difference is about.
#[derive(Clone, Debug)]
struct Place {
    file: PathBuf,
    tensor: Option<String>,
    block: Option<BlockId>,
}

impl Place {
    fn file(path: impl Into<PathBuf>) -> Place {
        Place { file: path.into(), tensor: None, block: None }
    }
}
