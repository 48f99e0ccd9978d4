//! `tarfa sim` and `tarfa heat`.

use predicates::prelude::*;
use serde_json::Value;

use crate::{json, models, refused, tarfa};

const SMALL: [&str; 9] =
    ["sim", "--synthetic", "--layers", "4", "--experts", "32", "--tokens", "200", "--no-curve"];

#[test]
fn all_policies_stand_beside_the_optimum() {
    let found = json(&[&SMALL[..8], &["--policy", "all"]].concat());
    let rows = found["policies"].as_array().expect("a list");
    let names: Vec<_> = rows.iter().map(|row| row["policy"].as_str().expect("a name")).collect();
    assert_eq!(names, ["lru", "lfu", "lfru", "static"]);
    let rate = |row: &Value| row["hit_rate"].as_f64().expect("a rate");
    assert!(rows.iter().all(|row| rate(row) <= rate(&found["optimum"])));
    let curves = found["curve"]["policies"].as_array().expect("a list");
    assert_eq!(curves.len(), 5);
    tarfa(&[&SMALL[..8], &["--vram", "200MB", "--lookahead"]].concat())
        .assert()
        .success()
        .stdout(predicate::str::contains("made up [T]"))
        .stdout(predicate::str::contains("no tier for VRAM yet"))
        .stdout(predicate::str::contains("% cached"));
}

#[test]
fn a_saved_trace_gives_the_same_figures_and_a_hot_list() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace");
    let path = path.to_str().expect("UTF-8");
    let made = json(&[&SMALL[..], &["--save", path]].concat());
    let read = json(&["sim", "--trace", path, "--no-curve"]);
    assert_eq!(made, read);
    let out = folder.path().join("hotlist.json");
    let export = ["heat", "export", "--trace", path, "--out", out.to_str().expect("UTF-8")];
    tarfa(&export).assert().success();
    let list: Value = serde_json::from_slice(&std::fs::read(out).expect("written")).expect("JSON");
    assert_eq!(list["corpus"]["tokens"], 200);
    let counts = list["layers"][3]["counts"].as_array().expect("counts");
    assert_eq!(counts.iter().map(|c| c.as_u64().expect("a count")).sum::<u64>(), 200 * 8);
    assert_eq!(list["coverage"][3]["experts_per_layer"], 8);
}

#[test]
fn bad_traces_and_machines_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace");
    std::fs::write(&path, "something else altogether").expect("writes");
    let path = path.to_str().expect("UTF-8");
    refused(tarfa(&["sim", "--trace", path]), 2, "no trace of version 1");
    refused(tarfa(&["sim"]), 2, "--synthetic");
    refused(tarfa(&["sim", "--synthetic", "--ram", "8 parsecs"]), 2, "is no unit");
    refused(tarfa(&["sim", "--synthetic", "--disk", "0"]), 2, "more than 0");
    refused(tarfa(&["sim", "--synthetic", "--policy", "best"]), 2, "is no policy");
    let wide = ["sim", "--synthetic", "--experts", "4", "--top-k", "5"];
    refused(tarfa(&wide), 2, "--top-k is 5, expected 1 to the 4 experts");
}

#[test]
fn an_empty_ledger_is_shown_and_not_exported() {
    let cache = tempfile::tempdir().expect("a folder");
    let in_cache = |args: &[&str]| {
        let mut command = tarfa(args);
        command.env("XDG_CACHE_HOME", cache.path());
        command
    };
    let nothing = predicate::str::contains("nothing is known yet");
    in_cache(&["heat", "show"]).assert().success().stdout(nothing);
    let none = predicate::str::contains("there was none");
    in_cache(&["heat", "reset"]).assert().success().stdout(none);
    refused(in_cache(&["heat", "export"]), 2, "nothing is known yet; run the model first");
}

#[test]
fn a_damaged_ledger_is_set_aside_and_forgotten() {
    let cache = tempfile::tempdir().expect("a folder");
    let in_cache = |args: &[&str]| {
        let mut command = tarfa(args);
        command.env("XDG_CACHE_HOME", cache.path());
        command
    };
    let shown = in_cache(&["heat", "show", "--json"]).output().expect("runs").stdout;
    let shown: Value = serde_json::from_slice(&shown).expect("JSON");
    let path = std::path::PathBuf::from(shown["path"].as_str().expect("a path"));
    assert!(path.starts_with(cache.path()));
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
    std::fs::write(&path, "not a ledger").expect("writes");
    in_cache(&["heat", "show"])
        .assert()
        .success()
        .stderr(predicate::str::contains("it is no heat of this version"));
    assert!(!path.exists() && path.with_extension("set-aside").exists());
}

#[test]
fn a_mapped_file_that_is_cut_ends_with_a_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let from = models("golden/qwen3_moe");
    for entry in std::fs::read_dir(from).expect("a model") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).expect("a copy");
        }
    }
    let weights = folder.path().join("model-00001-of-00005.safetensors");
    let mut running = std::process::Command::new(assert_cmd::cargo::cargo_bin("tarfa"))
        .args(["logits", "--ids", "1,2,3", "--generate", "4000", "--no-heat", "--model"])
        .arg(folder.path())
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    std::thread::sleep(std::time::Duration::from_millis(300));
    let file = std::fs::OpenOptions::new().write(true).open(weights).expect("a file");
    file.set_len(4096).expect("it shrinks");
    let mut stderr = String::new();
    std::io::Read::read_to_string(running.stderr.as_mut().unwrap(), &mut stderr).expect("text");
    let code = running.wait().expect("it ends").code();
    let lost = code == Some(1) && stderr.contains("SIGBUS");
    let changed = code == Some(2) && stderr.contains("it was written to while it was in use");
    assert!(lost || changed, "{code:?}: {stderr}");
}
