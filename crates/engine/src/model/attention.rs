//! Full attention: projections, per-head norms, rotary embedding, attention, gate.

use half::bf16;
use numerics::elementary::sig32;
use numerics::op::attention::{KeyValues, attention};
use numerics::op::linear::Prepared;
use numerics::op::rope::{Angles, rotate};
use numerics::round::{store, widen};

use super::config::Description;
use super::error::ModelError;
use super::rows::{Place, Projection};
use super::weight::Weight;

/// The weights of an attention layer.
pub(super) struct Attention {
    pub(super) q_proj: Weight,
    pub(super) k_proj: Weight,
    pub(super) v_proj: Weight,
    pub(super) o_proj: Weight,
    pub(super) q_norm: Vec<f32>,
    pub(super) k_norm: Vec<f32>,
}

impl Attention {
    /// x `[tokens, hidden]` to `[tokens, hidden]`; the cache grows by the chunk.
    pub(super) fn forward(
        &self,
        at: Place<'_>,
        d: &Description,
        angles: &[Angles],
        cache: &mut KeyValues,
        x: Prepared,
    ) -> Result<Vec<bf16>, ModelError> {
        let tokens = x.tokens();
        let (width, kv) = (d.heads * d.head_dim, d.kv_heads * d.head_dim);
        let mut q = vec![bf16::ZERO; tokens * self.q_proj.matrix().rows()];
        let (mut k, mut v) = (vec![bf16::ZERO; tokens * kv], vec![bf16::ZERO; tokens * kv]);
        at.project(vec![
            Projection::new(&self.q_proj, &x, &mut q),
            Projection::new(&self.k_proj, &x, &mut k),
            Projection::new(&self.v_proj, &x, &mut v),
        ])?;
        let (q, gate) = if d.output_gate { split_heads(&q, d.head_dim) } else { (q, Vec::new()) };
        let mut q = at.norm("q_norm", &q, &self.q_norm, d.eps)?;
        let mut k = at.norm("k_norm", &k, &self.k_norm, d.eps)?;
        turn(&mut q, width, d.head_dim, angles);
        turn(&mut k, kv, d.head_dim, angles);
        cache.append(&k, &v);
        let mut out = vec![bf16::ZERO; tokens * width];
        let scale = (d.head_dim as f64).powf(-0.5) as f32;
        attention(at.cpu, cache, d.heads, scale, &q, &mut out)
            .map_err(|e| at.not_finite("attention", e))?;
        if d.output_gate {
            let ungated = out.clone();
            let gated = at.each_row(&ungated, &mut out, width, |t, o, out| {
                for ((out, o), g) in out.iter_mut().zip(o).zip(&gate[t * width..][..width]) {
                    *out = store(widen(*o) * sig32(widen(*g)));
                }
                Ok(())
            });
            gated.map_err(|e| at.not_finite("output gate", e))?;
        }
        at.linear(&self.o_proj, &Prepared::new(at.cpu, out, width))
    }

    pub(super) fn bytes(&self) -> u64 {
        [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj].map(Weight::bytes).iter().sum()
    }
}

/// Per head [q | gate] to all q and all gates.
fn split_heads(both: &[bf16], head_dim: usize) -> (Vec<bf16>, Vec<bf16>) {
    let (mut q, mut gate) = (Vec::with_capacity(both.len() / 2), Vec::new());
    for head in both.chunks(2 * head_dim) {
        q.extend_from_slice(&head[..head_dim]);
        gate.extend_from_slice(&head[head_dim..]);
    }
    (q, gate)
}

/// Rotates every head of every token by the token's angles.
fn turn(rows: &mut [bf16], width: usize, head_dim: usize, angles: &[Angles]) {
    for (row, angles) in rows.chunks_mut(width).zip(angles) {
        for head in row.chunks_mut(head_dim) {
            rotate(head, angles);
        }
    }
}
