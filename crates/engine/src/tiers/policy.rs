//! Which cached expert is worth least, and whether a new one is worth more.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::heat::Heat;
use super::{Phase, Shape};
use crate::index::{ExpertIdx, LayerIdx};

/// How the experts to keep are chosen.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Policy {
    /// The least recently used one goes; every new one stays, a prompt's too. The baseline.
    Lru,
    /// The one used least often goes, if the new one was used as often; nothing is forgotten.
    Lfu,
    /// Frequency over several spans of time, the recent ones weighing most.
    #[default]
    Lfru,
    /// As `Lfru`, tuned by hand: what was measured before the default was settled.
    Tuned(Tuning),
    /// A fixed list: what the ledger says at the start, or else whatever came first.
    Static,
}

/// The numbers of [`Policy::Lfru`].
///
/// A use is remembered in three counts that fade at different rates. Their weighted sum
/// estimates how likely the layer's next token is to use the expert.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// What is left of each count after one token.
    pub decay: [f64; 3],
    pub weight: [f64; 3],
    /// A newcomer must be worth this many times the one that goes.
    pub hysteresis: f64,
    /// Evictions at most in one pass over the layers.
    pub swaps_max: Option<u32>,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            decay: [0.3, 0.97, 0.995],
            weight: [1.0, 2.0, 0.5],
            hysteresis: 1.1,
            swaps_max: None,
        }
    }
}

/// A name that is no policy's.
#[derive(Debug, thiserror::Error)]
#[error("{found:?} is no policy; known: lru, lfu, lfru, static")]
pub struct UnknownPolicy {
    found: String,
}

impl Policy {
    /// Those that can be asked for by name.
    pub const NAMED: [Policy; 4] = [Policy::Lru, Policy::Lfu, Policy::Lfru, Policy::Static];

    /// The name.
    pub fn name(&self) -> &'static str {
        match self {
            Policy::Lru => "lru",
            Policy::Lfu => "lfu",
            Policy::Lfru => "lfru",
            Policy::Tuned(_) => "tuned",
            Policy::Static => "static",
        }
    }

    pub(super) fn tuning(&self) -> Tuning {
        match self {
            Policy::Tuned(tuning) => *tuning,
            _ => Tuning::default(),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Policy, UnknownPolicy> {
        let found = Policy::NAMED.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| UnknownPolicy { found: name.to_string() })
    }
}

impl Serialize for Policy {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Policy, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Ages, in tokens since the last use, at which an unused expert is ranked anew; in between its
/// rank is as it was. Steps of at most a half keep that error small at O(log age) work a use.
const AGES: [usize; 21] =
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536];
const AGE_MAX: usize = AGES[AGES.len() - 1];

/// How much a prompt's chunk counts beside a decoded token.
const PREFILL_WEIGHT: f64 = 0.01;

/// What is remembered of an expert, cached or not.
#[derive(Clone, Copy, Default)]
struct Memory {
    /// Fading counts, as of `last_decode`.
    counts: [f64; 3],
    /// Uses in all.
    uses: u64,
    /// The layer's clock at the last decoded use; 0 is never.
    last_decode: usize,
    /// When it was last used, over all layers.
    sequence: u64,
    /// Worth by the list, for `Static`.
    listed: f64,
}

/// Smaller is worth less: worth (the bits of a number that is not negative), last use, position.
type Rank = (u64, u64, u32);

/// The worth of all experts, and the order of those that may go.
pub(super) struct Ranking {
    policy: Policy,
    tuning: Tuning,
    shape: Shape,
    memory: Vec<Memory>,
    /// Decoded tokens by layer.
    clocks: Vec<usize>,
    /// By layer, the experts of the last tokens, the latest first.
    recent: Vec<VecDeque<Vec<u32>>>,
    /// `fade[age][i]` is `decay[i]` to the power `age`.
    fade: Vec<[f64; 3]>,
    sequence: u64,
    evictable: BTreeSet<Rank>,
    /// The rank under which each lies in `evictable`.
    ranks: Vec<Option<Rank>>,
}

impl Ranking {
    pub(super) fn new(shape: Shape, policy: Policy, heat: Option<&Heat>) -> Ranking {
        let tuning = policy.tuning();
        let mut ranking = Ranking {
            policy,
            tuning,
            shape,
            memory: vec![Memory::default(); shape.total()],
            clocks: vec![0; shape.layers],
            recent: vec![VecDeque::new(); shape.layers],
            fade: fade(&tuning.decay),
            sequence: 0,
            evictable: BTreeSet::new(),
            ranks: vec![None; shape.total()],
        };
        if let Some(heat) = heat {
            ranking.learn(heat);
        }
        ranking
    }

    /// Starts from what earlier runs knew: as if their rates had been seen for long.
    fn learn(&mut self, heat: &Heat) {
        for (position, memory) in self.memory.iter_mut().enumerate() {
            let (layer, expert) = self.shape.id(position);
            let rate = heat.rate(layer, expert);
            memory.listed = rate;
            memory.counts[2] = rate / (1.0 - self.tuning.decay[2]);
        }
    }

