//! How far the exact logits are from float64, beside the reference implementation in bf16.
//!
//! The one place where numbers are compared within a bound: everything else here is compared bit
//! by bit. Exactness says that every run gives the same bits; this says that they are good ones.

mod reference;
mod table;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use engine::generate::{CHUNK_DEFAULT, Session};
use engine::index::TokenId;
use engine::model::Model;
use numerics::Cpu;
use serde::Serialize;
use store::checkpoint::Checkpoint;

use reference::Reference;

/// The distance over all prompts of a reference file.
///
/// Units: relative root mean square errors, dimensionless.
#[derive(Clone, Debug, Serialize)]
pub struct DistanceReport {
    /// The checkpoint.
    pub model: String,
    /// The arrays that count as float64.
    pub float64: &'static str,
    pub prompts: Vec<PromptDistance>,
    /// Our errors, summed over the prompts.
    pub error_sum: f64,
    /// Those of the reference implementation in bf16.
    pub bf16_error_sum: f64,
    /// `error_sum / bf16_error_sum`.
    pub ratio: f64,
    /// Positions at which float64's largest logit is ours too, and how many there are.
    pub argmax_equal: usize,
    pub bf16_argmax_equal: usize,
    pub positions: usize,
}

/// The distance over the stored positions (the last ones) of one prompt.
///
/// Units: `error` is `sqrt(sum (a - b)^2 / sum b^2)`, b in float64.
#[derive(Clone, Debug, Serialize)]
pub struct PromptDistance {
    pub prompt: usize,
    pub tokens: usize,
    pub error: f64,
    pub bf16_error: f64,
    /// Per stored position: float64's largest logit is ours too.
    pub argmax_equal: Vec<bool>,
    pub bf16_argmax_equal: Vec<bool>,
}

/// Greedy tokens after a prompt, against those of float64.
#[derive(Clone, Debug, Serialize)]
pub struct GreedyAgreement {
    pub prompt: usize,
    /// Generated tokens that were compared.
    pub tokens: usize,
    /// The first of ours that is another one.
    pub first_difference: Option<usize>,
    /// The same of the reference implementation in bf16.
    pub bf16_first_difference: Option<usize>,
}

/// The agreement over all prompts for which a reference file has greedy tokens.
#[derive(Clone, Debug, Serialize)]
pub struct GreedyReport {
    pub prompts: Vec<GreedyAgreement>,
}

/// Runs every prompt of a `reference.npz` and measures the logits of its stored positions.
///
/// # Errors
/// A file or a checkpoint that cannot be read, shapes that do not fit each other.
pub fn distance(checkpoint: &Checkpoint, reference: &Path, cpu: Cpu) -> Result<DistanceReport> {
    let mut reference = Reference::open(reference)?;
    let model = Arc::new(Model::load(checkpoint, cpu)?);
    let prompts: Vec<PromptDistance> = (0..reference.prompts())
        .map(|i| prompt_distance(&model, &mut reference, i).with_context(|| format!("prompt {i}")))
        .collect::<Result<_>>()?;
    let sum = |error: fn(&PromptDistance) -> f64| prompts.iter().map(error).sum::<f64>();
    let equal = |which: fn(&PromptDistance) -> &[bool]| {
        prompts.iter().flat_map(which).filter(|equal| **equal).count()
    };
    let (error_sum, bf16_error_sum) = (sum(|p| p.error), sum(|p| p.bf16_error));
    Ok(DistanceReport {
        model: checkpoint.label().to_string(),
        float64: reference.float64_name(),
        error_sum,
        bf16_error_sum,
        ratio: error_sum / bf16_error_sum,
        argmax_equal: equal(|p| &p.argmax_equal),
        bf16_argmax_equal: equal(|p| &p.bf16_argmax_equal),
        positions: prompts.iter().map(|p| p.argmax_equal.len()).sum(),
        prompts,
    })
}

