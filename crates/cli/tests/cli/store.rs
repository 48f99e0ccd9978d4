//! `tarfa convert`, `tarfa verify`, and models run from a store.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use predicates::prelude::*;

use crate::{json, models, refused, tarfa};

pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A copy that may be spoilt.
pub fn copy(model: &str, to: &Path) -> PathBuf {
    let folder = to.join("model");
    fs::create_dir(&folder).expect("a folder");
    for entry in fs::read_dir(models(model)).expect("a model") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            fs::copy(&path, folder.join(path.file_name().expect("a name"))).expect("a copy");
        }
    }
    folder
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).expect("a file");
    bytes[at] ^= 1;
    fs::write(path, bytes).expect("a file");
}

/// Flips bits all over the weights of a copy.
pub fn damage_experts(model: &Path) {
    let files = fs::read_dir(model).expect("a folder").flatten().map(|entry| entry.path());
    for path in files.filter(|path| path.extension().is_some_and(|e| e == "safetensors")) {
        let len = fs::metadata(&path).expect("a file").len() as usize;
        (len / 4..len).step_by(len / 16).for_each(|at| flip(&path, at));
    }
}

#[test]
fn a_store_answers_as_the_folder_it_was_made_from() {
    for model in ["tiny-moe", "golden/qwen3_moe", "golden/qwen3_5_moe-vl"] {
        let folder = tempfile::tempdir().expect("a folder");
        let source = models(model);
        let logits = |model: &Path, more: &[&str]| {
            let mut args = vec!["logits", "--ids", "1,2,3,4,5", "--generate", "6", "--no-heat"];
            args.extend(["--model", text(model)]);
            json(&[&args[..], more].concat())
        };
        let expected = logits(&source, &[]);
        for (name, pack) in [("v1", &[][..]), ("v2", &["--pack"][..])] {
            let out = folder.path().join(name);
            let args = ["convert", "--model", text(&source), "--out", text(&out)];
            let report = json(&[&args[..], pack].concat());
            assert_eq!(report["complete"], true);
            for more in [
                &[][..],
                &["--ram-budget", "0"],
                &["--ram-budget", "100kB", "--io", "pread"],
                &["--resident-experts", "--io", "uring"],
            ] {
                let what = format!("{model}, {name}, {more:?}");
                assert_eq!(logits(&out, more), expected, "{what}");
            }
            let verify = ["convert", "--verify", text(&out), "--model", text(&source)];
            assert_eq!(json(&verify)["differences"], serde_json::json!([]));
            assert_eq!(json(&["inspect", "--model", text(&out)])["runs"], true);
            // Another file of the same length, under the right names.
            let extension = if pack.is_empty() { "bf16" } else { "packed" };
            flip(&out.join(format!("layers/01/down.{extension}")), 200);
            tarfa(&verify).assert().code(1).stdout(predicate::str::contains("layer 1, expert 0"));
            let logits = ["logits", "--ids", "1,2", "--ram-budget", "0", "--no-heat", "--model"];
            let refused = tarfa(&[&logits[..], &[text(&out), "--generate", "60"]].concat());
            crate::refused(refused, 2, "is damaged");
        }
    }
}

#[test]
fn a_folder_is_verified_renewed_and_guards_its_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = copy("golden/qwen3_moe", folder.path());
    let verify = ["verify", "--model", text(&model)];
    tarfa(&verify).assert().success().stdout(predicate::str::contains("all as it was written"));
    let run = ["run", "--ids", "1,2,3", "--max-tokens", "4", "--ram-budget", "0", "--no-heat"];
    let run = [&run[..], &["--model", text(&model)]].concat();
    let figures = json(&run);
    assert_eq!(figures["figures"]["weights"]["first_seen"], 0, "{figures}");
    damage_experts(&model);
    tarfa(&verify).assert().code(1).stdout(predicate::str::contains("XXH3-128: expected"));
    refused(tarfa(&run), 2, "is damaged");
    tarfa(&[&verify[..], &["--renew"]].concat()).assert().success();
    tarfa(&verify).assert().success();
    flip(&model.join(".tarfa/manifest.json"), 40);
    refused(tarfa(&verify), 2, "remove it");
    refused(tarfa(&run), 2, "remove it");
}

#[test]
fn a_conversion_that_was_killed_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, out) = (models("tiny-moe"), folder.path().join("store"));
    let args = ["convert", "--model", text(&source), "--out", text(&out), "--pack"];
    for delay_ms in [5, 20, 40, 60, 80, 120] {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin("tarfa"))
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis(delay_ms));
        child.kill().expect("it dies");
        child.wait().expect("it is gone");
        let complete = out.join("manifest.json").exists() && !out.join("conversion.json").exists();
        if out.join("manifest.json").exists() && !complete {
            let logits = tarfa(&["logits", "--ids", "1", "--model", text(&out)]);
            refused(logits, 2, "incomplete");
        }
    }
    assert_eq!(json(&args)["complete"], true);
    tarfa(&["convert", "--verify", text(&out), "--model", text(&source)]).assert().success();
}

#[test]
fn what_cannot_be_converted_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = models("golden/qwen3_moe");
    let out = folder.path().join("store");
    let check = |args: &[&str], expect: &str| {
        refused(tarfa(&[&["convert", "--model", text(&source)], args].concat()), 2, expect);
    };
    check(&[], "--out");
    check(&["--out", text(&out), "--layers", "2-99"], "the model has layers");
    check(&["--out", text(&out), "--layers", "x"], "invalid");
    fs::write(folder.path().join("note.txt"), "mine").expect("a file");
    check(&["--out", text(folder.path())], "not empty");
    let absent = folder.path().join("absent");
    refused(tarfa(&["convert", "--verify", text(&absent)]), 2, "not a store");
    refused(tarfa(&["verify", "--model", text(&absent)]), 2, "absent");
}
