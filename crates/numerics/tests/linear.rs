//! Every stage of a projection against big rationals, hostile inputs included.

use half::bf16;
use num_bigint::BigInt;
use numerics::exact::ExactSum;
use numerics::op::linear::{Elements, Job, Matrix, Output, Prepared, linear};
use numerics::round::widen;
use numerics::{Cpu, SimdLevel};
use proptest::prelude::*;

/// The sum of products as an integer multiple of 2^-298, then rounded by hand.
fn reference(pairs: &[(f32, f32)], precision: u32) -> f32 {
    let mut total = BigInt::from(0);
    for (a, b) in pairs {
        let scaled = |v: f32| {
            let bits = v.to_bits();
            let e = (bits >> 23) & 0xff;
            let m = i64::from(bits & 0x7f_ffff) | if e > 0 { 1 << 23 } else { 0 };
            BigInt::from(if v < 0.0 { -m } else { m }) << (e.max(1) - 1) as usize
        };
        total += scaled(*a) * scaled(*b);
    }
    round(total, precision)
}

fn round(total: BigInt, precision: u32) -> f32 {
    let negative = total < BigInt::from(0);
    let n = if negative { -total } else { total };
    if n == BigInt::from(0) {
        return 0.0;
    }
    let bits = n.bits() as i64;
    // The grid: `precision` bits, or the subnormal grid 2^(-126 - (precision - 1)).
    let lowest = (bits - i64::from(precision)).max(298 - 126 - i64::from(precision) + 1);
    let mut kept = &n >> lowest as usize;
    let rest = &n - (&kept << lowest as usize);
    let half = BigInt::from(1) << (lowest - 1) as usize;
    let odd = &kept % 2 == BigInt::from(1);
    if rest > half || (rest == half && odd) {
        kept += 1;
    }
    let kept: u64 = kept.try_into().expect("few bits");
    let v = kept as f64 * 2f64.powi((lowest - 298) as i32);
    if negative { -v as f32 } else { v as f32 }
}

fn cpus() -> Vec<Cpu> {
    SimdLevel::available()
        .into_iter()
        .map(|l| Cpu::new(l, 1).expect("a level of this CPU"))
        .collect()
}

/// Runs a projection on every level and compares every output with the reference.
fn check(rows: usize, k: usize, w: &[bf16], x: &[bf16]) {
    let tokens = x.len() / k;
    for cpu in cpus() {
        let input = Prepared::new(&cpu, x.to_vec(), k);
        let mut stored = vec![bf16::NAN; tokens * rows];
        let mut plain = vec![f32::NAN; tokens * rows];
        let weights = Matrix::new(rows, k, Elements::Bf16(w));
        let jobs = &mut [
            Job { weights, input: &input, tokens: None, output: Output::Bf16(&mut stored) },
            Job { weights, input: &input, tokens: None, output: Output::F32(&mut plain) },
        ];
        linear(&cpu, jobs).expect("finite");
        for t in 0..tokens {
            for r in 0..rows {
                let pairs: Vec<(f32, f32)> =
                    (0..k).map(|i| (widen(w[r * k + i]), widen(x[t * k + i]))).collect();
                let (b, f) = (reference(&pairs, 8), reference(&pairs, 24));
                let at = t * rows + r;
                let level = cpu.level();
                assert_eq!(
                    widen(stored[at]).to_bits(),
                    b.to_bits(),
                    "bf16 {level:?} t{t} r{r} k{k}"
                );
                assert_eq!(plain[at].to_bits(), f.to_bits(), "f32 {level:?} t{t} r{r} k{k}");
            }
        }
    }
}

