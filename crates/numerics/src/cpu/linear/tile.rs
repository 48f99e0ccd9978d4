//! Stage 1 for several tokens: tiles of rows x tokens, sums in registers.
//!
//! Rows are taken `ROWS` at a time and widened to f32 a segment at a time; each tile sums one
//! segment in registers and folds it into outer sums that stay in the first-level cache. So the
//! inner loop is loads and multiply-adds only. Outer sums are drained into f64 totals every few
//! segments, so no f32 chain is longer than a segment plus that number. Ragged ends are repeated
//! rows or tokens whose results are dropped.

use half::bf16;

use super::fast::{Doubt, FLOOR, TEST, UNIT};
use super::{Task, wide};
use crate::NonFinite;
use crate::cpu::lanes::{Lanes, prefetch};

/// Rows of a tile.
pub(super) const ROWS: usize = 6;
/// Blocks of a segment.
const SEGMENT: usize = 8;
/// Segments between two drains.
const DRAIN: usize = 6;
/// Tokens whose outputs are tested together.
const TESTED: usize = 8;
/// f32 values in a cache line.
const LINE: usize = 16;
/// Most f32 values in a block at any level.
const BLOCK_MAX: usize = 32;
/// Most tokens of a tile at any level.
const TOKENS_MAX: usize = 4;

/// Roundings that a product in block `b` passes through.
#[inline(always)]
pub(super) fn roundings(b: usize, blocks: usize) -> f32 {
    let segment = b / SEGMENT;
    let segments = blocks.div_ceil(SEGMENT);
    let inner = 2 * ((segment * SEGMENT + SEGMENT).min(blocks) - b);
    let outer = (segment / DRAIN * DRAIN + DRAIN).min(segments) - segment;
    // The errors of the f64 totals are far below the slack of `UNIT`; their conversion to f32 is
    // one of the roundings of `TEST`.
    (inner + outer + TEST) as f32
}

/// All outputs of a task, by blocks of tokens whose inputs stay in cache.
#[inline(always)]
pub(super) fn rows<L: Lanes>(task: &Task<'_>, weights: &[bf16]) -> Result<(), NonFinite> {
    let level = task.job.input.level();
    let tokens = task.token_count();
    let together = tokens_together::<L>(task.job.weights.cols());
    let mut work = Work {
        task,
        weights,
        inputs: Vec::new(),
        outer: vec![0.0; together * ROWS * L::WIDTH],
        totals: vec![0.0; together * ROWS * L::WIDTH],
        spreads: vec![0.0; together],
        lengths: vec![0.0; together],
        stage: vec![bf16::ZERO; together * task.rows.len()],
        norms: vec![0.0; task.rows.len()],
        doubts: Vec::new(),
    };
    // Once for all groups: what a group does not write, it does not read.
    let mut segment = Segment([0.0; SEGMENT * ROWS * BLOCK_MAX]);
    let mut first = 0;
    while first < tokens {
        let block = first..(first + together).min(tokens);
        work.inputs.clear();
        let whole = block.len().next_multiple_of(tile_tokens::<L>());
        for t in (block.start..block.start + whole).map(|t| t.min(block.end - 1)) {
            work.inputs.push(task.job.input.narrow(task.source(t)).as_ptr());
        }
        for (i, t) in block.clone().enumerate() {
            work.spreads[i] = task.job.input.spread(task.source(t));
            work.lengths[i] = task.job.input.length(task.source(t));
        }
        for row in task.rows.clone().step_by(ROWS) {
            work.group::<L>(row, block.clone(), &mut segment);
        }
        work.flush(block.clone());
        wide::settle_all(level, task, weights, &mut work.doubts)?;
        first = block.end;
    }
    Ok(())
}

/// Tokens of a tile: as many sums as the registers hold.
#[inline(always)]
fn tile_tokens<L: Lanes>() -> usize {
    if L::WIDTH == 16 { TOKENS_MAX } else { 2 }
}

