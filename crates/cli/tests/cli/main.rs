//! The program as a user runs it: output, files and exit codes.

mod bad_input;
mod chat;
mod gpu;
mod inspect;
mod logits;
mod receipts;
mod run;
mod store;
mod tiers;

use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

/// The program, not started yet.
fn tarfa(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("tarfa").expect("cargo built it");
    command.args(args);
    command
}

/// What it prints with `--json`.
fn json(args: &[&str]) -> Value {
    let output = tarfa(args).arg("--json").assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).expect("JSON")
}

/// Runs it and wants one line on stderr that begins with `error: ` and holds a text.
fn refused(mut command: Command, code: i32, expect: &str) {
    let output: Output = command.output().expect("starts");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.starts_with("error: "), "{stderr}");
    assert!(stderr.contains(expect), "{stderr:?} lacks {expect:?}");
    let usage = stderr.contains("For more information, try '--help'");
    assert!(usage || stderr.lines().count() == 1, "{stderr}");
}

/// A file or folder of the repository's models.
fn models(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(path)
}

/// What the oracle printed for the embedded model and one prompt.
fn oracle(prompt: &str) -> Value {
    let path = models("tiny-moe/reference/oracle.json");
    let json: Value = serde_json::from_slice(&std::fs::read(path).expect("oracle")).expect("JSON");
    json[prompt].clone()
}

/// Ids as `--ids` takes them.
fn ids(list: &Value) -> String {
    let ids: Vec<String> = list.as_array().expect("a list").iter().map(Value::to_string).collect();
    ids.join(",")
}