    /// Notes that a layer uses these experts now. None of them may be in the order.
    pub(super) fn touch(&mut self, layer: LayerIdx, experts: &[ExpertIdx], phase: Phase) {
        if phase == Phase::Decode {
            self.clocks[layer.0] += 1;
            self.rank_the_aged(layer);
            let positions = experts.iter().map(|e| self.shape.position(layer, *e) as u32);
            let recent = &mut self.recent[layer.0];
            recent.push_front(positions.collect());
            recent.truncate(AGE_MAX + 1);
        }
        for expert in experts {
            self.touch_one(self.shape.position(layer, *expert), self.clocks[layer.0], phase);
        }
    }

    fn touch_one(&mut self, position: usize, clock: usize, phase: Phase) {
        self.sequence += 1;
        let faded = self.faded(position, clock);
        let memory = &mut self.memory[position];
        memory.sequence = self.sequence;
        match phase {
            Phase::Decode => {
                memory.counts = faded.map(|count| count + 1.0);
                memory.uses += 1;
                memory.last_decode = clock;
            }
            Phase::Prefill => memory.counts[2] += PREFILL_WEIGHT,
        }
    }

    fn faded(&self, position: usize, clock: usize) -> [f64; 3] {
        let memory = &self.memory[position];
        let fade = self.fade[(clock - memory.last_decode).min(AGE_MAX)];
        std::array::from_fn(|i| memory.counts[i] * fade[i])
    }

    /// Ranks anew those of the layer that have just come to one of `AGES` without being used.
    fn rank_the_aged(&mut self, layer: LayerIdx) {
        if !matches!(self.policy, Policy::Lfru | Policy::Tuned(_)) {
            return;
        }
        let clock = self.clocks[layer.0];
        for age in AGES {
            // The latest entry is that of the token before this one, of age 1.
            let Some(positions) = self.recent[layer.0].get(age - 1) else { break };
            for position in positions.clone() {
                let position = position as usize;
                let unused = self.memory[position].last_decode + age == clock;
                if unused && self.ranks[position].is_some() {
                    self.remove(position);
                    self.insert(position);
                }
            }
        }
    }

    /// Lets an expert go when it is the one worth least.
    pub(super) fn insert(&mut self, position: usize) {
        let memory = &self.memory[position];
        let rank = (self.worth(position), memory.sequence, position as u32);
        assert!(self.ranks[position].replace(rank).is_none(), "it is in the order once");
        self.evictable.insert(rank);
    }

    /// Takes an expert out of the order, if it is there.
    pub(super) fn remove(&mut self, position: usize) {
        if let Some(rank) = self.ranks[position].take() {
            self.evictable.remove(&rank);
        }
    }

    /// The one worth least of those that may go.
    pub(super) fn weakest(&self) -> Option<usize> {
        self.evictable.first().map(|(_, _, position)| *position as usize)
    }

    /// True where a newcomer should replace a cached expert.
    pub(super) fn prefers(&self, newcomer: usize, cached: usize, phase: Phase) -> bool {
        // A prompt sweeps over everything once; what decoding uses must survive it.
        let decoded = self.memory[cached].last_decode > 0;
        if phase == Phase::Prefill && decoded && self.policy != Policy::Lru {
            return false;
        }
        let (new, old) = (self.worth(newcomer), self.worth_as_ranked(cached));
        match self.policy {
            Policy::Lru => true,
            Policy::Lfu => new >= old,
            Policy::Lfru | Policy::Tuned(_) => {
                f64::from_bits(new) > f64::from_bits(old) * self.tuning.hysteresis
            }
            Policy::Static => new > old,
        }
    }

    /// The experts worth most that `wanted` lets through, the best first.
    pub(super) fn best(&self, count: usize, wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.shape.total()).filter(|p| wanted(*p)).collect();
        all.sort_by_key(|p| (std::cmp::Reverse(self.worth(*p)), *p));
        all.truncate(count);
        all
    }

    fn worth_as_ranked(&self, position: usize) -> u64 {
        self.ranks[position].map_or_else(|| self.worth(position), |(worth, _, _)| worth)
    }

    fn worth(&self, position: usize) -> u64 {
        let memory = &self.memory[position];
        match self.policy {
            Policy::Lru => memory.sequence,
            Policy::Lfu => memory.uses,
            Policy::Static => memory.listed.to_bits(),
            Policy::Lfru | Policy::Tuned(_) => {
                let clock = self.clocks[position / self.shape.experts];
                let (counts, t) = (self.faded(position, clock), &self.tuning);
                let rate = |i: usize| t.weight[i] * (1.0 - t.decay[i]) * counts[i];
                (rate(0) + rate(1) + rate(2)).to_bits()
            }
        }
    }
}

fn fade(decay: &[f64; 3]) -> Vec<[f64; 3]> {
    let mut fade = vec![[1.0; 3]];
    for age in 0..AGE_MAX {
        fade.push(std::array::from_fn(|i| fade[age][i] * decay[i]));
    }
    fade
}
