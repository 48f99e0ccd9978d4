//! Damaged weights: the error names the tensor, and what no token reads disturbs nobody.

use numerics::SimdLevel;
use safetensors::tensor::Dtype;
use serde_json::json;

use super::folder::{Folder, PROMPT, Stored, refused, run, unchanged};

const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
const QWEN35: &str = "qwen3_5_moe-text";
const QWEN3: &str = "qwen3_moe";

/// Tensors of the two kinds of mixer and of the feed-forward, by their end: these are read when
/// the model is loaded, as they are small.
const READ_AT_ONCE: [&str; 9] = [
    "layers.0.input_layernorm.weight",
    "layers.2.post_attention_layernorm.weight",
    "layers.3.self_attn.q_norm.weight",
    "layers.3.self_attn.k_norm.weight",
    "layers.1.linear_attn.conv1d.weight",
    "layers.1.linear_attn.A_log",
    "layers.1.linear_attn.dt_bias",
    "layers.1.linear_attn.norm.weight",
    "norm.weight",
];

/// These are read by every token.
const READ_ALWAYS: [&str; 14] = [
    "layers.3.self_attn.q_proj.weight",
    "layers.3.self_attn.k_proj.weight",
    "layers.3.self_attn.v_proj.weight",
    "layers.3.self_attn.o_proj.weight",
    "layers.0.linear_attn.in_proj_qkv.weight",
    "layers.0.linear_attn.in_proj_z.weight",
    "layers.0.linear_attn.in_proj_b.weight",
    "layers.0.linear_attn.in_proj_a.weight",
    "layers.0.linear_attn.out_proj.weight",
    "layers.0.mlp.gate.weight",
    "layers.1.mlp.shared_expert_gate.weight",
    "layers.1.mlp.shared_expert.gate_proj.weight",
    "layers.1.mlp.shared_expert.up_proj.weight",
    "layers.1.mlp.shared_expert.down_proj.weight",
];

fn damaged(folder: &Folder, tensor: &str, element: usize, value: f32) -> Folder {
    let mut folder = folder.clone();
    folder.tensor(tensor).put(element, value);
    folder
}

fn elements(tensor: &Stored) -> usize {
    tensor.shape.iter().product()
}

#[test]
fn a_bad_value_in_a_small_tensor_is_found_when_the_model_is_loaded() {
    let folder = Folder::read(QWEN35);
    for (i, end) in READ_AT_ONCE.iter().enumerate() {
        let name = format!("model.{end}");
        let last = elements(&folder.tensors[&name]) - 1;
        let value = BAD[i % BAD.len()];
        let says = format!("tensor {name} holds {value} at row 0, column {last}");
        let dir = damaged(&folder, &name, last, value).write();
        let loaded = super::folder::load(dir.path(), SimdLevel::detect());
        refused(loaded.map(|_| Vec::new()), &[&says, "a weight must be finite"]);
    }
}

#[test]
fn a_bad_value_in_a_projection_is_named_by_every_path() {
    let folder = Folder::read(QWEN35);
    let names = READ_ALWAYS.iter().map(|end| format!("model.{end}"));
    for (i, name) in names.chain(["lm_head.weight".to_string()]).enumerate() {
        let (rows, cols) = (folder.tensors[&name].shape[0], folder.tensors[&name].shape[1]);
        for (level, value) in SimdLevel::available().into_iter().zip(BAD) {
            let (row, column) = ((rows - 1) * (i % 2), (11 * i) % cols);
            let says = format!("tensor {name} holds {value} at row {row}, column {column}:");
            let bad = damaged(&folder, &name, row * cols + column, value);
            refused(bad.run_at(level), &[&says]);
        }
    }
}

#[test]
fn a_bad_embedding_row_matters_only_to_its_token() {
    for name in [QWEN35, QWEN3] {
        let folder = Folder::read(name);
        let tensor = "model.embed_tokens.weight";
        for value in BAD {
            let bad = damaged(&folder, tensor, 93 * 64 + 7, value);
            let says = format!("tensor {tensor} holds {value} at row 93, column 7:");
            refused(bad.run(), &[&says]);
            assert!(!PROMPT.contains(&94));
            assert_eq!(damaged(&folder, tensor, 94 * 64 + 7, value).run(), Ok(unchanged(name)));
        }
    }
}

