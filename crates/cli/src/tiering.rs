//! Where the experts are kept: flags, what fits, and what a run leaves for the next one.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};
use engine::limits::{Wish, fit, limits};
use engine::model::{CpuShare, GpuWish, Model, VramWish};
use engine::tiers::heat::{self, Heat, Loaded, heat_path};
use engine::tiers::policy::Policy;
use engine::tiers::trace::{Header, TraceWriter};
use engine::tiers::{Placement, Shape};
use store::checkpoint::{Checkpoint, Keep, Part};
use store::experts::ExpertMap;
use store::read::{Io, ReadOptions};
use store::sidecar::Sidecar;

use crate::flags::{share, size};
use crate::progress;

/// Where experts are kept: only the time depends on it.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Memory (no effect on any bit)")]
pub struct TierArgs {
    /// Keep experts in at most this much RAM, as in 8GiB, and read the others from the file; 0
    /// keeps none [default: map the files where they fit, else what is free]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub ram_budget: Option<u64>,

    /// Read every expert into RAM first, and leave the file alone afterwards
    #[arg(long, conflicts_with = "ram_budget")]
    pub resident_experts: bool,

    /// Use at most this much memory of the GPU, as in 12GiB [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub vram_budget: Option<u64>,

    /// Experts that stay in the GPU's memory, for tests
    #[arg(long, value_name = "N", hide = true, conflicts_with = "vram_budget")]
    pub vram_slots: Option<usize>,

    /// Of the experts that the GPU lacks, the share that the processor computes where they lie:
    /// from 0 to 1, or auto for each where it is done first [default: auto]
    #[arg(long, value_name = "SHARE", value_parser = cpu_share)]
    pub cpu_experts: Option<CpuShare>,

    /// How to read the file
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub io: IoArg,

    /// Do not read ahead what the next layer may need
    #[arg(long)]
    pub no_prefetch: bool,

    /// Which experts stay: lru, lfu, lfru or static
    #[arg(long, value_name = "NAME", default_value_t = Policy::default())]
    pub policy: Policy,

    /// Neither read nor write the ledger of which experts are used (see `tarfa heat`)
    #[arg(long)]
    pub no_heat: bool,

    /// Record which experts every pass uses, for `tarfa sim --trace`
    #[arg(long, value_name = "FILE")]
    pub record_trace: Option<PathBuf>,
}

fn cpu_share(text: &str) -> Result<CpuShare, String> {
    match text {
        "auto" => Ok(CpuShare::Auto),
        _ => share(text).map(CpuShare::Share).map_err(|e| format!("{e}, or auto")),
    }
}

/// How to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum IoArg {
    /// io_uring where it is to be had, else threads
    #[default]
    Auto,
    /// io_uring or an error
    Uring,
    /// A pool of threads
    Pread,
}

impl From<IoArg> for Io {
    fn from(io: IoArg) -> Io {
        match io {
            IoArg::Auto => Io::Auto,
            IoArg::Uring => Io::Uring,
            IoArg::Pread => Io::Pread,
        }
    }
}

/// Memory for reads in flight beside the cache.
const STAGING_BYTES: u64 = 192 << 20;
/// Slots for them, at least and at most.
const STAGING_SLOTS: (u64, u64) = (4, 64);

impl TierArgs {
    /// What of the experts a GPU does.
    pub fn gpu(&self) -> GpuWish {
        let vram = match (self.vram_budget, self.vram_slots) {
            (Some(bytes), _) => VramWish::Bytes(bytes),
            (None, Some(slots)) => VramWish::Slots(slots),
            (None, None) => VramWish::Free,
        };
        GpuWish { vram, policy: self.policy, cpu: self.cpu_experts.unwrap_or_default() }
    }

    /// What to do with the experts of a checkpoint on this machine.
    ///
    /// # Errors
    /// A budget that does not fit; the message says what would.
    pub fn placement(
        &self,
        checkpoint: &Checkpoint,
        map: &ExpertMap,
        shape: Shape,
    ) -> Result<Placement> {
        let limits = limits();
        let dense_bytes = dense_bytes(checkpoint);
        let expert_bytes: u64 = map.all().map(|block| block.stored_bytes).sum();
        let asked = self.ram_budget.is_some() || self.resident_experts || self.io != IoArg::Auto;
        let embedded = checkpoint.folder().is_none();
        if !asked && (embedded || dense_bytes + expert_bytes <= limits.available_bytes) {
            return Ok(Placement::Mapped);
        }
        let slot_bytes = map.slot_bytes() as u64;
        let (least, most) = STAGING_SLOTS;
        let staging_slots = (STAGING_BYTES / slot_bytes).clamp(least, most);
        let experts = shape.total() as u64;
        let whole = (experts + staging_slots) * slot_bytes;
        let wish = Wish {
            budget_bytes: if self.resident_experts { Some(whole) } else { self.ram_budget },
            dense_bytes,
            state_bytes: 0,
            slot_bytes,
            staging_slots,
            experts,
        };
        let fit = fit(&wish, &limits)?;
        Ok(Placement::Cached {
            slots: fit.slots as usize,
            staging: staging_slots as usize,
            ahead: !self.no_prefetch,
            policy: self.policy,
            read: ReadOptions { io: self.io.into(), ..ReadOptions::default() },
        })
    }
}

