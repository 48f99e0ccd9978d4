//! The routed experts of a checkpoint where they lie, fused or one tensor per expert.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Block, BlockId, Encoding, ExpertFile, ExpertMap, FileIdx, Projection};
use crate::checkpoint::{Checkpoint, CheckpointError, Dtype, Shard, Tensor};

/// What the routed experts of a layer are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpertShape {
    pub experts: usize,
    /// Rows of gate and of up.
    pub width: usize,
    /// Rows of down.
    pub hidden: usize,
}

impl ExpertMap {
    /// Finds the experts of every layer that has any.
    ///
    /// Shapes: fused `mlp.experts.gate_up_proj` [experts, 2 * width, hidden] and `.down_proj`
    /// [experts, hidden, width], or `mlp.experts.E.{gate,up,down}_proj.weight`.
    /// Errors: a tensor that is absent or of another type or shape.
    pub fn in_place(
        checkpoint: &Checkpoint,
        layers: &[Option<ExpertShape>],
    ) -> Result<ExpertMap, CheckpointError> {
        let finder = Finder::new(checkpoint);
        let layer = |(i, shape): (usize, &Option<ExpertShape>)| match shape {
            Some(shape) => finder.layer(i as u32, *shape),
            None => Ok(Vec::new()),
        };
        let layers = layers.iter().enumerate().map(layer).collect::<Result<Vec<_>, _>>()?;
        Ok(ExpertMap::new(finder.files, layers))
    }
}

struct Finder<'a> {
    checkpoint: &'a Checkpoint,
    files: Vec<ExpertFile>,
    file_of: BTreeMap<PathBuf, FileIdx>,
}

impl Finder<'_> {
    fn new(checkpoint: &Checkpoint) -> Finder<'_> {
        let file = |shard: &Shard| ExpertFile {
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

    fn layer(&self, layer: u32, shape: ExpertShape) -> Result<Vec<Vec<Block>>, CheckpointError> {
        let prefix = format!("model.layers.{layer}.mlp.experts.");
        if self.checkpoint.find(&format!("{prefix}gate_up_proj")).is_some() {
            return self.fused(layer, &prefix, shape);
        }
        let experts = 0..shape.experts as u32;
        experts.map(|expert| self.separate(layer, expert, &prefix, shape)).collect()
    }

    fn fused(
        &self,
        layer: u32,
        prefix: &str,
        shape: ExpertShape,
    ) -> Result<Vec<Vec<Block>>, CheckpointError> {
        let ExpertShape { experts, width, hidden } = shape;
        let gate_up = format!("{prefix}gate_up_proj");
        let gate_up = self.checkpoint.expect(&gate_up, &[experts, 2 * width, hidden])?;
        let down = format!("{prefix}down_proj");
        let down = self.checkpoint.expect(&down, &[experts, hidden, width])?;
        let one = |expert: usize| {
            let id = |projection| BlockId { layer, expert: expert as u32, projection };
            vec![
                self.block(id(Projection::GateUp), gate_up, expert, [2 * width, hidden]),
                self.block(id(Projection::Down), down, expert, [hidden, width]),
            ]
        };
        Ok((0..experts).map(one).collect())
    }

    fn separate(
        &self,
        layer: u32,
        expert: u32,
        prefix: &str,
        shape: ExpertShape,
    ) -> Result<Vec<Block>, CheckpointError> {
        let one = |(projection, name, rows, cols): (Projection, &str, usize, usize)| {
            let name = format!("{prefix}{expert}.{name}.weight");
            let tensor = self.checkpoint.expect(&name, &[rows, cols])?;
            let id = BlockId { layer, expert, projection };
            Ok(self.block(id, tensor, 0, [rows, cols]))
        };
        let (width, hidden) = (shape.width, shape.hidden);
        [
            (Projection::Gate, "gate_proj", width, hidden),
            (Projection::Up, "up_proj", width, hidden),
            (Projection::Down, "down_proj", hidden, width),
        ]
        .into_iter()
        .map(one)
        .collect()
    }

    fn block(&self, id: BlockId, tensor: &Tensor, place: usize, [rows, cols]: [usize; 2]) -> Block {
        let (encoding, element_bytes) = match tensor.dtype {
            Dtype::Bf16 => (Encoding::Bf16, 2),
            Dtype::F32 => (Encoding::F32, 4),
            Dtype::Other(name) => unreachable!("`expect` refused {name}"),
        };
        let stored_bytes = (rows * cols * element_bytes) as u64;
        Block {
            id,
            file: self.file_of[&tensor.file],
            offset_bytes: tensor.offset + place as u64 * stored_bytes,
            stored_bytes,
            encoding,
            rows,
            cols,
            tensor: Arc::from(tensor.name.as_str()),
            first_row: place * rows,
        }
    }
}
