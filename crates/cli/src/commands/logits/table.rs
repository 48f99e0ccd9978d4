//! The hashes for people: a row for each position.

use anyhow::Result;
use engine::index::TokenId;
use engine::text::Tokenizer;
use serde::Serialize;

use crate::answer::Answer;
use crate::printer::line;

/// One of the likeliest tokens.
#[derive(Serialize)]
pub struct Best {
    token: TokenId,
    text: Option<String>,
    logit: f32,
    /// Natural logarithm of the probability without temperature, in f64; for reading only.
    log_probability: f64,
}

/// The likeliest tokens of a row, ties to the lower id.
pub fn best(row: &[f32], count: usize, tokenizer: Option<&Tokenizer>) -> Vec<Best> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    let max = f64::from(row[order[0]]);
    let total: f64 = row.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    let best = |&id: &usize| Best {
        token: TokenId(id as u32),
        text: tokenizer.map(|tokenizer| text_of(tokenizer, TokenId(id as u32))),
        logit: row[id],
        log_probability: f64::from(row[id]) - max - total.ln(),
    };
    order.iter().take(count).map(best).collect()
}

/// Prints all rows.
///
/// # Errors
/// The reader of stdout left.
pub fn print(
    first: usize,
    prompt_sha256: &[String],
    answer: &Answer,
    tokenizer: Option<&Tokenizer>,
    top: Option<Vec<Best>>,
) -> Result<()> {
    line("position   token  text                  sha256 of the logits after it")?;
    for (i, (token, sha256)) in answer.prompt.iter().zip(prompt_sha256).enumerate() {
        line(&row(first + i, *token, tokenizer, sha256))?;
    }
    if !answer.tokens.is_empty() {
        line("\ngenerated  token  text                  sha256 of the logits it was chosen from")?;
    }
    for (i, (token, sha256)) in answer.tokens.iter().zip(&answer.logits_sha256).enumerate() {
        line(&row(i, *token, tokenizer, sha256))?;
    }
    if let Some(top) = top {
        line("\nlikeliest  token  text                       logit   log p")?;
        for (i, best) in top.iter().enumerate() {
            let text = best.text.as_deref().map_or_else(String::new, quoted);
            let (token, logit, p) = (best.token.0, best.logit, best.log_probability);
            line(&format!("{:>9} {token:>6}  {text:<20} {logit:>11.6} {p:>7.3}", i + 1))?;
        }
    }
    Ok(())
}

fn row(at: usize, token: TokenId, tokenizer: Option<&Tokenizer>, sha256: &str) -> String {
    let text = tokenizer.map_or_else(String::new, |t| quoted(&text_of(t, token)));
    format!("{at:>8} {:>7}  {text:<20}  {sha256}", token.0)
}

/// A token on its own; half a character shows as a replacement character.
fn text_of(tokenizer: &Tokenizer, token: TokenId) -> String {
    tokenizer.decode(&[token], false).unwrap_or_default()
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}
