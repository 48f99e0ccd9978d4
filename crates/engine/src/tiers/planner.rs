//! Decides what to read, what to keep and what goes: a state machine without I/O, clock or
//! thread. The same calls in the same order give the same actions.
//!
//! An expert is absent, on its way, waiting (read ahead, not asked for yet), loose (in memory for
//! the layer that uses it now, dropped on release) or cached. Cached experts of a layer in work
//! are pinned. One tier is planned so far, RAM; a second one would hold other experts, never
//! copies: a place more for an expert to be in.

mod tally;

use super::heat::Heat;
use super::policy::{Policy, Ranking};
use super::{ExpertId, Phase, Shape};
use crate::index::{ExpertIdx, LayerIdx};

pub use tally::{PhaseTally, Speculation, Tally};

/// What a layer's request for experts comes to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// In memory.
    pub hits: Vec<ExpertIdx>,
    /// Read ahead and in memory; `landed` has been decided for them.
    pub ahead: Vec<(ExpertIdx, Landing)>,
    /// On the way already: wait for them, and report them to `landed`.
    pub flying: Vec<ExpertIdx>,
    /// To be read now, in this order.
    pub misses: Vec<ExpertIdx>,
    /// Read ahead for this layer and not wanted: their bytes may be dropped.
    pub unwanted: Vec<ExpertIdx>,
}

/// What becomes of an expert whose bytes have arrived.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Landing {
    /// True where it is cached from now on; else it stays in memory until released.
    pub keep: bool,
    /// Cached experts that make room for it.
    pub evict: Vec<ExpertId>,
}

/// What becomes of an expert that was read ahead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Early {
    /// It was asked for meanwhile.
    Wanted(Landing),
    /// It waits for the request of its layer.
    Waits,
    /// Its layer has been asked for without it: drop the bytes.
    Unwanted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Absent,
    /// Being read for a request.
    Demanded,
    /// Being read ahead; `stale` once its layer was asked for without it.
    Ahead {
        stale: bool,
    },
    Waiting,
    Loose,
    Cached,
}

/// The planner of one model's routed experts.
pub struct Planner {
    shape: Shape,
    slots: usize,
    places: Vec<Place>,
    /// Requests that use it now.
    pins: Vec<u32>,
    cached: usize,
    /// By layer, read ahead and not asked for.
    waiting: Vec<Vec<ExpertIdx>>,
    ranking: Ranking,
    /// Evictions of this pass over the layers.
    swaps: u32,
    last_layer: LayerIdx,
    swaps_max: u32,
    tally: Tally,
    phase: Phase,
}

