//! The weighted sum of a token's experts on a GPU: op/mix.rs says what it is.

use half::bf16;

use super::kernels::{Grid, args};
use super::{Buffer, Gpu, GpuError, Site};

/// What the tokens of a chunk add up.
pub struct DeviceTerms<'a> {
    /// Outputs of routed experts, `[rows, hidden]`.
    pub outputs: &'a Buffer<bf16>,
    /// The row of each choice, and its weight, `[tokens, top_k]`.
    pub rows: &'a Buffer<u32>,
    pub weights: &'a Buffer<f32>,
    pub top_k: usize,
    /// Outputs of the shared expert `[tokens, hidden]` and its gates before the sigmoid,
    /// `[tokens]`.
    pub shared: Option<(&'a Buffer<bf16>, &'a Buffer<f32>)>,
}

impl Gpu {
    /// Adds the experts' sum to the residual stream: `h = store(h + y)`. Shapes: h
    /// `[tokens, hidden]`.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn mix(
        &self,
        terms: &DeviceTerms<'_>,
        hidden: usize,
        h: &Buffer<bf16>,
        site: Site,
    ) -> Result<(), GpuError> {
        let tokens = h.len() / hidden;
        assert_eq!(terms.rows.len(), tokens * terms.top_k, "a row for each choice");
        assert_eq!(terms.weights.len(), tokens * terms.top_k, "a weight for each choice");
        let (shared, gates) = terms.shared.unzip();
        let grid = Grid { blocks: (hidden.div_ceil(256), tokens, 1), block: 256, shared_bytes: 0 };
        let args = args![
            terms.outputs,
            terms.rows,
            terms.weights,
            terms.top_k,
            shared,
            gates,
            hidden,
            h,
            self.failure(),
            site
        ];
        // SAFETY: who made the rows counted them by the outputs.
        unsafe { self.launch("mix", grid, args) }
    }
}
