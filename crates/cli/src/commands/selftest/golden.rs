//! What the oracle printed for the embedded model, and the comparison with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use engine::generate::Session;
use engine::generate::digest::logits_sha256;
use engine::generate::sampler::{History, Sampler, SamplingParams};
use engine::index::TokenId;
use engine::model::Model;
use serde::Deserialize;

const ORACLE: &str = include_str!("../../../../../models/tiny-moe/reference/oracle.json");
/// The prompts that are replayed: 4, 10, 21 and 129 tokens.
const PROMPTS: [&str; 4] = ["0", "1", "2", "3"];
/// Greedy tokens after each.
const GENERATED: usize = 16;
/// The same for a quick test.
const PROMPTS_QUICK: usize = 3;
const GENERATED_QUICK: usize = 4;

/// A prompt and its hashes.
#[derive(Clone, Deserialize)]
pub struct Case {
    prompt: Vec<TokenId>,
    prompt_logits_sha256: Vec<String>,
    tokens: Vec<TokenId>,
    logits_sha256: Vec<String>,
}

/// The cases to replay.
pub fn cases(quick: bool) -> Vec<Case> {
    let all: BTreeMap<String, Case> =
        serde_json::from_str(ORACLE).expect("compiled in, and read by the tests");
    let (prompts, generated) =
        if quick { (PROMPTS_QUICK, GENERATED_QUICK) } else { (PROMPTS.len(), GENERATED) };
    let mut cases: Vec<Case> = PROMPTS[..prompts].iter().map(|name| all[*name].clone()).collect();
    for case in &mut cases {
        case.tokens.truncate(generated);
        case.logits_sha256.truncate(generated);
    }
    cases
}

/// Replays all cases so many times; counts equal hashes and returns the first difference.
///
/// # Errors
/// The model fails.
pub fn compare(
    model: Model,
    chunk: usize,
    cases: &[Case],
    repeat: usize,
    compared: &mut usize,
) -> Result<Option<String>> {
    let model = Arc::new(model);
    for case in (0..repeat).flat_map(|_| cases) {
        if let Some(different) = compare_case(&model, chunk, case, compared)? {
            return Ok(Some(different));
        }
    }
    Ok(None)
}

fn compare_case(
    model: &Arc<Model>,
    chunk: usize,
    case: &Case,
    compared: &mut usize,
) -> Result<Option<String>> {
    let length = case.prompt.len();
    let mut session = Session::new(model.clone(), chunk);
    let (mut row, mut hashes) = (Vec::new(), Vec::new());
    session.prompt_rows(&case.prompt, |logits| {
        hashes.push(logits_sha256(logits));
        logits.clone_into(&mut row);
    })?;
    for (at, (found, expected)) in hashes.iter().zip(&case.prompt_logits_sha256).enumerate() {
        if found != expected {
            return Ok(Some(format!("prompt of {length}, position {at}: {found}, not {expected}")));
        }
        *compared += 1;
    }
    let mut sampler = Sampler::new(SamplingParams::default(), model.description().vocab)?;
    for (at, (token, expected)) in case.tokens.iter().zip(&case.logits_sha256).enumerate() {
        let found = logits_sha256(&row);
        let chosen = sampler.next(&row, History::default())?;
        if found != *expected {
            return Ok(Some(format!("prompt of {length}, token {at}: {found}, not {expected}")));
        }
        if chosen != *token {
            let (chosen, token) = (chosen.0, token.0);
            return Ok(Some(format!("prompt of {length}, token {at}: {chosen}, not {token}")));
        }
        *compared += 1;
        row = session.step(chosen)?;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use numerics::Cpu;

    #[test]
    fn the_cases_are_there() {
        let check = |quick, prompts: &[usize], generated| {
            let cases = cases(quick);
            let lengths: Vec<usize> = cases.iter().map(|case| case.prompt.len()).collect();
            assert_eq!(lengths, prompts);
            assert!(cases.iter().all(|case| case.tokens.len() == generated));
        };
        check(false, &[4, 10, 21, 129], 16);
        check(true, &[4, 10, 21], 4);
    }

    /// A selftest that cannot fail proves nothing.
    #[test]
    fn a_wrong_hash_is_found() {
        let checkpoint = engine::embedded::checkpoint().unwrap();
        let mut cases = cases(true);
        cases[1].logits_sha256[2] = "0".repeat(64);
        let model = Model::load(&checkpoint, Cpu::detect().unwrap()).unwrap();
        let mut compared = 0;
        let found = compare(model, usize::MAX, &cases, 1, &mut compared).unwrap().unwrap();
        assert!(found.starts_with("prompt of 10, token 2: "), "{found}");
        assert_eq!(compared, 4 + 4 + 10 + 2);
    }
}
