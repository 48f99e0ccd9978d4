//! AVX-512 F, BW, DQ, VL: 16 f32 lanes, blocks of 32.

use std::arch::x86_64::*;

use half::bf16;

use super::lanes::{CODE, Lanes};

/// 512-bit vectors.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// Every function below is inlined into a function compiled for AVX-512, which is entered
// only after run-time detection (`for_level!`).
impl Lanes for Avx512 {
    const WIDTH: usize = 16;
    type Packed = __m512i;
    type F32 = __m512;
    type F64 = __m512d;

    #[inline(always)]
    unsafe fn packed(p: *const bf16) -> __m512i {
        // SAFETY: AVX-512 was detected; the caller guarantees a full block at `p`.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_packed(p: *mut bf16, w: __m512i) {
        // SAFETY: AVX-512 was detected; the caller guarantees room for a block at `p`.
        unsafe { _mm512_storeu_si512(p.cast(), w) }
    }
    #[inline(always)]
    fn base(base: u8) -> __m512i {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_set1_epi16(i16::from(base) << 7) }
    }
    #[inline(always)]
    fn unpack(planes: [__m512i; 3], base: __m512i) -> [__m512i; 4] {
        let [a, b, c] = planes;
        // SAFETY: AVX-512 was detected. The arithmetic shift leaves the sign on top and copies of
        // it where the mask clears.
        unsafe {
            let mask = _mm512_set1_epi16(CODE as i16);
            let twelve = _mm512_ternarylogic_epi32::<0x96>(
                _mm512_add_epi16(a, a),
                _mm512_srli_epi16(b, 3),
                _mm512_srli_epi16(c, 7),
            );
            let d = _mm512_srai_epi16(twelve, 4);
            [
                _mm512_add_epi16(_mm512_and_si512(a, mask), base),
                _mm512_add_epi16(_mm512_and_si512(b, mask), base),
                _mm512_add_epi16(_mm512_and_si512(c, mask), base),
                _mm512_add_epi16(_mm512_and_si512(d, mask), base),
            ]
        }
    }
    #[inline(always)]
    fn even(w: __m512i) -> __m512 {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)) }
    }
    #[inline(always)]
    fn odd(w: __m512i) -> __m512 {
        // SAFETY: AVX-512 was detected.
        unsafe {
            _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
        }
    }
    #[inline(always)]
    fn quarters(w: __m512i) -> [__m512d; 4] {
        // SAFETY: AVX-512 was detected. The arithmetic shift leaves the sign at the top of each
        // f64 and copies of it in the three exponent bits that the mask clears.
        unsafe {
            let mask = _mm512_set1_epi64(0x8fff_e000_0000_0000_u64 as i64);
            let place = |v| _mm512_castsi512_pd(_mm512_and_si512(_mm512_srai_epi32(v, 3), mask));
            [
                place(_mm512_slli_epi64(w, 48)),
                place(_mm512_slli_epi64(w, 32)),
                place(_mm512_slli_epi64(w, 16)),
                place(w),
            ]
        }
    }
    #[inline(always)]
    fn packed_zero() -> __m512i {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    fn larger(a: __m512i, w: __m512i) -> __m512i {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_max_epu16(a, _mm512_and_si512(w, _mm512_set1_epi16(0x7fff))) }
    }
    #[inline(always)]
    fn largest(a: __m512i) -> f32 {
        let mut lanes = [0u16; 32];
        // SAFETY: AVX-512 was detected and `lanes` holds 64 bytes.
        unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), a) };
        f32::from_bits(u32::from(lanes.into_iter().max().unwrap_or(0)) << 16)
    }
    #[inline(always)]
    fn zero() -> __m512 {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    fn splat(v: f32) -> __m512 {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_set1_ps(v) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: AVX-512 was detected; the caller guarantees 16 values at `p`.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: AVX-512 was detected; the caller guarantees room for 16 values at `p`.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn abs(a: __m512) -> __m512 {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    fn sum(a: __m512) -> f32 {
        // SAFETY: AVX-512 was detected.
        unsafe {
            let low = _mm512_castps512_ps256(a);
            let eight = _mm256_add_ps(low, _mm512_extractf32x8_ps(a, 1));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)))
        }
    }
    #[inline(always)]
    fn zero64() -> __m512d {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_setzero_pd() }
    }
    #[inline(always)]
    fn splat64(v: f64) -> __m512d {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_set1_pd(v) }
    }
    #[inline(always)]
    unsafe fn load64(p: *const f64) -> __m512d {
        // SAFETY: AVX-512 was detected; the caller guarantees 8 values at `p`.
        unsafe { _mm512_loadu_pd(p) }
    }
    #[inline(always)]
    unsafe fn store64(p: *mut f64, v: __m512d) {
        // SAFETY: AVX-512 was detected; the caller guarantees room for 8 values at `p`.
        unsafe { _mm512_storeu_pd(p, v) }
    }
    #[inline(always)]
    fn halves(a: __m512) -> [__m512d; 2] {
        // SAFETY: AVX-512 was detected.
        unsafe {
            [
                _mm512_cvtps_pd(_mm512_castps512_ps256(a)),
                _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)),
            ]
        }
    }
    #[inline(always)]
    fn fma64(a: __m512d, b: __m512d, c: __m512d) -> __m512d {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_fmadd_pd(a, b, c) }
    }
    #[inline(always)]
    fn add64(a: __m512d, b: __m512d) -> __m512d {
        // SAFETY: AVX-512 was detected.
        unsafe { _mm512_add_pd(a, b) }
    }
    #[inline(always)]
    fn sum64(a: __m512d) -> f64 {
        // SAFETY: AVX-512 was detected.
        unsafe {
            let low = _mm512_castpd512_pd256(a);
            let four = _mm256_add_pd(low, _mm512_extractf64x4_pd(a, 1));
            let two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
            _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
        }
    }
}
