//! Stage 1: f32 sums with a proven bound.
//!
//! The bound. Each product of two bf16 values is exact in f32 (16 significant bits), so a fused or
//! an unfused multiply-add rounds once, by at most 2^-24 of the sum's magnitude. A product that
//! passes through c roundings contributes at most c * 2^-24 * |w x| (1 + 2^-10) to the error of
//! the final sum (c < 2^12). Where a product or a sum is subnormal, up to 2^-150 more is lost at each
//! operation: `FLOOR` covers 2^17 of those.

use half::bf16;

use super::{Task, wide};
use crate::NonFinite;
use crate::bound::U32;
use crate::cpu::lanes::Lanes;
use crate::round::{store, widen};

/// 2^-24 with the second order and the error of computing the bound itself.
const UNIT: f32 = U32 * (1.0 + 1.0 / 256.0);
/// 2^-149 * 2^17: what underflow can add.
const FLOOR: f32 = f32::from_bits(1 << 17);

/// Blocks that the one-token path takes per step, each into its own pair of sums.
const UNROLL: usize = 4;
/// Blocks that the tiled path sums before it folds them into the outer sums.
const SEGMENT: usize = 8;
/// Rows of a tile.
const ROWS: usize = 6;

/// Roundings for the test itself (`y - e`, `y + e`) and the final conversion.
const TEST: usize = 3;

/// Roundings that a product in block `b` passes through on the one-token path.
#[inline(always)]
pub(super) fn direct_roundings<L: Lanes>(b: usize, blocks: usize) -> f32 {
    let steps = blocks.div_ceil(UNROLL) - b / UNROLL;
    (steps + (2 * UNROLL).ilog2() as usize + L::DEPTH + TEST) as f32
}

/// Roundings that a product in block `b` passes through in a tile.
#[inline(always)]
pub(super) fn tile_roundings<L: Lanes>(b: usize, blocks: usize) -> f32 {
    // A ragged last block is a segment of its own; counting one segment more covers it.
    let inner = 2 * (SEGMENT - b % SEGMENT);
    let outer = blocks.div_ceil(SEGMENT) + 1 - b / SEGMENT;
    (inner + outer + L::DEPTH + TEST) as f32
}

/// The weights of a task: whole blocks in place, a ragged end copied and padded.
struct Rows<'a> {
    weights: &'a [bf16],
    k: usize,
}

/// The padded last block of a row.
type Tail = [bf16; 64];

impl Rows<'_> {
    #[inline(always)]
    fn row(&self, row: usize) -> &[bf16] {
        &self.weights[row * self.k..][..self.k]
    }

    #[inline(always)]
    fn tail<L: Lanes>(&self, row: usize) -> Tail {
        let mut tail = [bf16::ZERO; 64];
        let rest = &self.row(row)[self.k / L::BLOCK * L::BLOCK..];
        tail[..rest.len()].copy_from_slice(rest);
        tail
    }
}

/// One token: a row at a time, sum and bound together.
#[inline(always)]
pub(super) fn direct_rows<L: Lanes>(task: &Task<'_>, weights: &[bf16]) -> Result<(), NonFinite> {
    let input = task.job.input;
    let source = task.source(0);
    let (x, c) = (input.narrow(source), input.weighted(source));
    let all = Rows { weights, k: task.job.weights.cols() };
    let level = input.level();
    let mut doubts = Vec::with_capacity(1);
    for row in task.rows.clone() {
        let (y, bound) = direct::<L>(&all, row, x, c);
        match settled(y, bound) {
            Some(v) => task.sink.put_bf16(0, row, v),
            None => {
                doubts.push(Doubt { row, token: 0, bound });
                wide::settle_all(level, task, weights, &mut doubts)?;
            }
        }
    }
    Ok(())
}

