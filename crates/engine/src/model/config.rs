//! Model families as descriptions: which parts a layer has, and their sizes.

use numerics::op::delta_rule::DeltaShape;
use serde_json::{Value, json};
use store::checkpoint::Checkpoint;

use super::error::ConfigError;
use super::json::{Fields, bad};
use crate::tiers::Shape;

/// A family, by the `model_type` of its config.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Qwen3.5-MoE, text part.
    Qwen35Moe,
    /// Qwen3-MoE.
    Qwen3Moe,
}

const KNOWN: &str = "qwen3_5_moe, qwen3_5_moe_text, qwen3_moe";
/// More layers than any model has; a list of them still fits in memory.
const LAYERS_MAX: usize = 1 << 16;
/// No tensor has more elements, so sums of a few tensors' bytes fit in a usize.
const ELEMENTS_MAX: usize = 1 << 58;

/// The `model_type`s that can be run, for messages.
pub fn known_families() -> &'static str {
    KNOWN
}

impl Family {
    fn parse(model_type: &str) -> Result<Family, ConfigError> {
        match model_type.strip_suffix("_text").unwrap_or(model_type) {
            "qwen3_5_moe" => Ok(Family::Qwen35Moe),
            "qwen3_moe" => Ok(Family::Qwen3Moe),
            _ => Err(ConfigError::UnknownFamily { found: model_type.into(), known: KNOWN }),
        }
    }

    /// The name of the family.
    pub fn name(self) -> &'static str {
        match self {
            Family::Qwen35Moe => "qwen3_5_moe",
            Family::Qwen3Moe => "qwen3_moe",
        }
    }
}

/// How a layer mixes tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mixer {
    /// Softmax attention over all positions.
    Attention,
    /// The gated delta net.
    DeltaNet,
}

/// What follows the mixer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeedForward {
    /// Routed experts.
    Moe,
    /// One MLP of this width.
    Dense(usize),
}

/// The routed experts of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Moe {
    /// How many there are.
    pub experts: usize,
    /// How many a token uses.
    pub top_k: usize,
    /// Width of each.
    pub width: usize,
    /// Width of the shared expert, if there is one.
    pub shared_width: Option<usize>,
    /// Divide by the sum over the selected experts, not over all.
    pub norm_top_k: bool,
}

/// The sizes of a delta-net layer.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNet {
    /// Heads and their widths.
    pub shape: DeltaShape,
    /// Inputs that the convolution sees.
    pub taps: usize,
}

impl DeltaNet {
    /// Width of q, k and v together.
    pub fn channels(&self) -> usize {
        let s = self.shape;
        2 * s.key_heads * s.key_dim + s.value_heads * s.value_dim
    }
}

/// Everything a forward pass needs to know about a checkpoint but its weights.
#[derive(Clone, Debug)]
pub struct Description {
    /// The family.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Positions the model was made for.
    pub positions_max: usize,
    /// Mixer and feed-forward of every layer.
    pub layers: Vec<(Mixer, FeedForward)>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Dimensions of a head that are rotated.
    pub rotated: usize,
    /// Base of the rotary frequencies.
    pub theta: f64,
    /// RMSNorm's epsilon.
    pub eps: f32,
    /// The norm weight is 1 + w.
    pub centred: bool,
    /// q_proj also gives a gate for the output.
    pub output_gate: bool,
    /// The routed experts.
    pub moe: Moe,
    /// The delta net, where a layer has one.
    pub delta: Option<DeltaNet>,
    /// lm_head is the embedding, unless the checkpoint has its own.
    pub tied: bool,
}

impl Description {
    /// Its routed experts, as the tiers count them.
    pub fn expert_shape(&self) -> Shape {
        Shape { layers: self.layers.len(), experts: self.moe.experts, top_k: self.moe.top_k }
    }

    /// Reads the text part of a checkpoint's config.json.
    ///
    /// A model that is wrapped in a vision-language model may say outside whether lm_head is tied.
    ///
    /// # Errors
    /// As [`Description::parse`].
    pub fn of(checkpoint: &Checkpoint) -> Result<Description, ConfigError> {
        let mut description = Description::parse(checkpoint.text_config())?;
        let outer = Fields { json: checkpoint.config(), family: description.family.name() };
        description.tied |= outer.flag("tie_word_embeddings", false)?;
        Ok(description)
    }

