//! Correctly rounded binary32 elementary functions, and the activations built from them.
//!
//! Every function has a fast path in binary64 (IEEE + - * / only, so the same on every platform)
//! with a relative error bound proven in its file. A value y with bound e is decided when y(1-e)
//! and y(1+e) round to the same f32; otherwise a 128-bit fixed-point path with a bound of 2^-100
//! decides. The result is thereby the one correctly rounded value, so the SIMD paths agree with
//! the scalar path whatever instructions they use. `cargo xtask verify-elementary` sweeps all
//! 2^32 inputs against an independent evaluation.

#[cfg(test)]
mod bound_tests;
mod exp;
#[cfg(target_arch = "x86_64")]
mod exp_avx2;
#[cfg(target_arch = "x86_64")]
mod exp_avx512;
mod fixed;
mod log1p;
mod trig;

pub use exp::{exp32, exp32_fast};
pub use log1p::{log1p32, log1p32_fast};
pub use trig::{cos32, cos32_fast, sin32, sin32_fast};

use crate::cpu::SimdLevel;

/// The logistic function as three binary32 operations: `1 / (1 + exp32(-x))`.
///
/// Source: NUMERICS.md, rounding and reductions.
#[inline]
pub fn sig32(x: f32) -> f32 {
    1.0 / (1.0 + exp32(-x))
}

/// The SiLU activation as three binary32 operations: `x / (1 + exp32(-x))`.
///
/// A result that is not a number (x is one, or x = -inf) is the canonical `f32::NAN`, so that
/// every SIMD level agrees on its bits. Source: NUMERICS.md, rounding and reductions.
#[inline]
pub fn silu32(x: f32) -> f32 {
    let y = x / (1.0 + exp32(-x));
    if y.is_nan() { f32::NAN } else { y }
}

/// The softplus function: `x` above 20, else `log1p32(exp32(x))`.
///
/// Source: NUMERICS.md, rounding and reductions.
#[inline]
pub fn softplus32(x: f32) -> f32 {
    if x > 20.0 { x } else { log1p32(exp32(x)) }
}

/// Replaces every element by `exp32` of it, the same bits at every level.
///
/// # Panics
/// If `level` is above what this machine has.
pub fn exp32_slice(level: SimdLevel, values: &mut [f32]) {
    assert_available(level);
    match level {
        SimdLevel::Scalar => values.iter_mut().for_each(|x| *x = exp32(*x)),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: assert_available saw AVX2 and FMA on this machine.
        SimdLevel::Avx2 => unsafe { exp_avx2::exp_slice(values) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: assert_available saw AVX-512F, AVX2 and FMA on this machine.
        SimdLevel::Avx512 => unsafe { exp_avx512::exp_slice(values) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("no such level off x86-64"),
    }
}

/// Replaces every element by `silu32` of it, the same bits at every level.
///
/// # Panics
/// If `level` is above what this machine has.
pub fn silu32_slice(level: SimdLevel, values: &mut [f32]) {
    assert_available(level);
    match level {
        SimdLevel::Scalar => values.iter_mut().for_each(|x| *x = silu32(*x)),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: assert_available saw AVX2 and FMA on this machine.
        SimdLevel::Avx2 => unsafe { exp_avx2::silu_slice(values) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: assert_available saw AVX-512F, AVX2 and FMA on this machine.
        SimdLevel::Avx512 => unsafe { exp_avx512::silu_slice(values) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("no such level off x86-64"),
    }
}

/// The safe wrappers above are sound because they all come through here first.
fn assert_available(level: SimdLevel) {
    assert!(level <= SimdLevel::detect(), "{level:?} is not available on this machine");
}
