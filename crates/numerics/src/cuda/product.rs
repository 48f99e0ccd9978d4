//! Projections of many tokens on tensor cores; cuda/product.cu says how their rounding is proven.

use std::collections::HashMap;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::kernels::{Arg, Grid, args};
use super::linear::RawJob;
use super::matrix::{KIND_BF16, KIND_PACKED, LENGTHS_BYTES, RawMatrix};
use super::{Buffer, DeviceOutput, Element, Gpu, GpuError, LinearJob};

/// From so many tokens on, a tile of 64 pays.
const LEAST_TOKENS: usize = 4;
/// As in cuda/product.cu.
const TILE_ROWS: usize = 128;
const TILE_TOKENS: usize = 64;
const BLOCK: u32 = 128;
/// Dynamic shared memory of `product`: three stages of two tiles.
pub(super) const SHARED_BYTES: u32 = 3 * 24 * 1024;
/// Rows of a block of `product_doubts`, fewer and more.
const DOUBTS_ROWS: [usize; 2] = [512, 1024];
/// Packed weights are unpacked so many bytes at a time, or one matrix.
const SCRATCH_BYTES: usize = 256 << 20;

/// `Proof` of cuda/product.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct RawProof {
    rows: u64,
    tokens: u64,
    doubts: u64,
    unused: u64,
}

/// `Unpacking` of cuda/unpack.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct RawUnpacking {
    packed: RawMatrix,
    out: u64,
    unused: u64,
}

impl Element for RawProof {}
impl Element for RawUnpacking {}

impl Gpu {
    /// Whether `products` takes a job and is the faster way.
    pub(super) fn is_product(&self, job: &LinearJob<'_>) -> bool {
        let raw = job.weights.raw();
        self.kernels.has_tensor_cores()
            && job.count >= LEAST_TOKENS
            && matches!(job.output, DeviceOutput::Bf16(_))
            && matches!(raw.kind, KIND_BF16 | KIND_PACKED)
            && raw.cols.is_multiple_of(8)
            && self.tile_tokens(raw.cols as usize) > 0
    }

