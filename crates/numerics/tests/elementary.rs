//! The elementary functions against big integers, against the reference of the sweep, and the
//! slices against the scalars. `cargo xtask verify-elementary` covers all 2^32 inputs.

#[allow(dead_code)]
#[path = "elementary/bignum.rs"]
mod bignum;
#[allow(dead_code)]
#[path = "../../../xtask/src/verify_elementary/reference.rs"]
mod reference;

use bignum::Bignum;
use numerics::cpu::SimdLevel;
use numerics::elementary::*;
use reference::{Real, Reference, Verdict};

type Unary = fn(f32) -> f32;

/// Patterns from every region of the f32 range, with the hard ones densely covered.
fn patterns(count: u32) -> impl Iterator<Item = f32> {
    let step = (u32::MAX / count) | 1;
    let spread = (0..count).map(move |i| i.wrapping_mul(step).wrapping_add(i.rotate_left(7)));
    let edges = EDGES
        .iter()
        .flat_map(|edge| (0..64).map(|i| edge.to_bits().wrapping_add(i).wrapping_sub(32)));
    spread.chain(edges).map(f32::from_bits)
}

const EDGES: [f32; 29] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    88.722_84,   // exp overflows
    -87.336_55,  // exp turns subnormal
    -103.972_08, // exp rounds to zero
    -104.0,
    89.0,
    5.960_464_5e-8,  // 2^-24: midpoints of exp near 1
    -2.980_232_2e-8, // -2^-25
    2.441_406_2e-4,  // 2^-12: midpoints of cos near 1
    1.726_334_9e-4,
    -0.292_5, // the branches of log1p
    0.414,
    -0.999_999_94,
    16_777_216.0,
    1_048_576.0, // the branches of sin and cos
    0.75,
    std::f32::consts::FRAC_PI_2,
    std::f32::consts::PI,
    2.3e38,
    1e-40,
];

fn is_same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn assert_same(what: &str, x: f32, y: f32, expected: f32) {
    let (bits, got, want) = (x.to_bits(), y.to_bits(), expected.to_bits());
    assert!(is_same(y, expected), "{what}({x:e} = {bits:08x}): {got:08x}, expected {want:08x}");
}

#[test]
fn special_values() {
    let inf = f32::INFINITY;
    let table: [(&str, Unary, f32, f32); 22] = [
        ("exp32", exp32, f32::NAN, f32::NAN),
        ("exp32", exp32, inf, inf),
        ("exp32", exp32, -inf, 0.0),
        ("exp32", exp32, -0.0, 1.0),
        ("exp32", exp32, -103.972_08, 1e-45),
        ("exp32", exp32, -103.972_09, 0.0),
        ("exp32", exp32, f32::MIN, 0.0),
        ("exp32", exp32, 88.722_84, inf),
        ("exp32", exp32, 88.722_83, 3.402_798_5e38),
        ("log1p32", log1p32, f32::NAN, f32::NAN),
        ("log1p32", log1p32, -1.0, -inf),
        ("log1p32", log1p32, -1.000_000_1, f32::NAN),
        ("log1p32", log1p32, -inf, f32::NAN),
        ("log1p32", log1p32, inf, inf),
        ("log1p32", log1p32, -0.0, -0.0),
        ("log1p32", log1p32, -1e-45, -1e-45),
        ("sin32", sin32, -0.0, -0.0),
        ("sin32", sin32, inf, f32::NAN),
        ("sin32", sin32, 1e-45, 1e-45),
        ("cos32", cos32, 0.0, 1.0),
        ("cos32", cos32, -inf, f32::NAN),
        ("cos32", cos32, f32::NAN, f32::NAN),
    ];
    for (name, function, x, expected) in table {
        assert_same(name, x, function(x), expected);
    }
}

#[test]
fn activations_are_their_written_chains() {
    for x in patterns(1 << 16) {
        assert_same("sig32", x, sig32(x), 1.0 / (1.0 + exp32(-x)));
        assert_same("silu32", x, silu32(x), x / (1.0 + exp32(-x)));
        let softplus = if x > 20.0 { x } else { log1p32(exp32(x)) };
        assert_same("softplus32", x, softplus32(x), softplus);
    }
    assert_same("sig32", f32::NEG_INFINITY, sig32(f32::NEG_INFINITY), 0.0);
    assert_same("silu32", -200.0, silu32(-200.0), -0.0);
    assert_same("softplus32", 20.000_002, softplus32(20.000_002), 20.000_002);
    assert_same("softplus32", -200.0, softplus32(-200.0), 0.0);
}

