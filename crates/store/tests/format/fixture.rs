//! A tiny checkpoint with everything that a store can hold, and stores made from it.

use std::collections::BTreeMap;
use std::fs;
use std::ops::{ControlFlow, RangeInclusive};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use store::Checkpoint;
use store::convert::{ConvertError, RealDisk, Report, Request, convert};
use store::experts::{ExpertMap, ExpertShape};

pub const EXPERTS: usize = 3;
pub const HIDDEN: usize = 72;
pub const WIDTH: usize = 40;
/// Layers with routed experts, of three: fused, and one tensor per expert.
pub const LAYERS: [u32; 2] = [1, 2];
/// Its weights have every exponent, so that packing does not pay.
const WILD: usize = 1;
pub const CONFIG: &str = r#"{"model_type": "tiny", "_commit_hash": "c0ffee"}"#;
pub const SHARDS: [&str; 2] =
    ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

struct Tensor {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// The checkpoint's folder, and its tensors by name.
pub struct Fixture {
    folder: tempfile::TempDir,
    tensors: BTreeMap<String, Tensor>,
}

impl Fixture {
    pub fn new() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let mut fixture = Fixture { folder, tensors: BTreeMap::new() };
        fixture.add_dense();
        fixture.add_experts();
        fixture.write();
        fixture
    }

