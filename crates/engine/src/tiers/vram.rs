//! Which experts lie in the memory of a GPU: the planner's decisions as slots.
//!
//! The same planner as for RAM, with a cache of its own. An expert that is here is not asked of
//! the tiers below, so theirs fill with the others.

use std::collections::HashMap;

use super::heat::Heat;
use super::planner::Planner;
use super::policy::Policy;
use super::{ExpertId, Phase, Shape};
use crate::index::{ExpertIdx, LayerIdx};

/// The slots of a GPU and what lies in them.
pub struct Vram {
    planner: Planner,
    held: HashMap<ExpertId, usize>,
    free: Vec<usize>,
}

/// What a layer's request comes to.
pub struct VramPlan {
    /// There, in these slots.
    pub hits: Vec<(ExpertIdx, usize)>,
    /// To be brought.
    pub misses: Vec<ExpertIdx>,
}

impl Vram {
    /// Room for `slots` experts that stay and `passing` that only pass through, at least one.
    pub fn new(
        shape: Shape,
        slots: usize,
        passing: usize,
        policy: Policy,
        heat: Option<&Heat>,
    ) -> Vram {
        let planner = Planner::new(shape, slots, policy, heat);
        let free = (0..slots + passing.max(1)).rev().collect();
        Vram { planner, held: HashMap::new(), free }
    }

    /// Experts that can stay.
    pub fn slots(&self) -> usize {
        self.planner.slots()
    }

    /// Experts that are there.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// A layer uses these experts, from here until `release`.
    pub fn request(&mut self, layer: LayerIdx, experts: &[ExpertIdx], phase: Phase) -> VramPlan {
        let plan = self.planner.request(layer, experts, phase);
        assert!(plan.flying.is_empty() && plan.ahead.is_empty(), "nothing is brought ahead");
        let hits = plan.hits.into_iter().map(|e| (e, self.held[&(layer, e)])).collect();
        VramPlan { hits, misses: plan.misses }
    }

    /// Where an expert lies.
    pub fn slot(&self, layer: LayerIdx, expert: ExpertIdx) -> Option<usize> {
        self.held.get(&(layer, expert)).copied()
    }

    /// Whether `take` would find no slot.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// A slot to bring an expert to, if there is one before the next `release`.
    pub fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    /// The expert is in a slot that was taken; how many others left for it.
    pub fn landed(&mut self, layer: LayerIdx, expert: ExpertIdx, slot: usize) -> usize {
        let landing = self.planner.landed(layer, expert);
        self.held.insert((layer, expert), slot);
        for victim in &landing.evict {
            self.free.push(self.held.remove(victim).expect("what leaves was there"));
        }
        landing.evict.len()
    }

    /// A miss that could not be brought; `slot` is what was taken for it, if anything was.
    pub fn failed(&mut self, layer: LayerIdx, expert: ExpertIdx, slot: Option<usize>) {
        self.planner.failed(layer, expert);
        self.free.extend(slot);
    }

    /// The layer is done with these experts; what does not stay makes room.
    pub fn release(&mut self, layer: LayerIdx, experts: &[ExpertIdx]) {
        for dropped in self.planner.release(layer, experts) {
            if let Some(slot) = self.held.remove(&(layer, dropped)) {
                self.free.push(slot);
            }
        }
    }

    /// What to bring before the first token, the most wanted first.
    pub fn preload(&self) -> Vec<ExpertId> {
        self.planner.preload()
    }

    /// One of them is in a slot that was taken.
    pub fn preloaded(&mut self, layer: LayerIdx, expert: ExpertIdx, slot: usize) {
        self.planner.preloaded(layer, expert);
        self.held.insert((layer, expert), slot);
    }
}
