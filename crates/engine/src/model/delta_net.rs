//! The gated delta net: projections, convolution, the delta rule, gated norm.

use half::bf16;
use numerics::NonFinite;
use numerics::elementary::silu32_slice;
use numerics::op::conv::{Taps, conv};
use numerics::op::delta_rule::{DeltaInputs, beta, decay, delta_rule, unit_heads};
use numerics::op::linear::Prepared;
use numerics::op::norm::inverse_rms;
use numerics::round::{store, widen};

use super::config::{DeltaNet, Description};
use super::error::ModelError;
use super::rows::{Place, Projection};
use super::state::DeltaState;
use super::weight::Weight;

/// The weights of a delta-net layer.
pub(super) struct DeltaNetLayer {
    pub(super) net: DeltaNet,
    pub(super) qkv: Weight,
    pub(super) z: Weight,
    pub(super) b: Weight,
    pub(super) a: Weight,
    pub(super) taps: Taps,
    pub(super) a_log: Vec<f32>,
    pub(super) dt_bias: Vec<f32>,
    pub(super) norm: Vec<f32>,
    pub(super) out: Weight,
}

/// The projections of a chunk.
struct Projected {
    mixed: Vec<bf16>,
    z: Vec<bf16>,
    b: Vec<bf16>,
    a: Vec<bf16>,
}

impl DeltaNetLayer {
    /// x `[tokens, hidden]` to `[tokens, hidden]`; the state advances by the chunk.
    pub(super) fn forward(
        &self,
        at: Place<'_>,
        d: &Description,
        state: &mut DeltaState,
        x: Prepared,
    ) -> Result<Vec<bf16>, ModelError> {
        let s = self.net.shape;
        let tokens = x.tokens();
        let projected = self.project(at, &x)?;
        let mixed = self.convolve(at, state, projected.mixed)?;
        let keys = s.key_heads * s.key_dim;
        let q = column(&mixed, self.net.channels(), 0, keys);
        let k = column(&mixed, self.net.channels(), keys, keys);
        let v = column(&mixed, self.net.channels(), 2 * keys, s.value_heads * s.value_dim);
        let mut unit_q = vec![0.0f32; q.len()];
        let mut unit_k = vec![0.0f32; k.len()];
        let level = at.cpu.level();
        unit_heads(level, &q, s.key_dim, &mut unit_q)
            .and_then(|()| unit_heads(level, &k, s.key_dim, &mut unit_k))
            .map_err(|e| at.not_finite("delta net q, k", e))?;
        let root = (s.key_dim as f64).sqrt() as f32;
        unit_q.iter_mut().for_each(|q| *q /= root);
        let gates = projected.a.chunks(s.value_heads).flat_map(|a| {
            a.iter()
                .zip(&self.a_log)
                .zip(&self.dt_bias)
                .map(|((a, a_log), dt_bias)| decay(*a_log, widen(*a), *dt_bias))
        });
        let inputs = DeltaInputs {
            q: &unit_q,
            k: &unit_k,
            v: &v,
            beta: &projected.b.iter().map(|b| beta(widen(*b))).collect::<Vec<_>>(),
            decay: &gates.collect::<Vec<_>>(),
        };
        let mut o = vec![bf16::ZERO; tokens * s.value_heads * s.value_dim];
        delta_rule(at.cpu, s, &inputs, &mut state.memory, &mut o)
            .map_err(|e| at.not_finite("delta rule", e))?;
        let y = self.gated_norm(at, d, &o, &projected.z)?;
        at.linear(&self.out, &Prepared::new(at.cpu, y, s.value_heads * s.value_dim))
    }

    fn project(&self, at: Place<'_>, x: &Prepared) -> Result<Projected, ModelError> {
        let room = |w: &Weight| vec![bf16::ZERO; x.tokens() * w.matrix().rows()];
        let (mixed, z) = (room(&self.qkv), room(&self.z));
        let mut p = Projected { mixed, z, b: room(&self.b), a: room(&self.a) };
        at.project(vec![
            Projection::new(&self.qkv, x, &mut p.mixed),
            Projection::new(&self.z, x, &mut p.z),
            Projection::new(&self.b, x, &mut p.b),
            Projection::new(&self.a, x, &mut p.a),
        ])?;
        Ok(p)
    }

    /// Convolves the chunk behind its history and keeps the last inputs.
    fn convolve(
        &self,
        at: Place<'_>,
        state: &mut DeltaState,
        mixed: Vec<bf16>,
    ) -> Result<Vec<bf16>, ModelError> {
        let mut inputs = std::mem::take(&mut state.history);
        let kept = inputs.len();
        inputs.extend_from_slice(&mixed);
        let mut out = mixed;
        conv(at.cpu, &self.taps, &inputs, &mut out).map_err(|e| at.not_finite("convolution", e))?;
        state.history = inputs[inputs.len() - kept..].to_vec();
        Ok(out)
    }

    /// `y = store(((o*r)*w) * silu(z))` per value head.
    fn gated_norm(
        &self,
        at: Place<'_>,
        d: &Description,
        o: &[bf16],
        z: &[bf16],
    ) -> Result<Vec<bf16>, ModelError> {
        let n = self.norm.len();
        let level = at.cpu.level();
        let mut y = vec![bf16::ZERO; o.len()];
        let width = self.net.shape.value_heads * n;
        at.each_row(o, &mut y, width, |t, o, y| {
            let mut gate: Vec<f32> = z[t * width..][..width].iter().map(|v| widen(*v)).collect();
            silu32_slice(level, &mut gate);
            for ((o, y), gate) in o.chunks(n).zip(y.chunks_mut(n)).zip(gate.chunks(n)) {
                let r = inverse_rms(level, o, d.eps).ok_or(NonFinite { row: 0, token: t })?;
                for (((y, o), w), gate) in y.iter_mut().zip(o).zip(&self.norm).zip(gate) {
                    *y = store(((widen(*o) * r) * w) * gate);
                }
            }
            Ok(())
        })
        .map_err(|e| at.not_finite("gated norm", e))?;
        Ok(y)
    }

    pub(super) fn bytes(&self) -> u64 {
        [&self.qkv, &self.z, &self.b, &self.a, &self.out].map(Weight::bytes).iter().sum()
    }
}

/// Columns `first..first + count` of rows of `width`.
fn column(rows: &[bf16], width: usize, first: usize, count: usize) -> Vec<bf16> {
    rows.chunks(width).flat_map(|r| &r[first..first + count]).copied().collect()
}
