//! e^x and SiLU on slices, eight binary64 lanes at a time (AVX-512F).
//!
//! The arithmetic is that of `exp.rs` with fma, which only removes roundings, so its bound holds.
//! A lane that it cannot decide is redone by the scalar function.

use super::exp::{
    ABOVE, BELOW, INV_LN2, LN2_HI, LN2_LO, OVERFLOW, ROUNDER, TAYLOR, UNDERFLOW, exp32,
};
use std::arch::x86_64::*;

const LANES: usize = 8;

/// Replaces every element by `exp32` of it.
#[target_feature(enable = "avx512f,avx2,fma")]
pub(super) fn exp_slice(values: &mut [f32]) {
    map_slice::<false>(values);
}

/// Replaces every element by `silu32` of it.
#[target_feature(enable = "avx512f,avx2,fma")]
pub(super) fn silu_slice(values: &mut [f32]) {
    map_slice::<true>(values);
}

#[inline]
#[target_feature(enable = "avx512f,avx2,fma")]
fn map_slice<const SILU: bool>(values: &mut [f32]) {
    let (blocks, tail) = values.as_chunks_mut::<LANES>();
    for block in blocks {
        map_block::<SILU>(block);
    }
    if !tail.is_empty() {
        let mut padded = [0.0; LANES];
        padded[..tail.len()].copy_from_slice(tail);
        map_block::<SILU>(&mut padded);
        tail.copy_from_slice(&padded[..tail.len()]);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx2,fma")]
fn map_block<const SILU: bool>(block: &mut [f32; LANES]) {
    // SAFETY: the reference covers eight f32, and loadu asks for no alignment.
    let x = unsafe { _mm256_loadu_ps(block.as_ptr()) };
    let y = if SILU { silu(x) } else { exp(x) };
    // SAFETY: as above, and the reference is exclusive.
    unsafe { _mm256_storeu_ps(block.as_mut_ptr(), y) };
}

#[inline]
#[target_feature(enable = "avx512f,avx2,fma")]
fn silu(x: __m256) -> __m256 {
    let negated = _mm256_xor_ps(x, _mm256_set1_ps(-0.0));
    let y = _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0), exp(negated)));
    let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(y, y);
    _mm256_blendv_ps(y, _mm256_set1_ps(f32::NAN), is_nan)
}

#[inline]
#[target_feature(enable = "avx512f,avx2,fma")]
fn exp(x: __m256) -> __m256 {
    let (below, above) = exp_interval(x);
    let decided = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_EQ_OQ>(below, above));
    if decided == 0xff { above } else { redo_undecided(x, above, !decided & 0xff) }
}

/// The f32 roundings of both ends of an interval that holds e^x; NaN, equal to nothing, for NaN.
#[inline]
#[target_feature(enable = "avx512f,avx2,fma")]
fn exp_interval(x: __m256) -> (__m256, __m256) {
    // Past the clamps the results are still 0 and infinity. A NaN is the second operand: it stays.
    let x = _mm256_min_ps(_mm256_set1_ps(OVERFLOW + 1.0), x);
    let x = _mm512_cvtps_pd(_mm256_max_ps(_mm256_set1_ps(UNDERFLOW - 1.0), x));
    let shifted = _mm512_fmadd_pd(x, splat(INV_LN2), splat(ROUNDER));
    let k = _mm512_sub_pd(shifted, splat(ROUNDER));
    let r = _mm512_fnmadd_pd(k, splat(LN2_HI), x);
    let p = exp_reduced(_mm512_fnmadd_pd(k, splat(LN2_LO), r));
    let k_exponent = _mm512_slli_epi64::<52>(_mm512_castpd_si512(shifted));
    let below = _mm512_mul_pd(p, scaled(BELOW, k_exponent));
    let above = _mm512_mul_pd(p, scaled(ABOVE, k_exponent));
    (_mm512_cvtpd_ps(below), _mm512_cvtpd_ps(above))
}

#[inline]
#[target_feature(enable = "avx512f,avx2,fma")]
fn exp_reduced(r: __m512d) -> __m512d {
    let r2 = _mm512_mul_pd(r, r);
    let r4 = _mm512_mul_pd(r2, r2);
    let high = _mm512_fmadd_pd(r2, linear::<10>(r), linear::<8>(r));
    let middle = _mm512_fmadd_pd(r2, linear::<6>(r), linear::<4>(r));
    let low = _mm512_fmadd_pd(r2, linear::<2>(r), linear::<0>(r));
    _mm512_fmadd_pd(r4, _mm512_fmadd_pd(r4, high, middle), low)
}

/// Two neighbouring terms of the series: TAYLOR[J] + TAYLOR[J + 1] * r.
#[inline]
#[target_feature(enable = "avx512f,avx2,fma")]
fn linear<const J: usize>(r: __m512d) -> __m512d {
    _mm512_fmadd_pd(splat(TAYLOR[J + 1]), r, splat(TAYLOR[J]))
}

/// factor * 2^k, with k already shifted into the exponent field.
#[inline]
#[target_feature(enable = "avx512f,avx2,fma")]
fn scaled(factor: f64, k_exponent: __m512i) -> __m512d {
    _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(splat(factor)), k_exponent))
}

#[inline]
#[target_feature(enable = "avx512f,avx2,fma")]
fn splat(value: f64) -> __m512d {
    _mm512_set1_pd(value)
}

/// About one vector in 2^17: the interval of a lane straddles a midpoint, or the lane is NaN.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f,avx2,fma")]
fn redo_undecided(x: __m256, y: __m256, undecided: i32) -> __m256 {
    let (mut inputs, mut outputs) = ([0f32; LANES], [0f32; LANES]);
    // SAFETY: both arrays hold eight f32, and storeu asks for no alignment.
    unsafe {
        _mm256_storeu_ps(inputs.as_mut_ptr(), x);
        _mm256_storeu_ps(outputs.as_mut_ptr(), y);
    }
    for lane in (0..LANES).filter(|lane| undecided >> lane & 1 == 1) {
        outputs[lane] = exp32(inputs[lane]);
    }
    // SAFETY: as above.
    unsafe { _mm256_loadu_ps(outputs.as_ptr()) }
}
