//! RMSNorm: `s = S_f32(x*x)`, `r = 1/sqrt(s/n + eps)`, `y = store((x*r) * weight)`.

use half::bf16;

use super::dot::squares;
use crate::round::{store, widen};
use crate::{NonFinite, SimdLevel};

/// `1 / sqrt(S_f32(x*x)/n + eps)`, each f32 operation rounded in that order.
pub fn inverse_rms(level: SimdLevel, x: &[bf16], eps: f32) -> Option<f32> {
    let mean = squares(level, x)? / x.len() as f32;
    Some(1.0 / (mean + eps).sqrt())
}

/// Normalises rows of `weight.len()` values.
///
/// Shapes: `x` and `y` are `[rows, n]`, `weight` is `[n]` (1 + w where the family is
/// zero-centred, which is an f32 sum done when the model is loaded).
///
/// # Errors
/// A row whose sum of squares is not finite; `token` is the row.
///
/// Source: Zhang and Sennrich 2019, equation 4.
pub fn rms_norm(
    level: SimdLevel,
    x: &[bf16],
    weight: &[f32],
    eps: f32,
    y: &mut [bf16],
) -> Result<(), NonFinite> {
    let n = weight.len();
    assert!(x.len() == y.len() && x.len().is_multiple_of(n), "rows of {n}");
    for (row, (x, y)) in x.chunks(n).zip(y.chunks_mut(n)).enumerate() {
        let r = inverse_rms(level, x, eps).ok_or(NonFinite { row: 0, token: row })?;
        for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
            *y = store((widen(*x) * r) * w);
        }
    }
    Ok(())
}