/// The f32 dot product of a row and its error bound.
#[inline(always)]
fn direct<L: Lanes>(all: &Rows<'_>, row: usize, x: &[f32], c: &[f32]) -> (f32, f32) {
    let w = all.row(row);
    let whole = all.k / L::BLOCK;
    let mut sums = [[L::zero(); 2]; UNROLL];
    let mut bounds = [L::zero(); UNROLL];
    assert!(x.len() >= whole * L::BLOCK && c.len() == x.len());
    let mut b = 0;
    while b + UNROLL <= whole {
        for u in 0..UNROLL {
            let at = (b + u) * L::BLOCK;
            // SAFETY: block b + u lies inside `w`, `x` and `c` (asserted above).
            unsafe {
                let p = L::packed(w.as_ptr().add(at));
                pair::<L>(p, x.as_ptr().add(at), c.as_ptr().add(at), &mut sums[u], &mut bounds[u]);
            }
        }
        b += UNROLL;
    }
    let mut u = 0;
    while b < whole {
        let at = b * L::BLOCK;
        // SAFETY: as above.
        unsafe {
            let p = L::packed(w.as_ptr().add(at));
            pair::<L>(p, x.as_ptr().add(at), c.as_ptr().add(at), &mut sums[u], &mut bounds[u]);
        }
        b += 1;
        u += 1;
    }
    if x.len() > whole * L::BLOCK {
        let tail = all.tail::<L>(row);
        let at = whole * L::BLOCK;
        // SAFETY: the tail is 64 values; `x` and `c` are padded to whole blocks.
        unsafe {
            let p = L::packed(tail.as_ptr());
            pair::<L>(p, x.as_ptr().add(at), c.as_ptr().add(at), &mut sums[u], &mut bounds[u]);
        }
    }
    let y = pair_tree::<L>(&sums);
    let [a, b, c, d] = bounds;
    let bound = L::sum(L::add(L::add(a, b), L::add(c, d)));
    (y, bound * UNIT + FLOOR)
}

/// The sum of eight vectors and of their lanes, as one tree.
#[inline(always)]
fn pair_tree<L: Lanes>(sums: &[[L::F32; 2]; 4]) -> f32 {
    let [a, b, c, d] = sums;
    let (a, b) = (L::add(a[0], a[1]), L::add(b[0], b[1]));
    let (c, d) = (L::add(c[0], c[1]), L::add(d[0], d[1]));
    L::sum(L::add(L::add(a, b), L::add(c, d)))
}

/// One block of one row against one token.
///
/// # Safety
/// `x` and `c` are valid for a block of f32 values.
#[inline(always)]
unsafe fn pair<L: Lanes>(
    p: L::Packed,
    x: *const f32,
    c: *const f32,
    sums: &mut [L::F32; 2],
    bound: &mut L::F32,
) {
    let (even, odd) = (L::even(p), L::odd(p));
    // SAFETY: the caller's guarantee: two vectors at each pointer.
    unsafe {
        sums[0] = L::fma(even, L::load(x), sums[0]);
        sums[1] = L::fma(odd, L::load(x.add(L::WIDTH)), sums[1]);
        *bound = L::fma(L::abs(even), L::load(c), *bound);
        *bound = L::fma(L::abs(odd), L::load(c.add(L::WIDTH)), *bound);
    }
}

/// The stored value, if all of `y - bound ..= y + bound` rounds to it.
#[inline(always)]
fn settled(y: f32, bound: f32) -> Option<bf16> {
    let (low, high) = (store(y - bound), store(y + bound));
    (low.to_bits() == high.to_bits() && widen(low).is_finite()).then_some(low)
}

/// Several tokens: tiles of rows x tokens, token blocks that stay in cache.
#[inline(always)]
pub(super) fn tiled_rows<L: Lanes>(task: &Task<'_>, weights: &[bf16]) -> Result<(), NonFinite> {
    let all = Rows { weights, k: task.job.weights.cols() };
    let tokens = task.token_count();
    let together = tokens_together::<L>(all.k);
    let level = task.job.input.level();
    let mut doubts = Vec::new();
    let mut norms = vec![0.0f32; task.rows.len()];
    let mut first = 0;
    while first < tokens {
        let block = first..(first + together).min(tokens);
        let mut row = task.rows.start;
        while row < task.rows.end {
            let count = (task.rows.end - row).min(ROWS);
            let norms = &mut norms[row - task.rows.start..];
            if count == ROWS {
                row_group::<L, ROWS>(task, &all, row, block.clone(), norms, &mut doubts);
            } else {
                for r in 0..count {
                    let norms = &mut norms[r..];
                    row_group::<L, 1>(task, &all, row + r, block.clone(), norms, &mut doubts);
                }
            }
            if !doubts.is_empty() {
                wide::settle_all(level, task, weights, &mut doubts)?;
            }
            row += count;
        }
        first = block.end;
    }
    Ok(())
}

