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
}

impl Element for RawJob {}

/// As in cuda/linear.cu.
const BLOCK_WARPS: usize = 8;
const SHARED_COLS: usize = 12288;
/// Blocks for each multiprocessor that let no jobs wait and lay out x seldom.
const BLOCKS_PER_MULTIPROCESSOR: usize = 16;

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
        let raw: Vec<RawJob> = jobs.iter().map(|j| j.raw()).collect();
        let most = |of: fn(&RawJob) -> usize| raw.iter().map(of).max();
        let Some(rows) = most(|j| j.weights.rows as usize) else { return Ok(()) };
        let tokens = most(|j| j.count as usize).expect("there is a job").min(1 << 15);
        let cols = raw.iter().map(|j| j.weights.cols as usize).filter(|c| *c <= SHARED_COLS);
        let grid = self.job_grid(raw.len(), rows, tokens, cols.max().unwrap_or(0));
        let raw = self.upload(&raw)?;
        // SAFETY: `LinearJob::raw` checked every job against its buffers, which the caller holds
        // until it is queued; memory is freed in the order of the stream.
        unsafe { self.launch("linear", grid, args![&raw, self.failure()]) }
    }

    /// Runs jobs of one token that are on the device by then.
    ///
    /// # Safety
    /// They are whole by then, none has more rows or columns, and their buffers live.
    pub(super) unsafe fn queue_jobs(
        &self,
        jobs: &Buffer<RawJob>,
        rows: usize,
        cols: usize,
    ) -> Result<(), GpuError> {
        let cols = if cols <= SHARED_COLS { cols } else { SHARED_COLS };
        let grid = self.job_grid(jobs.len(), rows, 1, cols);
        // SAFETY: the caller's word.
        unsafe { self.launch("linear", grid, args![jobs, self.failure()]) }
    }

    fn job_grid(&self, jobs: usize, rows: usize, tokens: usize, shared_cols: usize) -> Grid {
        let all = self.info.multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
        let blocks = (all / (jobs * tokens)).max(1).min(rows.div_ceil(BLOCK_WARPS));
        Grid { blocks: (blocks, jobs, tokens), block: 256, shared_bytes: 4 * shared_cols as u32 }
    }
}
