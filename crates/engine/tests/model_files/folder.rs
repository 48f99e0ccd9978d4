//! Checkpoints in temporary folders: read, changed, written, run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::generate::Session;
use engine::index::TokenId;
use engine::model::Model;
use numerics::{Cpu, SimdLevel};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;
use store::checkpoint::Checkpoint;
use tempfile::TempDir;

/// A prompt below the vocabulary (320) of the golden checkpoints.
pub const PROMPT: [u32; 9] = [3, 141, 59, 26, 53, 58, 97, 93, 238];

/// A tensor to write.
#[derive(Clone)]
pub struct Stored {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Stored {
    /// Overwrites an element of a bf16 tensor.
    pub fn put(&mut self, element: usize, value: f32) {
        assert_eq!(self.dtype, Dtype::BF16);
        let bits = numerics::round::store(value).to_le_bytes();
        self.bytes[2 * element..][..2].copy_from_slice(&bits);
    }
}

/// A checkpoint in memory.
#[derive(Clone)]
pub struct Folder {
    pub config: Value,
    pub tensors: BTreeMap<String, Stored>,
}

pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/golden").join(name)
}

impl Folder {
    /// A checkpoint of models/golden.
    pub fn read(name: &str) -> Folder {
        let mut folder = Folder { config: Value::Null, tensors: BTreeMap::new() };
        for entry in std::fs::read_dir(golden(name)).expect("a folder") {
            let path = entry.expect("an entry").path();
            let bytes = std::fs::read(&path).expect("a file");
            if path.ends_with("config.json") {
                folder.config = serde_json::from_slice(&bytes).expect("JSON");
            } else if path.extension().is_some_and(|e| e == "safetensors") {
                let file = SafeTensors::deserialize(&bytes).expect("safetensors");
                for (name, view) in file.iter() {
                    folder.add(name, view.dtype(), view.shape(), view.data().to_vec());
                }
            }
        }
        folder
    }

    pub fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) {
        self.tensors.insert(name.to_string(), Stored { dtype, shape: shape.to_vec(), bytes });
    }

    pub fn tensor(&mut self, name: &str) -> &mut Stored {
        self.tensors.get_mut(name).unwrap_or_else(|| panic!("no {name}"))
    }

    pub fn take(&mut self, name: &str) -> Stored {
        self.tensors.remove(name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// A safetensors file of the tensors that are asked for.
    pub fn file(&self, wanted: impl Fn(&str) -> bool) -> Vec<u8> {
        let views = self.tensors.iter().filter(|(name, _)| wanted(name)).map(|(name, t)| {
            (name, TensorView::new(t.dtype, t.shape.clone(), &t.bytes).expect("a tensor"))
        });
        safetensors::serialize(views, None).expect("a file")
    }

    /// Writes config.json and one safetensors file.
    pub fn write(&self) -> TempDir {
        self.write_as(&[("model.safetensors", self.file(|_| true))])
    }

    /// Writes config.json and these files.
    pub fn write_as(&self, files: &[(&str, Vec<u8>)]) -> TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        let config = self.config.to_string();
        std::fs::write(dir.path().join("config.json"), config).expect("writes");
        for (name, bytes) in files {
            std::fs::write(dir.path().join(name), bytes).expect("writes");
        }
        dir
    }

    /// The bits of the last position's logits after `PROMPT`, or the error's message.
    pub fn run(&self) -> Result<Vec<u32>, String> {
        run(self.write().path(), &PROMPT, SimdLevel::detect())
    }

    pub fn run_at(&self, level: SimdLevel) -> Result<Vec<u32>, String> {
        run(self.write().path(), &PROMPT, level)
    }
}

pub fn load(dir: &Path, level: SimdLevel) -> Result<Arc<Model>, String> {
    let checkpoint = Checkpoint::open(dir).map_err(|e| e.to_string())?;
    let cpu = Cpu::new(level, 2).expect("a level of this machine");
    Model::load(&checkpoint, cpu).map(Arc::new).map_err(|e| e.to_string())
}

/// The prompt in one chunk but its last token, which goes alone: both kinds of kernels run.
pub fn run(dir: &Path, prompt: &[u32], level: SimdLevel) -> Result<Vec<u32>, String> {
    let ids: Vec<TokenId> = prompt.iter().map(|id| TokenId(*id)).collect();
    let mut session = Session::new(load(dir, level)?, (ids.len() - 1).max(1));
    let logits = session.prompt(&ids).map_err(|e| e.to_string())?;
    Ok(logits.into_iter().map(f32::to_bits).collect())
}

/// The logits of an unchanged golden checkpoint.
pub fn unchanged(name: &str) -> Vec<u32> {
    run(&golden(name), &PROMPT, SimdLevel::detect()).expect("runs")
}

/// Refused, with all of these in the message.
pub fn refused(result: Result<Vec<u32>, String>, expected: &[&str]) {
    let message = result.expect_err("an error");
    for part in expected {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}
