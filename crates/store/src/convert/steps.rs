//! The steps of a conversion, each of which can be the last.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::dense::write_dense;
use super::disk::{Disk, publish};
use super::error::ConvertError;
use super::layer::{Advance, LayerJob, Stopped, failed_at};
use super::plan::{beside, dense_files, dense_name, layer_bytes, layer_weights_bytes};
use super::source::{Sources, compare, stamps};
use super::state::State;
use super::{Observe, Progress, Report, Request, check_space};
use crate::checkpoint::{Checkpoint, Stamp, Tensor};
use crate::jnf::{
    CONVERSION_NAME, DENSE_FOLDER, EXPERT_DTYPE, ExpertLayer, FileEntry, LAYERS_FOLDER, LOCK_NAME,
    MANIFEST_FORMAT, MANIFEST_NAME, Manifest, ModelEntry, PARTIAL_SUFFIX, Sha256Hash, SourceEntry,
    SourceFileEntry, StoreError, StoredAs, read_layer, read_manifest, seal,
};

/// Separates the name of a conversion from every other hash.
const CONVERSION_DOMAIN: &[u8] = b"tarfa jnf conversion v1\n";

/// A conversion at work on a store that it has locked.
pub struct Conversion<'a> {
    pub(super) request: &'a Request<'a>,
    pub(super) disk: &'a dyn Disk,
    pub(super) manifest: Manifest,
    sources: Sources,
    stamps: Vec<Stamp>,
    report: Report,
}

