//! The network on a GPU: the same layers, weights and state in its memory.
//!
//! Bits do not depend on the place, so this is another way to the same logits: what a layer
//! computes is said in the files of the same names in model/.

mod attention;
mod delta_net;
mod experts;
mod inputs;
mod mlp;
mod plan;
mod rows;
mod sites;
mod slots;
mod split;
mod state;

use std::sync::{Mutex, MutexGuard};

use half::bf16;
use numerics::cuda::{Buffer, Gpu, GpuError, LinearJob, Site};

use super::error::ModelError;
use super::head::Logits;
use super::load::{FeedForwardLayer, Layer, MixerLayer};
use super::network::Model;
use super::state::{LayerState, State};
use crate::counters::PhaseCounters;
use crate::index::{LayerIdx, TokenId};
use crate::tiers::policy::Policy;
use crate::tiers::vram::Vram;
use attention::GpuAttention;
use delta_net::GpuDeltaNet;
use experts::{GpuExperts, Place};
use inputs::Inputs;
use mlp::{Bank, GpuMlp, Use};
use rows::{Projection, Uploader};
use sites::Sites;
use slots::{Slots, slot_bytes};
use split::Split;

pub(super) use plan::TokenPlan;
pub use split::CpuShare;
pub(super) use state::GpuLayerState;

/// What a model has on a GPU.
pub(super) struct GpuModel {
    gpu: Gpu,
    layers: Vec<GpuLayer>,
    norm: Buffer<f32>,
    norm_site: Site,
    head: Projection,
    sites: Sites,
    slots: Mutex<Slots>,
}

struct GpuLayer {
    input_norm: Buffer<f32>,
    post_norm: Buffer<f32>,
    norm_sites: [Site; 2],
    mixer: GpuMixer,
    feed_forward: GpuFeedForward,
}

enum GpuMixer {
    Attention(GpuAttention),
    DeltaNet(GpuDeltaNet),
}

enum GpuFeedForward {
    Moe(Box<GpuExperts>),
    Dense(GpuMlp, [Site; 2]),
}

/// What of a model's experts a GPU does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GpuWish {
    pub vram: VramWish,
    /// Which of them stay.
    pub policy: Policy,
    /// What the processor takes of the others.
    pub cpu: CpuShare,
}

/// How much of a GPU's memory experts may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VramWish {
    /// What is free, less what a session needs.
    Free,
    /// In all, dense weights counted; none stay where that leaves no room.
    Bytes(u64),
    /// This many experts.
    Slots(usize),
}

/// Memory of a GPU beside weights: states of sessions, activations, the driver's own.
const RESERVE_BYTES: u64 = 300 << 20;
/// Experts that pass through at a time: their copies and products overlap.
const PASSING_SLOTS: usize = 16;

impl GpuModel {
    /// Copies the dense weights, and takes memory for experts.
    pub(super) fn upload(model: &Model, gpu: Gpu, wish: &GpuWish) -> Result<GpuModel, ModelError> {
        let mut sites = Sites::default();
        let mut up = Uploader { gpu: &gpu, sites: &mut sites, layer: None, bytes: 0 };
        let norm = up.vector(&model.norm)?;
        let norm_site = up.part("model.norm");
        let head = up.projection(&model.head)?;
        let mut layers = Vec::new();
        for index in 0..model.layers.len() {
            up.layer = Some(LayerIdx(index));
            layers.push(GpuLayer::upload(model, index, &mut up)?);
        }
        let dense_bytes = up.bytes;
        let mut slots = GpuModel::slots(model, &gpu, wish, dense_bytes)?;
        // Where the system does not let them be locked, copies take the way round.
        if let Some(Ok(lock)) = model.tiers.addresses().map(|range| gpu.lock_host(range)) {
            slots.copies.add_lock(lock);
        }
        if slots.vram.slots() == model.tiers.shape().total() {
            for layer in &layers {
                if let GpuFeedForward::Moe(experts) = &layer.feed_forward {
                    let (gpu, cpu, tiers) = (&gpu, &model.cpu, &model.tiers);
                    let mut at = Place { gpu, cpu, tiers, slots: &mut slots };
                    experts.preload(&mut at)?;
                }
            }
        }
        let slots = Mutex::new(slots);
        Ok(GpuModel { gpu, layers, norm, norm_site, head, sites, slots })
    }

