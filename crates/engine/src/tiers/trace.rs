//! Which experts each pass used, layer by layer: recorded from a run or made up, for the
//! simulator and for hot lists.

mod file;

use super::heat::Heat;
use super::{Phase, Shape};
use crate::index::{ExpertIdx, LayerIdx};

pub use file::{TraceError, TraceReader, TraceWriter, read, write};
use serde::{Deserialize, Serialize};

/// What a trace is of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Of the checkpoint; of a synthetic trace, what made it.
    pub fingerprint: String,
    #[serde(flatten)]
    pub shape: Shape,
    /// Stored bytes of one expert.
    pub expert_bytes: u64,
    /// False where a seed made it up.
    pub recorded: bool,
}

/// An expert of a layer, and how many tokens of the pass chose it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    pub expert: ExpertIdx,
    pub tokens: u32,
}

/// What one layer used.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LayerUses {
    /// Each expert once.
    pub uses: Vec<Use>,
    /// What the layer before expected, the likeliest first; empty where nobody asked.
    pub predicted: Vec<ExpertIdx>,
}

/// One pass over the layers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pass {
    pub phase: Phase,
    pub tokens: u32,
    /// One entry a layer; empty where it has no routed experts.
    pub layers: Vec<LayerUses>,
}

/// A whole trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    pub header: Header,
    pub passes: Vec<Pass>,
    /// False where its writing was cut short; what is there is whole passes.
    pub complete: bool,
}

impl LayerUses {
    /// The experts without their tokens.
    pub fn experts(&self) -> Vec<ExpertIdx> {
        self.uses.iter().map(|u| u.expert).collect()
    }
}

impl Trace {
    /// Tokens of a phase.
    pub fn tokens(&self, phase: Phase) -> u64 {
        self.passes.iter().filter(|p| p.phase == phase).map(|p| u64::from(p.tokens)).sum()
    }

    /// The share of a decoded pass's experts that the pass before used too; `None` without any.
    pub fn reuse(&self) -> Option<f64> {
        let decoded: Vec<&Pass> = self.passes.iter().filter(|p| p.phase == Phase::Decode).collect();
        let (mut again, mut all) = (0u64, 0u64);
        for pair in decoded.windows(2) {
            for (before, now) in pair[0].layers.iter().zip(&pair[1].layers) {
                all += now.uses.len() as u64;
                let known = |u: &&Use| before.uses.iter().any(|b| b.expert == u.expert);
                again += now.uses.iter().filter(known).count() as u64;
            }
        }
        (all > 0).then(|| again as f64 / all as f64)
    }

    /// The heat that this trace leaves.
    pub fn heat(&self) -> Heat {
        let mut heat = Heat::new(self.header.shape);
        for pass in &self.passes {
            heat.pass(pass.phase, u64::from(pass.tokens));
            for (layer, used) in pass.layers.iter().enumerate() {
                for u in &used.uses {
                    heat.note(pass.phase, LayerIdx(layer), u.expert, u64::from(u.tokens));
                }
            }
        }
        heat
    }
}
