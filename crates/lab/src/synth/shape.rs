//! The shapes that are known by name.

use std::str::FromStr;

use anyhow::{Error, bail};

pub const PRESET_NAMES: [&str; 4] =
    ["qwen3.5-122b-a10b", "qwen3.5-35b-a3b", "qwen3-30b-a3b", "tiny"];

/// A known model to be like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    Qwen35Moe122b,
    Qwen35Moe35b,
    Qwen3Moe30b,
    /// The shape of models/tiny-moe, without its multi-token prediction.
    Tiny,
}

/// Every number that decides a tensor's shape or a line of config.json.
#[derive(Clone, Debug)]
pub struct Dimensions {
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub experts: usize,
    pub top_k: usize,
    pub expert_width: usize,
    pub vocab: usize,
    pub max_positions: usize,
    pub rope_theta: f64,
    pub eos_token: usize,
    pub pad_token: usize,
    pub family: Family,
}

/// What one family has and the other has not.
#[derive(Clone, Debug)]
pub enum Family {
    /// qwen3_5_moe: delta-net layers, output gates, a shared expert, fused experts, zero-centred
    /// norms.
    Hybrid(Hybrid),
    /// qwen3_moe: full attention everywhere, one tensor per expert projection.
    Plain {
        /// Width of dense layers: in the config, though no layer is dense.
        dense_width: usize,
    },
}

#[derive(Clone, Debug)]
pub struct Hybrid {
    pub key_heads: usize,
    pub key_dim: usize,
    pub value_heads: usize,
    pub value_dim: usize,
    pub conv_taps: usize,
    pub shared_width: usize,
    /// Every so many layers one has full attention, the others a delta net.
    pub full_attention_interval: usize,
    pub mrope_section: [usize; 3],
}

impl Hybrid {
    /// Channels of the convolution: queries, keys and values side by side.
    pub fn qkv_width(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_width()
    }

    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    pub fn is_full_attention(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.full_attention_interval)
    }
}

impl FromStr for Shape {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Ok(match name {
            "qwen3.5-122b-a10b" => Self::Qwen35Moe122b,
            "qwen3.5-35b-a3b" => Self::Qwen35Moe35b,
            "qwen3-30b-a3b" => Self::Qwen3Moe30b,
            "tiny" => Self::Tiny,
            _ => bail!("no shape {name}; expected one of {}", PRESET_NAMES.join(", ")),
        })
    }
}

impl Shape {
    pub fn name(self) -> &'static str {
        match self {
            Self::Qwen35Moe122b => "qwen3.5-122b-a10b",
            Self::Qwen35Moe35b => "qwen3.5-35b-a3b",
            Self::Qwen3Moe30b => "qwen3-30b-a3b",
            Self::Tiny => "tiny",
        }
    }

    /// Source: the config.json of each published checkpoint, its text part.
    pub fn dimensions(self) -> Dimensions {
        match self {
            Self::Qwen35Moe122b => qwen35_moe_122b(),
            Self::Qwen35Moe35b => qwen35_moe_35b(),
            Self::Qwen3Moe30b => qwen3_moe_30b(),
            Self::Tiny => tiny(),
        }
    }
}

fn qwen35_moe_122b() -> Dimensions {
    Dimensions {
        hidden: 3072,
        layers: 48,
        heads: 32,
        kv_heads: 2,
        head_dim: 256,
        experts: 256,
        top_k: 8,
        expert_width: 1024,
        vocab: 248_320,
        max_positions: 262_144,
        rope_theta: 1e7,
        eos_token: 248_044,
        pad_token: 248_044,
        family: Family::Hybrid(Hybrid {
            key_heads: 16,
            key_dim: 128,
            value_heads: 64,
            value_dim: 128,
            conv_taps: 4,
            shared_width: 1024,
            full_attention_interval: 4,
            mrope_section: [11, 11, 10],
        }),
    }
}

fn qwen35_moe_35b() -> Dimensions {
    Dimensions {
        hidden: 2048,
        layers: 40,
        heads: 16,
        expert_width: 512,
        family: Family::Hybrid(Hybrid {
            key_heads: 16,
            key_dim: 128,
            value_heads: 32,
            value_dim: 128,
            conv_taps: 4,
            shared_width: 512,
            full_attention_interval: 4,
            mrope_section: [11, 11, 10],
        }),
        ..qwen35_moe_122b()
    }
}

fn qwen3_moe_30b() -> Dimensions {
    Dimensions {
        hidden: 2048,
        layers: 48,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        experts: 128,
        top_k: 8,
        expert_width: 768,
        vocab: 151_936,
        max_positions: 40_960,
        rope_theta: 1e6,
        eos_token: 151_645,
        pad_token: 151_643,
        family: Family::Plain { dense_width: 6144 },
    }
}

fn tiny() -> Dimensions {
    Dimensions {
        hidden: 192,
        layers: 8,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        experts: 32,
        top_k: 8,
        expert_width: 64,
        vocab: 4096,
        max_positions: 2048,
        rope_theta: 1e7,
        eos_token: 4093,
        pad_token: 4093,
        family: Family::Hybrid(Hybrid {
            key_heads: 2,
            key_dim: 32,
            value_heads: 4,
            value_dim: 32,
            conv_taps: 4,
            shared_width: 64,
            full_attention_interval: 4,
            mrope_section: [3, 3, 2],
        }),
    }
}
