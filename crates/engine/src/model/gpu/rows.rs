//! Projections in the memory of a GPU.

use half::bf16;
use numerics::cuda::{Buffer, DeviceMatrix, DeviceOutput, Gpu, GpuError, LinearJob, Site};

use super::super::weight::Weight;
use super::sites::Sites;
use crate::index::LayerIdx;

/// A projection, and the name of its failures.
pub(super) struct Projection {
    pub(super) matrix: DeviceMatrix,
    pub(super) site: Site,
}

/// What puts a layer's weights on a GPU.
pub(super) struct Uploader<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) sites: &'a mut Sites,
    pub(super) layer: Option<LayerIdx>,
    /// Device memory taken for dense weights so far.
    pub(super) bytes: u64,
}

impl Uploader<'_> {
    pub(super) fn projection(&mut self, weight: &Weight) -> Result<Projection, GpuError> {
        let matrix = DeviceMatrix::upload(self.gpu, &weight.matrix())?;
        self.bytes += matrix.kept_bytes() as u64;
        Ok(Projection { matrix, site: self.sites.weight(self.layer, weight) })
    }

    pub(super) fn vector(&self, values: &[f32]) -> Result<Buffer<f32>, GpuError> {
        self.gpu.upload(values)
    }

    pub(super) fn part(&mut self, part: &str) -> Site {
        self.sites.part(self.layer, part)
    }
}

impl Projection {
    /// Of all of `count` tokens, with an output of its own.
    pub(super) fn job<'a>(
        &'a self,
        x: &'a Buffer<bf16>,
        count: usize,
        y: &'a Buffer<bf16>,
    ) -> LinearJob<'a> {
        LinearJob::new(&self.matrix, x, count, DeviceOutput::Bf16(y), self.site)
    }

    /// The same, rounded to f32.
    pub(super) fn job_f32<'a>(
        &'a self,
        x: &'a Buffer<bf16>,
        count: usize,
        y: &'a Buffer<f32>,
    ) -> LinearJob<'a> {
        LinearJob::new(&self.matrix, x, count, DeviceOutput::F32(y), self.site)
    }

    /// Room for its outputs.
    pub(super) fn room(&self, gpu: &Gpu, count: usize) -> Result<Buffer<bf16>, GpuError> {
        gpu.room(count * self.matrix.rows())
    }

    /// One projection by itself.
    pub(super) fn run(
        &self,
        gpu: &Gpu,
        x: &Buffer<bf16>,
        count: usize,
    ) -> Result<Buffer<bf16>, GpuError> {
        let y = self.room(gpu, count)?;
        gpu.linear(&[self.job(x, count, &y)])?;
        Ok(y)
    }
}
