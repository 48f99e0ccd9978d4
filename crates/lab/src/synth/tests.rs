use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::bf16;
use serde_json::Value;
use sha2::{Digest, Sha256};
use store::{Checkpoint, Tensor};

use super::quantile::normal_quantile;
use super::random::{BlockId, Fill, Normals};
use super::write::{Folder, missing_bytes};
use super::{Shape, SynthReport, SynthSpec, presets, synthesize};

fn spec(out: &Path) -> SynthSpec {
    let out = out.join("model");
    let (layers, experts, hidden) = (Some(2), None, None);
    SynthSpec { like: Shape::Tiny, layers, experts, hidden, seed: 7, skew: 0.0, out }
}

fn make(spec: &SynthSpec) -> (SynthReport, Checkpoint) {
    let (mut last, mut calls) = ((0, 0), 0);
    let report = synthesize(spec, &mut |done, total| (last, calls) = ((done, total), calls + 1));
    let report = report.unwrap();
    assert!(calls > 0);
    assert_eq!(last, (report.size_bytes, report.size_bytes), "progress ends at its total");
    (report, Checkpoint::open(&spec.out).unwrap())
}

fn values(tensor: &Tensor) -> Vec<f64> {
    let pairs = tensor.bytes.as_chunks::<2>().0;
    pairs.iter().map(|pair| bf16::from_le_bytes(*pair).to_f64()).collect()
}

fn rms(values: &[f64]) -> f64 {
    (values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64).sqrt()
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
    entries.map(|entry| (name(&entry), fs::read(entry.path()).unwrap())).collect()
}

/// The embedded model, made by the reference implementation, is the standard for names and shapes.
#[test]
fn tiny_has_the_tensors_and_the_config_of_the_tiny_model() {
    let folder = tempfile::tempdir().unwrap();
    let (report, made) = make(&SynthSpec { layers: None, ..spec(folder.path()) });
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-moe");
    let real = Checkpoint::open(&real).unwrap();
    let shapes = |checkpoint: &Checkpoint| -> BTreeMap<String, Vec<usize>> {
        let used = checkpoint.tensors().filter(|(name, _)| !name.starts_with("mtp."));
        used.map(|(_, tensor)| (tensor.name.clone(), tensor.shape.clone())).collect()
    };
    assert_eq!(shapes(&made), shapes(&real));
    assert_eq!(report.tensor_count, shapes(&real).len());
    assert_eq!(comparable(made.config()), comparable(real.config()));
}

/// What two configs must have in common, numbers as f64.
fn comparable(config: &Value) -> BTreeMap<String, String> {
    let differ = ["_name_or_path", "transformers_version", "mtp_num_hidden_layers"];
    let text = |value: &Value| match value.as_f64() {
        Some(number) => format!("{number}"),
        None => value.to_string().replace("10000000.0", "10000000"),
    };
    let entries = config.as_object().unwrap().iter();
    let kept = entries.filter(|(key, _)| !differ.contains(&key.as_str()));
    kept.map(|(key, value)| (key.clone(), text(value))).collect()
}

#[test]
fn neither_threads_nor_repetition_change_a_byte() {
    let made = [1, 3].map(|threads| {
        let folder = tempfile::tempdir().unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        // wide enough for a tensor of several blocks
        let spec = SynthSpec { hidden: Some(512), skew: 0.5, ..spec(folder.path()) };
        pool.install(|| make(&spec));
        files(&spec.out)
    });
    assert!(made[0] == made[1], "files differ");
    assert!(made[0].keys().all(|name| !name.ends_with(".partial")));
}

#[test]
fn few_layers_are_the_first_of_many() {
    let folder = tempfile::tempdir().unwrap();
    let few = SynthSpec { layers: Some(2), ..spec(&folder.path().join("few")) };
    let many = SynthSpec { layers: Some(5), ..spec(&folder.path().join("many")) };
    let ((_, few), (_, many)) = (make(&few), make(&many));
    for (name, tensor) in few.tensors() {
        assert!(many.find(name).unwrap().bytes == tensor.bytes, "{name} differs");
    }
    for (few, many) in few.shards()[..3].iter().zip(many.shards()) {
        assert!(few.bytes == many.bytes, "{} differs", few.file_name);
    }
}

