//! Stage 1 for one token: f32 sums with a proven bound, and what both forms of stage 1 share.
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
use crate::cpu::lanes::{Lanes, prefetch};
use crate::round::{store, widen};

/// 2^-24 with the second order and the error of computing the bound itself.
pub(super) const UNIT: f32 = U32 * (1.0 + 1.0 / 256.0);
/// 2^-149 * 2^17: what underflow can add.
pub(super) const FLOOR: f32 = f32::from_bits(1 << 17);

/// Blocks that the one-token path takes per step, each into its own pair of sums.
const UNROLL: usize = 4;

/// Weights in a cache line.
const LINE: usize = 32;
/// How far ahead of the sums the weights are asked for, in weights; rows follow each other.
pub(super) const AHEAD: usize = 8192;

/// Roundings for the test itself (`y - e`, `y + e`) and the final conversion.
pub(super) const TEST: usize = 3;

/// Roundings that a product in block `b` passes through on the one-token path.
#[inline(always)]
pub(super) fn direct_roundings<L: Lanes>(b: usize, blocks: usize) -> f32 {
    let steps = blocks.div_ceil(UNROLL) - b / UNROLL;
    (steps + (2 * UNROLL).ilog2() as usize + L::DEPTH + TEST) as f32
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
        for line in (0..UNROLL * L::BLOCK).step_by(LINE) {
            prefetch(w.as_ptr().wrapping_add(b * L::BLOCK + line + AHEAD));
        }
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
pub(super) fn settled(y: f32, bound: f32) -> Option<bf16> {
    let (low, high) = (store(y - bound), store(y + bound));
    (low.to_bits() == high.to_bits() && widen(low).is_finite()).then_some(low)
}

/// An output that stage 1 could not decide.
pub(super) struct Doubt {
    pub(super) row: usize,
    pub(super) token: u32,
    pub(super) bound: f32,
}
