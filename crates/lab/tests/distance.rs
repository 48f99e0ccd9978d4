//! The logits are as near to float64 as a bf16 implementation can be expected to be.

use std::path::{Path, PathBuf};

use lab::golden::{DistanceReport, distance, greedy_agreement};
use numerics::Cpu;
use store::checkpoint::Checkpoint;

/// Our error may be this many times the one of the reference implementation in bf16.
const RATIO_MAX: f64 = 1.5;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

fn measure(folder: &str, reference: &str) -> DistanceReport {
    let folder = models().join(folder);
    let checkpoint = Checkpoint::open(&folder).expect("opens");
    let cpu = Cpu::detect().expect("threads");
    let report = distance(&checkpoint, &folder.join(reference), cpu).expect("runs");
    println!("{report}");
    report
}

fn check(report: &DistanceReport) {
    assert!(report.error_sum > 0.0, "float64 itself is no test");
    assert!(report.ratio <= RATIO_MAX, "{report}");
    assert_eq!(report.argmax_equal, report.positions, "{report}");
}

#[test]
fn golden_checkpoints_are_near_float64() {
    for name in ["qwen3_5_moe-text", "qwen3_5_moe-vl", "qwen3_moe"] {
        let report = measure(&format!("golden/{name}"), "reference.npz");
        assert_eq!(report.prompts.len(), 4);
        assert_eq!(report.float64, "logits_f64");
        check(&report);
    }
}

#[test]
fn tiny_moe_is_near_float64() {
    let report = measure("tiny-moe", "reference/reference.npz");
    assert_eq!(report.prompts.len(), 6);
    assert_eq!(report.float64, "logits_strict64");
    check(&report);
}

#[test]
fn tiny_moe_chooses_the_greedy_tokens_of_float64() {
    let folder = models().join("tiny-moe");
    let checkpoint = Checkpoint::open(&folder).expect("opens");
    let reference = folder.join("reference/reference.npz");
    let report = greedy_agreement(&checkpoint, &reference, Cpu::detect().expect("threads"));
    let report = report.expect("runs");
    println!("{report}");
    assert_eq!(report.prompts.len(), 6);
    for p in &report.prompts {
        assert_eq!(p.tokens, 64);
        // The step at which bf16 leaves float64 too: two logits are nearly equal there.
        let expected = (p.prompt == 3).then_some(5);
        assert_eq!(p.first_difference, expected, "prompt {}", p.prompt);
    }
}
