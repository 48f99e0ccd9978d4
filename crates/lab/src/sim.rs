//! The planner of the engine on a recorded or made-up trace, with devices of numbers and a clock
//! that only they move: what a policy would hit, read and reach, beside the best that anyone
//! could who knew the future.

mod clock;
mod disk;
mod law;
mod optimum;
mod sweep;
mod synthetic;
#[cfg(test)]
mod tests;

use engine::tiers::planner::Tally;
use engine::tiers::policy::Policy;
use engine::tiers::trace::Trace;
use serde::Serialize;

pub use clock::run;
pub use law::{Law, Link, LinkRate, law};
pub use optimum::{Optimum, optimum};
pub use sweep::{Curve, FRACTIONS, PolicyCurve, curve};
pub use synthetic::{Synthetic, generate};

/// The machine.
///
/// Units: bytes per second, seconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Devices {
    pub disk_rate: f64,
    /// From the request to the first byte; requests overlap.
    pub disk_latency: f64,
    /// A read takes up to this share longer, as a seed decides.
    pub disk_jitter: f64,
    /// Weights from RAM through the processor.
    pub memory_rate: f64,
    pub vram_rate: f64,
    pub pcie_rate: f64,
    pub seed: u64,
}

/// What to simulate.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Setup {
    #[serde(skip)]
    pub policy: Policy,
    /// Experts that RAM holds.
    pub ram_slots: usize,
    /// Experts that VRAM holds. The planner has no tier for them yet: `clock` says what is done.
    pub vram_slots: usize,
    /// Reads before a layer asks, where the trace tells what the layer before expected.
    pub lookahead: bool,
    /// Experts that may be on their way at once.
    pub staging_slots: usize,
    /// Weights that every token uses, in bytes.
    pub dense_bytes: u64,
    /// Passes at the start that are not counted.
    pub warm_passes: usize,
    pub devices: Devices,
}

/// What came of it, from the first counted pass on.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Outcome {
    /// Of the whole trace.
    pub tally: Tally,
    /// Decoded tokens.
    pub tokens: u64,
    pub hits: u64,
    pub requested: u64,
    /// Experts read from the file for decoded tokens, in vain too.
    pub reads: u64,
    /// Hits that VRAM served.
    pub vram_hits: u64,
    /// Experts copied to VRAM.
    pub promotions: u64,
    /// Of decoding, by the clock.
    pub seconds: f64,
    /// Of these, with nothing to compute.
    pub stalled_seconds: f64,
}

impl Outcome {
    /// Hits of what decoding asked for.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.requested.max(1) as f64
    }

    /// Bytes from the file for a decoded token.
    pub fn file_bytes_per_token(&self, expert_bytes: u64) -> f64 {
        self.reads as f64 * expert_bytes as f64 / self.tokens.max(1) as f64
    }

    /// Decoded tokens a second, by the clock.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// Passes that a simulation leaves uncounted: the first quarter.
pub fn warm_passes(trace: &Trace) -> usize {
    trace.passes.len() / 4
}
