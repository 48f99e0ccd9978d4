//! `tarfa sim`: the planner on a trace, on a machine of numbers.

mod made_up;
mod print;

use std::path::PathBuf;

use anyhow::Result;
use clap::{ArgGroup, Args};
use engine::tiers::Phase;
use engine::tiers::policy::Policy;
use engine::tiers::trace::{self, Header, Trace};
use lab::sim::{
    Curve, Devices, FRACTIONS, Law, Outcome, Setup, curve, law, optimum, run as simulate,
    warm_passes,
};
use serde::Serialize;

use crate::failure::BadInput;
use crate::flags::{at_least_one, bandwidth, share, size};
use crate::printer;
use made_up::MadeUpArgs;

const EXAMPLES: &str = "\
Examples:
  tarfa sim --synthetic --ram 24GiB --disk 3.5GB/s
  tarfa sim --trace FILE --ram 24GiB --vram 16GB --disk 3.5GB/s --policy all
  tarfa sim --synthetic --layers 6 --experts 128 --reuse 0.1 --skew 0.3 --policy all --json

Marks: [M] measured here, [D] derived from a measurement, [S] given by you, [T] theory.";

/// Flags of `sim`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("what").required(true).args(["trace", "synthetic"]))]
pub struct SimArgs {
    /// A recorded trace
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// A trace made up from a seed
    #[arg(long)]
    synthetic: bool,

    #[command(flatten)]
    made_up: MadeUpArgs,

    #[command(flatten)]
    machine: SimMachineArgs,

    /// Which policy: lru, lfu, lfru, static, or all
    #[arg(long, value_name = "NAME", default_value = "lfru", value_parser = policies)]
    policy: Policies,

    /// Read ahead what the layer before expects, while the drive is idle
    #[arg(long)]
    lookahead: bool,

    /// Leave out the table over shares of all experts
    #[arg(long)]
    no_curve: bool,

    /// Write the trace as well
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// The machine that is simulated.
#[derive(Args)]
#[command(next_help_heading = "Machine")]
struct SimMachineArgs {
    /// RAM for experts [default: a quarter of all]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    ram: Option<u64>,

    /// VRAM for experts
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    vram: u64,

    /// What the drive reads
    #[arg(long, value_name = "RATE", value_parser = bandwidth, default_value = "3.5GB/s")]
    disk: u64,

    /// Microseconds before the first byte of a read
    #[arg(long, value_name = "N", default_value_t = 100)]
    disk_latency: u32,

    /// A read takes up to this share longer
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "0.1")]
    jitter: f64,

    /// What the processor reads from RAM while it computes
    #[arg(long, value_name = "RATE", value_parser = bandwidth, default_value = "25GB/s")]
    memory: u64,

    /// What the GPU reads from VRAM
    #[arg(long, value_name = "RATE", value_parser = bandwidth, default_value = "400GB/s")]
    vram_rate: u64,

    /// What PCIe carries
    #[arg(long, value_name = "RATE", value_parser = bandwidth, default_value = "25GB/s")]
    pcie: u64,

    /// Weights that every token reads from RAM beside its routed experts
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    dense: u64,

    /// Experts that may be on their way at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least_one)]
    staging: usize,
}

/// One policy or all.
#[derive(Clone, Debug)]
struct Policies(Vec<Policy>);

fn policies(name: &str) -> Result<Policies, String> {
    if name == "all" {
        return Ok(Policies(Policy::NAMED.to_vec()));
    }
    let one: Policy =
        name.parse().map_err(|e: engine::tiers::policy::UnknownPolicy| format!("{e}, all"))?;
    Ok(Policies(vec![one]))
}

/// What the simulation found.
#[derive(Serialize)]
struct Report {
    trace: Header,
    passes: usize,
    decoded_tokens: u64,
    /// False where the writing of the trace was cut short.
    complete: bool,
    /// The share of a token's experts that the token before used.
    reuse: Option<f64>,
    setup: Setup,
    policies: Vec<Row>,
    optimum: BestRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    curve: Option<Curve>,
}

