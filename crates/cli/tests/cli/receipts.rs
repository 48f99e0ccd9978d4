//! Receipts, and `tarfa replay`.

use std::path::{Path, PathBuf};

use predicates::prelude::*;
use serde_json::{Value, json};

use crate::{json as run, refused, tarfa};

/// A receipt of a sampled answer.
fn make(folder: &Path) -> PathBuf {
    let file = folder.join("answer.json");
    let path = file.to_str().expect("UTF-8");
    let args = ["--temperature", "0.8", "--top-p", "0.95", "--seed", "7", "--max-tokens", "12"];
    let made = run(&[&["run", "--receipt", path, "The cat"], &args[..]].concat());
    let receipt: Value = read(&file);
    for key in ["prompt", "tokens", "logits_sha256", "transcript_sha256"] {
        assert_eq!(receipt[key], made[key], "{key}");
    }
    file
}

fn read(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).expect("readable")).expect("JSON")
}

fn replay(file: &Path) -> assert_cmd::Command {
    tarfa(&["replay", file.to_str().expect("UTF-8")])
}

#[test]
fn a_replay_finds_every_hash_again_on_any_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = make(folder.path());
    for more in [&["--threads", "1"][..], &["--chunk", "1"], &["--simd", "scalar"]] {
        replay(&file)
            .args(more)
            .assert()
            .success()
            .stdout(predicate::str::starts_with("equal: 12 tokens, "));
    }
    let names: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").collect();
    assert_eq!(names.len(), 1, "nothing but the receipt is left");
}

#[test]
fn hashes_of_prompt_positions_are_replayed_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("logits.json");
    let path = file.to_str().expect("UTF-8");
    tarfa(&["logits", "--generate", "3", "--receipt", path, "The cat"]).assert().success();
    replay(&file).assert().success().stdout(predicate::str::contains("2 hashes of prompt"));
    let mut receipt = read(&file);
    receipt["prompt_logits_sha256"][0] = receipt["prompt_logits_sha256"][1].clone();
    std::fs::write(&file, receipt.to_string()).expect("writable");
    refused(replay(&file), 1, "prompt position 0");
}

#[test]
fn whatever_is_tampered_with_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = make(folder.path());
    let receipt = read(&file);
    let check = |change: &dyn Fn(&mut Value), code, expect| {
        let mut changed = receipt.clone();
        change(&mut changed);
        std::fs::write(&file, changed.to_string()).expect("writable");
        refused(replay(&file), code, expect);
    };
    let zeros = "0".repeat(64);
    check(&|r| r["tokens"][4] = json!(1), 1, "token 4: chose");
    check(&|r| r["logits_sha256"][5] = json!(zeros), 1, "token 5: logits");
    check(&|r| r["transcript_sha256"] = json!(zeros), 1, "transcript");
    check(&|r| r["sampling"]["seed"] = json!(8), 1, "differs from the receipt");
    check(&|r| r["prompt"][0] = json!(1), 1, "token 0: logits");
    check(&|r| r["model"]["shards"][0]["bytes"] = json!(1), 1, "list of shards");
    check(&|r| r["model"]["fingerprint"] = json!(zeros), 2, "another checkpoint");
    check(&|r| r["numerics"] = json!("0"), 2, "numerics version");
    check(&|r| r["receipt"] = json!(99), 2, "receipt version 99");
    check(&|r| r["tokens"] = json!([]), 2, "0 tokens, but 12 logits hashes");
    check(&|r| r["prompt"] = json!([]), 2, "prompt is empty");
    check(&|r| r["prompt"][0] = json!(70_000), 2, "outside the vocabulary");
    // What has no effect on any bit may be changed.
    let mut changed = receipt.clone();
    changed["machine"]["threads"] = json!(64);
    std::fs::write(&file, changed.to_string()).expect("writable");
    replay(&file).assert().success();
}

#[test]
fn what_is_no_receipt_cannot_be_replayed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("other.json");
    refused(replay(&file), 2, "other.json");
    std::fs::write(&file, "{}").expect("writable");
    refused(replay(&file), 2, "no receipt of tarfa");
    std::fs::write(&file, "not JSON").expect("writable");
    refused(replay(&file), 2, "not JSON");
}

#[test]
fn a_chat_leaves_a_receipt_of_its_last_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("chat.json");
    let path = file.to_str().expect("UTF-8");
    tarfa(&["chat", "--receipt", path, "--max-tokens", "20"])
        .write_stdin("Hello!\nWhat is 2 plus 2?\n")
        .assert()
        .success();
    replay(&file).assert().success();
}
