//! From a checkpoint to layers: tensor names and shapes, in one place.

use numerics::op::conv::Taps;
use store::checkpoint::Checkpoint;
use store::experts::{ExpertMap, ExpertShape, Projection};

use super::attention::Attention;
use super::config::{DeltaNet, Description, FeedForward, Mixer};
use super::delta_net::DeltaNetLayer;
use super::error::ModelError;
use super::experts::{Experts, SharedExpert};
use super::mlp::{GateUp, Mlp};
use super::weight::{Weight, vector};
use crate::index::LayerIdx;

/// One layer's weights.
pub(super) struct Layer {
    pub(super) input_norm: Vec<f32>,
    pub(super) mixer: MixerLayer,
    pub(super) post_norm: Vec<f32>,
    pub(super) feed_forward: FeedForwardLayer,
}

pub(super) enum MixerLayer {
    Attention(Box<Attention>),
    DeltaNet(Box<DeltaNetLayer>),
}

pub(super) enum FeedForwardLayer {
    Moe(Box<Experts>),
    Dense(Box<Mlp>),
}

/// Reads tensors for a description.
pub(super) struct Loader<'a> {
    pub(super) from: &'a Checkpoint,
    pub(super) d: &'a Description,
}

impl Loader<'_> {
    pub(super) fn layer(&self, index: LayerIdx) -> Result<Layer, ModelError> {
        let p = format!("model.layers.{}.", index.0);
        let (mixer, feed_forward) = self.d.layers[index.0];
        Ok(Layer {
            input_norm: self.norm(&format!("{p}input_layernorm.weight"), self.d.hidden)?,
            mixer: self.mixer(&p, mixer)?,
            post_norm: self.norm(&format!("{p}post_attention_layernorm.weight"), self.d.hidden)?,
            feed_forward: self.feed_forward(&format!("{p}mlp."), feed_forward)?,
        })
    }

    fn mixer(&self, p: &str, kind: Mixer) -> Result<MixerLayer, ModelError> {
        Ok(match kind {
            Mixer::Attention => {
                MixerLayer::Attention(Box::new(self.attention(&format!("{p}self_attn."))?))
            }
            Mixer::DeltaNet => {
                MixerLayer::DeltaNet(Box::new(self.delta_net(&format!("{p}linear_attn."))?))
            }
        })
    }

    fn feed_forward(&self, p: &str, kind: FeedForward) -> Result<FeedForwardLayer, ModelError> {
        Ok(match kind {
            FeedForward::Moe => FeedForwardLayer::Moe(Box::new(self.experts(p)?)),
            FeedForward::Dense(width) => FeedForwardLayer::Dense(Box::new(self.mlp(p, width)?)),
        })
    }

    /// A norm weight as it multiplies: 1 + w (an f32 sum) where the family is zero-centred.
    pub(super) fn norm(&self, name: &str, width: usize) -> Result<Vec<f32>, ModelError> {
        let mut w = vector(self.from, name, &[width])?;
        if self.d.centred {
            w.iter_mut().for_each(|v| *v += 1.0);
        }
        Ok(w)
    }

    fn weight(&self, name: String, rows: usize, cols: usize) -> Result<Weight, ModelError> {
        Weight::load(self.from, &name, rows, cols)
    }

    fn attention(&self, p: &str) -> Result<Attention, ModelError> {
        let d = self.d;
        let (q, kv) = (d.heads * d.head_dim, d.kv_heads * d.head_dim);
        let q_rows = if d.output_gate { 2 * q } else { q };
        Ok(Attention {
            q_proj: self.weight(format!("{p}q_proj.weight"), q_rows, d.hidden)?,
            k_proj: self.weight(format!("{p}k_proj.weight"), kv, d.hidden)?,
            v_proj: self.weight(format!("{p}v_proj.weight"), kv, d.hidden)?,
            o_proj: self.weight(format!("{p}o_proj.weight"), d.hidden, q)?,
            q_norm: self.norm(&format!("{p}q_norm.weight"), d.head_dim)?,
            k_norm: self.norm(&format!("{p}k_norm.weight"), d.head_dim)?,
        })
    }

    fn delta_net(&self, p: &str) -> Result<DeltaNetLayer, ModelError> {
        let net: DeltaNet = self.d.delta.expect("the description has one where a layer does");
        let (s, hidden) = (net.shape, self.d.hidden);
        let values = s.value_heads * s.value_dim;
        let conv = format!("{p}conv1d.weight");
        let taps = vector(self.from, &conv, &[net.channels(), 1, net.taps])?;
        Ok(DeltaNetLayer {
            net,
            qkv: self.weight(format!("{p}in_proj_qkv.weight"), net.channels(), hidden)?,
            z: self.weight(format!("{p}in_proj_z.weight"), values, hidden)?,
            b: self.weight(format!("{p}in_proj_b.weight"), s.value_heads, hidden)?,
            a: self.weight(format!("{p}in_proj_a.weight"), s.value_heads, hidden)?,
            taps: Taps::new(&taps, net.taps),
            a_log: vector(self.from, &format!("{p}A_log"), &[s.value_heads])?,
            dt_bias: vector(self.from, &format!("{p}dt_bias"), &[s.value_heads])?,
            norm: vector(self.from, &format!("{p}norm.weight"), &[s.value_dim])?,
            out: self.weight(format!("{p}out_proj.weight"), hidden, values)?,
        })
    }

    fn mlp(&self, p: &str, width: usize) -> Result<Mlp, ModelError> {
        let hidden = self.d.hidden;
        let gate = self.weight(format!("{p}gate_proj.weight"), width, hidden)?;
        let up = self.weight(format!("{p}up_proj.weight"), width, hidden)?;
        let down = self.weight(format!("{p}down_proj.weight"), hidden, width)?;
        Ok(Mlp { gate_up: GateUp::Split(gate, up), down })
    }

    fn experts(&self, p: &str) -> Result<Experts, ModelError> {
        let moe = self.d.moe;
        let shared = match moe.shared_width {
            Some(width) => Some(SharedExpert {
                gate: self.weight(format!("{p}shared_expert_gate.weight"), 1, self.d.hidden)?,
                mlp: self.mlp(&format!("{p}shared_expert."), width)?,
            }),
            None => None,
        };
        Ok(Experts {
            moe,
            router: self.weight(format!("{p}gate.weight"), moe.experts, self.d.hidden)?,
            shared,
        })
    }

    /// Where the routed experts lie: as given, and of the right shapes, or in place.
    pub(super) fn expert_map(&self, given: Option<ExpertMap>) -> Result<ExpertMap, ModelError> {
        let shapes: Vec<Option<ExpertShape>> = self
            .d
            .layers
            .iter()
            .map(|(_, feed_forward)| match feed_forward {
                FeedForward::Moe => Some(self.expert_shape()),
                FeedForward::Dense { .. } => None,
            })
            .collect();
        match given {
            None => Ok(ExpertMap::in_place(self.from, &shapes)?),
            Some(map) => check_shapes(map, &shapes),
        }
    }

    fn expert_shape(&self) -> ExpertShape {
        let moe = self.d.moe;
        ExpertShape { experts: moe.experts, width: moe.width, hidden: self.d.hidden }
    }
}

/// The blocks of a store against the description.
fn check_shapes(map: ExpertMap, layers: &[Option<ExpertShape>]) -> Result<ExpertMap, ModelError> {
    for (layer, shape) in layers.iter().enumerate() {
        let Some(ExpertShape { experts, width, hidden }) = *shape else { continue };
        let held = if layer < map.layer_count() { map.expert_count(layer as u32) } else { 0 };
        let (layer, expert) = (layer as u32, held as u32);
        if held != experts {
            let (expected, found) = ([experts, hidden], [held, hidden]);
            let projection = "the number";
            return Err(ModelError::BlockShape { layer, expert, projection, expected, found });
        }
        for block in (0..held as u32).flat_map(|e| map.blocks(layer, e)) {
            let expected = match block.id.projection {
                Projection::GateUp => [2 * width, hidden],
                Projection::Gate | Projection::Up => [width, hidden],
                Projection::Down => [hidden, width],
            };
            let (found, expert) = ([block.rows, block.cols], block.id.expert);
            let projection = block.id.projection.name();
            if found != expected {
                return Err(ModelError::BlockShape { layer, expert, projection, expected, found });
            }
        }
    }
    Ok(map)
}
