//! An executor that moves no bytes but remembers which are in memory, and checks each action.

use std::collections::{BTreeMap, BTreeSet};

use engine::index::{ExpertIdx, LayerIdx};
use engine::tiers::planner::{Early, Landing, Planner};
use engine::tiers::policy::Policy;
use engine::tiers::{ExpertId, Phase, Shape};

pub const SHAPE: Shape = Shape { layers: 3, experts: 8, top_k: 3 };

/// Numbers that look random and are always the same.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % bound
    }

    /// Distinct experts.
    pub fn experts(&mut self, count: usize) -> Vec<ExpertIdx> {
        let mut all: Vec<u32> = (0..SHAPE.experts as u32).collect();
        (0..count).map(|_| ExpertIdx(all.swap_remove(self.below(all.len())))).collect()
    }
}

/// Bytes in memory, and on their way.
pub struct Memory {
    pub planner: Planner,
    pub cached: BTreeSet<ExpertId>,
    pub loose: BTreeSet<ExpertId>,
    pub waiting: BTreeSet<ExpertId>,
    /// Reads ahead that have not arrived.
    pub flying: BTreeSet<ExpertId>,
    /// Of experts, those called off left out.
    pub reads: u64,
    /// Everything that was decided, to compare two runs.
    pub log: Vec<String>,
}

impl Memory {
    pub fn new(slots: usize, policy: Policy) -> Memory {
        Memory {
            planner: Planner::new(SHAPE, slots, policy, None),
            cached: BTreeSet::new(),
            loose: BTreeSet::new(),
            waiting: BTreeSet::new(),
            flying: BTreeSet::new(),
            reads: 0,
            log: Vec::new(),
        }
    }

    /// One layer of one pass, its reads landing or failing as the dice fall.
    pub fn layer(&mut self, layer: LayerIdx, experts: &[ExpertIdx], phase: Phase, dice: &mut Dice) {
        let plan = self.planner.request(layer, experts, phase);
        self.log.push(format!("{plan:?}"));
        let pinned: BTreeSet<ExpertId> = experts.iter().map(|e| (layer, *e)).collect();
        for hit in &plan.hits {
            assert!(self.cached.contains(&(layer, *hit)), "a hit that never landed: {hit:?}");
        }
        for expert in &plan.unwanted {
            // Only what is in memory may be dropped.
            assert!(self.waiting.remove(&(layer, *expert)));
        }
        for (expert, landing) in &plan.ahead {
            assert!(self.waiting.remove(&(layer, *expert)), "ahead, but not in memory");
            self.land((layer, *expert), landing, &pinned);
        }
        self.reads += plan.misses.len() as u64;
        let mut coming = [plan.misses, plan.flying].concat();
        while !coming.is_empty() {
            let expert = coming.swap_remove(dice.below(coming.len()));
            let ahead = self.flying.remove(&(layer, expert));
            if dice.below(20) == 0 {
                self.planner.failed(layer, expert);
            } else if ahead {
                let Early::Wanted(landing) = self.planner.landed_ahead(layer, expert) else {
                    panic!("{expert:?} is wanted");
                };
                self.land((layer, expert), &landing, &pinned);
            } else {
                let landing = self.planner.landed(layer, expert);
                self.land((layer, expert), &landing, &pinned);
            }
        }
        for expert in self.planner.release(layer, experts) {
            assert!(self.loose.remove(&(layer, expert)), "{expert:?} is dropped twice");
        }
        assert!(self.loose.is_empty(), "loose experts stay behind");
        self.check();
    }

    /// Reads ahead for a layer; some arrive at once, some later, some never.
    pub fn ahead(&mut self, layer: LayerIdx, dice: &mut Dice) {
        let predicted = dice.experts(4);
        let chosen = self.planner.ahead(layer, &predicted, 3);
        assert!(chosen.len() <= 3);
        for id in chosen {
            let in_memory = self.cached.contains(&id) || self.waiting.contains(&id);
            assert!(!in_memory && self.flying.insert(id), "{id:?} is read twice");
            self.reads += 1;
        }
        for id in self.flying.clone() {
            match dice.below(4) {
                0 => {
                    self.flying.remove(&id);
                    self.planner.failed(id.0, id.1);
                    self.reads -= 1;
                }
                1 | 2 => {
                    self.flying.remove(&id);
                    match self.planner.landed_ahead(id.0, id.1) {
                        Early::Waits => assert!(self.waiting.insert(id)),
                        Early::Unwanted => {}
                        Early::Wanted(_) => panic!("nobody waits for {id:?}"),
                    }
                }
                _ => {}
            }
        }
        self.check();
    }

    fn land(&mut self, id: ExpertId, landing: &Landing, pinned: &BTreeSet<ExpertId>) {
        self.log.push(format!("{id:?} {landing:?}"));
        assert!(landing.keep || landing.evict.is_empty(), "room is made for nothing");
        for victim in &landing.evict {
            assert!(!pinned.contains(victim), "{victim:?} is in use and evicted");
            assert!(self.cached.remove(victim), "{victim:?} was not in memory");
        }
        let home = if landing.keep { &mut self.cached } else { &mut self.loose };
        assert!(home.insert(id));
    }

    fn check(&self) {
        assert!(self.cached.len() <= self.planner.slots(), "more than fits");
        assert_eq!(self.cached.len(), self.planner.cached_count());
        for (layer, expert) in &self.cached {
            assert!(self.planner.is_cached(*layer, *expert));
        }
        let s = self.planner.tally().speculation;
        assert_eq!(s.issued, s.used + s.late + s.wasted + s.failed + s.pending, "{s:?}");
        let t = self.planner.tally();
        assert_eq!(t.reads(), self.reads, "reads are misses and what came ahead");
        assert_eq!(t.kept + t.preloaded - t.evicted, self.cached.len() as u64, "{t:?}");
    }
}

/// Tokens, and now and then a prompt, with reads ahead in between.
pub fn run(slots: usize, policy: Policy, seed: u64, passes: usize) -> Memory {
    let (mut memory, mut dice) = (Memory::new(slots, policy), Dice(seed));
    let mut sums: BTreeMap<IsPrompt, u64> = BTreeMap::new();
    for _ in 0..passes {
        let prompt = dice.below(8) == 0;
        let (phase, count) =
            if prompt { (Phase::Prefill, SHAPE.experts) } else { (Phase::Decode, SHAPE.top_k) };
        for layer in (0..SHAPE.layers).map(LayerIdx) {
            let experts = dice.experts(count);
            memory.layer(layer, &experts, phase, &mut dice);
            *sums.entry(prompt).or_default() += count as u64;
            memory.ahead(LayerIdx((layer.0 + 1) % SHAPE.layers), &mut dice);
        }
    }
    let t = memory.planner.tally();
    assert_eq!(t.prefill.requested(), sums.get(&true).copied().unwrap_or(0));
    assert_eq!(t.decode.requested(), sums.get(&false).copied().unwrap_or(0));
    memory
}

/// Of a pass.
type IsPrompt = bool;
