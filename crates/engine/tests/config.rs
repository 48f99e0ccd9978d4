//! What a config.json must say, and what happens when it says something else.

use engine::model::{Description, Family, FeedForward, Mixer};
use serde_json::{Value, json};

/// A change to a config: a field and its new value, null where it is to go.
type Change = (&'static str, Value);

fn qwen35() -> Value {
    json!({
        "model_type": "qwen3_5_moe_text", "hidden_size": 64, "vocab_size": 320,
        "max_position_embeddings": 4096, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "num_experts": 16, "num_experts_per_tok": 8,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "hidden_act": "silu",
        "attention_bias": false, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25,
            "mrope_interleaved": true, "mrope_section": [2, 1, 1]
        },
    })
}

fn qwen3() -> Value {
    json!({
        "model_type": "qwen3_moe", "hidden_size": 64, "vocab_size": 320,
        "max_position_embeddings": 4096, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "num_experts": 16, "num_experts_per_tok": 4,
        "moe_intermediate_size": 32, "intermediate_size": 128, "norm_topk_prob": true,
        "rope_theta": 1_000_000, "rope_scaling": null, "use_sliding_window": false,
        "sliding_window": null, "mlp_only_layers": [], "decoder_sparse_step": 1,
    })
}

fn changed(config: Value, changes: &[Change]) -> Value {
    let mut config = config;
    let object = config.as_object_mut().expect("an object");
    for (field, value) in changes {
        object.insert((*field).to_string(), value.clone());
    }
    config
}

fn good(config: Value, changes: &[Change]) -> Description {
    let config = changed(config, changes);
    Description::parse(&config).unwrap_or_else(|e| panic!("{changes:?}: {e}"))
}

/// The config with these changes is refused, with all of these in the message.
fn check(config: Value, changes: &[Change], expected: &[&str]) {
    match Description::parse(&changed(config, changes)) {
        Ok(description) => panic!("{changes:?} was read as {description:?}"),
        Err(error) => {
            let message = error.to_string();
            for part in expected {
                assert!(message.contains(part), "{changes:?}: {message:?} lacks {part:?}");
            }
        }
    }
}

#[test]
fn good_configs_are_read() {
    let d = good(qwen35(), &[]);
    assert_eq!((d.family, d.hidden, d.vocab, d.rotated), (Family::Qwen35Moe, 64, 320, 8));
    assert!(d.centred && d.output_gate && !d.tied && d.moe.norm_top_k);
    assert_eq!(d.moe.shared_width, Some(32));
    assert_eq!(d.delta.expect("a delta net").channels(), 128);
    let d = good(qwen3(), &[]);
    assert_eq!((d.family, d.rotated, d.theta.to_bits()), (Family::Qwen3Moe, 32, 1e6f64.to_bits()));
    assert!(!d.centred && !d.output_gate && d.delta.is_none() && d.moe.shared_width.is_none());
    assert_eq!(d.layers, vec![(Mixer::Attention, FeedForward::Moe); 3]);
}

#[test]
fn an_unknown_family_lists_the_known_ones() {
    let known = ["qwen3_5_moe", "qwen3_5_moe_text", "qwen3_moe"];
    for model_type in [json!("llama"), json!(""), json!(null), json!(7), json!("Qwen3_moe")] {
        check(qwen3(), &[("model_type", model_type)], &known);
    }
    check(qwen3(), &[("model_type", json!("llama"))], &["model_type \"llama\""]);
    check(json!({}), &[], &known);
}

#[test]
fn missing_fields_are_named_with_the_family() {
    let of_both = [
        "hidden_size",
        "vocab_size",
        "max_position_embeddings",
        "num_hidden_layers",
        "num_attention_heads",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    ];
    for field in of_both {
        let named = format!("no {field}, which ");
        check(qwen35(), &[(field, json!(null))], &[&named, "qwen3_5_moe"]);
        check(qwen3(), &[(field, json!(null))], &[&named, "qwen3_moe"]);
    }
    let of_qwen35 = [
        "shared_expert_intermediate_size",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ];
    for field in of_qwen35 {
        check(qwen35(), &[(field, json!(null))], &[&format!("no {field}, which qwen3_5_moe")]);
    }
    // Its readers disagree on the default; qwen3_5_moe has only one meaning.
    let routing = [("norm_topk_prob", json!(null))];
    check(qwen3(), &routing, &["no norm_topk_prob, which qwen3_moe needs"]);
    assert!(good(qwen35(), &routing).moe.norm_top_k);
    for norm in [true, false] {
        let routing = [("norm_topk_prob", json!(norm))];
        assert_eq!(good(qwen3(), &routing).moe.norm_top_k, norm);
    }
    let dense = [("mlp_only_layers", json!([1])), ("intermediate_size", json!(null))];
    check(qwen3(), &dense, &["no intermediate_size"]);
}

