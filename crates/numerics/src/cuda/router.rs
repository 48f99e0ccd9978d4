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
        self.activate_all([(inner, width, &out), (inner, width, &out)], 1)?;
        Ok(out)
    }

    /// The first `count` of two, each `(inner, width, out)`, into buffers that are there.
    pub(super) fn activate_all(
        &self,
        both: [(&Buffer<bf16>, usize, &Buffer<bf16>); 2],
        count: usize,
    ) -> Result<(), GpuError> {
        let rows = both.map(|(inner, width, _)| inner.len() / (2 * width));
        let values = [0, 1].map(|i| if i < count { rows[i] * both[i].1 } else { 0 });
        for ((_, _, out), values) in both.iter().zip(values) {
            assert!(out.len() >= values, "half of inner");
        }
        let [(inner, width, out), (beside, beside_width, beside_out)] = both;
        let args = args![inner, width, values[0], out, beside, beside_width, values[1], beside_out];
        // SAFETY: inner has twice as many values as there are, by the rows.
        unsafe { self.launch("activate", Grid::threads(values[0] + values[1]), args) }
    }
}
