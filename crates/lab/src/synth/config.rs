//! config.json, generation_config.json and the index, with the keys of published checkpoints.

use serde_json::{Map, Value, json};

use super::SynthSpec;
use super::shape::{Dimensions, Family, Hybrid};
use super::tensors::ShardPlan;

pub fn config(dimensions: &Dimensions, spec: &SynthSpec) -> Value {
    let mut config = shared_keys(dimensions);
    let family_keys = match &dimensions.family {
        Family::Hybrid(hybrid) => hybrid_keys(dimensions, hybrid),
        Family::Plain { dense_width } => plain_keys(dimensions, *dense_width),
    };
    for (key, value) in family_keys.into_iter().chain(shape_keys(dimensions)) {
        config.insert(key, value);
    }
    let origin = format!(
        "random weights by tarfa synth --like {} --seed {} --skew {}",
        spec.like.name(),
        spec.seed,
        spec.skew
    );
    config.insert("_name_or_path".into(), origin.into());
    Value::Object(config)
}

pub fn generation_config(dimensions: &Dimensions) -> Value {
    json!({
        "do_sample": false,
        "eos_token_id": [dimensions.eos_token],
        "pad_token_id": dimensions.pad_token,
    })
}

pub fn index(plans: &[ShardPlan]) -> Value {
    let mut shard_of = Map::new();
    for plan in plans {
        for tensor in &plan.tensors {
            shard_of.insert(tensor.name.clone(), plan.file_name.clone().into());
        }
    }
    let parameters: u64 = plans.iter().map(ShardPlan::value_count).sum();
    json!({
        "metadata": {"total_parameters": parameters, "total_size": parameters * 2},
        "weight_map": shard_of,
    })
}

fn shared_keys(dimensions: &Dimensions) -> Map<String, Value> {
    object(json!({
        "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": null,
        "dtype": "bfloat16",
        "eos_token_id": dimensions.eos_token,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "output_router_logits": false,
        "pad_token_id": null,
        "rms_norm_eps": 1e-6,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": false,
        "use_cache": true,
    }))
}

fn shape_keys(dimensions: &Dimensions) -> Map<String, Value> {
    object(json!({
        "head_dim": dimensions.head_dim,
        "hidden_size": dimensions.hidden,
        "max_position_embeddings": dimensions.max_positions,
        "moe_intermediate_size": dimensions.expert_width,
        "num_attention_heads": dimensions.heads,
        "num_experts_per_tok": dimensions.top_k,
        "num_hidden_layers": dimensions.layers,
        "num_key_value_heads": dimensions.kv_heads,
        "vocab_size": dimensions.vocab,
    }))
}

fn hybrid_keys(dimensions: &Dimensions, hybrid: &Hybrid) -> Map<String, Value> {
    let layer_type = |layer| match hybrid.is_full_attention(layer) {
        true => "full_attention",
        false => "linear_attention",
    };
    let layer_types: Vec<&str> = (0..dimensions.layers).map(layer_type).collect();
    object(json!({
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "attn_output_gate": true,
        "full_attention_interval": hybrid.full_attention_interval,
        "layer_types": layer_types,
        "linear_conv_kernel_dim": hybrid.conv_taps,
        "linear_key_head_dim": hybrid.key_dim,
        "linear_num_key_heads": hybrid.key_heads,
        "linear_num_value_heads": hybrid.value_heads,
        "linear_value_head_dim": hybrid.value_dim,
        "mamba_ssm_dtype": "float32",
        "model_type": "qwen3_5_moe_text",
        "mtp_num_hidden_layers": 0,
        "mtp_use_dedicated_embeddings": false,
        "num_experts": dimensions.experts,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "mrope_interleaved": true,
            "mrope_section": hybrid.mrope_section,
            "partial_rotary_factor": 0.25,
            "rope_theta": dimensions.rope_theta,
            "rope_type": "default",
        },
        "shared_expert_intermediate_size": hybrid.shared_width,
    }))
}

fn plain_keys(dimensions: &Dimensions, dense_width: usize) -> Map<String, Value> {
    object(json!({
        "architectures": ["Qwen3MoeForCausalLM"],
        "decoder_sparse_step": 1,
        "intermediate_size": dense_width,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "norm_topk_prob": true,
        "num_local_experts": dimensions.experts,
        "rope_parameters": {"rope_theta": dimensions.rope_theta, "rope_type": "default"},
        "sliding_window": null,
        "use_sliding_window": false,
    }))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => unreachable!("an object literal, not {other}"),
    }
}
