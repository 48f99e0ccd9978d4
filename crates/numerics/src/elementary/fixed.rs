//! The last resort of every function: 128-bit fixed point, and one rounding from it to f32.

/// Bits of the largest relative error that `Unrounded` may carry.
const ERROR_BITS: u32 = 100;

/// floor(a * b / 2^128), exactly.
pub(super) fn mul_high(a: u128, b: u128) -> u128 {
    const LOW: u128 = u64::MAX as u128;
    let (a_high, a_low, b_high, b_low) = (a >> 64, a & LOW, b >> 64, b & LOW);
    let middle = a_high * b_low + ((a_low * b_low) >> 64);
    let other_middle = a_low * b_high + (middle & LOW);
    a_high * b_high + (middle >> 64) + (other_middle >> 64)
}

/// floor(numerator * 2^127 / denominator), by long division.
pub(super) fn divide_q127(numerator: u128, denominator: u128) -> u128 {
    assert!(numerator < denominator && denominator < 1 << 127);
    let (mut remainder, mut quotient) = (numerator, 0u128);
    for _ in 0..127 {
        remainder <<= 1;
        quotient <<= 1;
        if remainder >= denominator {
            remainder -= denominator;
            quotient |= 1;
        }
    }
    quotient
}

/// A finite f32 other than zero as (significand in [2^23, 2^24), exponent): |x| = s * 2^e.
pub(super) fn decompose(x: f32) -> (u128, i32) {
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let (fraction, biased) = (magnitude & 0x007f_ffff, (magnitude >> 23) as i32);
    if biased > 0 {
        return (u128::from(fraction | 0x0080_0000), biased - 150);
    }
    // Subnormal: the value is fraction * 2^-149; 8 leading zeros belong to the field itself.
    let shift = fraction.leading_zeros() - 8;
    (u128::from(fraction << shift), -149 - shift as i32)
}

/// mantissa * 2^exponent with the sign given; relative error below 2^-100; never zero.
pub(super) struct Unrounded {
    pub negative: bool,
    pub mantissa: u128,
    pub exponent: i32,
}

impl Unrounded {
    /// The f32 nearest to the exact value that this approximates.
    ///
    /// # Panics
    /// If the error bound reaches a midpoint between two f32. The sweep over all 2^32 inputs
    /// shows that no input does; none is an exact tie, since these functions are transcendental
    /// at every nonzero f32.
    pub(super) fn round(&self) -> f32 {
        let sign = u32::from(self.negative) << 31;
        let magnitude = self.round_magnitude();
        f32::from_bits(sign | magnitude)
    }

    fn round_magnitude(&self) -> u32 {
        assert!(self.mantissa != 0, "an Unrounded is never zero");
        let leading = self.mantissa.leading_zeros();
        // Two spare bits keep every shift below within 0..=127.
        let mantissa = (self.mantissa << leading) >> 2;
        let exponent = self.exponent - leading as i32 + 2;
        let top = exponent + 125;
        if top > 127 {
            return f32::INFINITY.to_bits();
        }
        let quantum = (top - 23).max(-149);
        let shift = quantum - exponent;
        if shift > 127 {
            return 0; // below a quarter of the least subnormal
        }
        let kept = round_shift(mantissa, shift as u32);
        // A carry out of `kept` moves into the exponent field, which is what rounding up means.
        if top < -126 { kept } else { (((top + 127) as u32) << 23) + (kept - (1 << 23)) }
    }
}

/// mantissa / 2^shift rounded to nearest; the mantissa is in [2^125, 2^126).
fn round_shift(mantissa: u128, shift: u32) -> u32 {
    let (kept, rest) = ((mantissa >> shift) as u32, mantissa & ((1 << shift) - 1));
    let half = 1u128 << (shift - 1);
    let error = 1u128 << (126 - ERROR_BITS);
    assert!(rest.abs_diff(half) > error + 1, "an elementary function could not be decided");
    kept + u32::from(rest > half)
}
