//! What the user wants read: text or token ids.

use clap::Args;
use engine::index::TokenId;
use engine::model::ModelError;

use crate::failure::BadInput;
use crate::flags::token_id;
use crate::source::{Source, tokenizer};

/// A prompt, in one of two forms.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct PromptArgs {
    /// The text to go on from
    #[arg(value_name = "TEXT")]
    text: Option<String>,

    /// Token ids instead of text
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', value_parser = token_id)]
    ids: Option<Vec<TokenId>>,
}

impl PromptArgs {
    /// The ids to read, all of them in the vocabulary.
    ///
    /// # Errors
    /// An empty prompt, an id outside the vocabulary, text without a tokenizer.
    pub fn ids(&self, source: &Source) -> anyhow::Result<Vec<TokenId>> {
        let ids = match (&self.ids, &self.text) {
            (Some(ids), _) => ids.clone(),
            (None, text) => encode(source, text.as_deref().unwrap_or_default())?,
        };
        if ids.is_empty() {
            return Err(BadInput::EmptyPrompt.into());
        }
        let vocab = source.model.description().vocab;
        match ids.iter().find(|id| id.0 as usize >= vocab) {
            Some(token) => Err(ModelError::Token { token: *token, vocab }.into()),
            None => Ok(ids),
        }
    }
}

fn encode(source: &Source, text: &str) -> anyhow::Result<Vec<TokenId>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let label = source.checkpoint.label().to_string();
    let tokenizer = tokenizer(&source.checkpoint)?.ok_or(BadInput::NoTokenizer { label })?;
    Ok(tokenizer.encode(text)?)
}

/// How many tokens to generate: as asked, or the default as far as there is room.
///
/// # Errors
/// A prompt that leaves no room, more tokens than fit.
pub fn tokens_max(
    asked: Option<usize>,
    default: usize,
    prompt: usize,
    limit: usize,
) -> anyhow::Result<usize> {
    let room = limit.saturating_sub(prompt);
    if room == 0 {
        return Err(ModelError::TooLong { needed: prompt + 1, limit }.into());
    }
    match asked {
        Some(asked) if asked > room => {
            Err(BadInput::TooManyTokens { asked, prompt, limit, room }.into())
        }
        Some(asked) => Ok(asked),
        None => Ok(default.min(room)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_fit_the_positions_that_are_left() {
        let check = |asked, prompt, expect: Option<usize>| {
            assert_eq!(tokens_max(asked, 200, prompt, 1000).ok(), expect, "{asked:?} {prompt}");
        };
        check(None, 10, Some(200));
        check(None, 900, Some(100));
        check(None, 999, Some(1));
        check(None, 1000, None);
        check(Some(500), 10, Some(500));
        check(Some(990), 10, Some(990));
        check(Some(991), 10, None);
    }
}