#[test]
fn sizes_are_positive_whole_numbers() {
    let sizes = [
        "hidden_size",
        "vocab_size",
        "max_position_embeddings",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ];
    let wrong = [
        json!(0),
        json!(-1),
        json!(2.5),
        json!(4.0),
        json!("4"),
        json!([4]),
        json!({}),
        json!(true),
        json!(u64::MAX),
        json!(1u64 << 63),
        json!(1e300),
    ];
    for field in sizes {
        for value in &wrong {
            let found = format!("{field} is {value}, expected a positive whole number");
            check(qwen35(), &[(field, value.clone())], &[&found]);
        }
    }
}

#[test]
fn other_types_are_refused_where_they_would_be_ignored() {
    for (field, value) in [
        ("rms_norm_eps", json!("1e-6")),
        ("rms_norm_eps", json!(-1.0)),
        ("rms_norm_eps", json!(1e300)),
        ("rope_theta", json!("10000")),
        ("rope_theta", json!(0.5)),
        ("rope_theta", json!(0)),
        ("tie_word_embeddings", json!("true")),
        ("norm_topk_prob", json!(1)),
        ("layer_types", json!("full_attention")),
        ("mlp_only_layers", json!(1)),
        ("mlp_only_layers", json!(["1"])),
        ("mlp_only_layers", json!([1.0])),
        ("decoder_sparse_step", json!(0)),
        ("rope_parameters", json!(7)),
        ("rope_scaling", json!([])),
        ("rope_parameters", json!({"rope_type": 7})),
    ] {
        let at = if field == "rope_parameters" && value.is_object() { "rope_type" } else { field };
        check(qwen3(), &[(field, value)], &[&format!("config.json: {at} is ")]);
    }
}

#[test]
fn layer_types_may_come_in_any_order_but_not_in_any_length() {
    let d = good(
        qwen35(),
        &[(
            "layer_types",
            json!(["full_attention", "linear_attention", "full_attention", "full_attention"]),
        )],
    );
    let mixers: Vec<Mixer> = d.layers.iter().map(|l| l.0).collect();
    use Mixer::{Attention, DeltaNet};
    assert_eq!(mixers, [Attention, DeltaNet, Attention, Attention]);
    let without = [("layer_types", json!(null)), ("num_hidden_layers", json!(9))];
    let full: Vec<usize> =
        (0..9).filter(|i| good(qwen35(), &without).layers[*i].0 == Attention).collect();
    assert_eq!(full, [3, 7]);
    let all_full = vec!["full_attention"; 4];
    let d =
        good(qwen35(), &[("layer_types", json!(all_full)), ("linear_key_head_dim", json!(null))]);
    assert!(d.delta.is_none(), "no layer needs one");
    for count in [0, 3, 5] {
        let list = vec!["full_attention"; count];
        let found = format!("layer_types is {count}, expected 4 entries");
        check(qwen35(), &[("layer_types", json!(list))], &[&found]);
    }
    for name in [json!("sliding_attention"), json!("Full_attention"), json!(null), json!(1)] {
        let list = json!(["full_attention", name, "full_attention", "full_attention"]);
        let found = format!("layer_types is {name}, expected full_attention or linear_attention");
        check(qwen35(), &[("layer_types", list)], &[&found]);
    }
}

#[test]
fn dense_layers_are_found_both_ways() {
    use FeedForward::{Dense, Moe};
    let of = |changes: &[Change]| -> Vec<FeedForward> {
        good(qwen3(), changes).layers.iter().map(|l| l.1).collect()
    };
    assert_eq!(of(&[("mlp_only_layers", json!([0, 2]))]), [Dense(128), Moe, Dense(128)]);
    assert_eq!(of(&[("decoder_sparse_step", json!(2))]), [Dense(128), Moe, Dense(128)]);
    let both = [("decoder_sparse_step", json!(2)), ("mlp_only_layers", json!([1]))];
    assert_eq!(of(&both), [Dense(128); 3]);
}

