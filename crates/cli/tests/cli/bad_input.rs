//! Bad input: exit code 2 and one message that says what is wrong and what to do.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::{models, refused, tarfa};

/// A copy of a small checkpoint without a tokenizer, to be damaged.
pub fn copy() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(models("golden/qwen3_moe")).expect("the checkpoint") {
        let from = entry.expect("an entry").path();
        let name = from.file_name().expect("a name");
        fs::copy(&from, folder.path().join(name)).expect("copies");
    }
    folder
}

/// Replaces a text in config.json.
pub fn edit_config(folder: &Path, from: &str, to: &str) {
    let path = folder.join("config.json");
    let text = fs::read_to_string(&path).expect("readable");
    assert!(text.contains(from), "{from}");
    fs::write(path, text.replace(from, to)).expect("writable");
}

fn shard(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("model-0000{number}-of-00005.safetensors"))
}

/// The first weight of lm_head becomes NaN.
fn spoil_head(folder: &Path) {
    for number in 1..=5 {
        let path = shard(folder, number);
        let mut bytes = fs::read(&path).expect("readable");
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
        if let Some(begin) = header["lm_head.weight"]["data_offsets"][0].as_u64() {
            let at = 8 + length + begin as usize;
            bytes[at..at + 2].copy_from_slice(&[0xc0, 0x7f]);
            fs::write(path, bytes).expect("writable");
            return;
        }
    }
    panic!("no lm_head.weight");
}

/// All tensors of a shard claim another type of the same size.
fn claim_f16(folder: &Path) {
    let path = shard(folder, 2);
    let mut bytes = fs::read(&path).expect("readable");
    let (from, to) = (b"\"BF16\"", b"\"F16\" ");
    for at in 0..bytes.len() - from.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
    fs::write(path, bytes).expect("writable");
}

fn truncate(folder: &Path) {
    let path = shard(folder, 3);
    let bytes = fs::read(&path).expect("readable");
    fs::write(path, &bytes[..bytes.len() - 100]).expect("writable");
}

#[test]
fn damaged_checkpoints_are_refused() {
    let check = |damage: &dyn Fn(&Path), expect: &str| {
        let folder = copy();
        damage(folder.path());
        let model = folder.path().to_str().expect("UTF-8");
        let args = ["logits", "--model", model, "--ids", "4,5,6"];
        refused(tarfa(&args), 2, expect);
    };
    let config =
        |from: &'static str, to: &'static str| move |folder: &Path| edit_config(folder, from, to);
    let remove = |name: &'static str| {
        move |folder: &Path| fs::remove_file(folder.join(name)).expect("removes")
    };
    check(&|folder| fs::remove_file(shard(folder, 4)).expect("removes"), "shard is missing");
    check(&remove("config.json"), "there is no config.json here");
    check(&truncate, "truncated: expected");
    check(&claim_f16, "dtype F16, but weights must be BF16 or F32");
    check(&spoil_head, "lm_head.weight holds NaN at row 0, column 0");
    check(&config("\"qwen3_moe\"", "\"gpt_oss\""), "known: qwen3_5_moe");
    check(&config("\"rope_type\": \"default\"", "\"rope_type\": \"yarn\""), "rope_type \"yarn\"");
    check(&config("\"hidden_size\": 64", "\"hidden_size\": 65"), "expected shape");
    check(&config("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4"), "no tensor model.");
    check(&config("{", "["), "bad JSON");
    check(
        &config("\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 2"),
        "3 positions are needed, the model has 2",
    );
}

#[test]
fn a_damaged_weight_ends_the_answer_with_an_error() {
    let folder = copy();
    spoil_head(folder.path());
    let model = folder.path().to_str().expect("UTF-8");
    let run = tarfa(&["run", "--model", model, "--ids", "4,5,6"]);
    refused(run, 2, "lm_head.weight holds NaN");
}

#[test]
fn senseless_requests_are_refused() {
    let check = |args: &[&str], expect: &str| refused(tarfa(args), 2, expect);
    check(&["run", ""], "the prompt is empty");
    check(&["run", "--ids", ""], "a token id is a whole number");
    check(&["run", "--ids", "1,x"], "a token id is a whole number");
    check(&["run"], "required");
    check(&["run", "--ids", "1", "text"], "cannot be used with");
    check(&["run", "--ids", "1,4096"], "token 4096 is outside the vocabulary of 4096");
    check(&["logits", "--ids", "70000"], "outside the vocabulary");
    check(&["run", "--max-tokens", "5000", "x"], "beyond the 2048 positions");
    check(&["run", "--max-tokens", "0", "x"], "at least 1");
    check(&["logits", "--generate", "5000", "x"], "5000 positions are needed");
    check(&["run", "--threads", "0", "x"], "at least 1");
    check(&["run", "--chunk", "0", "x"], "at least 1");
    check(&["run", "--top-p", "1.5", "x"], "top_p is 1.5, allowed: above 0, up to 1");
    check(&["run", "--temperature", "-1", "x"], "temperature is -1");
    check(&["run", "--logit-bias", "9999=1", "x"], "the vocabulary ends at 4096");
    check(&["run", "--logit-bias", "9", "x"], "expected ID=VALUE");
    check(&["run", "--model", "no/such/folder", "x"], "no/such/folder: not a folder");
    check(&["run", "--receipt", "no/such/folder/r.json", "x"], "the folder does not exist");
    check(&["logits", "--state-in", "no/such/state", "--ids", "1"], "no/such/state");
    check(&["synth", "--like", "gpt-7", "--out", "x"], "possible values: qwen3.5-122b-a10b");
    check(&["distance", "--model", "no/such/folder"], "not a folder");
    check(&["frobnicate"], "unrecognized subcommand");
}

#[test]
fn long_prompts_are_refused_before_any_work() {
    let ids = vec!["1"; 2049].join(",");
    let check = |command| {
        refused(tarfa(&[command, "--ids", &ids]), 2, "positions are needed, the model has 2048");
    };
    check("run");
    check("logits");
}

#[test]
fn a_checkpoint_without_a_tokenizer_says_what_to_do() {
    let model = models("golden/qwen3_moe");
    let model = model.to_str().expect("UTF-8");
    refused(tarfa(&["run", "--model", model, "text"]), 2, "give token ids with --ids");
    refused(tarfa(&["chat", "--model", model]), 2, "there is no tokenizer.json");
}

#[test]
fn a_state_of_another_model_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("state");
    let state = file.to_str().expect("UTF-8");
    tarfa(&["logits", "--ids", "1,2", "--state-out", state]).assert().success();
    let model = models("golden/qwen3_moe");
    let model = model.to_str().expect("UTF-8");
    let args = ["logits", "--model", model, "--ids", "3", "--state-in", state];
    refused(tarfa(&args), 2, "fingerprint is");
}
