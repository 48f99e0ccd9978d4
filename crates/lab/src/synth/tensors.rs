//! Which tensors a shape has, how each is filled, and which file it goes to.

use super::random::Fill;
use super::shape::{Dimensions, Family, Hybrid};

/// Bytes of a bf16 value; every tensor is of that type.
pub const VALUE_BYTES: u64 = 2;

/// Standard deviation of all projections, as the families' `initializer_range`.
const SIGMA: f64 = 0.02;
/// Of the embedding: as large as a normalised stream, so that the residual stream stays specific to
/// its token. With 0.02 the attention average dominates it and neighbours share their experts.
const EMBEDDING_SIGMA: f64 = 1.0;
const CONV_SIGMA: f64 = 0.3;
/// All that need a table of quantiles.
pub const SIGMAS: [f64; 3] = [SIGMA, EMBEDDING_SIGMA, CONV_SIGMA];

/// One tensor to be made.
///
/// Shapes: with `expert_count` E, the first dimension is E and each expert is drawn on its own.
#[derive(Clone, Debug)]
pub struct TensorPlan {
    pub name: String,
    pub shape: Vec<usize>,
    pub fill: Fill,
    pub expert_count: Option<usize>,
}

impl TensorPlan {
    pub fn value_count(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }

    pub fn size_bytes(&self) -> u64 {
        self.value_count() * VALUE_BYTES
    }
}

/// One file to be made, its tensors sorted by name.
#[derive(Clone, Debug)]
pub struct ShardPlan {
    pub file_name: String,
    pub tensors: Vec<TensorPlan>,
    /// The length field and the header.
    pub prefix: Vec<u8>,
}

impl ShardPlan {
    pub fn value_count(&self) -> u64 {
        self.tensors.iter().map(TensorPlan::value_count).sum()
    }

    pub fn size_bytes(&self) -> u64 {
        self.prefix.len() as u64 + self.value_count() * VALUE_BYTES
    }
}

/// The embedding, one shard for each layer, and the head; the bytes of a layer's shard do not
/// depend on how many layers there are.
pub fn shard_plans(dimensions: &Dimensions) -> Vec<ShardPlan> {
    let vocab_by_hidden = [dimensions.vocab, dimensions.hidden];
    let embedding =
        tensor("model.embed_tokens.weight", &vocab_by_hidden, Fill::normal(EMBEDDING_SIGMA));
    let mut groups = vec![vec![embedding]];
    groups.extend((0..dimensions.layers).map(|layer| layer_tensors(dimensions, layer)));
    groups.push(vec![
        tensor("lm_head.weight", &vocab_by_hidden, Fill::normal(SIGMA)),
        tensor("model.norm.weight", &[dimensions.hidden], norm_fill(dimensions)),
    ]);
    let shard_count = groups.len();
    let plan = |(i, tensors)| shard_plan(i + 1, shard_count, tensors);
    groups.into_iter().enumerate().map(plan).collect()
}

/// The router's name, from which its skew is drawn.
pub fn router_name(layer: usize) -> String {
    format!("model.layers.{layer}.mlp.gate.weight")
}

fn shard_plan(number: usize, shard_count: usize, mut tensors: Vec<TensorPlan>) -> ShardPlan {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let file_name = format!("model-{number:05}-of-{shard_count:05}.safetensors");
    ShardPlan { file_name, prefix: super::write::prefix_of(&tensors), tensors }
}

fn tensor(name: &str, shape: &[usize], fill: Fill) -> TensorPlan {
    TensorPlan { name: name.to_string(), shape: shape.to_vec(), fill, expert_count: None }
}

/// Norms of the residual stream, and of queries and keys.
fn norm_fill(dimensions: &Dimensions) -> Fill {
    match dimensions.family {
        Family::Hybrid(_) => Fill::normal(SIGMA), // zero-centred: 1 + w
        Family::Plain { .. } => Fill::One,
    }
}

