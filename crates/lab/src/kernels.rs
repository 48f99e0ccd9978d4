//! The kernels beside the ceilings of the machine, all in one run.

pub mod gpu;
mod packed;

use std::time::Instant;

use numerics::op::linear::{Elements, Job, Matrix, Output, Prepared, linear};
use numerics::probe::{fma_peak, read_bandwidth};
use numerics::{Cpu, bf16};
use serde::Serialize;

/// What to measure.
#[derive(Clone, Debug)]
pub struct KernelSpec {
    /// Input width.
    pub k: usize,
    /// Weights in all; more than any cache holds.
    pub bytes: usize,
    /// Samples of each figure; the median counts.
    pub samples: usize,
    /// Token counts of the matrix products.
    pub tokens: Vec<usize>,
}

/// One kernel against its ceiling.
#[derive(Clone, Debug, Serialize)]
pub struct KernelRow {
    /// What ran.
    pub kernel: String,
    /// Median rate.
    pub rate: f64,
    /// Of `rate` and `ceiling`.
    pub unit: &'static str,
    /// Median of the ceiling, measured before and after every sample.
    pub ceiling: f64,
    /// Median over the samples of rate / ceiling.
    pub ratio: f64,
    /// Smallest and largest ratio.
    pub range: (f64, f64),
}

/// Weights of the benchmark: uniform in sign, near-normal in size, the same on every run.
pub fn weights(count: usize, cpu: &Cpu) -> Vec<bf16> {
    let mut w = vec![bf16::ZERO; count];
    let mut parts: Vec<(usize, &mut [bf16])> = w.chunks_mut(1 << 20).enumerate().collect();
    cpu.each_mut(&mut parts, |(seed, part)| fill(*seed as u64, part));
    w
}

/// Sums of four bytes, centred, times 2^-12: standard deviation about 0.036.
fn fill(seed: u64, out: &mut [bf16]) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for v in out {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bytes = (state >> 32) as u32;
        let sum: u32 = bytes.to_le_bytes().into_iter().map(u32::from).sum();
        let noise = (state >> 20 & 0xfff) as f32 / 4096.0;
        *v = bf16::from_f32((sum as f32 + noise - 510.0) / 4096.0);
    }
}

/// Runs everything and calls `row` as each figure is there.
pub fn run(cpu: &Cpu, spec: &KernelSpec, mut row: impl FnMut(&KernelRow)) -> Vec<KernelRow> {
    let rows = spec.bytes / 2 / spec.k;
    let w = weights(rows * spec.k, cpu);
    let mut out = Vec::new();
    let mut push = |r: KernelRow| {
        row(&r);
        out.push(r);
    };
    push(against(
        spec,
        "exact matvec to bf16",
        "GB/s",
        || bandwidth(cpu, &w),
        || {
            let s = product(cpu, spec.k, &w, 1, false);
            2.0 * w.len() as f64 / s / 1e9
        },
    ));
    push(against(
        spec,
        "exact matvec to f32",
        "GB/s",
        || bandwidth(cpu, &w),
        || {
            let s = product(cpu, spec.k, &w, 1, true);
            2.0 * w.len() as f64 / s / 1e9
        },
    ));
    packed::measure(cpu, spec, &w, &mut push);
    for tokens in &spec.tokens {
        let name = format!("exact product, {tokens} tokens");
        push(against(
            spec,
            &name,
            "GFLOP/s",
            || fma_peak(cpu) / 1e9,
            || {
                let s = product(cpu, spec.k, &w, *tokens, false);
                2.0 * w.len() as f64 * *tokens as f64 / s / 1e9
            },
        ));
    }
    out
}

fn bandwidth(cpu: &Cpu, w: &[bf16]) -> f64 {
    read_bandwidth(cpu, bytemuck::cast_slice(w)) / 1e9
}

/// Seconds of one product of the whole matrix with `tokens` inputs.
fn product(cpu: &Cpu, k: usize, w: &[bf16], tokens: usize, plain: bool) -> f64 {
    let rows = w.len() / k;
    let mut x = vec![bf16::ZERO; tokens * k];
    fill(77, &mut x);
    let mut stored = vec![bf16::ZERO; if plain { 0 } else { tokens * rows }];
    let mut floats = vec![0.0f32; if plain { tokens * rows } else { 0 }];
    let started = Instant::now();
    cpu.enter(|| {
        let input = &Prepared::new(cpu, x, k);
        let weights = Matrix::new(rows, k, Elements::Bf16(w));
        let output = if plain { Output::F32(&mut floats) } else { Output::Bf16(&mut stored) };
        linear(cpu, &mut [Job { weights, input, tokens: None, output }]).expect("finite weights");
    });
    started.elapsed().as_secs_f64()
}

/// Samples bracketed by probes of the ceiling.
fn against(
    spec: &KernelSpec,
    kernel: &str,
    unit: &'static str,
    mut ceiling: impl FnMut() -> f64,
    mut rate: impl FnMut() -> f64,
) -> KernelRow {
    let (mut rates, mut ceilings, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut before = ceiling();
    for _ in 0..spec.samples {
        let r = rate();
        let after = ceiling();
        let c = (before + after) / 2.0;
        rates.push(r);
        ceilings.push(c);
        ratios.push(r / c);
        before = after;
    }
    let range = range(&ratios);
    KernelRow {
        kernel: kernel.to_string(),
        rate: median(rates),
        unit,
        ceiling: median(ceilings),
        ratio: median(ratios),
        range,
    }
}

/// The smallest and the largest of positive values.
pub fn range(values: &[f64]) -> (f64, f64) {
    let all = values.iter().copied();
    (all.clone().fold(f64::INFINITY, f64::min), all.fold(0.0, f64::max))
}

/// The middle value.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
