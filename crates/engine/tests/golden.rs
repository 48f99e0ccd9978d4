//! Every hash of the oracle, on every path: SIMD levels, threads, chunks, saved states, stores,
//! budgets.

mod weights;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::embedded;
use engine::generate::Session;
use engine::generate::digest::logits_sha256;
use engine::index::TokenId;
use engine::model::{Model, State};
use engine::tiers::Placement;
use engine::tiers::policy::Policy;
use numerics::{Cpu, SimdLevel};
use serde::Deserialize;
use store::checkpoint::Checkpoint;
use store::read::{Io, ReadOptions};

use weights::Weights;

/// What the oracle printed for one prompt.
#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    prompt_logits_sha256: Vec<String>,
    tokens: Vec<u32>,
    logits_sha256: Vec<String>,
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn tiny_cases() -> Vec<Case> {
    let json = read(models().join("tiny-moe/reference/oracle.json"));
    let by_name: std::collections::BTreeMap<String, Case> =
        serde_json::from_str(&json).expect("oracle.json");
    by_name.into_values().collect()
}

fn golden_cases(name: &str) -> Vec<Case> {
    let json = read(models().join("golden").join(name).join("oracle.json"));
    serde_json::from_str(&json).expect("oracle.json")
}

fn ids(raw: &[u32]) -> Vec<TokenId> {
    raw.iter().map(|id| TokenId(*id)).collect()
}

/// A way to compute: it must not change a bit.
struct Route {
    level: SimdLevel,
    threads: usize,
    chunk: usize,
}

fn check(checkpoint: &Checkpoint, cases: &[Case], path: &Route) {
    let cpu = Cpu::new(path.level, path.threads).expect("a level of this machine");
    let model = Arc::new(Model::load(checkpoint, cpu).expect("the model loads"));
    let label = format!("{} {:?} threads {}", checkpoint.label(), path.level, path.threads);
    check_model(&model, cases, path.chunk, &label);
}

/// Every hash of every case.
fn check_model(model: &Arc<Model>, cases: &[Case], chunk: usize, label: &str) {
    for case in cases {
        let label = format!("{label} chunk {chunk} prompt of {}", case.prompt.len());
        let mut session = Session::new(model.clone(), chunk);
        let mut at = 0;
        let mut last = Vec::new();
        session
            .prompt_rows(&ids(&case.prompt), |row| {
                assert_eq!(logits_sha256(row), case.prompt_logits_sha256[at], "{label}: {at}");
                last = row.to_vec();
                at += 1;
            })
            .expect("finite");
        assert_eq!(at, case.prompt.len());
        for (i, (token, hash)) in case.tokens.iter().zip(&case.logits_sha256).enumerate() {
            assert_eq!(&logits_sha256(&last), hash, "{label}: generated {i}");
            assert_eq!(greedy(&last), *token, "{label}: generated {i}");
            last = session.step(TokenId(*token)).expect("finite");
        }
    }
}

fn greedy(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, v) in logits.iter().enumerate() {
        if *v > logits[best] {
            best = i;
        }
    }
    best as u32
}

/// Every level, and at the best one every pair of threads and chunks.
fn paths() -> Vec<Route> {
    let best = SimdLevel::detect();
    let mut paths: Vec<Route> = SimdLevel::available()
        .into_iter()
        .map(|level| Route { level, threads: 2, chunk: usize::MAX })
        .collect();
    for threads in [1, 2, 4, 7] {
        for chunk in [1, 3, 64, usize::MAX] {
            paths.push(Route { level: best, threads, chunk });
        }
    }
    paths
}

#[test]
fn tiny_moe_equals_the_oracle_on_every_path() {
    let checkpoint = embedded::checkpoint().expect("embedded");
    let cases = tiny_cases();
    assert_eq!(cases.len(), 6);
    for path in paths() {
        check(&checkpoint, &cases, &path);
    }
}

#[test]
fn golden_checkpoints_equal_the_oracle_on_every_path() {
    for name in ["qwen3_5_moe-text", "qwen3_5_moe-vl", "qwen3_moe"] {
        let checkpoint = Checkpoint::open(&models().join("golden").join(name)).expect("opens");
        let cases = golden_cases(name);
        assert_eq!(cases.len(), 5);
        for path in paths() {
            check(&checkpoint, &cases, &path);
        }
    }
}

/// Nothing, the working set of a token, and everything, by both backends.
fn placements(model: &Model) -> Vec<Placement> {
    let shape = model.tiers().shape();
    let cached = |slots, io, ahead| {
        let read = ReadOptions { io, ..ReadOptions::default() };
        Placement::Cached { slots, staging: 3, ahead, policy: Policy::default(), read }
    };
    vec![
        Placement::Mapped,
        cached(0, Io::Auto, true),
        cached(shape.token_working_set(), Io::Pread, true),
        cached(shape.total(), Io::Auto, false),
    ]
}

#[test]
fn stores_and_budgets_equal_the_oracle() {
    let golden = ["qwen3_5_moe-text", "qwen3_5_moe-vl", "qwen3_moe"];
    let mut models = vec![("tiny-moe".to_string(), tiny_cases())];
    models.extend(golden.map(|name| (format!("golden/{name}"), golden_cases(name))));
    for (name, cases) in models {
        let in_place = Weights::in_place(&name);
        let (v1, v2) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let stores = [in_place.store(false, v1.path()), in_place.store(true, v2.path())];
        let all = ["in place", "version 1", "version 2"].into_iter();
        for (what, weights) in all.zip([&in_place, &stores[0], &stores[1]]) {
            let open = |level, placement| {
                let cpu = Cpu::new(level, 2).expect("a level of this machine");
                Arc::new(weights.open(cpu, placement, None))
            };
            let best = SimdLevel::detect();
            for placement in placements(&open(best, Placement::Mapped)) {
                let label = format!("{name}, {what}, {placement:?}");
                check_model(&open(best, placement), &cases, 64, &label);
            }
            // Packed weights have kernels of their own at every level.
            for level in SimdLevel::available() {
                let label = format!("{name}, {what}, {level:?}");
                check_model(&open(level, Placement::Mapped), &cases, usize::MAX, &label);
            }
        }
    }
}

#[test]
fn a_saved_state_goes_on_with_the_same_bits() {
    let checkpoint = embedded::checkpoint().expect("embedded");
    let case = &tiny_cases()[1];
    let file = std::env::temp_dir().join(format!("tarfa-state-{}", std::process::id()));
    let fresh = || {
        let cpu = Cpu::detect().expect("threads");
        Arc::new(Model::load(&checkpoint, cpu).expect("loads"))
    };
    let mut session = Session::new(fresh(), 4);
    let mut logits = session.prompt(&ids(&case.prompt)).expect("finite");
    for (token, hash) in case.tokens.iter().zip(&case.logits_sha256) {
        assert_eq!(&logits_sha256(&logits), hash);
        let model = session.model().clone();
        session.state().save(&model, &file).expect("saves");
        let model = fresh();
        let state = State::load(model.description(), model.fingerprint(), &file).expect("loads");
        session = Session::resume(model, state, 4);
        logits = session.step(TokenId(*token)).expect("finite");
    }
    std::fs::remove_file(&file).expect("removes");
}
