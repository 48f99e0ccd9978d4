//! What is to be written, decided before anything is: shapes of the layers, pieces of every block,
//! shards of the dense weights, and the space for all of it.

use crate::checkpoint::{Checkpoint, Part, Tensor, part_of};
use crate::experts::{Block, Encoding, ExpertMap, Projection};
use crate::jnf::{BLOCK_ALIGN_BYTES, ExpertLayer, StoredAs, StoredProjection};

use super::error::ConvertError;

/// Above it, a new dense file begins.
pub const DENSE_FILE_BYTES_MAX: u64 = 4 << 30;
/// Files without weights that are longer than this are not part of a model.
const BESIDE_BYTES_MAX: u64 = 256 << 20;
/// What files without weights end in.
const BESIDE_ENDINGS: [&str; 6] = [".json", ".jinja", ".txt", ".model", ".tiktoken", ".md"];
/// Of packed blocks, in percent of bf16: what weights of trained models take, and some more.
const PACKED_PERCENT: u64 = 80;

/// The shapes of all layers with routed experts.
///
/// Errors: `NoExperts`, `ExpertDtype`, `UnevenExperts`.
pub fn expert_layers(
    checkpoint: &Checkpoint,
    map: &ExpertMap,
) -> Result<Vec<ExpertLayer>, ConvertError> {
    let layers = (0..map.layer_count() as u32).filter(|layer| map.expert_count(*layer) > 0);
    let shapes: Vec<ExpertLayer> =
        layers.map(|layer| expert_layer(checkpoint, map, layer)).collect::<Result<_, _>>()?;
    if shapes.is_empty() {
        return Err(ConvertError::NoExperts { label: checkpoint.label().to_string() });
    }
    Ok(shapes)
}

fn expert_layer(
    checkpoint: &Checkpoint,
    map: &ExpertMap,
    layer: u32,
) -> Result<ExpertLayer, ConvertError> {
    let down = pieces(map, layer, 0, StoredProjection::Down)[0];
    let (hidden, width) = (down.rows, down.cols);
    let experts = map.expert_count(layer) as u32;
    for block in (0..experts).flat_map(|expert| map.blocks(layer, expert)) {
        if block.encoding != Encoding::Bf16 {
            let path = map.file(block.file).path.clone();
            let found = match block.encoding {
                Encoding::F32 => "F32",
                Encoding::Packed | Encoding::Bf16 => "packed form",
            };
            return Err(ConvertError::ExpertDtype {
                path,
                tensor: block.tensor.to_string(),
                found,
            });
        }
        let expected = match block.id.projection {
            Projection::GateUp => (2 * width, hidden),
            Projection::Gate | Projection::Up => (width, hidden),
            Projection::Down => (hidden, width),
        };
        let found = (block.rows, block.cols);
        if found != expected {
            let label = checkpoint.label().to_string();
            return Err(ConvertError::UnevenExperts { label, id: block.id, expected, found });
        }
    }
    Ok(ExpertLayer { layer, experts, hidden: hidden as u64, width: width as u64 })
}

/// The blocks of the checkpoint that make up one block of the store, in its order.
///
/// Panics where an expert has no such block: no map is made so.
pub fn pieces(
    map: &ExpertMap,
    layer: u32,
    expert: u32,
    projection: StoredProjection,
) -> Vec<&Block> {
    let is_down = |block: &&Block| block.id.projection == Projection::Down;
    let of_down = projection == StoredProjection::Down;
    let blocks = map.blocks(layer, expert).iter();
    let pieces: Vec<&Block> = blocks.filter(|block| is_down(block) == of_down).collect();
    assert!(!pieces.is_empty(), "layer {layer}, expert {expert} lacks its {projection:?}");
    pieces
}

/// Tensors that text generation uses and that are no routed experts, by canonical name, cut into
/// files; every file has at least one.
pub fn dense_files(checkpoint: &Checkpoint) -> Vec<Vec<&Tensor>> {
    let mut files: Vec<Vec<&Tensor>> = Vec::new();
    let mut size_bytes = 0;
    for (name, tensor) in checkpoint.tensors() {
        let part = part_of(name);
        if part == Part::Experts || part.is_unused() {
            continue;
        }
        let len = tensor.bytes.len() as u64;
        match files.last_mut() {
            Some(file) if size_bytes + len <= DENSE_FILE_BYTES_MAX => file.push(tensor),
            _ => {
                files.push(vec![tensor]);
                size_bytes = 0;
            }
        }
        size_bytes += len;
    }
    files
}

/// The name of a dense file.
pub fn dense_name(index: usize, count: usize) -> String {
    format!("model-{:05}-of-{count:05}.safetensors", index + 1)
}

/// Files without weights that belong to the model, sorted.
///
/// Errors: `Checkpoint` where the folder cannot be listed.
pub fn beside(checkpoint: &Checkpoint) -> Result<Vec<String>, ConvertError> {
    let mut names = checkpoint.file_names()?;
    names.retain(|name| is_beside(name));
    if let Some(folder) = checkpoint.folder() {
        let is_small = |name: &String| {
            let file = std::fs::metadata(folder.join(name));
            file.is_ok_and(|file| file.is_file() && file.len() <= BESIDE_BYTES_MAX)
        };
        names.retain(is_small);
    }
    Ok(names)
}

fn is_beside(name: &str) -> bool {
    use crate::jnf::{CONVERSION_NAME, HOTLIST_NAME, MANIFEST_NAME};
    let ours = [MANIFEST_NAME, HOTLIST_NAME, CONVERSION_NAME].contains(&name);
    let known = BESIDE_ENDINGS.iter().any(|ending| name.ends_with(ending));
    let license = name.starts_with("LICENSE") || name.starts_with("NOTICE");
    !ours && !name.starts_with('.') && !name.ends_with(".index.json") && (known || license)
}

/// Bytes that a layer takes in a store, its index included; for packed ones an estimate.
pub fn layer_bytes(shape: &ExpertLayer, stored: StoredAs) -> u64 {
    const INDEX_BYTES_PER_BLOCK: u64 = 1024;
    let experts = u64::from(shape.experts);
    let blocks = StoredProjection::ALL.map(|projection| {
        let weights = shape.weights_bytes(projection);
        let stored = match stored {
            StoredAs::Bf16 => weights,
            StoredAs::Packed => weights * PACKED_PERCENT / 100,
        };
        experts * (stored.next_multiple_of(BLOCK_ALIGN_BYTES) + INDEX_BYTES_PER_BLOCK)
    });
    blocks.iter().sum()
}

/// Bytes of weights of a layer's experts.
pub fn layer_weights_bytes(shape: &ExpertLayer) -> u64 {
    let blocks = StoredProjection::ALL.map(|projection| shape.weights_bytes(projection));
    u64::from(shape.experts) * blocks.iter().sum::<u64>()
}
