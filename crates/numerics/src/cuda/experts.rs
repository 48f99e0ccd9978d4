//! A token's experts where all of them are in the memory of a GPU: cuda/experts.cu.

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::kernels::{Grid, args};
use super::linear::RawJob;
use super::matrix::RawMatrix;
use super::{Buffer, DeviceMatrix, Element, Gpu, GpuError, LinearJob, Site};

/// `Expert` of cuda/experts.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct RawExpert {
    inner: [RawMatrix; 2],
    down: RawMatrix,
}

impl Element for RawExpert {}

/// `ExpertPlace` of cuda/experts.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct RawPlace {
    x: u64,
    inner: u64,
    active: u64,
    out: u64,
    inner_site: u32,
    down_site: u32,
}

impl Element for RawPlace {}

/// All experts of a layer, by number; the memory they lie in outlives it by their holders' word.
pub struct ExpertTable {
    experts: Buffer<RawExpert>,
    count: usize,
    /// Projections before the activation: 2 where gate and up are apart.
    parts: usize,
    inner_rows: usize,
    hidden: usize,
    width: usize,
    /// Bytes of one expert, and if it is packed what it would have otherwise.
    bytes: u64,
    plain_bytes: u64,
    /// Their memory.
    _held: Vec<DeviceMatrix>,
}

/// What one token brings to its experts.
pub struct TokenExperts<'a> {
    pub table: &'a ExpertTable,
    /// `[top_k]`.
    pub ids: &'a Buffer<u32>,
    /// `[hidden]`.
    pub x: &'a Buffer<bf16>,
    /// Of the inner projections and of down.
    pub sites: [Site; 2],
    /// Jobs that run beside the inner and the down projections, the shared expert's; what they
    /// read and write, the activation included.
    pub beside: Option<TokenShared<'a>>,
}

/// The shared expert of one token.
pub struct TokenShared<'a> {
    pub inner: &'a [LinearJob<'a>],
    /// `[1, 2 * width]`, what `inner` writes.
    pub inner_out: &'a Buffer<bf16>,
    pub width: usize,
    /// Of the activated row, which the caller has not: its `x` is replaced.
    pub down: &'a DeviceMatrix,
    pub down_out: &'a Buffer<bf16>,
    pub down_site: Site,
}

impl ExpertTable {
    /// Of the inner projections and down of every expert.
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn new(
        gpu: &Gpu,
        experts: &[(&[DeviceMatrix], &DeviceMatrix)],
    ) -> Result<ExpertTable, GpuError> {
        let raw = experts.iter().map(|(inner, down)| RawExpert {
            inner: [0, 1].map(|i| inner.get(i).map_or(RawMatrix::zeroed(), DeviceMatrix::raw)),
            down: down.raw(),
        });
        let raw: Vec<_> = raw.collect();
        let (inner, down) = experts[0];
        let held = experts.iter().flat_map(|(inner, down)| inner.iter().chain([*down]));
        Ok(ExpertTable {
            experts: gpu.upload(&raw)?,
            count: experts.len(),
            parts: inner.len(),
            inner_rows: inner.iter().map(DeviceMatrix::rows).max().unwrap_or(0),
            hidden: down.rows(),
            width: down.cols(),
            bytes: inner.iter().chain([down]).map(DeviceMatrix::bytes).sum(),
            plain_bytes: inner.iter().chain([down]).map(DeviceMatrix::plain_bytes).sum(),
            _held: held.cloned().collect(),
        })
    }

    /// How many experts there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of weights of one expert.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The same if it is not packed.
    pub fn plain_bytes(&self) -> u64 {
        self.plain_bytes
    }
}

impl Gpu {
    /// Runs a token's experts. Shapes: the result is `[top_k, hidden]`, by choice.
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn token_experts(&self, token: &TokenExperts<'_>) -> Result<Buffer<bf16>, GpuError> {
        let (table, top_k) = (token.table, token.ids.len());
        assert!(top_k <= 256 && token.x.len() >= table.hidden, "one token and its choices");
        let inner: Buffer<bf16> = self.room(top_k * 2 * table.width)?;
        let active: Buffer<bf16> = self.room(top_k * table.width)?;
        let out = self.room(top_k * table.hidden)?;
        let place = RawPlace {
            x: token.x.address(),
            inner: inner.address(),
            active: active.address(),
            out: out.address(),
            inner_site: token.sites[0].0,
            down_site: token.sites[1].0,
        };
        let place = self.upload(&[place])?;
        let beside = token.beside.as_ref();
        let shared_active = beside.map(|s| self.room(s.width)).transpose()?;
        // Every expert is as large as the next, and the shared one is taken for one of them.
        let inner_rows = table.inner_rows;
        let parts = top_k * table.parts + beside.map_or(0, |s| s.inner.len());
        let inner_blocks = self.blocks_of(inner_rows, 1, parts, 1);
        let downs = top_k + usize::from(beside.is_some());
        let down_blocks = self.blocks_of(table.hidden, 1, downs, 1);
        let inner_jobs = beside.map_or(&[][..], |s| s.inner);
        let inner_jobs = self.jobs_behind(top_k * table.parts, inner_jobs, inner_blocks)?;
        let down_job = beside.zip(shared_active.as_ref()).map(|(s, active)| {
            let output = super::DeviceOutput::Bf16(s.down_out);
            LinearJob::new(s.down, active, 1, output, s.down_site)
        });
        let down_jobs = self.jobs_behind(top_k, down_job.as_slice(), down_blocks)?;
        let args = args![
            token.ids,
            top_k,
            &table.experts,
            table.parts,
            &place,
            inner_blocks,
            down_blocks,
            &inner_jobs,
            &down_jobs
        ];
        let block = top_k.next_multiple_of(32) as u32;
        // SAFETY: ids are below the table's count by how they are chosen; there is room for the
        // jobs of every choice.
        unsafe { self.launch("expert_jobs", Grid::line(1, block), args)? };
        // SAFETY: the jobs are those of the choices and of the shared expert.
        unsafe { self.queue_jobs(&inner_jobs, inner_blocks * parts, table.hidden)? };
        let routed = (&inner, table.width, &active);
        match (beside, &shared_active) {
            (Some(s), Some(active)) => {
                self.activate_all([routed, (s.inner_out, s.width, active)], 2)?;
            }
            _ => self.activate_all([routed, routed], 1)?,
        }
        let cols = beside.map_or(0, |s| s.width).max(table.width);
        // SAFETY: as above.
        unsafe { self.queue_jobs(&down_jobs, down_blocks * downs, cols)? };
        Ok(out)
    }

    /// Room for `first` jobs that a kernel writes, and some behind them, `blocks` for each.
    fn jobs_behind(
        &self,
        first: usize,
        jobs: &[LinearJob<'_>],
        blocks: usize,
    ) -> Result<Buffer<RawJob>, GpuError> {
        let mut raw = vec![RawJob::zeroed(); first];
        for job in jobs {
            raw.push(job.raw().with_blocks(raw.len() * blocks, blocks));
        }
        self.upload(&raw)
    }
}
