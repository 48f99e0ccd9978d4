//! Whole passes beside the law: `tok/s = bandwidth / bytes per token`, the slowest link deciding.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use engine::counters::{PhaseCounters, TierCounters};
use engine::generate::Session;
use engine::index::TokenId;
use engine::model::Model;
use numerics::cuda::{Buffer, CopyProbe, Gpu};
use numerics::probe::read_bandwidth;
use numerics::{Cpu, bf16};
use serde::Serialize;
use store::experts::ExpertMap;
use store::read::{RawProbe, ReadOptions};

use crate::kernels::{median, range, weights};
use crate::reads::Shuffled;

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
    /// Bytes of the files that a probe reads, and how, where experts come from files.
    pub drive: Option<(u64, ReadOptions)>,
}

/// What was measured.
///
/// Units: bytes, seconds, tokens per second, bytes per second.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// Weights read from memory for one decoded token, median over the blocks; as if none were
    /// packed; and read from files.
    pub token_bytes: u64,
    pub token_plain_bytes: u64,
    pub token_file_bytes: u64,
    /// Median over the blocks.
    pub decode_rate: f64,
    /// Median of the probes of the memory that holds the weights: the GPU's, where there is one.
    pub bandwidth: f64,
    /// Experts that came to a GPU for one decoded token, and the median of the probes of its link.
    pub token_link_bytes: u64,
    /// Of experts that the processor computed for it.
    pub token_cpu_bytes: u64,
    pub link_bandwidth: Option<f64>,
    /// Median of the probes of the drive.
    pub drive_bandwidth: Option<f64>,
    /// Median over the blocks of what the slowest link allows, by the probes around the block.
    pub law_rate: f64,
    /// Median over the blocks of decode rate / law rate.
    pub decode_of_law: f64,
    /// Median over the blocks of rate * plain bytes / bandwidth.
    pub decode_of_bandwidth: f64,
    /// Nanoseconds a decoded token waited for a file, and where its experts were, over all blocks.
    pub stall_ns_per_token: u64,
    pub tiers: TierCounters,
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
    let mut probe = Probe::new(model, spec)?;
    let mut session = Session::new(model.clone(), spec.chunk);
    session.prompt(&spread_ids(spec.prompt_tokens.min(16), 1, vocab))?;
    // Twice the same tokens: the first time pages are brought in.
    let ids = spread_ids(spec.block_tokens * spec.blocks, 2, vocab);
    ids.iter().try_for_each(|id| session.step(*id).map(drop))?;
    let begun = session.counters().1;
    let mut blocks = Vec::new();
    let mut before = probe.around()?;
    for block in ids.chunks(spec.block_tokens) {
        let earlier = session.counters().1;
        let started = Instant::now();
        block.iter().try_for_each(|id| session.step(*id).map(drop))?;
        let rate = block.len() as f64 / started.elapsed().as_secs_f64();
        let work = session.counters().1.since(&earlier);
        let after = probe.around()?;
        blocks.push(Block { rate, work, around: before.mean(&after) });
        before = after;
    }
    let work = session.counters().1.since(&begun);
    let mut prefill = Vec::new();
    for i in 0..spec.prompts {
        let ids = spread_ids(spec.prompt_tokens, 10 + i as u64, vocab);
        let mut session = Session::new(model.clone(), spec.chunk);
        let started = Instant::now();
        session.prompt(&ids)?;
        prefill.push(ids.len() as f64 / started.elapsed().as_secs_f64());
    }
    let all = |of: &dyn Fn(&Block) -> f64| blocks.iter().map(of).collect::<Vec<f64>>();
    let ratios = all(&Block::of_law);
    let range = range(&ratios);
    Ok(BenchReport {
        token_bytes: median(all(&|b| b.per_token(b.work.bytes()))) as u64,
        token_plain_bytes: median(all(&|b| b.per_token(b.plain()))) as u64,
        token_file_bytes: median(all(&|b| b.per_token(b.work.tiers.file_bytes))) as u64,
        decode_rate: median(all(&|b| b.rate)),
        bandwidth: median(all(&|b| b.around.memory)),
        token_link_bytes: median(all(&|b| b.per_token(b.link_bytes()))) as u64,
        token_cpu_bytes: median(all(&|b| b.per_token(b.work.tiers.cpu_bytes))) as u64,
        link_bandwidth: model.gpu().map(|_| median(all(&|b| b.around.link))),
        drive_bandwidth: probe.drive.is_some().then(|| median(all(&|b| b.around.drive))),
        law_rate: median(all(&Block::law)),
        decode_of_law: median(ratios),
        decode_of_law_range: range,
        decode_of_bandwidth: median(all(&|b| b.rate * b.per_token(b.plain()) / b.around.memory)),
        stall_ns_per_token: work.tiers.stall_ns / work.tokens.max(1),
        tiers: work.tiers,
        prefill_rate: if prefill.is_empty() { 0.0 } else { median(prefill) },
        resident_peak_bytes: resident_peak(),
    })
}

