//! Projections on a GPU: see op/linear.rs for what they are.

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::kernels::{Grid, args};
use super::matrix::RawMatrix;
use super::{Buffer, DeviceMatrix, Element, Gpu, GpuError, Site};

/// Where outputs go, and so how they are rounded.
pub enum DeviceOutput<'a> {
    Bf16(&'a Buffer<bf16>),
    F32(&'a Buffer<f32>),
}

/// One product: all rows of a matrix times some tokens.
pub struct LinearJob<'a> {
    /// `[rows, cols]`.
    pub weights: &'a DeviceMatrix,
    /// `[tokens, cols]`.
    pub x: &'a Buffer<bf16>,
    /// Row of x by which the job's rows begin.
    pub x_first: usize,
    /// Which rows of x, in output order; `None` is `count` of them in order.
    pub tokens: Option<&'a Buffer<u32>>,
    /// Where in `tokens` the job's begin.
    pub tokens_first: usize,
    /// Tokens.
    pub count: usize,
    /// `[tokens, stride]`, the job's rows from column `column` on.
    pub output: DeviceOutput<'a>,
    pub output_first: usize,
    pub stride: usize,
    pub column: usize,
    pub site: Site,
}

impl<'a> LinearJob<'a> {
    /// All of `count` tokens in order, to an output of its own.
    pub fn new(
        weights: &'a DeviceMatrix,
        x: &'a Buffer<bf16>,
        count: usize,
        output: DeviceOutput<'a>,
        site: Site,
    ) -> LinearJob<'a> {
        LinearJob {
            weights,
            x,
            x_first: 0,
            tokens: None,
            tokens_first: 0,
            count,
            output,
            output_first: 0,
            stride: weights.rows(),
            column: 0,
            site,
        }
    }

    /// As the kernels read it.
    pub(super) fn raw(&self) -> RawJob {
        let (rows, cols) = (self.weights.rows(), self.weights.cols());
        let (y, len, width, output) = match &self.output {
            DeviceOutput::Bf16(y) => (y.address(), y.len(), 2, 0),
            DeviceOutput::F32(y) => (y.address(), y.len(), 4, 1),
        };
        assert!(self.column + rows <= self.stride, "rows of the output");
        assert!((self.output_first + self.count) * self.stride <= len, "output of the job");
        match self.tokens {
            Some(t) => assert!(self.tokens_first + self.count <= t.len(), "tokens of the job"),
            None => assert!((self.x_first + self.count) * cols <= self.x.len(), "x of the job"),
        }
        let at = (self.output_first * self.stride + self.column) as u64 * width;
        RawJob {
            weights: self.weights.raw(),
            x: self.x.address() + (self.x_first * cols) as u64 * 2,
            tokens: self.tokens.map_or(0, |t| t.address() + self.tokens_first as u64 * 4),
            y: y + at,
            count: self.count as u32,
            stride: self.stride as u32,
            output,
            site: self.site.0,
            first_block: 0,
            blocks: 0,
        }
    }
}

/// `Job` of cuda/matrix.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct RawJob {
    pub(super) weights: RawMatrix,
    x: u64,
    tokens: u64,
    y: u64,
    pub(super) count: u32,
    stride: u32,
    output: u32,
    site: u32,
    first_block: u32,
    blocks: u32,
}

impl Element for RawJob {}

/// As in cuda/linear.cu.
const BLOCK_ROWS: usize = 8;
const SHARED_COLS: usize = 12288;
/// Blocks that a multiprocessor runs side by side.
const BLOCKS_PER_MULTIPROCESSOR: usize = 3;
const OUTPUT_F32: u32 = 1;
/// Dynamic shared memory of `linear`, at most.
pub(super) const SHARED_BYTES: u32 = 4 * SHARED_COLS as u32;