/// Tokens whose inputs stay in the second-level cache beside the rows.
#[inline(always)]
fn tokens_together<L: Lanes>(k: usize) -> usize {
    let fit = (256 << 10) / (4 * k.max(1));
    fit.clamp(32, 64).next_multiple_of(TESTED)
}

struct Work<'a> {
    task: &'a Task<'a>,
    weights: &'a [bf16],
    /// Of the tokens of a block, the last one repeated to fill the last tile.
    inputs: Vec<*const f32>,
    /// `[tokens, ROWS, WIDTH]`, f32 sums since the last drain.
    outer: Vec<f32>,
    /// `[tokens, ROWS, WIDTH]`, f64 sums up to the last drain.
    totals: Vec<f64>,
    /// `sqrt(S c^2 x^2)` of each token of the block.
    spreads: Vec<f32>,
    /// `sqrt(S x^2)` of each.
    lengths: Vec<f32>,
    /// Values of a block of tokens, `[tokens, rows of the task]`, before they go out in whole runs:
    /// single tiles would write a few bytes to each of many far-apart lines.
    stage: Vec<bf16>,
    /// `sqrt(S w^2)` of each row from above, computed in the first block of tokens.
    norms: Vec<f32>,
    doubts: Vec<Doubt>,
}

/// One segment of `ROWS` rows as f32, block by block, even elements before odd ones.
#[repr(align(64))]
struct Segment([f32; SEGMENT * ROWS * BLOCK_MAX]);

