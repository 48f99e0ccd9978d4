//! e^x: the binary64 fast path, the fixed-point path, and the constants the SIMD paths share.
//!
//! Fast path. k = round(x / ln 2), r = x - k*LN2_HI - k*LN2_LO, p = sum of r^j / j! to j = 11.
//! - |k| <= 152 < 2^8 and LN2_HI is a multiple of 2^-44 below 1, so k*LN2_HI is exact; x is a
//!   multiple of 2^-25 where k != 0, so x - k*LN2_HI is exact too. The error of r is at most
//!   2^-55 (its rounding) + 2^-88 (k*LN2_LO and the constant): relative error of e^r < 2^-54.9.
//! - |r| <= 0.34658: the truncation is below r^12/12! * 1.03 / e^r < 9.2e-15 < 2^-46.6 relative.
//! - Any scheme with n = 24 roundings on a term (ours has fewer, with or without fma) errs by at
//!   most 24*2^-53*e^|r|, relative to e^r at most 24*2^-53*2.0001 < 2^-47.4.
//!
//! Together below 2^-45.9; the two products with 1 -+ 2^-45 add 2^-53 each; 2^-45 covers all.

use super::fixed::{Unrounded, decompose, mul_high};

/// Above this, e^x rounds to infinity (e^89 > 2^128); below its partner, to zero (< 2^-150).
pub(super) const OVERFLOW: f32 = 89.0;
pub(super) const UNDERFLOW: f32 = -104.0;

pub(super) const INV_LN2: f64 = f64::from_bits(0x3ff7_1547_652b_82fe);
/// The leading 44 bits of ln 2.
pub(super) const LN2_HI: f64 = f64::from_bits(0x3fe6_2e42_fefa_3800);
/// ln 2 - LN2_HI, rounded.
pub(super) const LN2_LO: f64 = f64::from_bits(0x3d2e_f357_93c7_6730);
/// 1.5 * 2^52: adding it rounds to an integer and leaves that integer in the low bits.
pub(super) const ROUNDER: f64 = 6_755_399_441_055_744.0;
/// 1 -+ 2^-45, the ends of the interval that holds the exact value, relative to the computed one.
pub(super) const BELOW: f64 = 1.0 - 1.0 / (1u64 << 45) as f64;
pub(super) const ABOVE: f64 = 1.0 + 1.0 / (1u64 << 45) as f64;
/// 1 / j!; each factorial is exact in binary64, so each quotient is rounded once.
pub(super) const TAYLOR: [f64; 12] = [
    1.0,
    1.0,
    1.0 / 2.0,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5040.0,
    1.0 / 40320.0,
    1.0 / 362880.0,
    1.0 / 3628800.0,
    1.0 / 39916800.0,
];

/// The correctly rounded e^x; NaN gives `f32::NAN`, -inf gives +0, +inf gives +inf.
#[inline]
pub fn exp32(x: f32) -> f32 {
    match exp32_fast(x) {
        Some(y) => y,
        None => unrounded(x).round(),
    }
}

/// The fast path of `exp32` alone: `None` where it cannot decide the rounding.
#[inline]
pub fn exp32_fast(x: f32) -> Option<f32> {
    if !(UNDERFLOW..=OVERFLOW).contains(&x) {
        return Some(saturated(x));
    }
    let [below, above] = enclosure(x);
    (below as f32 == above as f32).then_some(above as f32)
}

/// Two f64 around e^x, for x in [-104, 89].
#[inline]
pub(super) fn enclosure(x: f32) -> [f64; 2] {
    let x = f64::from(x);
    let shifted = x * INV_LN2 + ROUNDER;
    let k = shifted - ROUNDER;
    let r = (x - k * LN2_HI) - k * LN2_LO;
    let p = exp_reduced(r);
    // The integer k sits in the low bits of `shifted`: adding it to the exponent scales by 2^k.
    let k_exponent = shifted.to_bits() << 52;
    [BELOW, ABOVE].map(|end| p * f64::from_bits(end.to_bits().wrapping_add(k_exponent)))
}

fn saturated(x: f32) -> f32 {
    if x.is_nan() {
        f32::NAN
    } else if x > 0.0 {
        f32::INFINITY
    } else {
        0.0
    }
}

#[inline]
fn exp_reduced(r: f64) -> f64 {
    let c = &TAYLOR;
    let (r2, r4) = (r * r, (r * r) * (r * r));
    let low = (c[0] + c[1] * r) + r2 * (c[2] + c[3] * r);
    let middle = (c[4] + c[5] * r) + r2 * (c[6] + c[7] * r);
    let high = (c[8] + c[9] * r) + r2 * (c[10] + c[11] * r);
    low + r4 * (middle + r4 * high)
}

/// ln 2 in units of 2^-120.
pub(super) const LN2_Q120: i128 = 0x00b1_7217_f7d1_cf79_abc9_e3b3_9803_f2f7;
const ONE_Q120: i128 = 1 << 120;

/// e^x for x in [-104, 89], in units of 2^-120.
///
/// x truncated errs by 1 unit and k*ln 2 by 76: r errs by 77. The series stops below 2^-121; a
/// step errs by 2 units and shrinks what it inherits by |r|/n < 0.36, so p errs by
/// 77*1.42 + 4 < 2^7 units, and p > 0.7: relative error < 2^-112.
#[cold]
#[inline(never)]
pub(super) fn unrounded(x: f32) -> Unrounded {
    let k = (f64::from(x) * INV_LN2 + ROUNDER) - ROUNDER;
    let k = k as i32;
    let r = q120(x) - i128::from(k) * LN2_Q120;
    let mut p = ONE_Q120;
    for n in (1..=26).rev() {
        p = ONE_Q120 + mul_q120(r, p) / n;
    }
    Unrounded { negative: false, mantissa: p as u128, exponent: k - 120 }
}

/// x in units of 2^-120, truncated; |x| <= 104.
fn q120(x: f32) -> i128 {
    let (significand, exponent) = decompose(x);
    let shift = exponent + 120;
    let magnitude =
        if shift >= 0 { significand << shift } else { significand >> (-shift).min(127) };
    if x < 0.0 { -(magnitude as i128) } else { magnitude as i128 }
}

/// a * b for a signed a below 1 in magnitude and a b in [0, 2).
fn mul_q120(a: i128, b: i128) -> i128 {
    let magnitude = mul_high(a.unsigned_abs() << 4, b.unsigned_abs() << 4) as i128;
    if a < 0 { -magnitude } else { magnitude }
}
