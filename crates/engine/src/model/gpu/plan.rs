//! A token whose whole way is known beforehand: recorded once, queued as one from then on.
//!
//! That holds while every expert is in the device's memory and the launches reach far enough for
//! the positions seen. A plan belongs to a session: its state is at the addresses it names.

use numerics::cuda::{Buffer, Recording};

use super::super::error::ModelError;
use super::super::network::Model;
use super::super::state::{LayerState, State};
use super::inputs::Inputs;
use super::{GpuLayerState, GpuModel, Logits};
use crate::counters::PhaseCounters;
use crate::index::TokenId;

/// One token with logits, recorded.
pub(in super::super) struct TokenPlan {
    inputs: Inputs,
    logits: Buffer<f32>,
    recording: Recording,
    /// Positions that its launches reach.
    reach: usize,
    /// What one token counts.
    counters: PhaseCounters,
}

impl GpuModel {
    /// One token with logits, where all experts are on the device.
    pub(super) fn token(
        &self,
        model: &Model,
        state: &mut State,
        id: TokenId,
        counters: &mut PhaseCounters,
    ) -> Result<Vec<f32>, ModelError> {
        let plan = match state.plan.take() {
            Some(plan) if state.positions < plan.reach => {
                plan.inputs.fill(&self.gpu, model, state.positions, &[id])?;
                self.gpu.replay(&plan.recording)?;
                for layer in &mut state.layers {
                    if let LayerState::Gpu(GpuLayerState::Attention(cache)) = layer {
                        cache.appended();
                    }
                }
                plan
            }
            _ => Box::new(self.plan(model, state, id)?),
        };
        *counters = counters.plus(&plan.counters);
        let logits = self.finish(Some(&plan.logits))?;
        state.plan = Some(plan);
        Ok(logits)
    }

    /// Runs the token and records it.
    fn plan(&self, model: &Model, state: &mut State, id: TokenId) -> Result<TokenPlan, ModelError> {
        let reach = (state.positions + 1).next_multiple_of(numerics::cuda::REACH);
        for layer in &mut state.layers {
            if let LayerState::Gpu(GpuLayerState::Attention(cache)) = layer {
                cache.reserve(&self.gpu, reach)?;
            }
        }
        let inputs = Inputs::new(&self.gpu, model, 1)?;
        inputs.fill(&self.gpu, model, state.positions, &[id])?;
        let mut counters = PhaseCounters::default();
        let run = || self.run(model, state, &inputs, Logits::Last, &mut counters);
        let (logits, recording) = self.gpu.record(run)?;
        let logits = logits.expect("they were asked for");
        Ok(TokenPlan { inputs, logits, recording, reach, counters })
    }
}
