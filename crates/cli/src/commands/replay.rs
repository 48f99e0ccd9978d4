//! `tarfa replay`: computes the answer of a receipt again.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use engine::generate::Session;
use engine::generate::digest::logits_sha256;
use engine::generate::sampler::{History, Sampler};
use lab::receipt::{ModelIdentity, Receipt};
use serde::Serialize;

use crate::failure::{BadInput, Difference};
use crate::flags::{MachineArgs, ModelArgs};
use crate::printer;
use crate::source::Source;
use crate::tiering::TierArgs;

const EXAMPLES: &str = "\
Examples:
  tarfa run --receipt answer.json \"Once upon a time\"
  tarfa replay answer.json
  tarfa replay answer.json --model DIR --threads 1

Exit codes: 0 every hash is equal, 1 one is not, 2 the receipt cannot be replayed here.";

/// Flags of `replay`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ReplayArgs {
    /// The receipt
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    tiers: TierArgs,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// What was compared, and the first thing that was not equal.
#[derive(Default, Serialize)]
struct Replayed {
    equal: bool,
    prompt_hashes: usize,
    token_hashes: usize,
    tokens: usize,
    first_difference: Option<String>,
    transcript_sha256: String,
    seconds: f64,
}

/// Replays and says whether every hash is equal.
///
/// # Errors
/// A receipt that cannot be replayed, or a difference.
pub fn run(args: &ReplayArgs) -> Result<()> {
    let receipt = Receipt::read(&args.file).map_err(|source| BadInput::Receipt { source })?;
    let source = Source::open(&args.model, &args.machine, &args.tiers)?;
    check_model(&receipt, &source)?;
    let started = Instant::now();
    let mut replayed = Replayed::default();
    replayed.first_difference = first_difference(&receipt, &source, args, &mut replayed)?;
    replayed.equal = replayed.first_difference.is_none();
    replayed.transcript_sha256 = receipt.transcript_sha256.clone();
    replayed.seconds = started.elapsed().as_secs_f64();
    if args.json {
        printer::json(&replayed)?;
    } else if replayed.equal {
        printer::line(&replayed.line())?;
    }
    match replayed.first_difference {
        Some(first) => Err(Difference::Replay { first }.into()),
        None => Ok(()),
    }
}

impl Replayed {
    fn line(&self) -> String {
        let prompt = match self.prompt_hashes {
            0 => String::new(),
            hashes => format!("{hashes} hashes of prompt positions, "),
        };
        format!(
            "equal: {prompt}{} tokens, the hashes of their logits and the transcript {} ({:.2} s)",
            self.tokens, self.transcript_sha256, self.seconds
        )
    }
}

fn check_model(receipt: &Receipt, source: &Source) -> Result<()> {
    let (expected, found) = (&receipt.model.fingerprint, source.model.fingerprint());
    if expected == found {
        return Ok(());
    }
    Err(BadInput::OtherModel {
        label: receipt.model.label.clone(),
        expected: expected.clone(),
        found_label: source.checkpoint.label().to_string(),
        found: found.to_string(),
    }
    .into())
}

fn first_difference(
    receipt: &Receipt,
    source: &Source,
    args: &ReplayArgs,
    replayed: &mut Replayed,
) -> Result<Option<String>> {
    if receipt.model.shards != ModelIdentity::of(&source.checkpoint).shards {
        return Ok(Some("the list of shards is not the checkpoint's".to_string()));
    }
    let mut session = Session::new(source.model.clone(), args.machine.chunk);
    let (row, different) = replay_prompt(receipt, &mut session, replayed)?;
    if different.is_some() {
        return Ok(different);
    }
    if let Some(different) = replay_tokens(receipt, &mut session, row, replayed)? {
        return Ok(Some(different));
    }
    let (expected, found) = (&receipt.transcript_sha256, receipt.transcript_of_content());
    let different = || format!("transcript {found}, the receipt has {expected}");
    Ok((found != *expected).then(different))
}

/// The last row of the prompt; compares all of them where the receipt has their hashes.
fn replay_prompt(
    receipt: &Receipt,
    session: &mut Session,
    replayed: &mut Replayed,
) -> Result<(Vec<f32>, Option<String>)> {
    let Some(expected) = &receipt.prompt_logits_sha256 else {
        return Ok((session.prompt(&receipt.prompt)?, None));
    };
    let (mut last, mut hashes) = (Vec::new(), Vec::new());
    session.prompt_rows(&receipt.prompt, |row| {
        hashes.push(logits_sha256(row));
        row.clone_into(&mut last);
    })?;
    replayed.prompt_hashes = hashes.len();
    let different = hashes.iter().zip(expected).enumerate().find(|(_, (a, b))| a != b);
    let different = different.map(|(at, (found, expected))| {
        format!("prompt position {at}: logits {found}, the receipt has {expected}")
    });
    Ok((last, different))
}

fn replay_tokens(
    receipt: &Receipt,
    session: &mut Session,
    mut row: Vec<f32>,
    replayed: &mut Replayed,
) -> Result<Option<String>> {
    let vocab = session.model().description().vocab;
    let mut sampler = Sampler::new(receipt.sampling.clone(), vocab)?;
    for (at, expected) in receipt.tokens.iter().enumerate() {
        let (found, hash) = (logits_sha256(&row), &receipt.logits_sha256[at]);
        if found != *hash {
            return Ok(Some(format!("token {at}: logits {found}, the receipt has {hash}")));
        }
        replayed.token_hashes += 1;
        let history = History { prompt: &receipt.prompt, output: &receipt.tokens[..at] };
        let chosen = sampler.next(&row, history)?;
        if chosen != *expected {
            let (chosen, expected) = (chosen.0, expected.0);
            return Ok(Some(format!("token {at}: chose {chosen}, the receipt has {expected}")));
        }
        replayed.tokens += 1;
        if at + 1 < receipt.tokens.len() {
            row = session.step(chosen)?;
        }
    }
    Ok(None)
}