    fn slots(
        model: &Model,
        gpu: &Gpu,
        wish: &GpuWish,
        dense_bytes: u64,
    ) -> Result<Slots, ModelError> {
        let shape = model.tiers.shape();
        let each = slot_bytes(model.tiers.map()).max(1);
        let passing = PASSING_SLOTS.min(shape.total().max(1));
        let (free_bytes, _) = gpu.memory()?;
        let budget_bytes = match wish.vram {
            VramWish::Free => (free_bytes as u64).saturating_sub(RESERVE_BYTES),
            VramWish::Bytes(all) => all.saturating_sub(dense_bytes),
            VramWish::Slots(count) => ((count + passing) * each) as u64,
        };
        let least = (passing * each) as u64;
        if budget_bytes < least {
            let needed_bytes = dense_bytes + least;
            let found_bytes = budget_bytes + dense_bytes;
            return Err(ModelError::VramBudget { needed_bytes, found_bytes, dense_bytes });
        }
        let stay = (budget_bytes as usize / each - passing).min(shape.total());
        let vram = Vram::new(shape, stay, passing, wish.policy, None);
        let has_experts = |l: &&Layer| matches!(l.feed_forward, FeedForwardLayer::Moe(_));
        let layers = model.layers.iter().filter(has_experts).count();
        Ok(Slots::new(gpu, vram, stay + passing, each, layers, Split::new(wish.cpu))?)
    }

    /// As `Model::forward`, whose checks were made.
    pub(super) fn forward(
        &self,
        model: &Model,
        state: &mut State,
        ids: &[TokenId],
        logits: Logits,
        counters: &mut PhaseCounters,
    ) -> Result<Vec<f32>, ModelError> {
        state::to_device(&self.gpu, state)?;
        let all_there = self.lock_slots().are_all_there();
        if let ([id], Logits::Last, true) = (ids, logits, all_there) {
            return self.token(model, state, *id, counters);
        }
        state.plan = None;
        let inputs = Inputs::new(&self.gpu, model, ids.len())?;
        inputs.fill(&self.gpu, model, state.positions, ids)?;
        match self.run(model, state, &inputs, logits, counters) {
            Ok(out) => self.finish(out.as_ref()),
            Err(error) => {
                // What the device found before is the cause, and not of the next pass.
                self.finish(None)?;
                Err(error)
            }
        }
    }

    /// Queues a chunk; its logits, if any are asked for.
    fn run(
        &self,
        model: &Model,
        state: &mut State,
        inputs: &Inputs,
        logits: Logits,
        counters: &mut PhaseCounters,
    ) -> Result<Option<Buffer<f32>>, ModelError> {
        for (i, layer) in self.layers.iter().enumerate() {
            let LayerState::Gpu(memory) = &mut state.layers[i] else {
                unreachable!("`to_device` moved all of them")
            };
            self.layer(model, layer, memory, inputs, counters)?;
        }
        self.logits(model, &inputs.h, logits, counters)
    }

    /// Waits; the logits on the host.
    fn finish(&self, logits: Option<&Buffer<f32>>) -> Result<Vec<f32>, ModelError> {
        let done = self.gpu.finish(logits)?;
        match done.failed {
            Some(failed) => Err(self.sites.error(failed)),
            None => Ok(done.values),
        }
    }

