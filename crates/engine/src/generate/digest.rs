//! Hashes of logits and of whole answers: what two runs compare.

use sha2::{Digest, Sha256};

use super::sampler::SamplingParams;
use crate::index::TokenId;

/// SHA-256 of f32 logits, little endian, as lower-case hex.
pub fn logits_sha256(logits: &[f32]) -> String {
    let mut hash = Sha256::new();
    for v in logits {
        hash.update(v.to_le_bytes());
    }
    hex(&hash.finalize())
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The running hash of an answer: everything that defines it and everything it consists of.
///
/// Covers, in this order: the line "tarfa transcript 1"; the model fingerprint; the sampling
/// parameters as JSON; the prompt's ids; then for every generated token the SHA-256 of the logits
/// it was chosen from and its id. Ids are u32 little endian, texts are preceded by their length
/// as u64 little endian.
#[derive(Clone)]
pub struct Transcript {
    hash: Sha256,
}

impl Transcript {
    /// Before the first generated token.
    pub fn new(fingerprint: &str, params: &SamplingParams, prompt: &[TokenId]) -> Transcript {
        let mut t = Transcript { hash: Sha256::new() };
        t.text("tarfa transcript 1");
        t.text(fingerprint);
        t.text(&serde_json::to_string(params).expect("plain numbers always serialise"));
        t.hash.update((prompt.len() as u64).to_le_bytes());
        prompt.iter().for_each(|id| t.hash.update(id.0.to_le_bytes()));
        t
    }

    fn text(&mut self, text: &str) {
        self.hash.update((text.len() as u64).to_le_bytes());
        self.hash.update(text);
    }

    /// Adds one choice.
    pub fn push(&mut self, logits_sha256: &str, token: TokenId) {
        self.hash.update(logits_sha256);
        self.hash.update(token.0.to_le_bytes());
    }

    /// The hash so far, as lower-case hex.
    pub fn sha256(&self) -> String {
        hex(&self.hash.clone().finalize())
    }
}
