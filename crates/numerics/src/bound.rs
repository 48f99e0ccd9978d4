//! From an approximation and a proven bound to a correctly rounded value, or to "in doubt".
//!
//! A fast path computes `y` with `|y - exact| <= e`. If both ends of the interval round to the
//! same value, rounding being monotonic, the exact sum rounds to it too.

use half::bf16;

use crate::round::bf16_from_f64;

/// Unit roundoff of f64.
pub const U64: f64 = 1.0 / 9_007_199_254_740_992.0;
/// Unit roundoff of f32.
pub const U32: f32 = 1.0 / 16_777_216.0;

/// Bound on the error of an f64 sum of exact products, given their absolute sum.
///
/// `roundings` is the largest number of additions that any product passes through. Two more are
/// for the subtraction and addition of the bound itself, and the factor covers the second order
/// and the error of `absolute_sum`, which may be computed in f32 with up to 2^16 roundings.
#[inline(always)]
pub fn wide_bound(roundings: usize, absolute_sum: f64) -> f64 {
    (roundings + 3) as f64 * U64 * 1.02 * absolute_sum
}

/// The bf16 that every real number within `bound` of `y` rounds to, if there is one.
#[inline(always)]
pub fn decide_bf16(y: f64, bound: f64) -> Option<bf16> {
    let (low, high) = (bf16_from_f64(y - bound), bf16_from_f64(y + bound));
    let agreed = low.to_bits() == high.to_bits() && low.is_finite();
    agreed.then_some(low)
}

/// The f32 that every real number within `bound` of `y` rounds to, if there is one.
#[inline(always)]
pub fn decide_f32(y: f64, bound: f64) -> Option<f32> {
    let (low, high) = ((y - bound) as f32, (y + bound) as f32);
    let agreed = low.to_bits() == high.to_bits() && low.is_finite();
    agreed.then_some(low)
}
