//! A Hugging Face checkpoint as it lies on disk, or embedded in the program: opened, checked, and
//! its tensors handed out without a copy.

mod error;
mod header;
mod index;
mod owned;
mod part;
mod source;
mod tensor;
mod watch;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::Value;
use sha2::{Digest, Sha256};

pub use error::{CheckpointError, HeaderProblem};
pub use owned::Keep;
pub use part::{Part, PartSize, canonical_name, part_of};
pub use tensor::{Dtype, Tensor};
pub use watch::{Stamp, Watch};

pub(crate) use header::reason_of;
pub(crate) use source::is_plain_name;

use index::{INDEX_NAME, Index};
use source::Source;

const CONFIG_NAME: &str = "config.json";
/// Separates this hash from every other use of SHA-256, and its versions from each other.
const FINGERPRINT_DOMAIN: &[u8] = b"tarfa checkpoint fingerprint v1\n";

/// One safetensors file of a checkpoint.
#[derive(Clone, Debug)]
pub struct Shard {
    pub file_name: String,
    /// The whole file; its length is the file's.
    pub bytes: Bytes,
    /// The length field and the header: what lies before the first tensor.
    pub header_bytes: u64,
    /// SHA-256 of those bytes.
    pub header_sha256: [u8; 32],
    pub tensor_count: usize,
}

/// An opened checkpoint: its config, its shards and its tensors under canonical names.
#[derive(Debug)]
pub struct Checkpoint {
    label: String,
    source: Source,
    config: Value,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Tensor>,
    fingerprint: String,
    watch: Watch,
}

impl Checkpoint {
    /// Opens a folder: its config.json, and its shards by the index, or all of them without one.
    ///
    /// The files are mapped, so they must not be truncated or overwritten while the checkpoint or
    /// any slice of it lives (deleting or renaming them is harmless); see `watch` and
    /// `end_on_lost_pages` for what becomes of those who do.
    ///
    /// Errors: everything in `CheckpointError` up to `BadHeader`; no weight is read.
    pub fn open(dir: &Path) -> Result<Checkpoint, CheckpointError> {
        if !dir.is_dir() {
            return Err(CheckpointError::NotADirectory { path: dir.to_path_buf() });
        }
        Self::from_source(dir.display().to_string(), Source::Folder(dir.to_path_buf()))
    }

    /// Opens files that are part of the program: the same parser, the same checks, no disk.
    ///
    /// Errors: as `open`.
    pub fn from_static(
        label: &str,
        files: &[(&'static str, &'static [u8])],
    ) -> Result<Checkpoint, CheckpointError> {
        let source = Source::Embedded { label: label.into(), files: files.to_vec() };
        Self::from_source(label.to_string(), source)
    }

    /// Opens what a store holds of a checkpoint: its shards lie in a folder of their own, and lack
    /// the routed experts. It keeps the fingerprint of the checkpoint that was converted.
    pub(crate) fn open_store(
        dir: &Path,
        fingerprint: String,
    ) -> Result<Checkpoint, CheckpointError> {
        let source = Source::Store(dir.to_path_buf());
        let opened = Self::from_source(dir.display().to_string(), source)?;
        Ok(Checkpoint { fingerprint, ..opened })
    }

    fn from_source(label: String, source: Source) -> Result<Checkpoint, CheckpointError> {
        let (config_bytes, config) = read_config(&source)?;
        let index = read_index(&source)?;
        let names = shard_names(&source, index.as_ref())?;
        let (shards, tensors) = read_shards(&source, &names, index.is_some())?;
        if let Some(index) = &index {
            check_against_index(&source, index, &tensors)?;
        }
        if tensors.is_empty() {
            return Err(CheckpointError::NoWeights { path: source.root().to_path_buf() });
        }
        let fingerprint = fingerprint_of(&config_bytes, &shards);
        let paths = shards.iter().map(|shard| source.path_of(&shard.file_name));
        let watch = match &source {
            Source::Folder(_) | Source::Store(_) => Watch::new(paths)?,
            Source::Embedded { .. } => Watch::default(),
        };
        Ok(Checkpoint { label, source, config, shards, tensors, fingerprint, watch })
    }

