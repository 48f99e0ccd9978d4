//! Exact arithmetic for language models: every reduction is the exact real sum, rounded once.
//!
//! The contract of every operation is in `op/`; `cpu/` holds the paths that compute it (portable,
//! AVX2, AVX-512), each of which proves its rounding or hands over to a slower stage that can.
//! NUMERICS.md at the root of the repository is the normative text.

pub mod bound;
pub mod cpu;
pub mod cuda;
pub mod elementary;
pub mod exact;
pub mod op;
pub mod probe;
pub mod round;

pub use cpu::{Cpu, SimdLevel};
pub use half::bf16;

/// A sum that is not finite: an infinite or undefined operand, or a result beyond the format.
///
/// # Errors
/// Operations return it instead of a value; the engine names the tensor and the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {row}, token {token}: the exact sum is not finite")]
pub struct NonFinite {
    /// Output row (or head, or channel) of the operation.
    pub row: usize,
    /// Token of the chunk.
    pub token: usize,
}
