//! A GPU cannot change a bit: every budget of its memory, accumulator, chunk and encoding gives the
//! logits of the processor. Skipped, saying so, where there is no GPU; .ci/run emulates one.

mod weights;

use std::sync::RwLock;

use engine::counters::PhaseCounters;
use engine::index::TokenId;
use engine::model::{CpuShare, GpuWish, Logits, Model, ModelError, State, VramWish};
use engine::tiers::Placement;
use engine::tiers::policy::Policy;
use numerics::cuda::{Gpu, GpuError, Wide};
use numerics::{Cpu, SimdLevel};
use store::experts::Encoding;
use weights::Weights;

/// Held by a test that needs memory of the GPU, and alone by the one that takes all of it.
static MEMORY: RwLock<()> = RwLock::new(());

fn cpu() -> Cpu {
    Cpu::new(SimdLevel::detect(), 2).unwrap()
}

/// The first GPU; `None`, said aloud, where there is none.
fn gpu(wide: Option<Wide>) -> Option<Gpu> {
    match Gpu::open(0, wide) {
        Ok(gpu) => Some(gpu),
        Err(GpuError::NoDriver | GpuError::NoDevice) => {
            eprintln!("skipped: no GPU here");
            None
        }
        Err(other) => panic!("a GPU that cannot be used: {other}"),
    }
}

/// A prompt in two chunks, then tokens one by one, with and without all logits: their bits.
fn logits(model: &Model) -> Result<(Vec<u32>, PhaseCounters), ModelError> {
    let ids: Vec<TokenId> = (0..10).map(|i| TokenId(i * 7 % 60 + 1)).collect();
    let mut state = State::new(model.description());
    let mut counters = PhaseCounters::default();
    let mut all = Vec::new();
    let mut run = |ids: &[TokenId], which| {
        let values = model.forward(&mut state, ids, which, &mut counters)?;
        all.extend(values.into_iter().map(f32::to_bits));
        Ok::<(), ModelError>(())
    };
    run(&ids[..5], Logits::All)?;
    run(&ids[5..7], Logits::Last)?;
    run(&ids[7..8], Logits::All)?;
    ids[8..].iter().try_for_each(|id| run(&[*id], Logits::Last))?;
    Ok((all, counters))
}

fn check(name: &str) {
    let _memory = MEMORY.read().expect("no test that failed holds it alone");
    let in_place = Weights::in_place(name);
    let expected = logits(&in_place.open(cpu(), Placement::Mapped, None)).unwrap().0;
    every_budget(name, &in_place, &expected);
    let out = tempfile::tempdir().unwrap();
    let store = in_place.store(true, out.path());
    assert!(store.map.all().any(|b| b.encoding == Encoding::Packed), "{name}: packed blocks");
    every_budget(&format!("{name}, packed"), &store, &expected);
}

fn wish(vram: VramWish, cpu: CpuShare) -> GpuWish {
    GpuWish { vram, policy: Policy::default(), cpu }
}

/// Room for no expert, some, all; both accumulators; what is not there by the device, by the
/// processor, by both, and as it comes.
fn every_budget(name: &str, weights: &Weights, expected: &[u32]) {
    let shape = weights.open(cpu(), Placement::Mapped, None).tiers().shape();
    let packed = name.ends_with("packed");
    for (slots, wide, cpu_share) in [
        (0, Wide::F64, CpuShare::Share(0.0)),
        (0, Wide::Pair, CpuShare::Share(if packed { 0.5 } else { 1.0 })),
        (shape.token_working_set() * 2, Wide::Pair, CpuShare::Auto),
        (shape.total(), if packed { Wide::F64 } else { Wide::Pair }, CpuShare::Auto),
    ] {
        let Some(gpu) = gpu(Some(wide)) else { return };
        let mut model = weights.open(cpu(), Placement::Mapped, None);
        model.move_to(gpu, &wish(VramWish::Slots(slots), cpu_share)).expect("room for them");
        let (found, counters) = logits(&model).expect("an answer");
        assert!(found == expected, "{name}, {slots} slots, {wide:?}, {cpu_share:?}: other bits");
        let (ours, all) = (counters.tiers.cpu_experts, counters.experts);
        match cpu_share {
            CpuShare::Share(share) if slots == 0 => {
                assert!((ours as f64 - share * all as f64).abs() <= 1.0, "{ours} of {all}");
            }
            _ => {}
        }
    }
}

#[test]
fn a_gpu_changes_no_bit_of_tiny_moe() {
    check("tiny-moe");
}

#[test]
fn a_gpu_changes_no_bit_of_qwen3_5_moe_text() {
    check("golden/qwen3_5_moe-text");
}

