//! What is known of the weights of a folder used in place: `.tarfa/manifest.json`. FORMAT.md
//! specifies it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use serde::{Deserialize, Serialize};

use crate::convert::{RealDisk, publish};
use crate::experts::{BlockId, Digests, Projection, Provenance};
use crate::jnf::{FastSum, SealProblem, Sha256Hash, seal, unseal};

/// `format` of the file.
pub const SIDECAR_FORMAT: &str = "tarfa-sidecar";
pub const SIDECAR_NAME: &str = "manifest.json";
/// The folder beside a model's files.
pub const FOLDER: &str = ".tarfa";

/// Why a sidecar cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    #[error("{path}: {problem}; remove it, and `tarfa verify` makes a new one")]
    Sealed { path: PathBuf, problem: SealProblem },
    #[error(
        "{path}: it is of a checkpoint with fingerprint {found}, this one has {expected}: the \
         files were exchanged; remove it, and `tarfa verify` makes a new one"
    )]
    OtherCheckpoint { path: PathBuf, expected: String, found: String },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
}

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sidecar {
    format: String,
    version: u64,
    /// `Checkpoint::sha256_fingerprint`.
    fingerprint: String,
    /// Files whose every byte was read by `tarfa verify`.
    pub files: Vec<SidecarFile>,
    /// Blocks, by layer, expert and projection.
    blocks: Vec<SidecarBlock>,
}

/// A safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SidecarFile {
    pub name: String,
    pub size_bytes: u64,
    pub sha256: Sha256Hash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SidecarBlock {
    layer: u32,
    expert: u32,
    projection: ProjectionName,
    xxh3: FastSum,
    known_by: KnownBy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ProjectionName {
    GateUp,
    Gate,
    Up,
    Down,
}

/// How a checksum came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KnownBy {
    /// `tarfa verify` read the whole file.
    Verify,
    /// The first run that used it.
    FirstSeen,
}

impl Sidecar {
    /// Of a checkpoint of which nothing is known.
    pub fn new(fingerprint: &str) -> Sidecar {
        let (format, fingerprint) = (SIDECAR_FORMAT.to_string(), fingerprint.to_string());
        Sidecar { format, version: 1, fingerprint, files: Vec::new(), blocks: Vec::new() }
    }

    /// Reads it; one that knows nothing where there is none.
    ///
    /// # Errors
    /// A file that is damaged, of another version or of another checkpoint.
    pub fn load(path: &Path, fingerprint: &str) -> Result<Sidecar, SidecarError> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Sidecar::new(fingerprint)),
            Err(source) => return Err(SidecarError::Io { path: path.to_path_buf(), source }),
        };
        let found: Sidecar = unseal(&bytes, SIDECAR_FORMAT, &[1], "1")
            .map_err(|problem| SidecarError::Sealed { path: path.to_path_buf(), problem })?;
        if found.fingerprint != fingerprint {
            let (path, expected) = (path.to_path_buf(), fingerprint.to_string());
            return Err(SidecarError::OtherCheckpoint { path, expected, found: found.fingerprint });
        }
        Ok(found)
    }

    /// What readers compare with.
    pub fn digests(&self) -> Digests {
        Digests::new(self.blocks.iter().map(|block| (block.id(), block.xxh3.0, block.from())))
    }

    /// Adds blocks that it does not know. A known one stays as it is, but that a verified checksum
    /// takes the place of one that a run saw.
    ///
    /// True where anything changed.
    pub fn learn(&mut self, entries: Vec<(BlockId, u128, Provenance)>) -> bool {
        let mut known: BTreeMap<BlockId, SidecarBlock> =
            self.blocks.iter().map(|block| (block.id(), *block)).collect();
        for (id, sum, from) in entries {
            let verified = from == Provenance::Manifest;
            if verified || !known.contains_key(&id) {
                known.insert(id, SidecarBlock::new(id, sum, from));
            }
        }
        let blocks: Vec<SidecarBlock> = known.into_values().collect();
        let changed = blocks != self.blocks;
        self.blocks = blocks;
        changed
    }

    /// Writes it so that after a crash the old one is there or the new one.
    ///
    /// # Errors
    /// The operating system's.
    pub fn save(&self, path: &Path) -> Result<(), SidecarError> {
        let _lock = lock(path)?;
        self.write(path)
    }

    fn write(&self, path: &Path) -> Result<(), SidecarError> {
        let failed = |source| SidecarError::Io { path: path.to_path_buf(), source };
        publish(&RealDisk, path, &seal(self)).map_err(failed)
    }

    /// Adds to the file what a run learned; others may have written it meanwhile. Touches nothing
    /// where there is nothing new.
    ///
    /// # Errors
    /// As `load` and `save`.
    pub fn update(
        path: &Path,
        fingerprint: &str,
        entries: Vec<(BlockId, u128, Provenance)>,
    ) -> Result<(), SidecarError> {
        if !Sidecar::load(path, fingerprint)?.learn(entries.clone()) {
            return Ok(());
        }
        let _lock = lock(path)?;
        let mut sidecar = Sidecar::load(path, fingerprint)?;
        if sidecar.learn(entries) { sidecar.write(path) } else { Ok(()) }
    }
}

/// Waits for whoever writes the file now; the lock goes with what is returned. Makes the folder.
fn lock(path: &Path) -> Result<File, SidecarError> {
    let failed = |source| SidecarError::Io { path: path.to_path_buf(), source };
    fs::create_dir_all(path.parent().expect("a file is in a folder")).map_err(failed)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file = options.open(path.with_extension("lock")).map_err(failed)?;
    file.lock().map_err(failed)?;
    Ok(file)
}

impl SidecarBlock {
    fn new(id: BlockId, sum: u128, from: Provenance) -> SidecarBlock {
        let projection = match id.projection {
            Projection::GateUp => ProjectionName::GateUp,
            Projection::Gate => ProjectionName::Gate,
            Projection::Up => ProjectionName::Up,
            Projection::Down => ProjectionName::Down,
        };
        let known_by = match from {
            Provenance::Manifest => KnownBy::Verify,
            Provenance::FirstSeen => KnownBy::FirstSeen,
        };
        let (layer, expert, xxh3) = (id.layer, id.expert, FastSum(sum));
        SidecarBlock { layer, expert, projection, xxh3, known_by }
    }

    fn id(&self) -> BlockId {
        let projection = match self.projection {
            ProjectionName::GateUp => Projection::GateUp,
            ProjectionName::Gate => Projection::Gate,
            ProjectionName::Up => Projection::Up,
            ProjectionName::Down => Projection::Down,
        };
        BlockId { layer: self.layer, expert: self.expert, projection }
    }

    fn from(&self) -> Provenance {
        match self.known_by {
            KnownBy::Verify => Provenance::Manifest,
            KnownBy::FirstSeen => Provenance::FirstSeen,
        }
    }
}

/// The folder for what is learned about a checkpoint: beside its files if that can be written,
/// else in the user's cache folder; `None` where there is neither. Creates nothing.
pub fn beside(folder: Option<&Path>, fingerprint: &str) -> Option<PathBuf> {
    if let Some(folder) = folder {
        let own = folder.join(FOLDER);
        let parent = if own.exists() { &own } else { folder };
        if rustix::fs::access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok() {
            return Some(own);
        }
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))?;
    Some(cache.join("tarfa").join(fingerprint))
}
