//! `tarfa selftest`: the golden hashes of the embedded model, on every way to compute.

mod golden;
mod lanes;

use std::time::Instant;

use anyhow::Result;
use clap::Args;
use engine::embedded;
use serde::Serialize;
use store::checkpoint::Checkpoint;

use crate::failure::Difference;
use crate::flags::{Device, at_least_one, device};
use crate::printer;
use golden::{Case, cases, compare};
use lanes::{Lane, lanes};

const EXAMPLES: &str = "\
Examples:
  tarfa selftest
  tarfa selftest --quick
  tarfa selftest --device cuda:0 --repeat 20
  tarfa selftest --json

The golden hashes come from oracle/oracle.py, an independent reading of NUMERICS.md; all ways to
compute must give all of them. Exit code 1 if one does not.";

/// Flags of `selftest`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SelftestArgs {
    /// One row for each instruction set and two for each GPU, and fewer tokens
    #[arg(long)]
    quick: bool,

    /// Only this device, cpu or a GPU as in cuda:0 [default: all that are here]
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    device: Option<Device>,

    /// Replay everything so many times: what depends on timing shows itself late
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    repeat: usize,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// One row of the table.
#[derive(Serialize)]
struct Row {
    device: String,
    path: String,
    available: bool,
    /// Hashes and tokens that were compared and equal.
    compared: usize,
    first_difference: Option<String>,
    seconds: f64,
}

/// Runs every lane and prints its row when it is done.
///
/// # Errors
/// Any difference.
pub fn run(args: &SelftestArgs) -> Result<()> {
    let checkpoint = embedded::checkpoint()?;
    let cases = cases(args.quick);
    let mut rows = Vec::new();
    if !args.json {
        printer::line(&format!("device  {:<38} hashes  seconds  result", "path"))?;
    }
    for lane in lanes(args.device, args.quick)? {
        let row = row(&checkpoint, &lane, &cases, args.repeat)?;
        if !args.json {
            printer::line(&row.line())?;
        }
        rows.push(row);
    }
    let different = rows.iter().filter(|row| row.first_difference.is_some()).count();
    if args.json {
        printer::json(&serde_json::json!({ "equal": different == 0, "rows": rows }))?;
    }
    if different > 0 {
        let paths = rows.iter().filter(|row| row.available).count();
        return Err(Difference::Selftest { different, paths }.into());
    }
    Ok(())
}

fn row(checkpoint: &Checkpoint, lane: &Lane, cases: &[Case], repeat: usize) -> Result<Row> {
    let started = Instant::now();
    let mut row = Row {
        device: lane.device.name(),
        path: lane.path(),
        available: false,
        compared: 0,
        first_difference: None,
        seconds: 0.0,
    };
    if let Some(model) = lane.open(checkpoint)? {
        row.available = true;
        row.first_difference = compare(model, lane.chunk, cases, repeat, &mut row.compared)?;
        row.seconds = started.elapsed().as_secs_f64();
    }
    Ok(row)
}

impl Row {
    fn line(&self) -> String {
        let result = match &self.first_difference {
            Some(different) => different.as_str(),
            None if self.available => "equal",
            None => {
                return format!(
                    "{:<7} {:<38}      -        -  not on this machine",
                    self.device, self.path
                );
            }
        };
        let Row { device, path, compared, seconds, .. } = self;
        format!("{device:<7} {path:<38} {compared:>6} {seconds:>8.2}  {result}")
    }
}
