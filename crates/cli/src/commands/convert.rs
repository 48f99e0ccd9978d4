//! `tarfa convert`: a checkpoint into a store, or a store against its own hashes.

use std::ops::{ControlFlow, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use clap::{ArgGroup, Args};
use engine::model::Model;
use serde_json::json;
use store::checkpoint::Checkpoint;
use store::convert::{Progress, RealDisk, Report, Request, convert};
use store::jnf::Store;
use store::verify::verify_store;

use super::verify::report;
use crate::interrupt::Stop;
use crate::{printer, progress, units};

const EXAMPLES: &str = "Examples:
  tarfa convert --model DIR --out STORE                  # as they are: version 1
  tarfa convert --model DIR --out STORE --pack           # packed to 3/4, losslessly: version 2
  tarfa convert --model DIR --out STORE --layers 0-23    # some layers now, the others later
  tarfa convert --verify STORE --model DIR               # every byte, against hashes and source

Whenever it stops, the same command goes on from there; a layer is there whole or not at all.
Exit codes: 0 done, 1 a difference was found, 2 bad input or an incomplete store.";

/// What to convert.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("what").required(true))]
pub struct ConvertArgs {
    /// Folder of a Hugging Face checkpoint
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,

    /// The store: a new or empty folder, or one to go on with
    #[arg(long, value_name = "STORE", group = "what", requires = "model")]
    out: Option<PathBuf>,

    /// Read every byte of a store and compare all hashes; with --model also every weight
    #[arg(long, value_name = "STORE", group = "what")]
    verify: Option<PathBuf>,

    /// Only these layers, as in 0-23 or 7
    #[arg(long, value_name = "A-B", value_parser = range, requires = "out")]
    layers: Option<RangeInclusive<u32>>,

    /// Pack losslessly where that is smaller
    #[arg(long, requires = "out")]
    pack: bool,

    /// Threads that hash and pack [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

fn range(text: &str) -> Result<RangeInclusive<u32>, String> {
    let number = |part: &str| part.trim().parse::<u32>().map_err(|e| format!("{part:?}: {e}"));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Ok(number(first)?..=number(last)?)
}

/// Converts, or verifies.
///
/// # Errors
/// Whatever stopped it; a difference.
pub fn run(args: &ConvertArgs) -> Result<()> {
    match (&args.verify, &args.model, &args.out) {
        (Some(store), model, _) => check(args, store, model.as_deref()),
        (None, Some(model), Some(out)) => make(args, model, out),
        _ => unreachable!("clap wants --verify, or --model and --out"),
    }
}

fn make(args: &ConvertArgs, model: &Path, out: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(model)?;
    let (_, experts) = Model::experts_in_place(&checkpoint)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let request = Request {
        checkpoint: &checkpoint,
        experts: &experts,
        out: out.to_path_buf(),
        layers: args.layers.clone(),
        pack: args.pack,
        tool: concat!("tarfa ", env!("CARGO_PKG_VERSION")).to_string(),
        threads: args.threads.unwrap_or(cores).max(1),
    };
    let (bar, stop, started) = (progress::bytes("converting"), Stop::listen()?, Instant::now());
    let done = convert(&request, &RealDisk, &mut |at| follow(&bar, &stop, at));
    bar.finish_and_clear();
    let (done, seconds) = (done?, started.elapsed().as_secs_f64());
    let stored_bytes = folder_bytes(out);
    if args.json {
        return printer::json(&json!({
            "out": out,
            "complete": done.complete,
            "layers_written": done.layers_written,
            "layers_kept": done.layers_kept,
            "layers_missing": done.layers_missing,
            "read_bytes": done.read_bytes,
            "stored_bytes": stored_bytes,
            "seconds": seconds,
        }));
    }
    printer::line(&line(out, &done, stored_bytes, seconds))
}

fn line(out: &Path, done: &Report, stored_bytes: u64, seconds: f64) -> String {
    let read = done.read_bytes as f64;
    let mut line = format!(
        "{}: {} layers written, {} were there; {} read in {seconds:.1} s, {}/s; the store has {}",
        out.display(),
        done.layers_written.len(),
        done.layers_kept.len(),
        units::bytes(read),
        units::bytes(read / seconds.max(1e-9)),
        units::bytes(stored_bytes as f64),
    );
    if !done.complete {
        let missing = store::jnf::ranges(&done.layers_missing);
        line += &format!("; not complete yet: layers {missing} are missing");
    }
    line
}

/// Bytes of all files below a folder.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => folder_bytes(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

fn check(args: &ConvertArgs, store: &Path, model: Option<&Path>) -> Result<()> {
    let store = Store::open(store)?;
    let source = model.map(Checkpoint::open).transpose()?;
    let (bar, stop) = (progress::bytes("reading"), Stop::listen()?);
    let findings = verify_store(&store, source.as_ref(), &mut |at| follow(&bar, &stop, at));
    bar.finish_and_clear();
    report(store.root(), &findings?, args.json)
}

/// Shows how far it is; Ctrl-C stops it.
pub fn follow(bar: &indicatif::ProgressBar, stop: &Stop, at: Progress) -> ControlFlow<()> {
    bar.set_length(at.total_bytes);
    bar.set_position(at.done_bytes);
    stop.check()
}
