//! Opening a model and the files beside its weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use engine::embedded;
use engine::index::TokenId;
use engine::model::Model;
use engine::text::{ChatTemplate, GenerationDefaults, Tokenizer};
use engine::tiers::{Placement, Shape};
use store::checkpoint::Checkpoint;
use store::experts::{Digests, Encoding, ExpertMap};
use store::jnf::{self, Store};
use store::read::ReadOptions;
use store::sidecar::{self, SIDECAR_NAME, Sidecar};

use crate::failure::BadInput;
use crate::flags::{MachineArgs, ModelArgs};
use crate::tiering::{self, Keeper, TierArgs, known_heat, prepare};

/// A checkpoint and the model on it.
pub struct Source {
    pub checkpoint: Checkpoint,
    pub model: Arc<Model>,
    pub load_seconds: f64,
    pub keeper: Keeper,
    /// How experts are read, where they are read from files.
    pub drive: Option<ReadOptions>,
}

impl Source {
    /// Opens what the flags ask for.
    ///
    /// # Errors
    /// A folder that is no checkpoint, one that cannot be run, a machine that is not there.
    pub fn open(which: &ModelArgs, machine: &MachineArgs, tiers: &TierArgs) -> Result<Source> {
        let started = Instant::now();
        let (cpu, gpu) = (machine.cpu()?, machine.gpu()?);
        let Weights { mut checkpoint, shape, map, digests, sidecar } =
            Weights::open(which.model.as_deref())?;
        let placement = tiers.placement(&checkpoint, &map, shape)?;
        if matches!(placement, Placement::Cached { .. }) {
            let packed = map.all().any(|block| block.encoding == Encoding::Packed);
            checkpoint.own(|part| tiering::keep(part, packed))?;
        }
        let drive = match &placement {
            Placement::Cached { read, .. } if checkpoint.folder().is_some() => Some(read.clone()),
            _ => None,
        };
        let keeper = Keeper::new(tiers, &checkpoint, &placement, sidecar);
        let fingerprint = checkpoint.sha256_fingerprint();
        let heat = keeper.heat_path().and_then(|path| known_heat(path, &fingerprint, shape));
        let source = engine::model::Source {
            checkpoint: &checkpoint,
            experts: Some(map),
            digests: Arc::new(digests),
            placement,
            heat,
        };
        let mut model = Model::open(source, cpu)?;
        if let Some(gpu) = gpu {
            model.move_to(gpu, &tiers.gpu())?;
        }
        let model = Arc::new(model);
        prepare(tiers, &model)?;
        let load_seconds = started.elapsed().as_secs_f64();
        Ok(Source { checkpoint, model, load_seconds, keeper, drive })
    }

    /// Leaves what was learned for the next run, and completes a recording.
    ///
    /// # Errors
    /// A recording that cannot be completed.
    pub fn finish(&self) -> Result<()> {
        self.keeper.keep(&self.model);
        Ok(self.model.tiers().finish_recording()?)
    }
}

/// What `--model` names: the one place that tells a store from a folder.
pub enum Found {
    Store(Box<Store>),
    /// A folder used in place, or the embedded model.
    Checkpoint(Checkpoint),
}

impl Found {
    /// Looks what is there.
    ///
    /// # Errors
    /// A folder that is neither store nor checkpoint.
    pub fn at(folder: Option<&Path>) -> Result<Found> {
        Ok(match folder {
            Some(folder) if jnf::is_store(folder) => Found::Store(Store::open(folder)?.into()),
            Some(folder) => Found::Checkpoint(Checkpoint::open(folder)?),
            None => Found::Checkpoint(embedded::checkpoint()?),
        })
    }
}

/// What a model is made from: a store, a folder used in place, or the embedded model.
pub struct Weights {
    pub checkpoint: Checkpoint,
    pub shape: Shape,
    pub map: ExpertMap,
    /// What is known of the experts.
    pub digests: Digests,
    /// Where more is written down; absent for what knows all of itself.
    pub sidecar: Option<PathBuf>,
}

impl Weights {
    /// Opens what is there, and what is known of it.
    ///
    /// # Errors
    /// A folder that is neither store nor checkpoint, one that cannot be run, damage.
    pub fn open(folder: Option<&Path>) -> Result<Weights> {
        let checkpoint = match Found::at(folder)? {
            Found::Store(store) => {
                store.check_dense()?;
                let (checkpoint, map, digests) = store.into_parts();
                let shape = Model::expert_shape(&checkpoint)?;
                return Ok(Weights { checkpoint, shape, map, digests, sidecar: None });
            }
            Found::Checkpoint(checkpoint) => checkpoint,
        };
        let (shape, map) = Model::experts_in_place(&checkpoint)?;
        let path = sidecar_path(&checkpoint).filter(|_| checkpoint.folder().is_some());
        let digests = match &path {
            Some(path) => Sidecar::load(path, &checkpoint.sha256_fingerprint())?.digests(),
            None => Digests::default(),
        };
        Ok(Weights { checkpoint, shape, map, digests, sidecar: path })
    }
}

/// Where what is known of a checkpoint's weights is written down, if anywhere.
pub fn sidecar_path(checkpoint: &Checkpoint) -> Option<PathBuf> {
    let place = sidecar::beside(checkpoint.folder(), &checkpoint.sha256_fingerprint())?;
    Some(place.join(SIDECAR_NAME))
}

/// Config, tokenizer and dense weights of a store, a folder used in place, or the embedded model.
///
/// # Errors
/// A folder that is neither store nor checkpoint.
pub fn checkpoint(folder: Option<&Path>) -> Result<Checkpoint> {
    Ok(match Found::at(folder)? {
        Found::Store(store) => store.into_parts().0,
        Found::Checkpoint(checkpoint) => checkpoint,
    })
}

/// The tokenizer, if the checkpoint has one.
///
/// # Errors
/// One that cannot be read.
pub fn tokenizer(checkpoint: &Checkpoint) -> Result<Option<Tokenizer>> {
    let Some(definition) = checkpoint.file("tokenizer.json")? else { return Ok(None) };
    let config = checkpoint.file("tokenizer_config.json")?;
    Ok(Some(Tokenizer::from_bytes(&definition, config.as_deref())?))
}

/// The chat template.
///
/// # Errors
/// There is none, or it cannot be read.
pub fn chat_template(checkpoint: &Checkpoint) -> Result<ChatTemplate> {
    const NAME: &str = "chat_template.jinja";
    let config = checkpoint.file("tokenizer_config.json")?;
    let file = checkpoint.file(NAME)?;
    let text = file.as_deref().map(std::str::from_utf8).transpose();
    let label = checkpoint.label().to_string();
    let text = text.map_err(|_| BadInput::NotText { label, file: NAME })?;
    Ok(ChatTemplate::new(text, config.as_deref())?)
}

/// Tokens that end a text.
///
/// # Errors
/// Settings that cannot be read.
pub fn eos(checkpoint: &Checkpoint) -> Result<Vec<TokenId>> {
    let generation = checkpoint.file("generation_config.json")?;
    let config = checkpoint.file("config.json")?;
    Ok(GenerationDefaults::from_bytes(generation.as_deref(), config.as_deref())?.eos)
}