#[test]
fn exp_and_log1p_match_big_integers() {
    let big = Bignum::new(320);
    for x in patterns(1 << 13).filter(|x| x.is_finite() && *x != 0.0) {
        if (-104.0..=89.0).contains(&x) {
            assert_same("exp32", x, exp32(x), big.exp(x).round());
        }
        if x > -1.0 {
            assert_same("log1p32", x, log1p32(x), big.log1p(x).round());
        }
    }
}

#[test]
fn sin_and_cos_match_big_integers() {
    let big = Bignum::new(480);
    let near_multiples = (1..4000u64).chain((0..300).map(|i| (1u64 << 20) * i + 12_345 + i * i));
    let hostile = near_multiples.flat_map(|k| {
        let x = (k as f64 * std::f64::consts::FRAC_PI_2) as f32;
        [x, x.next_up(), -x.next_down()]
    });
    // The f32 nearest to a multiple of pi/2 (Muller, Elementary Functions, chapter 11).
    let nearest = [16_367_173.0 * 2f32.powi(72), f32::MAX];
    let all = patterns(1 << 13).chain(hostile).chain(nearest);
    for x in all.filter(|x| x.is_finite() && *x != 0.0) {
        let (sin, cos) = big.sin_cos(x);
        assert_same("sin32", x, sin32(x), sin.round());
        assert_same("cos32", x, cos32(x), cos.round());
    }
}

#[test]
fn sin_and_cos_are_odd_and_even() {
    for x in patterns(1 << 18).filter(|x| x.is_finite()) {
        assert_same("sin32", x, sin32(-x), -sin32(x));
        assert_same("cos32", x, cos32(-x), cos32(x));
    }
}

/// Inputs that the fast path cannot decide are the ones that the slow path must get right.
#[test]
fn undecided_inputs_match_big_integers() {
    let big = Bignum::new(320);
    check_undecided("exp32", exp32_fast, exp32, |x| big.exp(x));
    check_undecided("log1p32", log1p32_fast, log1p32, |x| big.log1p(x));
    check_undecided("sin32", sin32_fast, sin32, |x| big.sin_cos(x).0);
    check_undecided("cos32", cos32_fast, cos32, |x| big.sin_cos(x).1);
}

fn check_undecided(
    name: &str,
    fast: fn(f32) -> Option<f32>,
    function: Unary,
    exact: impl Fn(f32) -> bignum::Value,
) {
    // |x| from 2^-25 to 2^20, where each function has a fast path that can fail.
    let dense = (0x3300_0000..0x4980_0000).step_by(13).map(f32::from_bits);
    let hard = dense.flat_map(|x| [x, -x]).filter(|x| fast(*x).is_none());
    let mut tried = 0;
    for x in hard.take(1000) {
        tried += 1;
        assert_same(name, x, function(x), exact(x).round());
    }
    assert!(tried > 3, "{name}: only {tried} hard inputs among those tried");
}

#[test]
fn sampled_sweep_against_the_reference() {
    let reference = Reference::new();
    for x in patterns(1 << 20).filter(|x| x.is_finite() && *x != 0.0) {
        if (-104.0..=89.0).contains(&x) {
            let verdict = reference.exp(x).judge(exp32(x));
            assert!(matches!(verdict, Verdict::Nearest(_)), "exp32({x:e}): {verdict:?}");
        }
        if x > -1.0 {
            let verdict = reference.log1p(x).judge(log1p32(x));
            assert!(matches!(verdict, Verdict::Nearest(_)), "log1p32({x:e}): {verdict:?}");
        }
    }
}

#[test]
fn the_reference_keeps_its_bound() {
    let (reference, big) = (Reference::new(), Bignum::new(320));
    for x in patterns(1 << 12).filter(|x| x.is_finite() && *x != 0.0) {
        if (-104.0..=89.0).contains(&x) {
            assert_within_bound("exp", x, reference.exp(x), &big.exp(x));
        }
        if x > -1.0 {
            assert_within_bound("log1p", x, reference.log1p(x), &big.log1p(x));
        }
    }
}

