//! cos x and sin x: binary64 to |x| = 2^20, fixed point with a full 2/pi reduction beyond.
//!
//! Fast path, u = 2^-53. k = round(x * 2/pi), |k| < 2^20; r = ((x - k*P1) - k*P2) - k*P3.
//! - P1 and P2 have 33 bits, so k*P1 and k*P2 are exact. Where k != 0, x and k*P1 are multiples
//!   of 2^-32 and their difference is below 1, so it is exact. The other two subtractions round
//!   by u each, k*P3 and the constants by 2^-97 together; |r| >= 2^-40 is tested, so r errs by
//!   less than 2^-51.8 relative. |r| < pi/4 + 2^-30.
//! - sin r = r + r^3*(...) to r^15: truncation below 2^-53.7 relative; at most 20 roundings on a
//!   term, so 20u*sinh(|r|)/sin|r| < 20u*1.23. cos r to r^16: below 2^-58, 20u*1.88.
//! - The error of r passes to sin r and cos r with a factor of at most 1.
//!
//! Together below 2^-47.6; the test uses 2^-46, which leaves room for its own two roundings.

use super::fixed::{Unrounded, decompose, mul_high};

const BELOW: f64 = 1.0 - 1.0 / (1u64 << 46) as f64;
const ABOVE: f64 = 1.0 + 1.0 / (1u64 << 46) as f64;
/// 1.5 * 2^52: adding it rounds to an integer and leaves that integer in the low bits.
const ROUNDER: f64 = 6_755_399_441_055_744.0;
const FAST_MAX: f32 = (1 << 20) as f32;
const REDUCED_MIN: f64 = 1.0 / (1u64 << 40) as f64;
const TWO_OVER_PI: f64 = f64::from_bits(0x3fe4_5f30_6dc9_c883);
/// pi/2 = P1 + P2 + P3: bits 1 to 33, bits 34 to 66 (leading zeros included), and the rest.
const P1: f64 = f64::from_bits(0x3ff9_21fb_5440_0000);
const P2: f64 = f64::from_bits(0x3dd0_b461_1a60_0000);
const P3: f64 = f64::from_bits(0x3ba3_198a_2e03_7073);

/// The correctly rounded sin x; -0 gives -0, infinities and NaN give `f32::NAN`.
#[inline]
pub fn sin32(x: f32) -> f32 {
    match sin32_fast(x) {
        Some(y) => y,
        None => unrounded(x, 0).round(),
    }
}

/// The correctly rounded cos x; infinities and NaN give `f32::NAN`.
#[inline]
pub fn cos32(x: f32) -> f32 {
    match cos32_fast(x) {
        Some(y) => y,
        None => unrounded(x, 1).round(),
    }
}

/// The fast path of `sin32` alone: `None` where it cannot decide the rounding.
#[inline]
pub fn sin32_fast(x: f32) -> Option<f32> {
    if x == 0.0 { Some(x) } else { fast(x, 0) }
}

/// The fast path of `cos32` alone: `None` where it cannot decide the rounding.
#[inline]
pub fn cos32_fast(x: f32) -> Option<f32> {
    fast(x, 1)
}

/// sin(x + quarters * pi/2).
#[inline]
fn fast(x: f32, quarters: u64) -> Option<f32> {
    if !x.is_finite() {
        return Some(f32::NAN);
    }
    let [below, above] = enclosure(x, quarters)?.map(|end| end as f32);
    (below == above).then_some(above)
}

