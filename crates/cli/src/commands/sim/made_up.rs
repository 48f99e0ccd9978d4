//! Flags of a trace that a seed makes up.

use anyhow::Result;
use clap::Args;
use engine::tiers::Shape;
use engine::tiers::trace::Trace;
use lab::sim::{Synthetic, generate};

use crate::failure::BadInput;
use crate::flags::{at_least_one, share, size};

/// What to make up.
#[derive(Args)]
#[command(next_help_heading = "With --synthetic")]
pub struct MadeUpArgs {
    /// Layers with routed experts
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = at_least_one)]
    layers: usize,

    /// Routed experts of a layer
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    experts: usize,

    /// Experts of a token in a layer
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    top_k: usize,

    /// Stored bytes of one expert
    #[arg(long, value_name = "SIZE", default_value = "18874368", value_parser = size)]
    expert_bytes: u64,

    /// Decoded tokens
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = at_least_one)]
    tokens: usize,

    /// How much hotter some experts are for good; 0 not at all, 2 very
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    skew: f64,

    /// How much hotter some experts are while a topic lasts
    #[arg(long, value_name = "S", default_value_t = 1.4)]
    topic_skew: f64,

    /// Mean length of a topic
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = at_least_one)]
    topic_tokens: usize,

    /// Tokens of a prompt before each topic
    #[arg(long, value_name = "N", default_value_t = 0)]
    prompt_tokens: usize,

    /// Share of a token's experts that the token before used
    #[arg(long, value_name = "SHARE", default_value = "0.35", value_parser = share)]
    reuse: f64,

    /// Share of a layer's experts that the layer before names
    #[arg(long, value_name = "SHARE", default_value = "0.7", value_parser = share)]
    accuracy: f64,

    /// The same seed gives the same trace
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl MadeUpArgs {
    /// The trace.
    ///
    /// # Errors
    /// Numbers without sense.
    pub fn generate(&self) -> Result<Trace> {
        let spec = Synthetic {
            shape: Shape { layers: self.layers, experts: self.experts, top_k: self.top_k },
            expert_bytes: self.expert_bytes,
            tokens: self.tokens,
            skew: self.skew,
            topic_skew: self.topic_skew,
            topic_tokens: self.topic_tokens,
            prompt_tokens: self.prompt_tokens,
            reuse: self.reuse,
            accuracy: self.accuracy,
            seed: self.seed,
        };
        generate(&spec).map_err(|source| BadInput::Synthetic { source }.into())
    }
}
