//! How often each expert is used, remembered from run to run.
//!
//! Two counts fade, so that the latest texts weigh most; one does not, for hot lists. A heat is
//! bound to a checkpoint by its fingerprint.

mod file;
mod hotlist;

use super::{Phase, Shape};
use crate::index::{ExpertIdx, LayerIdx};

pub use file::{Broken, HeatError, Loaded, heat_path, load, remove, save};
pub use hotlist::{BUDGETS, Corpus, Coverage, Hotlist, HotlistLayer};

/// What is left of a count after one more token: half after 8,192.
const DECAY: f64 = 0.999_915_391_5;

/// Counts of one phase, as if every token before had faded.
#[derive(Clone, Debug, Default, PartialEq)]
struct Fading {
    counts: Vec<f64>,
    /// Tokens, faded alike: the count of an expert that every token uses.
    tokens: f64,
}

/// Uses of every expert.
#[derive(Clone, Debug, PartialEq)]
pub struct Heat {
    shape: Shape,
    prefill: Fading,
    decode: Fading,
    /// Uses in all, by both phases.
    totals: Vec<u64>,
    tokens: u64,
}

impl Heat {
    /// Nothing known.
    pub fn new(shape: Shape) -> Heat {
        let fading = Fading { counts: vec![0.0; shape.total()], tokens: 0.0 };
        let totals = vec![0; shape.total()];
        Heat { shape, prefill: fading.clone(), decode: fading, totals, tokens: 0 }
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Tokens seen in all.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// A pass over the layers begins: what is known fades by its tokens.
    pub fn pass(&mut self, phase: Phase, tokens: u64) {
        self.tokens += tokens;
        let fading = self.fading_mut(phase);
        let fade = DECAY.powi(i32::try_from(tokens).unwrap_or(i32::MAX));
        // Every count is touched once a pass: some 10,000 products beside billions.
        fading.counts.iter_mut().for_each(|count| *count *= fade);
        fading.tokens = fading.tokens * fade + tokens as f64;
    }

    /// A layer of that pass gives this many of the tokens to an expert.
    pub fn note(&mut self, phase: Phase, layer: LayerIdx, expert: ExpertIdx, tokens: u64) {
        let position = self.shape.position(layer, expert);
        self.fading_mut(phase).counts[position] += tokens as f64;
        self.totals[position] += tokens;
    }

    /// Uses of an expert in all.
    pub fn total(&self, layer: LayerIdx, expert: ExpertIdx) -> u64 {
        self.totals[self.shape.position(layer, expert)]
    }

    /// The share of recent tokens that used an expert, decoded ones counting most.
    pub fn rate(&self, layer: LayerIdx, expert: ExpertIdx) -> f64 {
        // A decoded token says more about the next one than a token of a prompt.
        const PROMPT: f64 = 0.25;
        let position = self.shape.position(layer, expert);
        let uses = self.decode.counts[position] + PROMPT * self.prefill.counts[position];
        let tokens = self.decode.tokens + PROMPT * self.prefill.tokens;
        if tokens > 0.0 { uses / tokens } else { 0.0 }
    }

    /// Adds what another run saw.
    ///
    /// Panics where the shapes differ.
    pub fn merge(&mut self, other: &Heat) {
        assert_eq!(self.shape, other.shape, "heats of one model");
        self.prefill.merge(&other.prefill);
        self.decode.merge(&other.decode);
        self.totals.iter_mut().zip(&other.totals).for_each(|(a, b)| *a = a.saturating_add(*b));
        self.tokens = self.tokens.saturating_add(other.tokens);
    }

    fn fading_mut(&mut self, phase: Phase) -> &mut Fading {
        match phase {
            Phase::Prefill => &mut self.prefill,
            Phase::Decode => &mut self.decode,
        }
    }
}

impl Fading {
    fn merge(&mut self, other: &Fading) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
        self.tokens += other.tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { layers: 2, experts: 4, top_k: 1 };

    fn used(expert: u32, tokens: usize) -> Heat {
        let mut heat = Heat::new(SHAPE);
        for _ in 0..tokens {
            heat.pass(Phase::Decode, 1);
            heat.note(Phase::Decode, LayerIdx(1), ExpertIdx(expert), 1);
        }
        heat
    }

    #[test]
    fn an_expert_that_every_token_uses_has_rate_one() {
        let heat = used(3, 1000);
        assert_eq!(heat.rate(LayerIdx(1), ExpertIdx(3)).to_bits(), 1f64.to_bits());
        assert_eq!(heat.rate(LayerIdx(0), ExpertIdx(3)).to_bits(), 0);
        assert_eq!(heat.total(LayerIdx(1), ExpertIdx(3)), 1000);
    }

    #[test]
    fn half_is_forgotten_after_8192_tokens() {
        let mut heat = used(0, 1);
        heat.pass(Phase::Decode, 8192);
        let left = heat.decode.counts[SHAPE.position(LayerIdx(1), ExpertIdx(0))];
        assert!((0.4999..0.5001).contains(&left), "{left}");
    }

    #[test]
    fn merging_is_as_if_one_run_had_seen_both() {
        let (a, b) = (used(0, 30), used(1, 10));
        let mut both = a.clone();
        both.merge(&b);
        assert_eq!(both.tokens(), 40);
        assert_eq!(both.total(LayerIdx(1), ExpertIdx(0)), 30);
        let rates = [0, 1].map(|e| both.rate(LayerIdx(1), ExpertIdx(e)));
        assert!((0.74..0.76).contains(&rates[0]) && (0.24..0.26).contains(&rates[1]), "{rates:?}");
        let mut other_way = b;
        other_way.merge(&a);
        assert_eq!(both, other_way);
    }
}
