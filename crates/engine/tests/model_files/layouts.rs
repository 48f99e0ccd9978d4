//! The same weights in other files, types, names and places.

use numerics::round::widen;
use numerics::{SimdLevel, bf16};
use safetensors::tensor::Dtype;
use serde_json::{Map, json};

use super::folder::{Folder, PROMPT, Stored, golden, run, unchanged};

const FAMILIES: [&str; 2] = ["qwen3_5_moe-text", "qwen3_moe"];

fn f32_of(tensor: &Stored) -> Stored {
    let wide = |b: &[u8]| widen(bf16::from_le_bytes([b[0], b[1]])).to_le_bytes();
    let bytes = tensor.bytes.chunks(2).flat_map(wide).collect();
    Stored { dtype: Dtype::F32, shape: tensor.shape.clone(), bytes }
}

/// One tensor per expert to `experts.gate_up_proj` (gate rows first) and `experts.down_proj`.
pub fn fuse_experts(folder: &mut Folder) {
    let size = |field: &str| folder.config[field].as_u64().expect("a size") as usize;
    let (layers, experts) = (size("num_hidden_layers"), size("num_experts"));
    let (hidden, width) = (size("hidden_size"), size("moe_intermediate_size"));
    for layer in 0..layers {
        let p = format!("model.layers.{layer}.mlp.experts.");
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for e in 0..experts {
            gate_up.extend(folder.take(&format!("{p}{e}.gate_proj.weight")).bytes);
            gate_up.extend(folder.take(&format!("{p}{e}.up_proj.weight")).bytes);
            down.extend(folder.take(&format!("{p}{e}.down_proj.weight")).bytes);
        }
        let shape = [experts, 2 * width, hidden];
        folder.add(&format!("{p}gate_up_proj"), Dtype::BF16, &shape, gate_up);
        let shape = [experts, hidden, width];
        folder.add(&format!("{p}down_proj"), Dtype::BF16, &shape, down);
    }
}

#[test]
fn f32_copies_of_bf16_weights_give_the_same_bits() {
    for name in FAMILIES {
        let mut folder = Folder::read(name);
        for tensor in folder.tensors.values_mut() {
            *tensor = f32_of(tensor);
        }
        for level in SimdLevel::available() {
            assert_eq!(folder.run_at(level), Ok(unchanged(name)), "{name} {level:?}");
        }
    }
}

#[test]
fn types_may_differ_from_tensor_to_tensor() {
    for name in FAMILIES {
        let mut folder = Folder::read(name);
        for (i, tensor) in folder.tensors.values_mut().enumerate() {
            if i % 3 == 0 {
                *tensor = f32_of(tensor);
            }
        }
        assert_eq!(folder.run(), Ok(unchanged(name)), "{name}");
    }
}

#[test]
fn fused_experts_give_the_same_bits() {
    let mut folder = Folder::read("qwen3_5_moe-text");
    fuse_experts(&mut folder);
    assert!(folder.tensors.keys().any(|name| name.ends_with("experts.gate_up_proj")));
    assert_eq!(folder.run(), Ok(unchanged("qwen3_5_moe-text")));
    for tensor in folder.tensors.values_mut() {
        *tensor = f32_of(tensor);
    }
    assert_eq!(folder.run(), Ok(unchanged("qwen3_5_moe-text")), "in F32");
}

/// Proves that the comparison can fail: up before gate is another model.
#[test]
fn the_order_of_gate_and_up_matters() {
    let mut folder = Folder::read("qwen3_5_moe-text");
    fuse_experts(&mut folder);
    let tensor = folder.tensor("model.layers.0.mlp.experts.gate_up_proj");
    let half = 32 * 64 * 2;
    tensor.bytes.chunks_mut(2 * half).for_each(|expert| expert.rotate_left(half));
    assert_ne!(folder.run().expect("runs"), unchanged("qwen3_5_moe-text"));
}

#[test]
fn one_file_or_a_file_for_each_tensor() {
    for name in FAMILIES {
        let folder = Folder::read(name);
        assert_eq!(folder.run(), Ok(unchanged(name)), "{name} in one file");
        let (mut files, mut index) = (Vec::new(), Map::new());
        for (i, tensor) in folder.tensors.keys().enumerate() {
            let file = format!("model-{i}.safetensors");
            index.insert(tensor.clone(), json!(file));
            files.push((file, folder.file(|name| name == tensor)));
        }
        let index = json!({"metadata": {}, "weight_map": index}).to_string().into_bytes();
        files.push(("model.safetensors.index.json".into(), index));
        let files: Vec<_> = files.iter().map(|(n, b)| (n.as_str(), b.clone())).collect();
        let dir = folder.write_as(&files);
        let bits = run(dir.path(), &PROMPT, SimdLevel::detect());
        assert_eq!(bits, Ok(unchanged(name)), "{name} in {} files", files.len() - 1);
    }
}

