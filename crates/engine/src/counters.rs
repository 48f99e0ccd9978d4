//! What was read and served, counted where it happens. Zero means zero.

use serde::{Deserialize, Serialize};

/// Work of one phase of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseCounters {
    /// Tokens that went through the layers.
    pub tokens: u64,
    /// Passes over the layers (one per chunk or decoded token).
    pub passes: u64,
    /// Routed experts computed, each once per pass and layer.
    pub experts: u64,
    /// Bytes of routed experts that were read from memory.
    pub expert_bytes: u64,
    /// Bytes of all other weights that were read from memory.
    pub dense_bytes: u64,
}

impl PhaseCounters {
    /// Bytes of weights read from memory.
    pub fn bytes(&self) -> u64 {
        self.expert_bytes + self.dense_bytes
    }

    /// What came since `earlier`.
    pub fn since(&self, earlier: &PhaseCounters) -> PhaseCounters {
        PhaseCounters {
            tokens: self.tokens - earlier.tokens,
            passes: self.passes - earlier.passes,
            experts: self.experts - earlier.experts,
            expert_bytes: self.expert_bytes - earlier.expert_bytes,
            dense_bytes: self.dense_bytes - earlier.dense_bytes,
        }
    }
}