fn assert_within_bound(name: &str, x: f32, value: Real, exact: &bignum::Value) {
    let bits = exact.error_bits(value.negative, value.mantissa, value.exponent);
    assert!(bits >= 105, "reference {name}({x:e}): relative error 2^-{bits}");
}

/// The harness must be able to fail: the neighbours of a right result are judged wrong.
#[test]
fn a_wrong_result_is_noticed() {
    let reference = Reference::new();
    for x in [-103.9f32, -88.0, -1.5, -1e-3, 1e-6, 0.3, 2.0, 88.7] {
        let (exp, log) = (exp32(x), log1p32(x));
        for wrong in [exp.next_up(), exp.next_down(), -exp, f32::NAN, f32::INFINITY, 0.0] {
            assert!(reference.exp(x).judge(wrong) == Verdict::Wrong, "exp32({x}) = {wrong:e}");
        }
        if x > -1.0 {
            for wrong in [log.next_up(), log.next_down(), -log, f32::NAN, 0.0] {
                assert!(reference.log1p(x).judge(wrong) == Verdict::Wrong, "log1p32({x})");
            }
        }
    }
    // And so are those of the big integers.
    let big = Bignum::new(320);
    assert_ne!(big.exp(2.0).round().to_bits(), exp32(2.0f32.next_up()).to_bits());
}

#[test]
fn slices_match_the_scalars_at_every_level() {
    let inputs: Vec<f32> = patterns(1 << 20).collect();
    for level in SimdLevel::available() {
        check_slice("exp32_slice", level, &inputs, exp32_slice, exp32);
        check_slice("silu32_slice", level, &inputs, silu32_slice, silu32);
    }
}

#[test]
fn slices_of_every_length_and_alignment() {
    let inputs: Vec<f32> = (0..80).map(|i| (i * i % 97) as f32 * 2.3 - 110.0).collect();
    for level in SimdLevel::available() {
        for start in 0..9 {
            for length in 0..=70 {
                let part = &inputs[start..start + length];
                check_slice("exp32_slice", level, part, exp32_slice, exp32);
                check_slice("silu32_slice", level, part, silu32_slice, silu32);
            }
        }
    }
}

/// Undecided and undefined lanes in every position of a vector.
#[test]
fn slices_redo_single_lanes() {
    let hard = [2f32.powi(-24), -(2f32.powi(-25)), f32::NAN, -f32::NAN, f32::INFINITY, -1e30];
    for (level, x) in SimdLevel::available().into_iter().flat_map(|l| hard.map(|x| (l, x))) {
        for lane in 0..40 {
            let mut inputs = [0.625f32; 40];
            inputs[lane] = x;
            check_slice("exp32_slice", level, &inputs, exp32_slice, exp32);
            check_slice("silu32_slice", level, &inputs, silu32_slice, silu32);
        }
    }
}

fn check_slice(
    name: &str,
    level: SimdLevel,
    inputs: &[f32],
    slice: fn(SimdLevel, &mut [f32]),
    scalar: Unary,
) {
    // One element off on both sides: the slice starts unaligned, and overruns are seen.
    let mut guarded = vec![7.5f32; inputs.len() + 2];
    guarded[1..=inputs.len()].copy_from_slice(inputs);
    slice(level, &mut guarded[1..=inputs.len()]);
    assert!(guarded[0] == 7.5 && guarded[inputs.len() + 1] == 7.5, "{name} {level:?} overran");
    for (x, y) in inputs.iter().zip(&guarded[1..]) {
        let (bits, want) = (y.to_bits(), scalar(*x).to_bits());
        assert_eq!(bits, want, "{name} at {level:?} of {x:e} ({:08x})", x.to_bits());
    }
}

#[test]
fn a_level_that_is_absent_is_refused() {
    if SimdLevel::detect() < SimdLevel::Avx512 {
        let refused = std::panic::catch_unwind(|| exp32_slice(SimdLevel::Avx512, &mut [1.0]));
        assert!(refused.is_err());
    }
}