/// Two f64 around sin(x + quarters * pi/2), the end nearer to zero first, for a finite x.
///
/// `None` where x is too large or too near to a multiple of pi/2.
#[inline]
pub(super) fn enclosure(x: f32, quarters: u64) -> Option<[f64; 2]> {
    if x.abs() > FAST_MAX {
        return None;
    }
    let x = f64::from(x);
    let shifted = x * TWO_OVER_PI + ROUNDER;
    let k = shifted - ROUNDER;
    let r = ((x - k * P1) - k * P2) - k * P3;
    if k != 0.0 && r.abs() < REDUCED_MIN {
        return None;
    }
    // The integer k sits in the low bits of `shifted`, in two's complement.
    let quadrant = shifted.to_bits().wrapping_add(quarters);
    let y = if quadrant & 1 == 0 { sin_reduced(r) } else { cos_reduced(r) };
    let y = if quadrant & 2 == 0 { y } else { -y };
    Some([y * BELOW, y * ABOVE])
}

/// 1 / n!, rounded once; n! is exact in binary64 as far as n = 18.
const fn reciprocal_factorial(n: u32) -> f64 {
    let (mut product, mut i) = (1u64, 2);
    while i <= n {
        product *= i as u64;
        i += 1;
    }
    1.0 / product as f64
}

const C: [f64; 17] = {
    let (mut c, mut n) = ([0.0; 17], 0);
    while n < 17 {
        c[n] = reciprocal_factorial(n as u32);
        n += 1;
    }
    c
};

#[inline]
fn sin_reduced(r: f64) -> f64 {
    let t = r * r;
    let t2 = t * t;
    let low = (C[5] * t - C[3]) + t2 * (C[9] * t - C[7]);
    let high = (C[13] * t - C[11]) - t2 * C[15];
    r + (r * t) * (low + (t2 * t2) * high)
}

#[inline]
fn cos_reduced(r: f64) -> f64 {
    let t = r * r;
    let t2 = t * t;
    let low = (C[4] * t - C[2]) + t2 * (C[8] * t - C[6]);
    let high = (C[12] * t - C[10]) + t2 * (C[16] * t - C[14]);
    1.0 + t * (low + (t2 * t2) * high)
}

/// 2/pi in binary: three words of integer part (zero), then 384 bits of fraction.
const TWO_OVER_PI_WORDS: [u64; 9] = [
    0,
    0,
    0,
    0xa2f9_836e_4e44_1529,
    0xfc27_57d1_f534_ddc0,
    0xdb62_9599_3c43_9041,
    0xfe51_63ab_debb_c561,
    0xb724_6e3a_424d_d2e0,
    0x0649_2eea_09d1_921c,
];
const HALF_PI_Q127: u128 = 0xc90f_daa2_2168_c234_c4c6_628b_80dc_1cd1;
const ONE_Q126: u128 = 1 << 126;

/// sin(x + quarters * pi/2) for a finite x other than 0.
///
/// The reduced angle errs by less than 2^-104 relative (`reduce`), the series by less than 2^-120.
#[cold]
#[inline(never)]
pub(super) fn unrounded(x: f32, quarters: u32) -> Unrounded {
    let Angle { quadrant, negative, mantissa, exponent } = reduce(x);
    let t_q128 = mantissa >> (-(exponent + 128)).min(127) as u32;
    let square_q128 = mul_high(t_q128, t_q128);
    let quadrant = quadrant + quarters;
    let flipped = quadrant & 2 != 0;
    if quadrant & 1 == 1 {
        let mantissa = series_q126(square_q128, 1);
        return Unrounded { negative: flipped, mantissa, exponent: -126 };
    }
    let mantissa = mul_high(mantissa, series_q126(square_q128, 2) << 1);
    Unrounded { negative: flipped != negative, mantissa, exponent: exponent + 1 }
}

/// x = quadrant * pi/2 +- mantissa * 2^exponent, the mantissa with its top bit set, modulo 2 pi.
struct Angle {
    quadrant: u32,
    negative: bool,
    mantissa: u128,
    exponent: i32,
}