/// One policy on that machine.
#[derive(Serialize)]
struct Row {
    policy: Policy,
    hit_rate: f64,
    file_bytes_per_token: f64,
    /// By the clock, which lets links wait for each other.
    tokens_per_second: f64,
    law: Law,
    outcome: Outcome,
}

/// Belady's optimum on that machine.
#[derive(Serialize)]
struct BestRow {
    hit_rate: f64,
    file_bytes_per_token: f64,
}

/// Simulates.
///
/// # Errors
/// A trace that cannot be read or made up.
pub fn run(args: &SimArgs) -> Result<()> {
    let trace = args.trace()?;
    if let Some(path) = &args.save {
        trace::write(path, &trace)?;
    }
    let setup = args.machine.setup(&trace, args.lookahead);
    let fractions: &[f64] = if args.no_curve { &[] } else { &FRACTIONS };
    let curve = curve(&trace, &setup, &args.policy.0, fractions);
    let report = Report {
        passes: trace.passes.len(),
        decoded_tokens: trace.tokens(Phase::Decode),
        complete: trace.complete,
        reuse: trace.reuse(),
        policies: args.policy.0.iter().map(|policy| row(&trace, &setup, *policy)).collect(),
        optimum: best_row(&trace, &setup),
        curve: (!args.no_curve).then_some(curve),
        trace: trace.header,
        setup,
    };
    if args.json { printer::json(&report) } else { print::print(&report) }
}

fn row(trace: &Trace, setup: &Setup, policy: Policy) -> Row {
    let setup = Setup { policy, ..*setup };
    let outcome = simulate(trace, &setup);
    let bytes = trace.header.expert_bytes;
    Row {
        policy,
        hit_rate: outcome.hit_rate(),
        file_bytes_per_token: outcome.file_bytes_per_token(bytes),
        tokens_per_second: outcome.tokens_per_second(),
        law: law(&outcome, &setup, bytes),
        outcome,
    }
}

fn best_row(trace: &Trace, setup: &Setup) -> BestRow {
    let best = optimum(trace, setup.ram_slots + setup.vram_slots, setup.warm_passes);
    let passes = &trace.passes[setup.warm_passes..];
    let decoded = passes.iter().filter(|pass| pass.phase == Phase::Decode);
    let tokens: u64 = decoded.map(|pass| u64::from(pass.tokens)).sum();
    let read = (best.requested - best.hits) * trace.header.expert_bytes;
    BestRow { hit_rate: best.hit_rate(), file_bytes_per_token: read as f64 / tokens.max(1) as f64 }
}

impl SimArgs {
    fn trace(&self) -> Result<Trace> {
        let trace = match &self.trace {
            Some(path) => trace::read(path)?,
            None => self.made_up.generate()?,
        };
        let counted = &trace.passes[warm_passes(&trace)..];
        if !counted.iter().any(|pass| pass.phase == Phase::Decode) {
            let path =
                self.trace.as_ref().map_or("--synthetic".into(), |p| p.display().to_string());
            return Err(BadInput::NothingDecoded { path }.into());
        }
        Ok(trace)
    }
}

impl SimMachineArgs {
    fn setup(&self, trace: &Trace, lookahead: bool) -> Setup {
        let (total, bytes) = (trace.header.shape.total(), trace.header.expert_bytes.max(1));
        let slots = |size: u64| usize::try_from(size / bytes).unwrap_or(total).min(total);
        let vram_slots = slots(self.vram);
        Setup {
            policy: Policy::default(),
            ram_slots: self.ram.map_or(total / 4, slots).min(total - vram_slots),
            vram_slots,
            lookahead,
            staging_slots: self.staging,
            dense_bytes: self.dense,
            warm_passes: warm_passes(trace),
            devices: Devices {
                disk_rate: self.disk as f64,
                disk_latency: f64::from(self.disk_latency) * 1e-6,
                disk_jitter: self.jitter,
                memory_rate: self.memory as f64,
                vram_rate: self.vram_rate as f64,
                pcie_rate: self.pcie as f64,
                seed: 0,
            },
        }
    }
}
