//! `tarfa bench`: a model's speed beside the bandwidth law, or driven line by line.

use std::io::{BufRead, Write, stdin, stdout};
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use engine::generate::Session;
use engine::generate::digest::logits_sha256;
use engine::index::TokenId;
use lab::bench::{BenchReport, BenchSpec, run as measure, spread_ids};
use serde::Deserialize;
use serde_json::json;

use crate::flags::{MachineArgs, ModelArgs, at_least_one};
use crate::source::Source;
use crate::tiering::TierArgs;
use crate::{printer, units};

const EXAMPLES: &str = "Examples:
  tarfa bench --threads 2
  tarfa bench --model DIR --prompt-tokens 512 --json
  tarfa bench --model DIR --stdio     # one JSON request a line: reset, prompt, decode";

/// What to measure.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    tiers: TierArgs,

    /// Blocks of decoded tokens, each between two probes of the bandwidth
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = at_least_one)]
    blocks: usize,

    /// Tokens of a block
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    block_tokens: usize,

    /// Tokens of the timed prompts
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_one)]
    prompt_tokens: usize,

    /// Timed prompts
    #[arg(long, value_name = "N", default_value_t = 3)]
    prompts: usize,

    /// Answer requests on stdin instead, one JSON object a line
    #[arg(long)]
    stdio: bool,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Memory that a probe of the bandwidth reads: far more than any cache.
const PROBE_BYTES: usize = 1 << 30;
/// Bytes of the files that a probe of the drive reads.
const DRIVE_BYTES: u64 = 256 << 20;

/// Measures, or answers requests.
///
/// # Errors
/// A model that cannot be run.
pub fn run(args: &BenchArgs) -> Result<()> {
    let source = Source::open(&args.model, &args.machine, &args.tiers)?;
    if args.stdio {
        return serve(&source, args.machine.chunk);
    }
    let spec = BenchSpec {
        blocks: args.blocks,
        block_tokens: args.block_tokens,
        prompt_tokens: args.prompt_tokens,
        prompts: args.prompts,
        chunk: args.machine.chunk,
        probe_bytes: PROBE_BYTES,
        drive: source.drive.clone().map(|options| (DRIVE_BYTES, options)),
    };
    let report = measure(&source.model, &spec)?;
    if args.json { printer::json(&report) } else { print(&report, args) }
}

fn print(r: &BenchReport, args: &BenchArgs) -> Result<()> {
    let gb = |v: f64| v / 1e9;
    printer::line(&format!(
        "decode   {} tok/s, the law allows {}: {:.3} of it ({:.3} to {:.3})",
        units::rate(r.decode_rate),
        units::rate(r.law_rate),
        r.decode_of_law,
        r.decode_of_law_range.0,
        r.decode_of_law_range.1,
    ))?;
    printer::line(&format!(
        "         {} a token from memory that reads at {:.1} GB/s",
        units::bytes(r.token_bytes as f64),
        gb(r.bandwidth),
    ))?;
    if r.token_plain_bytes != r.token_bytes {
        printer::line(&format!(
            "         {} of weights, unpacked: {:.3} of the bandwidth",
            units::bytes(r.token_plain_bytes as f64),
            r.decode_of_bandwidth,
        ))?;
    }
    if let Some(link) = r.link_bandwidth {
        printer::line(&format!(
            "         {} a token came to the GPU, by a link that gives {:.1} GB/s",
            units::bytes(r.token_link_bytes as f64),
            gb(link),
        ))?;
        if r.token_cpu_bytes > 0 {
            let bytes = units::bytes(r.token_cpu_bytes as f64);
            printer::line(&format!("         {bytes} a token were the processor's"))?;
        }
    }
    if let Some(drive) = r.drive_bandwidth {
        printer::line(&format!(
            "         {} a token from files that read at {:.2} GB/s; {:.1} ms of waiting a token",
            units::bytes(r.token_file_bytes as f64),
            gb(drive),
            r.stall_ns_per_token as f64 / 1e6,
        ))?;
    }
    if args.prompts > 0 {
        printer::line(&format!(
            "prefill  {} tok/s on prompts of {}",
            units::rate(r.prefill_rate),
            args.prompt_tokens
        ))?;
    }
    if let Some(peak) = r.resident_peak_bytes {
        let probe = units::bytes(PROBE_BYTES as f64);
        let peak = units::bytes(peak as f64);
        printer::line(&format!("memory   {peak} at most, {probe} of it the probe's"))?;
    }
    Ok(())
}

/// A request of `--stdio`.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum Request {
    /// Forget the sequence.
    Reset,
    /// Read ids as one prompt.
    Prompt { ids: Vec<TokenId> },
    /// Read ids one step at a time.
    Decode { ids: Vec<TokenId> },
}

fn serve(source: &Source, chunk: usize) -> Result<()> {
    let mut session = Session::new(source.model.clone(), chunk);
    let mut warm = Session::new(source.model.clone(), chunk);
    let vocab = source.model.description().vocab;
    let logits = warm.step(spread_ids(1, 1, vocab)[0])?;
    answer(&json!({ "ready": true, "active_bytes": warm.counters().1.bytes(),
        "logits_sha256": logits_sha256(&logits) }))?;
    for line in stdin().lock().lines() {
        let result = match serde_json::from_str::<Request>(&line?) {
            Ok(Request::Reset) => {
                session = Session::new(source.model.clone(), chunk);
                Ok(json!({ "tokens": 0 }))
            }
            Ok(request) => timed(&mut session, &request),
            Err(e) => Err(e.into()),
        };
        answer(&result.unwrap_or_else(|e| json!({ "error": format!("{e:#}") })))?;
    }
    Ok(())
}

fn timed(session: &mut Session, request: &Request) -> Result<serde_json::Value> {
    let started = Instant::now();
    let (count, logits) = match request {
        Request::Prompt { ids } => (ids.len(), session.prompt(ids)?),
        Request::Decode { ids } => {
            let mut last = Vec::new();
            for id in ids {
                last = session.step(*id)?;
            }
            (ids.len(), last)
        }
        Request::Reset => unreachable!("answered before"),
    };
    let seconds = started.elapsed().as_secs_f64();
    Ok(json!({ "seconds": seconds, "tokens": count, "logits_sha256": logits_sha256(&logits) }))
}

fn answer(value: &serde_json::Value) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}