    /// The folder, or the name of the embedded model, for messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// config.json as it is.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The language model's part of the config: `text_config` where there is one.
    pub fn text_config(&self) -> &Value {
        self.config.get("text_config").filter(|nested| nested.is_object()).unwrap_or(&self.config)
    }

    /// Another file of the checkpoint (tokenizer.json, chat_template.jinja, ...), if it is there.
    ///
    /// Errors: `Io` where the file is there but cannot be read. Panics on a name with a separator.
    pub fn file(&self, name: &str) -> Result<Option<Bytes>, CheckpointError> {
        self.source.read(name)
    }

    /// Names of all files beside each other in the folder, sorted.
    ///
    /// Errors: `Io` where the folder cannot be listed.
    pub fn file_names(&self) -> Result<Vec<String>, CheckpointError> {
        self.source.names()
    }

    /// The folder; `None` for a checkpoint that is part of the program.
    pub fn folder(&self) -> Option<&Path> {
        match &self.source {
            Source::Folder(folder) | Source::Store(folder) => Some(folder),
            Source::Embedded { .. } => None,
        }
    }

    /// Tells whether a file was written to since it was opened.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Where a shard lies.
    pub fn shard_path(&self, shard: &Shard) -> PathBuf {
        self.source.path_of(&shard.file_name)
    }

    /// The tensor of that canonical name: `model.language_model.X` is known as `model.X`.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The weight of that canonical name, with that shape.
    ///
    /// Errors: `TensorAbsent`, `WrongShape`, and `WrongDtype` for all but BF16 and F32.
    pub fn expect(&self, name: &str, shape: &[usize]) -> Result<&Tensor, CheckpointError> {
        let tensor = self.find(name).ok_or_else(|| CheckpointError::TensorAbsent {
            label: self.label.clone(),
            tensor: name.to_string(),
            expected: shape.to_vec(),
        })?;
        if let Dtype::Other(found) = tensor.dtype {
            let (path, tensor) = (tensor.file.clone(), tensor.name.clone());
            return Err(CheckpointError::WrongDtype { path, tensor, found });
        }
        if tensor.shape != shape {
            return Err(CheckpointError::WrongShape {
                path: tensor.file.clone(),
                tensor: tensor.name.clone(),
                expected: shape.to_vec(),
                found: tensor.shape.clone(),
            });
        }
        Ok(tensor)
    }

    /// All tensors with their canonical names, sorted by these.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The safetensors files, sorted by name.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Tensors and bytes of every part that the checkpoint has.
    pub fn part_sizes(&self) -> Vec<PartSize> {
        let mut sizes: BTreeMap<Part, PartSize> = BTreeMap::new();
        for (name, tensor) in &self.tensors {
            let part = part_of(name);
            let empty = PartSize { part, tensor_count: 0, size_bytes: 0 };
            let size = sizes.entry(part).or_insert(empty);
            size.tensor_count += 1;
            size.size_bytes += tensor.bytes.len() as u64;
        }
        sizes.into_values().collect()
    }

    /// Identifies the checkpoint without reading a weight: SHA-256 in lower-case hex.
    ///
    /// Covers, in this order: a version line; the length and bytes of config.json; the number of
    /// shards; for each, by name: the length and bytes of its name, its length, and the SHA-256 of
    /// its length field and header (so every tensor's name, dtype, shape and place). All lengths
    /// are u64 little-endian. Does not cover: the weights' values, the index (it can only repeat
    /// the headers), the tokenizer, the chat template, generation_config.json, or where it lies.
    pub fn sha256_fingerprint(&self) -> String {
        self.fingerprint.clone()
    }
}

fn read_config(source: &Source) -> Result<(Bytes, Value), CheckpointError> {
    let Some(bytes) = source.read(CONFIG_NAME)? else {
        return Err(CheckpointError::MissingConfig { path: source.root().to_path_buf() });
    };
    let bad = |line, reason| {
        Err(CheckpointError::BadJson { path: source.path_of(CONFIG_NAME), line, reason })
    };
    match serde_json::from_slice::<Value>(&bytes) {
        Ok(config) if config.is_object() => Ok((bytes, config)),
        Ok(_) => bad(1, "expected an object".to_string()),
        Err(error) => bad(error.line(), header::reason_of(&error)),
    }
}

