//! The delta rule: rows of the state are independent, so each is carried through the whole chunk
//! while it lies in cache; the two sums are f64 with a bound.

use half::bf16;

use super::{Cpu, for_level};
use crate::NonFinite;
use crate::bound::{decide_bf16, decide_f32, wide_bound};
use crate::cpu::lanes::Lanes;
use crate::exact::Unrounded;
use crate::op::delta_rule::{DeltaInputs, DeltaShape};
use crate::round::widen;

/// Rows of the state that one thread takes at a time.
const ROWS: usize = 16;

/// One block of rows of one value head.
struct Block<'a> {
    shape: DeltaShape,
    inputs: &'a DeltaInputs<'a>,
    /// Largest |k| and |q| per token and key head.
    peaks: &'a [(f32, f32)],
    head: usize,
    first: usize,
    /// `[rows, key_dim]`.
    state: &'a mut [f32],
    /// `[rows, tokens]`.
    out: Vec<bf16>,
    done: Result<(), NonFinite>,
}

pub(crate) fn run(
    cpu: &Cpu,
    shape: DeltaShape,
    inputs: &DeltaInputs<'_>,
    state: &mut [f32],
    out: &mut [bf16],
) -> Result<(), NonFinite> {
    let tokens = inputs.beta.len() / shape.value_heads;
    let peak = |v: &[f32]| v.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let peaks: Vec<(f32, f32)> = (inputs.k.chunks(shape.key_dim))
        .zip(inputs.q.chunks(shape.key_dim))
        .map(|(k, q)| (peak(k), peak(q)))
        .collect();
    let mut blocks = Vec::new();
    for (head, state) in state.chunks_mut(shape.value_dim * shape.key_dim).enumerate() {
        for (i, state) in state.chunks_mut(ROWS * shape.key_dim).enumerate() {
            let rows = state.len() / shape.key_dim;
            blocks.push(Block {
                shape,
                inputs,
                peaks: &peaks,
                head,
                first: i * ROWS,
                state,
                out: vec![bf16::ZERO; rows * tokens],
                done: Ok(()),
            });
        }
    }
    let level = cpu.level();
    let work = |block: &mut Block<'_>| {
        block.done = for_level!(level, rows(block: &mut Block<'_>) -> Result<(), NonFinite>);
    };
    if tokens * shape.state_len() < 1 << 14 {
        blocks.iter_mut().for_each(work);
    } else {
        cpu.each_mut(&mut blocks, work);
    }
    for block in blocks {
        block.done?;
        for (i, row) in block.out.chunks(tokens).enumerate() {
            let column = block.head * shape.value_dim + block.first + i;
            for (t, v) in row.iter().enumerate() {
                out[t * shape.value_heads * shape.value_dim + column] = *v;
            }
        }
    }
    Ok(())
}

#[inline(always)]
fn rows<L: Lanes>(block: &mut Block<'_>) -> Result<(), NonFinite> {
    let shape = block.shape;
    let key_head = block.head / (shape.value_heads / shape.key_heads);
    let tokens = block.inputs.beta.len() / shape.value_heads;
    for i in 0..block.state.len() / shape.key_dim {
        let row = block.first + i;
        let state = &mut block.state[i * shape.key_dim..][..shape.key_dim];
        for t in 0..tokens {
            let key = t * shape.key_heads + key_head;
            let k = &block.inputs.k[key * shape.key_dim..][..shape.key_dim];
            let q = &block.inputs.q[key * shape.key_dim..][..shape.key_dim];
            let gate = t * shape.value_heads + block.head;
            let failed = NonFinite { row: block.head * shape.value_dim + row, token: t };
            let (peak_k, peak_q) = block.peaks[key];
            let memory = decayed::<L>(state, k, block.inputs.decay[gate], peak_k);
            let memory = memory.ok_or(failed)?;
            let v = widen(block.inputs.v[gate * shape.value_dim + row]);
            let d = (v - memory) * block.inputs.beta[gate];
            let o = updated::<L>(state, k, q, d, peak_q).ok_or(failed)?;
            block.out[i * tokens + t] = o;
        }
    }
    Ok(())
}

/// `S = S*decay`, then `S_f32(S*k)`.
#[inline(always)]
fn decayed<L: Lanes>(state: &mut [f32], k: &[f32], decay: f32, peak: f32) -> Option<f32> {
    let factor = L::splat(decay);
    let (y, magnitude) =
        sweep::<L>(state, k, |s, _| L::mul(s, factor), |i, s: &mut [f32]| s[i] *= decay, k);
    let bound = wide_bound(roundings::<L>(k.len()), f64::from(magnitude) * f64::from(peak));
    decide_f32(y, bound).or_else(|| exact(state, k).to_f32())
}

/// `S = S + d*k` (one product, one sum), then `S_bf16(S*q)`.
#[inline(always)]
fn updated<L: Lanes>(state: &mut [f32], k: &[f32], q: &[f32], d: f32, peak: f32) -> Option<bf16> {
    let factor = L::splat(d);
    let (y, magnitude) = sweep::<L>(
        state,
        k,
        |s, k| L::add(s, L::mul(factor, k)),
        |i, s: &mut [f32]| s[i] += d * k[i],
        q,
    );
    let bound = wide_bound(roundings::<L>(q.len()), f64::from(magnitude) * f64::from(peak));
    decide_bf16(y, bound).or_else(|| exact(state, q).to_bf16())
}

/// Roundings of a product in `sweep`, with the few of a ragged end.
#[inline(always)]
fn roundings<L: Lanes>(n: usize) -> usize {
    n / L::WIDTH + L::DEPTH + 2 + n % L::WIDTH
}

/// Updates a row and sums it against `with` in f64; also returns `S |s|` in f32.
#[inline(always)]
fn sweep<L: Lanes>(
    state: &mut [f32],
    k: &[f32],
    vector: impl Fn(L::F32, L::F32) -> L::F32,
    scalar: impl Fn(usize, &mut [f32]),
    with: &[f32],
) -> (f64, f32) {
    let n = state.len();
    assert!(k.len() == n && with.len() == n);
    let whole = n / L::WIDTH;
    let (mut low, mut high, mut magnitude) = (L::zero64(), L::zero64(), L::zero());
    for b in 0..whole {
        let at = b * L::WIDTH;
        // SAFETY: vector b lies inside all three slices, which have equal lengths.
        unsafe {
            let s = vector(L::load(state.as_ptr().add(at)), L::load(k.as_ptr().add(at)));
            L::store(state.as_mut_ptr().add(at), s);
            magnitude = L::add(magnitude, L::abs(s));
            let [s0, s1] = L::halves(s);
            let [w0, w1] = L::halves(L::load(with.as_ptr().add(at)));
            low = L::fma64(s0, w0, low);
            high = L::fma64(s1, w1, high);
        }
    }
    let mut y = L::sum64(L::add64(low, high));
    let mut total = L::sum(magnitude);
    for i in whole * L::WIDTH..n {
        scalar(i, state);
        y += f64::from(state[i]) * f64::from(with[i]);
        total += state[i].abs();
    }
    (y, total)
}

fn exact(state: &[f32], with: &[f32]) -> Unrounded {
    Unrounded::products(state.iter().copied().zip(with.iter().copied()))
}
