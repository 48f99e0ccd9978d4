//! AVX2 and FMA: 8 f32 lanes, blocks of 16.

use std::arch::x86_64::*;

use half::bf16;

use super::lanes::{CODE, Lanes};

/// 256-bit vectors.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

// Every function below is inlined into a function compiled for AVX2 and FMA, which is entered
// only after run-time detection (`for_level!`).
impl Lanes for Avx2 {
    const WIDTH: usize = 8;
    type Packed = __m256i;
    type F32 = __m256;
    type F64 = __m256d;

    #[inline(always)]
    unsafe fn packed(p: *const bf16) -> __m256i {
        // SAFETY: AVX2 was detected; the caller guarantees a full block at `p`.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_packed(p: *mut bf16, w: __m256i) {
        // SAFETY: AVX2 was detected; the caller guarantees room for a block at `p`.
        unsafe { _mm256_storeu_si256(p.cast(), w) }
    }
    #[inline(always)]
    fn base(base: u8) -> __m256i {
        // SAFETY: AVX2 was detected.
        unsafe { _mm256_set1_epi16(i16::from(base) << 7) }
    }
    #[inline(always)]
    fn unpack(planes: [__m256i; 3], base: __m256i) -> [__m256i; 4] {
        let [a, b, c] = planes;
        // SAFETY: AVX2 was detected. The arithmetic shift leaves the sign on top and copies of it
        // where the mask clears.
        unsafe {
            let mask = _mm256_set1_epi16(CODE as i16);
            let twelve = _mm256_xor_si256(
                _mm256_xor_si256(_mm256_add_epi16(a, a), _mm256_srli_epi16(b, 3)),
                _mm256_srli_epi16(c, 7),
            );
            let d = _mm256_srai_epi16(twelve, 4);
            [
                _mm256_add_epi16(_mm256_and_si256(a, mask), base),
                _mm256_add_epi16(_mm256_and_si256(b, mask), base),
                _mm256_add_epi16(_mm256_and_si256(c, mask), base),
                _mm256_add_epi16(_mm256_and_si256(d, mask), base),
            ]
        }
    }
    #[inline(always)]
    fn even(w: __m256i) -> __m256 {
        // SAFETY: AVX2 was detected.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)) }
    }
    #[inline(always)]
    fn odd(w: __m256i) -> __m256 {
        // SAFETY: AVX2 was detected.
        unsafe {
            _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(0xffff_0000_u32 as i32)))
        }
    }
    #[inline(always)]
    fn quarters(w: __m256i) -> [__m256d; 4] {
        // SAFETY: AVX2 was detected. The arithmetic shift leaves the sign at the top of each
        // f64 and copies of it in the three exponent bits that the mask clears.
        unsafe {
            let mask = _mm256_set1_epi64x(0x8fff_e000_0000_0000_u64 as i64);
            let place = |v| _mm256_castsi256_pd(_mm256_and_si256(_mm256_srai_epi32(v, 3), mask));
            [
                place(_mm256_slli_epi64(w, 48)),
                place(_mm256_slli_epi64(w, 32)),
                place(_mm256_slli_epi64(w, 16)),
                place(w),
            ]
        }
    }
    #[inline(always)]
    fn packed_zero() -> __m256i {
        // SAFETY: AVX2 was detected.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    fn larger(a: __m256i, w: __m256i) -> __m256i {
        // SAFETY: AVX2 was detected.
        unsafe { _mm256_max_epu16(a, _mm256_and_si256(w, _mm256_set1_epi16(0x7fff))) }
    }
    #[inline(always)]
    fn largest(a: __m256i) -> f32 {
        let mut lanes = [0u16; 16];
        // SAFETY: AVX2 was detected and `lanes` holds 32 bytes.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), a) };
        f32::from_bits(u32::from(lanes.into_iter().max().unwrap_or(0)) << 16)
    }
    #[inline(always)]
    fn zero() -> __m256 {
        // SAFETY: AVX was detected.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    fn splat(v: f32) -> __m256 {
        // SAFETY: AVX was detected.
        unsafe { _mm256_set1_ps(v) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: AVX was detected; the caller guarantees 8 values at `p`.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        // SAFETY: AVX was detected; the caller guarantees room for 8 values at `p`.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: FMA was detected.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: AVX was detected.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: AVX was detected.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn abs(a: __m256) -> __m256 {
        // SAFETY: AVX was detected.
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    fn sum(a: __m256) -> f32 {
        // SAFETY: AVX was detected.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)))
        }
    }
    #[inline(always)]
    fn zero64() -> __m256d {
        // SAFETY: AVX was detected.
        unsafe { _mm256_setzero_pd() }
    }
    #[inline(always)]
    fn splat64(v: f64) -> __m256d {
        // SAFETY: AVX was detected.
        unsafe { _mm256_set1_pd(v) }
    }
    #[inline(always)]
    unsafe fn load64(p: *const f64) -> __m256d {
        // SAFETY: AVX was detected; the caller guarantees 4 values at `p`.
        unsafe { _mm256_loadu_pd(p) }
    }
    #[inline(always)]
    unsafe fn store64(p: *mut f64, v: __m256d) {
        // SAFETY: AVX was detected; the caller guarantees room for 4 values at `p`.
        unsafe { _mm256_storeu_pd(p, v) }
    }
    #[inline(always)]
    fn halves(a: __m256) -> [__m256d; 2] {
        // SAFETY: AVX was detected.
        unsafe {
            [
                _mm256_cvtps_pd(_mm256_castps256_ps128(a)),
                _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)),
            ]
        }
    }
    #[inline(always)]
    fn fma64(a: __m256d, b: __m256d, c: __m256d) -> __m256d {
        // SAFETY: FMA was detected.
        unsafe { _mm256_fmadd_pd(a, b, c) }
    }
    #[inline(always)]
    fn add64(a: __m256d, b: __m256d) -> __m256d {
        // SAFETY: AVX was detected.
        unsafe { _mm256_add_pd(a, b) }
    }
    #[inline(always)]
    fn sum64(a: __m256d) -> f64 {
        // SAFETY: AVX was detected.
        unsafe {
            let two = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
            _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
        }
    }
}
