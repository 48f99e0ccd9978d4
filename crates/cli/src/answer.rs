//! Generating an answer, with everything a receipt needs.

use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::Result;
use engine::counters::PhaseCounters;
use engine::generate::Session;
use engine::generate::digest::{Transcript, logits_sha256};
use engine::generate::sampler::{History, Sampler};
use engine::index::TokenId;
use serde::Serialize;

/// What to answer, and when to stop.
pub struct Request<'a> {
    /// Everything before the answer.
    pub prompt: &'a [TokenId],
    /// How many of these the session has read already; fewer than all.
    pub read: usize,
    pub tokens_max: usize,
    /// Tokens that end the answer; they are part of it.
    pub eos: &'a [TokenId],
}

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The model ended it.
    EndOfText,
    /// As many tokens as were asked for.
    Length,
    /// The user ended it.
    Interrupted,
}

/// Work and time of one phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct Phase {
    pub counters: PhaseCounters,
    pub seconds: f64,
}

/// An answer and what it took.
pub struct Answer {
    pub prompt: Vec<TokenId>,
    pub tokens: Vec<TokenId>,
    pub logits_sha256: Vec<String>,
    pub transcript_sha256: String,
    pub stop: Stop,
    pub prefill: Phase,
    pub decode: Phase,
}

/// Who watches an answer grow.
pub trait Watcher {
    /// After each chunk of a prompt but the last, with the tokens read so far.
    fn read(&mut self, tokens: usize) -> ControlFlow<()>;

    /// After each chosen token but one that ends the text.
    ///
    /// # Errors
    /// It cannot be shown.
    fn token(&mut self, token: TokenId) -> Result<ControlFlow<()>>;
}

/// Reads what is unread of a prompt and generates.
///
/// # Errors
/// As the session, the sampler and the watcher have them.
pub fn generate(
    session: &mut Session,
    sampler: &mut Sampler,
    request: &Request<'_>,
    watcher: &mut impl Watcher,
) -> Result<Answer> {
    let model = session.model().clone();
    let mut answer = Answer {
        prompt: request.prompt.to_vec(),
        tokens: Vec::new(),
        logits_sha256: Vec::new(),
        transcript_sha256: String::new(),
        stop: Stop::Interrupted,
        prefill: Phase::default(),
        decode: Phase::default(),
    };
    let mut transcript = Transcript::new(model.fingerprint(), sampler.params(), request.prompt);
    let (prefill_before, decode_before) = session.counters();
    let started = Instant::now();
    let unread = &request.prompt[request.read..];
    let logits = session.prompt_until(unread, |tokens| watcher.read(tokens))?;
    answer.prefill.seconds = started.elapsed().as_secs_f64();
    if let Some(logits) = logits {
        let started = Instant::now();
        decode(session, sampler, request, watcher, logits, &mut answer)?;
        answer.decode.seconds = started.elapsed().as_secs_f64();
    }
    let (prefill, decode) = session.counters();
    answer.prefill.counters = prefill.since(&prefill_before);
    answer.decode.counters = decode.since(&decode_before);
    for (hash, token) in answer.logits_sha256.iter().zip(&answer.tokens) {
        transcript.push(hash, *token);
    }
    answer.transcript_sha256 = transcript.sha256();
    Ok(answer)
}

fn decode(
    session: &mut Session,
    sampler: &mut Sampler,
    request: &Request<'_>,
    watcher: &mut impl Watcher,
    mut logits: Vec<f32>,
    answer: &mut Answer,
) -> Result<()> {
    loop {
        let history = History { prompt: request.prompt, output: &answer.tokens };
        let token = sampler.next(&logits, history)?;
        answer.logits_sha256.push(logits_sha256(&logits));
        answer.tokens.push(token);
        if request.eos.contains(&token) {
            answer.stop = Stop::EndOfText;
            return Ok(());
        }
        let go_on = watcher.token(token)?;
        if answer.tokens.len() == request.tokens_max {
            answer.stop = Stop::Length;
            return Ok(());
        }
        if go_on.is_break() {
            return Ok(());
        }
        logits = session.step(token)?;
    }
}