    /// Runs jobs for which `is_product` holds.
    pub(super) fn products(&self, jobs: &[&LinearJob<'_>]) -> Result<(), GpuError> {
        let unpacked_bytes = |j: &LinearJob<'_>| match j.weights.raw().kind {
            KIND_PACKED => 2 * j.weights.rows() * j.weights.cols(),
            _ => 0,
        };
        let mut rest = jobs;
        while !rest.is_empty() {
            let mut room = SCRATCH_BYTES;
            let fits = rest.iter().take_while(|j| {
                let bytes = unpacked_bytes(j);
                let fits = bytes <= room;
                room = room.saturating_sub(bytes);
                fits
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            self.product(now)?;
            rest = later;
        }
        Ok(())
    }

    fn product(&self, jobs: &[&LinearJob<'_>]) -> Result<(), GpuError> {
        let mut raw: Vec<RawJob> = jobs.iter().map(|j| j.raw()).collect();
        let _scratch = self.unpack(&mut raw)?;
        for (job, raw) in jobs.iter().zip(&raw) {
            if job.weights.wants_lengths() {
                self.lengths(raw.weights, job.weights.lengths())?;
            }
        }
        let words: Vec<usize> =
            jobs.iter().map(|j| j.count * j.weights.rows().div_ceil(32)).collect();
        let doubts = self.zeros::<u32>(words.iter().sum())?;
        let x_lengths = self.x_lengths(jobs)?;
        let mut first_word = 0;
        let mut proofs = Vec::new();
        for (job, words) in jobs.iter().zip(&words) {
            let first = if job.tokens.is_some() { 0 } else { job.x_first };
            let of_x = x_lengths[&job.x.address()].address() + (first * LENGTHS_BYTES) as u64;
            let doubts = doubts.address() + 4 * first_word as u64;
            let rows = job.weights.lengths();
            proofs.push(RawProof { rows, tokens: of_x, doubts, unused: 0 });
            first_word += words;
        }
        let most_rows = jobs.iter().map(|j| j.weights.rows()).max().unwrap_or(0);
        let most_tokens = jobs.iter().map(|j| j.count).max().unwrap_or(0);
        let (raw, proofs) = (self.upload(&raw)?, self.upload(&proofs)?);
        let tiles = (most_tokens.div_ceil(TILE_TOKENS), most_rows.div_ceil(TILE_ROWS), jobs.len());
        let grid = Grid { blocks: tiles, block: BLOCK, shared_bytes: SHARED_BYTES };
        // SAFETY: `LinearJob::raw` checked every job, lengths and doubts are as large as it says,
        // and everything is freed in the order of the stream.
        unsafe { self.launch("product", grid, args![&raw, &proofs])? };
        let cols = jobs.iter().map(|j| j.weights.cols()).max().unwrap_or(0);
        let tile = self.tile_tokens(cols).min(most_tokens.next_power_of_two());
        let tiles = most_tokens.div_ceil(tile);
        // A tile is laid out by each of its blocks: few of them, if that leaves enough.
        let few = most_rows.div_ceil(DOUBTS_ROWS[1]) * tiles * jobs.len();
        let enough = few >= 4 * self.info.multiprocessors;
        let block_rows = if enough { DOUBTS_ROWS[1] } else { DOUBTS_ROWS[0] };
        let blocks = (most_rows.div_ceil(block_rows), tiles, jobs.len());
        let grid = Grid { blocks, block: 1024, shared_bytes: (tile * 2 * cols) as u32 };
        let args = args![&raw, &proofs, tile, block_rows, self.failure()];
        // SAFETY: as above.
        unsafe { self.launch("product_doubts", grid, args) }
    }

    /// Tokens whose inputs fit the shared memory of `product_doubts`; 0 where none does.
    fn tile_tokens(&self, cols: usize) -> usize {
        let fit = self.kernels.doubts_bytes() / (2 * cols.max(1));
        if fit == 0 { 0 } else { 1 << fit.min(32).ilog2() }
    }

    /// Queues the lengths of rows of plain bf16.
    fn lengths(&self, rows: RawMatrix, out: u64) -> Result<(), GpuError> {
        let grid = Grid::line((rows.rows as usize).div_ceil(8), 256);
        let args = args![Arg::Address(rows.data), rows.rows, rows.cols, Arg::Address(out)];
        // SAFETY: the layout of a matrix has room for the lengths of its rows, and so has
        // `x_lengths`.
        unsafe { self.launch("row_lengths", grid, args) }
    }

    /// Of every x once, by its address.
    fn x_lengths(&self, jobs: &[&LinearJob<'_>]) -> Result<HashMap<u64, Buffer<f32>>, GpuError> {
        let mut known = HashMap::new();
        for job in jobs {
            let (x, cols): (&Buffer<bf16>, usize) = (job.x, job.weights.cols());
            if known.contains_key(&x.address()) {
                continue;
            }
            let rows = x.len() / cols;
            let out = self.room::<f32>(rows * LENGTHS_BYTES / 4)?;
            let all = RawMatrix::plain(x.address(), rows, cols);
            self.lengths(all, out.address())?;
            known.insert(x.address(), out);
        }
        Ok(known)
    }

    /// Puts plain weights in the place of packed ones; the memory is theirs.
    fn unpack(&self, jobs: &mut [RawJob]) -> Result<Option<Buffer<bf16>>, GpuError> {
        let elements = |m: &RawMatrix| (m.rows as usize * m.cols as usize).next_multiple_of(128);
        let packed = || jobs.iter().map(|j| j.weights).filter(|w| w.kind == KIND_PACKED);
        if packed().next().is_none() {
            return Ok(None);
        }
        let scratch = self.room::<bf16>(packed().map(|w| elements(&w)).sum())?;
        let (mut at, mut all) = (0, Vec::new());
        for job in jobs.iter_mut().filter(|j| j.weights.kind == KIND_PACKED) {
            let w = job.weights;
            let out = scratch.address() + 2 * at as u64;
            all.push(RawUnpacking { packed: w, out, unused: 0 });
            at += elements(&w);
            job.weights = RawMatrix::plain(out, w.rows as usize, w.cols as usize);
        }
        let blocks = (self.info.multiprocessors * 32).div_ceil(all.len());
        let grid = Grid { blocks: (blocks, all.len(), 1), block: 256, shared_bytes: 0 };
        let all = self.upload(&all)?;
        // SAFETY: each has as much room as it has elements.
        unsafe { self.launch("unpack", grid, args![&all])? };
        // SAFETY: as above; places of escapes were checked as they came.
        unsafe { self.launch("unpack_escapes", grid, args![&all])? };
        Ok(Some(scratch))
    }
}
