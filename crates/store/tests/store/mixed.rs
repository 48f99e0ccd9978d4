//! A checkpoint of a few KB with every case that a store knows: a fused layer, one of separate
//! tensors, one without experts, weights that pack and weights that do not.

use std::collections::BTreeMap;
use std::fs;
use std::ops::{ControlFlow, RangeInclusive};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use store::Checkpoint;
use store::convert::{ConvertError, Disk, RealDisk, Report, Request, convert};
use store::experts::{ExpertMap, ExpertShape};

use crate::fixture::{files, request};

/// What `manifest.json` says made the fixtures.
pub const TOOL: &str = "tarfa fixture";
pub const SHARDS: [&str; 2] =
    ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
const EXPERTS: usize = 2;
const WIDTH: usize = 16;
const HIDDEN: usize = 32;

const CONFIG: &str =
    "{\"model_type\": \"fixture\", \"_commit_hash\": \"0123456789abcdef\", \"num_experts\": 2}\n";

/// The same numbers for ever.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u16 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 48) as u16
    }

    /// Bits of any kind: nothing to be packed.
    fn any(&mut self, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| self.next().to_le_bytes()).collect()
    }

    /// Any sign and mantissa, exponents of eight powers of two, as trained weights have them.
    fn trained(&mut self, count: usize) -> Vec<u8> {
        let bits = |noise: u16| noise & 0x807f | (0x74 + (noise >> 7 & 7)) << 7;
        (0..count).flat_map(|_| bits(self.next()).to_le_bytes()).collect()
    }
}

type Named = (String, Vec<usize>, Vec<u8>);

/// Writes the checkpoint; its bytes are the same every time.
pub fn write_checkpoint(dir: &Path) {
    let mut noise = Noise(1);
    let mut dense = |name: &str| (name.to_string(), vec![4, 8], noise.trained(32));
    let mut first: Vec<Named> = vec![
        dense("model.embed_tokens.weight"),
        dense("model.layers.0.mlp.gate.weight"),
        dense("model.layers.1.mlp.gate_proj.weight"),
    ];
    let mut second: Vec<Named> = vec![dense("lm_head.weight"), dense("mtp.fc.weight")];
    let mut fused = |rows: usize, cols: usize| {
        let mut bytes = noise.trained(rows * cols);
        bytes.extend(noise.any(rows * cols));
        (vec![EXPERTS, rows, cols], bytes)
    };
    let prefix = "model.layers.0.mlp.experts";
    let ((gate_up, gate_up_bytes), (down, down_bytes)) =
        (fused(2 * WIDTH, HIDDEN), fused(HIDDEN, WIDTH));
    first.push((format!("{prefix}.gate_up_proj"), gate_up, gate_up_bytes));
    first.push((format!("{prefix}.down_proj"), down, down_bytes));
    for expert in 0..EXPERTS {
        for (name, rows, cols) in
            [("gate_proj", WIDTH, HIDDEN), ("up_proj", WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)]
        {
            let name = format!("model.layers.2.mlp.experts.{expert}.{name}.weight");
            let shard = if name.contains("up_proj") { &mut first } else { &mut second };
            shard.push((name, vec![rows, cols], noise.trained(rows * cols)));
        }
    }
    fs::write(dir.join("config.json"), CONFIG).unwrap();
    fs::write(dir.join("tokenizer.json"), "{\"a\": \"tokenizer\"}\n").unwrap();
    let mut shard_of = BTreeMap::new();
    for (file, tensors) in SHARDS.into_iter().zip([&first, &second]) {
        fs::write(dir.join(file), shard(tensors)).unwrap();
        shard_of.extend(tensors.iter().map(|(name, ..)| (name.clone(), file)));
    }
    let index = serde_json::json!({"metadata": {}, "weight_map": shard_of});
    fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

fn shard(tensors: &[Named]) -> Vec<u8> {
    let view = |(name, shape, bytes): &'_ Named| {
        let bytes: &'static [u8] = Box::leak(bytes.clone().into_boxed_slice());
        (name.clone(), TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap())
    };
    safetensors::serialize(tensors.iter().map(view), None).unwrap()
}

/// A checkpoint with its experts found.
pub struct Source {
    pub checkpoint: Checkpoint,
    pub map: ExpertMap,
}

impl Source {
    /// The fixture, written into a folder.
    pub fn fixture(dir: &Path) -> Source {
        write_checkpoint(dir);
        Source::reopen(dir)
    }

    /// The fixture that is there already.
    pub fn reopen(dir: &Path) -> Source {
        let shape = Some(ExpertShape { experts: EXPERTS, width: WIDTH, hidden: HIDDEN });
        Source::open(dir, &[shape, None, shape])
    }

    fn open(dir: &Path, shapes: &[Option<ExpertShape>]) -> Source {
        let checkpoint = Checkpoint::open(dir).unwrap();
        let map = ExpertMap::in_place(&checkpoint, shapes).unwrap();
        Source { checkpoint, map }
    }

    pub fn request(&self, out: &Path, pack: bool) -> Request<'_> {
        Request { tool: TOOL.into(), ..request(&self.checkpoint, &self.map, out, pack) }
    }

    /// Converts on a given disk.
    pub fn convert_on(
        &self,
        disk: &dyn Disk,
        out: &Path,
        pack: bool,
    ) -> Result<Report, ConvertError> {
        convert(&self.request(out, pack), disk, &mut |_| ControlFlow::Continue(()))
    }

    pub fn convert(&self, out: &Path, pack: bool) -> Report {
        self.convert_on(&RealDisk, out, pack).unwrap()
    }

    pub fn convert_layers(
        &self,
        out: &Path,
        layers: RangeInclusive<u32>,
    ) -> Result<Report, ConvertError> {
        let request = Request { layers: Some(layers), ..self.request(out, true) };
        convert(&request, &RealDisk, &mut |_| ControlFlow::Continue(()))
    }
}

/// The same files with the same bytes; names what differs instead of printing it.
pub fn assert_same(found: &Path, expected: &Path, what: &str) {
    let (found, expected) = (files(found), files(expected));
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected), "{what}: other files");
    for (name, bytes) in &expected {
        assert!(&found[name] == bytes, "{what}: {} differs", name.display());
    }
}

/// In memory where the system has a place for that: thousands of syncs wait for no drive.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}