impl<'a> Conversion<'a> {
    /// Goes on with the store that is there, or begins one in an empty folder.
    pub fn begin(
        request: &'a Request<'a>,
        disk: &'a dyn Disk,
        shapes: Vec<ExpertLayer>,
    ) -> Result<Conversion<'a>, ConvertError> {
        let fresh = fresh_manifest(request, shapes)?;
        let found = match read_manifest(&request.out) {
            Ok(found) => Some(same_conversion(request, found, &fresh)?),
            Err(StoreError::NotAStore { .. }) => {
                refuse_other_folders(&request.out)?;
                None
            }
            Err(error) => return Err(error.into()),
        };
        let is_new = found.is_none();
        let conversion = Conversion {
            request,
            disk,
            manifest: found.unwrap_or(fresh),
            sources: Sources::open(request.checkpoint)?,
            stamps: stamps(request.checkpoint)?,
            report: Report::default(),
        };
        conversion.remember_source()?;
        if is_new {
            conversion.make_folders()?;
            conversion.publish_manifest()?;
        }
        Ok(conversion)
    }

    /// What stopped it, as the caller is told.
    pub fn error_of(&self, stopped: Stopped) -> ConvertError {
        match stopped {
            Stopped::Failed(error) => error,
            Stopped::Interrupted => ConvertError::Interrupted {
                layers_done: self.manifest.layers.len(),
                layers: self.manifest.model.expert_layers.len(),
            },
        }
    }

    /// Everything that is asked for and not there.
    pub fn run(&mut self, wanted: &[ExpertLayer], observe: Observe) -> Result<Report, Stopped> {
        self.drop_damaged()?;
        let there = |shape: &&ExpertLayer| {
            self.manifest.layers.iter().any(|entry| entry.layer == shape.layer)
        };
        let (kept, todo): (Vec<&ExpertLayer>, Vec<&ExpertLayer>) = wanted.iter().partition(there);
        self.report.layers_kept = kept.iter().map(|shape| shape.layer).collect();
        let groups = dense_files(self.request.checkpoint);
        let total_bytes = self.total_bytes(&groups, &todo);
        self.check_space(&groups, &todo)?;
        let mut done_bytes = 0;
        let mut advance = |read_bytes: u64| {
            done_bytes += read_bytes;
            observe(Progress { done_bytes, total_bytes })
        };
        self.copy_beside()?;
        self.write_dense(&groups, &mut advance)?;
        for shape in todo {
            self.write_layer(*shape, &mut advance)?;
        }
        self.report.read_bytes = done_bytes;
        self.report.layers_missing = self.manifest.missing_layers();
        if self.report.layers_missing.is_empty() {
            self.finish()?;
            self.report.complete = true;
        }
        Ok(self.report.clone())
    }

    /// Compares the source with what it was when the store was begun, or writes down what it is.
    fn remember_source(&self) -> Result<(), ConvertError> {
        if let Some(state) = State::read(&self.request.out)? {
            return compare(self.request.checkpoint, &state.stamps, &self.stamps);
        }
        let path = self.request.out.join(CONVERSION_NAME);
        let folder = self.request.checkpoint.folder();
        let source = folder.and_then(|folder| fs::canonicalize(folder).ok());
        let source = source.map(|folder| folder.display().to_string());
        let source = source.unwrap_or_else(|| self.request.checkpoint.label().to_string());
        let state = seal(&State::new(&source, self.stamps.clone()));
        publish(self.disk, &path, &state).map_err(failed_at(&path))
    }

    fn make_folders(&self) -> Result<(), ConvertError> {
        for name in [LAYERS_FOLDER, DENSE_FOLDER] {
            let path = self.request.out.join(name);
            self.disk.create_dir(&path).map_err(failed_at(&path))?;
        }
        self.disk.sync_dir(&self.request.out).map_err(failed_at(&self.request.out))
    }

    pub(super) fn publish_manifest(&self) -> Result<(), ConvertError> {
        let path = self.request.out.join(MANIFEST_NAME);
        publish(self.disk, &path, &seal(&self.manifest)).map_err(failed_at(&path))
    }

    /// Forgets what is listed but not as it was written; it is written again.
    fn drop_damaged(&mut self) -> Result<(), ConvertError> {
        let (root, before) = (&self.request.out, self.manifest.clone());
        self.manifest.files.retain(|file| {
            let bytes = fs::read(root.join(&file.name));
            bytes.is_ok_and(|bytes| Sha256Hash::of(&bytes) == file.sha256)
        });
        self.manifest.dense.retain(|file| {
            let found = fs::metadata(root.join(DENSE_FOLDER).join(&file.name));
            found.is_ok_and(|found| found.len() == file.size_bytes)
        });
        let shapes = &before.model.expert_layers;
        self.manifest.layers.retain(|entry| {
            let shape = shapes.iter().find(|shape| shape.layer == entry.layer);
            shape.is_some_and(|shape| read_layer(root, &before, *shape, *entry).is_ok())
        });
        if self.manifest == before {
            return Ok(());
        }
        self.manifest.complete = false;
        self.publish_manifest()
    }

    fn is_written(&self, index: usize, count: usize) -> bool {
        let name = dense_name(index, count);
        self.manifest.dense.iter().any(|entry| entry.name == name)
    }

    fn dense_todo_bytes(&self, groups: &[Vec<&Tensor>]) -> u64 {
        let todo = groups.iter().enumerate().filter(|(at, _)| !self.is_written(*at, groups.len()));
        todo.flat_map(|(_, tensors)| tensors).map(|tensor| tensor.bytes.len() as u64).sum()
    }

    fn total_bytes(&self, groups: &[Vec<&Tensor>], todo: &[&ExpertLayer]) -> u64 {
        let layers: u64 = todo.iter().map(|shape| layer_weights_bytes(shape)).sum();
        layers + self.dense_todo_bytes(groups)
    }

    fn check_space(
        &self,
        groups: &[Vec<&Tensor>],
        todo: &[&ExpertLayer],
    ) -> Result<(), ConvertError> {
        let stored = self.manifest.encoding;
        let layers: u64 = todo.iter().map(|shape| layer_bytes(shape, stored)).sum();
        let size_bytes = layers + self.dense_todo_bytes(groups);
        check_space(self.disk, &self.request.out, size_bytes)
    }

    fn copy_beside(&mut self) -> Result<(), ConvertError> {
        let before = self.manifest.files.len();
        for name in beside(self.request.checkpoint)? {
            if self.manifest.files.iter().any(|file| file.name == name) {
                continue;
            }
            let Some(bytes) = self.request.checkpoint.file(&name)? else { continue };
            let path = self.request.out.join(&name);
            publish(self.disk, &path, &bytes).map_err(failed_at(&path))?;
            let (size_bytes, sha256) = (bytes.len() as u64, Sha256Hash::of(&bytes));
            self.manifest.files.push(FileEntry { name, size_bytes, sha256 });
        }
        if self.manifest.files.len() == before {
            return Ok(());
        }
        self.manifest.files.sort_by(|a, b| a.name.cmp(&b.name));
        self.unchanged_then_publish()
    }

    fn write_dense(&mut self, groups: &[Vec<&Tensor>], advance: Advance) -> Result<(), Stopped> {
        let folder = self.request.out.join(DENSE_FOLDER);
        for (at, tensors) in groups.iter().enumerate() {
            if self.is_written(at, groups.len()) {
                continue;
            }
            let name = dense_name(at, groups.len());
            let entry =
                write_dense(self.disk, &self.sources, &folder, name, tensors, &mut *advance)?;
            self.manifest.dense.push(entry);
            self.manifest.dense.sort_by(|a, b| a.name.cmp(&b.name));
            self.unchanged_then_publish()?;
        }
        Ok(())
    }

    fn write_layer(&mut self, shape: ExpertLayer, advance: Advance) -> Result<(), Stopped> {
        let job = LayerJob {
            map: self.request.experts,
            sources: &self.sources,
            shape,
            conversion: self.manifest.conversion,
            pack: self.request.pack,
            threads: self.request.threads,
        };
        let entry = job.write(self.disk, &self.request.out, advance)?;
        self.manifest.layers.push(entry);
        self.manifest.layers.sort_by_key(|entry| entry.layer);
        self.report.layers_written.push(shape.layer);
        Ok(self.unchanged_then_publish()?)
    }

    /// Lists what was just written, unless the source is not what it was when it was read.
    fn unchanged_then_publish(&self) -> Result<(), ConvertError> {
        let now = stamps(self.request.checkpoint)?;
        compare(self.request.checkpoint, &self.stamps, &now)?;
        self.publish_manifest()
    }
}

