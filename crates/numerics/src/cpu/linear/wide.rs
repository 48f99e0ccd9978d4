//! Stage 2: f64 sums with a proven bound; what they cannot decide goes to the exact stage.

use half::bf16;

use super::fast::Doubt;
use super::{Sink, Task};
use crate::cpu::for_level;
use crate::{NonFinite, SimdLevel};
use crate::bound::{U32, decide_bf16, decide_f32, wide_bound};
use crate::cpu::lanes::Lanes;
use crate::round::widen;

/// Tokens that share the widening of a row.
const TOGETHER: usize = 4;

/// Decides the doubtful outputs of a few rows, and empties the list.
///
/// Out of line and compiled for the level on its own, so that stage 1 stays small.
#[inline(never)]
pub(super) fn settle_all(
    level: SimdLevel,
    task: &Task<'_>,
    weights: &[bf16],
    doubts: &mut Vec<Doubt>,
) -> Result<(), NonFinite> {
    let result = for_level!(
        level,
        settle_rows(task: &Task<'_>, weights: &[bf16], doubts: &mut Vec<Doubt>)
            -> Result<(), NonFinite>
    );
    doubts.clear();
    result
}

#[inline(always)]
fn settle_rows<L: Lanes>(
    task: &Task<'_>,
    weights: &[bf16],
    doubts: &mut Vec<Doubt>,
) -> Result<(), NonFinite> {
    doubts.sort_unstable_by_key(|d| (d.row, d.token));
    for row in doubts.chunk_by(|a, b| a.row == b.row) {
        for some in row.chunks(TOGETHER) {
            // A NaN bound (infinity times zero) says nothing: it must not be dropped by `max`.
            let bound = some.iter().fold(0.0f32, |most, d| {
                if d.bound.is_nan() { f32::INFINITY } else { most.max(d.bound) }
            });
            let mut tokens = [0u32; TOGETHER];
            for (t, d) in tokens.iter_mut().zip(some) {
                *t = d.token;
            }
            settle::<L>(task, weights, row[0].row, &tokens[..some.len()], f64::from(bound))?;
        }
    }
    Ok(())
}

/// Decides up to `TOGETHER` bf16 outputs of one row.
///
/// `fast_bound` is at least 2^-24 times the absolute sum of each one's products.
#[inline(always)]
fn settle<L: Lanes>(
    task: &Task<'_>,
    weights: &[bf16],
    row: usize,
    tokens: &[u32],
    fast_bound: f64,
) -> Result<(), NonFinite> {
    let k = task.job.weights.cols();
    let w = &weights[row * k..][..k];
    let bound = wide_bound(roundings::<L>(k), fast_bound / f64::from(U32));
    let sums = sums::<L>(task, w, tokens);
    for (t, y) in tokens.iter().zip(sums) {
        match decide_bf16(y, bound) {
            Some(v) => task.sink.put_bf16(*t as usize, row, v),
            None => task.exact(row, *t as usize)?,
        }
    }
    Ok(())
}

/// The f64 sums of one row against up to `TOGETHER` tokens.
#[inline(always)]
fn sums<L: Lanes>(task: &Task<'_>, w: &[bf16], tokens: &[u32]) -> [f64; TOGETHER] {
    let input = task.job.input;
    let operand = |i: usize| input.wide(task.source(tokens[i.min(tokens.len() - 1)] as usize));
    match tokens.len() {
        1 => {
            let [y] = dot::<L, 1>(w, [operand(0)]);
            [y, 0.0, 0.0, 0.0]
        }
        2 => {
            let [a, b] = dot::<L, 2>(w, [operand(0), operand(1)]);
            [a, b, 0.0, 0.0]
        }
        _ => dot::<L, TOGETHER>(w, std::array::from_fn(operand)),
    }
}

/// Additions that a product passes through in `dot`.
#[inline(always)]
pub(crate) fn roundings<L: Lanes>(k: usize) -> usize {
    // One chain per quarter, a tree of four, a tree over the lanes.
    k.div_ceil(L::BLOCK) + 2 + L::DEPTH
}

/// f64 dot products of a bf16 row with `C` operands in quarters.
#[inline(always)]
pub(crate) fn dot<L: Lanes, const C: usize>(w: &[bf16], x: [&[f64]; C]) -> [f64; C] {
    let whole = w.len() / L::BLOCK;
    let rest = &w[whole * L::BLOCK..];
    let needed = (whole + usize::from(!rest.is_empty())) * L::BLOCK;
    assert!(x.iter().all(|x| x.len() >= needed));
    let mut sums = [[L::zero64(); 4]; C];
    for b in 0..whole {
        // SAFETY: block b lies inside the row and, as asserted, inside each operand.
        unsafe {
            let p = L::packed(w.as_ptr().add(b * L::BLOCK));
            add_quarters::<L, C>(p, x.map(|x| x.as_ptr().add(b * L::BLOCK)), &mut sums);
        }
    }
    if !rest.is_empty() {
        let mut tail = [bf16::ZERO; 64];
        tail[..rest.len()].copy_from_slice(rest);
        // SAFETY: the tail is 64 values; the operands are padded to whole blocks.
        unsafe {
            let p = L::packed(tail.as_ptr());
            add_quarters::<L, C>(p, x.map(|x| x.as_ptr().add(whole * L::BLOCK)), &mut sums);
        }
    }
    let mut out = [0.0f64; C];
    for c in 0..C {
        let [p, q, r, s] = sums[c];
        out[c] = L::sum64(L::add64(L::add64(p, q), L::add64(r, s)));
    }
    out
}

/// # Safety
/// A block of f64 values at each `x`.
#[inline(always)]
unsafe fn add_quarters<L: Lanes, const C: usize>(
    p: L::Packed,
    x: [*const f64; C],
    sums: &mut [[L::F64; 4]; C],
) {
    let quarters = L::quarters(p);
    for c in 0..C {
        for j in 0..4 {
            // SAFETY: the caller's guarantee: four half-width vectors.
            let v = unsafe { L::load64(x[c].add(j * L::WIDTH / 2)) };
            sums[c][j] = L::fma64(quarters[j], v, sums[c][j]);
        }
    }
}

/// Outputs rounded to f32: f64 from the start, since f32 sums could never decide.
#[inline(always)]
pub(super) fn rows_to_f32<L: Lanes>(task: &Task<'_>, weights: &[bf16]) -> Result<(), NonFinite> {
    let k = task.job.weights.cols();
    let tokens = task.token_count();
    for row in task.rows.clone() {
        let w = &weights[row * k..][..k];
        let largest = f64::from(largest::<L>(w));
        let mut t = 0;
        while t < tokens {
            let count = (tokens - t).min(TOGETHER);
            let mut list = [0u32; TOGETHER];
            for (i, token) in list.iter_mut().enumerate() {
                *token = (t + i) as u32;
            }
            let sums = sums::<L>(task, w, &list[..count]);
            for (i, y) in sums.into_iter().take(count).enumerate() {
                let absolute = largest * task.job.input.total(task.source(t + i));
                match decide_f32(y, wide_bound(roundings::<L>(k), absolute)) {
                    Some(v) => task.sink.put_f32(t + i, row, v),
                    None => task.exact(row, t + i)?,
                }
            }
            t += count;
        }
    }
    Ok(())
}

/// The largest magnitude of a row.
#[inline(always)]
fn largest<L: Lanes>(w: &[bf16]) -> f32 {
    let whole = w.len() / L::BLOCK;
    let mut most = L::packed_zero();
    for b in 0..whole {
        // SAFETY: block b lies inside the row.
        most = L::larger(most, unsafe { L::packed(w.as_ptr().add(b * L::BLOCK)) });
    }
    let rest = w[whole * L::BLOCK..].iter().map(|v| widen(*v).abs());
    rest.fold(L::largest(most), |a, b| if b > a || b.is_nan() { b } else { a })
}

/// f32 weights: products of f32 and bf16 are exact in f64, so the same two stages serve.
#[inline(always)]
pub(super) fn rows_f32_weights<L: Lanes>(task: &Task<'_>, weights: &[f32]) -> Result<(), NonFinite> {
    let k = task.job.weights.cols();
    for row in task.rows.clone() {
        let w = &weights[row * k..][..k];
        for t in 0..task.token_count() {
            let (y, absolute) = mixed_dot(w, task.job.input.raw(task.source(t)));
            let bound = wide_bound(k.div_ceil(8) + 3, absolute);
            let decided = match task.sink {
                Sink::Bf16 { .. } => {
                    decide_bf16(y, bound).map(|v| task.sink.put_bf16(t, row, v)).is_some()
                }
                Sink::F32 { .. } => {
                    decide_f32(y, bound).map(|v| task.sink.put_f32(t, row, v)).is_some()
                }
            };
            if !decided {
                task.exact(row, t)?;
            }
        }
    }
    Ok(())
}

/// f64 sum and absolute sum of exact products, eight chains and a tree.
#[inline(always)]
fn mixed_dot(w: &[f32], x: &[bf16]) -> (f64, f64) {
    let (mut sum, mut absolute) = ([0.0f64; 8], [0.0f64; 8]);
    for (w, x) in w.chunks(8).zip(x.chunks(8)) {
        for (i, (w, x)) in w.iter().zip(x).enumerate() {
            let p = f64::from(*w) * f64::from(widen(*x));
            sum[i] += p;
            absolute[i] += p.abs();
        }
    }
    let tree = |a: [f64; 8]| ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
    (tree(sum), tree(absolute))
}
