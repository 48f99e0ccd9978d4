//! What a checkpoint says about how to generate: where to stop, and which sampling it suggests.

use serde_json::Value as Json;

use crate::index::TokenId;

/// What can be wrong with generation settings.
#[derive(Debug, thiserror::Error)]
pub enum GenerationDefaultsError {
    #[error("{file} is not JSON")]
    NotJson { file: &'static str, source: serde_json::Error },
    #[error("{file}: {field} is {found}, expected {expected}")]
    Field { file: &'static str, field: &'static str, found: Json, expected: &'static str },
}

/// A checkpoint's generation settings.
///
/// `eos` decides when text ends. The rest is what the authors suggest: information for the user,
/// never applied unasked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Tokens that end a text; empty if the checkpoint names none.
    pub eos: Vec<TokenId>,
    pub do_sample: Option<bool>,
    pub temperature: Option<f64>,
    pub top_k: Option<u64>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
}

const GENERATION_CONFIG: &str = "generation_config.json";
const CONFIG: &str = "config.json";

impl GenerationDefaults {
    /// Reads `generation_config.json`; where it has no `eos_token_id`, `config.json` is asked.
    ///
    /// In `config.json` the entry at the top wins over the one in `text_config`.
    ///
    /// Errors: [`GenerationDefaultsError`], naming file and field.
    pub fn from_bytes(
        generation_config_json: Option<&[u8]>,
        config_json: Option<&[u8]>,
    ) -> Result<GenerationDefaults, GenerationDefaultsError> {
        let generation = parse(GENERATION_CONFIG, generation_config_json)?;
        let config = parse(CONFIG, config_json)?;
        let eos = [
            (GENERATION_CONFIG, &generation["eos_token_id"]),
            (CONFIG, &config["eos_token_id"]),
            (CONFIG, &config["text_config"]["eos_token_id"]),
        ];
        let eos = match eos.into_iter().find(|(_, ids)| !ids.is_null()) {
            Some((file, ids)) => eos_ids(file, ids)?,
            None => Vec::new(),
        };
        Ok(GenerationDefaults {
            eos,
            do_sample: field(&generation, "do_sample", "true or false", Json::as_bool)?,
            temperature: field(&generation, "temperature", "a number", Json::as_f64)?,
            top_k: field(&generation, "top_k", "a whole number", Json::as_u64)?,
            top_p: field(&generation, "top_p", "a number", Json::as_f64)?,
            min_p: field(&generation, "min_p", "a number", Json::as_f64)?,
            repetition_penalty: field(&generation, "repetition_penalty", "a number", Json::as_f64)?,
        })
    }
}

fn parse(file: &'static str, bytes: Option<&[u8]>) -> Result<Json, GenerationDefaultsError> {
    let Some(bytes) = bytes else { return Ok(Json::Null) };
    serde_json::from_slice(bytes)
        .map_err(|source| GenerationDefaultsError::NotJson { file, source })
}

fn field<T>(
    config: &Json,
    field: &'static str,
    expected: &'static str,
    read: impl Fn(&Json) -> Option<T>,
) -> Result<Option<T>, GenerationDefaultsError> {
    let value = &config[field];
    if value.is_null() {
        return Ok(None);
    }
    let file = GENERATION_CONFIG;
    let wrong = || GenerationDefaultsError::Field { file, field, found: value.clone(), expected };
    read(value).map(Some).ok_or_else(wrong)
}

/// One id or a list of ids.
fn eos_ids(file: &'static str, ids: &Json) -> Result<Vec<TokenId>, GenerationDefaultsError> {
    let listed = match ids {
        Json::Array(listed) => listed.as_slice(),
        one => std::slice::from_ref(one),
    };
    let id = |id: &Json| u32::try_from(id.as_u64()?).ok().map(TokenId);
    listed.iter().map(id).collect::<Option<Vec<TokenId>>>().ok_or_else(|| {
        GenerationDefaultsError::Field {
            file,
            field: "eos_token_id",
            found: ids.clone(),
            expected: "a token id or a list of token ids",
        }
    })
}
