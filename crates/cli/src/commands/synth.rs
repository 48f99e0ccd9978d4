//! `tarfa synth`: a random checkpoint of a true shape.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use clap::builder::PossibleValuesParser;
use lab::synth::{SynthReport, SynthSpec, presets, synthesize};
use serde_json::json;

use crate::failure::BadInput;
use crate::flags::at_least_one;
use crate::{printer, progress, units};

const EXAMPLES: &str = "\
Examples:
  tarfa synth --like tiny --out DIR
  tarfa synth --like qwen3.5-122b-a10b --layers 4 --out DIR
  tarfa synth --like qwen3.5-122b-a10b --layers 2 --experts 64 --skew 0.5 --out DIR

Every value depends on the seed and the tensor's name alone: the same flags give the same bytes.";

/// Flags of `synth`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SynthArgs {
    /// The model whose shape it takes
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(presets()))]
    like: String,

    /// Layers, instead of the model's own number
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    layers: Option<usize>,

    /// Routed experts of a layer, instead of the model's own number
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    experts: Option<usize>,

    /// Width of the residual stream, instead of the model's own
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    hidden: Option<usize>,

    /// Seed of all values
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// How unevenly the routers pick: 0 evenly, 0.5 gives a quarter of the experts about 80 %
    #[arg(long, value_name = "S", default_value_t = 0.0, allow_hyphen_values = true)]
    skew: f64,

    /// A new or empty folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Writes the checkpoint.
///
/// # Errors
/// An impossible shape, a folder that is not empty, too little space.
pub fn run(args: &SynthArgs) -> Result<()> {
    let bar = progress::writing(0);
    let made = args.spec().and_then(|spec| {
        synthesize(&spec, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })
    });
    bar.finish_and_clear();
    let report = made.map_err(|source| BadInput::Synth { source })?;
    if args.json { print_json(&report) } else { print(&report) }
}

impl SynthArgs {
    fn spec(&self) -> Result<SynthSpec> {
        Ok(SynthSpec {
            like: self.like.parse()?,
            layers: self.layers,
            experts: self.experts,
            hidden: self.hidden,
            seed: self.seed,
            skew: self.skew,
            out: self.out.clone(),
        })
    }
}

fn print(report: &SynthReport) -> Result<()> {
    let size = report.size_bytes as f64;
    printer::line(&format!(
        "{}: {} parameters in {} tensors and {} shards, {}; made at {}/s, on the disk after {:.1} \
         s; the quarter of experts picked most gets about {:.0} % of the picks",
        report.out.display(),
        units::count(report.parameter_count),
        report.tensor_count,
        report.shard_count,
        units::bytes(size),
        units::bytes(size / report.generate_seconds),
        report.total_seconds,
        100.0 * report.top_quarter_share
    ))
}

fn print_json(report: &SynthReport) -> Result<()> {
    printer::json(&json!({
        "out": report.out,
        "shards": report.shard_count,
        "tensors": report.tensor_count,
        "parameters": report.parameter_count,
        "bytes": report.size_bytes,
        "generate_seconds": report.generate_seconds,
        "total_seconds": report.total_seconds,
        "top_quarter_share": report.top_quarter_share,
    }))
}
