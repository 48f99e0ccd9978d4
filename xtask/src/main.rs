//! Chores of the workspace: `cargo xtask <command>`.

mod ptx;
mod tidy;
mod verify_elementary;

use anyhow::{Context, Result, bail};
use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <command>

commands:
  tidy                     check the house rules (CONTRIBUTING.md); exit code 1 on a violation
  ptx [--check]            compile the CUDA kernels to the PTX that the program carries
  verify-elementary [...]  sweep the elementary functions against higher precision
  --help                   print this";

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (command, rest) = arguments.split_first().context(USAGE)?;
    match (command.as_str(), rest) {
        ("tidy", []) => done(tidy::run(&workspace_root()?)?),
        ("ptx", []) => done(ptx::run(&workspace_root()?, false)?),
        ("ptx", [check]) if check == "--check" => done(ptx::run(&workspace_root()?, true)?),
        ("verify-elementary", rest) => verify_elementary::run(rest).map(|()| ExitCode::SUCCESS),
        ("--help" | "-h" | "help", []) => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!("unknown arguments: {}\n{USAGE}", arguments.join(" ")),
    }
}

fn done(good: bool) -> Result<ExitCode> {
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The folder above this package, as cargo names it at run time, else the current folder.
fn workspace_root() -> Result<PathBuf> {
    match env::var_os("CARGO_MANIFEST_DIR") {
        Some(package) => Ok(PathBuf::from(package).join("..")),
        None => Ok(env::current_dir()?),
    }
}