#[test]
fn only_plain_rotary_embedding_is_computed() {
    for kind in ["yarn", "llama3", "linear", "dynamic", "longrope", "proportional", ""] {
        let named = format!("rope_type {kind:?} is not supported; supported: default");
        for place in ["rope_parameters", "rope_scaling"] {
            for key in ["rope_type", "type"] {
                check(qwen35(), &[(place, json!({key: kind, "factor": 4.0}))], &[&named]);
                check(qwen3(), &[(place, json!({key: kind, "factor": 4.0}))], &[&named]);
            }
        }
    }
    let mrope = json!({"type": "mrope", "mrope_section": [2, 1, 1]});
    good(qwen35(), &[("rope_scaling", mrope)]);
    good(qwen35(), &[("rope_scaling", json!({"type": "default", "rope_type": "default"}))]);
    good(qwen3(), &[("rope_scaling", json!(null)), ("rope_parameters", json!(null))]);
    let neither = [("rope_theta", json!(null))];
    assert_eq!(good(qwen3(), &neither).theta.to_bits(), 10_000f64.to_bits());
}

#[test]
fn rotated_dimensions_are_even_and_inside_the_head() {
    let named = ["partial_rotary_factor", "expected an even number of rotated dims"];
    for (head_dim, part) in [(18, 0.5), (12, 0.25), (32, 2.0), (32, -0.5), (9, 1.0)] {
        let rope = json!({"partial_rotary_factor": part});
        check(qwen3(), &[("head_dim", json!(head_dim)), ("rope_parameters", rope)], &named);
    }
    let rope = json!({"partial_rotary_factor": 0.25});
    let changes = [("head_dim", json!(18)), ("rope_parameters", rope)];
    assert_eq!(good(qwen3(), &changes).rotated, 4, "4.5 is rounded down");
}

#[test]
fn variants_that_would_compute_something_else_are_refused() {
    for (field, value) in [
        ("hidden_act", json!("gelu")),
        ("hidden_act", json!("gelu_pytorch_tanh")),
        ("attention_bias", json!(true)),
        ("use_sliding_window", json!(true)),
        ("quantization_config", json!({"quant_method": "fp8"})),
        ("quantization_config", json!({})),
        ("quantization_config", json!("fp8")),
    ] {
        let found = format!("config.json: {field} is {value}, expected ");
        check(qwen35(), &[(field, value.clone())], &[&found]);
        check(qwen3(), &[(field, value)], &[&found]);
    }
    check(qwen3(), &[("quantization_config", json!({}))], &["expected nothing"]);
    good(qwen3(), &[("quantization_config", json!(null)), ("sliding_window", json!(4096))]);
}

#[test]
fn heads_and_experts_must_fit_each_other() {
    check(qwen3(), &[("num_key_value_heads", json!(3))], &["is 3, expected a divisor of 4"]);
    check(qwen3(), &[("num_key_value_heads", json!(8))], &["is 8, expected a divisor of 4"]);
    check(qwen35(), &[("linear_num_key_heads", json!(3))], &["is 3, expected a divisor of 4"]);
    check(qwen3(), &[("num_experts_per_tok", json!(17))], &["is 17, expected at most 16"]);
    assert_eq!(good(qwen3(), &[("num_experts_per_tok", json!(16))]).moe.top_k, 16);
    let spelling = [("num_experts", json!(null)), ("num_local_experts", json!(7))];
    assert_eq!(good(qwen3(), &spelling).moe.experts, 7);
    assert_eq!(good(qwen3(), &[("num_key_value_heads", json!(null))]).kv_heads, 4);
    assert_eq!(good(qwen3(), &[("head_dim", json!(null))]).head_dim, 16);
    let none = [("head_dim", json!(null)), ("num_attention_heads", json!(128))];
    check(qwen3(), &none, &["num_attention_heads is 128", "hidden_size"]);
}

#[test]
fn sizes_of_which_no_tensor_can_exist_are_refused() {
    let huge = json!((1u64 << 40) - 8);
    for fields in [
        ["hidden_size", "vocab_size"],
        ["head_dim", "hidden_size"],
        ["num_experts", "moe_intermediate_size"],
        ["linear_value_head_dim", "linear_key_head_dim"],
        ["linear_conv_kernel_dim", "linear_key_head_dim"],
        ["shared_expert_intermediate_size", "hidden_size"],
    ] {
        let changes = fields.map(|f| (f, huge.clone()));
        check(qwen35(), &changes, &["expected sizes whose product fits"]);
    }
    let dense = [
        ("mlp_only_layers", json!([0])),
        ("intermediate_size", huge.clone()),
        ("hidden_size", json!(1u64 << 30)),
    ];
    check(qwen3(), &dense, &["expected sizes whose product fits"]);
    for config in [qwen35(), qwen3()] {
        check(config, &[("num_hidden_layers", huge.clone())], &["num_hidden_layers is "]);
    }
    good(qwen3(), &[("max_position_embeddings", huge)]);
}
