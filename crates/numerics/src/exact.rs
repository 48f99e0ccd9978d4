//! The stage that is always right: f64 where it can be shown to be exact, else a fixed-point
//! accumulator wide enough for any f32 product.
//!
//! Exact ties are common where sums of bf16 products are rounded to f32: such a sum has only a few
//! bits more than 24. But then it also fits the 53 bits of an f64: if every product is a multiple
//! of 2^g (its *grid*) and the absolute sum is below 2^(g + 53), no addition rounds, in any order.

use half::bf16;

use crate::round::{bf16_from_f64, store};

/// The grid of no values at all: nothing rounds.
const NO_GRID: i32 = 4096;

/// The largest g for which `v` is known to be a multiple of 2^g; v is finite.
fn grid_of(v: f32) -> i32 {
    let (mantissa, exponent) = split(v);
    if mantissa == 0 { NO_GRID } else { exponent + mantissa.trailing_zeros() as i32 }
}

/// A grid that every bf16 of a vector lies on: the last place of the smallest one.
#[inline(always)]
pub(crate) fn grid(values: &[bf16]) -> i32 {
    // Zero would be the smallest; it lies on every grid.
    let least = values.iter().fold(u16::MAX, |least, v| {
        let magnitude = v.to_bits() & 0x7fff;
        least.min(magnitude.wrapping_sub(1))
    });
    match least.wrapping_add(1) {
        0 => NO_GRID,
        least => i32::from(least >> 7).max(1) - 127 - 7,
    }
}

/// Whether f64 sums of multiples of 2^grid are exact, given a bound of their absolute sum.
#[inline(always)]
pub(crate) fn is_exact_in_f64(grid: i32, absolute: f64) -> bool {
    grid > -1000 && absolute < exp2((grid + 53).min(1023))
}

/// A sum that has not been rounded yet.
pub(crate) enum Unrounded {
    /// No addition rounded.
    F64(f64),
    /// Any other.
    Big(Box<ExactSum>),
}

impl Unrounded {
    /// The exact sum of products.
    pub(crate) fn products(pairs: impl Iterator<Item = (f32, f32)> + Clone) -> Unrounded {
        let (mut sum, mut absolute, mut grid) = (0.0f64, 0.0f64, NO_GRID);
        for (a, b) in pairs.clone() {
            let p = f64::from(a) * f64::from(b);
            sum += p;
            absolute += p.abs();
            grid = grid.min(grid_of(a) + grid_of(b));
        }
        // The absolute sum may have rounded down, by less than one part in 2^20. Infinities and
        // not-a-number fail the comparison.
        if is_exact_in_f64(grid, absolute * (1.0 + 1.0 / (1 << 20) as f64)) {
            return Unrounded::F64(sum);
        }
        let mut big = ExactSum::new();
        pairs.for_each(|(a, b)| big.add_product(a, b));
        Unrounded::Big(Box::new(big))
    }

    /// Rounded to f32, or `None` if it is not finite.
    pub(crate) fn to_f32(&self) -> Option<f32> {
        match self {
            Unrounded::F64(v) => Some(*v as f32).filter(|v| v.is_finite()),
            Unrounded::Big(sum) => sum.to_f32(),
        }
    }

    /// Rounded to bf16, or `None` if it is not finite.
    pub(crate) fn to_bf16(&self) -> Option<bf16> {
        match self {
            Unrounded::F64(v) => Some(bf16_from_f64(*v)).filter(|v| v.is_finite()),
            Unrounded::Big(sum) => sum.to_bf16(),
        }
    }
}

/// Slots of 32 bits: products of f32 span 2^-298 to 2^256, and sums of 2^31 of them need 31 more.
const SLOTS: usize = 20;
/// The exponent of the lowest bit of slot 0.
const LOWEST: i32 = -298;

/// An exact sum of products of f32 values, to be rounded once.
///
/// Each slot is a signed 64-bit count of 2^(32 i - 298), so up to 2^31 products are added before
/// a carry could be lost.
#[derive(Clone)]
pub struct ExactSum {
    slots: [i64; SLOTS],
    products: u32,
    finite: bool,
}

impl Default for ExactSum {
    fn default() -> Self {
        Self::new()
    }
}

impl ExactSum {
    /// The empty sum, +0.
    pub fn new() -> Self {
        ExactSum { slots: [0; SLOTS], products: 0, finite: true }
    }

