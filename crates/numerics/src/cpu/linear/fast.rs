//! Stage 1 for one token: f32 sums with a proven bound, and what both forms of stage 1 share.
//!
//! The bound. Each product of two bf16 values is exact in f32 (16 significant bits), so a fused or
//! an unfused multiply-add rounds once, by at most 2^-24 of the sum's magnitude. A product that
//! passes through c roundings contributes at most c * 2^-24 * |w x| (1 + 2^-10) to the error of
//! the final sum (c < 2^12). Where a product or a sum is subnormal, up to 2^-150 more is lost at
//! each operation: `FLOOR` covers 2^17 of those.

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
const UNROLL: usize = 2;

/// Steps after which the chains are folded into outer sums: without it half as many products
/// again pass through enough roundings to be in doubt.
const RUN: usize = 16;

/// Weights in a cache line.
const LINE: usize = 32;
/// How far ahead of the sums the weights are asked for, in weights; rows follow each other.
pub(super) const AHEAD: usize = 8192;

/// Roundings besides the sums': of the test (`y - e`, `y + e`), and of a final conversion.
pub(super) const TEST: usize = 2;

/// Roundings that a product in block `b` passes through on the one-token path.
#[inline(always)]
pub(super) fn direct_roundings<L: Lanes>(b: usize, blocks: usize) -> f32 {
    let (step, steps) = (b / UNROLL, blocks.div_ceil(UNROLL));
    let run = step / RUN;
    let inner = (run * RUN + RUN).min(steps) - step;
    // A ragged end may be folded on its own: one fold more.
    let outer = steps.div_ceil(RUN) - run + 1;
    (inner + outer + (2 * UNROLL).ilog2() as usize + L::DEPTH + TEST) as f32
}

/// The least that `direct_roundings` gives: a step, two folds, two levels of chains, the lanes, the
/// test.
const DIRECT_MIN: f32 = (1 + 2 + 2 + 3 + TEST) as f32;

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

/// One token: two rows at a time, sums and bounds together.
#[inline(always)]
pub(super) fn direct_rows<L: Lanes>(task: &Task<'_>, weights: &[bf16]) -> Result<(), NonFinite> {
    let all = Rows { weights, k: task.job.weights.cols() };
    let mut row = task.rows.start;
    while row + 1 < task.rows.end {
        let found = direct::<L, 2>(task, &all, row);
        for (r, (y, bound)) in found.into_iter().enumerate() {
            finish(task, weights, row + r, y, bound)?;
        }
        row += 2;
    }
    if row < task.rows.end {
        let [(y, bound)] = direct::<L, 1>(task, &all, row);
        finish(task, weights, row, y, bound)?;
    }
    Ok(())
}

/// Stores what is settled and hands on the rest.
#[inline(always)]
fn finish(
    task: &Task<'_>,
    weights: &[bf16],
    row: usize,
    y: f32,
    bound: f32,
) -> Result<(), NonFinite> {
    match settled(y, bound) {
        Some(v) => {
            task.sink.put_bf16(0, row, v);
            Ok(())
        }
        None => {
            // Every product passed through at least `DIRECT_MIN` roundings.
            let magnitude = bound / (U32 * DIRECT_MIN);
            let mut doubts = vec![Doubt { row, token: 0, magnitude }];
            wide::settle_all(task.job.input.level(), task, weights, &mut doubts)
        }
    }
}

/// Sums of `R` rows: per step `UNROLL` blocks, each with its own pair of chains.
struct Chains<L: Lanes, const R: usize> {
    /// Since the last fold.
    sums: [[[L::F32; 2]; UNROLL]; R],
    outer: [[[L::F32; 2]; UNROLL]; R],
    bounds: [[L::F32; UNROLL]; R],
}

impl<L: Lanes, const R: usize> Chains<L, R> {
    /// Adds the chains to the outer sums and begins new ones.
    #[inline(always)]
    fn fold(&mut self) {
        for r in 0..R {
            for u in 0..UNROLL {
                for half in 0..2 {
                    let chain = self.sums[r][u][half];
                    self.outer[r][u][half] = L::add(self.outer[r][u][half], chain);
                    self.sums[r][u][half] = L::zero();
                }
            }
        }
    }
}