fn prompt_distance(
    model: &Arc<Model>,
    reference: &mut Reference,
    prompt: usize,
) -> Result<PromptDistance> {
    let vocab = model.description().vocab;
    let ids = reference.ids(prompt)?;
    let float64 = reference.float64_logits(prompt)?;
    let bf16 = reference.bf16_logits(prompt)?;
    let positions = float64.len() / vocab;
    ensure!(
        float64.len() == positions * vocab && (1..=ids.len()).contains(&positions),
        "{} logits for {} tokens and a vocabulary of {vocab}",
        float64.len(),
        ids.len()
    );
    ensure!(bf16.len() == float64.len(), "{} logits in bf16", bf16.len());
    let ours = last_logits(model, &ids, positions)?;
    Ok(PromptDistance {
        prompt,
        tokens: ids.len(),
        error: relative_error(&ours, &float64),
        bf16_error: relative_error(&bf16, &float64),
        argmax_equal: argmax_equal(&ours, &float64, vocab),
        bf16_argmax_equal: argmax_equal(&bf16, &float64, vocab),
    })
}

/// The logits of the last positions of a prompt, `[positions, vocab]`.
fn last_logits(model: &Arc<Model>, ids: &[TokenId], positions: usize) -> Result<Vec<f64>> {
    let mut session = Session::new(model.clone(), CHUNK_DEFAULT);
    let (head, tail) = ids.split_at(ids.len() + 1 - positions);
    let mut logits = session.prompt(head)?;
    for id in tail {
        logits.extend(session.step(*id)?);
    }
    Ok(logits.into_iter().map(f64::from).collect())
}

/// `sqrt(sum (a - b)^2 / sum b^2)`.
fn relative_error(a: &[f64], b: &[f64]) -> f64 {
    let error: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    let square: f64 = b.iter().map(|b| b * b).sum();
    (error / square).sqrt()
}

fn argmax_equal(a: &[f64], b: &[f64], vocab: usize) -> Vec<bool> {
    a.chunks(vocab).zip(b.chunks(vocab)).map(|(a, b)| argmax(a) == argmax(b)).collect()
}

/// The largest, ties to the lower id.
fn argmax<T: PartialOrd>(logits: &[T]) -> usize {
    (1..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best })
}

/// Generates greedily after every prompt for which `reference` has float64's greedy tokens.
///
/// # Errors
/// As [`distance`].
pub fn greedy_agreement(
    checkpoint: &Checkpoint,
    reference: &Path,
    cpu: Cpu,
) -> Result<GreedyReport> {
    let mut reference = Reference::open(reference)?;
    let model = Arc::new(Model::load(checkpoint, cpu)?);
    let mut prompts = Vec::new();
    for prompt in 0..reference.prompts() {
        let Some(float64) = reference.greedy("f64", prompt)? else { continue };
        let ids = reference.ids(prompt)?;
        let ours = greedy_tokens(&model, &ids, float64.len())?;
        let bf16 = reference.greedy("bf16", prompt)?.unwrap_or_default();
        prompts.push(GreedyAgreement {
            prompt,
            tokens: float64.len(),
            first_difference: first_difference(&ours, &float64),
            bf16_first_difference: first_difference(&bf16, &float64),
        });
    }
    Ok(GreedyReport { prompts })
}

fn greedy_tokens(model: &Arc<Model>, ids: &[TokenId], count: usize) -> Result<Vec<TokenId>> {
    let mut session = Session::new(model.clone(), CHUNK_DEFAULT);
    let mut logits = session.prompt(ids)?;
    let mut tokens = Vec::with_capacity(count);
    while tokens.len() < count {
        let token = TokenId(argmax(&logits) as u32);
        tokens.push(token);
        logits = session.step(token)?;
    }
    Ok(tokens)
}

/// Where two lists part, the shorter one counting as other beyond its end.
fn first_difference(a: &[TokenId], b: &[TokenId]) -> Option<usize> {
    (0..a.len().max(b.len())).find(|i| a.get(*i) != b.get(*i))
}
