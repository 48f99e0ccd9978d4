//! `--device cuda:0`. Skipped, saying so, where there is no GPU; what a GPU suffers only on the
//! emulated one of .ci/run, which can be told to.

use assert_cmd::Command;
use numerics::cuda::{Gpu, GpuError};
use predicates::prelude::*;

use crate::{json, models, refused, tarfa};

/// Whether there is a GPU, and whether it is the emulated one.
fn gpu() -> (bool, bool) {
    match Gpu::open(0, None) {
        Ok(gpu) => (true, gpu.info().name == "tarfa emulator"),
        Err(GpuError::NoDriver | GpuError::NoDevice) => (false, false),
        Err(other) => panic!("a GPU that cannot be used: {other}"),
    }
}

fn is_here(wants_emulator: bool) -> bool {
    let (here, emulated) = gpu();
    let good = here && (emulated || !wants_emulator);
    if !good {
        eprintln!("skipped: no {}GPU here", if wants_emulator { "emulated " } else { "" });
    }
    good
}

const STORY: [&str; 4] = ["run", "--max-tokens", "8", "Once upon a time"];

fn on_gpu(more: &[&str]) -> Command {
    tarfa(&[&STORY[..], &["--device", "cuda:0"], more].concat())
}

#[test]
fn the_selftest_replays_the_golden_hashes() {
    if !is_here(false) {
        return;
    }
    let found = json(&["selftest", "--quick", "--device", "cuda:0"]);
    assert_eq!(found["equal"], true);
    let rows = found["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    // 4 + 10 + 21 positions and 3 * 4 tokens.
    assert!(rows.iter().all(|row| row["device"] == "cuda:0" && row["compared"] == 47));
}

#[test]
fn what_cannot_be_used_is_refused_in_words() {
    if !is_here(true) {
        return;
    }
    let check = |variable: &str, value: &str, expect: &str| {
        let mut command = on_gpu(&[]);
        command.env(format!("TARFA_EMULATOR_{variable}"), value);
        refused(command, 2, expect);
    };
    check("DRIVER", "11040", "supports CUDA 11.4, the kernels need 11.8");
    check("DEVICES", "0", "it sees no GPU");
    check("CAPABILITY", "7.0", "need 7.5 or newer");
    check("VRAM_MIB", "8", "cannot hold the dense weights");
    refused(tarfa(&["run", "--device", "cuda:7", "a"]), 2, "there is no cuda:7");
    refused(tarfa(&["selftest", "--device", "cuda:7"]), 2, "there is no cuda:7");
    refused(on_gpu(&["--vram-budget", "1MiB"]), 2, "5622784 bytes would do");
}

/// Wherever it is lost, what was printed before is the beginning of the answer.
#[test]
fn a_device_that_is_lost_ends_the_answer_and_makes_nothing_up() {
    if !is_here(true) {
        return;
    }
    let whole = tarfa(&STORY).output().expect("starts").stdout;
    let (mut lost, mut begun) = (0, 0);
    for kernels in [0, 1, 50, 300, 400, 500, 600, 1000] {
        let mut command = on_gpu(&["--vram-slots", "8"]);
        command.env("TARFA_EMULATOR_LOSE_AFTER", kernels.to_string());
        let output = command.output().expect("starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(whole.starts_with(output.stdout.trim_ascii_end()), "{kernels}: {output:?}");
        if output.status.code() == Some(1) {
            assert!(stderr.contains("the GPU was lost while"), "{kernels}: {stderr}");
            lost += 1;
            begun += u32::from(!output.stdout.trim_ascii().is_empty());
        } else {
            assert!(output.status.success(), "{kernels}: {stderr}");
        }
    }
    assert!(lost >= 6 && begun >= 1, "{lost} lost, {begun} of them in the middle of an answer");
}

#[test]
fn a_block_that_is_damaged_on_its_way_reaches_no_token() {
    if !is_here(true) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let model = crate::store::copy("golden/qwen3_moe", folder.path());
    tarfa(&["verify", "--model", crate::store::text(&model)]).assert().success();
    let run = |more: &[&str]| {
        let run = ["run", "--ids", "1,2,3", "--max-tokens", "4", "--ram-budget", "0", "--no-heat"];
        let device = ["--device", "cuda:0", "--vram-slots", "0", "--model"];
        tarfa(&[&run[..], &device[..], &[crate::store::text(&model)], more].concat())
    };
    for share in ["0", "0.5", "1", "auto"] {
        run(&["--cpu-experts", share]).assert().success();
    }
    crate::store::damage_experts(&model);
    for share in ["0", "0.5", "1", "auto"] {
        let mut command = run(&["--cpu-experts", share]);
        command.assert().stdout(predicate::str::is_empty());
        refused(command, 2, "is damaged");
    }
}

#[test]
fn shares_are_read_and_refused() {
    let bad = |text: &str| tarfa(&["run", "--cpu-experts", text, "a"]);
    refused(bad("2"), 2, "from 0 to 1");
    refused(bad("most"), 2, "or auto");
    assert!(models("tiny-moe").exists());
}