/// One token uses top-k experts of a layer: damage in these is found, in the others not felt.
#[test]
fn a_bad_expert_matters_only_to_the_tokens_that_use_it() {
    let folder = Folder::read(QWEN3);
    let matrices = ["gate_proj", "up_proj", "down_proj"];
    for level in SimdLevel::available() {
        let sound = run(folder.write().path(), &PROMPT[..1], level).expect("runs");
        let mut used = 0;
        for e in 0..16 {
            let tensor = format!("model.layers.0.mlp.experts.{e}.{}.weight", matrices[e % 3]);
            let bad = damaged(&folder, &tensor, 37, BAD[(e / 3) % 3]);
            let result = run(bad.write().path(), &PROMPT[..1], level);
            if result.is_err() {
                used += 1;
                refused(result, &[&format!("tensor {tensor} holds {}", BAD[(e / 3) % 3])]);
            } else {
                assert_eq!(result.as_ref(), Ok(&sound), "expert {e} is not used");
            }
        }
        assert_eq!(used, 4, "num_experts_per_tok");
    }
}

/// The row of a fused tensor is counted over all its experts: 2 * 32 rows each, or 64 of down.
#[test]
fn a_bad_value_in_a_fused_expert_is_named_by_its_row_in_the_file() {
    let mut folder = Folder::read(QWEN35);
    super::layouts::fuse_experts(&mut folder);
    // All of the experts for every token, so that each is used.
    folder.config["num_experts_per_tok"] = json!(16);
    folder.run().expect("runs");
    for (tensor, cols, row) in [
        ("gate_up_proj", 64, 5 * 64 + 3),
        ("gate_up_proj", 64, 5 * 64 + 40),
        ("down_proj", 32, 15 * 64 + 63),
    ] {
        let tensor = format!("model.layers.2.mlp.experts.{tensor}");
        let bad = damaged(&folder, &tensor, row * cols + 9, f32::NAN);
        refused(bad.run(), &[&format!("tensor {tensor} holds NaN at row {row}, column 9:")]);
    }
}

#[test]
fn an_absent_tensor_is_named_with_its_shape() {
    for name in [QWEN35, QWEN3] {
        let folder = Folder::read(name);
        for tensor in folder.tensors.keys() {
            let mut without = folder.clone();
            let shape = without.take(tensor).shape;
            let says = [format!("no tensor {tensor};"), format!("{shape:?}")];
            refused(without.run(), &[&says[0], &says[1]]);
        }
    }
}

#[test]
fn another_shape_is_named_beside_the_expected_one() {
    for name in [QWEN35, QWEN3] {
        let folder = Folder::read(name);
        for (tensor, stored) in &folder.tensors {
            let mut longer = stored.shape.clone();
            *longer.last_mut().expect("a dimension") *= 2;
            let mut changed = folder.clone();
            let zeros = vec![0; 2 * stored.bytes.len()];
            changed.add(tensor, stored.dtype, &longer, zeros);
            let says = [
                format!("tensor {tensor}: expected shape {:?}", stored.shape),
                format!("found {longer:?}"),
            ];
            refused(changed.run(), &[&says[0], &says[1]]);
        }
    }
}

#[test]
fn the_same_elements_in_another_order_of_dimensions_are_refused() {
    let mut folder = Folder::read(QWEN3);
    folder.tensor("model.layers.0.self_attn.k_proj.weight").shape = vec![4096];
    refused(folder.run(), &["k_proj", "expected shape [64, 64]", "found [4096]"]);
    let mut folder = Folder::read(QWEN35);
    super::layouts::fuse_experts(&mut folder);
    let tensor = "model.layers.1.mlp.experts.gate_up_proj";
    folder.tensor(tensor).shape = vec![16, 64, 32, 2];
    refused(folder.run(), &[tensor, "expected shape [16, 64, 64]", "found [16, 64, 32, 2]"]);
    folder.take(tensor);
    refused(folder.run(), &["no tensor model.layers.1.mlp.experts.0.gate_proj.weight;"]);
}

#[test]
fn other_types_than_bf16_and_f32_are_refused() {
    for (dtype, size) in [(Dtype::F16, 2), (Dtype::F64, 8), (Dtype::F8_E4M3, 1)] {
        let mut folder = Folder::read(QWEN3);
        let tensor = "model.layers.2.mlp.experts.15.down_proj.weight";
        folder.add(tensor, dtype, &[64, 32], vec![0; 64 * 32 * size]);
        let says = format!("tensor {tensor}: dtype {dtype:?}");
        refused(folder.run(), &[&says, "BF16 or F32"]);
    }
}

#[test]
fn a_config_of_another_size_is_refused() {
    for (field, value, tensor) in [
        ("num_local_experts", 15, "mlp.gate.weight"),
        ("num_local_experts", 17, "mlp.gate.weight"),
        ("vocab_size", 321, "model.embed_tokens.weight"),
        ("num_hidden_layers", 4, "model.layers.3."),
        ("num_key_value_heads", 4, "k_proj.weight"),
        ("head_dim", 64, "q_proj.weight"),
        ("moe_intermediate_size", 31, "experts.0.gate_proj.weight"),
    ] {
        let mut folder = Folder::read(QWEN3);
        folder.config[field] = json!(value);
        refused(folder.run(), &[tensor]);
    }
}
