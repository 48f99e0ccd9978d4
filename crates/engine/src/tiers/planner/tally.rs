//! What a planner decided, counted.

use serde::{Deserialize, Serialize};

use super::Plan;
use crate::tiers::Phase;

/// Requests of one phase, in experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PhaseTally {
    /// Layers that asked.
    pub steps: u64,
    /// Of these, those with every expert in memory.
    pub steps_without_miss: u64,
    /// In memory when asked for, and not by reading ahead.
    pub hits: u64,
    /// Read ahead and in memory.
    pub ahead: u64,
    /// On the way already.
    pub flying: u64,
    /// Read because asked for.
    pub misses: u64,
    /// Reads for a request of which nothing came.
    pub failed: u64,
}

impl PhaseTally {
    /// Experts asked for.
    pub fn requested(&self) -> u64 {
        self.hits + self.ahead + self.flying + self.misses
    }

    /// Hits of what was asked for; 0 of nothing.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.requested().max(1) as f64
    }
}

/// Reads before a request: `issued = used + late + wasted + failed + pending`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Speculation {
    pub issued: u64,
    /// In memory when asked for.
    pub used: u64,
    /// Still on the way when asked for.
    pub late: u64,
    /// Its layer did not ask for it.
    pub wasted: u64,
    /// Called off, or nothing came of the read.
    pub failed: u64,
    /// Not decided yet.
    pub pending: u64,
}

/// All that a planner counts, in experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    pub prefill: PhaseTally,
    pub decode: PhaseTally,
    pub speculation: Speculation,
    /// Cached before any request.
    pub preloaded: u64,
    /// Cached after they arrived.
    pub kept: u64,
    /// Used once and dropped.
    pub passed: u64,
    /// Left the cache to make room.
    pub evicted: u64,
}

impl Tally {
    /// One phase of it.
    pub fn phase(&self, phase: Phase) -> &PhaseTally {
        match phase {
            Phase::Prefill => &self.prefill,
            Phase::Decode => &self.decode,
        }
    }

    pub(super) fn phase_mut(&mut self, phase: Phase) -> &mut PhaseTally {
        match phase {
            Phase::Prefill => &mut self.prefill,
            Phase::Decode => &mut self.decode,
        }
    }

    pub(super) fn note_request(&mut self, phase: Phase, plan: &Plan) {
        let t = self.phase_mut(phase);
        t.steps += 1;
        t.steps_without_miss += u64::from(plan.misses.is_empty() && plan.flying.is_empty());
        t.hits += plan.hits.len() as u64;
        t.ahead += plan.ahead.len() as u64;
        t.flying += plan.flying.len() as u64;
        t.misses += plan.misses.len() as u64;
    }

    /// Experts read from the file: those asked for, and those ahead that were not called off.
    pub fn reads(&self) -> u64 {
        let s = &self.speculation;
        let demanded = self.prefill.misses + self.decode.misses;
        demanded + s.issued - s.failed + self.preloaded
    }
}
