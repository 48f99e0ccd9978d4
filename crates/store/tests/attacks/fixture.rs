//! The small valid checkpoint that is attacked, and the tools to spoil it.

use std::fs;
use std::path::Path;

use safetensors::Dtype as Stored;
use safetensors::tensor::TensorView;
use store::{Checkpoint, CheckpointError};

pub const CONFIG: &str = "config.json";
pub const INDEX: &str = "model.safetensors.index.json";
pub const A: &str = "model-00001-of-00002.safetensors";
pub const B: &str = "model-00002-of-00002.safetensors";

/// Two shards: A holds `a` [2,3] and `b` [4], B holds `c` [1]; all BF16.
pub fn write_valid(dir: &Path) {
    fs::write(dir.join(CONFIG), r#"{"model_type": "attacked"}"#).unwrap();
    fs::write(dir.join(A), shard(&[("a", &[2, 3]), ("b", &[4])])).unwrap();
    fs::write(dir.join(B), shard(&[("c", &[1])])).unwrap();
    write_index(dir, &[("a", A), ("b", A), ("c", B)]);
}

pub fn shard(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let zeros = [0u8; 64];
    let view = |shape: &[usize]| {
        let bytes = 2 * shape.iter().product::<usize>();
        TensorView::new(Stored::BF16, shape.to_vec(), &zeros[..bytes]).unwrap()
    };
    safetensors::serialize(tensors.iter().map(|(name, shape)| (*name, view(shape))), None).unwrap()
}

pub fn write_index(dir: &Path, shard_of: &[(&str, &str)]) {
    let entries: Vec<String> =
        shard_of.iter().map(|(tensor, shard)| format!("{tensor:?}: {shard:?}")).collect();
    let json = format!("{{\"metadata\": {{}},\n\"weight_map\": {{{}}}}}", entries.join(",\n"));
    fs::write(dir.join(INDEX), json).unwrap();
}

/// A file with that header, its length field right, and that many bytes of data.
pub fn write_header(path: &Path, header: &str, data_bytes: usize) {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data_bytes, 0);
    fs::write(path, file).unwrap();
}

pub fn entry(name: &str, shape: &str, begin: u64, end: u64) -> String {
    let info = format!(r#""dtype":"BF16","shape":{shape},"data_offsets":[{begin},{end}]"#);
    format!(r#""{name}":{{{info}}}"#)
}

/// Replaces shard B by one with these entries and data.
pub fn spoil_b(dir: &Path, entries: &[String], data_bytes: usize) {
    write_header(&dir.join(B), &format!("{{{}}}", entries.join(",")), data_bytes);
}

pub fn refusal(dir: &Path) -> String {
    let error = Checkpoint::open(dir).expect_err("the attack must be refused");
    let embedded = embed(dir).expect_err("the embedded attack must be refused too");
    assert_eq!(error.to_string(), embedded.to_string());
    error.to_string()
}

pub fn embed(dir: &Path) -> Result<Checkpoint, CheckpointError> {
    let files: Vec<(&'static str, &'static [u8])> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let name: &'static str = Box::leak(name.into_boxed_str());
            let bytes: &'static [u8] =
                Box::leak(fs::read(entry.path()).unwrap().into_boxed_slice());
            (name, bytes)
        })
        .collect();
    Checkpoint::from_static(&dir.display().to_string(), &files)
}
