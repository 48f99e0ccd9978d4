//! How fast an answer came, and from where its bytes: one line, or JSON.

use engine::counters::{PhaseCounters, TierCounters};
use lab::receipt::Checked;
use serde::Serialize;

use crate::answer::{Answer, Phase};
use crate::source::Source;
use crate::units;

/// Figures of an answer.
#[derive(Serialize)]
pub struct Figures {
    pub load_seconds: f64,
    pub prefill: Speed,
    pub decode: Speed,
    /// Weights read for a decoded token, by tier; absent if no token was decoded.
    pub bytes_per_token: Option<Tiers>,
    /// Where experts are kept, in words.
    pub placement: String,
    /// What is known of the weights, in blocks.
    pub weights: Checked,
}

/// One phase.
#[derive(Serialize)]
pub struct Speed {
    pub seconds: f64,
    pub tokens_per_second: Option<f64>,
    #[serde(flatten)]
    pub counters: PhaseCounters,
}

/// Bytes by tier.
#[derive(Serialize)]
pub struct Tiers {
    pub memory: TierBytes,
    /// Read from the file, ahead of time or not.
    pub file: f64,
}

/// Bytes per decoded token from one tier.
#[derive(Serialize)]
pub struct TierBytes {
    pub experts: f64,
    pub other: f64,
}

impl Figures {
    /// The figures of an answer.
    pub fn of(answer: &Answer, source: &Source) -> Figures {
        let tiers = source.model.tiers();
        let decoded = answer.decode.counters;
        let per_token = |bytes: u64| bytes as f64 / decoded.tokens as f64;
        let memory = || TierBytes {
            experts: per_token(decoded.expert_bytes),
            other: per_token(decoded.dense_bytes),
        };
        Figures {
            load_seconds: source.load_seconds,
            prefill: speed(&answer.prefill),
            decode: speed(&answer.decode),
            bytes_per_token: (decoded.tokens > 0)
                .then(|| Tiers { memory: memory(), file: per_token(decoded.tiers.file_bytes) }),
            placement: source.model.placement(),
            weights: Checked::of(tiers),
        }
    }

    /// The line of the answer and, where experts have a cache of their own, that of the tiers.
    pub fn lines(&self, answer: &Answer) -> Vec<String> {
        let tiers = self.prefill.counters.tiers.plus(&self.decode.counters.tiers);
        let mut lines = vec![self.line(answer)];
        if tiers.mapped_experts == 0 {
            lines.push(format!("expert tiers: {}", tier_line(&tiers)));
            lines.push(checked_line(&self.weights));
        }
        lines
    }

    /// One line, as for `12 tokens at 830 tok/s, then 64 at 410 tok/s; ...`.
    pub fn line(&self, answer: &Answer) -> String {
        let mut line =
            format!("{} at {}", tokens(self.prefill.counters.tokens), self.prefill.rate());
        line += &format!(", then {}", answer.tokens.len());
        if let Some(Tiers { memory, .. }) = &self.bytes_per_token {
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

/// As for `RAM 1,204 hits; file 332 experts 6.3 GB in 412 reads; ...`.
fn tier_line(t: &TierCounters) -> String {
    let mut line = format!(
        "RAM {} hits; file {} experts {} in {} reads; checked {} blocks",
        units::grouped(t.ram_experts),
        units::grouped(t.file_experts),
        units::bytes(t.file_bytes as f64),
        units::grouped(t.file_reads),
        units::grouped(t.blocks_manifest + t.blocks_first_seen + t.blocks_new),
    );
    if t.ahead_bytes > 0 {
        let used = t.ahead_used + t.ahead_late;
        line += &format!("; prefetch {used} used, {} wasted", t.ahead_wasted);
    }
    if t.retries > 0 {
        line += &format!("; {} read again after a wrong checksum", t.retries);
    }
    let waited = t.stall_ns as f64 / 1e9;
    line + &format!(
        "; {} of {} steps without a miss, {waited:.2} s waited",
        t.steps_without_miss, t.steps
    )
}

fn checked_line(c: &Checked) -> String {
    let share = |count: u64| 100.0 * count as f64 / c.blocks.max(1) as f64;
    format!(
        "weights: {:.0} % checked against the manifest, {:.0} % first seen",
        share(c.manifest),
        share(c.first_seen)
    )
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
