//! The stated error bounds of both paths against big integers.
//!
//! Only one input in a million comes near enough to a midpoint for a broken bound to show in a
//! result, so the bounds are tested where they are stated.

#[allow(dead_code)]
#[path = "../../tests/elementary/bignum.rs"]
mod bignum;

use super::fixed::Unrounded;
use super::{exp, log1p, trig};
use bignum::{Bignum, Value};

/// Some patterns of every exponent and sign, other than zero and not finite.
fn inputs() -> impl Iterator<Item = f32> {
    let spread = (0..6000u32).map(|i| f32::from_bits(i.wrapping_mul(715_827) ^ i));
    spread.filter(|x| x.is_finite() && *x != 0.0)
}

fn check(name: &str, x: f32, fast: Option<[f64; 2]>, slow: Unrounded, exact: &Value) {
    if let Some(ends) = fast {
        assert!(exact.is_between(ends), "{name}({x:e}) is not within {ends:?}");
        // Half the width must do as well, but for the products that make the ends.
        let middle = (ends[0] + ends[1]) / 2.0;
        let inner = ends.map(|end| middle + (end - middle) * 0.625);
        assert!(exact.is_between(inner), "{name}({x:e}) is not well within {ends:?}");
    }
    let bits = exact.error_bits(slow.negative, slow.mantissa, slow.exponent);
    assert!(bits >= 104, "{name}({x:e}): the slow path errs by 2^-{bits}");
}

#[test]
fn exp_keeps_its_bounds() {
    let big = Bignum::new(320);
    for x in inputs().map(|x| x % 104.0).filter(|x| *x <= 89.0) {
        check("exp", x, Some(exp::enclosure(x)), exp::unrounded(x), &big.exp(x));
    }
}

#[test]
fn log1p_keeps_its_bounds() {
    let big = Bignum::new(320);
    for x in inputs().filter(|x| *x > -1.0) {
        check("log1p", x, Some(log1p::enclosure(x)), log1p::unrounded(x), &big.log1p(x));
    }
}

#[test]
fn sin_and_cos_keep_their_bounds() {
    let big = Bignum::new(480);
    let near_multiples = (1..2000).map(|k| (f64::from(k) * std::f64::consts::FRAC_PI_2) as f32);
    for x in inputs().chain(near_multiples) {
        let (sin, cos) = big.sin_cos(x);
        check("sin", x, trig::enclosure(x, 0), trig::unrounded(x, 0), &sin);
        check("cos", x, trig::enclosure(x, 1), trig::unrounded(x, 1), &cos);
    }
}
