//! Stage 2: f64 sums with a proven bound; what they cannot decide goes to the exact stage.

use half::bf16;

use super::fast::{AHEAD, Doubt};
use super::{Sink, Task, short};
use crate::bound::{decide_bf16, decide_f32, wide_bound};
use crate::cpu::for_level;
use crate::cpu::lanes::{Lanes, QUARTER_SCALE, prefetch};
use crate::exact::{grid, is_exact_in_f64};
use crate::round::{bf16_from_f64, widen};
use crate::{NonFinite, SimdLevel};

/// Tokens that share the widening of a row.
const TOGETHER: usize = 4;
/// Rows that share the widening of a token's inputs; four would not fit the registers.
const ROWS: usize = 2;

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

/// By token, so that its inputs stay in the first-level cache.
#[inline(always)]
fn settle_rows<L: Lanes>(
    task: &Task<'_>,
    weights: &[bf16],
    doubts: &mut Vec<Doubt>,
) -> Result<(), NonFinite> {
    let k = task.job.weights.cols();
    doubts.sort_unstable_by_key(|d| (d.token, d.row));
    short::settle::<L>(task, weights, doubts);
    for some in doubts.chunk_by(|a, b| a.token == b.token) {
        let token = some[0].token as usize;
        for some in some.chunks(ROWS) {
            let mut rows = [&weights[..0]; ROWS];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = &weights[some[i.min(some.len() - 1)].row * k..][..k];
            }
            let sums = rows_sums::<L>(task, &rows, some.len(), task.source(token));
            for (d, y) in some.iter().zip(sums) {
                // Infinity and NaN lead on to the exact stage.
                let absolute = f64::from(d.magnitude);
                match decide_bf16(y, wide_bound(roundings::<L>(k), absolute)) {
                    Some(v) => task.sink.put_bf16(token, d.row, v),
                    None => {
                        let exact = is_exact(task, &weights[d.row * k..][..k], token, absolute);
                        // A sum beyond the format is an error, which the last stage names.
                        match Some(bf16_from_f64(y)).filter(|v| exact && v.is_finite()) {
                            Some(v) => task.sink.put_bf16(token, d.row, v),
                            None => task.exact(d.row, token)?,
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// The f64 sums of up to `ROWS` rows against one token.
#[inline(always)]
fn rows_sums<L: Lanes>(
    task: &Task<'_>,
    rows: &[&[bf16]; ROWS],
    count: usize,
    source: usize,
) -> [f64; ROWS] {
    let input = task.job.input;
    if count == 1 && input.has_few() {
        return [dot::<L, 1>(rows[0], [input.wide(source)])[0], 0.0];
    }
    let [[a], [b]] = plain::<L, ROWS, 1>(*rows, [input.raw(source)]);
    [a, b]
}

/// The f64 sums of one row against up to `TOGETHER` tokens.
#[inline(always)]
fn sums<L: Lanes>(task: &Task<'_>, w: &[bf16], tokens: &[u32]) -> [f64; TOGETHER] {
    let input = task.job.input;
    let mut sources = [0usize; TOGETHER];
    for (i, s) in sources.iter_mut().enumerate() {
        *s = task.source(tokens[i.min(tokens.len() - 1)] as usize);
    }
    let [p, q, r, s] = sources;
    let (one, two) = (tokens.len() == 1, tokens.len() == 2);
    let mut out = [0.0; TOGETHER];
    match input.has_few() {
        true if one => out[..1].copy_from_slice(&dot::<L, 1>(w, [input.wide(p)])),
        true if two => out[..2].copy_from_slice(&dot::<L, 2>(w, [p, q].map(|s| input.wide(s)))),
        true => out = dot::<L, TOGETHER>(w, [p, q, r, s].map(|s| input.wide(s))),
        false if one => out[..1].copy_from_slice(&plain::<L, 1, 1>([w], [input.raw(p)])[0]),
        false if two => {
            let x = [p, q].map(|s| input.raw(s));
            out[..2].copy_from_slice(&plain::<L, 1, 2>([w], x)[0]);
        }
        false => out = plain::<L, 1, TOGETHER>([w], [p, q, r, s].map(|s| input.raw(s)))[0],
    }
    out
}

/// f64 dot products of `R` bf16 rows with `C` inputs that are still bf16: a quarter of the memory
/// of `dot`, where many rows or tokens take turns in the cache. Shifts widen both sides.
#[inline(always)]
fn plain<L: Lanes, const R: usize, const C: usize>(
    w: [&[bf16]; R],
    x: [&[bf16]; C],
) -> [[f64; C]; R] {
    let k = w[0].len();
    assert!(x.iter().chain(&w).all(|v| v.len() == k));
    let mut sums = [[[L::zero64(); 4]; C]; R];
    let whole = k / L::BLOCK;
    let (mut rows, mut inputs) = ([L::packed_zero(); R], [L::packed_zero(); C]);
    for at in (0..whole).map(|b| b * L::BLOCK) {
        for r in 0..R {
            // SAFETY: a whole block inside the row.
            rows[r] = unsafe { L::packed(w[r].as_ptr().add(at)) };
        }
        for c in 0..C {
            // SAFETY: a whole block inside the input.
            inputs[c] = unsafe { L::packed(x[c].as_ptr().add(at)) };
        }
        add_products::<L, R, C>(rows, inputs, &mut sums);
    }
    // Apart from the loop: a copy in it would keep the sums out of registers.
    if whole * L::BLOCK < k {
        for r in 0..R {
            rows[r] = short::block::<L>(&w[r][whole * L::BLOCK..]);
        }
        for c in 0..C {
            inputs[c] = short::block::<L>(&x[c][whole * L::BLOCK..]);
        }
        add_products::<L, R, C>(rows, inputs, &mut sums);
    }
    let mut out = [[0.0f64; C]; R];
    for r in 0..R {
        for c in 0..C {
            let [a, b, d, e] = sums[r][c];
            out[r][c] = L::sum64(L::add64(L::add64(a, b), L::add64(d, e)));
        }
    }
    out
}

/// One block of `R` rows against one of `C` inputs.
#[inline(always)]
fn add_products<L: Lanes, const R: usize, const C: usize>(
    rows: [L::Packed; R],
    inputs: [L::Packed; C],
    sums: &mut [[[L::F64; 4]; C]; R],
) {
    let scale = L::splat64(QUARTER_SCALE);
    for c in 0..C {
        let mut x = L::quarters(inputs[c]);
        for x in &mut x {
            // Once for this side and once for the other; powers of two are exact.
            *x = L::fma64(L::fma64(*x, scale, L::zero64()), scale, L::zero64());
        }
        for r in 0..R {
            let w = L::quarters(rows[r]);
            for j in 0..4 {
                sums[r][c][j] = L::fma64(w[j], x[j], sums[r][c][j]);
            }
        }
    }
}

/// Additions that a product passes through in `dot` and in `plain`.
#[inline(always)]
pub(crate) fn roundings<L: Lanes>(k: usize) -> usize {
    // One addition of a chain for each block, a tree of four, a tree over the lanes, a ragged end.
    k.div_ceil(L::BLOCK) + 3 + L::DEPTH
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
        prefetch(w.as_ptr().wrapping_add(b * L::BLOCK + AHEAD));
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
    let row = |row: usize| &weights[row * k..][..k];
    let mut next = task.rows.start;
    if tokens == 1 && task.job.input.has_few() {
        while next + 1 < task.rows.end {
            let source = task.source(0);
            let sums = pair::<L>([row(next), row(next + 1)], task.job.input.wide(source));
            for (r, y) in sums.into_iter().enumerate() {
                put_f32::<L>(task, row(next + r), next + r, 0, y)?;
            }
            next += 2;
        }
    }
    for r in next..task.rows.end {
        for t in (0..tokens).step_by(TOGETHER) {
            let count = (tokens - t).min(TOGETHER);
            let list: [u32; TOGETHER] = std::array::from_fn(|i| (t + i) as u32);
            let sums = sums::<L>(task, row(r), &list[..count]);
            for (i, y) in sums.into_iter().take(count).enumerate() {
                put_f32::<L>(task, row(r), r, t + i, y)?;
            }
        }
    }
    Ok(())
}

/// Decides one f32 output from its f64 sum.
#[inline(always)]
fn put_f32<L: Lanes>(
    task: &Task<'_>,
    w: &[bf16],
    row: usize,
    t: usize,
    y: f64,
) -> Result<(), NonFinite> {
    let absolute = f64::from(largest::<L>(w)) * task.job.input.total(task.source(t));
    match decide_f32(y, wide_bound(roundings::<L>(w.len()), absolute)) {
        Some(v) => task.sink.put_f32(t, row, v),
        // Most often a tie of a sum that is short enough to be exact.
        None if (y as f32).is_finite() && is_exact(task, w, t, absolute) => {
            task.sink.put_f32(t, row, y as f32);
        }
        None => task.exact(row, t)?,
    }
    Ok(())
}

/// Whether no addition of this output's f64 sum rounded.
#[inline(always)]
fn is_exact(task: &Task<'_>, w: &[bf16], t: usize, absolute: f64) -> bool {
    is_exact_in_f64(grid(w) + task.job.input.grid(task.source(t)), absolute)
}

/// f64 dot products of two bf16 rows with one operand in quarters: f64 inputs are four times the
/// bytes of the weights, so two rows share each load.
#[inline(always)]
fn pair<L: Lanes>(w: [&[bf16]; 2], x: &[f64]) -> [f64; 2] {
    let k = w[0].len();
    let whole = k / L::BLOCK;
    assert!(w[1].len() == k && x.len() >= whole * L::BLOCK);
    let mut sums = [[L::zero64(); 4]; 2];
    for b in 0..whole {
        let at = b * L::BLOCK;
        for r in 0..2 {
            prefetch(w[r].as_ptr().wrapping_add(at + AHEAD));
        }
        // SAFETY: block b lies inside both rows and, as asserted, inside the operand.
        unsafe {
            let x = x.as_ptr().add(at);
            let [p, q] = [L::packed(w[0].as_ptr().add(at)), L::packed(w[1].as_ptr().add(at))];
            let (p, q) = (L::quarters(p), L::quarters(q));
            for j in 0..4 {
                let v = L::load64(x.add(j * L::WIDTH / 2));
                sums[0][j] = L::fma64(p[j], v, sums[0][j]);
                sums[1][j] = L::fma64(q[j], v, sums[1][j]);
            }
        }
    }
    let mut out = [0.0f64; 2];
    for r in 0..2 {
        let [a, b, c, d] = sums[r];
        out[r] = L::sum64(L::add64(L::add64(a, b), L::add64(c, d)));
        let rest = whole * L::BLOCK;
        if rest < k {
            out[r] += dot::<L, 1>(&w[r][rest..], [&x[rest..]])[0];
        }
    }
    out
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
pub(super) fn rows_f32_weights<L: Lanes>(
    task: &Task<'_>,
    weights: &[f32],
) -> Result<(), NonFinite> {
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
