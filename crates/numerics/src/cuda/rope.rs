//! Heads and their rotation on a GPU: op/rope.rs says what it is.

use half::bf16;

use super::kernels::{Grid, args};
use super::{Buffer, Gpu, GpuError};

impl Gpu {
    /// Per head [q | gate] to all q and all gates. Shapes: `[tokens, heads, 2 * head_dim]`.
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn split_heads(
        &self,
        both: &Buffer<bf16>,
        heads: usize,
        head_dim: usize,
    ) -> Result<(Buffer<bf16>, Buffer<bf16>), GpuError> {
        let count = both.len() / 2;
        let tokens = count / (heads * head_dim);
        let (q, gate) = (self.room(count)?, self.room(count)?);
        let args = args![both, heads, head_dim, tokens, &q, &gate];
        // SAFETY: q and the gates are half of both each.
        unsafe { self.launch("split_heads", Grid::threads(count), args)? };
        Ok((q, gate))
    }

    /// Rotates every head in place. Shapes: x `[tokens, heads, head_dim]`, the cosines and sines
    /// `[tokens, rotated / 2]`.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn rotate(
        &self,
        x: &Buffer<bf16>,
        heads: usize,
        head_dim: usize,
        cosines: &Buffer<bf16>,
        sines: &Buffer<bf16>,
    ) -> Result<(), GpuError> {
        let tokens = x.len() / (heads * head_dim);
        let half = cosines.len() / tokens;
        assert!(cosines.len() == sines.len() && 2 * half <= head_dim, "angles of every token");
        let args = args![x, heads, head_dim, 2 * half, cosines, sines, tokens];
        // SAFETY: x has tokens * heads heads, the angles one row for each token.
        unsafe { self.launch("rope", Grid::threads(tokens * heads * half), args) }
    }
}
