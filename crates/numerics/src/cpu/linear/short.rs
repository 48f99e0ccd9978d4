//! Between stage 1 and stage 2: f32 sums of four products, added up in f64.
//!
//! What stage 1 leaves in doubt mostly needs only a few bits more. A sum of two pairs passes each
//! product through two roundings, where a chain of stage 1 has a dozen; f64 adds nothing to that
//! which matters. So the bound is `2 * 2^-24` of the absolute sum, at under half of the work of
//! f64 products: four conversions serve eight times as many products.

use half::bf16;

use super::Task;
use super::fast::{Doubt, FLOOR, UNIT};
use crate::bound::decide_bf16;
use crate::cpu::lanes::Lanes;

/// Roundings of a product: of its pair, and of the sum of two pairs. Those of the f64 sum are
/// below the slack of `UNIT`, and so is what the test in f64 rounds.
const ROUNDINGS: f32 = 2.0;
/// Rows that share the loads of a token's inputs.
const ROWS: usize = 2;

/// Decides what it can of the doubts, which are ordered by token, and keeps the others.
#[inline(always)]
pub(super) fn settle<L: Lanes>(task: &Task<'_>, weights: &[bf16], doubts: &mut Vec<Doubt>) {
    let mut kept = 0;
    let mut next = 0;
    while next < doubts.len() {
        let pair = next + 1 < doubts.len() && doubts[next].token == doubts[next + 1].token;
        let sums = if pair {
            sums::<L, ROWS>(task, weights, [&doubts[next], &doubts[next + 1]])
        } else {
            [sums::<L, 1>(task, weights, [&doubts[next]])[0], 0.0]
        };
        for y in sums.into_iter().take(1 + usize::from(pair)) {
            let doubt = doubts[next];
            let bound = f64::from(doubt.magnitude * (ROUNDINGS * UNIT) + FLOOR);
            match decide_bf16(y, bound) {
                Some(v) => task.sink.put_bf16(doubt.token as usize, doubt.row, v),
                None => {
                    doubts[kept] = doubt;
                    kept += 1;
                }
            }
            next += 1;
        }
    }
    doubts.truncate(kept);
}

/// The sums of rows against one token.
#[inline(always)]
fn sums<L: Lanes, const R: usize>(
    task: &Task<'_>,
    weights: &[bf16],
    doubts: [&Doubt; R],
) -> [f64; R] {
    let k = task.job.weights.cols();
    // Still bf16: the second-level cache binds here, and two shifts cost less than twice the bytes.
    let x = task.job.input.raw(task.source(doubts[0].token as usize));
    let mut rows = [&weights[..0]; R];
    for r in 0..R {
        rows[r] = &weights[doubts[r].row * k..][..k];
    }
    let whole = k / L::BLOCK;
    assert!(x.len() == k);
    let mut totals = [[L::zero64(); 2]; R];
    let mut b = 0;
    while b + 1 < whole {
        let at = b * L::BLOCK;
        // SAFETY: two whole blocks at `at` inside the inputs and every row.
        unsafe {
            let x = x.as_ptr().add(at);
            let (p, q) = (L::packed(x), L::packed(x.add(L::BLOCK)));
            let x = [L::even(p), L::odd(p), L::even(q), L::odd(q)];
            for r in 0..R {
                let w = rows[r].as_ptr().add(at);
                let (a, b) = (L::packed(w), L::packed(w.add(L::BLOCK)));
                let first = L::fma(L::odd(a), x[1], L::mul(L::even(a), x[0]));
                let second = L::fma(L::odd(b), x[3], L::mul(L::even(b), x[2]));
                fold::<L>(&mut totals[r], L::add(first, second));
            }
        }
        b += 2;
    }
    while b * L::BLOCK < k {
        let x = block::<L>(&x[b * L::BLOCK..]);
        for r in 0..R {
            let a = block::<L>(&rows[r][b * L::BLOCK..]);
            let even = L::mul(L::even(a), L::even(x));
            fold::<L>(&mut totals[r], L::fma(L::odd(a), L::odd(x), even));
        }
        b += 1;
    }
    let mut out = [0.0; R];
    for r in 0..R {
        out[r] = L::sum64(L::add64(totals[r][0], totals[r][1]));
    }
    out
}

#[inline(always)]
fn fold<L: Lanes>(totals: &mut [L::F64; 2], sums: L::F32) {
    let [low, high] = L::halves(sums);
    *totals = [L::add64(totals[0], low), L::add64(totals[1], high)];
}

/// The first block of `values`, padded with zeros where they are fewer.
#[inline(always)]
pub(super) fn block<L: Lanes>(values: &[bf16]) -> L::Packed {
    let mut padded = [bf16::ZERO; 64];
    let count = values.len().min(L::BLOCK);
    padded[..count].copy_from_slice(&values[..count]);
    // SAFETY: the copy is 64 values.
    unsafe { L::packed(padded.as_ptr()) }
}