impl Gpu {
    /// Runs every job.
    ///
    /// # Errors
    /// A device that was lost. What is not finite is reported to [`Gpu::failed`].
    pub fn linear(&self, jobs: &[LinearJob<'_>]) -> Result<(), GpuError> {
        let jobs = jobs.iter().filter(|j| j.count > 0);
        let (many, few): (Vec<_>, Vec<_>) = jobs.partition(|j| self.is_product(j));
        self.by_rows(&few)?;
        self.products(&many)
    }

    /// A warp for each output: for few tokens, and for what the products do not take.
    fn by_rows(&self, jobs: &[&LinearJob<'_>]) -> Result<(), GpuError> {
        let mut raw: Vec<RawJob> = jobs.iter().map(|j| j.raw()).collect();
        let Some(tokens) = raw.iter().map(|j| j.count as usize).max() else { return Ok(()) };
        let tokens = tokens.min(1 << 15);
        let blocks = self.share_blocks(&mut raw, tokens);
        let cols = raw.iter().map(RawJob::shared_bytes).max();
        let blocks = (blocks, 1, tokens);
        let grid = Grid { blocks, block: 256, shared_bytes: cols.unwrap_or(0) };
        let count = raw.len();
        let raw = self.upload(&raw)?;
        // SAFETY: `LinearJob::raw` checked every job against its buffers, which the caller holds
        // until it is queued; memory is freed in the order of the stream.
        unsafe { self.launch("linear", grid, args![&raw, count, self.failure()]) }
    }

    /// Runs jobs of one token that are on the device by then, `blocks` in all.
    ///
    /// # Safety
    /// They are whole by then, and their buffers live.
    pub(super) unsafe fn queue_jobs(
        &self,
        jobs: &Buffer<RawJob>,
        blocks: usize,
        cols: usize,
    ) -> Result<(), GpuError> {
        let shared_bytes = if cols <= SHARED_COLS { 4 * cols as u32 } else { 0 };
        let grid = Grid { blocks: (blocks, 1, 1), block: 256, shared_bytes };
        // SAFETY: the caller's word.
        unsafe { self.launch("linear", grid, args![jobs, jobs.len(), self.failure()]) }
    }

    /// Blocks for rows of so many weights, of so many in all.
    ///
    /// As many as run side by side, since each lays out x once; where rows are many, several times
    /// as many, so that none is left to run alone.
    pub(super) fn blocks_of(
        &self,
        rows: usize,
        weights: usize,
        all: usize,
        tokens: usize,
    ) -> usize {
        let groups = rows.div_ceil(BLOCK_ROWS) as f64 * all as f64 / weights as f64;
        let side_by_side = (self.info.multiprocessors * BLOCKS_PER_MULTIPROCESSOR) as f64;
        let blocks = side_by_side * (groups / 8.0 / side_by_side).floor().clamp(1.0, 5.0);
        let share = blocks * weights as f64 / all as f64 / tokens as f64;
        (share as usize).clamp(1, rows.div_ceil(BLOCK_ROWS).max(1))
    }

    /// Gives every job its blocks, one behind the other; how many there are.
    fn share_blocks(&self, jobs: &mut [RawJob], tokens: usize) -> usize {
        let weights = |j: &RawJob| j.weights.rows as usize * j.weights.cols as usize;
        let all: usize = jobs.iter().map(weights).sum();
        let mut first = 0;
        for job in jobs {
            let blocks = self.blocks_of(job.weights.rows as usize, weights(job), all, tokens);
            (job.first_block, job.blocks) = (first as u32, blocks as u32);
            first += blocks;
        }
        first
    }
}

impl RawJob {
    /// Dynamic shared memory for its input.
    fn shared_bytes(&self) -> u32 {
        let each = if self.output == OUTPUT_F32 { 8 } else { 4 };
        let bytes = each * self.weights.cols;
        if bytes <= SHARED_BYTES { bytes } else { 0 }
    }

    /// The job with the blocks from `first` on.
    pub(super) fn with_blocks(self, first: usize, blocks: usize) -> RawJob {
        RawJob { first_block: first as u32, blocks: blocks as u32, ..self }
    }
}
