//! The gated delta rule, token by token, the recurrent form.
//!
//! `S = S*decay`; `mem = S_f32(S*k)`; `d = (v - mem)*beta`; `S = S + d*k`; `o = S_bf16(S*q)`.

use half::bf16;

use crate::cpu::{Cpu, delta_rule as kernel};
use crate::elementary::{exp32, sig32, softplus32};
use crate::{NonFinite, SimdLevel};

/// Heads and widths of a delta-net layer.
#[derive(Clone, Copy, Debug)]
pub struct DeltaShape {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
}

impl DeltaShape {
    /// f32 values of the state, `[value_heads, value_dim, key_dim]`.
    pub fn state_len(&self) -> usize {
        self.value_heads * self.value_dim * self.key_dim
    }
}

/// What a chunk of tokens brings to the rule.
pub struct DeltaInputs<'a> {
    /// `[tokens, key_heads, key_dim]`, unit length divided by sqrt(key_dim).
    pub q: &'a [f32],
    /// `[tokens, key_heads, key_dim]`, unit length.
    pub k: &'a [f32],
    /// `[tokens, value_heads, value_dim]`.
    pub v: &'a [bf16],
    /// `[tokens, value_heads]`.
    pub beta: &'a [f32],
    /// `[tokens, value_heads]`.
    pub decay: &'a [f32],
}

/// Runs a chunk through the state.
///
/// Shapes: `state` is `[value_heads, value_dim, key_dim]`, `out` `[tokens, value_heads,
/// value_dim]`. Value head h reads key head `h / (value_heads / key_heads)`.
///
/// # Errors
/// A sum that is not finite; `row` is head * value_dim + channel.
///
/// Source: Yang, Kautz and Hatamizadeh 2024 (Gated Delta Networks), equation 10.
pub fn delta_rule(
    cpu: &Cpu,
    shape: DeltaShape,
    inputs: &DeltaInputs<'_>,
    state: &mut [f32],
    out: &mut [bf16],
) -> Result<(), NonFinite> {
    let tokens = inputs.beta.len() / shape.value_heads;
    let keys = tokens * shape.key_heads * shape.key_dim;
    let values = tokens * shape.value_heads * shape.value_dim;
    assert_eq!((inputs.q.len(), inputs.k.len()), (keys, keys), "q and k");
    assert_eq!((inputs.v.len(), out.len()), (values, values), "v and out");
    assert_eq!(inputs.decay.len(), inputs.beta.len(), "decay and beta");
    assert_eq!(state.len(), shape.state_len(), "the state");
    kernel::run(cpu, shape, inputs, state, out)
}

/// `x * (1/sqrt(S_f32(x*x) + 1e-6))` for each head, in f32.
///
/// Shapes: `x` and `y` are `[heads, dim]`.
///
/// # Errors
/// A sum that is not finite; `token` is the head's index.
pub fn unit_heads(
    level: SimdLevel,
    x: &[bf16],
    dim: usize,
    y: &mut [f32],
) -> Result<(), NonFinite> {
    for (head, (x, y)) in x.chunks(dim).zip(y.chunks_mut(dim)).enumerate() {
        let squares = super::dot::squares(level, x).ok_or(NonFinite { row: 0, token: head })?;
        let r = 1.0 / (squares + 1e-6f32).sqrt();
        for (y, x) in y.iter_mut().zip(x) {
            *y = crate::round::widen(*x) * r;
        }
    }
    Ok(())
}

/// `beta = sig(b)`.
pub fn beta(b: f32) -> f32 {
    sig32(b)
}

/// `decay = exp32(-(exp32(a_log) * softplus(a + dt_bias)))`.
pub fn decay(a_log: f32, a: f32, dt_bias: f32) -> f32 {
    exp32(-(exp32(a_log) * softplus32(a + dt_bias)))
}
