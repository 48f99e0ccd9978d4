//! ln(1 + x): the binary64 fast path and the fixed-point path.
//!
//! Both use ln m = 2 atanh(s), s = (m-1)/(m+1), for m in about [1/sqrt 2, sqrt 2], where
//! |s| < 0.1717 and s^2 < 0.0295: 2s * g, g = sum of s^2j / (2j+1).
//!
//! Fast path, u = 2^-53:
//! - Near zero, m = 1 + x and s = x/(2+x): two roundings, so s errs by 2u relative. g stops at
//!   j = 9, truncation 0.0295^10/21*1.04 < 2^-55; at most 30 roundings reach a term. All terms
//!   are positive, so the result errs by less than 36u < 2^-47.8, however small x is.
//! - Elsewhere 1 + x = 2^k m; rounding 1 + x costs u absolute. |ln(1+x)| > 0.346, and
//!   |k ln 2| <= 2|ln(1+x)|, so k*LN2 costs 4u, the series 37u, the sum u, 1 + x at most 3u, all
//!   relative: 45u < 2^-47.5.
//!
//! The test uses 2^-46, which leaves room for its own two roundings.

use super::exp::LN2_Q120;
use super::fixed::{Unrounded, decompose, divide_q127, mul_high};

const BELOW: f64 = 1.0 - 1.0 / (1u64 << 46) as f64;
const ABOVE: f64 = 1.0 + 1.0 / (1u64 << 46) as f64;
const LN2: f64 = f64::from_bits(0x3fe6_2e42_fefa_39ef);
/// Between these, 1 + x is within a factor of sqrt 2 of one.
const NEAR_ZERO_LOW: f32 = -0.292_5;
const NEAR_ZERO_HIGH: f32 = 0.414;

/// The correctly rounded ln(1 + x).
///
/// -0 gives -0, -1 gives -inf, anything below -1 and NaN give `f32::NAN`, +inf gives +inf.
#[inline]
pub fn log1p32(x: f32) -> f32 {
    match log1p32_fast(x) {
        Some(y) => y,
        None => unrounded(x).round(),
    }
}

/// The fast path of `log1p32` alone: `None` where it cannot decide the rounding.
#[inline]
pub fn log1p32_fast(x: f32) -> Option<f32> {
    if !(x > -1.0 && x < f32::INFINITY) || x == 0.0 {
        return Some(special(x));
    }
    let [below, above] = enclosure(x).map(|end| end as f32);
    (below == above).then_some(above)
}

/// Two f64 around ln(1 + x), the end nearer to zero first, for x in (-1, inf) other than 0.
#[inline]
pub(super) fn enclosure(x: f32) -> [f64; 2] {
    let y = if (NEAR_ZERO_LOW..NEAR_ZERO_HIGH).contains(&x) {
        let x = f64::from(x);
        log_ratio(x / (2.0 + x))
    } else {
        let (m, k) = split(1.0 + f64::from(x));
        f64::from(k) * LN2 + log_ratio((m - 1.0) / (m + 1.0))
    };
    [y * BELOW, y * ABOVE]
}

fn special(x: f32) -> f32 {
    if x == 0.0 || x == f32::INFINITY {
        x
    } else if x == -1.0 {
        f32::NEG_INFINITY
    } else {
        f32::NAN
    }
}

/// u = m * 2^k with m in (sqrt(1/2), sqrt 2], for a normal positive u.
#[inline]
fn split(u: f64) -> (f64, i32) {
    const FRACTION: u64 = (1 << 52) - 1;
    let k = (u.to_bits() >> 52) as i32 - 1023;
    let m = f64::from_bits((u.to_bits() & FRACTION) | 1.0f64.to_bits());
    if m > std::f64::consts::SQRT_2 { (m * 0.5, k + 1) } else { (m, k) }
}

