//! What a request may ask of the sampler, and what it may not.

use serde::{Deserialize, Serialize};

use crate::index::TokenId;

/// The largest vocabulary whose totals stay exact: 2^24 weights of at most 2^40 fit 64 bits.
pub(super) const VOCAB_MAX: usize = 1 << 24;

/// Why a request cannot be sampled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    #[error("{field} is {value}, allowed: {allowed}")]
    OutOfRange { field: &'static str, value: f64, allowed: &'static str },
    #[error("logit_bias entry {entry} is for token {}, the vocabulary ends at {vocab}", token.0)]
    BiasToken { entry: usize, token: TokenId, vocab: usize },
    #[error("logit_bias entry {entry} is {value} for token {}, allowed: finite numbers", token.0)]
    BiasValue { entry: usize, token: TokenId, value: f32 },
    #[error("{found} logits, expected {expected}")]
    LogitCount { found: usize, expected: usize },
    #[error("the logit of token {} is {value}", token.0)]
    NonFiniteLogit { token: TokenId, value: f32 },
    #[error("the history holds token {}, the vocabulary ends at {vocab}", token.0)]
    HistoryToken { token: TokenId, vocab: usize },
}

/// How to choose tokens; the default is greedy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f64,
    /// Keep this many tokens; more than there are keeps all.
    pub top_k: Option<usize>,
    /// Keep the shortest prefix with at least this share of the total, above 0 and up to 1.
    pub top_p: Option<f64>,
    /// Keep tokens that weigh at least this share of the heaviest, from 0 to 1.
    pub min_p: Option<f64>,
    /// Divides positive and multiplies other logits of ids in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from logits of ids in the output; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from logits of ids in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Added to logits, one entry after the other.
    pub logit_bias: Vec<(TokenId, f32)>,
    pub seed: u64,
    /// Which of several answers to one request this is: each has its own random stream.
    pub choice: u64,
}

impl Default for SamplingParams {
    fn default() -> SamplingParams {
        SamplingParams {
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            choice: 0,
        }
    }
}

impl SamplingParams {
    /// Refuses values that mean nothing, NaN among them.
    ///
    /// Errors: [`SamplingError`] with the field, its value and the allowed range.
    pub fn validate(&self, vocab: usize) -> Result<(), SamplingError> {
        let within = |field, value: f64, allowed, ok: bool| {
            if ok { Ok(()) } else { Err(SamplingError::OutOfRange { field, value, allowed }) }
        };
        let size_ok = (1..=VOCAB_MAX).contains(&vocab);
        within("vocab", vocab as f64, "1 to 2^24", size_ok)?;
        let temperature = self.temperature;
        let temperature_ok = temperature.is_finite() && temperature >= 0.0;
        within("temperature", temperature, "finite, 0 or more", temperature_ok)?;
        if let Some(k) = self.top_k {
            within("top_k", k as f64, "1 or more", k >= 1)?;
        }
        if let Some(p) = self.top_p {
            within("top_p", p, "above 0, up to 1", p > 0.0 && p <= 1.0)?;
        }
        if let Some(p) = self.min_p {
            within("min_p", p, "0 to 1", (0.0..=1.0).contains(&p))?;
        }
        let penalty = self.repetition_penalty;
        let repetition_ok = penalty.is_finite() && penalty > 0.0;
        within("repetition_penalty", f64::from(penalty), "finite, above 0", repetition_ok)?;
        let penalty = self.presence_penalty;
        within("presence_penalty", f64::from(penalty), "finite", penalty.is_finite())?;
        let penalty = self.frequency_penalty;
        within("frequency_penalty", f64::from(penalty), "finite", penalty.is_finite())?;
        self.validate_bias(vocab)
    }

    fn validate_bias(&self, vocab: usize) -> Result<(), SamplingError> {
        for (entry, &(token, value)) in self.logit_bias.iter().enumerate() {
            if token.0 as usize >= vocab {
                return Err(SamplingError::BiasToken { entry, token, vocab });
            }
            if !value.is_finite() {
                return Err(SamplingError::BiasValue { entry, token, value });
            }
        }
        Ok(())
    }

    /// Whether logits change before the choice.
    pub(super) fn adjusts(&self) -> bool {
        !self.logit_bias.is_empty() || self.repeats() || self.counts_output()
    }

    pub(super) fn repeats(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    pub(super) fn counts_output(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}
