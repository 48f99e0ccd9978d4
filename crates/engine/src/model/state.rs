//! What a session carries from token to token.

use half::bf16;
use numerics::op::attention::KeyValues;

use super::config::{Description, Mixer};
use super::gpu::{GpuLayerState, TokenPlan};

/// The state of a sequence: positions seen, and each layer's memory of them.
pub struct State {
    pub(super) positions: usize,
    pub(super) layers: Vec<LayerState>,
    /// How the next token runs on a GPU, if that was recorded.
    pub(super) plan: Option<Box<TokenPlan>>,
}

pub(super) enum LayerState {
    Attention(KeyValues),
    DeltaNet(DeltaState),
    /// Either of them on a GPU.
    Gpu(GpuLayerState),
}

/// A delta-net layer's memory.
#[derive(Clone)]
pub(super) struct DeltaState {
    /// The last inputs of the convolution, `[taps - 1, channels]`; zeros before the start.
    pub(super) history: Vec<bf16>,
    /// S, `[value_heads, value_dim, key_dim]`.
    pub(super) memory: Vec<f32>,
}

impl State {
    /// Before the first token.
    pub fn new(d: &Description) -> State {
        let layers = d.layers.iter().map(|(mixer, _)| match mixer {
            Mixer::Attention => LayerState::Attention(KeyValues::new(d.kv_heads, d.head_dim)),
            Mixer::DeltaNet => {
                let net = d.delta.expect("the description has one where a layer does");
                LayerState::DeltaNet(DeltaState {
                    history: vec![bf16::ZERO; (net.taps - 1) * net.channels()],
                    memory: vec![0.0; net.shape.state_len()],
                })
            }
        });
        State { positions: 0, layers: layers.collect(), plan: None }
    }

    /// Tokens seen.
    pub fn positions(&self) -> usize {
        self.positions
    }
}
