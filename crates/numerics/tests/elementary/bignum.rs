//! The elementary functions in fixed point of several hundred bits, and their rounding to f32.
//!
//! Slow and plain: each value is an integer in units of 2^-bits, each reduction a division.

use num_bigint::{BigInt, Sign};
use num_traits::{One, Signed, ToPrimitive, Zero};

/// Constants at one precision.
pub struct Bignum {
    bits: usize,
    ln2: BigInt,
    half_pi: BigInt,
}

/// value * 2^-bits, a real that is not zero.
pub struct Value {
    value: BigInt,
    bits: i32,
}

impl Bignum {
    /// Sets up `bits` fractional bits; the results keep about 150 fewer, from |result| = 2^-149 on.
    pub fn new(bits: usize) -> Bignum {
        // Machin: pi/4 = 4 atan(1/5) - atan(1/239); ln 2 = 2 atanh(1/3).
        let quarter_pi = 4 * arc_series(bits, 5, -1) - arc_series(bits, 239, -1);
        Bignum { bits, ln2: 2 * arc_series(bits, 3, 1), half_pi: 2 * quarter_pi }
    }

    fn one(&self) -> BigInt {
        BigInt::one() << self.bits
    }

    fn product(&self, a: &BigInt, b: &BigInt) -> BigInt {
        (a * b) >> self.bits
    }

    /// x, exact as long as `bits` >= 149.
    fn fixed(&self, x: f32) -> BigInt {
        exact(x, self.bits)
    }

    /// e^x by halving the argument 40 times, the series, and squaring back.
    pub fn exp(&self, x: f32) -> Value {
        const HALVINGS: usize = 40;
        let reduced = self.fixed(x) >> HALVINGS;
        let (mut term, mut sum, mut n) = (self.one(), self.one(), 1);
        while !term.is_zero() && term != -BigInt::one() {
            term = self.product(&term, &reduced) / n;
            sum += &term;
            n += 1;
        }
        // The result may be as small as 2^-151: squaring keeps a mantissa and an exponent.
        let mut value = Value { value: sum, bits: self.bits as i32 };
        for _ in 0..HALVINGS {
            value = value.squared(self.bits as u64);
        }
        value
    }

    /// ln(1 + x) = k ln 2 + 2 atanh((m - 1)/(m + 1)).
    pub fn log1p(&self, x: f32) -> Value {
        let mut m: BigInt = self.one() + self.fixed(x);
        let mut k = 0;
        while m > self.one() * 3 / 2 {
            m /= 2;
            k += 1;
        }
        while m < self.one() * 3 / 4 {
            m *= 2;
            k -= 1;
        }
        let s: BigInt = ((&m - self.one()) << self.bits) / (&m + self.one());
        let square = self.product(&s, &s);
        let (mut power, mut sum, mut n) = (s, BigInt::zero(), 1);
        while !power.is_zero() && power != -BigInt::one() {
            sum += &power / n;
            power = self.product(&power, &square);
            n += 2;
        }
        Value { value: 2 * sum + k * &self.ln2, bits: self.bits as i32 }
    }

    /// sin x and cos x, by the remainder modulo 2 pi and both series.
    ///
    /// `bits` = 480: the quotient by 2 pi has up to 126 bits, so 350 bits remain.
    pub fn sin_cos(&self, x: f32) -> (Value, Value) {
        let turn: BigInt = 4 * &self.half_pi;
        let mut r: BigInt = self.fixed(x) % &turn;
        if r > 2 * &self.half_pi {
            r -= &turn;
        } else if r < -2 * &self.half_pi {
            r += &turn;
        }
        let square = self.product(&r, &r);
        let series = |first: BigInt, mut n: u32| {
            let (mut term, mut sum) = (first.clone(), first);
            while !term.is_zero() && term != -BigInt::one() {
                term = -self.product(&term, &square) / (n * (n + 1));
                sum += &term;
                n += 2;
            }
            Value { value: sum, bits: self.bits as i32 }
        };
        (series(r, 2), series(self.one(), 1))
    }
}

