//! The gated delta rule on a GPU: op/delta_rule.rs says what it is.

use half::bf16;

use super::kernels::{Grid, args};
use super::{Buffer, Gpu, GpuError, Site};
use crate::op::delta_rule::DeltaShape;

/// Per value head of a layer, `[value_heads]` each.
pub struct DeviceGates {
    pub a_log: Buffer<f32>,
    pub dt_bias: Buffer<f32>,
}

/// What a chunk brings to the rule.
pub struct DeviceDeltaInputs<'a> {
    /// Convolved, `[tokens, channels]`: all q, all k, all v.
    pub mixed: &'a Buffer<bf16>,
    /// `[tokens, value_heads]`.
    pub a: &'a Buffer<bf16>,
    /// `[tokens, value_heads]`.
    pub b: &'a Buffer<bf16>,
    /// q and k that are not finite; the rule itself.
    pub heads_site: Site,
    pub rule_site: Site,
}

/// Warps of a block, and rows of the state that each carries.
const BLOCK_WARPS: usize = 4;
const WARP_ROWS: usize = 4;
/// Keys up to this length take fewer registers.
const SHORT_DIM: usize = 128;

impl Gpu {
    /// Runs a chunk through the state `[value_heads, value_dim, key_dim]`.
    ///
    /// Shapes: the result is `[tokens, value_heads, value_dim]`.
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn delta_rule(
        &self,
        s: DeltaShape,
        gates: &DeviceGates,
        inputs: &DeviceDeltaInputs<'_>,
        state: &Buffer<f32>,
    ) -> Result<Buffer<bf16>, GpuError> {
        let tokens = inputs.a.len() / s.value_heads;
        let channels = inputs.mixed.len() / tokens;
        assert_eq!(channels, 2 * s.key_heads * s.key_dim + s.value_heads * s.value_dim, "q, k, v");
        assert!(state.len() == s.state_len() && inputs.b.len() == inputs.a.len(), "state, gates");
        let (keys, heads) = (s.key_heads * s.key_dim, s.value_heads);
        let [q, k] = [(), ()].map(|()| self.room::<f32>(tokens * keys));
        let [decay, beta] = [(), ()].map(|()| self.room::<f32>(inputs.a.len()));
        let (q, k, decay, beta) = (q?, k?, decay?, beta?);
        let root = (s.key_dim as f64).sqrt() as f32;
        let warps = inputs.a.len().div_ceil(32) + 2 * tokens * s.key_heads;
        let args = args![
            inputs.mixed,
            channels,
            s.key_heads,
            s.key_dim,
            heads,
            tokens,
            root,
            &q,
            &k,
            inputs.a,
            inputs.b,
            &gates.a_log,
            &gates.dt_bias,
            &decay,
            &beta,
            self.failure(),
            inputs.heads_site
        ];
        // SAFETY: a head of q and of k for each token and key head, a gate for each value head.
        unsafe { self.launch("delta_inputs", Grid::line(warps.div_ceil(4), 128), args)? };
        let out = self.room(tokens * heads * s.value_dim)?;
        let warps = heads * s.value_dim.div_ceil(WARP_ROWS);
        let args = args![
            &q,
            &k,
            inputs.mixed,
            channels,
            2 * keys,
            &beta,
            &decay,
            s.key_heads,
            heads,
            s.key_dim,
            s.value_dim,
            tokens,
            state,
            &out,
            self.failure(),
            inputs.rule_site
        ];
        let grid = Grid::line(warps.div_ceil(BLOCK_WARPS), 32 * BLOCK_WARPS as u32);
        let name = if s.key_dim <= SHORT_DIM { "delta_rule" } else { "delta_rule_long" };
        // SAFETY: shapes as asserted.
        unsafe { self.launch(name, grid, args)? };
        Ok(out)
    }
}
