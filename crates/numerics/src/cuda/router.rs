//! The choice of experts on a GPU, and elementwise gates.

use half::bf16;

use super::kernels::{Grid, args};
use super::{Buffer, Gpu, GpuError, Site};

/// The choices of a chunk, `[tokens, top_k]` each, the heaviest first.
pub struct DeviceRouting {
    pub ids: Buffer<u32>,
    pub weights: Buffer<f32>,
}

impl Gpu {
    /// The `top_k` largest of each token's logits, ties to the lower id, and their softmax; over
    /// all of them unless `normalised`. Shapes: logits `[tokens, experts]`.
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn route(
        &self,
        logits: &Buffer<f32>,
        experts: usize,
        top_k: usize,
        normalised: bool,
        site: Site,
    ) -> Result<DeviceRouting, GpuError> {
        let tokens = logits.len() / experts;
        let ids = self.room(tokens * top_k)?;
        let weights = self.room(tokens * top_k)?;
        let normalised = u32::from(normalised);
        let args = args![logits, experts, top_k, normalised, &ids, &weights, self.failure(), site];
        // SAFETY: a row of logits and of choices for each token.
        unsafe { self.launch("route", Grid::line(tokens, 32), args)? };
        Ok(DeviceRouting { ids, weights })
    }

    /// `g = sig(g)` in place.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn sigmoid(&self, g: &Buffer<f32>) -> Result<(), GpuError> {
        // SAFETY: every value of the buffer.
        unsafe { self.launch("shared_gates", Grid::threads(g.len()), args![g, g.len()]) }
    }

    /// `h = store(h + y)` in place.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn add(&self, h: &Buffer<bf16>, y: &Buffer<bf16>) -> Result<(), GpuError> {
        assert_eq!(h.len(), y.len());
        // SAFETY: equally many values.
        unsafe { self.launch("add", Grid::threads(h.len()), args![h, y, h.len()]) }
    }

    /// `store(silu(gate) * up)`. Shapes: inner `[rows, gate | up]`, the result `[rows, width]`.
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn activate(&self, inner: &Buffer<bf16>, width: usize) -> Result<Buffer<bf16>, GpuError> {
        let out = self.room(inner.len() / 2)?;
        self.activate_into(inner, width, &out)?;
        Ok(out)
    }

    /// The same into a buffer that is there.
    pub(super) fn activate_into(
        &self,
        inner: &Buffer<bf16>,
        width: usize,
        out: &Buffer<bf16>,
    ) -> Result<(), GpuError> {
        let rows = inner.len() / (2 * width);
        assert!(out.len() >= rows * width, "half of inner");
        let grid = Grid::threads(rows * width);
        // SAFETY: inner has twice as many values.
        unsafe { self.launch("activate", grid, args![inner, width, rows, out]) }
    }
}
