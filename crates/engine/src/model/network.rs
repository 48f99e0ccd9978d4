//! A model that is ready to run: its description, its weights and the processor.

use std::sync::Arc;

use numerics::Cpu;
use numerics::cuda::{Gpu, GpuError};
use numerics::op::rope::inverse_frequencies;
use store::checkpoint::{Checkpoint, Watch};
use store::experts::{Digests, ExpertMap};

use super::config::Description;
use super::error::ModelError;
use super::gpu::{GpuModel, GpuWish};
use super::load::{Layer, Loader};
use super::state::State;
use super::weight::Weight;
use crate::index::{LayerIdx, TokenId};
use crate::tiers::heat::Heat;
use crate::tiers::{Placement, Shape, Tiers};

/// What a model is made from.
pub struct Source<'a> {
    /// Config and all weights but the routed experts.
    pub checkpoint: &'a Checkpoint,
    /// Where the experts are, if not in the checkpoint's own files.
    pub experts: Option<ExpertMap>,
    /// What is known of their checksums.
    pub digests: Arc<Digests>,
    /// Where they are kept while the model runs.
    pub placement: Placement,
    /// Which experts earlier runs used.
    pub heat: Option<Heat>,
}

/// A model that is ready to run; it holds no sequence.
pub struct Model {
    /// First, so that it goes first: it has locked memory of the tiers.
    pub(super) gpu: Option<Box<GpuModel>>,
    pub(super) description: Description,
    fingerprint: String,
    pub(super) cpu: Cpu,
    pub(super) embedding: Weight,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Vec<f32>,
    pub(super) head: Weight,
    /// Of the rotary embedding, `[rotated / 2]`.
    pub(super) frequencies: Vec<f32>,
    pub(super) tiers: Tiers,
    pub(super) watch: Watch,
}

impl Model {
    /// A model whose experts stay in the checkpoint's mapped files.
    ///
    /// # Errors
    /// As `open`.
    pub fn load(checkpoint: &Checkpoint, cpu: Cpu) -> Result<Model, ModelError> {
        let digests = Arc::default();
        let placement = Placement::Mapped;
        let source = Source { checkpoint, experts: None, digests, placement, heat: None };
        Model::open(source, cpu)
    }

    /// Finds every tensor that the description needs; reads only the small ones.
    ///
    /// # Errors
    /// A config that is not computable here; a tensor that is absent or of another shape; files
    /// that cannot be read.
    pub fn open(source: Source<'_>, cpu: Cpu) -> Result<Model, ModelError> {
        let checkpoint = source.checkpoint;
        let d = Description::of(checkpoint)?;
        let loader = Loader { from: checkpoint, d: &d };
        let embedding = Weight::load(checkpoint, "model.embed_tokens.weight", d.vocab, d.hidden)?;
        let head = match checkpoint.find("lm_head.weight") {
            None if d.tied => embedding.clone(),
            _ => Weight::load(checkpoint, "lm_head.weight", d.vocab, d.hidden)?,
        };
        let layers = (0..d.layers.len()).map(|i| loader.layer(LayerIdx(i)));
        let layers = layers.collect::<Result<_, _>>()?;
        let norm = loader.norm("model.norm.weight", d.hidden)?;
        let map = loader.expert_map(source.experts)?;
        let files = map.files().iter().filter(|file| !file.embedded);
        let watch = checkpoint.watch().and(files.map(|file| file.path.clone()))?;
        let shape = d.expert_shape();
        let heat = source.heat.as_ref();
        let tiers = Tiers::new(map.into(), source.digests, shape, &source.placement, heat)?;
        Ok(Model {
            embedding,
            layers,
            norm,
            head,
            frequencies: inverse_frequencies(d.theta, d.rotated),
            fingerprint: checkpoint.sha256_fingerprint(),
            description: d,
            cpu,
            tiers,
            watch,
            gpu: None,
        })
    }

    /// Copies the dense weights to a GPU, which computes from here on.
    ///
    /// # Errors
    /// Too little memory there for them and the experts in use.
    pub fn move_to(&mut self, gpu: Gpu, wish: &GpuWish) -> Result<(), ModelError> {
        self.gpu = Some(Box::new(GpuModel::upload(self, gpu, wish)?));
        Ok(())
    }

    /// The GPU that it runs on.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref().map(|gpu| gpu.gpu())
    }

    /// Where the experts are, for people.
    pub fn placement(&self) -> String {
        let tiers = self.tiers.describe();
        match &self.gpu {
            Some(gpu) => format!("{}; {tiers}", gpu.describe(self.tiers.shape().total())),
            None => tiers,
        }
    }

    /// A copy of a session's memory, on the host.
    ///
    /// # Errors
    /// A GPU that was lost.
    pub(super) fn state_on_host(&self, state: &State) -> Result<Option<State>, GpuError> {
        self.gpu.as_ref().map(|gpu| gpu.to_host(self, state)).transpose()
    }

    /// The experts of a checkpoint where they lie, without a model on it.
    ///
    /// # Errors
    /// As `open`.
    pub fn experts_in_place(checkpoint: &Checkpoint) -> Result<(Shape, ExpertMap), ModelError> {
        let d = Description::of(checkpoint)?;
        let map = Loader { from: checkpoint, d: &d }.expert_map(None)?;
        Ok((d.expert_shape(), map))
    }

    /// How many experts there are and how many a token uses.
    ///
    /// # Errors
    /// A config that is not computable here.
    pub fn expert_shape(checkpoint: &Checkpoint) -> Result<Shape, ModelError> {
        Ok(Description::of(checkpoint)?.expert_shape())
    }

    /// Where its experts are.
    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// What the model is.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Identifies the checkpoint (see `Checkpoint::sha256_fingerprint`).
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The processor that it runs on.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Refuses a chunk that the model cannot take after `state`.
    pub(super) fn check(&self, state: &State, ids: &[TokenId]) -> Result<(), ModelError> {
        let (vocab, limit) = (self.description.vocab, self.description.positions_max);
        if ids.is_empty() {
            return Err(ModelError::EmptyPrompt);
        }
        if let Some(token) = ids.iter().find(|id| id.0 as usize >= vocab) {
            return Err(ModelError::Token { token: *token, vocab });
        }
        let needed = state.positions + ids.len();
        if needed > limit { Err(ModelError::TooLong { needed, limit }) } else { Ok(()) }
    }
}
