//! The processor: which instructions it has, and the threads that work on it.

pub(crate) mod lanes;
#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes_avx512;
mod threads;

pub(crate) mod attention;
pub(crate) mod delta_rule;
pub(crate) mod dot;
pub(crate) mod linear;

pub use threads::{Cpu, CpuError};

/// The instruction sets that a path may use; a higher one includes the lower ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum SimdLevel {
    /// Portable Rust, whatever the compiler makes of it.
    Scalar,
    /// AVX2 and FMA, 256-bit vectors.
    Avx2,
    /// AVX-512 F, BW, DQ and VL, 512-bit vectors.
    Avx512,
}

impl SimdLevel {
    /// The best level that this processor and this build have.
    pub fn detect() -> SimdLevel {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("fma")
            {
                return SimdLevel::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return SimdLevel::Avx2;
            }
        }
        SimdLevel::Scalar
    }

    /// Every level that can run here, lowest first.
    pub fn available() -> Vec<SimdLevel> {
        let all = [SimdLevel::Scalar, SimdLevel::Avx2, SimdLevel::Avx512];
        all.into_iter().filter(|l| *l <= SimdLevel::detect()).collect()
    }

    /// The name that flags and reports use.
    pub fn name(self) -> &'static str {
        match self {
            SimdLevel::Scalar => "scalar",
            SimdLevel::Avx2 => "avx2",
            SimdLevel::Avx512 => "avx512",
        }
    }
}

/// Runs `$generic::<Lanes>($args)` compiled for the given level.
///
/// The body must be `#[inline(always)]` down to its intrinsics, so that they are compiled inside
/// the function that carries the target features.
macro_rules! for_level {
    ($level:expr, $body:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn avx2($($arg: $ty),*) $(-> $ret)? {
            $body::<$crate::cpu::lanes_avx2::Avx2>($($arg),*)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        fn avx512($($arg: $ty),*) $(-> $ret)? {
            $body::<$crate::cpu::lanes_avx512::Avx512>($($arg),*)
        }
        match $level {
            // SAFETY: a `Cpu` is only made with a level that `SimdLevel::detect` found here.
            #[cfg(target_arch = "x86_64")]
            $crate::SimdLevel::Avx512 => unsafe { avx512($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::SimdLevel::Avx2 => unsafe { avx2($($arg),*) },
            _ => $body::<$crate::cpu::lanes::Portable>($($arg),*),
        }
    }};
}
pub(crate) use for_level;
