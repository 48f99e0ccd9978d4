//! The routed experts of a checkpoint where they lie, fused or one tensor per expert.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::error::ConvertError;
use crate::checkpoint::{Checkpoint, CheckpointError, Dtype, Tensor};
use crate::experts::{
    Block, BlockId, Encoding, ExpertFile, ExpertMap, FileIdx, Projection,
};

/// Projections of a checkpoint that keeps every expert in tensors of its own.
const SEPARATE: [(Projection, &str); 3] = [
    (Projection::Gate, "gate_proj"),
    (Projection::Up, "up_proj"),
    (Projection::Down, "down_proj"),
];
/// Projections of a checkpoint that keeps all experts of a layer in one tensor.
const FUSED: [(Projection, &str); 2] =
    [(Projection::GateUp, "gate_up_proj"), (Projection::Down, "down_proj")];

/// Finds the experts of the layers that config.json counts.
///
/// Errors: `Checkpoint` for a tensor that is absent or of another type or shape.
pub fn experts_in_place(checkpoint: &Checkpoint) -> Result<ExpertMap, ConvertError> {
    let layer_count = checkpoint.text_config()["num_hidden_layers"].as_u64().unwrap_or(0);
    let mut finder = Finder::new(checkpoint);
    let layers: Result<Vec<_>, _> =
        (0..layer_count as u32).map(|layer| finder.layer(layer)).collect();
    Ok(ExpertMap::new(finder.files, layers?))
}

struct Finder<'a> {
    checkpoint: &'a Checkpoint,
    files: Vec<ExpertFile>,
    file_of: BTreeMap<PathBuf, FileIdx>,
}

impl Finder<'_> {
    fn new(checkpoint: &Checkpoint) -> Finder<'_> {
        let file = |shard: &crate::checkpoint::Shard| ExpertFile {
            path: checkpoint.shard_path(shard),
            len_bytes: shard.bytes.len() as u64,
            bytes: shard.bytes.clone(),
            embedded: checkpoint.folder().is_none(),
        };
        let files: Vec<ExpertFile> = checkpoint.shards().iter().map(file).collect();
        let index = |(at, file): (usize, &ExpertFile)| (file.path.clone(), FileIdx(at as u32));
        let file_of = files.iter().enumerate().map(index).collect();
        Finder { checkpoint, files, file_of }
    }

    fn layer(&mut self, layer: u32) -> Result<Vec<Vec<Block>>, ConvertError> {
        let prefix = format!("model.layers.{layer}.mlp.experts.");
        if self.checkpoint.find(&format!("{prefix}gate_up_proj")).is_some() {
            return self.fused(layer, &prefix);
        }
        let there = |e: &u32| self.checkpoint.find(&format!("{prefix}{e}.down_proj.weight"));
        let count = (0..).take_while(|expert| there(expert).is_some()).count() as u32;
        (0..count).map(|expert| self.separate(layer, expert, &prefix)).collect()
    }

    fn fused(&self, layer: u32, prefix: &str) -> Result<Vec<Vec<Block>>, ConvertError> {
        let mut experts: Vec<Vec<Block>> = Vec::new();
        for (projection, name) in FUSED {
            let tensor = self.tensor(&format!("{prefix}{name}"), 3)?;
            let (rows, cols) = (tensor.shape[1], tensor.shape[2]);
            experts.resize_with(tensor.shape[0], Vec::new);
            for (expert, blocks) in experts.iter_mut().enumerate() {
                let id = BlockId { layer, expert: expert as u32, projection };
                blocks.push(self.block(id, tensor, expert, rows, cols));
            }
        }
        Ok(experts)
    }

    fn separate(
        &self,
        layer: u32,
        expert: u32,
        prefix: &str,
    ) -> Result<Vec<Block>, ConvertError> {
        let one = |(projection, name): (Projection, &str)| {
            let tensor = self.tensor(&format!("{prefix}{expert}.{name}.weight"), 2)?;
            let id = BlockId { layer, expert, projection };
            Ok(self.block(id, tensor, 0, tensor.shape[0], tensor.shape[1]))
        };
        SEPARATE.into_iter().map(one).collect()
    }

    fn tensor(&self, name: &str, rank: usize) -> Result<&Tensor, ConvertError> {
        let found = self.checkpoint.find(name).filter(|tensor| tensor.shape.len() == rank);
        let expected = found.map_or_else(|| vec![0; rank], |tensor| tensor.shape.clone());
        let checked: Result<&Tensor, CheckpointError> = self.checkpoint.expect(name, &expected);
        Ok(checked?)
    }

    fn block(
        &self,
        id: BlockId,
        tensor: &Tensor,
        expert: usize,
        rows: usize,
        cols: usize,
    ) -> Block {
        let (encoding, element_bytes) = match tensor.dtype {
            Dtype::Bf16 => (Encoding::Bf16, 2),
            Dtype::F32 | Dtype::Other(_) => (Encoding::F32, 4),
        };
        let stored_bytes = (rows * cols * element_bytes) as u64;
        Block {
            id,
            file: self.file_of[&tensor.file],
            offset_bytes: tensor.offset + expert as u64 * stored_bytes,
            stored_bytes,
            encoding,
            rows,
            cols,
            tensor: Arc::from(tensor.name.as_str()),
            first_row: expert * rows,
        }
    }
}
