//! The commands, one file each.

mod bench;
mod bench_kernels;
mod bench_reads;
mod chat;
mod convert;
mod distance;
mod heat;
mod inspect;
mod logits;
mod replay;
mod run;
mod selftest;
mod sim;
mod synth;
mod verify;

use clap::Subcommand;

/// What the program can do.
#[derive(Subcommand)]
pub enum Command {
    /// Go on from a text, and print the answer as it comes
    Run(run::RunArgs),
    /// Talk: one message a line
    Chat(chat::ChatArgs),
    /// Hashes of the logits, to compare with the oracle or another machine
    Logits(logits::LogitsArgs),
    /// What is in a checkpoint, and whether it can be run
    Inspect(inspect::InspectArgs),
    /// Golden hashes of the embedded model on every way to compute that this machine has
    Selftest(selftest::SelftestArgs),
    /// How far the logits are from float64, beside the reference implementation in bf16
    Distance(distance::DistanceArgs),
    /// Compute the answer of a receipt again and compare every hash
    Replay(replay::ReplayArgs),
    /// Speed of a model beside the bandwidth law
    Bench(bench::BenchArgs),
    /// Speed of the kernels beside the ceilings of this machine
    BenchKernels(bench_kernels::BenchKernelsArgs),
    /// Make a store: experts in blocks that a drive reads straight, checked, packed on request
    Convert(convert::ConvertArgs),
    /// Read every byte of a folder used in place; record its checksums, or compare them
    Verify(verify::VerifyArgs),
    /// Experts read and checked, beside the bare drive
    BenchReads(bench_reads::BenchReadsArgs),
    /// The ledger of which experts are used: show, export as a hot list, forget
    Heat(heat::HeatArgs),
    /// What a cache of experts would hit and reach on another machine, policy by policy
    Sim(sim::SimArgs),
    /// Make a random checkpoint of a true shape, to test and to time without a download
    Synth(synth::SynthArgs),
}

/// Runs a command.
///
/// # Errors
/// Whatever went wrong; `failure` knows the exit code.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Selftest(args) => selftest::run(args),
        Command::Distance(args) => distance::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Bench(args) => bench::run(args),
        Command::BenchKernels(args) => bench_kernels::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Verify(args) => verify::run(args),
        Command::BenchReads(args) => bench_reads::run(args),
        Command::Heat(args) => heat::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Synth(args) => synth::run(args),
    }
}
