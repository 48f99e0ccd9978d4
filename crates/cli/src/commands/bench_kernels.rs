//! `tarfa bench-kernels`: the kernels beside this machine's ceilings, in one run.

use anyhow::Result;
use clap::Args;
use lab::kernels::{KernelRow, KernelSpec, run as measure};

use crate::flags::{MachineArgs, at_least_one};
use crate::printer;

const EXAMPLES: &str = "Examples:
  tarfa bench-kernels --threads 2
  tarfa bench-kernels --device cuda:0 --megabytes 4300 --tokens 2048
  tarfa bench-kernels --threads 2 --k 2048 --tokens 64,512 --json";

/// What to measure.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchKernelsArgs {
    #[command(flatten)]
    machine: MachineArgs,

    /// Input width of the matrix
    #[arg(long, value_name = "K", default_value_t = 3072, value_parser = at_least_one)]
    k: usize,

    /// Size of the matrix, in MB; take more than any cache holds
    #[arg(long, value_name = "MB", default_value_t = 1200, value_parser = at_least_one)]
    megabytes: usize,

    /// Samples of each figure; the median counts
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = at_least_one)]
    samples: usize,

    /// Token counts of the matrix products
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [64, 512])]
    tokens: Vec<usize>,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Measures and prints each row as it is there.
///
/// # Errors
/// A level or threads that this machine does not give.
pub fn run(args: &BenchKernelsArgs) -> Result<()> {
    let cpu = args.machine.cpu()?;
    let spec = KernelSpec {
        k: args.k,
        bytes: args.megabytes * 1_000_000,
        samples: args.samples,
        tokens: args.tokens.clone(),
    };
    let gpu = args.machine.gpu()?;
    let mut failed = Ok(());
    if let (Some(gpu), false) = (&gpu, args.json) {
        printer::line(&format!(
            "{}, wide sums in {:?}, a matrix of {} MB with rows of {}",
            gpu.info().name,
            gpu.wide(),
            args.megabytes,
            args.k
        ))?;
    } else if !args.json {
        printer::line(&format!(
            "{} threads, {}, a matrix of {} MB with rows of {}",
            cpu.threads(),
            cpu.level().name(),
            args.megabytes,
            args.k
        ))?;
    }
    let mut print = |row: &KernelRow| {
        if !args.json && failed.is_ok() {
            failed = printer::line(&text(row));
        }
    };
    let rows = match &gpu {
        Some(gpu) => lab::kernels::gpu::run(&cpu, gpu, &spec, &mut print)?,
        None => measure(&cpu, &spec, &mut print),
    };
    failed?;
    if args.json { printer::json(&rows) } else { Ok(()) }
}

fn text(r: &KernelRow) -> String {
    format!(
        "{:28} {:8.1} of {:8.1} {:8} = {:.3} ({:.3} to {:.3})",
        r.kernel, r.rate, r.ceiling, r.unit, r.ratio, r.range.0, r.range.1
    )
}
