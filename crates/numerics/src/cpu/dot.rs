//! f64 chains for plain vectors; `None` means that the rounding is in doubt.

use half::bf16;

use super::{SimdLevel, for_level};
use crate::bound::{decide_f32, wide_bound};
use crate::cpu::lanes::Lanes;
use crate::round::widen;

/// Independent chains, so that the additions overlap and fill vectors.
const CHAINS: usize = 16;

/// `S_f32(x * x)`.
pub(crate) fn squares(level: SimdLevel, x: &[bf16]) -> Option<f32> {
    let y = for_level!(level, squares_in(x: &[bf16]) -> f64);
    decide_f32(y, wide_bound(x.len().div_ceil(CHAINS) + 4, y))
}

#[inline(always)]
fn squares_in<L: Lanes>(x: &[bf16]) -> f64 {
    chains(x, |v| f64::from(widen(v)) * f64::from(widen(v)))
}

/// `S_f32(x)`.
pub(crate) fn sum(level: SimdLevel, x: &[f32]) -> Option<f32> {
    let (y, absolute) = for_level!(level, sum_in(x: &[f32]) -> (f64, f64));
    decide_f32(y, wide_bound(x.len().div_ceil(CHAINS) + 4, absolute))
}

#[inline(always)]
fn sum_in<L: Lanes>(x: &[f32]) -> (f64, f64) {
    (chains(x, f64::from), chains(x, |v| f64::from(v.abs())))
}

/// The sum of `f(x)` over `CHAINS` chains and a tree of depth 4.
#[inline(always)]
fn chains<T: Copy>(x: &[T], f: impl Fn(T) -> f64) -> f64 {
    let mut sums = [0.0f64; CHAINS];
    let mut whole = x.chunks_exact(CHAINS);
    for part in &mut whole {
        for (s, v) in sums.iter_mut().zip(part) {
            *s += f(*v);
        }
    }
    for (s, v) in sums.iter_mut().zip(whole.remainder()) {
        *s += f(*v);
    }
    let mut n = CHAINS / 2;
    while n > 0 {
        for i in 0..n {
            sums[i] += sums[i + n];
        }
        n /= 2;
    }
    sums[0]
}
