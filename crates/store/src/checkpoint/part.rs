//! Which part of a model a tensor belongs to, judged by its name alone.

/// A part of a model, for counting bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    Embedding,
    /// Full attention, its own norms included.
    Attention,
    /// Linear attention, its own norm included.
    DeltaNet,
    Router,
    /// Routed experts.
    Experts,
    /// Shared experts and their gate.
    SharedExpert,
    DenseMlp,
    /// Norms of the residual stream.
    Norm,
    Head,
    /// Multi-token prediction: kept, not used.
    Mtp,
    /// The vision tower: kept, not used.
    Vision,
    Other,
}

impl Part {
    /// True for the parts that text generation never reads.
    pub fn is_unused(self) -> bool {
        matches!(self, Self::Mtp | Self::Vision)
    }
}

/// Tensors and bytes of one part of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartSize {
    pub part: Part,
    pub tensor_count: usize,
    pub size_bytes: u64,
}

/// The name without the wrapping of a vision-language model: `model.language_model.X` is `model.X`.
pub fn canonical_name(name: &str) -> String {
    match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => name.to_string(),
    }
}

/// The part that a tensor name, wrapped or not, belongs to.
pub fn part_of(name: &str) -> Part {
    let name = name.strip_prefix("model.").unwrap_or(name);
    let name = name.strip_prefix("language_model.").unwrap_or(name);
    let segments: Vec<&str> = name.split('.').collect();
    match segments.as_slice() {
        ["mtp", ..] => Part::Mtp,
        ["visual" | "vision_tower", ..] => Part::Vision,
        ["embed_tokens", ..] => Part::Embedding,
        ["lm_head", ..] => Part::Head,
        ["norm", ..] => Part::Norm,
        ["layers", _, in_layer @ ..] => part_in_layer(in_layer),
        _ => Part::Other,
    }
}

fn part_in_layer(segments: &[&str]) -> Part {
    match segments {
        ["self_attn", ..] => Part::Attention,
        ["linear_attn", ..] => Part::DeltaNet,
        ["mlp" | "block_sparse_moe", in_mlp, ..] => part_in_mlp(in_mlp),
        [norm, ..] if norm.ends_with("layernorm") => Part::Norm,
        _ => Part::Other,
    }
}

fn part_in_mlp(segment: &str) -> Part {
    match segment {
        "gate" => Part::Router,
        "experts" => Part::Experts,
        "shared_expert" | "shared_experts" | "shared_expert_gate" => Part::SharedExpert,
        "gate_proj" | "up_proj" | "down_proj" => Part::DenseMlp,
        _ => Part::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, part: Part) {
        assert_eq!(part_of(name), part, "{name}");
        if let Some(rest) = name.strip_prefix("model.") {
            let wrapped = format!("model.language_model.{rest}");
            assert_eq!(part_of(&wrapped), part, "{wrapped}");
            assert_eq!(canonical_name(&wrapped), name);
        }
    }

    #[test]
    fn every_spelling_has_its_part() {
        check("model.embed_tokens.weight", Part::Embedding);
        check("model.layers.3.self_attn.q_norm.weight", Part::Attention);
        check("model.layers.0.linear_attn.A_log", Part::DeltaNet);
        check("model.layers.0.mlp.gate.weight", Part::Router);
        check("model.layers.0.block_sparse_moe.gate.weight", Part::Router);
        check("model.layers.0.mlp.experts.gate_up_proj", Part::Experts);
        check("model.layers.0.mlp.experts.17.up_proj.weight", Part::Experts);
        check("model.layers.0.block_sparse_moe.experts.7.w2.weight", Part::Experts);
        check("model.layers.0.mlp.shared_expert.up_proj.weight", Part::SharedExpert);
        check("model.layers.0.mlp.shared_expert_gate.weight", Part::SharedExpert);
        check("model.layers.0.mlp.gate_proj.weight", Part::DenseMlp);
        check("model.layers.0.input_layernorm.weight", Part::Norm);
        check("model.norm.weight", Part::Norm);
        check("lm_head.weight", Part::Head);
        check("mtp.layers.0.mlp.experts.down_proj", Part::Mtp);
        check("model.mtp.fc.weight", Part::Mtp);
        check("model.visual.blocks.0.attn.qkv.weight", Part::Vision);
        check("visual.patch_embed.proj.weight", Part::Vision);
        check("model.layers.0.ple.conv1d.weight", Part::Other);
        check("", Part::Other);
    }
}