impl Planner {
    /// A planner of a cache with room for `slots` experts; `heat` is what earlier runs knew.
    ///
    /// Panics where `heat` has another shape.
    pub fn new(shape: Shape, slots: usize, policy: Policy, heat: Option<&Heat>) -> Planner {
        Planner {
            shape,
            slots,
            places: vec![Place::Absent; shape.total()],
            pins: vec![0; shape.total()],
            cached: 0,
            waiting: vec![Vec::new(); shape.layers],
            ranking: Ranking::new(shape, policy, heat),
            swaps: 0,
            last_layer: LayerIdx(0),
            swaps_max: policy.tuning().swaps_max.unwrap_or(u32::MAX),
            tally: Tally::default(),
            phase: Phase::Decode,
        }
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Room in the cache, in experts.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Experts in the cache.
    pub fn cached_count(&self) -> usize {
        self.cached
    }

    pub fn is_cached(&self, layer: LayerIdx, expert: ExpertIdx) -> bool {
        self.places[self.shape.position(layer, expert)] == Place::Cached
    }

    /// What happened so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// A layer uses these experts (each named once): pinned from here until `release`.
    ///
    /// Panics outside the shape, and where an expert is named twice.
    pub fn request(&mut self, layer: LayerIdx, experts: &[ExpertIdx], phase: Phase) -> Plan {
        self.phase = phase;
        if layer <= self.last_layer {
            self.swaps = 0;
        }
        self.last_layer = layer;
        for expert in experts {
            let position = self.shape.position(layer, *expert);
            self.ranking.remove(position);
            self.pins[position] += 1;
        }
        self.ranking.touch(layer, experts, phase);
        let mut plan = Plan::default();
        for expert in experts {
            self.place_request(layer, *expert, &mut plan);
        }
        plan.misses.sort_unstable();
        self.settle_unwanted(layer, &mut plan);
        self.tally.note_request(phase, &plan);
        plan
    }

    fn place_request(&mut self, layer: LayerIdx, expert: ExpertIdx, plan: &mut Plan) {
        let position = self.shape.position(layer, expert);
        match self.places[position] {
            Place::Cached | Place::Loose => plan.hits.push(expert),
            Place::Demanded => plan.flying.push(expert),
            Place::Ahead { stale } => {
                self.places[position] = Place::Demanded;
                let s = &mut self.tally.speculation;
                s.late += 1;
                *(if stale { &mut s.wasted } else { &mut s.pending }) -= 1;
                plan.flying.push(expert);
            }
            Place::Waiting => {
                self.tally.speculation.used += 1;
                self.tally.speculation.pending -= 1;
                plan.ahead.push((expert, self.settle(position)));
            }
            Place::Absent => {
                self.places[position] = Place::Demanded;
                plan.misses.push(expert);
            }
        }
    }

    /// What was read ahead for this layer and is not used by it.
    fn settle_unwanted(&mut self, layer: LayerIdx, plan: &mut Plan) {
        for expert in std::mem::take(&mut self.waiting[layer.0]) {
            let position = self.shape.position(layer, expert);
            match &mut self.places[position] {
                place @ Place::Waiting => {
                    *place = Place::Absent;
                    plan.unwanted.push(expert);
                }
                Place::Ahead { stale: stale @ false } => *stale = true,
                _ => continue,
            }
            self.tally.speculation.wasted += 1;
            self.tally.speculation.pending -= 1;
        }
    }

    /// The bytes of an expert that was asked for have arrived, whole and checked.
    ///
    /// Panics where nobody asked for it.
    pub fn landed(&mut self, layer: LayerIdx, expert: ExpertIdx) -> Landing {
        let position = self.shape.position(layer, expert);
        assert_eq!(self.places[position], Place::Demanded, "layer {layer:?}, {expert:?}");
        self.settle(position)
    }

    /// The bytes of an expert that `ahead` named have arrived, whole and checked.
    ///
    /// Panics where `ahead` did not name it.
    pub fn landed_ahead(&mut self, layer: LayerIdx, expert: ExpertIdx) -> Early {
        let position = self.shape.position(layer, expert);
        match self.places[position] {
            Place::Demanded => Early::Wanted(self.settle(position)),
            Place::Ahead { stale: false } => {
                self.places[position] = Place::Waiting;
                Early::Waits
            }
            Place::Ahead { stale: true } => {
                self.places[position] = Place::Absent;
                Early::Unwanted
            }
            place => panic!("layer {layer:?}, {expert:?} was not read ahead but is {place:?}"),
        }
    }

    /// Nothing came of a read, or it was called off before it began.
    ///
    /// A request that waits for it still has to release it. Panics where it is not on the way.
    pub fn failed(&mut self, layer: LayerIdx, expert: ExpertIdx) {
        let position = self.shape.position(layer, expert);
        match self.places[position] {
            Place::Demanded => self.tally.phase_mut(self.phase).failed += 1,
            Place::Ahead { stale } => {
                let s = &mut self.tally.speculation;
                s.failed += 1;
                if stale {
                    s.wasted -= 1;
                } else {
                    s.pending -= 1;
                    self.waiting[layer.0].retain(|waiting| *waiting != expert);
                }
            }
            place => panic!("layer {layer:?}, {expert:?} is not on the way but {place:?}"),
        }
        self.places[position] = Place::Absent;
    }

    /// Keeps what has arrived, or leaves it loose.
    fn settle(&mut self, position: usize) -> Landing {
        let landing = self.decide(position);
        for (layer, expert) in &landing.evict {
            let victim = self.shape.position(*layer, *expert);
            self.ranking.remove(victim);
            self.places[victim] = Place::Absent;
            self.cached -= 1;
            self.swaps += 1;
            self.tally.evicted += 1;
        }
        self.places[position] = if landing.keep { Place::Cached } else { Place::Loose };
        self.cached += usize::from(landing.keep);
        self.tally.kept += u64::from(landing.keep);
        self.tally.passed += u64::from(!landing.keep);
        landing
    }

    fn decide(&self, newcomer: usize) -> Landing {
        if self.cached < self.slots {
            return Landing { keep: true, evict: Vec::new() };
        }
        let victim = self.ranking.weakest().filter(|victim| {
            self.swaps < self.swaps_max && self.ranking.prefers(newcomer, *victim, self.phase)
        });
        let evict: Vec<ExpertId> = victim.into_iter().map(|v| self.shape.id(v)).collect();
        Landing { keep: !evict.is_empty(), evict }
    }

    /// The layer is done with these: pinned no more. Returns those whose bytes may be dropped.
    ///
    /// Panics where one was not requested.
    pub fn release(&mut self, layer: LayerIdx, experts: &[ExpertIdx]) -> Vec<ExpertIdx> {
        let mut dropped = Vec::new();
        for expert in experts {
            let position = self.shape.position(layer, *expert);
            self.pins[position] =
                self.pins[position].checked_sub(1).expect("released as often as requested");
            if self.pins[position] > 0 {
                continue;
            }
            match self.places[position] {
                Place::Cached => self.ranking.insert(position),
                Place::Loose => {
                    self.places[position] = Place::Absent;
                    dropped.push(*expert);
                }
                Place::Absent => {}
                place => panic!("layer {layer:?}, {expert:?} is released while {place:?}"),
            }
        }
        dropped
    }

    /// Which of the experts that a layer may use to read before it asks: those not in memory,
    /// in the given order (the likeliest first), as many as there are free slots.
    pub fn ahead(
        &mut self,
        layer: LayerIdx,
        predicted: &[ExpertIdx],
        free_slots: usize,
    ) -> Vec<ExpertId> {
        let mut chosen = Vec::new();
        for expert in predicted {
            let position = self.shape.position(layer, *expert);
            if chosen.len() < free_slots && self.places[position] == Place::Absent {
                self.places[position] = Place::Ahead { stale: false };
                self.waiting[layer.0].push(*expert);
                chosen.push((layer, *expert));
            }
        }
        self.tally.speculation.issued += chosen.len() as u64;
        self.tally.speculation.pending += chosen.len() as u64;
        chosen
    }

    /// Gives up all that waits for a request; returns those whose bytes may be dropped.
    pub fn abandon_ahead(&mut self) -> Vec<ExpertId> {
        let mut dropped = Vec::new();
        for layer in (0..self.shape.layers).map(LayerIdx) {
            let mut plan = Plan::default();
            self.settle_unwanted(layer, &mut plan);
            dropped.extend(plan.unwanted.into_iter().map(|expert| (layer, expert)));
        }
        dropped
    }

    /// The experts worth most that would still fit: what to read before the first request.
    ///
    /// Load each as `ahead` would and report it to `preloaded`.
    pub fn preload(&self) -> Vec<ExpertId> {
        let absent = |position: usize| self.places[position] == Place::Absent;
        let best = self.ranking.best(self.slots - self.cached, absent);
        best.into_iter().map(|position| self.shape.id(position)).collect()
    }

    /// An expert that `preload` named has arrived, whole and checked; it is cached.
    ///
    /// Panics where there is no room, or it was not absent.
    pub fn preloaded(&mut self, layer: LayerIdx, expert: ExpertIdx) {
        let position = self.shape.position(layer, expert);
        assert!(self.cached < self.slots, "room for {} experts is full", self.slots);
        assert_eq!(self.places[position], Place::Absent, "layer {layer:?}, {expert:?}");
        self.places[position] = Place::Cached;
        self.cached += 1;
        self.tally.preloaded += 1;
        if self.pins[position] == 0 {
            self.ranking.insert(position);
        }
    }
}
