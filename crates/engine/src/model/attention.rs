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

/// A chunk as attention takes it.
struct Heads {
    /// `[tokens, heads, head_dim]`, and so the gate, where the family has one.
    q: Vec<bf16>,
    gate: Option<Vec<bf16>>,
    /// `[tokens, kv_heads, head_dim]`, and so v.
    k: Vec<bf16>,
    v: Vec<bf16>,
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
        let width = d.heads * d.head_dim;
        let Heads { q, gate, k, v } = self.heads(at, d, angles, &x)?;
        cache.append(&k, &v);
        let mut out = vec![bf16::ZERO; x.tokens() * width];
        let scale = (d.head_dim as f64).powf(-0.5) as f32;
        attention(at.cpu, cache, d.heads, scale, &q, &mut out)
            .map_err(|e| at.not_finite("attention", e))?;
        if let Some(gate) = gate {
            at.each_row(&mut out, width, |t, out| {
                for (out, g) in out.iter_mut().zip(&gate[t * width..]) {
                    *out = store(widen(*out) * sig32(widen(*g)));
                }
                Ok(())
            })
            .map_err(|e| at.not_finite("output gate", e))?;
        }
        at.linear(&self.o_proj, &Prepared::new(at.cpu, out, width))
    }

    /// Projects a chunk, then normalises and rotates every head of q and k.
    fn heads(
        &self,
        at: Place<'_>,
        d: &Description,
        angles: &[Angles],
        x: &Prepared,
    ) -> Result<Heads, ModelError> {
        let room = |w: &Weight| vec![bf16::ZERO; x.tokens() * w.matrix().rows()];
        let mut q = room(&self.q_proj);
        let (mut k, mut v) = (room(&self.k_proj), room(&self.v_proj));
        at.project(vec![
            Projection::new(&self.q_proj, x, &mut q),
            Projection::new(&self.k_proj, x, &mut k),
            Projection::new(&self.v_proj, x, &mut v),
        ])?;
        let (q, gate) = if d.output_gate { split_heads(&q, d.head_dim) } else { (q, None) };
        let mut q = at.norm("q_norm", &q, &self.q_norm, d.eps)?;
        let mut k = at.norm("k_norm", &k, &self.k_norm, d.eps)?;
        turn(&mut q, d.heads * d.head_dim, d.head_dim, angles);
        turn(&mut k, d.kv_heads * d.head_dim, d.head_dim, angles);
        Ok(Heads { q, gate, k, v })
    }

    pub(super) fn bytes(&self) -> u64 {
        [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj].map(Weight::bytes).iter().sum()
    }
}

/// Per head [q | gate] to all q and all gates.
fn split_heads(both: &[bf16], head_dim: usize) -> (Vec<bf16>, Option<Vec<bf16>>) {
    let (mut q, mut gate) = (Vec::with_capacity(both.len() / 2), Vec::new());
    for head in both.chunks(2 * head_dim) {
        q.extend_from_slice(&head[..head_dim]);
        gate.extend_from_slice(&head[head_dim..]);
    }
    (q, Some(gate))
}

/// Rotates every head of every token by the token's angles.
fn turn(rows: &mut [bf16], width: usize, head_dim: usize, angles: &[Angles]) {
    for (row, angles) in rows.chunks_mut(width).zip(angles) {
        for head in row.chunks_mut(head_dim) {
            rotate(head, angles);
        }
    }
}