    pub fn folder(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    pub fn open(&self) -> Checkpoint {
        Checkpoint::open(&self.folder()).unwrap()
    }

    pub fn experts(&self, checkpoint: &Checkpoint) -> ExpertMap {
        let shape = Some(ExpertShape { experts: EXPERTS, width: WIDTH, hidden: HIDDEN });
        ExpertMap::in_place(checkpoint, &[None, shape, shape]).unwrap()
    }

    pub fn convert(
        &self,
        out: &Path,
        pack: bool,
        layers: Option<RangeInclusive<u32>>,
    ) -> Result<Report, ConvertError> {
        let checkpoint = self.open();
        let request = Request {
            checkpoint: &checkpoint,
            experts: &self.experts(&checkpoint),
            out: out.to_path_buf(),
            layers,
            pack,
            tool: "tarfa test".to_string(),
            threads: 2,
        };
        convert(&request, &RealDisk, &mut |_| ControlFlow::Continue(()))
    }

    /// A complete store of that version.
    pub fn store(&self, version: u64) -> PathBuf {
        let out = self.folder.path().join(format!("store-{version}"));
        assert!(self.convert(&out, version == 2, None).unwrap().complete);
        out
    }

    /// A store without its last layer.
    pub fn unfinished(&self) -> PathBuf {
        let out = self.folder.path().join("unfinished");
        assert!(!self.convert(&out, false, Some(0..=1)).unwrap().complete);
        out
    }

    pub fn bytes(&self, tensor: &str) -> &[u8] {
        &self.tensors[tensor].bytes
    }

    /// Gate_up and down of an expert, as the checkpoint has them.
    pub fn expert(&self, layer: u32, expert: usize) -> [Vec<u8>; 2] {
        let name = |rest: &str| format!("model.language_model.layers.{layer}.mlp.experts.{rest}");
        if layer == LAYERS[0] {
            return ["gate_up_proj", "down_proj"].map(|tensor| {
                let all = self.bytes(&name(tensor));
                let one = all.len() / EXPERTS;
                all[expert * one..][..one].to_vec()
            });
        }
        let part = |part: &str| self.bytes(&name(&format!("{expert}.{part}_proj.weight")));
        [[part("gate"), part("up")].concat(), part("down").to_vec()]
    }

    fn add_dense(&mut self) {
        let model = "model.language_model.";
        self.add(0, &format!("{model}embed_tokens.weight"), &[10, HIDDEN], tame(10 * HIDDEN, 1));
        self.add(1, "lm_head.weight", &[10, HIDDEN], tame(10 * HIDDEN, 2));
        self.add(1, &format!("{model}layers.2.mlp.gate.weight"), &[3, HIDDEN], tame(216, 3));
        self.add(0, "mtp.fc.weight", &[4], tame(4, 4));
        self.add(0, "model.visual.patch_embed.proj.weight", &[4], tame(4, 5));
        self.add(1, &format!("{model}layers.10.input_layernorm.weight"), &[3], tame(6, 6));
        let norm = format!("{model}layers.10.input_layernorm.weight");
        self.tensors.get_mut(&norm).unwrap().dtype = Dtype::F32;
    }

    fn add_experts(&mut self) {
        let weights = |expert: usize, count: usize, seed: u64| match expert {
            WILD => wild(count, seed),
            _ => tame(count, seed),
        };
        let all = |count: usize, seed: u64| -> Vec<u8> {
            (0..EXPERTS).flat_map(|e| weights(e, count, seed + e as u64)).collect()
        };
        let (one, fused) = (WIDTH * HIDDEN, "model.language_model.layers.1.mlp.experts.");
        let gate_up = [EXPERTS, 2 * WIDTH, HIDDEN];
        self.add(0, &format!("{fused}gate_up_proj"), &gate_up, all(2 * one, 10));
        self.add(1, &format!("{fused}down_proj"), &[EXPERTS, HIDDEN, WIDTH], all(one, 20));
        for expert in 0..EXPERTS {
            let shapes = [("gate", [WIDTH, HIDDEN]), ("up", [WIDTH, HIDDEN])];
            for (at, (part, shape)) in
                shapes.into_iter().chain([("down", [HIDDEN, WIDTH])]).enumerate()
            {
                let separate = "model.language_model.layers.2.mlp.experts";
                let name = format!("{separate}.{expert}.{part}_proj.weight");
                // one expert's gate and up lie in two files
                let shard = usize::from((expert, part) != (2, "up"));
                let seed = (100 * expert + at) as u64;
                self.add(shard, &name, &shape, weights(expert, one, seed));
            }
        }
    }

    fn add(&mut self, shard: usize, name: &str, shape: &[usize], bytes: Vec<u8>) {
        let tensor = Tensor { shard, dtype: Dtype::BF16, shape: shape.to_vec(), bytes };
        self.tensors.insert(name.to_string(), tensor);
    }

    fn write(&self) {
        let folder = self.folder();
        fs::create_dir(&folder).unwrap();
        for (name, text) in [
            ("config.json", CONFIG),
            ("tokenizer.json", "{}"),
            ("LICENSE", "free"),
            ("chat_template.jinja", "{{ messages }}"),
            (".hidden.json", "{}"),
            ("hotlist.json", "{}"),
            ("picture.png", ""),
        ] {
            fs::write(folder.join(name), text).unwrap();
        }
        for (at, file) in SHARDS.iter().enumerate() {
            let of_shard = self.tensors.iter().filter(|(_, tensor)| tensor.shard == at);
            let views = of_shard.map(|(name, tensor)| {
                let shape = tensor.shape.clone();
                (name, TensorView::new(tensor.dtype, shape, &tensor.bytes).unwrap())
            });
            fs::write(folder.join(file), safetensors::serialize(views, None).unwrap()).unwrap();
        }
    }
}

/// Weights as training leaves them, with an escape now and then.
fn tame(count: usize, seed: u64) -> Vec<u8> {
    let bits = |noise: u16| match noise % 97 {
        0 => noise & 0x8000,
        1 => 0x7f80 | (noise & 0x80ff),
        _ => (noise & 0x807f) | ((118 + (noise >> 7) % 8) << 7),
    };
    noise(count, seed).flat_map(|noise| bits(noise).to_le_bytes()).collect()
}

fn wild(count: usize, seed: u64) -> Vec<u8> {
    noise(count, seed).flat_map(u16::to_le_bytes).collect()
}

fn noise(count: usize, seed: u64) -> impl Iterator<Item = u16> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 40) as u16
    })
}
