//! Rotary position embedding over the first `rot` dimensions of a head, halves a | b.

use half::bf16;
use num_bigint::BigUint;

use crate::elementary::{cos32, sin32};
use crate::round::{store, widen};

/// `inv_i = f32(theta^(-2i/rot))`, correctly rounded, for i below rot/2.
///
/// Source: Su et al. 2021, section 3.2.2.
pub fn inverse_frequencies(theta: f64, rot: usize) -> Vec<f32> {
    assert!(theta >= 1.0 && theta.is_finite(), "theta is checked when the model is read");
    (0..rot / 2).map(|i| inverse_frequency(theta, i as u32, rot as u32)).collect()
}

/// One frequency. `powf` is only a guess: where its neighbourhood holds a rounding boundary, an
/// integer comparison decides.
fn inverse_frequency(theta: f64, i: u32, rot: u32) -> f32 {
    let guess = theta.powf(-2.0 * f64::from(i) / f64::from(rot));
    let slack = 1.0 / (1u64 << 44) as f64;
    let (low, high) = ((guess * (1.0 - slack)) as f32, (guess * (1.0 + slack)) as f32);
    if low.to_bits() == high.to_bits() {
        return low;
    }
    let middle = (f64::from(low) + f64::from(high)) / 2.0;
    if is_below(middle, theta, i, rot) { high } else { low }
}

/// Whether `middle < theta^(-2i/rot)`, that is `middle^rot * theta^(2i) < 1`, in integers.
///
/// The boundary itself is no power of theta of that kind unless it is exactly representable, in
/// which case both neighbours agreed before.
fn is_below(middle: f64, theta: f64, i: u32, rot: u32) -> bool {
    let (m, me) = integer(middle);
    let (t, te) = integer(theta);
    let product = m.pow(rot) * t.pow(2 * i);
    let exponent = i64::from(me) * i64::from(rot) + i64::from(te) * i64::from(2 * i);
    // product * 2^exponent < 1
    exponent < 0 && product.bits() <= exponent.unsigned_abs()
}

/// `v = n * 2^e` for a positive finite v.
fn integer(v: f64) -> (BigUint, i32) {
    let bits = v.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i32;
    let fraction = bits & ((1 << 52) - 1);
    let (n, e) = match exponent {
        0 => (fraction, -1074),
        _ => (fraction | 1 << 52, exponent - 1075),
    };
    (BigUint::from(n >> n.trailing_zeros()), e + n.trailing_zeros() as i32)
}

/// The stored cosines and sines of one position.
#[derive(Clone, Debug)]
pub struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Angles {
    /// `angle = f32(position) * inv_i`; `c = store(cos32(angle))`, `s = store(sin32(angle))`.
    pub fn at(position: usize, inverse: &[f32]) -> Angles {
        let angle = |inv: &f32| position as f32 * inv;
        Angles {
            cos: inverse.iter().map(|i| widen(store(cos32(angle(i))))).collect(),
            sin: inverse.iter().map(|i| widen(store(sin32(angle(i))))).collect(),
        }
    }

    /// The cosines, which are bf16 values, `[rotated / 2]`.
    pub fn cosines(&self) -> impl Iterator<Item = bf16> {
        self.cos.iter().map(|v| store(*v))
    }

    /// The sines, likewise.
    pub fn sines(&self) -> impl Iterator<Item = bf16> {
        self.sin.iter().map(|v| store(*v))
    }
}

/// Rotates one head in place: `a' = store(a*c - b*s)`, `b' = store(b*c + a*s)`.
///
/// Shapes: `head` is `[head_dim]`, of which the first `2 * cos.len()` are rotated.
pub fn rotate(head: &mut [bf16], angles: &Angles) {
    let half = angles.cos.len();
    let (a, rest) = head.split_at_mut(half);
    let pairs = a.iter_mut().zip(&mut rest[..half]);
    for ((a, b), (c, s)) in pairs.zip(angles.cos.iter().zip(&angles.sin)) {
        let (va, vb) = (widen(*a), widen(*b));
        *a = store(va * c - vb * s);
        *b = store(vb * c + va * s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_decide_like_the_guess_where_both_can() {
        for (theta, rot) in [(1e7, 64u32), (1e4, 128), (1e6, 96), (500_000.0, 6)] {
            for i in 1..rot / 2 {
                let exact = f64::powf(theta, -2.0 * f64::from(i) / f64::from(rot));
                assert!(is_below(exact * (1.0 - 1e-12), theta, i, rot));
                assert!(!is_below(exact * (1.0 + 1e-12), theta, i, rot));
            }
        }
    }

    #[test]
    fn the_first_frequency_is_one() {
        assert_eq!(inverse_frequencies(1e7, 16)[0].to_bits(), 1f32.to_bits());
    }
}