fn read_index(source: &Source) -> Result<Option<Index>, CheckpointError> {
    match source.read(INDEX_NAME)? {
        Some(json) => Index::parse(&source.path_of(INDEX_NAME), &json).map(Some),
        None => Ok(None),
    }
}

/// The shards to read: those of the index, or without one all that are there.
fn shard_names(source: &Source, index: Option<&Index>) -> Result<Vec<String>, CheckpointError> {
    let present = source.safetensors_names()?;
    let Some(index) = index else {
        return Ok(present);
    };
    let named = index.shard_names();
    match present.iter().find(|name| !named.contains(name.as_str())) {
        Some(extra) => Err(CheckpointError::ExtraShard { path: source.path_of(extra) }),
        None => Ok(named.into_iter().map(str::to_string).collect()),
    }
}

type ShardsAndTensors = (Vec<Shard>, BTreeMap<String, Tensor>);

fn read_shards(
    source: &Source,
    names: &[String],
    indexed: bool,
) -> Result<ShardsAndTensors, CheckpointError> {
    let named_by = if indexed { INDEX_NAME } else { "a broken link" };
    let mut shards = Vec::with_capacity(names.len());
    let mut tensors = BTreeMap::new();
    for name in names {
        let path = source.path_of(name);
        let Some(bytes) = source.map(name)? else {
            return Err(CheckpointError::MissingShard { path, named_by });
        };
        let header = header::read_header(&path, &bytes)?;
        shards.push(shard_of(name, bytes, &header));
        for tensor in header.tensors {
            insert_once(&mut tensors, tensor)?;
        }
    }
    Ok((shards, tensors))
}

fn shard_of(name: &str, bytes: Bytes, header: &header::Header) -> Shard {
    let header_sha256 = Sha256::digest(&bytes[..header.prefix_bytes as usize]).into();
    Shard {
        file_name: name.to_string(),
        bytes,
        header_bytes: header.prefix_bytes,
        header_sha256,
        tensor_count: header.tensors.len(),
    }
}

/// Two spellings of one canonical name count as the same tensor twice.
fn insert_once(
    tensors: &mut BTreeMap<String, Tensor>,
    tensor: Tensor,
) -> Result<(), CheckpointError> {
    match tensors.entry(canonical_name(&tensor.name)) {
        Entry::Vacant(place) => {
            place.insert(tensor);
            Ok(())
        }
        Entry::Occupied(held) => Err(CheckpointError::DuplicateTensor {
            tensor: tensor.name,
            first: held.get().file.clone(),
            second: tensor.file,
        }),
    }
}

/// The index and the shards must name the same tensors in the same places.
fn check_against_index(
    source: &Source,
    index: &Index,
    tensors: &BTreeMap<String, Tensor>,
) -> Result<(), CheckpointError> {
    for (name, shard) in &index.shard_of {
        let path = source.path_of(shard);
        let held = tensors.get(&canonical_name(name));
        if !held.is_some_and(|tensor| tensor.name == *name && tensor.file == path) {
            return Err(CheckpointError::TensorNotInShard { tensor: name.clone(), path });
        }
    }
    match tensors.values().find(|tensor| !index.shard_of.contains_key(&tensor.name)) {
        Some(Tensor { name, file, .. }) => {
            Err(CheckpointError::TensorNotInIndex { tensor: name.clone(), path: file.clone() })
        }
        None => Ok(()),
    }
}

fn fingerprint_of(config: &[u8], shards: &[Shard]) -> String {
    let mut hash = Sha256::new();
    hash.update(FINGERPRINT_DOMAIN);
    hash.update((config.len() as u64).to_le_bytes());
    hash.update(config);
    hash.update((shards.len() as u64).to_le_bytes());
    for shard in shards {
        hash.update((shard.file_name.len() as u64).to_le_bytes());
        hash.update(shard.file_name.as_bytes());
        hash.update((shard.bytes.len() as u64).to_le_bytes());
        hash.update(shard.header_sha256);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