/// ln((1+s)/(1-s)) for |s| < 0.1717.
#[inline]
fn log_ratio(s: f64) -> f64 {
    let t = s * s;
    let t2 = t * t;
    let t4 = t2 * t2;
    let low = (1.0 + t * (1.0 / 3.0)) + t2 * (1.0 / 5.0 + t * (1.0 / 7.0));
    let middle = (1.0 / 9.0 + t * (1.0 / 11.0)) + t2 * (1.0 / 13.0 + t * (1.0 / 15.0));
    let high = 1.0 / 17.0 + t * (1.0 / 19.0);
    (2.0 * s) * (low + t4 * (middle + t4 * high))
}

const ONE_Q125: u128 = 1 << 125;
const ONE_Q126: u128 = 1 << 126;

/// ln(1 + x) for x in (-1, inf) other than 0.
#[cold]
#[inline(never)]
pub(super) fn unrounded(x: f32) -> Unrounded {
    if (NEAR_ZERO_LOW..NEAR_ZERO_HIGH).contains(&x) { slow_near_zero(x) } else { slow_far(x) }
}

/// 2 * s * g with s = x/(2+x) as a quotient that keeps its relative precision.
///
/// The quotient is at least 2^124 and errs by 1 unit + the truncated denominator (2^-125
/// relative); g errs by less than 8 units of 2^-126, the product by 1: relative error < 2^-120.
fn slow_near_zero(x: f32) -> Unrounded {
    let (significand, exponent) = decompose(x);
    // x = numerator * 2^(exponent - 101); s = quotient * 2^(exponent + 24 - 127).
    let numerator = significand << 101;
    let x_q125 = numerator >> (-(exponent + 24)).min(127) as u32;
    let two = 2 * ONE_Q125;
    let denominator = if x < 0.0 { two - x_q125 } else { two + x_q125 };
    let quotient = divide_q127(numerator, denominator);
    let s_q127 = quotient >> (-(exponent + 24)).min(127) as u32;
    let mantissa = mul_high(quotient, series_q126(s_q127) << 1);
    Unrounded { negative: x < 0.0, mantissa, exponent: exponent - 101 }
}

/// k * ln 2 + 2 * s * g in units of 2^-120.
///
/// k*ln 2 errs by 64 units, the rest by less than 2 (1 + x may lose a one below 2^-123 of it);
/// the sum is above 0.34 * 2^120 units: relative error < 2^-111.
fn slow_far(x: f32) -> Unrounded {
    let (u, exponent) = one_plus(x);
    let top = 127 - u.leading_zeros() as i32;
    let (mut m, mut k) = (u << (125 - top), top + exponent);
    let sqrt2_q125 = (std::f64::consts::SQRT_2 * (1u64 << 52) as f64) as u128 * (1 << 73);
    if m > sqrt2_q125 {
        (m, k) = (m >> 1, k + 1);
    }
    let s = divide_q127(m.abs_diff(ONE_Q125), m + ONE_Q125);
    let log_m = (mul_high(s, series_q126(s) << 1) >> 5) as i128;
    let log = i128::from(k) * LN2_Q120 + if m < ONE_Q125 { -log_m } else { log_m };
    Unrounded { negative: log < 0, mantissa: log.unsigned_abs(), exponent: -120 }
}

/// 1 + x as (integer below 2^125, exponent); exact but for x above 2^123.
fn one_plus(x: f32) -> (u128, i32) {
    let (significand, exponent) = decompose(x);
    if x < 0.0 {
        ((1u128 << -exponent) - significand, exponent)
    } else if exponent <= 0 {
        ((1u128 << -exponent) + significand, exponent)
    } else if exponent <= 100 {
        ((significand << exponent) + 1, 0)
    } else {
        (significand, exponent)
    }
}

/// g = sum of s^2j / (2j+1) in units of 2^-126; 0.0295^24/49 is below one unit.
fn series_q126(s_q127: u128) -> u128 {
    let t = mul_high(s_q127, s_q127);
    (0..24u128).rev().fold(0, |g, j| mul_high(t << 1, g << 1) + ONE_Q126 / (2 * j + 1))
}