/// Tokens whose inputs stay in the second-level cache beside the rows.
#[inline(always)]
fn tokens_together<L: Lanes>(k: usize) -> usize {
    let fit = (192 << 10) / (4 * k.max(1));
    let step = tile_tokens::<L>();
    fit.max(step) / step * step
}

/// Tokens of a full tile: as many sums as the registers hold.
#[inline(always)]
fn tile_tokens<L: Lanes>() -> usize {
    if L::WIDTH == 16 { 5 } else { 2 }
}

/// An output that stage 1 could not decide.
pub(super) struct Doubt {
    pub(super) row: usize,
    pub(super) token: u32,
    pub(super) bound: f32,
}

/// `R` rows against a block of tokens.
#[inline(always)]
fn row_group<L: Lanes, const R: usize>(
    task: &Task<'_>,
    all: &Rows<'_>,
    row: usize,
    tokens: std::ops::Range<usize>,
    norms: &mut [f32],
    doubts: &mut Vec<Doubt>,
) {
    // Loops, not `map`: vector code in a closure may be left out of line, without the features.
    let mut tails = [[bf16::ZERO; 64]; R];
    for r in 0..R {
        tails[r] = all.tail::<L>(row + r);
        if tokens.start == 0 {
            norms[r] = norm::<L>(all.row(row + r), &tails[r]);
        }
    }
    let at = Group { task, all, row, tails: &tails, norms };
    let full = if R > 1 { tile_tokens::<L>() } else { 1 };
    let mut t = tokens.start;
    while t < tokens.end {
        let count = (tokens.end - t).min(full);
        // Shapes that a level never uses are not compiled for it.
        match count {
            1 => at.tile::<L, 1>(t, doubts),
            2 if R > 1 => at.tile::<L, 2>(t, doubts),
            3 if R > 1 => at.tile::<L, 3>(t, doubts),
            4 if R > 1 && L::WIDTH == 16 => at.tile::<L, 4>(t, doubts),
            5 if R > 1 && L::WIDTH == 16 => at.tile::<L, 5>(t, doubts),
            _ => unreachable!("tiles of up to {full} tokens"),
        }
        t += count;
    }
}

#[inline(always)]
fn square<L: Lanes>(p: L::Packed, sums: &mut [L::F32; 2]) {
    let (even, odd) = (L::even(p), L::odd(p));
    sums[0] = L::fma(even, even, sums[0]);
    sums[1] = L::fma(odd, odd, sums[1]);
}

/// `sqrt(S w^2)` from above.
#[inline(always)]
fn norm<L: Lanes>(row: &[bf16], tail: &Tail) -> f32 {
    let whole = row.len() / L::BLOCK;
    let mut sums = [[L::zero(); 2]; UNROLL];
    let mut b = 0;
    while b + UNROLL <= whole {
        for u in 0..UNROLL {
            // SAFETY: block b + u lies inside the row.
            square::<L>(unsafe { L::packed(row.as_ptr().add((b + u) * L::BLOCK)) }, &mut sums[u]);
        }
        b += UNROLL;
    }
    while b < whole {
        // SAFETY: block b lies inside the row.
        square::<L>(unsafe { L::packed(row.as_ptr().add(b * L::BLOCK)) }, &mut sums[0]);
        b += 1;
    }
    // SAFETY: the tail is 64 values, zeros past the row's end.
    square::<L>(unsafe { L::packed(tail.as_ptr()) }, &mut sums[1]);
    let square = pair_tree::<L>(&sums);
    // 2^-120 per element covers squares that underflowed; 2^-8 the rounding of the sum.
    (square + (row.len() as f32) * f32::from_bits((127 - 120) << 23)).sqrt() * (1.0 + 1.0 / 256.0)
}

/// `R` rows with what their tiles need.
struct Group<'a, const R: usize> {
    task: &'a Task<'a>,
    all: &'a Rows<'a>,
    row: usize,
    tails: &'a [Tail; R],
    /// `sqrt(S w^2)` of each row, computed in the first block of tokens.
    norms: &'a [f32],
}