impl Work<'_> {
    /// `ROWS` rows against a block of tokens.
    #[inline(always)]
    fn group<L: Lanes>(
        &mut self,
        row: usize,
        tokens: std::ops::Range<usize>,
        segment: &mut Segment,
    ) {
        let k = self.task.job.weights.cols();
        let blocks = k.div_ceil(L::BLOCK);
        self.totals[..tokens.len() * ROWS * L::WIDTH].fill(0.0);
        let mut squares = [[L::zero(); 2]; ROWS];
        let mut b = 0;
        while b < blocks {
            let count = (blocks - b).min(SEGMENT);
            for r in 0..ROWS {
                let source = (row + r).min(self.task.rows.end - 1);
                let weights = &self.weights[source * k..][..k];
                ahead(weights, (b + 2 * SEGMENT) * L::BLOCK, SEGMENT * L::BLOCK);
                widen::<L>(weights, b, count, r, segment, &mut squares[r]);
            }
            self.sweep::<L>(segment, b, count);
            b += count;
            if b == blocks || b.is_multiple_of(DRAIN * SEGMENT) {
                self.drain::<L>(tokens.len());
            }
        }
        if tokens.start == 0 {
            for r in 0..ROWS.min(self.task.rows.end - row) {
                let square = L::sum(L::add(squares[r][0], squares[r][1]));
                self.norms[row + r - self.task.rows.start] = norm(square, k);
            }
        }
        self.finish::<L>(row, tokens);
    }

    /// One segment against every tile of the block of tokens.
    #[inline(always)]
    fn sweep<L: Lanes>(&mut self, segment: &Segment, b: usize, count: usize) {
        let stride = self.task.job.input.stride();
        let tiles = self.inputs.chunks_exact(tile_tokens::<L>());
        for (x, outer) in tiles.zip(self.outer.chunks_mut(tile_tokens::<L>() * ROWS * L::WIDTH)) {
            // SAFETY: every input points at all blocks of a row, of which `count` follow b;
            // `segment` holds as many of each row; `outer` has `ROWS` vectors for each token.
            unsafe {
                let at = b * L::BLOCK;
                if L::WIDTH == 16 {
                    let x = [x[0].add(at), x[1].add(at), x[2].add(at), x[3].add(at)];
                    tile::<L, TOKENS_MAX>(&segment.0, x, stride, count, outer);
                } else {
                    tile::<L, 2>(&segment.0, [x[0].add(at), x[1].add(at)], stride, count, outer);
                }
            }
        }
    }

    /// Adds the outer sums to the totals and clears them.
    #[inline(always)]
    fn drain<L: Lanes>(&mut self, tokens: usize) {
        for v in 0..tokens * ROWS {
            let outer = &mut self.outer[v * L::WIDTH..][..L::WIDTH];
            let (first, second) =
                self.totals[v * L::WIDTH..][..L::WIDTH].split_at_mut(L::WIDTH / 2);
            // SAFETY: one vector of f32, two half vectors of f64.
            unsafe {
                let [low, high] = L::halves(L::load(outer.as_ptr()));
                L::store(outer.as_mut_ptr(), L::zero());
                L::store64(first.as_mut_ptr(), L::add64(L::load64(first.as_ptr()), low));
                L::store64(second.as_mut_ptr(), L::add64(L::load64(second.as_ptr()), high));
            }
        }
    }

    /// Sums over the lanes, tests, stores.
    #[inline(always)]
    fn finish<L: Lanes>(&mut self, row: usize, tokens: std::ops::Range<usize>) {
        let (first, width) = (row - self.task.rows.start, self.task.rows.len());
        for r in 0..ROWS.min(self.task.rows.end - row) {
            let norm = self.norms[first + r] * UNIT;
            for start in (0..tokens.len()).step_by(TESTED) {
                let count = TESTED.min(tokens.len() - start);
                let mut sums = [0.0f32; TESTED];
                for i in 0..TESTED {
                    let place = &self.totals[((start + i) * ROWS + r) * L::WIDTH..][..L::WIDTH];
                    // SAFETY: two half vectors of one output.
                    let (low, high) = unsafe {
                        let place = place.as_ptr();
                        (L::load64(place), L::load64(place.add(L::WIDTH / 2)))
                    };
                    sums[i] = L::sum64(L::add64(low, high)) as f32;
                }
                let tested = Tested::new(&sums, norm, &self.spreads[start..start + TESTED]);
                for i in 0..count {
                    self.stage[(start + i) * width + first + r] = tested.values[i];
                }
                let mut doubtful = tested.doubtful & ((1 << count) - 1);
                while doubtful != 0 {
                    let i = doubtful.trailing_zeros() as usize;
                    let magnitude = self.norms[first + r] * self.lengths[start + i];
                    let (row, token) = (row + r, (tokens.start + start + i) as u32);
                    self.doubts.push(Doubt { row, token, magnitude });
                    doubtful &= doubtful - 1;
                }
            }
        }
    }
}

/// The test of stage 1 for some outputs of one row.
struct Tested {
    values: [bf16; TESTED],
    /// Bit i: output i is in doubt.
    doubtful: u32,
}

impl Tested {
    /// `norm` already holds the unit of the bound.
    #[inline(always)]
    fn new(y: &[f32; TESTED], norm: f32, spreads: &[f32]) -> Tested {
        let mut values = [bf16::ZERO; TESTED];
        let mut wrong = [0u32; TESTED];
        for i in 0..TESTED {
            let bound = norm * spreads[i] + FLOOR;
            let (low, high) = (y[i] - bound, y[i] + bound);
            let round = |v: f32| {
                let bits = v.to_bits();
                bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16
            };
            let (l, h) = (round(low), round(high));
            // Not-a-number compares unequal to itself; infinity has all exponent bits.
            let not_finite = u32::from(l & 0x7f80 == 0x7f80) | u32::from(low.is_nan());
            wrong[i] = (l ^ h) | not_finite;
            values[i] = bf16::from_bits(l as u16);
        }
        let mut doubtful = 0;
        for i in 0..TESTED {
            doubtful |= u32::from(wrong[i] != 0) << i;
        }
        Tested { values, doubtful }
    }
}