#[test]
fn names_and_config_of_a_vision_model_give_the_same_bits() {
    let mut folder = Folder::read("qwen3_5_moe-text");
    let text = std::mem::take(&mut folder.tensors);
    for (name, tensor) in text {
        let wrapped = match name.strip_prefix("model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None => name,
        };
        folder.tensors.insert(wrapped, tensor);
    }
    folder.add("model.visual.patch_embed.proj.weight", Dtype::BF16, &[3], vec![0; 6]);
    folder.add("mtp.norm.weight", Dtype::F16, &[3], vec![0; 6]);
    folder.config = json!({"model_type": "qwen3_5_moe", "text_config": folder.config});
    assert_eq!(folder.run(), Ok(unchanged("qwen3_5_moe-text")));
}

/// A header may have any length, so tensors may lie at any address.
#[test]
fn weights_at_any_byte_offset_give_the_same_bits() {
    for name in FAMILIES {
        let mut folder = Folder::read(name);
        for wide in [false, true] {
            if wide {
                folder.tensors.values_mut().for_each(|tensor| *tensor = f32_of(tensor));
            }
            let file = folder.file(|_| true);
            for spaces in 1..8 {
                let dir = folder.write_as(&[("model.safetensors", lengthened(&file, spaces))]);
                let bits = run(dir.path(), &PROMPT, SimdLevel::detect());
                assert_eq!(bits, Ok(unchanged(name)), "{name}, {spaces} bytes on, F32: {wide}");
            }
        }
    }
}

/// The file with spaces after its header's JSON.
fn lengthened(file: &[u8], spaces: usize) -> Vec<u8> {
    let (length, rest) = file.split_first_chunk().expect("a length");
    let length = u64::from_le_bytes(*length) as usize;
    assert!(length.is_multiple_of(8), "the crate aligns");
    let mut out = ((length + spaces) as u64).to_le_bytes().to_vec();
    out.extend(&rest[..length]);
    out.extend(vec![b' '; spaces]);
    out.extend(&rest[length..]);
    out
}

#[test]
fn a_tied_model_needs_no_head_and_an_untied_one_does() {
    for name in FAMILIES {
        let mut folder = Folder::read(name);
        let embedding = folder.tensor("model.embed_tokens.weight").clone();
        folder.tensors.insert("lm_head.weight".into(), embedding);
        let copied = folder.run().expect("runs");
        assert_ne!(copied, unchanged(name), "another head");
        folder.take("lm_head.weight");
        super::folder::refused(folder.run(), &["no tensor lm_head.weight", "[320, 64]"]);
        folder.config["tie_word_embeddings"] = json!(true);
        assert_eq!(folder.run(), Ok(copied), "{name}");
    }
}

#[test]
fn a_wrapped_model_may_be_tied_outside() {
    let mut folder = Folder::read("qwen3_5_moe-text");
    let embedding = folder.tensor("model.embed_tokens.weight").clone();
    folder.tensors.insert("lm_head.weight".into(), embedding);
    let copied = folder.run().expect("runs");
    folder.take("lm_head.weight");
    let text = folder.config.clone();
    assert_eq!(text["tie_word_embeddings"], false);
    let mut with = |tied| {
        let config = json!({"text_config": text, "tie_word_embeddings": tied});
        folder.config = config;
        folder.run()
    };
    assert_eq!(with(json!(true)), Ok(copied));
    super::folder::refused(with(json!(false)), &["no tensor lm_head.weight"]);
    super::folder::refused(with(json!("true")), &["tie_word_embeddings is \"true\""]);
}

/// The prompt in one piece equals the prompt token by token from a file of another layout.
#[test]
fn the_layout_and_the_chunks_are_independent() {
    let mut folder = Folder::read("qwen3_5_moe-text");
    fuse_experts(&mut folder);
    let dir = folder.write();
    for count in 1..PROMPT.len() {
        let level = SimdLevel::detect();
        let ours = run(dir.path(), &PROMPT[..count], level);
        assert_eq!(ours, run(&golden("qwen3_5_moe-text"), &PROMPT[..count], level));
    }
}
