//! Why a store was refused, each with the way out.

use std::path::PathBuf;

use super::hash::Sha256Hash;
use super::manifest::StoredProjection;
use super::sealed::SealProblem;
use crate::checkpoint::CheckpointError;

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{path}: not a store: there is no manifest.json; make one with `tarfa convert`")]
    NotAStore { path: PathBuf },

    #[error(
        "{path}: this store is incomplete: missing {missing}; `{command}` completes it and keeps \
         what is there"
    )]
    Incomplete { path: PathBuf, missing: Missing, command: String },

    #[error("{path}: {problem}; convert again into an empty folder")]
    Sealed { path: PathBuf, problem: SealProblem },

    #[error("{path}: {field} is {found}, expected {expected}; convert again into an empty folder")]
    Field { path: PathBuf, field: &'static str, expected: String, found: String },

    #[error(
        "{path}: layer {layer}, expert {expert}, {projection:?}: {problem}; convert again into an \
         empty folder"
    )]
    BadBlock {
        path: PathBuf,
        layer: u32,
        expert: u32,
        projection: StoredProjection,
        problem: BlockProblem,
    },

    #[error(
        "{path}: SHA-256 {found}, but {named_by} says {expected}: damaged, or of another \
         conversion; `tarfa convert` into an empty folder makes it anew"
    )]
    WrongHash { path: PathBuf, named_by: &'static str, expected: Sha256Hash, found: Sha256Hash },

    #[error(
        "{path}: {found} bytes, but {named_by} says {expected}: cut off, or of another \
         conversion; `tarfa convert` into an empty folder makes it anew"
    )]
    WrongLength { path: PathBuf, named_by: &'static str, expected: u64, found: u64 },

    #[error("{path}: {source}; check that it is there and readable")]
    Io { path: PathBuf, source: std::io::Error },

    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// What an incomplete store lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub layers: Vec<u32>,
    /// Weights outside the experts, or files without weights.
    pub dense: bool,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.layers.is_empty(), self.dense) {
            (true, true) => f.write_str("weights outside the experts"),
            (true, false) => f.write_str("only its final manifest"),
            (false, dense) => {
                write!(f, "layers {}", ranges(&self.layers))?;
                if dense { f.write_str(" and weights outside the experts") } else { Ok(()) }
            }
        }
    }
}

/// `0-3, 7` for sorted numbers.
pub fn ranges(sorted: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in sorted {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let one = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// What is wrong with a block's entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockProblem {
    #[error("it begins at byte {found}, expected {expected}")]
    WrongOffset { expected: u64, found: u64 },
    #[error("{found} bytes stored, its shape needs {expected}")]
    WrongSize { expected: u64, found: u64 },
    #[error("packed into {found} bytes, but {weights} bytes of bf16 would be smaller")]
    PackedLarger { weights: u64, found: u64 },
    #[error("packed in a store of version 1")]
    PackedInV1,
    #[error("stored as it is, but the hashes of its bytes and its weights differ")]
    HashesDiffer,
    #[error("expected expert {expert}, {projection:?} here")]
    OutOfOrder { expert: u32, projection: StoredProjection },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_ranges() {
        let check = |numbers: &[u32], expect: &str| assert_eq!(ranges(numbers), expect);
        check(&[], "");
        check(&[4], "4");
        check(&[0, 1, 2, 5, 7, 8], "0-2, 5, 7-8");
    }
}