/// A bf16 of one of several characters.
fn value() -> impl Strategy<Value = bf16> {
    prop_oneof![
        6 => (-2.0f32..2.0).prop_map(bf16::from_f32),
        2 => any::<u16>().prop_map(bf16::from_bits).prop_filter("finite", |v| v.is_finite())
            .prop_map(|v| if widen(v).abs() > 1e18 { bf16::from_f32(1e18) } else { v }),
        1 => (0u16..0x80, any::<bool>()).prop_map(|(m, s)| bf16::from_bits(m | u16::from(s) << 15)),
        1 => Just(bf16::from_f32(-0.0)),
        1 => Just(bf16::ONE),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn any_values_any_width(k in 1usize..140, seed in prop::collection::vec(value(), 140 * 12)) {
        let (rows, tokens) = (5, 7);
        let w: Vec<bf16> = (0..rows * k).map(|i| seed[(i * 7 + 3) % seed.len()]).collect();
        let x: Vec<bf16> = (0..tokens * k).map(|i| seed[(i * 11 + 5) % seed.len()]).collect();
        check(rows, k, &w, &x);
    }

    #[test]
    fn exact_sum_equals_big_integers(
        pairs in prop::collection::vec((any::<f32>(), any::<f32>()), 1..60),
    ) {
        let pairs: Vec<(f32, f32)> = pairs.into_iter()
            .filter(|(a, b)| a.is_finite() && b.is_finite()).collect();
        let mut sum = ExactSum::new();
        pairs.iter().for_each(|(a, b)| sum.add_product(*a, *b));
        let f = reference(&pairs, 24);
        prop_assert_eq!(sum.to_f32().map(f32::to_bits), f.is_finite().then_some(f.to_bits()));
        let b = reference(&pairs, 8);
        let found = sum.to_bf16().map(|v| widen(v).to_bits());
        prop_assert_eq!(found, b.is_finite().then_some(b.to_bits()));
    }
}

fn noise(n: usize, seed: u64, scale: f32) -> Vec<bf16> {
    let mut state = seed;
    let mut unit = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / 16_777_216.0) - 0.5
    };
    (0..n).map(|_| bf16::from_f32((unit() + unit() + unit()) * scale)).collect()
}

#[test]
fn long_rows_and_every_tile_shape() {
    for (k, tokens) in [
        (1, 1),
        (2, 3),
        (31, 4),
        (33, 5),
        (64, 6),
        (768, 11),
        (3072, 2),
        (16_384, 1),
        (96, 70),
        (300, 33),
    ] {
        let rows = 9;
        check(rows, k, &noise(rows * k, k as u64, 0.05), &noise(tokens * k, 99, 2.0));
    }
}

#[test]
fn ties_and_cancellation() {
    for k in [2usize, 16, 33, 300] {
        // Rows that cancel to an exact tie between two bf16 values: 1 + 2^-8, 1 + 3*2^-8.
        for odd in [1.0f32, 3.0] {
            let mut w = vec![bf16::ZERO; 5 * k];
            let mut x = noise(k, 5, 1.0);
            x[0] = bf16::ONE;
            x[k - 1] = bf16::from_f32(odd / 256.0);
            for r in 0..5 {
                w[r * k] = bf16::ONE;
                w[r * k + k - 1] = bf16::ONE;
            }
            let many: Vec<bf16> = x.iter().copied().cycle().take(6 * k).collect();
            check(5, k, &w, &many);
        }
        // Huge terms that cancel and leave a tiny one.
        let mut w = noise(5 * k, 7, 1.0);
        let mut x = noise(3 * k, 8, 1.0);
        for r in 0..5 {
            w[r * k] = bf16::from_f32(1e15);
            w[r * k + 1] = bf16::from_f32(-1e15);
        }
        for t in 0..3 {
            x[t * k] = bf16::from_f32(1e15);
            x[t * k + 1] = bf16::from_f32(1e15);
        }
        check(5, k, &w, &x);
        // All zero: +0, whatever the signs.
        check(5, k, &vec![bf16::from_f32(-0.0); 5 * k], &noise(4 * k, 3, 1.0));
    }
}

