//! What can be said about a checkpoint from its headers and its config.

use std::sync::Arc;

use anyhow::Result;
use engine::generate::digest::hex;
use engine::model::{DeltaNet, Description, FeedForward, Mixer, Model, ModelError};
use engine::text::ChatTemplateError;
use engine::tiers::Placement;
use numerics::{Cpu, SimdLevel};
use serde::Serialize;
use store::checkpoint::{Checkpoint, Part, PartSize, part_of};
use store::experts::{Block, ExpertMap};

use crate::source;

/// Everything that `inspect` reports.
#[derive(Serialize)]
pub struct Findings {
    pub label: String,
    pub fingerprint: String,
    pub model_type: Option<String>,
    pub runs: bool,
    /// Why it does not run.
    pub problem: Option<String>,
    /// Absent if the config does not describe a model that is known.
    pub shape: Option<ShapeFindings>,
    pub parameters: u64,
    /// Of these, in parts that are ignored.
    pub parameters_ignored: u64,
    pub parts: Vec<PartFindings>,
    /// Bytes of weights that a decoded token reads.
    pub decoded_token_bytes: Option<TokenBytes>,
    pub tokenizer: bool,
    pub chat_template: bool,
    pub shards: Vec<ShardFindings>,
}

/// The sizes of a model.
#[derive(Serialize)]
pub struct ShapeFindings {
    pub family: &'static str,
    pub hidden: usize,
    pub vocab: usize,
    pub positions_max: usize,
    pub layers: usize,
    pub attention_layers: usize,
    pub delta_net_layers: usize,
    pub moe_layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rotated: usize,
    pub delta_net: Option<DeltaNetFindings>,
    pub experts: usize,
    pub experts_per_token: usize,
    pub expert_width: usize,
    pub shared_expert_width: Option<usize>,
}

/// The sizes of a delta net.
#[derive(Serialize)]
pub struct DeltaNetFindings {
    pub key_heads: usize,
    pub key_dim: usize,
    pub value_heads: usize,
    pub value_dim: usize,
    pub taps: usize,
}

/// One part of the weights.
#[derive(Serialize)]
pub struct PartFindings {
    pub part: &'static str,
    pub tensors: usize,
    pub bytes: u64,
    pub ignored: bool,
}

/// Bytes by what they are.
#[derive(Serialize)]
pub struct TokenBytes {
    pub experts: u64,
    pub other: u64,
}

/// One file of weights.
#[derive(Serialize)]
pub struct ShardFindings {
    pub name: String,
    pub bytes: u64,
    pub tensors: usize,
    pub header_sha256: String,
}

impl Findings {
    /// Looks at a checkpoint; `map` is where the experts lie if it is a store. The second value is
    /// why it cannot be run.
    ///
    /// # Errors
    /// A file of it cannot be read.
    pub fn of(
        checkpoint: &Checkpoint,
        map: Option<ExpertMap>,
    ) -> Result<(Findings, Option<ModelError>)> {
        let description = Description::of(checkpoint).ok();
        let cpu = Cpu::new(SimdLevel::detect(), 1)?;
        let source = engine::model::Source {
            checkpoint,
            experts: map.clone(),
            digests: Arc::default(),
            placement: Placement::Mapped,
            heat: None,
        };
        let problem = Model::open(source, cpu).err();
        let mut sizes = checkpoint.part_sizes();
        sizes.extend(map.as_ref().map(|map| PartSize {
            part: Part::Experts,
            tensor_count: map.all().count(),
            size_bytes: map.all().map(|block| block.stored_bytes).sum(),
        }));
        let (mut parameters, parameters_ignored) = parameters(checkpoint);
        let stored = |block: &Block| (block.rows * block.cols) as u64;
        parameters += map.iter().flat_map(ExpertMap::all).map(stored).sum::<u64>();
        let findings = Findings {
            label: checkpoint.label().to_string(),
            fingerprint: checkpoint.sha256_fingerprint(),
            model_type: checkpoint.text_config()["model_type"].as_str().map(str::to_string),
            runs: problem.is_none(),
            problem: problem.as_ref().map(ModelError::to_string),
            shape: description.as_ref().map(shape),
            parameters,
            parameters_ignored,
            parts: sizes.iter().map(part).collect(),
            decoded_token_bytes: description.as_ref().map(|d| token_bytes(d, &sizes)),
            tokenizer: source::tokenizer(checkpoint)?.is_some(),
            chat_template: has_chat_template(checkpoint)?,
            shards: shards(checkpoint),
        };
        Ok((findings, problem))
    }
}

