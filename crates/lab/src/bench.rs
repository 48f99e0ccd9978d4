//! Whole passes beside the bandwidth law: `tok/s = bandwidth / bytes per token`.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use engine::generate::Session;
use engine::index::TokenId;
use engine::model::Model;
use numerics::probe::read_bandwidth;
use numerics::{Cpu, bf16};
use serde::Serialize;

use crate::kernels::{median, weights};

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchSpec {
    /// Blocks of decoded tokens, each bracketed by probes of the bandwidth.
    pub blocks: usize,
    /// Decoded tokens in a block.
    pub block_tokens: usize,
    /// Tokens of the timed prompt.
    pub prompt_tokens: usize,
    /// Timed prompts.
    pub prompts: usize,
    /// Tokens that go through the layers together.
    pub chunk: usize,
    /// Memory that a probe reads.
    pub probe_bytes: usize,
}

/// What was measured.
///
/// Units: bytes, seconds, tokens per second, bytes per second.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// Weights read for one decoded token.
    pub token_bytes: u64,
    /// Median over the blocks.
    pub decode_rate: f64,
    /// Median of the probes.
    pub bandwidth: f64,
    /// Median over the blocks of rate * bytes / bandwidth around the block.
    pub decode_of_law: f64,
    /// Smallest and largest of those.
    pub decode_of_law_range: (f64, f64),
    /// Median over the prompts.
    pub prefill_rate: f64,
    /// Largest resident set of the process, with the probe's memory.
    pub resident_peak_bytes: Option<u64>,
}

/// Token ids that spread over a vocabulary.
pub fn spread_ids(count: usize, seed: u64, vocab: usize) -> Vec<TokenId> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    (0..count).map(|_| TokenId((next() % vocab) as u32)).collect()
}

/// Decodes and prefills on a model, probing the bandwidth in between.
///
/// # Errors
/// As a forward pass.
pub fn run(model: &Arc<Model>, spec: &BenchSpec) -> Result<BenchReport> {
    let vocab = model.description().vocab;
    let probe = Probe::new(model.cpu(), spec.probe_bytes);
    let mut session = Session::new(model.clone(), spec.chunk);
    session.prompt(&spread_ids(spec.prompt_tokens.min(16), 1, vocab))?;
    // Twice the same tokens: the first time pages are brought in.
    let ids = spread_ids(spec.block_tokens * spec.blocks, 2, vocab);
    ids.iter().try_for_each(|id| session.step(*id).map(drop))?;
    let (mut rates, mut bandwidths, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut before = probe.bandwidth();
    let mut token_bytes = 0;
    for block in ids.chunks(spec.block_tokens) {
        let earlier = session.counters().1;
        let started = Instant::now();
        block.iter().try_for_each(|id| session.step(*id).map(drop))?;
        let rate = block.len() as f64 / started.elapsed().as_secs_f64();
        let work = session.counters().1.since(&earlier);
        token_bytes = work.bytes() / work.tokens;
        let after = probe.bandwidth();
        let around = (before + after) / 2.0;
        rates.push(rate);
        bandwidths.push(around);
        ratios.push(rate * token_bytes as f64 / around);
        before = after;
    }
    let mut prefill = Vec::new();
    for i in 0..spec.prompts {
        let ids = spread_ids(spec.prompt_tokens, 10 + i as u64, vocab);
        let mut session = Session::new(model.clone(), spec.chunk);
        let started = Instant::now();
        session.prompt(&ids)?;
        prefill.push(ids.len() as f64 / started.elapsed().as_secs_f64());
    }
    let range = (
        ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratios.iter().copied().fold(0.0, f64::max),
    );
    Ok(BenchReport {
        token_bytes,
        decode_rate: median(rates),
        bandwidth: median(bandwidths),
        decode_of_law: median(ratios),
        decode_of_law_range: range,
        prefill_rate: median(prefill),
        resident_peak_bytes: resident_peak(),
    })
}

/// Memory to read from.
struct Probe {
    cpu: Cpu,
    memory: Vec<bf16>,
}

impl Probe {
    fn new(cpu: &Cpu, bytes: usize) -> Probe {
        Probe { cpu: cpu.clone(), memory: weights(bytes / 2, cpu) }
    }

    fn bandwidth(&self) -> f64 {
        read_bandwidth(&self.cpu, bytemuck::cast_slice(&self.memory))
    }
}

/// The largest resident set so far, where the system tells it.
pub fn resident_peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}