impl Work<'_> {
    /// Writes the staged values out; the doubtful ones are written again when they are settled.
    fn flush(&mut self, tokens: std::ops::Range<usize>) {
        for (t, row) in tokens.zip(self.stage.chunks(self.task.rows.len())) {
            self.task.sink.put_bf16_rows(t, self.task.rows.start, row);
        }
    }
}

/// From a sum of squares: 2^-120 per element covers squares that underflowed, 2^-7 the roundings
/// of the sum (fewer than 2^15) and of the root.
#[inline(always)]
pub(super) fn norm(square: f32, k: usize) -> f32 {
    (square + k as f32 * f32::from_bits((127 - 120) << 23)).sqrt() * (1.0 + 1.0 / 128.0)
}

/// Asks for the part of a row that the next but one segment needs: a row's segment is too short
/// for the hardware to see where it leads.
#[inline(always)]
fn ahead(row: &[bf16], from: usize, count: usize) {
    const LINE: usize = 32;
    let end = row.len().min(from + count);
    for at in (from..end).step_by(LINE) {
        crate::cpu::lanes::prefetch(&row[at]);
    }
}

/// Widens `count` blocks of one row and adds up its squares.
#[inline(always)]
fn widen<L: Lanes>(
    row: &[bf16],
    first: usize,
    count: usize,
    r: usize,
    segment: &mut Segment,
    squares: &mut [L::F32; 2],
) {
    let [mut low, mut high] = *squares;
    for i in 0..count {
        let at = (first + i) * L::BLOCK;
        // SAFETY: a whole block lies inside the row; a ragged one is copied behind zeros.
        let p = unsafe {
            if at + L::BLOCK <= row.len() {
                L::packed(row.as_ptr().add(at))
            } else {
                let mut tail = [bf16::ZERO; BLOCK_MAX];
                tail[..row.len() - at].copy_from_slice(&row[at..]);
                L::packed(tail.as_ptr())
            }
        };
        let (even, odd) = (L::even(p), L::odd(p));
        low = L::fma(even, even, low);
        high = L::fma(odd, odd, high);
        let out = &mut segment.0[(i * ROWS + r) * L::BLOCK..][..L::BLOCK];
        // SAFETY: `out` is one block: two vectors.
        unsafe {
            L::store(out.as_mut_ptr(), even);
            L::store(out.as_mut_ptr().add(L::WIDTH), odd);
        }
    }
    *squares = [low, high];
}

/// `ROWS x C` sums over a segment, added to the outer sums.
///
/// # Safety
/// `w` holds `count * ROWS` blocks, each `x` points at `count` blocks, `outer` holds `C * ROWS`
/// vectors.
#[inline(always)]
unsafe fn tile<L: Lanes, const C: usize>(
    w: &[f32],
    x: [*const f32; C],
    stride: usize,
    count: usize,
    outer: &mut [f32],
) {
    let mut sums = [[L::zero(); C]; ROWS];
    for i in 0..count {
        for half in 0..2 {
            let mut inputs = [L::zero(); C];
            for c in 0..C {
                // The next tile's tokens usually follow these in memory.
                if half * LINE < L::BLOCK {
                    prefetch(x[c].wrapping_add(C * stride + i * L::BLOCK + half * LINE));
                }
                // SAFETY: block i of `count`.
                inputs[c] = unsafe { L::load(x[c].add(i * L::BLOCK + half * L::WIDTH)) };
            }
            for r in 0..ROWS {
                let at = (i * ROWS + r) * L::BLOCK + half * L::WIDTH;
                // SAFETY: block i of row r.
                let row = unsafe { L::load(w.as_ptr().add(at)) };
                for c in 0..C {
                    sums[r][c] = L::fma(row, inputs[c], sums[r][c]);
                }
            }
        }
    }
    for c in 0..C {
        for r in 0..ROWS {
            // SAFETY: vector (c, r) of `outer`.
            unsafe {
                let place = outer.as_mut_ptr().add((c * ROWS + r) * L::WIDTH);
                L::store(place, L::add(L::load(place), sums[r][c]));
            }
        }
    }
}
