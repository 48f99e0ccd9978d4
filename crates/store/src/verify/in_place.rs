//! A folder used in place, read from end to end: its hashes recorded, or compared.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use super::scan::{Advance, Span, scan};
use super::{Findings, Place, VerifyError, What};
use crate::checkpoint::Checkpoint;
use crate::convert::{Observe, Progress};
use crate::experts::{BlockId, ExpertMap, Provenance};
use crate::jnf::{FastSum, Sha256Hash};
use crate::sidecar::{Sidecar, SidecarFile};

/// What `sha256sum` printed: hashes by file name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(BTreeMap<String, Sha256Hash>);

impl Sums {
    /// Reads a file as `sha256sum` writes it: 64 hex digits, two blanks or a blank and a star, a
    /// name. Folders in names are left out.
    ///
    /// # Errors
    /// `Io`, and `BadSums` with the line.
    pub fn read(path: &Path) -> Result<Sums, VerifyError> {
        let text = fs::read_to_string(path)
            .map_err(|source| VerifyError::Io { path: path.to_path_buf(), source })?;
        let mut sums = BTreeMap::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let (path, line_number) = (path.to_path_buf(), at + 1);
            let bad = || VerifyError::BadSums { path: path.clone(), line: line_number };
            let (hash, name) = line.split_once(char::is_whitespace).ok_or_else(bad)?;
            let name = name.trim_start_matches([' ', '*']).trim_end();
            let name = name.rsplit('/').next().filter(|name| !name.is_empty()).ok_or_else(bad)?;
            sums.insert(name.to_string(), hash.parse().map_err(|_| bad())?);
        }
        Ok(Sums(sums))
    }
}

/// What a folder is compared with, all of it at will.
#[derive(Clone, Copy, Debug, Default)]
pub struct InPlace<'a> {
    pub sums: Option<&'a Sums>,
    pub known: Option<&'a Sidecar>,
}

/// Reads every safetensors file; what is known must be what is found.
///
/// Gives what was found, too: a sidecar that knows everything.
///
/// # Errors
/// Reading, and being interrupted. What differs is in the findings.
pub fn verify_in_place(
    checkpoint: &Checkpoint,
    map: &ExpertMap,
    with: InPlace<'_>,
    observe: Observe,
) -> Result<(Sidecar, Findings), VerifyError> {
    let total_bytes = checkpoint.shards().iter().map(|shard| shard.bytes.len() as u64).sum();
    let mut progress = Progress { done_bytes: 0, total_bytes };
    let mut advance = |bytes: u64| {
        progress.done_bytes += bytes;
        observe(progress)
    };
    let mut found = Found {
        checkpoint,
        map,
        with,
        known: known_blocks(with.known),
        sidecar: Sidecar::new(&checkpoint.sha256_fingerprint()),
        findings: Findings::default(),
    };
    for (at, shard) in checkpoint.shards().iter().enumerate() {
        found.file(at, &checkpoint.shard_path(shard), &mut advance)?;
    }
    found.absent_files();
    Ok((found.sidecar, found.findings))
}

fn known_blocks(known: Option<&Sidecar>) -> HashMap<BlockId, u128> {
    let entries = known.map(|sidecar| sidecar.digests().entries()).unwrap_or_default();
    entries.into_iter().map(|(id, sum, _)| (id, sum)).collect()
}

struct Found<'a> {
    checkpoint: &'a Checkpoint,
    map: &'a ExpertMap,
    with: InPlace<'a>,
    known: HashMap<BlockId, u128>,
    sidecar: Sidecar,
    findings: Findings,
}

impl Found<'_> {
    fn file(&mut self, at: usize, path: &Path, advance: Advance) -> Result<(), VerifyError> {
        let mut blocks: Vec<_> =
            self.map.all().filter(|block| block.file.0 as usize == at).collect();
        blocks.sort_by_key(|block| block.offset_bytes);
        let span = |block: &&crate::experts::Block| Span {
            id: block.id,
            offset: block.offset_bytes,
            size_bytes: block.stored_bytes,
        };
        let spans: Vec<Span> = blocks.iter().map(span).collect();
        let scanned = scan(path, &spans, &mut |_, _| (), advance)
            .map_err(|source| VerifyError::Io { path: path.to_path_buf(), source })?;
        let read_bytes = self.findings.read_bytes;
        let scanned = scanned.ok_or(VerifyError::Interrupted { read_bytes })?;
        self.findings.files += 1;
        self.findings.read_bytes += scanned.size_bytes;
        self.findings.blocks += scanned.blocks.len() as u64;
        let place = Place::file(path);
        let name = self.checkpoint.shards()[at].file_name.clone();
        let opened = self.checkpoint.shards()[at].bytes.len() as u64;
        self.findings.compare(&place, What::SizeBytes, opened, scanned.size_bytes);
        if let Some(expected) = self.with.sums.and_then(|sums| sums.0.get(&name)) {
            self.findings.compare(&place, What::Sha256, *expected, scanned.sha256);
        }
        if let Some(known) = self.with.known {
            for file in known.files.iter().filter(|file| file.name == name) {
                self.findings.compare(&place, What::SizeBytes, file.size_bytes, scanned.size_bytes);
                self.findings.compare(&place, What::Sha256, file.sha256, scanned.sha256);
            }
        }
        for (block, found) in blocks.iter().zip(&scanned.blocks) {
            if let Some(expected) = self.known.get(&found.id) {
                let tensor = Some(block.tensor.to_string());
                let place = Place { file: path.to_path_buf(), tensor, block: Some(found.id) };
                self.findings.compare(&place, What::Checksum, FastSum(*expected), found.xxh3);
            }
        }
        let entries = scanned.blocks.iter().map(|b| (b.id, b.xxh3.0, Provenance::Manifest));
        self.sidecar.learn(entries.collect());
        let (size_bytes, sha256) = (scanned.size_bytes, scanned.sha256);
        self.sidecar.files.push(SidecarFile { name, size_bytes, sha256 });
        Ok(())
    }

    /// Files that a list of sums names and the folder lacks.
    fn absent_files(&mut self) {
        let Some(sums) = self.with.sums else { return };
        let there = |name: &str| self.checkpoint.shards().iter().any(|s| s.file_name == name);
        let lacking = |name: &&String| name.ends_with(".safetensors") && !there(name);
        let absent: Vec<&String> = sums.0.keys().filter(lacking).collect();
        for name in absent {
            let folder = self.checkpoint.folder().unwrap_or(Path::new(""));
            let place = Place::file(folder.join(name));
            self.findings.differ(&place, What::Absent, "a file".into(), "none".into());
        }
    }
}
