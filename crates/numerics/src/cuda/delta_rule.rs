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
const WARP_ROWS: usize = 2;

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
        let root = (s.key_dim as f64).sqrt() as f32;
        let keys = s.key_heads * s.key_dim;
        let q = self.unit_heads(s, inputs, 0, root)?;
        let k = self.unit_heads(s, inputs, keys, 0.0)?;
        let decay: Buffer<f32> = self.room(inputs.a.len())?;
        let beta: Buffer<f32> = self.room(inputs.a.len())?;
        let (heads, count) = (s.value_heads, inputs.a.len());
        let args =
            args![inputs.a, inputs.b, &gates.a_log, &gates.dt_bias, heads, tokens, &decay, &beta];
        // SAFETY: a value for each token and head.
        unsafe { self.launch("delta_gates", Grid::threads(count), args)? };
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
        // SAFETY: shapes as asserted.
        unsafe { self.launch("delta_rule", grid, args)? };
        Ok(out)
    }

    /// Heads of unit length from column `first` on, divided by `root` unless it is 0.
    fn unit_heads(
        &self,
        s: DeltaShape,
        inputs: &DeviceDeltaInputs<'_>,
        first: usize,
        root: f32,
    ) -> Result<Buffer<f32>, GpuError> {
        let tokens = inputs.a.len() / s.value_heads;
        let channels = inputs.mixed.len() / tokens;
        let heads = tokens * s.key_heads;
        let y = self.room(heads * s.key_dim)?;
        let (failure, site) = (self.failure(), inputs.heads_site);
        let args = args![
            inputs.mixed,
            channels,
            first,
            s.key_heads,
            s.key_dim,
            root,
            &y,
            tokens,
            failure,
            site
        ];
        // SAFETY: a head of q or k for each token and key head.
        unsafe { self.launch("unit_heads", Grid::line(heads.div_ceil(8), 256), args)? };
        Ok(y)
    }
}
