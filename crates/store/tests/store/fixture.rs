//! A checkpoint of a few kilobytes, and stores made from it.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::json;
use store::Checkpoint;
use store::convert::{ConvertError, Disk, RealDisk, Report, Request, convert};
use store::experts::{ExpertMap, ExpertShape};
use store::jnf::{Store, StoreError};

pub const LAYERS: u32 = 3;
pub const EXPERTS: usize = 3;
const HIDDEN: usize = 32;
const WIDTH: usize = 16;

/// A checkpoint in a folder of its own, and room for stores beside it.
pub struct Fixture {
    pub folder: tempfile::TempDir,
    pub checkpoint: Checkpoint,
    pub map: ExpertMap,
}

/// How the experts of a layer lie in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Fused,
    Separate,
}

impl Fixture {
    pub fn new(layout: Layout) -> Fixture {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("source");
        fs::create_dir(&source).expect("a folder");
        let config = json!({ "model_type": "qwen3_moe", "_commit_hash": "abc" });
        fs::write(source.join("config.json"), config.to_string()).expect("config");
        fs::write(source.join("tokenizer.json"), "{}").expect("tokenizer");
        fs::write(source.join("model.safetensors"), safetensors(layout)).expect("weights");
        let checkpoint = Checkpoint::open(&source).expect("a checkpoint");
        let shape = ExpertShape { experts: EXPERTS, width: WIDTH, hidden: HIDDEN };
        // The first layer is dense.
        let layers: Vec<_> = (0..=LAYERS).map(|layer| (layer > 0).then_some(shape)).collect();
        let map = ExpertMap::in_place(&checkpoint, &layers).expect("experts");
        Fixture { folder, checkpoint, map }
    }

    pub fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    pub fn out(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn request(&self, out: &Path, pack: bool) -> Request<'_> {
        request(&self.checkpoint, &self.map, out, pack)
    }

    pub fn convert(&self, out: &Path, pack: bool, disk: &dyn Disk) -> Result<Report, ConvertError> {
        convert(&self.request(out, pack), disk, &mut |_| ControlFlow::Continue(()))
    }

    /// A complete store.
    pub fn store(&self, name: &str, pack: bool) -> PathBuf {
        let out = self.out(name);
        assert!(self.convert(&out, pack, &RealDisk).expect("a store").complete);
        out
    }
}

/// All layers, with two threads.
pub fn request<'a>(
    checkpoint: &'a Checkpoint,
    experts: &'a ExpertMap,
    out: &Path,
    pack: bool,
) -> Request<'a> {
    let (out, tool) = (out.to_path_buf(), "tarfa test".into());
    Request { checkpoint, experts, out, layers: None, pack, tool, threads: 2 }
}

/// Every file below a folder and its bytes, by relative path.
pub fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("below").to_path_buf();
                found.insert(name, fs::read(&path).expect("a file"));
            }
        }
    }
    found
}

/// Why a store does not open.
pub fn refusal(root: &Path) -> StoreError {
    Store::open(root).and_then(|store| store.check_dense()).expect_err("it must be refused")
}

fn safetensors(layout: Layout) -> Vec<u8> {
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![10, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
        ("model.layers.0.mlp.down_proj.weight".into(), vec![HIDDEN, WIDTH]),
    ];
    for layer in 1..=LAYERS {
        let p = format!("model.layers.{layer}.mlp");
        tensors.push((format!("{p}.gate.weight"), vec![EXPERTS, HIDDEN]));
        if layout == Layout::Fused {
            tensors.push((format!("{p}.experts.gate_up_proj"), vec![EXPERTS, 2 * WIDTH, HIDDEN]));
            tensors.push((format!("{p}.experts.down_proj"), vec![EXPERTS, HIDDEN, WIDTH]));
            continue;
        }
        for expert in 0..EXPERTS {
            for (name, shape) in
                [("gate", [WIDTH, HIDDEN]), ("up", [WIDTH, HIDDEN]), ("down", [HIDDEN, WIDTH])]
            {
                let name = format!("{p}.experts.{expert}.{name}_proj.weight");
                tensors.push((name, shape.to_vec()));
            }
        }
    }
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape) in tensors {
        let begin = data.len();
        data.extend(weights(begin, shape.iter().product()));
        let offsets = [begin, data.len()];
        let entry = json!({ "dtype": "BF16", "shape": shape, "data_offsets": offsets });
        header.insert(name, entry);
    }
    let header = serde_json::to_vec(&header).expect("plain data");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(data);
    bytes
}

/// Mostly small numbers, and now and then any pattern at all.
fn weights(seed: usize, count: usize) -> Vec<u8> {
    let mut state = seed as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as u16
    };
    let mut value = || match next() {
        any if any % 97 == 0 => next(),
        any => (any & 0x8000) | 0x3c00 | (next() & 0x01ff),
    };
    (0..count).flat_map(|_| value().to_le_bytes()).collect()
}
