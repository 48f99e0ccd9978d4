//! `tarfa inspect`: what a checkpoint holds, and whether it can be run. Of the
//! weights, only the small ones are read.

mod findings;
mod print;

use anyhow::Result;
use clap::Args;

use crate::flags::ModelArgs;
use crate::printer;
use crate::source::Found;
use findings::Findings;

const EXAMPLES: &str = "\
Examples:
  tarfa inspect
  tarfa inspect --model DIR
  tarfa inspect --model DIR --json

Exit code 2 if the checkpoint cannot be run; what is in it is printed all the same.";

/// Flags of `inspect`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Looks and prints.
///
/// # Errors
/// A folder that is no checkpoint, or one that cannot be run.
pub fn run(args: &InspectArgs) -> Result<()> {
    let (findings, problem) = match Found::at(args.model.model.as_deref())? {
        Found::Store(store) => {
            let (checkpoint, map, _) = store.into_parts();
            Findings::of(&checkpoint, Some(map))?
        }
        Found::Checkpoint(checkpoint) => Findings::of(&checkpoint, None)?,
    };
    if args.json {
        printer::json(&findings)?;
    } else {
        print::print(&findings)?;
    }
    match problem {
        Some(problem) => Err(anyhow::Error::from(problem).context("this cannot be run")),
        None => Ok(()),
    }
}
