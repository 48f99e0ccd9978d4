//! `tarfa`: exact Mixture-of-Experts inference, on the command line.
//!
//! `commands` has one file per command. What they share: `flags` says what can be asked,
//! `source` opens a model, `prompt` makes token ids, `answer` generates, `figures` and `report`
//! say how it went, `failure` turns errors into messages and exit codes.

#![forbid(unsafe_code)]

mod answer;
mod commands;
mod failure;
mod figures;
mod flags;
mod interrupt;
mod printer;
mod progress;
mod prompt;
mod report;
mod source;
mod tiering;
mod units;

use std::process::ExitCode;

use clap::Parser;

const EXAMPLES: &str = "\
Examples:
  tarfa run \"Once upon a time\"
  tarfa chat --model DIR
  tarfa selftest --quick

Exit codes: 0 done, 1 a difference was found or something failed inside, 2 bad input.";

/// Exact Mixture-of-Experts inference: the same bits on every machine.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    store::end_on_lost_pages();
    match commands::run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