impl<const R: usize> Group<'_, R> {
    /// `R x C` outputs: sums, test, store.
    #[inline(always)]
    fn tile<L: Lanes, const C: usize>(&self, first: usize, doubts: &mut Vec<Doubt>) {
        let input = self.task.job.input;
        let sources: [usize; C] = std::array::from_fn(|c| self.task.source(first + c));
        let x: [&[f32]; C] = sources.map(|s| input.narrow(s));
        let sums = self.sums::<L, C>(x.map(<[f32]>::as_ptr), x[0].len());
        for r in 0..R {
            for c in 0..C {
                let bound = self.norms[r] * input.spread(sources[c]) * UNIT + FLOOR;
                match settled(sums[r][c], bound) {
                    Some(v) => self.task.sink.put_bf16(first + c, self.row + r, v),
                    None => {
                        let token = (first + c) as u32;
                        doubts.push(Doubt { row: self.row + r, token, bound });
                    }
                }
            }
        }
    }

    /// The f32 sums: chains of `2 * SEGMENT`, folded into outer sums, then a tree over lanes.
    #[inline(always)]
    fn sums<L: Lanes, const C: usize>(&self, x: [*const f32; C], len: usize) -> [[f32; C]; R] {
        let whole = self.all.k / L::BLOCK;
        let w: [*const bf16; R] = std::array::from_fn(|r| self.all.row(self.row + r).as_ptr());
        let mut outer = [[L::zero(); C]; R];
        let mut b = 0;
        while b < whole {
            let end = (b + SEGMENT).min(whole);
            let mut inner = [[L::zero(); C]; R];
            while b < end {
                let at = b * L::BLOCK;
                // SAFETY: block b lies inside each row and each prepared input.
                unsafe {
                    let rows = w.map(|w| w.add(at));
                    step::<L, R, C>(rows, x.map(|x| x.add(at)), &mut inner);
                }
                b += 1;
            }
            fold::<L, R, C>(&mut outer, &inner);
        }
        if len > whole * L::BLOCK {
            let mut inner = [[L::zero(); C]; R];
            let at = whole * L::BLOCK;
            // SAFETY: tails are 64 values; prepared inputs are padded to whole blocks.
            unsafe {
                let rows = std::array::from_fn(|r| self.tails[r].as_ptr());
                step::<L, R, C>(rows, x.map(|x| x.add(at)), &mut inner);
            }
            fold::<L, R, C>(&mut outer, &inner);
        }
        let mut sums = [[0.0f32; C]; R];
        for r in 0..R {
            for c in 0..C {
                sums[r][c] = L::sum(outer[r][c]);
            }
        }
        sums
    }
}

#[inline(always)]
fn fold<L: Lanes, const R: usize, const C: usize>(
    outer: &mut [[L::F32; C]; R],
    inner: &[[L::F32; C]; R],
) {
    for r in 0..R {
        for c in 0..C {
            outer[r][c] = L::add(outer[r][c], inner[r][c]);
        }
    }
}

/// The same address, but the compiler does not know it: the block is loaded again instead of
/// being kept in a register that the sums need (two of twelve sums spilled otherwise).
#[inline(always)]
fn anew<T>(mut p: *const T) -> *const T {
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) p,
            options(pure, nomem, nostack, preserves_flags));
    }
    p
}

/// One block of `R` rows against `C` tokens.
///
/// # Safety
/// A block of bf16 values at each row, a block of f32 values at each `x`.
#[inline(always)]
unsafe fn step<L: Lanes, const R: usize, const C: usize>(
    w: [*const bf16; R],
    x: [*const f32; C],
    sums: &mut [[L::F32; C]; R],
) {
    let (mut even, mut odd) = ([L::zero(); C], [L::zero(); C]);
    for c in 0..C {
        // SAFETY: the caller's guarantee.
        even[c] = unsafe { L::load(x[c]) };
    }
    for r in 0..R {
        // SAFETY: the caller's guarantee.
        let row = L::even(unsafe { L::packed(w[r]) });
        for c in 0..C {
            sums[r][c] = L::fma(row, even[c], sums[r][c]);
        }
    }
    for c in 0..C {
        // SAFETY: the caller's guarantee: the odd elements follow the even ones.
        odd[c] = unsafe { L::load(x[c].add(L::WIDTH)) };
    }
    for r in 0..R {
        // SAFETY: the caller's guarantee.
        let row = L::odd(unsafe { L::packed(anew(w[r])) });
        for c in 0..C {
            sums[r][c] = L::fma(row, odd[c], sums[r][c]);
        }
    }
}
