//! The least-recently-used policy against the plainest program that does the same.

use engine::index::{ExpertIdx, LayerIdx};
use engine::tiers::ExpertId;
use engine::tiers::Phase;
use engine::tiers::planner::Planner;
use engine::tiers::policy::Policy;
use proptest::prelude::*;

use crate::driver::{Dice, SHAPE};

/// The oldest first.
#[derive(Default)]
struct Plain {
    slots: usize,
    list: Vec<ExpertId>,
}

impl Plain {
    /// Hits; misses land by id, and what the layer uses is not evicted.
    fn layer(&mut self, layer: LayerIdx, experts: &[ExpertIdx]) -> Vec<ExpertIdx> {
        let hit = |e: &ExpertIdx| self.list.contains(&(layer, *e));
        let (hits, mut misses): (Vec<_>, Vec<_>) = experts.iter().copied().partition(hit);
        misses.sort_unstable();
        let mut used: Vec<ExpertId> = hits.iter().map(|e| (layer, *e)).collect();
        self.list.retain(|id| !used.contains(id));
        for expert in misses {
            if self.list.len() + used.len() == self.slots {
                if self.list.is_empty() {
                    continue;
                }
                self.list.remove(0);
            }
            used.push((layer, expert));
        }
        // By age: as the layer named them.
        used.sort_by_key(|(_, e)| experts.iter().position(|x| x == e));
        self.list.extend(used);
        hits
    }
}

proptest! {
    #[test]
    fn lru_is_plain_lru(slots in 0..=SHAPE.layers * SHAPE.experts, seed: u64) {
        let mut plain = Plain { slots, ..Plain::default() };
        let mut planner = Planner::new(SHAPE, slots, Policy::Lru, None);
        let mut dice = Dice(seed);
        for i in 0..200 {
            let (layer, experts) = (LayerIdx(i % SHAPE.layers), dice.experts(SHAPE.top_k));
            let plan = planner.request(layer, &experts, Phase::Decode);
            prop_assert_eq!(&plan.hits, &plain.layer(layer, &experts));
            plan.misses.iter().for_each(|expert| drop(planner.landed(layer, *expert)));
            planner.release(layer, &experts);
            for (layer, expert) in &plain.list {
                prop_assert!(planner.is_cached(*layer, *expert));
            }
            prop_assert_eq!(planner.cached_count(), plain.list.len());
        }
    }
}
