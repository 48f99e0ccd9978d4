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

/// q, k and v of a chunk.
type Heads = (Vec<f32>, Vec<f32>, Vec<bf16>);

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
        let width = s.value_heads * s.value_dim;
        let projected = self.project(at, &x)?;
        let mixed = self.convolve(at, state, projected.mixed)?;
        let (q, k, v) = self.heads(at, &mixed)?;
        let inputs = DeltaInputs {
            q: &q,
            k: &k,
            v: &v,
            beta: &projected.b.iter().map(|b| beta(widen(*b))).collect::<Vec<_>>(),
            decay: &self.decays(&projected.a),
        };
        let mut o = vec![bf16::ZERO; x.tokens() * width];
        delta_rule(at.cpu, s, &inputs, &mut state.memory, &mut o)
            .map_err(|e| at.not_finite("delta rule", e))?;
        let y = self.gated_norm(at, d, &o, &projected.z)?;
        at.linear(&self.out, &Prepared::new(at.cpu, y, width))
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

    /// q `[tokens, key_heads, key_dim]` and k, of unit length, q also divided by the root of
    /// key_dim; v `[tokens, value_heads, value_dim]`.
    fn heads(&self, at: Place<'_>, mixed: &[bf16]) -> Result<Heads, ModelError> {
        let s = self.net.shape;
        let (keys, values) = (s.key_heads * s.key_dim, s.value_heads * s.value_dim);
        let part = |first, count| column(mixed, self.net.channels(), first, count);
        let unit = |x: Vec<bf16>| {
            let mut out = vec![0.0f32; x.len()];
            unit_heads(at.cpu.level(), &x, s.key_dim, &mut out)
                .map_err(|e| at.not_finite("delta net q, k", e))?;
            Ok::<_, ModelError>(out)
        };
        let (mut q, k) = (unit(part(0, keys))?, unit(part(keys, keys))?);
        let root = (s.key_dim as f64).sqrt() as f32;
        q.iter_mut().for_each(|q| *q /= root);
        Ok((q, k, part(2 * keys, values)))
    }

    /// a `[tokens, value_heads]` to the decays of the memory.
    fn decays(&self, a: &[bf16]) -> Vec<f32> {
        let heads = self.a_log.iter().zip(&self.dt_bias).cycle();
        a.iter().zip(heads).map(|(a, (a_log, bias))| decay(*a_log, widen(*a), *bias)).collect()
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
        at.each_row(&mut y, width, |t, y| {
            let o = &o[t * width..][..width];
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
