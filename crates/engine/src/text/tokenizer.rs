//! A checkpoint's tokenizer: text to token ids and back, as Hugging Face does it.

use std::sync::Arc;

use serde_json::Value as Json;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer as Library};

use super::utf8_stream::Streaming;
use crate::index::TokenId;

type LibraryError = Box<dyn std::error::Error + Send + Sync>;

/// What can go wrong between text and token ids.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("tokenizer.json cannot be read")]
    Definition { source: LibraryError },
    #[error("tokenizer_config.json is not JSON")]
    Config { source: serde_json::Error },
    #[error("tokenizer_config.json: added_tokens_decoder entry {id:?} is not a token description")]
    AddedToken { id: String, source: serde_json::Error },
    #[error("tokenizer_config.json gives {content:?} the id {expected}, the tokenizer {found:?}")]
    AddedTokenId { content: String, expected: u32, found: Option<u32> },
    #[error("tokenizer.json asks for BPE dropout {dropout}: the same text would get random ids")]
    Dropout { dropout: f32 },
    #[error("a text of {bytes} bytes cannot be encoded")]
    Encode { bytes: usize, source: LibraryError },
    #[error("{ids} token ids cannot be decoded")]
    Decode { ids: usize, source: LibraryError },
    #[error("decoding token {id} changed text that was already printed: {printed:?} to {now:?}")]
    StreamRewritten { id: u32, printed: String, now: String },
}

/// A tokenizer, cheap to clone.
///
/// Source: tokenizers 0.23.2 with the regex engine in Rust; `tests/data/tokenizer_cases.json` pins
/// the ids to the Python library's.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    library: Library,
    streaming: Streaming,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads a tokenizer from the bytes of `tokenizer.json` and, if there, `tokenizer_config.json`.
    ///
    /// Tokens that only the config lists (`added_tokens_decoder`) are added, as transformers does;
    /// truncation and padding written into `tokenizer.json` are not applied, as transformers does.
    ///
    /// Errors: [`TokenizerError`], naming the file.
    pub fn from_bytes(
        tokenizer_json: &[u8],
        tokenizer_config_json: Option<&[u8]>,
    ) -> Result<Tokenizer, TokenizerError> {
        let definition = |source: LibraryError| TokenizerError::Definition { source };
        let mut library = Library::from_bytes(tokenizer_json).map_err(definition)?;
        library.with_truncation(None).map_err(definition)?;
        library.with_padding(None);
        refuse_dropout(&library)?;
        if let Some(config) = tokenizer_config_json {
            add_config_tokens(&mut library, config)?;
        }
        let json: Json =
            serde_json::from_slice(tokenizer_json).map_err(|error| definition(error.into()))?;
        let streaming = Streaming::of_decoder(&json["decoder"]);
        Ok(Tokenizer { inner: Arc::new(Inner { library, streaming }) })
    }

    /// Encodes a plain prompt.
    ///
    /// The post-processor decides whether a beginning-of-text token goes in front; special tokens
    /// written out in the text become their ids.
    ///
    /// Errors: [`TokenizerError::Encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_with(text, true)
    }

    /// Encodes text that a chat template rendered.
    ///
    /// Nothing is put in front: the template has already written what the model expects.
    ///
    /// Errors: [`TokenizerError::Encode`].
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_with(text, false)
    }

    fn encode_with(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>, TokenizerError> {
        let encoding = self
            .inner
            .library
            .encode_fast(text, add_special)
            .map_err(|source| TokenizerError::Encode { bytes: text.len(), source })?;
        Ok(encoding.get_ids().iter().map(|&id| TokenId(id)).collect())
    }

    /// Decodes token ids; ids without a token count for nothing.
    ///
    /// Text that is not UTF-8 comes out with replacement characters, as the library writes them.
    ///
    /// Errors: [`TokenizerError::Decode`].
    pub fn decode(&self, ids: &[TokenId], skip_special: bool) -> Result<String, TokenizerError> {
        let ids: Vec<u32> = ids.iter().map(|id| id.0).collect();
        self.decode_raw(&ids, skip_special)
    }

    pub(super) fn decode_raw(
        &self,
        ids: &[u32],
        skip_special: bool,
    ) -> Result<String, TokenizerError> {
        let decoded = self.inner.library.decode(ids, skip_special);
        decoded.map_err(|source| TokenizerError::Decode { ids: ids.len(), source })
    }

    /// The vocabulary entry of an id, as written in `tokenizer.json` (`Ġthe`, not ` the`).
    pub fn id_to_token(&self, id: TokenId) -> Option<String> {
        self.inner.library.id_to_token(id.0)
    }

    /// The id of a vocabulary entry, as written in `tokenizer.json`.
    pub fn token_to_id(&self, token: &str) -> Option<TokenId> {
        self.inner.library.token_to_id(token).map(TokenId)
    }

    /// Whether decoding with `skip_special` leaves this id out.
    pub fn is_special(&self, id: TokenId) -> bool {
        let token = self.id_to_token(id);
        token
            .is_some_and(|token| self.inner.library.get_added_vocabulary().is_special_token(&token))
    }

    /// Entries in the vocabulary, added tokens included.
    ///
    /// A model's logits may be longer: embeddings are often padded.
    pub fn vocab_size(&self) -> usize {
        self.inner.library.get_vocab_size(true)
    }

    pub(super) fn streaming(&self) -> Streaming {
        self.inner.streaming
    }
}

/// Dropout is a training device; an exact engine cannot replay it.
fn refuse_dropout(library: &Library) -> Result<(), TokenizerError> {
    if let ModelWrapper::BPE(bpe) = library.get_model()
        && let Some(dropout) = bpe.dropout
        && dropout > 0.0
    {
        return Err(TokenizerError::Dropout { dropout });
    }
    Ok(())
}

/// Adds the tokens of `added_tokens_decoder` that `tokenizer.json` does not list itself.
fn add_config_tokens(library: &mut Library, config: &[u8]) -> Result<(), TokenizerError> {
    let config: Json =
        serde_json::from_slice(config).map_err(|source| TokenizerError::Config { source })?;
    let Some(listed) = config["added_tokens_decoder"].as_object() else { return Ok(()) };
    let known = library.get_added_tokens_decoder();
    let mut missing = Vec::new();
    for (id, token) in listed {
        let describe = |source| TokenizerError::AddedToken { id: id.clone(), source };
        let number: u32 = serde_json::from_str(id).map_err(describe)?;
        if !known.contains_key(&number) {
            let token: AddedToken = serde_json::from_value(token.clone()).map_err(describe)?;
            missing.push((number, token));
        }
    }
    // The library numbers new tokens in the order it gets them.
    missing.sort_by_key(|(id, _)| *id);
    for (expected, token) in missing {
        let content = token.content.clone();
        library.add_tokens([token]).map_err(|source| TokenizerError::Definition { source })?;
        let found = library.token_to_id(&content);
        if found != Some(expected) {
            return Err(TokenizerError::AddedTokenId { content, expected, found });
        }
    }
    Ok(())
}
