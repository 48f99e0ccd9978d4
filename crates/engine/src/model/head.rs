//! What comes after the layers: the final norm and the head.

use half::bf16;
use numerics::op::linear::{Output, Prepared};

use super::error::ModelError;
use super::network::Model;
use super::rows::{Place, Projection};
use crate::counters::PhaseCounters;

/// Which positions of a chunk get logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Logits {
    /// None: a chunk in the middle of a prompt.
    None,
    /// The last one.
    Last,
    /// Every one, in order.
    All,
}

impl Model {
    pub(super) fn logits(
        &self,
        h: Vec<bf16>,
        which: Logits,
        counters: &mut PhaseCounters,
    ) -> Result<Vec<f32>, ModelError> {
        let hidden = self.description.hidden;
        let h = match which {
            Logits::None => return Ok(Vec::new()),
            Logits::Last => &h[h.len() - hidden..],
            Logits::All => &h[..],
        };
        let at = Place { cpu: &self.cpu, layer: None };
        let x = at.norm("model.norm", h, &self.norm, self.description.eps)?;
        let input = &Prepared::new(&self.cpu, x, hidden);
        let mut out = vec![0.0f32; input.tokens() * self.description.vocab];
        let output = Output::F32(&mut out);
        at.project(vec![Projection { weight: &self.head, input, tokens: None, output }])?;
        counters.dense_bytes += self.head.bytes();
        Ok(out)
    }
}
