//! `tarfa distance`: the logits against float64, beside the reference implementation in bf16.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lab::golden::{distance, greedy_agreement};
use numerics::Cpu;
use store::checkpoint::Checkpoint;

use crate::failure::BadInput;
use crate::printer;

/// Where reference files lie in a checkpoint's folder.
const REFERENCE_PLACES: [&str; 2] = ["reference.npz", "reference/reference.npz"];

#[derive(Args, Debug)]
pub struct DistanceArgs {
    /// Folder of the checkpoint
    #[arg(long, value_name = "DIR")]
    model: PathBuf,

    /// Logits of the same checkpoint in float64 and bf16 [default: reference.npz in DIR]
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl DistanceArgs {
    fn reference(&self) -> Result<PathBuf> {
        if let Some(file) = &self.reference {
            return Ok(file.clone());
        }
        let mut places = REFERENCE_PLACES.iter().map(|place| self.model.join(place));
        let label = self.model.display().to_string();
        Ok(places.find(|file| file.is_file()).ok_or(BadInput::NoReference { label })?)
    }
}

/// Prints the distances and, where the file has greedy tokens, how long they agree.
pub fn run(args: &DistanceArgs) -> Result<()> {
    let checkpoint = Checkpoint::open(&args.model)?;
    let reference = args.reference()?;
    let cpu = Cpu::detect()?;
    let distance = distance(&checkpoint, &reference, cpu.clone())?;
    let greedy = greedy_agreement(&checkpoint, &reference, cpu)?;
    if args.json {
        let report = serde_json::json!({ "distance": distance, "greedy": greedy });
        printer::json(&report)
    } else {
        printer::line(format!("{distance}{greedy}").trim_end())
    }
}
