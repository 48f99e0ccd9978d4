//! `tarfa verify`: every byte of a folder used in place.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use engine::model::Model;
use serde_json::json;
use store::checkpoint::Checkpoint;
use store::sidecar::Sidecar;
use store::verify::{Findings, InPlace, Sums, verify_in_place};

use super::convert::follow;
use crate::failure::{BadInput, Difference};
use crate::interrupt::Stop;
use crate::{printer, progress, source, units};

const EXAMPLES: &str = "Examples:
  tarfa verify --model DIR                         # records all checksums, or compares them
  tarfa verify --model DIR --sha256sums SHA256SUMS # and the files with what their author says
  tarfa verify --model DIR --renew                 # the files were replaced, and rightly so

The checksums lie in DIR/.tarfa/manifest.json; runs with --ram-budget compare every expert that they
read with it. A store made by `tarfa convert` has its own: `tarfa convert --verify STORE`.
Exit codes: 0 all is as it was, 1 a difference was found, 2 bad input.";

/// What to verify.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct VerifyArgs {
    /// Folder of a Hugging Face checkpoint
    #[arg(long, value_name = "DIR")]
    model: PathBuf,

    /// Hashes of the files, as `sha256sum` prints them
    #[arg(long, value_name = "FILE")]
    sha256sums: Option<PathBuf>,

    /// Forget what was known and record what is there now
    #[arg(long)]
    renew: bool,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Reads all of it.
///
/// # Errors
/// A folder that cannot be read; a difference.
pub fn run(args: &VerifyArgs) -> Result<()> {
    let checkpoint = Checkpoint::open(&args.model)?;
    let fingerprint = checkpoint.sha256_fingerprint();
    let (_, map) = Model::experts_in_place(&checkpoint)?;
    let path = source::sidecar_path(&checkpoint);
    let path = path.ok_or_else(|| BadInput::NoSidecar { path: args.model.clone() })?;
    let known = match args.renew {
        true => Sidecar::new(&fingerprint),
        false => Sidecar::load(&path, &fingerprint)?,
    };
    let sums = args.sha256sums.as_deref().map(Sums::read).transpose()?;
    let with = InPlace { sums: sums.as_ref(), known: Some(&known) };
    let (bar, stop) = (progress::bytes("reading"), Stop::listen()?);
    let found = verify_in_place(&checkpoint, &map, with, &mut |at| follow(&bar, &stop, at));
    bar.finish_and_clear();
    let (sidecar, findings) = found?;
    if findings.differences.is_empty() && sidecar != known {
        sidecar.save(&path)?;
    }
    report(&args.model, &findings, args.json)
}

/// Prints what was found.
///
/// # Errors
/// A difference.
pub fn report(folder: &Path, findings: &Findings, json: bool) -> Result<()> {
    let differences: Vec<String> = findings.differences.iter().map(ToString::to_string).collect();
    if json {
        printer::json(&json!({
            "folder": folder,
            "files": findings.files,
            "blocks": findings.blocks,
            "read_bytes": findings.read_bytes,
            "differences": differences,
        }))?;
    } else {
        differences.iter().try_for_each(|difference| printer::line(difference))?;
        printer::line(&format!(
            "{}: {} files, {} blocks of experts, {} read: {}",
            folder.display(),
            findings.files,
            units::grouped(findings.blocks),
            units::bytes(findings.read_bytes as f64),
            if differences.is_empty() { "all as it was written" } else { "not as it was written" },
        ))?;
    }
    match differences.len() {
        0 => Ok(()),
        count => Err(Difference::Weights { count }.into()),
    }
}
