//! Flags that several commands share: read here, decided later.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use engine::generate::CHUNK_DEFAULT;
use engine::generate::sampler::SamplingParams;
use engine::index::TokenId;
use engine::limits::{parse_bandwidth, parse_size};
use numerics::cuda::{Gpu, GpuError, Wide};
use numerics::{Cpu, SimdLevel};

/// Which checkpoint.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// Folder of a Hugging Face checkpoint, used in place, or a store made by `tarfa convert`
    /// [default: the embedded model]
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
}

/// How to compute: only the time depends on it.
#[derive(Args, Clone, Debug)]
pub struct MachineArgs {
    /// Threads that compute; no effect on any bit [default: all cores]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub threads: Option<usize>,

    /// Prompt tokens that go through the layers together; no effect on any bit
    #[arg(long, value_name = "N", default_value_t = CHUNK_DEFAULT, value_parser = at_least_one)]
    pub chunk: usize,

    /// Where to compute: cpu, or a GPU as in cuda:0; no effect on any bit
    #[arg(long, value_name = "DEVICE", value_parser = device, default_value = "cpu")]
    pub device: Device,

    /// What carries wide sums on a GPU, for tests [default: what it is good at]
    #[arg(long, value_name = "HOW", hide = true)]
    pub wide: Option<WideArg>,

    /// Instruction set to use, for tests
    #[arg(long, value_name = "LEVEL", hide = true)]
    pub simd: Option<Simd>,
}

impl MachineArgs {
    /// The processor as asked for.
    ///
    /// # Errors
    /// A level that this machine lacks, threads that cannot be started.
    pub fn cpu(&self) -> anyhow::Result<Cpu> {
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let level = self.simd.map_or_else(SimdLevel::detect, SimdLevel::from);
        Ok(Cpu::new(level, self.threads.unwrap_or_else(cores))?)
    }

    /// The GPU as asked for; `None` for the processor.
    ///
    /// # Errors
    /// No driver, no such device, one that cannot be used.
    pub fn gpu(&self) -> Result<Option<Gpu>, GpuError> {
        match self.device {
            Device::Cpu => Ok(None),
            Device::Cuda(number) => Gpu::open(number, self.wide.map(Wide::from)).map(Some),
        }
    }
}

/// Where to compute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    Cpu,
    /// A GPU by its number.
    Cuda(usize),
}

/// Reads a device.
pub fn device(text: &str) -> Result<Device, String> {
    let expected = || format!("{text:?} is no device: expected cpu or cuda:N, as in cuda:0");
    match text.split_once(':') {
        None if text == "cpu" => Ok(Device::Cpu),
        None if text == "cuda" => Ok(Device::Cuda(0)),
        Some(("cuda", number)) => number.parse().map(Device::Cuda).map_err(|_| expected()),
        _ => Err(expected()),
    }
}

/// What carries wide sums on a GPU.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum WideArg {
    F64,
    Pair,
}

impl From<WideArg> for Wide {
    fn from(wide: WideArg) -> Wide {
        match wide {
            WideArg::F64 => Wide::F64,
            WideArg::Pair => Wide::Pair,
        }
    }
}

/// What to write, and how.
#[derive(Args, Clone, Debug)]
pub struct OutputArgs {
    /// Write a receipt of the answer, for `tarfa replay`
    #[arg(long, value_name = "FILE")]
    pub receipt: Option<PathBuf>,

    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// An instruction set by name.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Simd {
    Scalar,
    Avx2,
    Avx512,
}

impl From<Simd> for SimdLevel {
    fn from(simd: Simd) -> SimdLevel {
        match simd {
            Simd::Scalar => SimdLevel::Scalar,
            Simd::Avx2 => SimdLevel::Avx2,
            Simd::Avx512 => SimdLevel::Avx512,
        }
    }
}

/// How to choose tokens. The checkpoint's own suggestion is never applied unasked.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling (greedy unless asked)")]
pub struct SamplingArgs {
    /// 0 is greedy [default: 0; 1 with --top-k, --top-p, --min-p or --seed]
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    temperature: Option<f64>,

    /// Keep the K likeliest tokens
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,

    /// Keep the likeliest tokens that together have this share
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    top_p: Option<f64>,

    /// Keep tokens at least this likely, relative to the likeliest
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    min_p: Option<f64>,

    /// Make tokens of prompt and answer less likely; 1 is off
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_hyphen_values = true)]
    repetition_penalty: f32,

    /// Subtracted from the logits of tokens that the answer holds
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_hyphen_values = true)]
    presence_penalty: f32,

    /// Subtracted once for every time that the answer holds the token
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_hyphen_values = true)]
    frequency_penalty: f32,

    /// Added to the logit of a token; may be repeated
    #[arg(long, value_name = "ID=VALUE", value_parser = bias)]
    logit_bias: Vec<(TokenId, f32)>,

    /// The same seed gives the same tokens, anywhere [default: 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl SamplingArgs {
    /// The sampler's parameters, not validated yet.
    pub fn params(&self) -> SamplingParams {
        let sampled = self.top_k.is_some()
            || self.top_p.is_some()
            || self.min_p.is_some()
            || self.seed.is_some();
        SamplingParams {
            temperature: self.temperature.unwrap_or(if sampled { 1.0 } else { 0.0 }),
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or(0),
            choice: 0,
        }
    }
}

/// Reads a count that zero would make senseless.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1 is needed".to_string()),
        Ok(count) => Ok(count),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads a size, as in 8GiB.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|e| e.to_string())
}

/// Reads a bandwidth above 0, as in 3.5GB/s.
pub fn bandwidth(text: &str) -> Result<u64, String> {
    match parse_bandwidth(text) {
        Ok(0) => Err("more than 0 is needed".to_string()),
        found => found.map_err(|e| e.to_string()),
    }
}

/// Reads a share, from 0 to 1.
pub fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1".to_string()),
    }
}

/// Reads a token id, with blanks around it.
pub fn token_id(text: &str) -> Result<TokenId, String> {
    text.trim().parse().map(TokenId).map_err(|_| "a token id is a whole number".to_string())
}

fn bias(text: &str) -> Result<(TokenId, f32), String> {
    let (id, value) = text.split_once('=').ok_or("expected ID=VALUE, as in 11=-2.5")?;
    let value = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
    Ok((token_id(id)?, value))
}