/// Splits x = s * 2^e exactly where |x| < 3/4, else through x * 2/pi modulo 4.
///
/// The low 192 bits of floor(2/pi * 2^(e+190)) times s, modulo 2^192, is x * 2/pi modulo 4 in
/// units of 2^-190, short by less than s < 2^24 units. The fraction has at most 60 leading
/// zeros (asserted), so it is above 2^129 units: relative error < 2^-105; the product with pi/2
/// adds 2^-126.
fn reduce(x: f32) -> Angle {
    let (significand, exponent) = decompose(x);
    if x.abs() < 0.75 {
        let (mantissa, exponent) = (significand << 104, exponent - 104);
        return Angle { quadrant: 0, negative: x < 0.0, mantissa, exponent };
    }
    let words = multiply(window(exponent + 190), significand as u64);
    let (quadrant, fraction_negative, fraction) = nearest_quarter(words);
    let zeros = leading_zeros(fraction);
    assert!(zeros <= 60 + 2, "an f32 this near to a multiple of pi/2 does not exist");
    // fraction * 2^zeros has its top bit at 2^191; its top 128 bits are in units of 2^-126.
    let turned = mul_high(top_128(fraction, zeros), HALF_PI_Q127);
    let shift = turned.leading_zeros();
    Angle {
        quadrant: if x < 0.0 { quadrant.wrapping_neg() & 3 } else { quadrant },
        negative: fraction_negative != (x < 0.0),
        mantissa: turned << shift,
        exponent: -125 - zeros as i32 - shift as i32,
    }
}

/// floor(2/pi * 2^n) modulo 2^192, most significant word first; 0 < n <= 294.
fn window(n: i32) -> [u64; 3] {
    [3, 2, 1].map(|j| {
        let start = (n - 64 * j + 192) as usize;
        let (word, bit) = (start / 64, start % 64);
        let pair =
            u128::from(TWO_OVER_PI_WORDS[word]) << 64 | u128::from(TWO_OVER_PI_WORDS[word + 1]);
        (pair << bit >> 64) as u64
    })
}

/// words * factor modulo 2^192.
fn multiply(words: [u64; 3], factor: u64) -> [u64; 3] {
    let (mut product, mut carry) = ([0; 3], 0u128);
    for i in (0..3).rev() {
        carry += u128::from(words[i]) * u128::from(factor);
        product[i] = carry as u64;
        carry >>= 64;
    }
    product
}

/// The nearest integer modulo 4 and the signed rest of a number in units of 2^-190.
fn nearest_quarter(words: [u64; 3]) -> (u32, bool, [u64; 3]) {
    let quadrant = (words[0] >> 62) as u32;
    let fraction = [words[0] & (u64::MAX >> 2), words[1], words[2]];
    if fraction[0] >> 61 == 0 {
        return (quadrant, false, fraction);
    }
    // 1 - fraction, short of one unit: the ones' complement within 190 bits.
    let rest = [!fraction[0] & (u64::MAX >> 2), !fraction[1], !fraction[2]];
    ((quadrant + 1) & 3, true, rest)
}

fn leading_zeros(words: [u64; 3]) -> u32 {
    if words[0] != 0 { words[0].leading_zeros() } else { 64 + words[1].leading_zeros() }
}

/// The top 128 bits of words * 2^shift; shift < 64.
fn top_128(words: [u64; 3], shift: u32) -> u128 {
    let high = u128::from(words[0]) << 64 | u128::from(words[1]);
    let low = u128::from(words[2]);
    high << shift | (low << shift >> 64)
}

/// 1 - t/(a(a+1)) + t^2/(a(a+1)(a+2)(a+3)) - ... in units of 2^-126, for t = square * 2^-128.
///
/// `first` = 1 gives cos, 2 gives sin(x)/x; t < 0.62, so 16 terms leave less than 2^-120.
fn series_q126(square_q128: u128, first: u128) -> u128 {
    (0..16u128).rev().fold(ONE_Q126, |sum, j| {
        let n = 2 * j + first;
        ONE_Q126 - mul_high(square_q128, sum) / (n * (n + 1))
    })
}
