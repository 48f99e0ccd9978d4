//! Checkpoints that must open: the tiny model of this repository, and every legal layout.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::Dtype as Stored;
use safetensors::tensor::TensorView;
use store::{Checkpoint, CheckpointError, Dtype, Part};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-moe")
}

#[test]
fn the_tiny_model_has_its_tensors() {
    let tiny = Checkpoint::open(&tiny()).unwrap();
    assert_eq!(tiny.shards().len(), 3);
    let embedding = tiny.expect("model.embed_tokens.weight", &[4096, 192]).unwrap();
    assert_eq!((embedding.dtype, embedding.bytes.len()), (Dtype::Bf16, 4096 * 192 * 2));
    let fused = tiny.expect("model.layers.0.mlp.experts.gate_up_proj", &[32, 128, 192]).unwrap();
    assert_eq!(fused.bytes.len(), 32 * 128 * 192 * 2);
    tiny.expect("model.layers.7.mlp.experts.down_proj", &[32, 192, 64]).unwrap();
    assert_eq!(tiny.text_config()["num_experts"], 32);
    assert!(tiny.file("tokenizer.json").unwrap().unwrap().starts_with(b"{"));
    assert!(tiny.file("absent.json").unwrap().is_none());
}

/// Every tensor's bytes are those of the file at its offset, and together they are all the bytes.
#[test]
fn offsets_point_into_the_files() {
    let tiny = Checkpoint::open(&tiny()).unwrap();
    let mut total_bytes = 0;
    for (name, tensor) in tiny.tensors() {
        let file = fs::read(&tensor.file).unwrap();
        let begin = tensor.offset as usize;
        assert_eq!(&tensor.bytes[..], &file[begin..begin + tensor.bytes.len()], "{name}");
        total_bytes += tensor.bytes.len() as u64;
    }
    let data = tiny.shards().iter().map(|shard| shard.bytes.len() as u64 - shard.header_bytes);
    assert_eq!(data.sum::<u64>(), total_bytes);
    assert_eq!(tiny.part_sizes().iter().map(|size| size.size_bytes).sum::<u64>(), total_bytes);
}

#[test]
fn parts_of_the_tiny_model() {
    let tiny = Checkpoint::open(&tiny()).unwrap();
    let sizes = tiny.part_sizes();
    let bytes = |part| sizes.iter().find(|size| size.part == part).map(|size| size.size_bytes);
    assert_eq!(bytes(Part::Experts), Some(8 * 32 * (128 * 192 + 192 * 64) * 2));
    assert_eq!(bytes(Part::Router), Some(8 * 32 * 192 * 2));
    assert_eq!(bytes(Part::Head), Some(4096 * 192 * 2));
    assert!(bytes(Part::Mtp).is_some());
    assert_eq!(bytes(Part::Other), None);
    assert_eq!(bytes(Part::Vision), None);
}

#[test]
fn a_tensor_that_is_not_as_expected() {
    let tiny = Checkpoint::open(&tiny()).unwrap();
    let absent = tiny.expect("model.layers.8.mlp.gate.weight", &[32, 192]).unwrap_err();
    assert!(matches!(absent, CheckpointError::TensorAbsent { .. }));
    let message = tiny.expect("model.norm.weight", &[193]).unwrap_err().to_string();
    assert!(message.contains("model-00002-of-00003.safetensors: tensor model.norm.weight"));
    assert!(message.contains("expected shape [193], found [192]"), "{message}");
}

