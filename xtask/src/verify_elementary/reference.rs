//! e^x and ln(1 + x) to better than 2^-105, by other means than the functions under test.
//!
//! The implementation sums one Taylor or atanh series after one reduction; here the argument is
//! taken apart by tables that are built at the start, and what is left is below 2^-16. Numbers
//! are u128 in units of 2^-126 unless a name says otherwise. The tests of the numerics crate hold
//! this file against series of big integers.

/// A nonzero real as sign, mantissa with its top bit set, and exponent; relative error < 2^-105.
#[derive(Clone, Copy, Debug)]
pub struct Real {
    pub negative: bool,
    pub mantissa: u128,
    pub exponent: i32,
}

/// What a reference value says about an f32 that claims to be its nearest neighbour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Right, and this far from the midpoint where it would change, relative to the value.
    Nearest(f64),
    /// Another f32 is nearer.
    Wrong,
    /// The midpoint lies within the error bound of the reference.
    Undecided,
}

const ONE: u128 = 1 << 126;

/// floor(a * b / 2^128).
fn high_product(a: u128, b: u128) -> u128 {
    let (a1, a0) = ((a >> 64) as u64, a as u64);
    let (b1, b0) = ((b >> 64) as u64, b as u64);
    let wide = |x: u64, y: u64| u128::from(x) * u128::from(y);
    let (cross_a, cross_b) = (wide(a1, b0), wide(a0, b1));
    let column = (wide(a0, b0) >> 64) + u128::from(cross_a as u64) + u128::from(cross_b as u64);
    wide(a1, b1) + (cross_a >> 64) + (cross_b >> 64) + (column >> 64)
}

impl Real {
    fn normalised(negative: bool, mantissa: u128, exponent: i32) -> Real {
        let zeros = mantissa.leading_zeros();
        Real { negative, mantissa: mantissa << zeros, exponent: exponent - zeros as i32 }
    }

    /// Judges whether `y` is this real rounded to nearest.
    pub fn judge(&self, y: f32) -> Verdict {
        if y.is_nan() || y.is_sign_negative() != self.negative {
            return Verdict::Wrong;
        }
        let top = self.exponent + 127;
        if top >= 128 {
            return if y.is_infinite() { Verdict::Nearest(1.0) } else { Verdict::Wrong };
        }
        // Four spare bits, so that one quantum of the least results still fits.
        let (value, exponent) = (self.mantissa >> 4, self.exponent + 4);
        let quantum = (top - 23).max(-149);
        let shift = quantum - exponent;
        assert!(shift <= 125, "below an eighth of the least subnormal");
        match in_quanta(y, quantum) {
            Some(claimed) => judge_distance(value, claimed, shift as u32),
            None => Verdict::Wrong,
        }
    }
}

fn judge_distance(value: u128, claimed: u128, shift: u32) -> Verdict {
    let below = value >> shift;
    if claimed != below && claimed != below + 1 {
        return Verdict::Wrong;
    }
    let off = value.abs_diff(claimed << shift);
    let half = 1u128 << (shift - 1);
    // 2^-105 of a value below 2^124, and the four bits dropped.
    if off.abs_diff(half) <= (1 << 19) + 1 {
        return Verdict::Undecided;
    }
    if off > half { Verdict::Wrong } else { Verdict::Nearest((half - off) as f64 / value as f64) }
}

/// |y| in units of 2^quantum, infinity standing for 2^128; `None` if it is not near such a grid.
fn in_quanta(y: f32, quantum: i32) -> Option<u128> {
    let bits = y.to_bits() & 0x7fff_ffff;
    let (field, fraction) = ((bits >> 23) as i32, u128::from(bits & 0x7f_ffff));
    let (significand, exponent) =
        if field == 0 { (fraction, -149) } else { (fraction + (1 << 23), field - 150) };
    match exponent - quantum {
        up @ 0..=1 => Some(significand << up),
        _ => None,
    }
}

/// The tables; building them takes well under a millisecond per thousand entries.
pub struct Reference {
    /// e^n for n from -105 to 89.
    whole: Vec<Real>,
    /// e^(j/2^8) and e^(j/2^16).
    first: Vec<u128>,
    second: Vec<u128>,
    /// 1/n! and 1/n.
    factorial: [u128; 8],
    inverse: [u128; 20],
    /// By the leading byte of m: a with m*a/2^8 just below 1, and -ln(a/2^8) in 2^-120.
    scale: Vec<(u128, i128)>,
    /// ln(1 + j/2^13) and ln(1 + j/2^19) in 2^-120.
    fine: Vec<i128>,
    finer: Vec<i128>,
    ln2_q120: i128,
}

