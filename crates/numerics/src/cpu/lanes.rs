//! What the kernels need of a vector unit, and the portable answer.
//!
//! A *block* is `2 * WIDTH` bf16 values. Its even elements and its odd elements widen to one f32
//! vector each; its four *quarters* (elements 4i, 4i+1, 4i+2, 4i+3) widen to one f64 vector each.
//!
//! Quarters are scaled: the bits of a bf16 are placed under an f64 exponent without changing its
//! bias, which is the value times 2^-896, exactly, subnormals included. The other factor carries
//! 2^896 (see `wide_operand`), so products have their true value and are exact in f64.

use half::bf16;

/// The factor that undoes the scale of a quarter, 2^896.
pub(crate) const QUARTER_SCALE: f64 = f64::from_bits((1023 + 896) << 52);

/// The f64 operand that meets a quarter: `v * 2^896`, finite for every finite bf16 or f32.
#[inline(always)]
pub(crate) fn wide_operand(v: f32) -> f64 {
    f64::from(v) * QUARTER_SCALE
}

/// Sign, four bits of exponent and mantissa: what a packed bf16 keeps.
pub(crate) const CODE: u16 = 0x87ff;

/// Asks for the cache line at an address that is needed soon; any address will do.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults; SSE is part of the architecture.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// A vector unit. Every function is a plain IEEE operation on each lane.
///
/// Implementations mark everything `#[inline(always)]`; pointers must be valid for a full vector.
pub(crate) trait Lanes: Copy + 'static {
    /// f32 lanes; f64 vectors have half as many.
    const WIDTH: usize;
    /// log2 of `WIDTH`: roundings of a sum over the lanes.
    const DEPTH: usize = Self::WIDTH.trailing_zeros() as usize;
    /// bf16 values in a block.
    const BLOCK: usize = 2 * Self::WIDTH;
    type Packed: Copy;
    type F32: Copy;
    type F64: Copy;

    /// # Safety
    /// `p` is valid for `BLOCK` bf16 values.
    unsafe fn packed(p: *const bf16) -> Self::Packed;
    /// # Safety
    /// `p` is valid for writing `BLOCK` bf16 values.
    unsafe fn store_packed(p: *mut bf16, w: Self::Packed);
    /// The exponent `base` at its place in every bf16.
    fn base(base: u8) -> Self::Packed;
    /// From the lanes of the three planes of a packed group the four blocks that they hold
    /// (`PackedRows` says how), with `base` added to their exponents.
    fn unpack(planes: [Self::Packed; 3], base: Self::Packed) -> [Self::Packed; 4];
    fn even(w: Self::Packed) -> Self::F32;
    fn odd(w: Self::Packed) -> Self::F32;
    fn quarters(w: Self::Packed) -> [Self::F64; 4];
    fn packed_zero() -> Self::Packed;
    /// Lane by lane the larger magnitude, sign cleared.
    fn larger(a: Self::Packed, w: Self::Packed) -> Self::Packed;
    /// The largest magnitude in a result of `larger`.
    fn largest(a: Self::Packed) -> f32;

    fn zero() -> Self::F32;
    fn splat(v: f32) -> Self::F32;
    /// # Safety
    /// `p` is valid for `WIDTH` f32 values.
    unsafe fn load(p: *const f32) -> Self::F32;
    /// # Safety
    /// `p` is valid for writing `WIDTH` f32 values.
    unsafe fn store(p: *mut f32, v: Self::F32);
    /// `a * b + c`; one rounding where the product is exact in f32, at most two otherwise.
    fn fma(a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    fn add(a: Self::F32, b: Self::F32) -> Self::F32;
    fn mul(a: Self::F32, b: Self::F32) -> Self::F32;
    fn abs(a: Self::F32) -> Self::F32;
    /// The sum over the lanes as a tree of depth `DEPTH`.
    fn sum(a: Self::F32) -> f32;

    fn zero64() -> Self::F64;
    fn splat64(v: f64) -> Self::F64;
    /// # Safety
    /// `p` is valid for `WIDTH / 2` f64 values.
    unsafe fn load64(p: *const f64) -> Self::F64;
    /// # Safety
    /// `p` is valid for writing `WIDTH / 2` f64 values.
    unsafe fn store64(p: *mut f64, v: Self::F64);
    /// The lower and the upper half of the lanes.
    fn halves(a: Self::F32) -> [Self::F64; 2];
    fn fma64(a: Self::F64, b: Self::F64, c: Self::F64) -> Self::F64;
    fn add64(a: Self::F64, b: Self::F64) -> Self::F64;
    /// The sum over the lanes as a tree.
    fn sum64(a: Self::F64) -> f64;
}

/// Arrays and loops; the compiler uses whatever the target's baseline has.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const N: usize = 8;

