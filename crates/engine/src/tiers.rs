//! Which expert lies where, and which bytes move: a planner that decides and never touches a
//! byte. It names experts by (layer, expert) and knows nothing of models, files or threads, so
//! the executor and the simulator of `lab` drive the same one.

mod cached;
pub mod heat;
mod mapped;
pub mod planner;
pub mod policy;
mod supply;
pub mod trace;
pub mod vram;

pub use supply::{Placement, Ready, Supply, TierError, Tiers};

use serde::{Deserialize, Serialize};

use crate::index::{ExpertIdx, LayerIdx};

/// A routed expert of the model.
pub type ExpertId = (LayerIdx, ExpertIdx);

/// What a pass is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// A chunk of a prompt: a sweep over many experts.
    Prefill,
    /// A token, or a few in lock step.
    Decode,
}

/// How many routed experts there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// Layers, those without routed experts counted.
    pub layers: usize,
    /// Routed experts of a layer.
    pub experts: usize,
    /// Experts of one token in one layer.
    pub top_k: usize,
}

impl Shape {
    /// Experts of all layers.
    pub fn total(&self) -> usize {
        self.layers * self.experts
    }

    /// Experts of one token.
    pub fn token_working_set(&self) -> usize {
        self.layers * self.top_k
    }

    /// Position in a table of all experts, by layer and then by expert.
    ///
    /// Panics outside the shape.
    pub fn position(&self, layer: LayerIdx, expert: ExpertIdx) -> usize {
        let expert = expert.0 as usize;
        assert!(layer.0 < self.layers && expert < self.experts, "expert outside {self:?}");
        layer.0 * self.experts + expert
    }

    /// The expert at a position.
    pub fn id(&self, position: usize) -> ExpertId {
        (LayerIdx(position / self.experts), ExpertIdx((position % self.experts) as u32))
    }
}
