//! The short convolution on a GPU: op/conv.rs says what it is.

use half::bf16;

use super::kernels::{Grid, args};
use super::{Buffer, Gpu, GpuError, Site};

/// Of one layer: the taps, `[taps, channels]`, oldest input first.
pub struct DeviceTaps {
    weights: Buffer<f32>,
    taps: usize,
}

impl DeviceTaps {
    /// Copies the taps of the host.
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn upload(gpu: &Gpu, taps: &crate::op::conv::Taps) -> Result<DeviceTaps, GpuError> {
        Ok(DeviceTaps { weights: gpu.upload(taps.weights())?, taps: taps.count() })
    }

    /// Convolves a chunk behind its history, and moves the history on.
    ///
    /// Shapes: `mixed` `[tokens, channels]`, `history` `[taps - 1, channels]`.
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn convolve(
        &self,
        gpu: &Gpu,
        mixed: &Buffer<bf16>,
        history: &Buffer<bf16>,
        site: Site,
    ) -> Result<Buffer<bf16>, GpuError> {
        let channels = self.weights.len() / self.taps;
        let tokens = mixed.len() / channels;
        assert_eq!(history.len(), (self.taps - 1) * channels, "the inputs before the chunk");
        let out = gpu.room(mixed.len())?;
        let taps = self.taps;
        let grid =
            Grid { blocks: (channels.div_ceil(256), tokens, 1), block: 256, shared_bytes: 0 };
        let (weights, failure) = (&self.weights, gpu.failure());
        let args = args![mixed, history, weights, taps, channels, tokens, &out, failure, site];
        // SAFETY: the shapes are asserted above.
        unsafe { gpu.launch("conv", grid, args)? };
        if tokens == 1 {
            return Ok(out);
        }
        let args = args![mixed, history, taps, channels, tokens];
        // SAFETY: likewise; a thread moves all inputs of its channel.
        unsafe { gpu.launch("conv_history", Grid::threads(channels), args)? };
        Ok(out)
    }
}