#[inline(always)]
fn map2<T: Copy, const K: usize>(a: [T; K], b: [T; K], f: impl Fn(T, T) -> T) -> [T; K] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn tree<T: Copy + std::ops::Add<Output = T>, const K: usize>(mut a: [T; K]) -> T {
    let mut n = K / 2;
    while n > 0 {
        for i in 0..n {
            a[i] = a[i] + a[i + n];
        }
        n /= 2;
    }
    a[0]
}

impl Lanes for Portable {
    const WIDTH: usize = N;
    type Packed = [u16; 2 * N];
    type F32 = [f32; N];
    type F64 = [f64; N / 2];

    #[inline(always)]
    unsafe fn packed(p: *const bf16) -> Self::Packed {
        // SAFETY: the caller guarantees `BLOCK` readable values; bf16 is a transparent u16.
        unsafe { p.cast::<Self::Packed>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_packed(p: *mut bf16, w: Self::Packed) {
        // SAFETY: the caller guarantees room for `BLOCK` values; bf16 is a transparent u16.
        unsafe { p.cast::<Self::Packed>().write_unaligned(w) }
    }
    #[inline(always)]
    fn base(base: u8) -> Self::Packed {
        [u16::from(base) << 7; 2 * N]
    }
    #[inline(always)]
    fn unpack(planes: [Self::Packed; 3], base: Self::Packed) -> [Self::Packed; 4] {
        let [a, b, c] = planes;
        let mut out = [[0; 2 * N]; 4];
        for i in 0..2 * N {
            out[0][i] = (a[i] & CODE).wrapping_add(base[i]);
            out[1][i] = (b[i] & CODE).wrapping_add(base[i]);
            out[2][i] = (c[i] & CODE).wrapping_add(base[i]);
            let twelve = a[i] << 1 ^ b[i] >> 3 ^ c[i] >> 7;
            out[3][i] = (((twelve as i16) >> 4) as u16 & CODE).wrapping_add(base[i]);
        }
        out
    }
    #[inline(always)]
    fn even(w: Self::Packed) -> Self::F32 {
        std::array::from_fn(|i| f32::from_bits(u32::from(w[2 * i]) << 16))
    }
    #[inline(always)]
    fn odd(w: Self::Packed) -> Self::F32 {
        std::array::from_fn(|i| f32::from_bits(u32::from(w[2 * i + 1]) << 16))
    }
    #[inline(always)]
    fn quarters(w: Self::Packed) -> [Self::F64; 4] {
        std::array::from_fn(|j| {
            std::array::from_fn(|i| {
                let bits = u64::from(w[4 * i + j]);
                f64::from_bits((bits >> 15) << 63 | (bits & 0x7fff) << 45)
            })
        })
    }
    #[inline(always)]
    fn packed_zero() -> Self::Packed {
        [0; 2 * N]
    }
    #[inline(always)]
    fn larger(a: Self::Packed, w: Self::Packed) -> Self::Packed {
        map2(a, w, |a, w| a.max(w & 0x7fff))
    }
    #[inline(always)]
    fn largest(a: Self::Packed) -> f32 {
        f32::from_bits(u32::from(a.into_iter().max().unwrap_or(0)) << 16)
    }
    #[inline(always)]
    fn zero() -> Self::F32 {
        [0.0; N]
    }
    #[inline(always)]
    fn splat(v: f32) -> Self::F32 {
        [v; N]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F32 {
        // SAFETY: the caller guarantees `WIDTH` readable values.
        unsafe { p.cast::<Self::F32>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F32) {
        // SAFETY: the caller guarantees `WIDTH` writable values.
        unsafe { p.cast::<Self::F32>().write_unaligned(v) }
    }
    #[inline(always)]
    fn fma(a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32 {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn add(a: Self::F32, b: Self::F32) -> Self::F32 {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn mul(a: Self::F32, b: Self::F32) -> Self::F32 {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn abs(a: Self::F32) -> Self::F32 {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn sum(a: Self::F32) -> f32 {
        tree(a)
    }
    #[inline(always)]
    fn zero64() -> Self::F64 {
        [0.0; N / 2]
    }
    #[inline(always)]
    fn splat64(v: f64) -> Self::F64 {
        [v; N / 2]
    }
    #[inline(always)]
    unsafe fn load64(p: *const f64) -> Self::F64 {
        // SAFETY: the caller guarantees `WIDTH / 2` readable values.
        unsafe { p.cast::<Self::F64>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store64(p: *mut f64, v: Self::F64) {
        // SAFETY: the caller guarantees `WIDTH / 2` writable values.
        unsafe { p.cast::<Self::F64>().write_unaligned(v) }
    }
    #[inline(always)]
    fn halves(a: Self::F32) -> [Self::F64; 2] {
        std::array::from_fn(|h| std::array::from_fn(|i| f64::from(a[h * N / 2 + i])))
    }
    #[inline(always)]
    fn fma64(a: Self::F64, b: Self::F64, c: Self::F64) -> Self::F64 {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn add64(a: Self::F64, b: Self::F64) -> Self::F64 {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sum64(a: Self::F64) -> f64 {
        tree(a)
    }
}
