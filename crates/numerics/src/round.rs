//! The one narrowing and the one widening point between the formats.

use half::bf16;

/// Widens a bf16 to f32; exact.
#[inline(always)]
pub fn widen(v: bf16) -> f32 {
    f32::from_bits(u32::from(v.to_bits()) << 16)
}

/// Rounds an f32 to bf16, nearest, ties to even ("store" in NUMERICS.md).
///
/// Subnormals are kept and a zero keeps its sign; NaN stays NaN.
#[inline(always)]
pub fn store(v: f32) -> bf16 {
    let bits = v.to_bits();
    if v.is_nan() {
        return bf16::from_bits((bits >> 16) as u16 | 0x40);
    }
    bf16::from_bits(((bits.wrapping_add(0x7fff + ((bits >> 16) & 1))) >> 16) as u16)
}

/// Rounds an f64 to bf16, nearest, ties to even, in one rounding.
#[inline(always)]
pub fn bf16_from_f64(v: f64) -> bf16 {
    const SMALLEST_NORMAL: f64 = f32::MIN_POSITIVE as f64;
    if v.abs() >= SMALLEST_NORMAL {
        let bits = v.to_bits();
        let kept = (bits + ((1 << 44) - 1) + ((bits >> 45) & 1)) & !((1 << 45) - 1);
        // `kept` has 8 significant bits, so the conversion to f32 is exact (or overflows to
        // infinity, as rounding to bf16 does).
        return truncated(f64::from_bits(kept) as f32);
    }
    subnormal(v)
}

/// Below the normal range the bf16 grid is uniform with step 2^-133.
#[inline(never)]
fn subnormal(v: f64) -> bf16 {
    let step = f64::from_bits((1023 - 133) << 52);
    let scaled = (v / step).round_ties_even();
    truncated((scaled * step).copysign(v) as f32)
}

/// Drops the low half of an f32 that is already a bf16 value.
#[inline(always)]
fn truncated(v: f32) -> bf16 {
    bf16::from_bits((v.to_bits() >> 16) as u16)
}

/// Widens a slice.
///
/// Shapes: `from` and `into` have the same length.
pub fn widen_into(from: &[bf16], into: &mut [f32]) {
    assert_eq!(from.len(), into.len());
    for (o, v) in into.iter_mut().zip(from) {
        *o = widen(*v);
    }
}

/// Stores a slice.
///
/// Shapes: `from` and `into` have the same length.
pub fn store_into(from: &[f32], into: &mut [bf16]) {
    assert_eq!(from.len(), into.len());
    for (o, v) in into.iter_mut().zip(from) {
        *o = store(*v);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bf16_survives_both_ways() {
        for bits in 0..=u16::MAX {
            let v = bf16::from_bits(bits);
            if widen(v).is_nan() {
                assert!(widen(store(widen(v))).is_nan());
                continue;
            }
            assert_eq!(store(widen(v)).to_bits(), bits);
            assert_eq!(bf16_from_f64(f64::from(widen(v))).to_bits(), bits);
        }
    }

    #[test]
    fn midpoints_go_to_even_and_a_hair_decides() {
        for bits in (0..0x7f80_u16).step_by(7) {
            let (a, b) = (bf16::from_bits(bits), bf16::from_bits(bits + 1));
            let mid = (f64::from(widen(a))
                + if bits + 1 == 0x7f80 {
                    f64::from(widen(a)) + 2f64.powi(120)
                } else {
                    f64::from(widen(b))
                })
                / 2.0;
            let even = if bits & 1 == 0 { a } else { b };
            assert_eq!(bf16_from_f64(mid).to_bits(), even.to_bits(), "{bits:x}");
            let (below, above) = (mid.next_down(), mid.next_up());
            assert_eq!(bf16_from_f64(below).to_bits(), a.to_bits(), "{bits:x}");
            assert_eq!(bf16_from_f64(above).to_bits(), b.to_bits(), "{bits:x}");
            assert_eq!(bf16_from_f64(-above).to_bits(), b.to_bits() | 0x8000);
        }
    }

    #[test]
    fn f32_and_f64_agree_on_f32_values() {
        for i in 0..2_000_000u32 {
            let v = f32::from_bits(i.wrapping_mul(2_654_435_761));
            if v.is_finite() {
                assert_eq!(store(v).to_bits(), bf16_from_f64(f64::from(v)).to_bits(), "{v:e}");
            }
        }
    }
}
