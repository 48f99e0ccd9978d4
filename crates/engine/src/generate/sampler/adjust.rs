//! Bias and penalties: f32 operations on logits, in an order that is part of the contract.

use super::{History, SamplingError, SamplingParams};
use crate::index::TokenId;

/// Applies bias, repetition, presence and frequency, in this order.
///
/// Shapes: logits \[vocab\]. `counts` is scratch, all zero before and after.
/// Errors: [`SamplingError::HistoryToken`], before anything changed.
pub(super) fn apply(
    params: &SamplingParams,
    history: History<'_>,
    counts: &mut Vec<u32>,
    logits: &mut [f32],
) -> Result<(), SamplingError> {
    let counted =
        if params.repeats() || params.counts_output() { history } else { History::default() };
    check_ids(counted, logits.len())?;
    counts.resize(logits.len(), 0);
    for &(token, bias) in &params.logit_bias {
        logits[token.0 as usize] += bias;
    }
    if params.repeats() {
        repetition(params.repetition_penalty, counted, counts, logits);
    }
    if params.counts_output() {
        presence_and_frequency(params, counted.output, counts, logits);
    }
    Ok(())
}

fn check_ids(history: History<'_>, vocab: usize) -> Result<(), SamplingError> {
    let mut ids = history.prompt.iter().chain(history.output);
    match ids.find(|id| id.0 as usize >= vocab) {
        Some(&token) => Err(SamplingError::HistoryToken { token, vocab }),
        None => Ok(()),
    }
}

/// `l / r` if `l > 0`, else `l * r`, once for every id in prompt or output.
fn repetition(penalty: f32, history: History<'_>, counts: &mut [u32], logits: &mut [f32]) {
    let ids = || history.prompt.iter().chain(history.output).map(|id| id.0 as usize);
    for id in ids() {
        if counts[id] == 0 {
            counts[id] = 1;
            let logit = logits[id];
            logits[id] = if logit > 0.0 { logit / penalty } else { logit * penalty };
        }
    }
    ids().for_each(|id| counts[id] = 0);
}

/// `l - p`, then `l - f32(f * f32(count))`, for every id in the output.
///
/// A count is exact in f32 up to 2^24 occurrences, and the nearest f32 beyond.
fn presence_and_frequency(
    params: &SamplingParams,
    output: &[TokenId],
    counts: &mut [u32],
    logits: &mut [f32],
) {
    for id in output {
        counts[id.0 as usize] += 1;
    }
    for id in output {
        let id = id.0 as usize;
        let count = std::mem::take(&mut counts[id]);
        if count > 0 {
            let present = logits[id] - params.presence_penalty;
            logits[id] = present - params.frequency_penalty * count as f32;
        }
    }
}
