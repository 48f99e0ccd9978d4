//! `cargo xtask verify-elementary`: every f32 input of the elementary functions, judged.
//!
//! Outside the ranges where a lemma gives the result (written beside each), each result is judged
//! by `reference`, which shares no code with the functions under test.

mod reference;

use anyhow::{Context, bail};
use numerics::cpu::SimdLevel;
use numerics::elementary::{exp32, exp32_fast, exp32_slice, log1p32, log1p32_fast};
use rayon::prelude::*;
use reference::{Reference, Verdict};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const PATTERNS: u64 = 1 << 32;
const CHUNK: u64 = 1 << 14;

/// A function under test.
struct Function {
    name: &'static str,
    value: fn(f32) -> f32,
    fast: fn(f32) -> Option<f32>,
    slice: Option<fn(SimdLevel, &mut [f32])>,
    judge: fn(&Reference, f32, f32) -> Verdict,
}

const FUNCTIONS: [Function; 2] = [
    Function {
        name: "exp32",
        value: exp32,
        fast: exp32_fast,
        slice: Some(exp32_slice),
        judge: judge_exp,
    },
    Function {
        name: "log1p32",
        value: log1p32,
        fast: log1p32_fast,
        slice: None,
        judge: judge_log1p,
    },
];

/// What a part of the sweep saw.
#[derive(Clone, Copy)]
struct Tally {
    inputs: u64,
    mismatches: u64,
    undecided: u64,
    slow: u64,
    margin_min: f64,
    margin_min_at: f32,
}

impl Tally {
    const EMPTY: Tally = Tally {
        inputs: 0,
        mismatches: 0,
        undecided: 0,
        slow: 0,
        margin_min: 1.0,
        margin_min_at: 0.0,
    };

    fn merge(self, other: Tally) -> Tally {
        let nearer = if other.margin_min < self.margin_min { other } else { self };
        Tally {
            inputs: self.inputs + other.inputs,
            mismatches: self.mismatches + other.mismatches,
            undecided: self.undecided + other.undecided,
            slow: self.slow + other.slow,
            ..nearer
        }
    }

    fn add(&mut self, function: &Function, reference: &Reference, x: f32, y: f32) {
        self.inputs += 1;
        self.slow += u64::from((function.fast)(x).is_none());
        match (function.judge)(reference, x, y) {
            Verdict::Nearest(margin) if margin < self.margin_min => {
                (self.margin_min, self.margin_min_at) = (margin, x);
            }
            Verdict::Nearest(_) => {}
            Verdict::Undecided => self.undecided += 1,
            Verdict::Wrong => self.report_mismatch(function.name, x, y),
        }
    }

    fn report_mismatch(&mut self, what: &str, x: f32, y: f32) {
        self.mismatches += 1;
        if self.mismatches <= 3 {
            let (x_bits, y_bits) = (x.to_bits(), y.to_bits());
            eprintln!("\n{what}({x:e} = {x_bits:08x}) = {y:e} = {y_bits:08x} is wrong");
        }
    }
}

/// Sweeps the functions named by `--function exp32|log1p32|all`, every `--sample N`th input.
///
/// # Errors
/// An unknown option, or any input whose result is wrong, undecided or not the same in a slice.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let (chosen, stride) = parse(args)?;
    let reference = Reference::new();
    let mut failures = 0;
    for function in FUNCTIONS.iter().filter(|f| chosen == "all" || chosen == f.name) {
        let start = Instant::now();
        let tally = sweep(function, &reference, stride);
        failures += tally.mismatches + tally.undecided;
        report(function, &tally, start.elapsed().as_secs_f64());
    }
    if failures > 0 {
        bail!("{failures} results are not the correctly rounded value");
    }
    Ok(())
}

fn parse(args: &[String]) -> anyhow::Result<(String, u64)> {
    let (mut chosen, mut stride) = ("all".to_string(), 1);
    let mut rest = args.iter();
    while let Some(option) = rest.next() {
        let value = rest.next().with_context(|| format!("{option} needs a value"))?;
        match option.as_str() {
            "--function" => chosen = value.clone(),
            "--sample" => stride = value.parse().context("--sample takes a number")?,
            _ => bail!("unknown option {option}: --function NAME, --sample N"),
        }
    }
    if chosen != "all" && FUNCTIONS.iter().all(|f| f.name != chosen) {
        bail!("unknown function {chosen}: exp32, log1p32 or all");
    }
    if stride == 0 {
        bail!("--sample takes a number above 0");
    }
    Ok((chosen, stride))
}