/// A checkpoint of one file; `tensors` are (name, dtype, bytes of data).
fn single(dir: &Path, file: &str, tensors: &[(&str, Stored, usize)]) {
    let zeros = [0u8; 64];
    let view = |dtype: Stored, bytes: usize| {
        TensorView::new(dtype, vec![bytes * 8 / dtype.bitsize()], &zeros[..bytes]).unwrap()
    };
    let views = tensors.iter().map(|(name, dtype, bytes)| (*name, view(*dtype, *bytes)));
    fs::write(dir.join(file), safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn without_an_index_all_files_count() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    single(folder.path(), "model.safetensors", &[("a", Stored::BF16, 8)]);
    let one = Checkpoint::open(folder.path()).unwrap();
    single(folder.path(), "more.safetensors", &[("b", Stored::F32, 8), ("e", Stored::F32, 0)]);
    let two = Checkpoint::open(folder.path()).unwrap();
    let names = |checkpoint: &Checkpoint| {
        checkpoint.tensors().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&one), ["a"]);
    assert_eq!(names(&two), ["a", "b", "e"]);
    assert_eq!(two.expect("b", &[2]).unwrap().dtype, Dtype::F32);
    assert_ne!(one.sha256_fingerprint(), two.sha256_fingerprint());
}

#[test]
fn wrapped_names_are_known_by_their_canonical_ones() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"text_config": {"hidden_size": 4}, "hidden_size": 5}"#;
    fs::write(folder.path().join("config.json"), config).unwrap();
    let wrapped = "model.language_model.norm.weight";
    single(
        folder.path(),
        "model.safetensors",
        &[
            (wrapped, Stored::BF16, 8),
            ("model.visual.merger.norm.weight", Stored::BF16, 8),
            ("mtp.norm.weight", Stored::BF16, 8),
        ],
    );
    let wrapped_model = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(wrapped_model.find("model.norm.weight").unwrap().name, wrapped);
    assert!(wrapped_model.find(wrapped).is_none());
    assert_eq!(wrapped_model.text_config()["hidden_size"], 4);
    assert_eq!(wrapped_model.config()["hidden_size"], 5);
    let parts: Vec<Part> = wrapped_model.part_sizes().iter().map(|size| size.part).collect();
    assert_eq!(parts, [Part::Norm, Part::Mtp, Part::Vision]);
}

#[test]
fn other_dtypes_are_kept_but_are_no_weights() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    let tensors = [("sizes", Stored::I64, 16), ("half", Stored::F16, 4)];
    single(folder.path(), "model.safetensors", &tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.find("sizes").unwrap().dtype, Dtype::Other("I64"));
    let message = checkpoint.expect("half", &[2]).unwrap_err().to_string();
    assert!(message.contains("tensor half: dtype F16, but weights must be BF16 or F32"));
}

#[test]
fn the_fingerprint_covers_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    let fingerprint = || Checkpoint::open(folder.path()).unwrap().sha256_fingerprint();
    fs::write(&config, "{}").unwrap();
    single(folder.path(), "model.safetensors", &[("a", Stored::BF16, 8)]);
    let first = fingerprint();
    assert_eq!(first.len(), 64);
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    assert_eq!(fingerprint(), first, "the tokenizer is not covered");
    fs::write(&config, "{ }").unwrap();
    assert_ne!(fingerprint(), first, "config.json is covered byte by byte");
    fs::write(&config, "{}").unwrap();
    single(folder.path(), "model.safetensors", &[("b", Stored::BF16, 8)]);
    assert_ne!(fingerprint(), first, "headers are covered");
}

#[test]
fn embedded_files_open_like_a_folder() {
    static CONFIG: &[u8] = include_bytes!("../../../models/tiny-moe/config.json");
    static SHARD: &[u8] =
        include_bytes!("../../../models/tiny-moe/model-00003-of-00003.safetensors");
    let files: [(&'static str, &'static [u8]); 2] =
        [("config.json", CONFIG), ("model.safetensors", SHARD)];
    let embedded = Checkpoint::from_static("built-in", &files).unwrap();
    assert_eq!(embedded.label(), "built-in");
    let norm = embedded.expect("mtp.norm.weight", &[192]).unwrap();
    assert_eq!(norm.file, Path::new("built-in/model.safetensors"));
    assert_eq!(norm.bytes.as_ptr(), SHARD[norm.offset as usize..].as_ptr(), "no copy");
}