const WHOLE_MIN: i32 = -105;
const WHOLE_MAX: i32 = 89;

impl Reference {
    /// Builds the tables; their entries err by less than 2^-118, those of `whole` by 2^-113.
    pub fn new() -> Reference {
        let mut factorial = [ONE; 8];
        for n in 1..8 {
            factorial[n] = factorial[n - 1] / n as u128;
        }
        Reference {
            whole: powers_of_e(),
            first: (0..256).map(|j| exp_series(j << 120)).collect(),
            second: (0..256).map(|j| exp_series(j << 112)).collect(),
            factorial,
            inverse: std::array::from_fn(|n| ONE / n.max(1) as u128),
            scale: (0..256).map(scale_entry).collect(),
            fine: (0..256u128).map(|j| ln_one_plus(j << 115)).collect(),
            finer: (0..256u128).map(|j| ln_one_plus(j << 109)).collect(),
            ln2_q120: -ln_one_minus(1 << 127),
        }
    }

    /// e^x for -104 <= x <= 89: e^n * e^(j/2^8) * e^(k/2^16) * e^r with r < 2^-16.
    ///
    /// `whole` brings 2^-113, the other factors and three products less than 2^-117.
    pub fn exp(&self, x: f32) -> Real {
        let fixed = to_q120(x);
        let whole = self.whole[((fixed >> 120) as i32 - WHOLE_MIN) as usize];
        let fraction = (fixed & ((1 << 120) - 1)) as u128;
        let (j, k) = ((fraction >> 112) as usize, (fraction >> 104 & 0xff) as usize);
        let rest_q128 = (fraction & ((1 << 104) - 1)) << 8;
        let tail = self.factorial.iter().rev().fold(0, |sum, c| c + high_product(rest_q128, sum));
        let product = high_product(self.first[j], self.second[k]) << 2;
        let product = high_product(product, tail) << 2;
        Real::normalised(false, high_product(whole.mantissa, product), whole.exponent + 2)
    }

    /// ln(1 + x) for x in (-1, inf) other than 0.
    pub fn log1p(&self, x: f32) -> Real {
        if x.abs() < 1.0 / 256.0 { self.log1p_small(x) } else { self.log1p_large(x) }
    }

    /// x * (1 - x/2 + x^2/3 - ...): the factor errs by less than 2^-123.
    fn log1p_small(&self, x: f32) -> Real {
        let (significand, exponent) = parts(x);
        let size_q128 = shifted(significand, exponent + 128);
        // Each term gains as many bits as |x| has leading zeros.
        let bits_per_term = -(exponent + 24);
        let terms = (128 / bits_per_term + 2).min(18) as usize;
        let factor = self.inverse[1..terms].iter().rev().fold(0, |sum, c| {
            let product = high_product(size_q128, sum);
            if x < 0.0 { c + product } else { c - product }
        });
        let mantissa = high_product(significand << 104, factor);
        Real::normalised(x < 0.0, mantissa, exponent + 24 - 126)
    }

    /// k ln 2 + ln m, with m multiplied up to 1 - e, e < 2^-18, by three table factors.
    ///
    /// k ln 2 errs by k/2 units of 2^-120, all else by less than 2^6; |ln(1+x)| > 2^-8.1, and
    /// > k/2 where k is not 0, 1 or -1: relative error < 2^-105.
    fn log1p_large(&self, x: f32) -> Real {
        let (m_q127, k) = one_plus(x);
        let (factor, scale_log) = self.scale[(m_q127 >> 120) as usize];
        let m = (m_q127 >> 8) * factor;
        let j = (((1u128 << 127) - m) >> 114) as usize;
        let m = m + high_product(m, (j as u128) << 115);
        let l = (((1u128 << 127) - m) >> 108) as usize;
        let m = m + high_product(m, (l as u128) << 109);
        let rest_q128 = ((1u128 << 127) - m) << 1;
        let series =
            self.inverse[1..8].iter().rev().fold(0, |sum, c| c + high_product(rest_q128, sum));
        let rest_log = (high_product(rest_q128, series) >> 6) as i128;
        let log =
            i128::from(k) * self.ln2_q120 + scale_log - self.fine[j] - self.finer[l] - rest_log;
        Real::normalised(log < 0, log.unsigned_abs(), -120)
    }
}