#[test]
fn a_gpu_changes_no_bit_of_qwen3_5_moe_vl() {
    check("golden/qwen3_5_moe-vl");
}

#[test]
fn a_gpu_changes_no_bit_of_qwen3_moe() {
    check("golden/qwen3_moe");
}

/// Tiles of tokens, positions and channels that are full and that are not, behind others.
#[test]
fn a_gpu_changes_no_bit_of_a_long_prompt() {
    let _memory = MEMORY.read().expect("no test that failed holds it alone");
    let weights = Weights::in_place("tiny-moe");
    let ids: Vec<TokenId> = (0..90).map(|i| TokenId(i * 37 % 500 + 1)).collect();
    let all = |model: &Model| {
        let (mut state, mut counters) = (State::new(model.description()), PhaseCounters::default());
        let mut bits = Vec::new();
        for ids in [&ids[..20], &ids[20..]] {
            let values = model.forward(&mut state, ids, Logits::All, &mut counters).unwrap();
            bits.extend(values.into_iter().map(f32::to_bits));
        }
        bits
    };
    let expected = all(&weights.open(cpu(), Placement::Mapped, None));
    let Some(gpu) = gpu(Some(Wide::F64)) else { return };
    let mut model = weights.open(cpu(), Placement::Mapped, None);
    model.move_to(gpu, &wish(VramWish::Free, CpuShare::Auto)).expect("room");
    assert!(all(&model) == expected, "other bits");
}

#[test]
fn a_budget_that_cannot_do_is_refused_with_the_one_that_would() {
    let _memory = MEMORY.read().expect("no test that failed holds it alone");
    let weights = Weights::in_place("tiny-moe");
    let Some(small) = gpu(None) else { return };
    let mut model = weights.open(cpu(), Placement::Mapped, None);
    let refused = model.move_to(small, &wish(VramWish::Bytes(1 << 20), CpuShare::Auto));
    let Err(ModelError::VramBudget { needed_bytes, .. }) = refused else {
        panic!("a budget of 1 MiB was taken")
    };
    let Some(gpu) = gpu(None) else { return };
    model
        .move_to(gpu, &wish(VramWish::Bytes(needed_bytes), CpuShare::Auto))
        .expect("what was named");
    logits(&model).expect("an answer");
}

#[test]
fn a_session_on_a_gpu_goes_on_from_a_file() {
    let _memory = MEMORY.read().expect("no test that failed holds it alone");
    let weights = Weights::in_place("golden/qwen3_5_moe-text");
    let Some(gpu) = gpu(None) else { return };
    let mut model = weights.open(cpu(), Placement::Mapped, None);
    model.move_to(gpu, &wish(VramWish::Free, CpuShare::Auto)).expect("room");
    let mut counters = PhaseCounters::default();
    let mut state = State::new(model.description());
    let ids: Vec<TokenId> = (1..9).map(TokenId).collect();
    model.forward(&mut state, &ids, Logits::None, &mut counters).expect("a chunk");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    state.save(&model, &path).expect("a file");
    let mut restored =
        State::load(model.description(), model.fingerprint(), &path).expect("the same state");
    let next = [TokenId(9)];
    let here = model.forward(&mut state, &next, Logits::Last, &mut counters).unwrap();
    let there = model.forward(&mut restored, &next, Logits::Last, &mut counters).unwrap();
    assert!(here.iter().map(|v| v.to_bits()).eq(there.iter().map(|v| v.to_bits())));
}

/// A device whose memory runs out in the middle of a prompt costs that session, and no other.
#[test]
fn memory_that_runs_out_ends_one_session() {
    let _memory = MEMORY.write().expect("a test failed before");
    let weights = Weights::in_place("tiny-moe");
    let expected = logits(&weights.open(cpu(), Placement::Mapped, None)).unwrap().0;
    let Some(gpu) = gpu(None) else { return };
    let mut model = weights.open(cpu(), Placement::Mapped, None);
    model.move_to(gpu, &wish(VramWish::Slots(4), CpuShare::Share(0.0))).expect("room");
    assert!(logits(&model).expect("an answer").0 == expected);
    let mut taken = Vec::new();
    let mut piece_bytes = 1 << 30;
    while piece_bytes >= 1 << 10 {
        match model.gpu().expect("moved").room::<u8>(piece_bytes) {
            Ok(piece) => taken.push(piece),
            Err(GpuError::OutOfMemory { .. }) => piece_bytes /= 2,
            Err(other) => panic!("{other}"),
        }
    }
    let Err(ModelError::Gpu(GpuError::OutOfMemory { .. })) = logits(&model) else {
        panic!("there was memory left")
    };
    drop(taken);
    assert!(logits(&model).expect("an answer").0 == expected, "other bits after running out");
}
