//! The tiers cannot change a bit: every budget, backend and fault gives the hashes of the mapped
//! model, or a typed error.

mod weights;

use std::sync::Arc;

use engine::counters::PhaseCounters;
use engine::index::TokenId;
use engine::model::{Logits, Model, ModelError, Source, State};
use engine::tiers::heat::Heat;
use engine::tiers::policy::Policy;
use engine::tiers::{Placement, TierError};
use numerics::{Cpu, SimdLevel};
use store::checkpoint::Checkpoint;
use store::experts::{Digests, Encoding};
use store::read::{Fault, Injection, Io, ReadError, ReadOptions};
use weights::{Weights, folder};

fn cpu() -> Cpu {
    Cpu::new(SimdLevel::detect(), 2).unwrap()
}

fn cached(slots: usize, staging: usize, io: Io, ahead: bool) -> Placement {
    let read = ReadOptions { io, depth: 4, piece_bytes: 16 << 10, ..ReadOptions::default() };
    Placement::Cached { slots, staging, ahead, policy: Policy::default(), read }
}

struct Outcome {
    logits: Vec<u32>,
    counters: PhaseCounters,
    heat: Heat,
}

/// A prompt in two chunks, then tokens one by one: the bits of every logit.
fn outcome(model: &Model) -> Result<Outcome, ModelError> {
    let ids: Vec<TokenId> = (0..23).map(|i| TokenId(i * 7 % 60 + 1)).collect();
    let mut state = State::new(model.description());
    let mut counters = PhaseCounters::default();
    let mut logits = Vec::new();
    let mut run = |ids: &[TokenId]| {
        let values = model.forward(&mut state, ids, Logits::All, &mut counters)?;
        logits.extend(values.into_iter().map(f32::to_bits));
        Ok::<(), ModelError>(())
    };
    run(&ids[..9])?;
    run(&ids[9..13])?;
    ids[13..].iter().try_for_each(|id| run(&[*id]))?;
    Ok(Outcome { logits, counters, heat: model.tiers().heat() })
}

/// In place, as a store of version 1, and of version 2.
fn check(name: &str) {
    let in_place = Weights::in_place(name);
    let expected = outcome(&in_place.open(cpu(), Placement::Mapped, None)).unwrap();
    every_placement(name, &in_place, &expected);
    for (version, pack) in [("version 1", false), ("version 2", true)] {
        let out = tempfile::tempdir().unwrap();
        let store = in_place.store(pack, out.path());
        let packed = store.map.all().filter(|b| b.encoding == Encoding::Packed).count();
        assert_eq!(packed > 0, pack, "{name}, {version}: packed blocks");
        let mapped = outcome(&store.open(cpu(), Placement::Mapped, None)).unwrap();
        assert!(mapped.logits == expected.logits, "{name}, {version}, mapped: other bits");
        every_placement(&format!("{name}, {version}"), &store, &expected);
    }
}

fn every_placement(name: &str, weights: &Weights, mapped: &Outcome) {
    let shape = weights.open(cpu(), Placement::Mapped, None).tiers().shape();
    let budgets = [0, shape.token_working_set(), shape.total() / 2, shape.total()];
    for slots in budgets {
        for (io, ahead, heat) in [
            (Io::Auto, true, None),
            (Io::Auto, false, Some(mapped.heat.clone())),
            (Io::Pread, true, Some(mapped.heat.clone())),
            (Io::Pread, false, None),
        ] {
            for staging in [1, 2, 16] {
                let placement = cached(slots, staging, io, ahead);
                let model = weights.open(cpu(), placement, heat.clone());
                let found = outcome(&model).expect("an answer");
                let what = format!("{name}, {slots} slots, {staging} staging, {io:?}, {ahead}");
                assert!(found.logits == mapped.logits, "{what}: other bits");
                let t = found.counters.tiers;
                let served = t.ram_experts + t.file_experts + t.ahead_used + t.ahead_late;
                assert_eq!(served, found.counters.experts, "{what}: {t:?}");
                assert_eq!(found.counters.experts, mapped.counters.experts, "{what}");
                let blocks = t.blocks_new + t.blocks_first_seen + t.blocks_manifest;
                assert_eq!(t.blocks_manifest == blocks, !weights.known.is_empty(), "{what}");
                assert!(slots > 0 || blocks >= 2 * t.file_experts, "{what}: {t:?}");
            }
        }
    }
}

#[test]
fn tiers_change_no_bit_of_tiny_moe() {
    check("tiny-moe");
}

#[test]
fn tiers_change_no_bit_of_qwen3_5_moe_text() {
    check("golden/qwen3_5_moe-text");
}

#[test]
fn tiers_change_no_bit_of_qwen3_5_moe_vl() {
    check("golden/qwen3_5_moe-vl");
}

#[test]
fn tiers_change_no_bit_of_qwen3_moe() {
    check("golden/qwen3_moe");
}

#[test]
fn faults_give_the_same_bits_or_a_typed_error_and_the_model_goes_on() {
    let checkpoint = Checkpoint::open(&folder("golden/qwen3_moe")).unwrap();
    let expected = outcome(&Model::load(&checkpoint, cpu()).unwrap()).unwrap().logits;
    let middle = checkpoint.shards()[0].bytes.len() as u64 / 2;
    for (fault, times, survives) in [
        (Fault::Short { count: 5000 }, u64::MAX, true),
        (Fault::Interrupted, 9, true),
        (Fault::Io, 1, false),
        (Fault::Io, u64::MAX, false),
        (Fault::End, 1, false),
        (Fault::Flip { offset_bytes: middle }, 1, true),
    ] {
        let read = ReadOptions {
            faults: vec![(0, vec![Injection { fault, times }])],
            ..ReadOptions::default()
        };
        let (policy, ahead) = (Policy::default(), true);
        let placement = Placement::Cached { slots: 5, staging: 3, ahead, policy, read };
        let digests = Arc::new(known(&checkpoint));
        let source =
            Source { checkpoint: &checkpoint, experts: None, digests, placement, heat: None };
        let model = Model::open(source, cpu()).unwrap();
        match outcome(&model) {
            Ok(found) => assert!(found.logits == expected && survives, "{fault:?}"),
            Err(ModelError::Tier(TierError::Read(ReadError::Io { .. }))) => {
                assert!(!survives, "{fault:?}")
            }
            Err(error) => panic!("{fault:?}: {error}"),
        }
        if times == 1 {
            assert!(outcome(&model).unwrap().logits == expected, "{fault:?}: the next request");
        }
    }
}

/// Checksums as an earlier run left them.
fn known(checkpoint: &Checkpoint) -> Digests {
    let model = Model::load(checkpoint, cpu()).unwrap();
    outcome(&model).unwrap();
    Digests::new(model.tiers().digests().entries())
}
