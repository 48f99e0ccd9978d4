//! `manifest.json` and `index.json`: what a store holds, as FORMAT.md says.

use serde::{Deserialize, Deserializer, Serialize};

use super::hash::{FastSum, Sha256Hash};
use crate::experts::{BlockId, Encoding, Projection};

/// How the experts of a store are stored; decides its version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredAs {
    /// Version 1: bf16 as the checkpoint has it.
    Bf16,
    /// Version 2: packed where that is smaller, else bf16.
    Packed,
}

impl StoredAs {
    /// Version of the format.
    pub fn version(self) -> u64 {
        match self {
            Self::Bf16 => 1,
            Self::Packed => 2,
        }
    }

    /// What data files end in.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Packed => "packed",
        }
    }
}

/// `manifest.json`: every field is mandatory, and `null` only where it says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub format: String,
    pub version: u64,
    /// What began the store: name and version.
    pub tool: String,
    /// Names the conversion: every layer's index repeats it.
    pub conversion: Sha256Hash,
    /// False until everything is there.
    pub complete: bool,
    pub encoding: StoredAs,
    pub model: ModelEntry,
    pub source: SourceEntry,
    /// Of tokenizer.json; `null` where the checkpoint has none.
    #[serde(deserialize_with = "nullable")]
    pub tokenizer_sha256: Option<Sha256Hash>,
    /// Files that hold no weights, copied as they are.
    pub files: Vec<FileEntry>,
    /// Files of all weights but the routed experts.
    pub dense: Vec<DenseEntry>,
    /// Layers that are there, in order.
    pub layers: Vec<LayerEntry>,
}

/// The model and the shapes of its experts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    pub model_type: String,
    /// `_commit_hash` of config.json; `null` where it has none.
    #[serde(deserialize_with = "nullable")]
    pub revision: Option<String>,
    /// Of the experts' weights: `BF16`.
    pub dtype: String,
    pub layer_count: u32,
    /// Layers that have routed experts.
    pub expert_layers: Vec<ExpertLayer>,
}

/// The routed experts of one layer.
///
/// Shapes: gate_up `[2 * width, hidden]`, down `[hidden, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertLayer {
    pub layer: u32,
    pub experts: u32,
    pub hidden: u64,
    pub width: u64,
}

/// The checkpoint that was converted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceEntry {
    /// `Checkpoint::sha256_fingerprint`.
    pub fingerprint: Sha256Hash,
    pub files: Vec<SourceFileEntry>,
}

/// One safetensors file of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceFileEntry {
    pub name: String,
    pub size_bytes: u64,
    pub header_sha256: Sha256Hash,
    /// Over the hashes of all weights taken from it; `null` until the store is complete.
    #[serde(deserialize_with = "nullable")]
    pub used_sha256: Option<Sha256Hash>,
}

/// A file of the store and what it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    pub name: String,
    pub size_bytes: u64,
    pub sha256: Sha256Hash,
}

/// A file below `dense/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseEntry {
    pub name: String,
    pub size_bytes: u64,
    pub sha256: Sha256Hash,
    /// XXH3-128 of the whole file, seed 0: quick enough to be compared at every start.
    pub xxh3: FastSum,
    pub header_sha256: Sha256Hash,
    pub tensors: Vec<DenseTensor>,
}

/// A tensor of it, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseTensor {
    pub name: String,
    pub sha256: Sha256Hash,
    pub source: SourcePiece,
}

/// A layer that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerEntry {
    pub layer: u32,
    /// Of the whole index.json.
    pub index_sha256: Sha256Hash,
}

/// `layers/NN/index.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerIndex {
    pub format: String,
    pub version: u64,
    pub conversion: Sha256Hash,
    pub shape: ExpertLayer,
    /// gate_up, then down.
    pub files: Vec<FileEntry>,
    /// All of gate_up by expert, then all of down.
    pub blocks: Vec<BlockEntry>,
}

/// One projection of one expert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockEntry {
    pub expert: u32,
    pub projection: StoredProjection,
    /// From the start of its file, a multiple of `BLOCK_ALIGN_BYTES`.
    pub offset: u64,
    /// Padding excluded.
    pub stored_bytes: u64,
    pub encoding: StoredAs,
    /// Of the stored bytes.
    pub sha256: Sha256Hash,
    /// `experts::checksum` of the stored bytes.
    pub xxh3: FastSum,
    /// Of the weights in bf16, as the checkpoint has them.
    pub weights_sha256: Sha256Hash,
    /// Where the checkpoint has them: one piece, or gate and up.
    pub source: Vec<SourcePiece>,
}

/// Bytes of a checkpoint's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourcePiece {
    pub file: String,
    pub tensor: String,
    pub offset: u64,
    pub size_bytes: u64,
}

/// The projections that a store keeps apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredProjection {
    GateUp,
    Down,
}

impl StoredProjection {
    pub const ALL: [StoredProjection; 2] = [Self::GateUp, Self::Down];

    /// The data file's name without its extension.
    pub fn stem(self) -> &'static str {
        match self {
            Self::GateUp => "gate_up",
            Self::Down => "down",
        }
    }

    pub fn projection(self) -> Projection {
        match self {
            Self::GateUp => Projection::GateUp,
            Self::Down => Projection::Down,
        }
    }
}

impl ExpertLayer {
    /// Rows and columns of a projection.
    pub fn rows_cols(&self, projection: StoredProjection) -> (u64, u64) {
        match projection {
            StoredProjection::GateUp => (2 * self.width, self.hidden),
            StoredProjection::Down => (self.hidden, self.width),
        }
    }

    /// Bytes of a projection in bf16.
    pub fn weights_bytes(&self, projection: StoredProjection) -> u64 {
        let (rows, cols) = self.rows_cols(projection);
        2 * rows * cols
    }
}

impl BlockEntry {
    pub fn id(&self, layer: u32) -> BlockId {
        BlockId { layer, expert: self.expert, projection: self.projection.projection() }
    }

    pub fn expert_encoding(&self) -> Encoding {
        match self.encoding {
            StoredAs::Bf16 => Encoding::Bf16,
            StoredAs::Packed => Encoding::Packed,
        }
    }
}

impl Manifest {
    /// Layers that must be there and are not, in order.
    pub fn missing_layers(&self) -> Vec<u32> {
        let there = |layer: u32| self.layers.iter().any(|entry| entry.layer == layer);
        let needed = self.model.expert_layers.iter().map(|shape| shape.layer);
        needed.filter(|layer| !there(*layer)).collect()
    }
}

/// An `Option` that may be `null` but not absent.
fn nullable<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer)
}
