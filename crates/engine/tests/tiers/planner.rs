//! What holds whatever happens.

use engine::index::{ExpertIdx, LayerIdx};
use engine::tiers::heat::Heat;
use engine::tiers::planner::Planner;
use engine::tiers::policy::{Policy, Tuning};
use engine::tiers::{Phase, Shape};
use proptest::prelude::*;

use crate::driver::{Dice, Memory, SHAPE, run};

fn policies() -> impl Strategy<Value = Policy> {
    let tuned = Tuning { hysteresis: 1.2, swaps_max: Some(2), ..Tuning::default() };
    prop::sample::select([&Policy::NAMED[..], &[Policy::Tuned(tuned)]].concat())
}

proptest! {
    /// The driver asserts: no more cached than fit, nothing in use evicted, hits only of what
    /// landed, no expert read twice, and that the counts add up.
    #[test]
    fn whatever_happens_memory_and_counts_are_sound(
        slots in 0..=SHAPE.layers * SHAPE.experts, policy in policies(), seed: u64,
    ) {
        let memory = run(slots, policy, seed, 60);
        let t = *memory.planner.tally();
        prop_assert_eq!(t.prefill.steps + t.decode.steps, 60 * SHAPE.layers as u64);
    }

    #[test]
    fn the_same_events_give_the_same_actions(
        slots in 0..=SHAPE.layers * SHAPE.experts, policy in policies(), seed: u64,
    ) {
        prop_assert_eq!(run(slots, policy, seed, 40).log, run(slots, policy, seed, 40).log);
    }

    /// A prompt evicts nothing that decoding has used, whatever the capacity.
    #[test]
    fn a_prompt_leaves_what_decoding_uses(slots in 0..=20usize, seed: u64) {
        for policy in [Policy::Lfu, Policy::Lfru, Policy::Static] {
            let mut memory = Memory::new(slots, policy);
            let mut dice = Dice(seed);
            for phase in [Phase::Decode, Phase::Prefill] {
                let before = memory.cached.clone();
                for i in 0..30 {
                    let count = if phase == Phase::Decode { SHAPE.top_k } else { SHAPE.experts };
                    let experts = dice.experts(count);
                    memory.layer(LayerIdx(i % SHAPE.layers), &experts, phase, &mut dice);
                }
                if phase == Phase::Prefill {
                    prop_assert!(before.is_subset(&memory.cached));
                }
            }
        }
    }
}

fn decode(planner: &mut Planner, layer: usize, experts: &[u32]) -> usize {
    let (layer, experts) =
        (LayerIdx(layer), experts.iter().map(|e| ExpertIdx(*e)).collect::<Vec<_>>());
    let plan = planner.request(layer, &experts, Phase::Decode);
    for expert in &plan.misses {
        planner.landed(layer, *expert);
    }
    planner.release(layer, &experts);
    plan.hits.len()
}

#[test]
fn without_room_nothing_is_kept_and_with_all_of_it_everything_is() {
    for policy in Policy::NAMED {
        let none = run(0, policy, 7, 50);
        let t = *none.planner.tally();
        assert_eq!((t.kept, t.evicted, t.decode.hits), (0, 0, 0), "{policy}");
        let mut all = Planner::new(SHAPE, SHAPE.total(), policy, None);
        let mut dice = Dice(1);
        for i in 0..300 {
            let experts: Vec<u32> = dice.experts(3).iter().map(|e| e.0).collect();
            decode(&mut all, i % SHAPE.layers, &experts);
        }
        let t = all.tally();
        assert_eq!((t.evicted, t.passed), (0, 0), "{policy}");
        assert_eq!(t.decode.misses, SHAPE.total() as u64, "{policy}: each is read once");
    }
}

/// Every token uses the same experts, and half of them fit: least-recently-used hits nothing, a
/// set that stays hits what fits.
#[test]
fn below_one_tokens_working_set_a_share_stays() {
    let check = |policy, expect: std::ops::RangeInclusive<f64>| {
        let mut planner = Planner::new(SHAPE, 4, policy, None);
        for i in 0..90 {
            decode(&mut planner, i % SHAPE.layers, &[1, 4, 6]);
        }
        let rate = planner.tally().decode.hit_rate();
        assert!(expect.contains(&rate), "{policy}: {rate}");
    };
    check(Policy::Lru, 0.0..=0.0);
    check(Policy::Lfru, 0.42..=0.45);
    check(Policy::Static, 0.42..=0.45);
}

