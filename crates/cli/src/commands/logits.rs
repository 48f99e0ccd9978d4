//! `tarfa logits`: the hashes that the oracle prints, of a prompt and of greedy tokens after it.

mod table;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use engine::counters::PhaseCounters;
use engine::generate::Session;
use engine::generate::digest::{Transcript, logits_sha256};
use engine::generate::sampler::{History, Sampler, SamplingParams};
use engine::index::TokenId;
use engine::model::{ModelError, State};
use serde::Serialize;

use crate::answer::{Answer, Phase, Stop};
use crate::flags::{MachineArgs, ModelArgs, OutputArgs, at_least_one};
use crate::printer;
use crate::prompt::PromptArgs;
use crate::report::{check_receipt_folder, receipt};
use crate::source::{self, Source};
use crate::tiering::TierArgs;
use table::Best;

const EXAMPLES: &str = "\
Examples:
  tarfa logits --ids 1,2,3 --generate 16 --json
  tarfa logits --model DIR --top 5 \"The sea is\"
  tarfa logits --ids 446,420 --generate 1 --state-out state
  tarfa logits --ids 312 --generate 1 --state-in state --state-out state

A hash is the SHA-256 of one row of f32 logits, little endian. --json has the keys of the oracle
(oracle/oracle.py): prompt, prompt_logits_sha256, tokens, logits_sha256.";

/// Flags of `logits`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct LogitsArgs {
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    model: ModelArgs,

    /// Greedy tokens to generate after the prompt
    #[arg(long, value_name = "N", default_value_t = 0)]
    generate: usize,

    /// Also list the N likeliest tokens after the prompt
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    top: Option<usize>,

    /// Go on from a saved state; the prompt is then what follows
    #[arg(long, value_name = "FILE", conflicts_with = "receipt")]
    state_in: Option<PathBuf>,

    /// Save the state after the last token that was read: the last but one of those generated
    #[arg(long, value_name = "FILE")]
    state_out: Option<PathBuf>,

    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    tiers: TierArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What `--json` prints: the oracle's keys.
#[derive(Serialize)]
struct LogitsJson<'a> {
    prompt: &'a [TokenId],
    prompt_logits_sha256: &'a [String],
    tokens: &'a [TokenId],
    logits_sha256: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    top: Option<Vec<Best>>,
}

/// Rows of a prompt: a hash of each, and the last.
struct PromptRows {
    sha256: Vec<String>,
    last: Vec<f32>,
}

/// Computes and prints.
///
/// # Errors
/// Bad input, or an output that cannot be written.
pub fn run(args: &LogitsArgs) -> Result<()> {
    check_receipt_folder(args.output.receipt.as_deref())?;
    let source = Source::open(&args.model, &args.machine, &args.tiers)?;
    let prompt = args.prompt.ids(&source)?;
    let mut session = begin(args, &source)?;
    let first = session.state().positions();
    check_room(&source, first + prompt.len() + args.generate.saturating_sub(1))?;
    let (rows, answer) = compute(&mut session, &prompt, args.generate)?;
    if let Some(path) = &args.state_out {
        session.state().save(&source.model, path)?;
    }
    source.finish()?;
    let tokenizer = source::tokenizer(&source.checkpoint)?;
    let top = args.top.map(|count| table::best(&rows.last, count, tokenizer.as_ref()));
    if args.output.json {
        printer::json(&LogitsJson {
            prompt: &prompt,
            prompt_logits_sha256: &rows.sha256,
            tokens: &answer.tokens,
            logits_sha256: &answer.logits_sha256,
            top,
        })?;
    } else {
        table::print(first, &rows.sha256, &answer, tokenizer.as_ref(), top)?;
    }
    if let Some(path) = &args.output.receipt {
        let params = SamplingParams::default();
        let mut receipt = receipt(&source, &answer, &params, args.machine.chunk);
        receipt.prompt_logits_sha256 = Some(rows.sha256);
        receipt.write(path)?;
    }
    Ok(())
}

fn begin(args: &LogitsArgs, source: &Source) -> Result<Session> {
    let (model, chunk) = (source.model.clone(), args.machine.chunk);
    let Some(path) = &args.state_in else { return Ok(Session::new(model, chunk)) };
    let state = State::load(model.description(), model.fingerprint(), path)?;
    Ok(Session::resume(model, state, chunk))
}

fn check_room(source: &Source, needed: usize) -> Result<()> {
    let limit = source.model.description().positions_max;
    if needed > limit { Err(ModelError::TooLong { needed, limit }.into()) } else { Ok(()) }
}

fn compute(
    session: &mut Session,
    prompt: &[TokenId],
    generate: usize,
) -> Result<(PromptRows, Answer)> {
    let started = Instant::now();
    let mut rows = PromptRows { sha256: Vec::new(), last: Vec::new() };
    session.prompt_rows(prompt, |row| {
        rows.sha256.push(logits_sha256(row));
        row.clone_into(&mut rows.last);
    })?;
    let prefill = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let (tokens, logits_sha256) = greedy(session, prompt, rows.last.clone(), generate)?;
    let seconds = [prefill, started.elapsed().as_secs_f64()];
    Ok((rows, answer(session, prompt, tokens, logits_sha256, seconds)))
}

fn greedy(
    session: &mut Session,
    prompt: &[TokenId],
    mut row: Vec<f32>,
    generate: usize,
) -> Result<(Vec<TokenId>, Vec<String>)> {
    let vocab = session.model().description().vocab;
    let mut sampler = Sampler::new(SamplingParams::default(), vocab)?;
    let (mut tokens, mut hashes) = (Vec::new(), Vec::new());
    while tokens.len() < generate {
        let token = sampler.next(&row, History { prompt, output: &tokens })?;
        hashes.push(logits_sha256(&row));
        tokens.push(token);
        if tokens.len() < generate {
            row = session.step(token)?;
        }
    }
    Ok((tokens, hashes))
}

fn answer(
    session: &Session,
    prompt: &[TokenId],
    tokens: Vec<TokenId>,
    logits_sha256: Vec<String>,
    seconds: [f64; 2],
) -> Answer {
    let fingerprint = session.model().fingerprint();
    let mut transcript = Transcript::new(fingerprint, &SamplingParams::default(), prompt);
    for (hash, token) in logits_sha256.iter().zip(&tokens) {
        transcript.push(hash, *token);
    }
    let (prefill, decode) = session.counters();
    let phase = |counters: PhaseCounters, seconds| Phase { counters, seconds };
    Answer {
        prompt: prompt.to_vec(),
        tokens,
        logits_sha256,
        transcript_sha256: transcript.sha256(),
        stop: Stop::Length,
        prefill: phase(prefill, seconds[0]),
        decode: phase(decode, seconds[1]),
    }
}
