//! `S_f32`: sums and dot products of plain vectors, rounded once to f32.

use half::bf16;

use crate::SimdLevel;
use crate::cpu::dot as kernel;
use crate::exact::Unrounded;
use crate::round::widen;

/// `S_f32(x * x)`, or `None` if it is not finite.
pub fn squares(level: SimdLevel, x: &[bf16]) -> Option<f32> {
    kernel::squares(level, x)
        .or_else(|| Unrounded::products(x.iter().map(|v| (widen(*v), widen(*v)))).to_f32())
}

/// `S_f32(x)`, or `None` if it is not finite.
pub fn sum(level: SimdLevel, x: &[f32]) -> Option<f32> {
    kernel::sum(level, x).or_else(|| Unrounded::products(x.iter().map(|v| (*v, 1.0))).to_f32())
}