fn layer_tensors(dimensions: &Dimensions, layer: usize) -> Vec<TensorPlan> {
    let hidden = dimensions.hidden;
    let mut tensors = match &dimensions.family {
        Family::Hybrid(hybrid) if !hybrid.is_full_attention(layer) => delta_net(hidden, hybrid),
        _ => attention(dimensions),
    };
    let norm = |name| tensor(name, &[hidden], norm_fill(dimensions));
    tensors.extend([norm("input_layernorm.weight"), norm("post_attention_layernorm.weight")]);
    let router = Fill::Router { sigma: SIGMA, row_values: hidden };
    tensors.push(tensor("mlp.gate.weight", &[dimensions.experts, hidden], router));
    tensors.extend(match &dimensions.family {
        Family::Hybrid(hybrid) => fused_and_shared_experts(dimensions, hybrid),
        Family::Plain { .. } => separate_experts(dimensions),
    });
    for tensor in &mut tensors {
        tensor.name = format!("model.layers.{layer}.{}", tensor.name);
    }
    tensors
}

fn attention(dimensions: &Dimensions) -> Vec<TensorPlan> {
    let Dimensions { hidden, heads, kv_heads, head_dim, .. } = *dimensions;
    let gate = match dimensions.family {
        Family::Hybrid(_) => 2, // per head: query, then output gate
        Family::Plain { .. } => 1,
    };
    let linear = |name, out, input| tensor(name, &[out, input], Fill::normal(SIGMA));
    vec![
        linear("self_attn.q_proj.weight", heads * head_dim * gate, hidden),
        linear("self_attn.k_proj.weight", kv_heads * head_dim, hidden),
        linear("self_attn.v_proj.weight", kv_heads * head_dim, hidden),
        linear("self_attn.o_proj.weight", hidden, heads * head_dim),
        tensor("self_attn.q_norm.weight", &[head_dim], norm_fill(dimensions)),
        tensor("self_attn.k_norm.weight", &[head_dim], norm_fill(dimensions)),
    ]
}

fn delta_net(hidden: usize, hybrid: &Hybrid) -> Vec<TensorPlan> {
    let (qkv, values, heads) = (hybrid.qkv_width(), hybrid.value_width(), hybrid.value_heads);
    let linear = |name, out, input| tensor(name, &[out, input], Fill::normal(SIGMA));
    let taps = [qkv, 1, hybrid.conv_taps];
    vec![
        linear("linear_attn.in_proj_qkv.weight", qkv, hidden),
        linear("linear_attn.in_proj_z.weight", values, hidden),
        linear("linear_attn.in_proj_a.weight", heads, hidden),
        linear("linear_attn.in_proj_b.weight", heads, hidden),
        linear("linear_attn.out_proj.weight", hidden, values),
        tensor("linear_attn.conv1d.weight", &taps, Fill::normal(CONV_SIGMA)),
        tensor("linear_attn.A_log", &[heads], Fill::DecayLog),
        tensor("linear_attn.dt_bias", &[heads], Fill::StepBias),
        tensor("linear_attn.norm.weight", &[hybrid.value_dim], Fill::One),
    ]
}

/// As published: gate and up of all experts in one tensor, down in another.
fn fused_and_shared_experts(dimensions: &Dimensions, hybrid: &Hybrid) -> Vec<TensorPlan> {
    let Dimensions { hidden, experts, expert_width, .. } = *dimensions;
    let fused = |name, out, input| TensorPlan {
        expert_count: Some(experts),
        ..tensor(name, &[experts, out, input], Fill::normal(SIGMA))
    };
    let linear = |name, out, input| tensor(name, &[out, input], Fill::normal(SIGMA));
    vec![
        fused("mlp.experts.gate_up_proj", 2 * expert_width, hidden),
        fused("mlp.experts.down_proj", hidden, expert_width),
        linear("mlp.shared_expert.gate_proj.weight", hybrid.shared_width, hidden),
        linear("mlp.shared_expert.up_proj.weight", hybrid.shared_width, hidden),
        linear("mlp.shared_expert.down_proj.weight", hidden, hybrid.shared_width),
        linear("mlp.shared_expert_gate.weight", 1, hidden),
    ]
}

fn separate_experts(dimensions: &Dimensions) -> Vec<TensorPlan> {
    let Dimensions { hidden, expert_width, .. } = *dimensions;
    let projection = |expert: usize, name: &str, out, input| {
        let name = format!("mlp.experts.{expert}.{name}.weight");
        tensor(&name, &[out, input], Fill::normal(SIGMA))
    };
    (0..dimensions.experts)
        .flat_map(|expert| {
            [
                projection(expert, "gate_proj", expert_width, hidden),
                projection(expert, "up_proj", expert_width, hidden),
                projection(expert, "down_proj", hidden, expert_width),
            ]
        })
        .collect()
}