#[test]
fn every_expert_layer_and_seed_is_different() {
    let folder = tempfile::tempdir().unwrap();
    let (_, one) = make(&spec(&folder.path().join("one")));
    let (_, other) = make(&SynthSpec { seed: 8, ..spec(&folder.path().join("other")) });
    let name = |layer: usize| format!("model.layers.{layer}.mlp.experts.down_proj");
    let tensors = [one.find(&name(0)), one.find(&name(1)), other.find(&name(0))];
    let mut experts: Vec<&[u8]> = tensors
        .iter()
        .flat_map(|tensor| tensor.unwrap().bytes.chunks_exact(192 * 64 * 2))
        .collect();
    experts.sort();
    experts.dedup();
    assert_eq!(experts.len(), 3 * 32);
}

#[test]
fn values_are_distributed_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let (_, made) = make(&SynthSpec { layers: Some(4), ..spec(folder.path()) });
    let all = |name: &str| values(made.find(name).unwrap());
    let close = |name: &str, sigma: f64| {
        let found = rms(&all(name));
        assert!((found / sigma - 1.0).abs() < 0.1, "{name}: {found}, expected {sigma}");
    };
    close("model.embed_tokens.weight", 1.0);
    close("lm_head.weight", 0.02);
    close("model.layers.1.mlp.experts.gate_up_proj", 0.02);
    close("model.layers.0.linear_attn.conv1d.weight", 0.3);
    close("model.layers.3.self_attn.q_proj.weight", 0.02);
    assert!(rms(&all("model.norm.weight")) < 0.03, "zero-centred");
    assert!(all("model.layers.0.linear_attn.norm.weight").iter().all(|&w| w == 1.0));
    assert!(all("model.layers.0.linear_attn.A_log").iter().all(|a| (0.0..2.79).contains(a)));
    for bias in all("model.layers.0.linear_attn.dt_bias") {
        let step = bias.exp().ln_1p();
        assert!((0.9e-3..1.02e-1).contains(&step), "{step}");
    }
}

#[test]
fn skew_changes_routers_alone_and_concentrates_picks() {
    let folder = tempfile::tempdir().unwrap();
    let (even, plain) = make(&spec(&folder.path().join("even")));
    let (uneven, skewed) = make(&SynthSpec { skew: 1.0, ..spec(&folder.path().join("uneven")) });
    assert!((even.top_quarter_share - 0.25).abs() < 0.04, "{}", even.top_quarter_share);
    // 8 of 32 are picked and half of all logits are negative, so the limit here is about 0.5
    assert!(uneven.top_quarter_share > 0.38, "{}", uneven.top_quarter_share);
    for (name, tensor) in plain.tensors() {
        let same = skewed.find(name).unwrap().bytes == tensor.bytes;
        assert_eq!(same, !name.ends_with("mlp.gate.weight"), "{name}");
    }
    let router = |checkpoint: &Checkpoint| {
        let all = values(checkpoint.find("model.layers.0.mlp.gate.weight").unwrap());
        all.chunks(192).map(rms).collect::<Vec<f64>>()
    };
    let normals = Normals::new(7, 1.0, &[]);
    for (expert, (plain, skewed)) in router(&plain).iter().zip(router(&skewed)).enumerate() {
        let factor = normals.expert_factor("model.layers.0.mlp.gate.weight", expert);
        assert!((skewed / plain / factor - 1.0).abs() < 0.01, "expert {expert}");
    }
}

#[test]
fn qwen3_moe_has_one_tensor_per_projection() {
    let folder = tempfile::tempdir().unwrap();
    let like = "qwen3-30b-a3b".parse().unwrap();
    let small =
        SynthSpec { experts: Some(8), hidden: Some(16), layers: Some(1), ..spec(folder.path()) };
    let (_, made) = make(&SynthSpec { like, ..small });
    made.expect("model.layers.0.mlp.experts.7.gate_proj.weight", &[768, 16]).unwrap();
    made.expect("model.layers.0.mlp.experts.7.down_proj.weight", &[16, 768]).unwrap();
    made.expect("model.layers.0.self_attn.q_proj.weight", &[32 * 128, 16]).unwrap();
    made.expect("model.layers.0.mlp.gate.weight", &[8, 16]).unwrap();
    let norm = made.expect("model.layers.0.self_attn.q_norm.weight", &[128]).unwrap();
    assert!(values(norm).iter().all(|&w| w == 1.0));
    assert_eq!(made.config()["num_local_experts"], 8);
    assert_eq!(made.config()["norm_topk_prob"], true);
}

/// Billions of parameters: what the models' names promise.
#[test]
fn true_shapes_have_true_sizes() {
    let billions = |name: &str| {
        let dimensions = name.parse::<Shape>().unwrap().dimensions();
        let plans = super::tensors::shard_plans(&dimensions);
        plans.iter().map(|plan| plan.value_count()).sum::<u64>() as f64 / 1e9
    };
    assert_eq!(presets().len(), 4);
    let sizes: Vec<f64> = presets().iter().map(|name| billions(name)).collect();
    let expected = [122.1, 34.7, 30.5, 0.01236];
    for (found, expected) in sizes.iter().zip(expected) {
        assert!((found / expected - 1.0).abs() < 0.01, "{sizes:?}");
    }
}

