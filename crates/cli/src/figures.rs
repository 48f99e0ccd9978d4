//! How fast an answer came, and from where its bytes: one line, or JSON.

use engine::counters::PhaseCounters;
use serde::Serialize;

use crate::answer::{Answer, Phase};
use crate::units;

/// Figures of an answer.
#[derive(Serialize)]
pub struct Figures {
    pub load_seconds: f64,
    pub prefill: Speed,
    pub decode: Speed,
    /// Weights read for a decoded token, by tier; absent if no token was decoded.
    pub bytes_per_token: Option<Tiers>,
}

/// One phase.
#[derive(Serialize)]
pub struct Speed {
    pub seconds: f64,
    pub tokens_per_second: Option<f64>,
    #[serde(flatten)]
    pub counters: PhaseCounters,
}

/// Bytes by tier: so far there is one.
#[derive(Serialize)]
pub struct Tiers {
    pub memory: TierBytes,
}

/// Bytes per decoded token from one tier.
#[derive(Serialize)]
pub struct TierBytes {
    pub experts: f64,
    pub other: f64,
}

impl Figures {
    /// The figures of an answer.
    pub fn of(answer: &Answer, load_seconds: f64) -> Figures {
        let decoded = answer.decode.counters;
        let per_token = |bytes: u64| bytes as f64 / decoded.tokens as f64;
        let memory = || TierBytes {
            experts: per_token(decoded.expert_bytes),
            other: per_token(decoded.dense_bytes),
        };
        Figures {
            load_seconds,
            prefill: speed(&answer.prefill),
            decode: speed(&answer.decode),
            bytes_per_token: (decoded.tokens > 0).then(|| Tiers { memory: memory() }),
        }
    }

    /// One line, as for `12 tokens at 830 tok/s, then 64 at 410 tok/s; ...`.
    pub fn line(&self, answer: &Answer) -> String {
        let mut line =
            format!("{} at {}", tokens(self.prefill.counters.tokens), self.prefill.rate());
        line += &format!(", then {}", answer.tokens.len());
        if let Some(Tiers { memory }) = &self.bytes_per_token {
            line += &format!(
                " at {}; {}/token from memory ({} experts, {} other)",
                self.decode.rate(),
                units::bytes(memory.experts + memory.other),
                units::bytes(memory.experts),
                units::bytes(memory.other)
            );
        }
        format!("{line}; transcript {}", answer.transcript_sha256)
    }
}

impl Speed {
    fn rate(&self) -> String {
        match self.tokens_per_second {
            Some(rate) => format!("{} tok/s", units::rate(rate)),
            None => "no speed".to_string(),
        }
    }
}

fn speed(phase: &Phase) -> Speed {
    let tokens = phase.counters.tokens;
    let timed = tokens > 0 && phase.seconds > 0.0;
    Speed {
        seconds: phase.seconds,
        tokens_per_second: timed.then(|| tokens as f64 / phase.seconds),
        counters: phase.counters,
    }
}

fn tokens(count: u64) -> String {
    if count == 1 { "1 token".to_string() } else { format!("{count} tokens") }
}
