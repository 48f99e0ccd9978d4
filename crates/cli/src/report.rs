//! Answers as JSON and as receipts.

use std::path::Path;

use anyhow::Result;
use engine::generate::sampler::SamplingParams;
use engine::index::TokenId;
use lab::receipt::{
    Checked, Counters, MODE_EXACT, Machine, ModelIdentity, NUMERICS_VERSION, RECEIPT_VERSION,
    Receipt, Seconds,
};
use serde::Serialize;

use crate::answer::{Answer, Stop};
use crate::failure::BadInput;
use crate::figures::Figures;
use crate::source::Source;

/// An answer as `--json` prints it.
#[derive(Serialize)]
pub struct AnswerJson<'a> {
    /// Absent without a tokenizer.
    pub text: Option<&'a str>,
    pub prompt: &'a [TokenId],
    pub tokens: &'a [TokenId],
    pub logits_sha256: &'a [String],
    pub transcript_sha256: &'a str,
    pub stop: Stop,
    pub figures: Figures,
}

impl<'a> AnswerJson<'a> {
    /// What is known of an answer.
    pub fn new(answer: &'a Answer, text: Option<&'a str>, figures: Figures) -> AnswerJson<'a> {
        AnswerJson {
            text,
            prompt: &answer.prompt,
            tokens: &answer.tokens,
            logits_sha256: &answer.logits_sha256,
            transcript_sha256: &answer.transcript_sha256,
            stop: answer.stop,
            figures,
        }
    }
}

/// Refuses a receipt that could not be written, before any work.
///
/// # Errors
/// Its folder is not there.
pub fn check_receipt_folder(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        return Err(BadInput::ReceiptFolder { path: path.display().to_string() }.into());
    }
    Ok(())
}

/// The receipt of an answer.
pub fn receipt(
    source: &Source,
    answer: &Answer,
    sampling: &SamplingParams,
    chunk: usize,
) -> Receipt {
    let cpu = source.model.cpu();
    Receipt {
        receipt: RECEIPT_VERSION,
        tarfa: env!("CARGO_PKG_VERSION").to_string(),
        numerics: NUMERICS_VERSION.to_string(),
        mode: MODE_EXACT.to_string(),
        model: ModelIdentity::of(&source.checkpoint),
        sampling: sampling.clone(),
        prompt: answer.prompt.clone(),
        prompt_logits_sha256: None,
        tokens: answer.tokens.clone(),
        logits_sha256: answer.logits_sha256.clone(),
        transcript_sha256: answer.transcript_sha256.clone(),
        machine: Machine::new(cpu.level().name(), cpu.threads(), chunk),
        counters: Counters { prefill: answer.prefill.counters, decode: answer.decode.counters },
        weights: Some(Checked::of(source.model.tiers())),
        seconds: Seconds {
            load: source.load_seconds,
            prefill: answer.prefill.seconds,
            decode: answer.decode.seconds,
        },
    }
}
