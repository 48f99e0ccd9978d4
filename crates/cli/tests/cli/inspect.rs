//! `tarfa inspect`, `synth` and `selftest`.

use predicates::prelude::*;

use crate::{json, models, refused, tarfa};

#[test]
fn the_embedded_model_is_described() {
    let found = json(&["inspect"]);
    assert_eq!(found["runs"], true);
    assert_eq!(found["shape"]["family"], "qwen3_5_moe");
    assert_eq!(found["parameters"], 13_852_080);
    assert_eq!(found["parameters_ignored"], 1_494_272);
    let parts = found["parts"].as_array().expect("a list");
    let ignored: Vec<_> = parts.iter().filter(|part| part["ignored"] == true).collect();
    assert_eq!(ignored.len(), 1);
    assert_eq!(ignored[0]["part"], "multi-token prediction");
    tarfa(&["inspect"])
        .assert()
        .success()
        .stdout(predicate::str::contains("8: 2 attention, 6 delta net"))
        .stdout(predicate::str::contains("model-00003-of-00003.safetensors"));
}

#[test]
fn experts_read_for_a_token_are_those_that_a_run_reads() {
    let expect = json(&["inspect"])["decoded_token_bytes"]["experts"].as_f64();
    let run = json(&["run", "--max-tokens", "3", "Once"]);
    assert_eq!(run["figures"]["bytes_per_token"]["memory"]["experts"].as_f64(), expect);
}

#[test]
fn what_is_ignored_is_said() {
    let model = models("golden/qwen3_5_moe-vl");
    let model = model.to_str().expect("UTF-8");
    tarfa(&["inspect", "--model", model])
        .assert()
        .success()
        .stdout(predicate::str::is_match("vision .* ignored").expect("a pattern"))
        .stdout(predicate::str::contains("no: use --ids instead of text"));
}

#[test]
fn an_unknown_family_is_described_and_refused() {
    let folder = crate::bad_input::copy();
    crate::bad_input::edit_config(folder.path(), "\"qwen3_moe\"", "\"gpt_oss\"");
    let model = folder.path().to_str().expect("UTF-8");
    let expect = "this cannot be run: model_type \"gpt_oss\" is not known; known: qwen3_5_moe";
    refused(tarfa(&["inspect", "--model", model]), 2, expect);
    tarfa(&["inspect", "--model", model])
        .assert()
        .stdout(predicate::str::contains("routed experts"))
        .stdout(predicate::str::contains("gpt_oss"));
}

#[test]
fn a_synthetic_checkpoint_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("made");
    let out = out.to_str().expect("UTF-8");
    let args = ["--like", "tiny", "--layers", "4", "--experts", "16", "--skew", "0.5"];
    let made = json(&[&["synth", "--out", out], &args[..]].concat());
    let found = json(&["inspect", "--model", out]);
    assert_eq!(found["parameters"], made["parameters"]);
    assert_eq!(found["shape"]["experts"], 16);
    let run = json(&["run", "--model", out, "--ids", "1,2,3", "--max-tokens", "4"]);
    assert!(!run["tokens"].as_array().expect("a list").is_empty());
    refused(tarfa(&["synth", "--like", "tiny", "--out", out]), 2, "is not empty");
}

#[test]
fn the_selftest_compares_every_level_that_is_here() {
    let found = json(&["selftest", "--quick", "--device", "cpu"]);
    assert_eq!(found["equal"], true);
    let rows = found["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), 3);
    let levels = numerics::SimdLevel::available().len();
    let ran: Vec<_> = rows.iter().filter(|row| row["available"] == true).collect();
    assert_eq!(ran.len(), levels);
    assert!(ran.iter().all(|row| row["compared"] == 47));
}

#[test]
fn the_selftest_says_when_there_is_no_gpu() {
    if numerics::cuda::Gpu::driver().is_ok() {
        eprintln!("skipped: there is a GPU");
        return;
    }
    let found = json(&["selftest", "--quick"]);
    let rows = found["rows"].as_array().expect("a list");
    let missing: Vec<_> = rows.iter().filter(|row| row["device"] == "cuda").collect();
    assert_eq!(missing.len(), 1);
    assert_eq!(missing[0]["available"], false);
}
