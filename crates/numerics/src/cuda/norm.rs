//! RMSNorm on a GPU: op/norm.rs says what it is.

use half::bf16;

use super::kernels::{Grid, args};
use super::{Buffer, Gpu, GpuError, Site};

impl Gpu {
    /// Normalises rows of `weight.len()` values. Shapes: x and the result `[rows, n]`.
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn rms_norm(
        &self,
        x: &Buffer<bf16>,
        weight: &Buffer<f32>,
        eps: f32,
        site: Site,
    ) -> Result<Buffer<bf16>, GpuError> {
        self.norm_rows(x, None, weight, eps, site)
    }

    /// The same of `x = store(x + added)`, which x becomes.
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn add_rms_norm(
        &self,
        x: &Buffer<bf16>,
        added: &Buffer<bf16>,
        weight: &Buffer<f32>,
        eps: f32,
        site: Site,
    ) -> Result<Buffer<bf16>, GpuError> {
        assert_eq!(added.len(), x.len(), "as much as it is added to");
        self.norm_rows(x, Some(added), weight, eps, site)
    }

    fn norm_rows(
        &self,
        x: &Buffer<bf16>,
        added: Option<&Buffer<bf16>>,
        weight: &Buffer<f32>,
        eps: f32,
        site: Site,
    ) -> Result<Buffer<bf16>, GpuError> {
        let n = weight.len();
        assert!(x.len().is_multiple_of(n), "rows of {n}");
        let y = self.room(x.len())?;
        let grid = Grid::line(x.len() / n, 256);
        let args = args![x, added, weight, eps, n, &y, self.failure(), site];
        // SAFETY: y and `added` are as large as x, whose rows are of the width of the weight.
        unsafe { self.launch("rms_norm", grid, args)? };
        Ok(y)
    }

    /// `y = store(((o*r)*w) * silu(z))` for every value head. Shapes: o, z `[rows, n]`.
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn gated_norm(
        &self,
        o: &Buffer<bf16>,
        z: &Buffer<bf16>,
        weight: &Buffer<f32>,
        eps: f32,
        heads: usize,
        site: Site,
    ) -> Result<Buffer<bf16>, GpuError> {
        let n = weight.len();
        assert!(o.len() == z.len() && o.len().is_multiple_of(n), "rows of {n}");
        let (y, rows) = (self.room(o.len())?, o.len() / n);
        let grid = Grid::line(rows.div_ceil(4), 128);
        let args = args![o, z, weight, eps, n, rows, heads, &y, self.failure(), site];
        // SAFETY: all of `rows` rows of n.
        unsafe { self.launch("gated_norm", grid, args)? };
        Ok(y)
    }
}