/// The f32 dot products of `R` neighbouring rows with the only token, and their error bounds.
///
/// The inputs are more bytes than a row; rows taken together share them.
#[inline(always)]
fn direct<L: Lanes, const R: usize>(
    task: &Task<'_>,
    all: &Rows<'_>,
    row: usize,
) -> [(f32, f32); R] {
    let input = task.job.input;
    let source = task.source(0);
    let (x, c) = (input.narrow(source), input.weighted(source));
    let whole = all.k / L::BLOCK;
    assert!(x.len() >= whole * L::BLOCK && c.len() == x.len() / 2);
    let mut w = [std::ptr::null(); R];
    for r in 0..R {
        w[r] = all.row(row + r).as_ptr();
    }
    let mut chains = Chains::<L, R> {
        sums: [[[L::zero(); 2]; UNROLL]; R],
        outer: [[[L::zero(); 2]; UNROLL]; R],
        bounds: [[L::zero(); UNROLL]; R],
    };
    let mut b = 0;
    while b < whole {
        if b.is_multiple_of(LINE / L::BLOCK) {
            for w in w {
                prefetch(w.wrapping_add(b * L::BLOCK + AHEAD));
            }
        }
        for u in 0..UNROLL.min(whole - b) {
            // SAFETY: block b + u lies inside each row, `x` and `c` (asserted above).
            unsafe {
                let at = (b + u) * L::BLOCK;
                let (x, c) = (x.as_ptr().add(at), c.as_ptr().add(at / 2));
                step::<L, R>(w.map(|w| w.add(at)), x, c, u, &mut chains);
            }
        }
        b += UNROLL;
        if b.is_multiple_of(RUN * UNROLL) {
            chains.fold();
        }
    }
    if x.len() > whole * L::BLOCK {
        let at = whole * L::BLOCK;
        let mut tails = [[bf16::ZERO; 64]; R];
        for r in 0..R {
            tails[r] = all.tail::<L>(row + r);
            w[r] = tails[r].as_ptr();
        }
        // SAFETY: tails are 64 values; `x` and `c` are padded to whole blocks.
        unsafe {
            let (x, c) = (x.as_ptr().add(at), c.as_ptr().add(at / 2));
            step::<L, R>(w, x, c, whole % UNROLL, &mut chains);
        }
    }
    chains.fold();
    let mut out = [(0.0, 0.0); R];
    for r in 0..R {
        let [[a, b], [c, d]] = chains.outer[r];
        let y = L::sum(L::add(L::add(a, b), L::add(c, d)));
        let bound = L::sum(L::add(chains.bounds[r][0], chains.bounds[r][1]));
        out[r] = (y, bound * UNIT + FLOOR);
    }
    out
}

/// One block of `R` rows against one token.
///
/// # Safety
/// A block at each row and at `x`, half a block at `c`.
#[inline(always)]
unsafe fn step<L: Lanes, const R: usize>(
    w: [*const bf16; R],
    x: *const f32,
    c: *const f32,
    u: usize,
    chains: &mut Chains<L, R>,
) {
    // SAFETY: the caller's guarantee.
    let (first, second, weighted) = unsafe { (L::load(x), L::load(x.add(L::WIDTH)), L::load(c)) };
    for r in 0..R {
        // SAFETY: the caller's guarantee.
        let p = unsafe { L::packed(w[r]) };
        let (even, odd) = (L::even(p), L::odd(p));
        let [low, high] = &mut chains.sums[r][u];
        *low = L::fma(even, first, *low);
        *high = L::fma(odd, second, *high);
        let magnitude = L::add(L::abs(even), L::abs(odd));
        chains.bounds[r][u] = L::fma(magnitude, weighted, chains.bounds[r][u]);
    }
}

/// The stored value, if all of `y - bound ..= y + bound` rounds to it.
#[inline(always)]
pub(super) fn settled(y: f32, bound: f32) -> Option<bf16> {
    let (low, high) = (store(y - bound), store(y + bound));
    (low.to_bits() == high.to_bits() && widen(low).is_finite()).then_some(low)
}

/// An output that stage 1 could not decide.
#[derive(Clone, Copy)]
pub(super) struct Doubt {
    pub(super) row: usize,
    pub(super) token: u32,
    /// At least the absolute sum of its products.
    pub(super) magnitude: f32,
}
