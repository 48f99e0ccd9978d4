//! `tarfa bench-reads`: experts read and checked beside the bare drive.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use lab::reads::{ReadReport, ReadSpec, run as measure};
use store::read::{DEPTH, PIECE_BYTES, ReadOptions};

use crate::flags::{at_least_one, size};
use crate::source::Weights;
use crate::{printer, units};

const EXAMPLES: &str = "Examples:
  tarfa bench-reads --model DIR
  tarfa bench-reads --model STORE --depth 32 --piece 512KiB --json

Both sides read with O_DIRECT through io_uring, the same block sizes, depth and files; which
experts is drawn anew for each, so that no cache below the system helps.";

/// What to measure.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchReadsArgs {
    /// The model: a folder as on Hugging Face, or a store
    #[arg(long, value_name = "DIR")]
    model: PathBuf,

    /// Rounds; both sides read in each, the first one alternates
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = at_least_one)]
    rounds: usize,

    /// Read by each side in a round
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = size)]
    round: u64,

    /// Reads in flight
    #[arg(long, value_name = "N", default_value_t = DEPTH, value_parser = at_least_one)]
    depth: usize,

    /// Most bytes of a read
    #[arg(long, value_name = "SIZE", default_value_t = PIECE_BYTES as u64, value_parser = size)]
    piece: u64,

    /// Experts in memory at a time
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = at_least_one)]
    slots: usize,

    /// Of the choice of experts
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Measures.
///
/// # Errors
/// A folder without a model, a drive that cannot be read around the page cache.
pub fn run(args: &BenchReadsArgs) -> Result<()> {
    let map = Arc::new(Weights::open(Some(&args.model))?.map);
    let spec = ReadSpec {
        rounds: args.rounds,
        round_bytes: args.round,
        slots: args.slots,
        seed: args.seed,
        options: ReadOptions {
            depth: args.depth,
            piece_bytes: args.piece as usize,
            ..ReadOptions::default()
        },
    };
    let report = measure(&map, &spec)?;
    if args.json { printer::json(&report) } else { print(&report) }
}

fn print(r: &ReadReport) -> Result<()> {
    let gb = |v: f64| v / 1e9;
    printer::line(&format!(
        "raw      {:.3} GB/s, {} reads of {} in flight",
        gb(r.raw_rate),
        r.depth,
        units::bytes(r.piece_bytes as f64),
    ))?;
    printer::line(&format!(
        "experts  {:.3} GB/s, {} each, by {}",
        gb(r.store_rate),
        units::bytes(r.expert_bytes as f64),
        r.backend,
    ))?;
    printer::line(&format!(
        "         {:.3} of raw ({:.3} to {:.3}); checksums are {:.1} % of reading and checking",
        r.ratio,
        r.range.0,
        r.range.1,
        100.0 * r.check_share,
    ))
}