fn shape(d: &Description) -> ShapeFindings {
    let mixers = |mixer| d.layers.iter().filter(|layer| layer.0 == mixer).count();
    ShapeFindings {
        family: d.family.name(),
        hidden: d.hidden,
        vocab: d.vocab,
        positions_max: d.positions_max,
        layers: d.layers.len(),
        attention_layers: mixers(Mixer::Attention),
        delta_net_layers: mixers(Mixer::DeltaNet),
        moe_layers: d.layers.iter().filter(|layer| layer.1 == FeedForward::Moe).count(),
        heads: d.heads,
        kv_heads: d.kv_heads,
        head_dim: d.head_dim,
        rotated: d.rotated,
        delta_net: d.delta.map(delta_net),
        experts: d.moe.experts,
        experts_per_token: d.moe.top_k,
        expert_width: d.moe.width,
        shared_expert_width: d.moe.shared_width,
    }
}

fn delta_net(net: DeltaNet) -> DeltaNetFindings {
    DeltaNetFindings {
        key_heads: net.shape.key_heads,
        key_dim: net.shape.key_dim,
        value_heads: net.shape.value_heads,
        value_dim: net.shape.value_dim,
        taps: net.taps,
    }
}

fn parameters(checkpoint: &Checkpoint) -> (u64, u64) {
    let (mut all, mut ignored) = (0, 0);
    for (name, tensor) in checkpoint.tensors() {
        let count = tensor.shape.iter().map(|&size| size as u64).product::<u64>();
        all += count;
        if part_of(name).is_unused() {
            ignored += count;
        }
    }
    (all, ignored)
}

fn part(size: &PartSize) -> PartFindings {
    PartFindings {
        part: part_name(size.part),
        tensors: size.tensor_count,
        bytes: size.size_bytes,
        ignored: size.part.is_unused(),
    }
}

fn part_name(part: Part) -> &'static str {
    match part {
        Part::Embedding => "embedding",
        Part::Attention => "attention",
        Part::DeltaNet => "delta net",
        Part::Router => "routers",
        Part::Experts => "routed experts",
        Part::SharedExpert => "shared experts",
        Part::DenseMlp => "dense MLPs",
        Part::Norm => "norms",
        Part::Head => "head",
        Part::Mtp => "multi-token prediction",
        Part::Vision => "vision",
        Part::Other => "other",
    }
}

/// Everything but the embedding, of which a token reads one row, and the experts not picked.
fn token_bytes(d: &Description, sizes: &[PartSize]) -> TokenBytes {
    let bytes = |part: Part| sizes.iter().find(|s| s.part == part).map_or(0, |s| s.size_bytes);
    let read = |part: Part| {
        !part.is_unused() && !matches!(part, Part::Embedding | Part::Experts | Part::Other)
    };
    let mut other = sizes.iter().filter(|s| read(s.part)).map(|s| s.size_bytes).sum();
    if bytes(Part::Head) == 0 {
        other += bytes(Part::Embedding);
    }
    let (experts, picked) = (d.moe.experts as u64, d.moe.top_k as u64);
    TokenBytes { experts: bytes(Part::Experts) / experts * picked, other }
}

fn has_chat_template(checkpoint: &Checkpoint) -> Result<bool> {
    match source::chat_template(checkpoint) {
        Ok(_) => Ok(true),
        Err(error) => match error.downcast_ref() {
            Some(ChatTemplateError::NoTemplate) => Ok(false),
            _ => Err(error),
        },
    }
}

fn shards(checkpoint: &Checkpoint) -> Vec<ShardFindings> {
    let shard = |s: &store::checkpoint::Shard| ShardFindings {
        name: s.file_name.clone(),
        bytes: s.bytes.len() as u64,
        tensors: s.tensor_count,
        header_sha256: hex(&s.header_sha256),
    };
    checkpoint.shards().iter().map(shard).collect()
}