/// Decoded tokens and the links around them.
struct Block {
    rate: f64,
    work: PhaseCounters,
    around: Links,
}

impl Block {
    fn per_token(&self, bytes: u64) -> f64 {
        bytes as f64 / self.work.tokens as f64
    }

    fn plain(&self) -> u64 {
        self.work.expert_plain_bytes + self.work.dense_bytes
    }

    /// What of the experts came to a GPU.
    fn link_bytes(&self) -> u64 {
        let t = &self.work.tiers;
        self.work.expert_bytes.saturating_sub(t.vram_bytes + t.cpu_bytes)
    }

    /// Tokens a second that the slowest link allows.
    fn law(&self) -> f64 {
        let memory = self.around.memory / self.per_token(self.work.bytes());
        let of = |bytes: u64, bandwidth: f64| match bytes {
            0 => f64::INFINITY,
            bytes => bandwidth / self.per_token(bytes),
        };
        let file = of(self.work.tiers.file_bytes, self.around.drive);
        memory.min(file).min(of(self.link_bytes(), self.around.link))
    }

    fn of_law(&self) -> f64 {
        self.rate / self.law()
    }
}

/// Bytes a second.
#[derive(Clone, Copy)]
struct Links {
    memory: f64,
    /// Infinite where no file is read.
    drive: f64,
    /// From the host to a GPU; infinite where there is none.
    link: f64,
}

impl Links {
    fn mean(&self, other: &Links) -> Links {
        let mean = |a: f64, b: f64| (a + b) / 2.0;
        let (memory, drive) = (mean(self.memory, other.memory), mean(self.drive, other.drive));
        Links { memory, drive, link: mean(self.link, other.link) }
    }
}

/// The bare drive under a model's experts.
struct Drive {
    map: Arc<ExpertMap>,
    raw: RawProbe,
    experts: Shuffled,
    bytes: u64,
}

/// Memory and files to read from.
struct Probe<'m> {
    cpu: Cpu,
    memory: Vec<bf16>,
    drive: Option<Drive>,
    gpu: Option<GpuLinks<'m>>,
}

/// A GPU's memory to read from, and a copy to it.
struct GpuLinks<'m> {
    gpu: &'m Gpu,
    memory: Buffer<u8>,
    copy: CopyProbe,
}

/// Of a GPU's memory a probe reads as much as is there, at most this, and leaves most of the rest.
const GPU_BYTES_MAX: usize = 4 << 30;
const COPY_BYTES: usize = 256 << 20;

impl<'m> GpuLinks<'m> {
    fn new(gpu: &'m Gpu) -> Result<GpuLinks<'m>> {
        let (free_bytes, _) = gpu.memory()?;
        let memory = gpu.zeros((free_bytes / 4).min(GPU_BYTES_MAX))?;
        Ok(GpuLinks { gpu, memory, copy: gpu.copy_probe(COPY_BYTES.min(free_bytes / 8))? })
    }
}

impl<'m> Probe<'m> {
    fn new(model: &'m Model, spec: &BenchSpec) -> Result<Probe<'m>> {
        let (cpu, map) = (model.cpu().clone(), model.tiers().map());
        let drive = spec.drive.as_ref().map(|(bytes, options)| {
            let raw = RawProbe::new(map.clone(), options)?;
            let experts = Shuffled::new(map, 1);
            anyhow::Ok(Drive { map: map.clone(), raw, experts, bytes: *bytes })
        });
        let gpu = model.gpu().map(GpuLinks::new).transpose()?;
        let bytes = if gpu.is_some() { 0 } else { spec.probe_bytes };
        Ok(Probe { memory: weights(bytes / 2, &cpu), cpu, drive: drive.transpose()?, gpu })
    }

    fn around(&mut self) -> Result<Links> {
        let (memory, link) = match &mut self.gpu {
            None => (read_bandwidth(&self.cpu, bytemuck::cast_slice(&self.memory)), f64::INFINITY),
            Some(of) => (of.gpu.read_bandwidth(&of.memory)?, of.copy.bandwidth(of.gpu, &self.cpu)?),
        };
        let drive = match &mut self.drive {
            None => f64::INFINITY,
            Some(drive) => {
                let some = drive.experts.take(&drive.map, drive.bytes);
                let started = Instant::now();
                let bytes = drive.raw.read(&some)?;
                bytes as f64 / started.elapsed().as_secs_f64()
            }
        };
        Ok(Links { memory, drive, link })
    }
}

/// The largest resident set so far, where the system tells it.
pub fn resident_peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}
