//! Stage 1 for several tokens: tiles of rows x tokens, sums in registers.
//!
//! Rows are taken `ROWS` at a time and widened to f32 a segment at a time; each tile sums one
//! segment in registers and folds it into outer sums that stay in the first-level cache. So the
//! inner loop is loads and multiply-adds only, and no chain is longer than a segment plus the
//! number of segments. Ragged ends are repeated rows or tokens whose results are dropped.

use half::bf16;

use super::fast::{Doubt, FLOOR, TEST, UNIT, settled};
use super::{Task, wide};
use crate::NonFinite;
use crate::cpu::lanes::Lanes;

/// Rows of a tile.
pub(super) const ROWS: usize = 6;
/// Blocks of a segment.
const SEGMENT: usize = 8;
/// Most f32 values in a block at any level.
const BLOCK_MAX: usize = 32;
/// Most tokens of a tile at any level.
const TOKENS_MAX: usize = 4;

/// Roundings that a product in block `b` passes through.
#[inline(always)]
pub(super) fn roundings<L: Lanes>(b: usize, blocks: usize) -> f32 {
    let inner = 2 * (SEGMENT - b % SEGMENT);
    let outer = blocks.div_ceil(SEGMENT) - b / SEGMENT;
    (inner + outer + L::DEPTH + TEST) as f32
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
        outer: vec![0.0; together * ROWS * L::WIDTH],
        norms: vec![0.0; task.rows.len()],
        doubts: Vec::new(),
    };
    let mut first = 0;
    while first < tokens {
        let block = first..(first + together).min(tokens);
        for row in task.rows.clone().step_by(ROWS) {
            work.group::<L>(row, block.clone());
            if !work.doubts.is_empty() {
                wide::settle_all(level, task, weights, &mut work.doubts)?;
            }
        }
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
    fit.clamp(16, 128).next_multiple_of(tile_tokens::<L>())
}

struct Work<'a> {
    task: &'a Task<'a>,
    weights: &'a [bf16],
    /// `[tokens, ROWS, WIDTH]`.
    outer: Vec<f32>,
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
    fn group<L: Lanes>(&mut self, row: usize, tokens: std::ops::Range<usize>) {
        let k = self.task.job.weights.cols();
        let blocks = k.div_ceil(L::BLOCK);
        self.outer.fill(0.0);
        let mut segment = Segment([0.0; SEGMENT * ROWS * BLOCK_MAX]);
        let mut squares = [[L::zero(); 2]; ROWS];
        let mut b = 0;
        while b < blocks {
            let count = (blocks - b).min(SEGMENT);
            for r in 0..ROWS {
                let source = (row + r).min(self.task.rows.end - 1);
                let weights = &self.weights[source * k..][..k];
                widen::<L>(weights, b, count, r, &mut segment, &mut squares[r]);
            }
            self.sweep::<L>(&segment, b, count, tokens.clone());
            b += count;
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
    fn sweep<L: Lanes>(
        &mut self,
        segment: &Segment,
        b: usize,
        count: usize,
        tokens: std::ops::Range<usize>,
    ) {
        for first in tokens.clone().step_by(tile_tokens::<L>()) {
            let outer = &mut self.outer[(first - tokens.start) * ROWS * L::WIDTH..];
            let task = self.task;
            let x = |c: usize| {
                let t = task.source((first + c).min(tokens.end - 1));
                task.job.input.narrow(t)[b * L::BLOCK..][..count * L::BLOCK].as_ptr()
            };
            // SAFETY: `x` points at `count` blocks, `segment` holds as many of each row, and
            // `outer` has `ROWS` vectors for each token of the tile.
            unsafe {
                if L::WIDTH == 16 {
                    tile::<L, TOKENS_MAX>(&segment.0, [x(0), x(1), x(2), x(3)], count, outer);
                } else {
                    tile::<L, 2>(&segment.0, [x(0), x(1)], count, outer);
                }
            }
        }
    }

    /// Sums over the lanes, tests, stores.
    #[inline(always)]
    fn finish<L: Lanes>(&mut self, row: usize, tokens: std::ops::Range<usize>) {
        let count = ROWS.min(self.task.rows.end - row);
        for t in tokens.clone() {
            let spread = self.task.job.input.spread(self.task.source(t));
            let sums = &self.outer[(t - tokens.start) * ROWS * L::WIDTH..][..ROWS * L::WIDTH];
            for r in 0..count {
                // SAFETY: vector r of `ROWS` in `sums`.
                let y = L::sum(unsafe { L::load(sums.as_ptr().add(r * L::WIDTH)) });
                let norm = self.norms[row + r - self.task.rows.start];
                let bound = norm * spread * UNIT + FLOOR;
                match settled(y, bound) {
                    Some(v) => self.task.sink.put_bf16(t, row + r, v),
                    None => self.doubts.push(Doubt { row: row + r, token: t as u32, bound }),
                }
            }
        }
    }
}

/// From a sum of squares: 2^-120 per element covers squares that underflowed, 2^-7 the roundings
/// of the sum (fewer than 2^15) and of the root.
#[inline(always)]
fn norm(square: f32, k: usize) -> f32 {
    (square + k as f32 * f32::from_bits((127 - 120) << 23)).sqrt() * (1.0 + 1.0 / 128.0)
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
        squares[0] = L::fma(even, even, squares[0]);
        squares[1] = L::fma(odd, odd, squares[1]);
        let out = &mut segment.0[(i * ROWS + r) * L::BLOCK..][..L::BLOCK];
        // SAFETY: `out` is one block: two vectors.
        unsafe {
            L::store(out.as_mut_ptr(), even);
            L::store(out.as_mut_ptr().add(L::WIDTH), odd);
        }
    }
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
    count: usize,
    outer: &mut [f32],
) {
    let mut sums = [[L::zero(); C]; ROWS];
    for i in 0..count {
        for half in 0..2 {
            let mut inputs = [L::zero(); C];
            for c in 0..C {
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