    fn lock_slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().expect("no thread panics while it holds this")
    }

    fn layer(
        &self,
        model: &Model,
        layer: &GpuLayer,
        state: &mut GpuLayerState,
        inputs: &Inputs,
        counters: &mut PhaseCounters,
    ) -> Result<(), ModelError> {
        let (gpu, d, h) = (&self.gpu, &model.description, &inputs.h);
        let x = gpu.rms_norm(h, &layer.input_norm, d.eps, layer.norm_sites[0])?;
        let mixed = match (&layer.mixer, state) {
            (GpuMixer::Attention(m), GpuLayerState::Attention(cache)) => {
                counters.dense_bytes += m.bytes();
                m.forward(gpu, d, inputs, cache, &x)?
            }
            (GpuMixer::DeltaNet(m), GpuLayerState::DeltaNet(state)) => {
                counters.dense_bytes += m.bytes();
                m.forward(gpu, d, state, &x)?
            }
            _ => unreachable!("a state is made from the description of its model"),
        };
        let x = gpu.add_rms_norm(h, &mixed, &layer.post_norm, d.eps, layer.norm_sites[1])?;
        match &layer.feed_forward {
            GpuFeedForward::Moe(experts) => {
                counters.dense_bytes += experts.dense_bytes();
                let mut slots = self.lock_slots();
                let (cpu, tiers) = (&model.cpu, &model.tiers);
                let mut at = Place { gpu, cpu, tiers, slots: &mut slots };
                experts.forward(&mut at, &x, h, d.hidden, counters)
            }
            GpuFeedForward::Dense(mlp, sites) => {
                counters.dense_bytes += mlp.bytes();
                let y = gpu.room(h.len())?;
                let (count, sites) = (h.len() / d.hidden, *sites);
                let uses = vec![Use { mlp, first: 0, count, sites }];
                mlp::run(gpu, &x, &[Bank { uses, tokens: None, out: &y, first: 0 }])?;
                Ok(gpu.add(h, &y)?)
            }
        }
    }

    fn logits(
        &self,
        model: &Model,
        h: &Buffer<bf16>,
        which: Logits,
        counters: &mut PhaseCounters,
    ) -> Result<Option<Buffer<f32>>, ModelError> {
        let (gpu, d) = (&self.gpu, &model.description);
        let tokens = h.len() / d.hidden;
        let count = match which {
            Logits::None => return Ok(None),
            Logits::Last => 1,
            Logits::All => tokens,
        };
        let x = gpu.rms_norm(h, &self.norm, d.eps, self.norm_site)?;
        let y = gpu.room(count * d.vocab)?;
        let job = self.head.job_f32(&x, count, &y);
        gpu.linear(&[LinearJob { x_first: tokens - count, ..job }])?;
        counters.dense_bytes += self.head.matrix.bytes();
        Ok(Some(y))
    }

    /// A copy of a session's memory on the host.
    pub(super) fn to_host(&self, model: &Model, state: &State) -> Result<State, GpuError> {
        state::to_host(&self.gpu, &model.description, state)
    }

    /// Where the weights are, for messages.
    pub(super) fn describe(&self, total: usize) -> String {
        let stay = self.lock_slots().vram.slots();
        let name = &self.gpu.info().name;
        format!("{stay} of {total} experts fit on {name}")
    }

    /// The device.
    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

impl GpuLayer {
    fn upload(model: &Model, index: usize, up: &mut Uploader<'_>) -> Result<GpuLayer, GpuError> {
        let from = &model.layers[index];
        Ok(GpuLayer {
            input_norm: up.vector(&from.input_norm)?,
            post_norm: up.vector(&from.post_norm)?,
            norm_sites: ["input_layernorm", "post_attention_layernorm"].map(|part| up.part(part)),
            mixer: match &from.mixer {
                MixerLayer::Attention(m) => GpuMixer::Attention(GpuAttention::upload(m, up)?),
                MixerLayer::DeltaNet(m) => GpuMixer::DeltaNet(GpuDeltaNet::upload(m, up)?),
            },
            feed_forward: match &from.feed_forward {
                FeedForwardLayer::Moe(experts) => {
                    let experts = GpuExperts::upload(LayerIdx(index), experts, up)?;
                    GpuFeedForward::Moe(Box::new(experts))
                }
                FeedForwardLayer::Dense(mlp) => {
                    let (mlp, sites) = GpuMlp::upload(mlp, up)?;
                    GpuFeedForward::Dense(mlp, sites)
                }
            },
        })
    }
}