    /// Reads the text part of a config.json.
    ///
    /// # Errors
    /// A family that is not known, a field that is missing or not computable here.
    pub fn parse(config: &Value) -> Result<Description, ConfigError> {
        let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or("");
        let family = Family::parse(model_type)?;
        let fields = Fields { json: config, family: family.name() };
        refuse_variants(&fields)?;
        let qwen35 = family == Family::Qwen35Moe;
        let hidden = fields.size(&["hidden_size"])?;
        let heads = fields.size(&["num_attention_heads"])?;
        let head_dim = fields.optional_size(&["head_dim"])?.unwrap_or(hidden / heads);
        if head_dim == 0 {
            let expected = "at most hidden_size where there is no head_dim";
            return Err(bad("num_attention_heads", &json!(heads), expected));
        }
        let layers = layers(&fields, qwen35)?;
        let delta = layers.iter().any(|l| l.0 == Mixer::DeltaNet);
        let (theta, rotated) = rope(&fields, head_dim, if qwen35 { 0.25 } else { 1.0 })?;
        let description = Description {
            family,
            hidden,
            vocab: fields.size(&["vocab_size"])?,
            positions_max: fields.size(&["max_position_embeddings"])?,
            layers,
            heads,
            kv_heads: fields.optional_size(&["num_key_value_heads"])?.unwrap_or(heads),
            head_dim,
            rotated,
            theta,
            eps: eps(&fields)?,
            centred: qwen35,
            output_gate: qwen35 && fields.flag("attn_output_gate", true)?,
            moe: moe(&fields, qwen35)?,
            delta: if delta { Some(delta_net(&fields)?) } else { None },
            tied: fields.flag("tie_word_embeddings", false)?,
        };
        divides("num_key_value_heads", description.kv_heads, heads)?;
        check_products(&description)?;
        Ok(description)
    }
}

/// Refuses sizes of which no tensor can exist: elsewhere, their products are taken unchecked.
fn check_products(d: &Description) -> Result<(), ConfigError> {
    let mut products = vec![
        ("vocab_size", vec![d.vocab, d.hidden]),
        ("head_dim", vec![2, d.heads, d.head_dim, d.hidden]),
        ("moe_intermediate_size", vec![2, d.moe.experts, d.moe.width, d.hidden]),
    ];
    if let Some(width) = d.moe.shared_width {
        products.push(("shared_expert_intermediate_size", vec![width, d.hidden]));
    }
    for (_, feed_forward) in &d.layers {
        if let FeedForward::Dense(width) = feed_forward {
            products.push(("intermediate_size", vec![*width, d.hidden]));
        }
    }
    if let Some(DeltaNet { shape: s, taps }) = d.delta {
        let widest = d.hidden.max(taps).max(s.key_dim);
        products.push(("linear_key_head_dim", vec![2, s.key_heads, s.key_dim, widest]));
        products.push(("linear_value_head_dim", vec![s.value_heads, s.value_dim, widest]));
    }
    for (field, factors) in products {
        let product = factors.iter().try_fold(1usize, |product, f| product.checked_mul(*f));
        if product.is_none_or(|elements| elements > ELEMENTS_MAX) {
            let list: Vec<String> = factors.iter().map(usize::to_string).collect();
            let found = format!("part of {}", list.join(" * "));
            let expected = "sizes whose product fits the address space".to_string();
            return Err(ConfigError::Value { field, found, expected });
        }
    }
    Ok(())
}

fn eps(fields: &Fields<'_>) -> Result<f32, ConfigError> {
    let eps = fields.number("rms_norm_eps")?.unwrap_or(1e-6);
    if eps >= 0.0 && (eps as f32).is_finite() {
        return Ok(eps as f32);
    }
    Err(bad("rms_norm_eps", &json!(eps), "a number of f32 from 0 up"))
}

/// Refuses what would silently compute something else.
fn refuse_variants(fields: &Fields<'_>) -> Result<(), ConfigError> {
    fields.only("hidden_act", &[json!("silu")])?;
    fields.only("attention_bias", &[json!(false)])?;
    fields.only("use_sliding_window", &[json!(false)])?;
    fields.only("quantization_config", &[])
}

