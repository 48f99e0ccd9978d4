//! The forward pass, in the order of NUMERICS.md.

use half::bf16;
use numerics::op::linear::Prepared;
use numerics::op::rope::Angles;

use super::error::ModelError;
use super::head::Logits;
use super::load::{FeedForwardLayer, Layer, MixerLayer};
use super::network::Model;
use super::rows::{Place, add};
use super::state::{LayerState, State};
use crate::counters::PhaseCounters;
use crate::index::{ExpertIdx, LayerIdx, TokenId};
use crate::tiers::Phase;

impl Model {
    /// Runs a chunk of a sequence through all layers.
    ///
    /// Shapes: the result is `[positions asked for, vocab]`. However a sequence is cut into
    /// chunks, its logits and its state are the same.
    ///
    /// # Errors
    /// A token outside the vocabulary, more positions than the model has, a value that is not
    /// finite, a file that cannot be read or was written to. The state is then not to be used
    /// again.
    pub fn forward(
        &self,
        state: &mut State,
        ids: &[TokenId],
        logits: Logits,
        counters: &mut PhaseCounters,
    ) -> Result<Vec<f32>, ModelError> {
        self.check(state, ids)?;
        let phase = if ids.len() == 1 { Phase::Decode } else { Phase::Prefill };
        self.tiers.begin_pass(phase, ids.len() as u64);
        let out = match &self.gpu {
            Some(gpu) => gpu.forward(self, state, ids, logits, counters)?,
            None => self.cpu.enter(|| self.forward_here(state, ids, logits, counters))?,
        };
        self.tiers.end_pass()?;
        // Before anything leaves that came from a file which is another one by now.
        self.watch.check()?;
        state.positions += ids.len();
        counters.tokens += ids.len() as u64;
        counters.passes += 1;
        Ok(out)
    }

    fn forward_here(
        &self,
        state: &mut State,
        ids: &[TokenId],
        logits: Logits,
        counters: &mut PhaseCounters,
    ) -> Result<Vec<f32>, ModelError> {
        let mut h = Vec::with_capacity(ids.len() * self.description.hidden);
        for id in ids {
            h.extend(self.embedding.row(id.0 as usize)?);
        }
        let first = state.positions;
        let angles: Vec<Angles> = (first..first + ids.len())
            .map(|position| Angles::at(position, &self.frequencies))
            .collect();
        for (i, layer) in self.layers.iter().enumerate() {
            let at = Place { cpu: &self.cpu, layer: Some(LayerIdx(i)) };
            self.layer(at, layer, &mut state.layers[i], &angles, &mut h, counters)?;
        }
        self.logits(h, logits, counters)
    }

    fn layer(
        &self,
        at: Place<'_>,
        layer: &Layer,
        state: &mut LayerState,
        angles: &[Angles],
        h: &mut [bf16],
        counters: &mut PhaseCounters,
    ) -> Result<(), ModelError> {
        let d = &self.description;
        let x = at.norm("input_layernorm", h, &layer.input_norm, d.eps)?;
        let x = Prepared::new(at.cpu, x, d.hidden);
        let mixed = match (&layer.mixer, state) {
            (MixerLayer::Attention(m), LayerState::Attention(cache)) => {
                counters.dense_bytes += m.bytes();
                m.forward(at, d, angles, cache, x)?
            }
            (MixerLayer::DeltaNet(m), LayerState::DeltaNet(state)) => {
                counters.dense_bytes += m.bytes();
                m.forward(at, d, state, x)?
            }
            _ => unreachable!("a state is made from the description of its model"),
        };
        add(h, &mixed);
        let mixed = h as &[bf16];
        let x = at.norm("post_attention_layernorm", h, &layer.post_norm, d.eps)?;
        let x = Prepared::new(at.cpu, x, d.hidden);
        let y = match &layer.feed_forward {
            FeedForwardLayer::Moe(experts) => {
                counters.dense_bytes += experts.dense_bytes();
                let ahead = || self.guess(at, mixed);
                experts.forward(at, &x, &self.tiers, ahead, counters)?
            }
            FeedForwardLayer::Dense(mlp) => {
                counters.dense_bytes += mlp.bytes();
                mlp.forward(at, &x)?
            }
        };
        add(h, &y);
        Ok(())
    }

    /// What the next layer's experts would be, if the residual stream stayed as it is.
    fn guess(&self, at: Place<'_>, h: &[bf16]) -> Option<(LayerIdx, Vec<ExpertIdx>)> {
        let next = LayerIdx(at.layer?.0 + 1);
        let layer = self.layers.get(next.0)?;
        let FeedForwardLayer::Moe(experts) = &layer.feed_forward else { return None };
        if !self.tiers.wants_predictions() {
            return None;
        }
        let (d, at) = (&self.description, Place { layer: Some(next), ..at });
        let x = at.norm("a guess", h, &layer.post_norm, d.eps).ok()?;
        Some((next, experts.guess(at, &Prepared::new(at.cpu, x, d.hidden))?))
    }
}