fn refused(spec: &SynthSpec, words: &str) {
    let message = format!("{:#}", synthesize(spec, &mut |_, _| {}).unwrap_err());
    assert!(message.contains(words), "no {words:?} in: {message}");
}

#[test]
fn what_cannot_be_made_is_refused_before_a_byte_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let base = spec(folder.path());
    refused(&SynthSpec { experts: Some(7), ..base.clone() }, "expected at least 8");
    refused(&SynthSpec { layers: Some(0), ..base.clone() }, "layers");
    refused(&SynthSpec { hidden: Some(0), ..base.clone() }, "hidden");
    refused(&SynthSpec { skew: f64::NAN, ..base.clone() }, "skew");
    refused(&SynthSpec { skew: -1.0, ..base.clone() }, "skew");
    let huge = SynthSpec { like: Shape::Qwen35Moe122b, layers: Some(10_000), ..base.clone() };
    refused(&huge, "missing; free that much");
    assert!(!base.out.exists());
    fs::create_dir(&base.out).unwrap();
    fs::write(base.out.join("mine"), "mine").unwrap();
    refused(&base, "is not empty");
    assert_eq!(files(&base.out).len(), 1, "what was there stays");
    assert!("gpt".parse::<Shape>().unwrap_err().to_string().contains("qwen3.5-35b-a3b"));
}

#[test]
fn the_space_that_is_missing() {
    let spare = 64 << 20;
    assert_eq!(missing_bytes(1000, 1000 + spare), None);
    assert_eq!(missing_bytes(1000, 999 + spare), Some(1));
    assert_eq!(missing_bytes(u64::MAX, 0), Some(u64::MAX));
}

#[test]
fn an_error_half_way_leaves_nothing() {
    let outer = tempfile::tempdir().unwrap();
    let path = outer.path().join("model");
    let mut folder = Folder::create(&path, 1).unwrap();
    folder.write_json("config.json", &Value::Null).unwrap();
    fs::create_dir(path.join("model.safetensors.index.json")).unwrap(); // the rename must fail
    folder.write_json("model.safetensors.index.json", &Value::Null).unwrap_err();
    fs::remove_dir(path.join("model.safetensors.index.json")).unwrap();
    assert_eq!(files(&path).len(), 2);
    drop(folder);
    assert!(!path.exists());
}

/// A crash before the end leaves shards, but no config.json: nothing opens that.
#[test]
fn shards_without_a_config_do_not_open() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path());
    make(&spec);
    fs::remove_file(spec.out.join("config.json")).unwrap();
    fs::remove_file(spec.out.join("model.safetensors.index.json")).unwrap();
    assert!(Checkpoint::open(&spec.out).is_err());
}

#[test]
fn quantiles_of_the_normal_distribution() {
    let check = |probability: f64, expected: f64| {
        let found = normal_quantile(probability);
        assert!((found - expected).abs() <= 1e-14 * expected.abs(), "{probability}: {found}");
    };
    check(0.5, 0.0);
    check(0.75, QUARTILE);
    check(0.25, -QUARTILE);
    check(0.975, 1.959_963_984_540_054);
    check(0.5 / 65536.0, -4.324_919_040_826_044);
}

const QUARTILE: f64 = 0.674_489_750_196_081_7;

/// Pins every value that can ever be drawn, and the key derivation, for good: checkpoints made on
/// two machines must be the same. The first hash is not from this code but from Python's
/// `statistics.NormalDist().inv_cdf`, times 0.02, rounded to bf16 in rationals.
#[test]
fn the_bytes_of_a_seed_stay_the_same() {
    let normals = Normals::new(1, 0.0, &[0.02]);
    let mut block = vec![0; 4096];
    let id = BlockId { tensor: "a", expert: 2, block: 3 };
    normals.fill(Fill::normal(0.02), id, &mut block);
    let hash = |bytes: &[u8]| -> String {
        Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    assert_eq!(hash(&normals.table_bytes(0.02)), TABLE_SHA256);
    assert_eq!(hash(&block), BLOCK_SHA256);
}

const TABLE_SHA256: &str = "b4e6a737e84895315c638ccb08087ff7e80c16464b17458713964ca3e6284160";
const BLOCK_SHA256: &str = "d11b656b6e4a20a4d6c6806fa784778ba1d0ecdffaad975407de5c152fbdc4a4";