/// What stays in memory beside the experts: all that every token uses. Where the experts are
/// packed, so are the matrices whose products are rounded to bf16.
pub fn keep(part: Part, packed: bool) -> Keep {
    match part {
        Part::Experts => Keep::Mapped,
        _ if part.is_unused() => Keep::Mapped,
        Part::Attention | Part::DeltaNet | Part::SharedExpert | Part::DenseMlp if packed => {
            Keep::Packed
        }
        _ => Keep::Owned,
    }
}

fn dense_bytes(checkpoint: &Checkpoint) -> u64 {
    checkpoint
        .part_sizes()
        .iter()
        .filter(|s| keep(s.part, false) != Keep::Mapped)
        .map(|s| s.size_bytes)
        .sum()
}

/// The heat that earlier runs left; what cannot be used is told on stderr.
pub fn known_heat(path: &Path, fingerprint: &str, shape: Shape) -> Option<Heat> {
    match heat::load(path, fingerprint, shape) {
        Loaded::Known(heat) => Some(*heat),
        Loaded::Absent => None,
        Loaded::SetAside { why, moved_to } => {
            let kept = moved_to.map(|to| format!("; it is now {}", to.display()));
            eprintln!("{}: not used: {why}{}", path.display(), kept.unwrap_or_default());
            None
        }
    }
}

/// How long a run may go on before what it learned is written down.
const KEEP_EVERY: Duration = Duration::from_secs(120);

/// What a run leaves for the next one: checksums first seen, the ledger of experts.
pub struct Keeper {
    heat: Option<PathBuf>,
    sidecar: Option<PathBuf>,
    last: Mutex<Instant>,
}

impl Keeper {
    /// Nothing is kept of a model that is mapped: its placement is the system's.
    pub fn new(
        args: &TierArgs,
        checkpoint: &Checkpoint,
        placement: &Placement,
        sidecar: Option<PathBuf>,
    ) -> Keeper {
        let reads = matches!(placement, Placement::Cached { .. });
        let (wanted, sidecar) = (!args.no_heat && reads, sidecar.filter(|_| reads));
        let fingerprint = checkpoint.sha256_fingerprint();
        let path = || heat_path(checkpoint.folder(), &fingerprint).ok();
        let heat = wanted.then(path).flatten();
        Keeper { heat, sidecar, last: Mutex::new(Instant::now()) }
    }

    pub fn heat_path(&self) -> Option<&Path> {
        self.heat.as_deref()
    }

    /// Writes down what was learned, if it is time.
    pub fn now_and_then(&self, model: &Model) {
        let mut last = self.last.lock().expect("no thread panics while it holds the time");
        if last.elapsed() >= KEEP_EVERY {
            *last = Instant::now();
            drop(last);
            self.keep(model);
        }
    }

    /// Writes down what was learned since; a failure is told and costs only that.
    pub fn keep(&self, model: &Model) {
        if let Some(path) = &self.sidecar {
            let entries = model.tiers().digests().entries();
            if let Err(error) = Sidecar::update(path, model.fingerprint(), entries) {
                eprintln!("the checksums of this run are not remembered: {error}");
            }
        }
        let Some(path) = &self.heat else { return };
        let seen = model.tiers().take_heat();
        if let Err(error) = heat::save(path, model.fingerprint(), &seen) {
            eprintln!("which experts were used is not remembered: {error}");
        }
    }
}

/// Fills the cache where that was asked for, and starts the recording.
///
/// # Errors
/// A read that failed, a recording that cannot be written.
pub fn prepare(args: &TierArgs, model: &Model) -> Result<()> {
    if args.resident_experts {
        let total = model.tiers().shape().total() as u64;
        let bar = progress::filling(total);
        let mut counters = Default::default();
        let filled = model.tiers().fill(&mut counters, |count, _| bar.set_position(count as u64));
        bar.finish_and_clear();
        filled?;
    }
    if let Some(path) = &args.record_trace {
        let map = model.tiers().map();
        let layer = (0..map.layer_count() as u32).find(|l| map.expert_count(*l) > 0);
        let header = Header {
            fingerprint: model.fingerprint().to_string(),
            shape: model.tiers().shape(),
            expert_bytes: layer.map_or(0, |l| map.expert_bytes(l, 0)),
            recorded: true,
        };
        model.tiers().record(TraceWriter::create(path, &header)?);
    }
    Ok(())
}