#[test]
fn what_was_learned_is_loaded_first_and_stays_in_the_list() {
    let mut heat = Heat::new(SHAPE);
    heat.pass(Phase::Decode, 100);
    for (layer, expert, tokens) in [(2, 5, 90), (0, 1, 80), (1, 7, 70), (1, 0, 10)] {
        heat.note(Phase::Decode, LayerIdx(layer), ExpertIdx(expert), tokens);
    }
    let mut planner = Planner::new(SHAPE, 3, Policy::Static, Some(&heat));
    let expect = [(2, 5), (0, 1), (1, 7)].map(|(l, e)| (LayerIdx(l), ExpertIdx(e)));
    assert_eq!(planner.preload(), expect);
    for (layer, expert) in planner.preload() {
        planner.preloaded(layer, expert);
    }
    for i in 0..30 {
        decode(&mut planner, i % 3, &[2, 3, 4]);
    }
    assert!(expect.iter().all(|(layer, expert)| planner.is_cached(*layer, *expert)));
    assert_eq!(decode(&mut planner, 1, &[7, 0]), 1);
}

#[test]
fn a_cap_on_swaps_holds_in_each_pass() {
    let tuning = Tuning { swaps_max: Some(1), ..Tuning::default() };
    let mut planner = Planner::new(SHAPE, 9, Policy::Tuned(tuning), None);
    let mut dice = Dice(3);
    for pass in 0..40 {
        let before = planner.tally().evicted;
        for layer in 0..SHAPE.layers {
            let experts: Vec<u32> = dice.experts(3).iter().map(|e| e.0).collect();
            decode(&mut planner, layer, &experts);
        }
        let swaps = planner.tally().evicted - before;
        assert!(swaps <= 1, "{swaps} in pass {pass}");
    }
    assert!(planner.tally().evicted > 10);
}

/// A failed read is nobody's: it can be asked for again, and its request released.
#[test]
fn a_read_that_failed_can_be_repeated() {
    let mut planner = Planner::new(SHAPE, 4, Policy::Lfru, None);
    let (layer, expert) = (LayerIdx(1), ExpertIdx(3));
    assert_eq!(planner.request(layer, &[expert], Phase::Decode).misses, [expert]);
    planner.failed(layer, expert);
    assert_eq!(planner.request(layer, &[expert], Phase::Decode).misses, [expert]);
    assert!(planner.landed(layer, expert).keep);
    planner.release(layer, &[expert]);
    planner.release(layer, &[expert]);
    assert_eq!(planner.request(layer, &[expert], Phase::Decode).hits, [expert]);
    assert_eq!(planner.tally().decode.failed, 1);
}

#[test]
#[should_panic(expected = "released as often as requested")]
fn a_release_too_many_is_our_bug() {
    let mut planner = Planner::new(SHAPE, 4, Policy::Lfru, None);
    planner.release(LayerIdx(0), &[ExpertIdx(0)]);
}

/// 48 layers of 512 experts, a quarter cached: the planner must be far below a token's time.
#[test]
fn a_large_model_is_planned_in_a_few_microseconds_a_layer() {
    let shape = Shape { layers: 48, experts: 512, top_k: 10 };
    let mut planner = Planner::new(shape, shape.total() / 4, Policy::Lfru, None);
    let mut dice = Dice(5);
    let mut token = |planner: &mut Planner| {
        for layer in 0..shape.layers {
            // The smaller of two numbers: some experts are hotter.
            let mut experts: Vec<u32> = (0..30)
                .map(|_| dice.below(512).min(dice.below(512)).min(dice.below(512)) as u32)
                .collect();
            experts.sort_unstable();
            experts.dedup();
            experts.truncate(10);
            decode(planner, layer, &experts);
        }
    };
    (0..300).for_each(|_| token(&mut planner));
    let started = std::time::Instant::now();
    (0..100).for_each(|_| token(&mut planner));
    let seconds = started.elapsed().as_secs_f64() / 4800.0;
    // Ten times what it takes here, so that only a wrong order of growth fails.
    assert!(seconds < 1e-3, "{seconds} s a layer");
}
