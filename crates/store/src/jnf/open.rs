//! Opening a store: everything but the weights themselves is checked.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use twox_hash::XxHash3_128;

use super::error::{Missing, StoreError};
use super::layer::{check_length, read_layer};
use super::manifest::{DenseEntry, ExpertLayer, FileEntry, LayerIndex, Manifest, StoredProjection};
use super::{
    DENSE_FOLDER, DIMENSION_MAX, EXPERT_DTYPE, EXPERTS_MAX, FastSum, LAYERS_MAX, MANIFEST_FORMAT,
    MANIFEST_NAME, Sha256Hash, VERSIONS, VERSIONS_KNOWN, layer_folder, layer_name, unseal,
};
use crate::checkpoint::{Checkpoint, is_plain_name};
use crate::convert::completing_command;
use crate::experts::{Block, Digests, ExpertFile, ExpertMap, FileIdx, Provenance};
use crate::io::mapping::map_read_only;

/// An opened, complete store.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    manifest: Manifest,
    indexes: Vec<LayerIndex>,
    checkpoint: Checkpoint,
    map: ExpertMap,
}

impl Store {
    /// Opens a complete store. Files without weights are hashed, everything else is compared by
    /// lengths, headers and indexes; the weights are not read (see [`Store::check_dense`]).
    ///
    /// Errors: every `StoreError`.
    pub fn open(dir: &Path) -> Result<Store, StoreError> {
        let manifest = read_manifest(dir)?;
        refuse_incomplete(dir, &manifest)?;
        for file in &manifest.files {
            check_file(dir, file)?;
        }
        for file in &manifest.dense {
            let path = dir.join(DENSE_FOLDER).join(&file.name);
            check_length(&path, MANIFEST_NAME, file.size_bytes)?;
        }
        let fingerprint = manifest.source.fingerprint.to_string();
        let checkpoint = Checkpoint::open_store(dir, fingerprint)?;
        check_headers(dir, &manifest.dense, &checkpoint)?;
        let mut indexes = Vec::with_capacity(manifest.layers.len());
        for (shape, entry) in manifest.model.expert_layers.iter().zip(&manifest.layers) {
            indexes.push(read_layer(dir, &manifest, *shape, *entry)?);
        }
        let map = expert_map(dir, &manifest, &indexes)?;
        Ok(Store { root: dir.to_path_buf(), manifest, indexes, checkpoint, map })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The layers' indexes, in order.
    pub fn indexes(&self) -> &[LayerIndex] {
        &self.indexes
    }

    /// Config, tokenizer and all weights but the routed experts, under the fingerprint of the
    /// checkpoint that was converted: it is the same model.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Where the experts lie.
    pub fn expert_map(&self) -> ExpertMap {
        self.map.clone()
    }

    /// What a model is made from: the dense weights, where the experts lie, and their checksums.
    pub fn into_parts(self) -> (Checkpoint, ExpertMap, Digests) {
        let digests = self.digests();
        (self.checkpoint, self.map, digests)
    }

    /// What the experts' checksums must be.
    pub fn digests(&self) -> Digests {
        Digests::new(self.indexes.iter().flat_map(|index| {
            let layer = index.shape.layer;
            let known = move |block: &super::BlockEntry| {
                (block.id(layer), block.xxh3.0, Provenance::Manifest)
            };
            index.blocks.iter().map(known)
        }))
    }

    /// Reads all weights but the experts and compares their fast checksums, as whoever loads them
    /// should before use.
    ///
    /// Errors: `Io`; `Field` with the file that differs.
    pub fn check_dense(&self) -> Result<(), StoreError> {
        for entry in &self.manifest.dense {
            let path = self.root.join(DENSE_FOLDER).join(&entry.name);
            let found = file_checksum(&path)
                .map_err(|source| StoreError::Io { path: path.clone(), source })?;
            if found != entry.xxh3 {
                return Err(StoreError::Field {
                    path,
                    field: "XXH3-128",
                    expected: entry.xxh3.to_string(),
                    found: found.to_string(),
                });
            }
        }
        Ok(())
    }
}

/// XXH3-128 of a file, seed 0. Read, not mapped: its pages do not count as ours.
fn file_checksum(path: &Path) -> io::Result<FastSum> {
    const PIECE_BYTES: usize = 8 << 20;
    let (mut file, mut piece) = (File::open(path)?, vec![0; PIECE_BYTES]);
    let mut hash = XxHash3_128::new();
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(FastSum(hash.finish_128())),
            Ok(count) => hash.write(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The manifest of a store, complete or not, its fields checked.
///
/// Errors: `NotAStore`, `Io`, `Sealed`, `Field`.
pub fn read_manifest(dir: &Path) -> Result<Manifest, StoreError> {
    let path = dir.join(MANIFEST_NAME);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(StoreError::NotAStore { path: dir.to_path_buf() });
        }
        Err(source) => return Err(StoreError::Io { path, source }),
    };
    let manifest: Manifest = unseal(&bytes, MANIFEST_FORMAT, &VERSIONS, VERSIONS_KNOWN)
        .map_err(|problem| StoreError::Sealed { path: path.clone(), problem })?;
    match bad_field(&manifest) {
        None => Ok(manifest),
        Some((field, expected, found)) => {
            Err(StoreError::Field { path, field, expected: expected.to_string(), found })
        }
    }
}

type BadField = (&'static str, &'static str, String);

fn bad_field(manifest: &Manifest) -> Option<BadField> {
    let model = &manifest.model;
    if manifest.encoding.version() != manifest.version {
        let found = manifest.encoding.extension().to_string();
        return Some(("encoding", "bf16 in version 1, packed in version 2", found));
    }
    if model.dtype != EXPERT_DTYPE {
        return Some(("dtype", EXPERT_DTYPE, model.dtype.clone()));
    }
    if model.layer_count > LAYERS_MAX {
        return Some(("layer_count", "at most 65536", model.layer_count.to_string()));
    }
    let shapes = &model.expert_layers;
    if let Some(shape) = shapes.iter().find(|shape| !is_believable(shape, model.layer_count)) {
        return Some(("expert_layers", "a possible shape", format!("{shape:?}")));
    }
    let ascending = |layers: Vec<u32>| layers.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending(shapes.iter().map(|shape| shape.layer).collect()) {
        return Some(("expert_layers", "each layer once, in order", format!("{shapes:?}")));
    }
    let layers: Vec<u32> = manifest.layers.iter().map(|entry| entry.layer).collect();
    let needed: BTreeSet<u32> = shapes.iter().map(|shape| shape.layer).collect();
    if !layers.iter().all(|layer| needed.contains(layer)) || !ascending(layers.clone()) {
        return Some(("layers", "some of expert_layers, in order", format!("{layers:?}")));
    }
    let names = manifest.files.iter().map(|file| &file.name);
    let astray = names.chain(manifest.dense.iter().map(|file| &file.name));
    let astray = astray.into_iter().find(|name| !is_plain_name(name))?;
    Some(("name", "a plain file name", astray.clone()))
}

fn is_believable(shape: &ExpertLayer, layer_count: u32) -> bool {
    shape.layer < layer_count
        && (1..=EXPERTS_MAX).contains(&shape.experts)
        && (1..=DIMENSION_MAX).contains(&shape.hidden)
        && (1..=DIMENSION_MAX).contains(&shape.width)
}

fn refuse_incomplete(dir: &Path, manifest: &Manifest) -> Result<(), StoreError> {
    let layers = manifest.missing_layers();
    if manifest.complete && layers.is_empty() {
        return Ok(());
    }
    let missing = Missing { layers, dense: manifest.dense.is_empty() };
    let command = completing_command(dir, manifest.encoding);
    Err(StoreError::Incomplete { path: dir.to_path_buf(), missing, command })
}

fn check_file(dir: &Path, file: &FileEntry) -> Result<(), StoreError> {
    let path = dir.join(&file.name);
    check_length(&path, MANIFEST_NAME, file.size_bytes)?;
    let bytes = fs::read(&path).map_err(|source| StoreError::Io { path: path.clone(), source })?;
    let (expected, found) = (file.sha256, Sha256Hash::of(&bytes));
    if found != expected {
        return Err(StoreError::WrongHash { path, named_by: MANIFEST_NAME, expected, found });
    }
    Ok(())
}

/// The folder holds these dense files and no others, and their headers are what they were.
fn check_headers(
    dir: &Path,
    dense: &[DenseEntry],
    checkpoint: &Checkpoint,
) -> Result<(), StoreError> {
    let names = |names: Vec<&String>| format!("{names:?}");
    let expected = names(dense.iter().map(|entry| &entry.name).collect());
    let found = names(checkpoint.shards().iter().map(|shard| &shard.file_name).collect());
    let folder = dir.join(DENSE_FOLDER);
    if expected != found {
        return Err(StoreError::Field { path: folder, field: "list of files", expected, found });
    }
    for (entry, shard) in dense.iter().zip(checkpoint.shards()) {
        let (expected, found) = (entry.header_sha256, Sha256Hash(shard.header_sha256));
        if expected != found {
            let path = folder.join(&entry.name);
            return Err(StoreError::WrongHash { path, named_by: MANIFEST_NAME, expected, found });
        }
    }
    Ok(())
}

fn expert_map(
    dir: &Path,
    manifest: &Manifest,
    indexes: &[LayerIndex],
) -> Result<ExpertMap, StoreError> {
    let mut files = Vec::new();
    let mut layers = vec![Vec::new(); manifest.model.layer_count as usize];
    for index in indexes {
        let first = files.len() as u32;
        for file in &index.files {
            let path = layer_folder(dir, index.shape.layer).join(&file.name);
            let bytes = map_read_only(&path);
            let bytes = bytes.map_err(|source| StoreError::Io { path: path.clone(), source })?;
            if bytes.len() as u64 != file.size_bytes {
                let (expected, found) = (file.size_bytes, bytes.len() as u64);
                let named_by = super::INDEX_NAME;
                return Err(StoreError::WrongLength { path, named_by, expected, found });
            }
            let len_bytes = file.size_bytes;
            files.push(ExpertFile { path, len_bytes, bytes, embedded: false });
        }
        layers[index.shape.layer as usize] = layer_blocks(index, first);
    }
    Ok(ExpertMap::new(files, layers))
}

/// By expert: gate_up and down.
fn layer_blocks(index: &LayerIndex, first_file: u32) -> Vec<Vec<Block>> {
    let experts = index.shape.experts as usize;
    let tensor = |projection: StoredProjection| -> Arc<str> {
        format!("layers/{}/{}", layer_name(index.shape.layer), projection.stem()).into()
    };
    let tensors = StoredProjection::ALL.map(tensor);
    let block = |at: usize| {
        let entry = &index.blocks[at];
        let which = at / experts;
        let (rows, cols) = index.shape.rows_cols(entry.projection);
        Block {
            id: entry.id(index.shape.layer),
            file: FileIdx(first_file + which as u32),
            offset_bytes: entry.offset,
            stored_bytes: entry.stored_bytes,
            encoding: entry.expert_encoding(),
            rows: rows as usize,
            cols: cols as usize,
            tensor: tensors[which].clone(),
            first_row: entry.expert as usize * rows as usize,
        }
    };
    (0..experts).map(|expert| vec![block(expert), block(experts + expert)]).collect()
}
