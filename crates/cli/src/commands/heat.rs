//! `tarfa heat`: what the ledger of expert use knows, as a hot list, or forgotten.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};
use engine::model::Description;
use engine::tiers::heat::{Corpus, Heat, Hotlist, heat_path, remove};
use engine::tiers::trace;
use engine::tiers::{Phase, Shape};
use serde_json::json;
use sha2::{Digest, Sha256};
use store::checkpoint::Checkpoint;

use crate::failure::BadInput;
use crate::flags::ModelArgs;
use crate::tiering::known_heat;
use crate::{printer, source, units};

const EXAMPLES: &str = "\
Examples:
  tarfa heat show --model DIR
  tarfa heat export --model DIR --out hotlist.json
  tarfa heat export --trace FILE --name \"news, 2026\"
  tarfa heat reset --model DIR

The ledger lies in DIR/.tarfa/heat, or in the user's cache folder where DIR cannot be written.";

/// Flags of `heat`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct HeatArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Say what is known
    Show(ShowArgs),
    /// Write a hot list: counts by layer and expert, and what the hottest would cover
    Export(ExportArgs),
    /// Forget the ledger
    Reset(ShowArgs),
}

/// Flags of `heat show` and `heat reset`.
#[derive(Args)]
struct ShowArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Flags of `heat export`.
#[derive(Args)]
struct ExportArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// Count a recorded trace instead of the ledger
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    trace: Option<PathBuf>,

    /// Name of the corpus [default: the name of the file that is counted]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Where to write it [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Shows, exports or forgets.
///
/// # Errors
/// A folder that is no checkpoint, no ledger to export, a file that cannot be written.
pub fn run(args: &HeatArgs) -> Result<()> {
    match &args.action {
        Action::Show(args) => show(args),
        Action::Export(args) => export(args),
        Action::Reset(args) => reset(args),
    }
}

/// The ledger of a checkpoint.
struct Ledger {
    path: PathBuf,
    fingerprint: String,
}

impl Ledger {
    fn of(which: &ModelArgs, checkpoint: &Checkpoint) -> Result<Ledger> {
        let fingerprint = checkpoint.sha256_fingerprint();
        let path = heat_path(which.model.as_deref(), &fingerprint)?;
        Ok(Ledger { path, fingerprint })
    }

    /// The heat, if there is one; a file that was set aside is told on stderr.
    fn read(&self, shape: Shape) -> Option<Heat> {
        known_heat(&self.path, &self.fingerprint, shape)
    }
}

fn shape(checkpoint: &Checkpoint) -> Result<Shape> {
    let d = Description::of(checkpoint)?;
    Ok(Shape { layers: d.layers.len(), experts: d.moe.experts, top_k: d.moe.top_k })
}

fn show(args: &ShowArgs) -> Result<()> {
    let checkpoint = source::checkpoint(args.model.model.as_deref())?;
    let ledger = Ledger::of(&args.model, &checkpoint)?;
    let heat = ledger.read(shape(&checkpoint)?);
    let list = heat.as_ref().map(|heat| {
        let corpus = Corpus { name: "ledger".into(), sha256: String::new(), tokens: heat.tokens() };
        Hotlist::new(heat, &ledger.fingerprint, corpus)
    });
    if args.json {
        return printer::json(&json!({
            "path": ledger.path,
            "fingerprint": ledger.fingerprint,
            "tokens": heat.map_or(0, |heat| heat.tokens()),
            "coverage": list.map(|list| list.coverage),
        }));
    }
    let path = ledger.path.display();
    let Some(list) = list else { return printer::line(&format!("{path}: nothing is known yet")) };
    printer::line(&format!("{path}: {} tokens seen", units::count(list.corpus.tokens)))?;
    printer::line("the most used experts of each layer serve, of all choices so far [D]")?;
    for c in &list.coverage {
        let share = 100.0 * c.share;
        printer::line(&format!("{:>5} a layer {share:>6.1} %", c.experts_per_layer))?;
    }
    Ok(())
}

fn export(args: &ExportArgs) -> Result<()> {
    let list = match &args.trace {
        Some(path) => of_trace(path, args.name.as_deref())?,
        None => of_ledger(&args.model, args.name.as_deref())?,
    };
    let Some(out) = &args.out else { return printer::json(&list) };
    let text = serde_json::to_string_pretty(&list)? + "\n";
    fs::write(out, text).map_err(|source| BadInput::Write { path: out.clone(), source }.into())
}

fn of_trace(path: &Path, name: Option<&str>) -> Result<Hotlist> {
    let trace = trace::read(path)?;
    let tokens = trace.tokens(Phase::Prefill) + trace.tokens(Phase::Decode);
    let corpus = corpus(path, name, tokens)?;
    Ok(Hotlist::new(&trace.heat(), &trace.header.fingerprint, corpus))
}

fn of_ledger(which: &ModelArgs, name: Option<&str>) -> Result<Hotlist> {
    let checkpoint = source::checkpoint(which.model.as_deref())?;
    let ledger = Ledger::of(which, &checkpoint)?;
    let heat = ledger.read(shape(&checkpoint)?);
    let path = ledger.path.clone();
    let heat = heat.ok_or(BadInput::NoHeat { path })?;
    let corpus = corpus(&ledger.path, name, heat.tokens())?;
    Ok(Hotlist::new(&heat, &ledger.fingerprint, corpus))
}

fn corpus(path: &Path, name: Option<&str>, tokens: u64) -> Result<Corpus> {
    let read = |source| BadInput::Read { path: path.to_path_buf(), source };
    let sha256 = hex::encode(Sha256::digest(fs::read(path).map_err(read)?));
    let own = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Corpus { name: name.map_or_else(own, str::to_string), sha256, tokens })
}

fn reset(args: &ShowArgs) -> Result<()> {
    let checkpoint = source::checkpoint(args.model.model.as_deref())?;
    let ledger = Ledger::of(&args.model, &checkpoint)?;
    let removed = remove(&ledger.path)?;
    if args.json {
        return printer::json(&json!({ "path": ledger.path, "removed": removed }));
    }
    let what = if removed { "forgotten" } else { "there was none" };
    printer::line(&format!("{}: {what}", ledger.path.display()))
}