fn fresh_manifest(
    request: &Request,
    expert_layers: Vec<ExpertLayer>,
) -> Result<Manifest, ConvertError> {
    let checkpoint = request.checkpoint;
    let encoding = if request.pack { StoredAs::Packed } else { StoredAs::Bf16 };
    let text = |name: &str| checkpoint.config()[name].as_str().map(str::to_string);
    let tokenizer = checkpoint.file("tokenizer.json")?;
    let fingerprint: Sha256Hash = checkpoint.sha256_fingerprint().parse().expect("ours");
    Ok(Manifest {
        format: MANIFEST_FORMAT.to_string(),
        version: encoding.version(),
        tool: request.tool.clone(),
        conversion: conversion_name(encoding, fingerprint),
        complete: false,
        encoding,
        model: ModelEntry {
            model_type: text("model_type").unwrap_or_else(|| "unknown".to_string()),
            revision: text("_commit_hash"),
            dtype: EXPERT_DTYPE.to_string(),
            layer_count: request.experts.layer_count() as u32,
            expert_layers,
        },
        source: SourceEntry { fingerprint, files: source_files(checkpoint) },
        tokenizer_sha256: tokenizer.map(|bytes| Sha256Hash::of(&bytes)),
        files: Vec::new(),
        dense: Vec::new(),
        layers: Vec::new(),
    })
}

fn conversion_name(encoding: StoredAs, fingerprint: Sha256Hash) -> Sha256Hash {
    let mut hash = Sha256::new();
    hash.update(CONVERSION_DOMAIN);
    hash.update(encoding.version().to_le_bytes());
    hash.update(fingerprint.0);
    Sha256Hash::finish(hash)
}

fn source_files(checkpoint: &Checkpoint) -> Vec<SourceFileEntry> {
    let entry = |shard: &crate::checkpoint::Shard| SourceFileEntry {
        name: shard.file_name.clone(),
        size_bytes: shard.bytes.len() as u64,
        header_sha256: Sha256Hash(shard.header_sha256),
        used_sha256: None,
    };
    checkpoint.shards().iter().map(entry).collect()
}

/// The manifest found, if it is of this conversion.
fn same_conversion(
    request: &Request,
    found: Manifest,
    fresh: &Manifest,
) -> Result<Manifest, ConvertError> {
    let other = |field, expected: String, found: String| {
        let path = request.out.clone();
        Err(ConvertError::OtherConversion { path, field, expected, found })
    };
    if found.encoding != fresh.encoding {
        let text = |stored: StoredAs| stored.extension().to_string();
        return other("encoding", text(fresh.encoding), text(found.encoding));
    }
    let (expected, source) = (fresh.source.fingerprint, found.source.fingerprint);
    if source != expected {
        return other("source fingerprint", expected.to_string(), source.to_string());
    }
    if (found.conversion, &found.model) != (fresh.conversion, &fresh.model) {
        return other("model", format!("{:?}", fresh.model), format!("{:?}", found.model));
    }
    Ok(found)
}

/// Without a manifest, only what a conversion leaves that never got to write one.
fn refuse_other_folders(out: &Path) -> Result<(), ConvertError> {
    let failed = |source| ConvertError::Read { path: out.to_path_buf(), offset: 0, source };
    for entry in fs::read_dir(out).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let empty = || fs::read_dir(entry.path()).is_ok_and(|mut inside| inside.next().is_none());
        let ours = match name.strip_suffix(PARTIAL_SUFFIX).unwrap_or(&name) {
            LOCK_NAME | CONVERSION_NAME | MANIFEST_NAME => true,
            LAYERS_FOLDER | DENSE_FOLDER => empty(),
            _ => false,
        };
        if !ours {
            return Err(ConvertError::NotEmpty { path: out.to_path_buf(), found: name });
        }
    }
    Ok(())
}