fn layers(fields: &Fields<'_>, qwen35: bool) -> Result<Vec<(Mixer, FeedForward)>, ConfigError> {
    let count = fields.size(&["num_hidden_layers"])?;
    if count > LAYERS_MAX {
        return Err(bad("num_hidden_layers", &json!(count), &format!("at most {LAYERS_MAX}")));
    }
    let mixers = match fields.list("layer_types")? {
        Some(list) if list.len() == count => {
            list.iter().map(mixer).collect::<Result<Vec<_>, _>>()?
        }
        Some(list) => {
            let expected = format!("{count} entries (num_hidden_layers)");
            return Err(bad("layer_types", &json!(list.len()), &expected));
        }
        None if qwen35 => {
            let step = fields.optional_size(&["full_attention_interval"])?.unwrap_or(4);
            let full = |i| (i + 1) % step == 0;
            (0..count).map(|i| if full(i) { Mixer::Attention } else { Mixer::DeltaNet }).collect()
        }
        None => vec![Mixer::Attention; count],
    };
    let step = fields.optional_size(&["decoder_sparse_step"])?.unwrap_or(1);
    let dense = fields.list("mlp_only_layers")?.unwrap_or(&[]);
    if let Some(entry) = dense.iter().find(|entry| !entry.is_u64()) {
        return Err(bad("mlp_only_layers", entry, "whole numbers"));
    }
    let is_dense = |i: usize| dense.contains(&json!(i)) || !(i + 1).is_multiple_of(step);
    let mut out = Vec::with_capacity(count);
    for (i, mixer) in mixers.into_iter().enumerate() {
        let feed_forward = if is_dense(i) {
            FeedForward::Dense(fields.size(&["intermediate_size"])?)
        } else {
            FeedForward::Moe
        };
        out.push((mixer, feed_forward));
    }
    Ok(out)
}

fn mixer(name: &Value) -> Result<Mixer, ConfigError> {
    match name.as_str() {
        Some("full_attention") => Ok(Mixer::Attention),
        Some("linear_attention") => Ok(Mixer::DeltaNet),
        _ => Err(bad("layer_types", name, "full_attention or linear_attention")),
    }
}

/// Theta and the rotated dimensions.
fn rope(fields: &Fields<'_>, head_dim: usize, part: f64) -> Result<(f64, usize), ConfigError> {
    let parameters = fields.nested("rope_parameters")?;
    for place in [parameters, fields.nested("rope_scaling")?] {
        let kind = place.text("rope_type")?.or(place.text("type")?);
        // Multimodal sections with three equal position ids are plain rotary embedding.
        if let Some(found) = kind.filter(|k| !matches!(*k, "default" | "mrope")) {
            return Err(ConfigError::RopeType { found: found.to_string() });
        }
    }
    let either = |name| Ok::<_, ConfigError>(parameters.number(name)?.or(fields.number(name)?));
    let theta = either("rope_theta")?.unwrap_or(10_000.0);
    if theta < 1.0 {
        return Err(bad("rope_theta", &json!(theta), "at least 1"));
    }
    let part = either("partial_rotary_factor")?.unwrap_or(part);
    let rotated = (head_dim as f64 * part) as usize;
    if !rotated.is_multiple_of(2) || rotated > head_dim || part < 0.0 {
        return Err(bad("partial_rotary_factor", &json!(part), "an even number of rotated dims"));
    }
    Ok((theta, rotated))
}

fn moe(fields: &Fields<'_>, qwen35: bool) -> Result<Moe, ConfigError> {
    let experts = fields.size(&["num_experts", "num_local_experts"])?;
    let top_k = fields.size(&["num_experts_per_tok"])?;
    if top_k > experts {
        return Err(bad("num_experts_per_tok", &json!(top_k), &format!("at most {experts}")));
    }
    Ok(Moe {
        experts,
        top_k,
        width: fields.size(&["moe_intermediate_size"])?,
        shared_width: if qwen35 {
            Some(fields.size(&["shared_expert_intermediate_size"])?)
        } else {
            None
        },
        // Readers of qwen3_moe disagree on what its absence means, so it must be there.
        norm_top_k: if qwen35 {
            fields.flag("norm_topk_prob", true)?
        } else {
            fields.required_flag("norm_topk_prob")?
        },
    })
}

fn delta_net(fields: &Fields<'_>) -> Result<DeltaNet, ConfigError> {
    let shape = DeltaShape {
        key_heads: fields.size(&["linear_num_key_heads"])?,
        value_heads: fields.size(&["linear_num_value_heads"])?,
        key_dim: fields.size(&["linear_key_head_dim"])?,
        value_dim: fields.size(&["linear_value_head_dim"])?,
    };
    divides("linear_num_key_heads", shape.key_heads, shape.value_heads)?;
    Ok(DeltaNet { shape, taps: fields.size(&["linear_conv_kernel_dim"])? })
}

fn divides(field: &'static str, part: usize, whole: usize) -> Result<(), ConfigError> {
    if whole.is_multiple_of(part) {
        return Ok(());
    }
    Err(bad(field, &json!(part), &format!("a divisor of {whole}")))
}