fn sweep(function: &Function, reference: &Reference, stride: u64) -> Tally {
    let span = CHUNK * stride;
    let chunks = PATTERNS.div_ceil(span);
    let done = AtomicU64::new(0);
    (0..chunks)
        .into_par_iter()
        .map(|chunk| {
            let first = chunk * span;
            let patterns = (first..(first + span).min(PATTERNS)).step_by(stride as usize);
            let inputs: Vec<f32> = patterns.map(|bits| f32::from_bits(bits as u32)).collect();
            let tally = sweep_chunk(function, reference, &inputs);
            show_progress(function.name, done.fetch_add(1, Ordering::Relaxed) + 1, chunks);
            tally
        })
        .reduce(|| Tally::EMPTY, Tally::merge)
}

fn sweep_chunk(function: &Function, reference: &Reference, inputs: &[f32]) -> Tally {
    let outputs: Vec<f32> = inputs.iter().map(|x| (function.value)(*x)).collect();
    let mut tally = Tally::EMPTY;
    for (x, y) in inputs.iter().zip(&outputs) {
        tally.add(function, reference, *x, *y);
    }
    let Some(slice) = function.slice else {
        return tally;
    };
    for level in SimdLevel::available() {
        let mut values = inputs.to_vec();
        slice(level, &mut values);
        for i in 0..inputs.len() {
            if values[i].to_bits() != outputs[i].to_bits() {
                tally.report_mismatch(&format!("slice at {level:?}"), inputs[i], values[i]);
            }
        }
    }
    tally
}

fn show_progress(name: &str, done: u64, chunks: u64) {
    let step = chunks.div_ceil(100).max(1);
    if done.is_multiple_of(step) {
        eprint!("\r{name}: {:3} %", done * 100 / chunks);
    }
}

fn report(function: &Function, tally: &Tally, seconds: f64) {
    let levels = match function.slice {
        Some(_) => format!("{:?}", SimdLevel::available()),
        None => "no slice".to_string(),
    };
    println!(
        "\r{}: inputs {}, mismatches {}, undecided {}, slow path {}, nearest boundary 2^{:.1} \
         at {:e} ({:08x}), slices {levels}, {seconds:.0} s",
        function.name,
        tally.inputs,
        tally.mismatches,
        tally.undecided,
        tally.slow,
        tally.margin_min.log2(),
        tally.margin_min_at,
        tally.margin_min_at.to_bits(),
    );
}

/// Right where the bits are the expected ones, at no particular distance from a midpoint.
fn must_be(expected: f32, y: f32) -> Verdict {
    let same = expected.to_bits() == y.to_bits() || (expected.is_nan() && y.is_nan());
    if same { Verdict::Nearest(1.0) } else { Verdict::Wrong }
}

fn judge_exp(reference: &Reference, x: f32, y: f32) -> Verdict {
    if x.is_nan() {
        must_be(f32::NAN, y)
    } else if x > 89.0 {
        must_be(f32::INFINITY, y) // e^89 > 2^128
    } else if x < -104.0 {
        must_be(0.0, y) // e^-104 < 2^-150, half the least subnormal
    } else if x.abs() <= 1.0 / (1u32 << 26) as f32 {
        must_be(1.0, y) // 1 - 2^-25 < e^x < 1 + 2^-24, the midpoints around 1
    } else {
        reference.exp(x).judge(y)
    }
}

fn judge_log1p(reference: &Reference, x: f32, y: f32) -> Verdict {
    if x.is_nan() || x < -1.0 {
        must_be(f32::NAN, y)
    } else if x == -1.0 {
        must_be(f32::NEG_INFINITY, y)
    } else if x == f32::INFINITY || x.abs() <= 1.0 / (1u32 << 26) as f32 {
        // |ln(1+x) - x| < 0.51 x^2 < 2^-26 |x|, and the nearest midpoint is 2^-25 |x| away.
        must_be(x, y)
    } else {
        reference.log1p(x).judge(y)
    }
}
