//! With every expert in RAM the file is left alone. A test binary of its own: the system counts
//! the reads of a whole process.

use std::path::Path;
use std::sync::Arc;

use engine::counters::PhaseCounters;
use engine::index::TokenId;
use engine::model::{Logits, Model, Source, State};
use engine::tiers::Placement;
use engine::tiers::policy::Policy;
use numerics::{Cpu, SimdLevel};
use store::Checkpoint;
use store::read::ReadOptions;

#[test]
fn with_every_expert_in_memory_the_file_is_left_alone() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-moe");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let cpu = || Cpu::new(SimdLevel::detect(), 2).unwrap();
    let total = Model::load(&checkpoint, cpu()).unwrap().tiers().shape().total();
    let (policy, read) = (Policy::default(), ReadOptions::default());
    let placement = Placement::Cached { slots: total, staging: 4, ahead: true, policy, read };
    let checkpoint = &checkpoint;
    let source =
        Source { checkpoint, experts: None, digests: Arc::default(), placement, heat: None };
    let model = Model::open(source, cpu()).unwrap();
    let mut filling = PhaseCounters::default();
    let mut last = (0, 0);
    model.tiers().fill(&mut filling.tiers, |count, total| last = (count, total)).unwrap();
    assert_eq!(last, (total, total));
    // What is mapped (the weights that every token uses) is read once before.
    let pass = |counters: &mut PhaseCounters| {
        let mut state = State::new(model.description());
        for ids in [[3, 1, 4, 1, 5, 9].map(TokenId).as_slice(), &[TokenId(26)], &[TokenId(53)]] {
            model.forward(&mut state, ids, Logits::All, counters).unwrap();
        }
    };
    pass(&mut PhaseCounters::default());
    let (before, mut counters) = (read_bytes(), PhaseCounters::default());
    pass(&mut counters);
    let t = counters.tiers;
    assert_eq!((t.file_experts, t.file_bytes, t.file_reads), (0, 0, 0), "{t:?}");
    assert_eq!(t.steps, t.steps_without_miss);
    assert_eq!(t.ram_experts, counters.experts);
    assert_eq!(read_bytes(), before, "the system counts the same: nothing");
}

/// Bytes that this process had fetched from storage.
fn read_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").expect("the system counts reads");
    let line = text.lines().find_map(|l| l.strip_prefix("read_bytes: "));
    line.expect("a line of bytes").trim().parse().expect("a number")
}