impl Default for Reference {
    fn default() -> Reference {
        Reference::new()
    }
}

/// |x| = significand * 2^exponent with a 24-bit significand, for a normal or subnormal x.
fn parts(x: f32) -> (u128, i32) {
    // Exact in binary64, where every nonzero f32 is normal.
    let bits = f64::from(x).to_bits();
    let significand = (bits & ((1 << 52) - 1) | 1 << 52) >> 29;
    (u128::from(significand), (bits >> 52 & 0x7ff) as i32 - 1023 - 23)
}

/// floor(v * 2^by), for a result that fits.
fn shifted(v: u128, by: i32) -> u128 {
    if by >= 0 { v << by } else { v.checked_shr(-by as u32).unwrap_or(0) }
}

/// x in units of 2^-120, rounded toward zero.
fn to_q120(x: f32) -> i128 {
    if x == 0.0 {
        return 0;
    }
    let (significand, exponent) = parts(x);
    let size = shifted(significand, exponent + 120) as i128;
    if x < 0.0 { -size } else { size }
}

/// 1 + x = m * 2^k with m in [1, 2) in units of 2^-127; short by less than 2^-119 of it.
fn one_plus(x: f32) -> (u128, i32) {
    let (significand, exponent) = parts(x);
    // The unit is 2^low, 96 bits or more below the leading one of the sum.
    let low = (exponent + 24).max(1) - 100;
    let (one, size) = (shifted(1, -low), shifted(significand, exponent - low));
    let sum = if x < 0.0 { one - size } else { one + size };
    let zeros = sum.leading_zeros();
    (sum << zeros, low + 127 - zeros as i32)
}

/// e^d for d in units of 2^-128, by its series.
fn exp_series(d_q128: u128) -> u128 {
    let (mut term, mut sum, mut n) = (ONE, ONE, 1);
    while term != 0 {
        term = high_product(term, d_q128) / n;
        sum += term;
        n += 1;
    }
    sum
}

/// ln(1 - d) for d in units of 2^-128, in units of 2^-120.
fn ln_one_minus(d_q128: u128) -> i128 {
    let (mut power, mut sum, mut n) = (d_q128 >> 2, 0, 1);
    while power != 0 {
        sum += power / n;
        power = high_product(power, d_q128);
        n += 1;
    }
    -((sum >> 6) as i128)
}

/// ln(1 + d) for d in units of 2^-128, in units of 2^-120.
fn ln_one_plus(d_q128: u128) -> i128 {
    let (mut power, mut sum, mut n) = ((d_q128 >> 2) as i128, 0i128, 1);
    while power != 0 {
        sum += if n % 2 == 1 { power / n } else { -power / n };
        power = high_product(power as u128, d_q128) as i128;
        n += 1;
    }
    sum >> 6
}

/// For m in [byte/128, (byte+1)/128): a = floor(2^15/(byte+1)), so m*a/2^8 is in (0.984, 1].
fn scale_entry(byte: u128) -> (u128, i128) {
    if byte < 128 {
        return (0, 0);
    }
    let a = (1 << 15) / (byte + 1);
    (a, -ln_one_minus((256 - a) << 120))
}

/// e^n by repeated products with e = sum 1/n! and 1/e = sum (-1)^n/n!.
fn powers_of_e() -> Vec<Real> {
    let (mut term, mut even, mut odd, mut n) = (ONE, ONE, 0u128, 1);
    while term != 0 {
        term /= n;
        if n % 2 == 1 {
            odd += term
        } else {
            even += term
        }
        n += 1;
    }
    let up = Real::normalised(false, even + odd, -126);
    let down = Real::normalised(false, even - odd, -126);
    let one = Real::normalised(false, ONE, -126);
    let chain = |base: Real, count: i32| {
        std::iter::successors(Some(one), move |power| {
            let mantissa = high_product(power.mantissa, base.mantissa);
            Some(Real::normalised(false, mantissa, power.exponent + base.exponent + 128))
        })
        .take(count as usize + 1)
    };
    let mut powers: Vec<Real> = chain(down, -WHOLE_MIN).skip(1).collect();
    powers.reverse();
    powers.extend(chain(up, WHOLE_MAX));
    powers
}