#[test]
fn a_weight_that_is_not_finite_is_an_error_and_names_its_row() {
    for cpu in cpus() {
        for bad in [bf16::INFINITY, bf16::NEG_INFINITY, bf16::NAN] {
            for tokens in [1usize, 6] {
                let (rows, k) = (7, 70);
                let mut w = noise(rows * k, 1, 1.0);
                w[5 * k + 69] = bad;
                let input = Prepared::new(&cpu, noise(tokens * k, 2, 1.0), k);
                let mut out = vec![bf16::ZERO; tokens * rows];
                let weights = Matrix::new(rows, k, Elements::Bf16(&w));
                let output = Output::Bf16(&mut out);
                let jobs = &mut [Job { weights, input: &input, tokens: None, output }];
                let error = linear(&cpu, jobs).expect_err("not finite");
                assert_eq!(error.at.row, 5);
            }
        }
    }
}

#[test]
fn f32_weights_and_chosen_tokens() {
    let (rows, k) = (6, 45);
    let w: Vec<f32> = noise(rows * k, 4, 1.0)
        .iter()
        .enumerate()
        .map(|(i, v)| widen(*v) * (1.0 + i as f32 * 1.3e-5))
        .collect();
    let x = noise(9 * k, 6, 1.0);
    let chosen = [8u32, 0, 3];
    for cpu in cpus() {
        let input = Prepared::new(&cpu, x.clone(), k);
        let mut out = vec![bf16::ZERO; 3 * rows];
        let weights = Matrix::new(rows, k, Elements::F32(&w));
        let output = Output::Bf16(&mut out);
        let jobs = &mut [Job { weights, input: &input, tokens: Some(&chosen), output }];
        linear(&cpu, jobs).expect("finite");
        for (i, t) in chosen.iter().enumerate() {
            for r in 0..rows {
                let pairs: Vec<(f32, f32)> =
                    (0..k).map(|c| (w[r * k + c], widen(x[*t as usize * k + c]))).collect();
                assert_eq!(widen(out[i * rows + r]).to_bits(), reference(&pairs, 8).to_bits());
            }
        }
    }
}

#[test]
fn f32_ties_of_short_sums_and_sums_too_long_for_f64() {
    // Products on a coarse grid: exact in f64, often a tie in f32.
    let k = 40;
    let coarse = |n: usize, seed: u64| -> Vec<bf16> {
        noise(n, seed, 1.0)
            .iter()
            .map(|v| bf16::from_f32((widen(*v) * 64.0).round() / 8.0))
            .collect()
    };
    let (mut w, x) = (coarse(5 * k, 1), coarse(3 * k, 2));
    for r in 0..5 {
        w[r * k] = bf16::from_f32(2f32.powi(20) * if r % 2 == 0 { 1.0 } else { -1.0 });
    }
    check(5, k, &w, &x);
    // A spread of exponents that no f64 sum can hold.
    for r in 0..5 {
        w[r * k + 1] = bf16::from_f32(2f32.powi(60));
        w[r * k + 2] = bf16::from_f32(-(2f32.powi(-60)));
    }
    check(5, k, &w, &x);
    check(5, k, &vec![bf16::ZERO; 5 * k], &vec![bf16::ZERO; 3 * k]);
}

#[test]
fn a_sum_beyond_the_format_is_an_error_even_where_f64_holds_it_exactly() {
    let k = 40;
    for cpu in cpus() {
        for tokens in [1usize, 6, 40] {
            let w = vec![bf16::from_f32(2f32.powi(64)); 5 * k];
            let x = vec![bf16::from_f32(2f32.powi(63)); tokens * k];
            let input = Prepared::new(&cpu, x, k);
            let weights = Matrix::new(5, k, Elements::Bf16(&w));
            let mut stored = vec![bf16::ZERO; tokens * 5];
            let mut plain = vec![0.0f32; tokens * 5];
            for output in [Output::Bf16(&mut stored), Output::F32(&mut plain)] {
                let jobs = &mut [Job { weights, input: &input, tokens: None, output }];
                linear(&cpu, jobs).expect_err("2^127 * 40 is beyond f32 and bf16");
            }
        }
    }
}