/// sum of sign^j / ((2j+1) * n^(2j+1)): atan (sign -1) or atanh (sign 1) of 1/n.
fn arc_series(bits: usize, n: u32, sign: i32) -> BigInt {
    let (mut power, mut sum, mut odd, mut factor) =
        ((BigInt::one() << (bits + 32)) / n, BigInt::zero(), 1, 1);
    while !power.is_zero() {
        sum += factor * (&power / odd);
        power /= n * n;
        odd += 2;
        factor *= sign;
    }
    sum >> 32
}

/// x * 2^bits.
fn exact(x: f32, bits: usize) -> BigInt {
    assert!(x.is_finite() && bits >= 149);
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let (field, fraction) = ((magnitude >> 23) as usize, magnitude & 0x7f_ffff);
    let significand = if field == 0 { fraction } else { fraction + (1 << 23) };
    let value = BigInt::from(significand) << (field.max(1) - 1 + bits - 149);
    if x.is_sign_negative() { -value } else { value }
}

impl Value {
    /// The square, cut to about `keep` significant bits.
    fn squared(&self, keep: u64) -> Value {
        let square = &self.value * &self.value;
        let excess = square.bits().saturating_sub(keep);
        Value { value: square >> excess, bits: 2 * self.bits - excess as i32 }
    }

    /// Rounds to the nearest f32 by comparing doubled remainders; an exact tie is an error here.
    pub fn round(&self) -> f32 {
        let magnitude = self.value.abs();
        assert!(!magnitude.is_zero());
        let top = magnitude.bits() as i32 - 1 - self.bits;
        let quantum = (top - 23).max(-149);
        let drop = quantum + self.bits;
        assert!(drop > 0, "the value has bits to spare");
        let unit = BigInt::one() << drop as usize;
        let (mut quanta, rest) = (&magnitude / &unit, &magnitude % &unit);
        assert!(&rest * 2 != unit, "no tie is possible");
        if rest * 2 > unit {
            quanta += 1;
        }
        let sign = if self.value.sign() == Sign::Minus { -1.0 } else { 1.0 };
        // Exact in binary64: at most 25 bits, and a power of two above 2^-150.
        (sign * quanta.to_f64().unwrap() * 2f64.powi(quantum)) as f32
    }

    /// Whether this lies strictly between two nonzero f64 of its own sign, by magnitude.
    pub fn is_between(&self, [nearer, farther]: [f64; 2]) -> bool {
        let magnitude = self.value.abs();
        let scaled = |end: f64| {
            let bits = end.abs().to_bits();
            let significand = BigInt::from(bits & ((1 << 52) - 1) | 1 << 52);
            let shift = (bits >> 52) as i32 - 1075 + self.bits;
            assert!(shift >= 0, "the value has bits to spare");
            significand << shift as usize
        };
        let is_negative = self.value.sign() == Sign::Minus;
        let same_sign = [nearer, farther].iter().all(|v| v.is_sign_negative() == is_negative);
        same_sign && scaled(nearer) < magnitude && magnitude < scaled(farther)
    }

    /// -log2 of the relative error of +-mantissa * 2^exponent, rounded down; at most 400.
    pub fn error_bits(&self, negative: bool, mantissa: u128, exponent: i32) -> i64 {
        let other = BigInt::from(mantissa) * if negative { -1 } else { 1 };
        let shift = exponent + self.bits;
        let (mine, other): (BigInt, BigInt) = if shift >= 0 {
            (self.value.clone(), other << shift as usize)
        } else {
            (&self.value << (-shift) as usize, other)
        };
        let difference: BigInt = &mine - &other;
        let error = difference.abs();
        if error.is_zero() { 400 } else { mine.bits() as i64 - error.bits() as i64 - 1 }
    }
}
