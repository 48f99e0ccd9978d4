//! Projections and row-wise work of a chunk, with errors that name the tensor or the layer.

use half::bf16;
use numerics::op::linear::{Job, Output, Prepared, linear};
use numerics::op::norm::rms_norm;
use numerics::round::{store, widen};
use numerics::{Cpu, NonFinite};

use super::error::ModelError;
use super::weight::Weight;
use crate::index::LayerIdx;

/// Where in the network a pass is, for messages; and the processor.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) cpu: &'a Cpu,
    /// `None` outside the layers.
    pub(super) layer: Option<LayerIdx>,
}

/// A projection to run.
pub(super) struct Projection<'a> {
    pub(super) weight: &'a Weight,
    pub(super) input: &'a Prepared,
    pub(super) tokens: Option<&'a [u32]>,
    pub(super) output: Output<'a>,
}

impl<'a> Projection<'a> {
    pub(super) fn new(weight: &'a Weight, input: &'a Prepared, output: &'a mut [bf16]) -> Self {
        Projection { weight, input, tokens: None, output: Output::Bf16(output) }
    }
}

impl Place<'_> {
    /// Runs projections together.
    pub(super) fn project(&self, projections: Vec<Projection<'_>>) -> Result<(), ModelError> {
        let names: Vec<&Weight> = projections.iter().map(|p| p.weight).collect();
        let mut jobs: Vec<Job<'_>> = projections
            .into_iter()
            .map(|p| Job {
                weights: p.weight.matrix(),
                input: p.input,
                tokens: p.tokens,
                output: p.output,
            })
            .collect();
        linear(self.cpu, &mut jobs).map_err(|e| {
            let weight = names[e.job];
            let bad = weight.bad_weight(e.at.row);
            bad.unwrap_or_else(|| self.not_finite(weight.name(), e.at))
        })
    }

    /// Runs one projection of all tokens.
    pub(super) fn linear(&self, w: &Weight, x: &Prepared) -> Result<Vec<bf16>, ModelError> {
        let mut out = vec![bf16::ZERO; x.tokens() * w.matrix().rows()];
        self.project(vec![Projection::new(w, x, &mut out)])?;
        Ok(out)
    }

    pub(super) fn not_finite(&self, part: &str, at: NonFinite) -> ModelError {
        ModelError::ActivationNotFinite {
            layer: self.layer.map_or("outside the layers".into(), |l| l.0.to_string()),
            part: part.to_string(),
            token: at.token,
            row: at.row,
        }
    }

    /// RMSNorm of every row of `weight.len()` values.
    pub(super) fn norm(
        &self,
        part: &str,
        x: &[bf16],
        weight: &[f32],
        eps: f32,
    ) -> Result<Vec<bf16>, ModelError> {
        let n = weight.len();
        let mut y = vec![bf16::ZERO; x.len()];
        let level = self.cpu.level();
        self.each_row(&mut y, n, |row, y| rms_norm(level, &x[row * n..][..n], weight, eps, y))
            .map_err(|at| self.not_finite(part, at))?;
        Ok(y)
    }

    /// Runs `work(row, y)` for output rows of `n` values, on several threads where it pays.
    pub(super) fn each_row(
        &self,
        y: &mut [bf16],
        n: usize,
        work: impl Fn(usize, &mut [bf16]) -> Result<(), NonFinite> + Sync,
    ) -> Result<(), NonFinite> {
        let few = y.len() < 1 << 15;
        let mut rows: Vec<_> =
            y.chunks_mut(n).enumerate().map(|(row, y)| (row, y, Ok(()))).collect();
        let run = |(row, y, done): &mut (usize, &mut [bf16], Result<(), NonFinite>)| {
            *done = work(*row, y).map_err(|at| NonFinite { token: *row, ..at });
        };
        if few {
            rows.iter_mut().for_each(run);
        } else {
            self.cpu.each_mut(&mut rows, run);
        }
        rows.into_iter().try_for_each(|r| r.2)
    }
}

/// `h = store(h + y)`.
pub(super) fn add(h: &mut [bf16], y: &[bf16]) {
    for (h, y) in h.iter_mut().zip(y) {
        *h = store(widen(*h) + widen(*y));
    }
}