    /// Adds `a * b` exactly.
    pub fn add_product(&mut self, a: f32, b: f32) {
        let (ma, ea) = split(a);
        let (mb, eb) = split(b);
        self.finite &= a.is_finite() && b.is_finite();
        self.products += 1;
        assert!(self.products < 1 << 31, "too many products in one exact sum");
        let mantissa = u128::from(ma * mb);
        let at = (ea + eb - LOWEST) as usize;
        let shifted = mantissa << (at % 32);
        let negative = a.is_sign_negative() != b.is_sign_negative();
        for i in 0..3 {
            let part = ((shifted >> (32 * i)) & 0xffff_ffff) as i64;
            self.slots[(at / 32 + i).min(SLOTS - 1)] += if negative { -part } else { part };
        }
    }

    /// Adds `v` exactly.
    pub fn add(&mut self, v: f32) {
        self.add_product(v, 1.0);
    }

    /// The sum rounded to f32, or `None` if an operand or the result is not finite.
    pub fn to_f32(&self) -> Option<f32> {
        self.round(24)
    }

    /// The sum rounded to bf16, or `None` if an operand or the result is not finite.
    pub fn to_bf16(&self) -> Option<bf16> {
        self.round(8).map(store)
    }

    /// Rounds to `precision` significant bits, never below the format's subnormal grid.
    fn round(&self, precision: i32) -> Option<f32> {
        if !self.finite {
            return None;
        }
        let (negative, digits) = self.magnitude();
        let Some(top) = (0..SLOTS).rev().find(|&i| digits[i] != 0) else {
            return Some(0.0);
        };
        let highest = 32 * top as i32 + 31 - digits[top].leading_zeros() as i32;
        // The lowest bit that is kept: `precision` bits, or the subnormal grid.
        let lowest_normal = -126 - (precision - 1) - LOWEST;
        let lowest = (highest - (precision - 1)).max(lowest_normal);
        let mut kept = bits_from(&digits, lowest);
        let half = bit(&digits, lowest - 1);
        let sticky = any_below(&digits, lowest - 1);
        if half && (sticky || kept & 1 == 1) {
            kept += 1;
        }
        let value = kept as f64 * exp2(lowest + LOWEST);
        let value = value as f32;
        value.is_finite().then_some(if negative { -value } else { value })
    }

    /// Sign and magnitude with carries resolved.
    fn magnitude(&self) -> (bool, [u32; SLOTS]) {
        let negative = self.is_negative();
        let mut digits = [0u32; SLOTS];
        let mut carry: i128 = 0;
        for (digit, slot) in digits.iter_mut().zip(&self.slots) {
            let signed = if negative { -i128::from(*slot) } else { i128::from(*slot) };
            let total = carry + signed;
            *digit = (total & 0xffff_ffff) as u32;
            carry = total >> 32;
        }
        assert_eq!(carry, 0, "the accumulator is wide enough for every sum of f32 products");
        (negative, digits)
    }

    fn is_negative(&self) -> bool {
        let mut carry: i128 = 0;
        for slot in &self.slots {
            carry = (carry + i128::from(*slot)) >> 32;
        }
        carry < 0
    }
}

/// Mantissa and exponent: `|v| = mantissa * 2^exponent`, exact for every finite f32.
fn split(v: f32) -> (u64, i32) {
    let bits = v.to_bits();
    let exponent = ((bits >> 23) & 0xff) as i32;
    let fraction = u64::from(bits & 0x7f_ffff);
    match exponent {
        0 => (fraction, -149),
        255 => (0, -149),
        _ => (fraction | 0x80_0000, exponent - 150),
    }
}

/// 2^e as f64; exact for the exponents that occur here.
fn exp2(e: i32) -> f64 {
    assert!((-1022..=1023).contains(&e));
    f64::from_bits(((1023 + e) as u64) << 52)
}

fn bit(digits: &[u32; SLOTS], at: i32) -> bool {
    at >= 0 && digits[at as usize / 32] >> (at % 32) & 1 == 1
}

fn any_below(digits: &[u32; SLOTS], at: i32) -> bool {
    (0..at.max(0)).rev().any(|i| bit(digits, i))
}

/// The bits from `at` upwards; the caller made sure that they fit 32 bits.
fn bits_from(digits: &[u32; SLOTS], at: i32) -> u64 {
    let first = at as usize / 32;
    let low = u64::from(digits[first]);
    let high = digits.get(first + 1).map_or(0, |d| u64::from(*d));
    (low | high << 32) >> (at % 32)
}
