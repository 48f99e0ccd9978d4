//! `tarfa run`.

use numerics::SimdLevel;
use predicates::prelude::*;
use serde_json::Value;

use crate::{json, tarfa};

const STORY: &str = "Once upon a time";

#[test]
fn it_prints_english_and_one_line_of_figures() {
    let figures = predicate::str::is_match(concat!(
        r"^4 tokens at [\d.]+ tok/s, then 40 at [\d.]+ tok/s; ",
        r"9\.0 MB/token from memory \(4\.7 MB experts, 4\.2 MB other\); ",
        r"transcript [0-9a-f]{64}\n$",
    ));
    tarfa(&["run", "--max-tokens", "40", STORY])
        .assert()
        .success()
        .stdout(predicate::str::starts_with(", there was a little girl named Lily. "))
        .stderr(figures.expect("a pattern"));
}

#[test]
fn no_way_to_compute_changes_a_bit() {
    let run = |more: &[&str]| {
        let args = [&["run", "--max-tokens", "30", "--temperature", "0.9", "--seed", "5"], more];
        json(&[args.concat().as_slice(), &["Tom had a red ball. One day, the ball"]].concat())
    };
    let expect = run(&[]);
    let check = |more: &[&str]| {
        let found = run(more);
        for key in ["transcript_sha256", "logits_sha256", "tokens", "text"] {
            assert_eq!(found[key], expect[key], "{more:?}: {key}");
        }
    };
    ["1", "2", "7"].iter().for_each(|threads| check(&["--threads", threads]));
    ["1", "3", "64"].iter().for_each(|chunk| check(&["--chunk", chunk]));
    SimdLevel::available().iter().for_each(|level| check(&["--simd", level.name()]));
}

#[test]
fn ids_and_text_are_the_same_prompt() {
    let text = json(&["run", "--max-tokens", "3", STORY]);
    assert_eq!(text["prompt"], crate::oracle("0")["prompt"]);
    let ids = json(&["run", "--max-tokens", "3", "--ids", &crate::ids(&text["prompt"])]);
    assert_eq!(ids["transcript_sha256"], text["transcript_sha256"]);
    assert_eq!(ids["text"], text["text"]);
}

#[test]
fn a_seed_is_an_answer() {
    let run = |seed| json(&["run", "--max-tokens", "12", "--seed", seed, STORY]);
    assert_eq!(run("1")["tokens"], run("1")["tokens"]);
    assert_ne!(run("1")["tokens"], run("2")["tokens"]);
}

#[test]
fn the_end_of_a_text_ends_the_answer_unless_ignored() {
    // 4093 ends a text; the bias makes it certain.
    let run = |more: &[&str]| {
        let args = ["run", "--max-tokens", "4", "--logit-bias", "4093=1000", STORY];
        json(&[&args, more].concat())
    };
    let ended = run(&[]);
    assert_eq!(ended["stop"], "end_of_text");
    assert_eq!(ended["tokens"], serde_json::json!([4093]));
    assert_eq!(ended["text"], "");
    let ignored = run(&["--ignore-eos"]);
    assert_eq!(ignored["stop"], "length");
    assert_eq!(ignored["tokens"].as_array().map(Vec::len), Some(4));
    assert_eq!(run(&["--ignore-eos", "--stop-at-eos"])["tokens"], ended["tokens"]);
}

#[test]
fn without_a_tokenizer_ids_come_out() {
    let model = crate::models("golden/qwen3_moe");
    let model = model.to_str().expect("UTF-8");
    let args = ["run", "--model", model, "--ids", "4,5,6", "--max-tokens", "3", "--ignore-eos"];
    let json: Value = json(&args);
    let ids = crate::ids(&json["tokens"]).replace(',', " ");
    tarfa(&args).assert().success().stdout(format!("{ids} \n"));
    assert_eq!(json["text"], Value::Null);
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("tarfa"))
        .args(["run", STORY])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert!(output.status.success());
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
