//! Where the routed experts of a model lie, block by block: in a checkpoint's own files, or in a
//! store. A block is one projection of one expert: what is read, checked and used as a whole.

mod checksum;
mod digests;
mod in_place;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

pub use checksum::checksum;
pub use digests::{Digests, Found, Provenance, Tally};
pub use in_place::ExpertShape;

/// Which matrix of an expert.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Projection {
    /// `[2 * width, hidden]`: gate over up.
    GateUp,
    /// `[width, hidden]`.
    Gate,
    /// `[width, hidden]`.
    Up,
    /// `[hidden, width]`.
    Down,
}

impl Projection {
    /// As files and messages spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::GateUp => "gate_up",
            Self::Gate => "gate",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// One projection of one expert of one layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId {
    /// Index of the layer in the model, dense layers counted.
    pub layer: u32,
    /// Index of the expert in its layer.
    pub expert: u32,
    pub projection: Projection,
}

/// How the bytes of a block stand for its weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    Bf16,
    F32,
    /// Losslessly packed bf16 (see FORMAT.md).
    Packed,
}

/// Index into [`ExpertMap::files`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileIdx(pub u32);

/// Where a block lies and what it is.
#[derive(Clone, Debug)]
pub struct Block {
    pub id: BlockId,
    pub file: FileIdx,
    /// From the start of the file; aligned to nothing in a checkpoint used in place.
    pub offset_bytes: u64,
    /// Length in the file, padding excluded.
    pub stored_bytes: u64,
    pub encoding: Encoding,
    pub rows: usize,
    pub cols: usize,
    /// The checkpoint's tensor that it comes from, and its first row there, for messages.
    pub tensor: Arc<str>,
    pub first_row: usize,
}

/// A file that holds blocks.
#[derive(Clone, Debug)]
pub struct ExpertFile {
    pub path: PathBuf,
    /// What it was when the map was made; a reader refuses a file of another length.
    pub len_bytes: u64,
    /// The whole file, mapped, or a part of the program.
    pub bytes: Bytes,
    /// True where `bytes` is a part of the program and `path` only a name.
    pub embedded: bool,
}

/// All blocks of all routed experts.
#[derive(Clone, Debug, Default)]
pub struct ExpertMap {
    files: Vec<ExpertFile>,
    /// By layer, then by expert; a layer without routed experts has none.
    layers: Vec<Vec<Vec<Block>>>,
}

impl ExpertMap {
    /// Panics where a block is outside its file.
    pub fn new(files: Vec<ExpertFile>, layers: Vec<Vec<Vec<Block>>>) -> ExpertMap {
        for block in layers.iter().flatten().flatten() {
            let len = files[block.file.0 as usize].len_bytes;
            let end = block.offset_bytes.checked_add(block.stored_bytes);
            assert!(end.is_some_and(|end| end <= len), "{block:?} ends outside its file");
        }
        ExpertMap { files, layers }
    }

    pub fn files(&self) -> &[ExpertFile] {
        &self.files
    }

    pub fn file(&self, index: FileIdx) -> &ExpertFile {
        &self.files[index.0 as usize]
    }

    /// Layers of the model, those without routed experts counted.
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// Routed experts of a layer.
    pub fn expert_count(&self, layer: u32) -> usize {
        self.layers[layer as usize].len()
    }

    /// The two or three blocks of an expert, in the order of [`Projection`].
    pub fn blocks(&self, layer: u32, expert: u32) -> &[Block] {
        &self.layers[layer as usize][expert as usize]
    }

    /// Every block, by layer, expert and projection.
    pub fn all(&self) -> impl Iterator<Item = &Block> {
        self.layers.iter().flatten().flatten()
    }

    /// Stored bytes of an expert.
    pub fn expert_bytes(&self, layer: u32, expert: u32) -> u64 {
        self.blocks(layer, expert).iter().map(|b| b.stored_bytes).sum()
    }
}
