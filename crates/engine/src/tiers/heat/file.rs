//! The file of a heat: written whole or not at all, and never a reason to stop a run.
//!
//! Layout, integers little-endian: `MAGIC`; the fingerprint of the checkpoint, 64 bytes of hex;
//! layers, experts and top-k as u32; tokens as u64; the faded tokens of prefill and of decode as
//! f64; by expert the faded counts of prefill and of decode as f32 and the total as u64; the
//! SHA-256 of all that.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use store::sidecar;

use super::{Fading, Heat};
use crate::tiers::Shape;

const MAGIC: &[u8; 16] = b"tarfa heat 1\n\0\0\0";
const FINGERPRINT_BYTES: usize = 64;
const HEAD_BYTES: usize = MAGIC.len() + FINGERPRINT_BYTES + 3 * 4 + 3 * 8;
const EXPERT_BYTES: usize = 4 + 4 + 8;
const SUM_BYTES: usize = 32;

/// Why a heat cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum HeatError {
    #[error("{path}: {source}; without it the next run starts with a cold ledger")]
    Io { path: PathBuf, source: io::Error },

    #[error("{path}: there is no folder to keep it in; set XDG_CACHE_HOME or HOME")]
    NoHome { path: PathBuf },
}

/// Why a file was not used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    #[error("it is no heat of this version")]
    Foreign,
    #[error("it belongs to the checkpoint {found}")]
    OtherCheckpoint { found: String },
    #[error("it has {found:?}, expected {expected:?}")]
    OtherShape { found: Shape, expected: Shape },
    #[error("its length is {found} bytes, expected {expected}")]
    Length { found: usize, expected: usize },
    #[error("its checksum does not fit")]
    Checksum,
    #[error("a count is not a number from 0 up")]
    Count,
    #[error("it cannot be read: {kind}")]
    Unreadable { kind: io::ErrorKind },
}

/// What was found where a heat should be.
#[derive(Clone, PartialEq, Debug)]
pub enum Loaded {
    Known(Box<Heat>),
    /// There is no file.
    Absent,
    /// The file was renamed, if that was possible, and the ledger starts cold.
    SetAside {
        why: Broken,
        moved_to: Option<PathBuf>,
    },
}

/// Where the heat of a checkpoint lies: in its folder if that can be written, else in the cache
/// folder of the user. Creates nothing.
///
/// Errors: `NoHome` where there is neither.
pub fn heat_path(folder: Option<&Path>, fingerprint: &str) -> Result<PathBuf, HeatError> {
    let place = sidecar::beside(folder, fingerprint).ok_or_else(|| HeatError::NoHome {
        path: folder.unwrap_or(Path::new("embedded model")).to_path_buf(),
    })?;
    Ok(place.join("heat"))
}

/// Reads a heat. What cannot be used is set aside, beside its place, and reported.
pub fn load(path: &Path, fingerprint: &str, shape: Shape) -> Loaded {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Loaded::Absent,
        Err(e) => {
            let why = Broken::Unreadable { kind: e.kind() };
            return Loaded::SetAside { why, moved_to: None };
        }
    };
    match parse(&bytes, fingerprint, shape) {
        Ok(heat) => Loaded::Known(Box::new(heat)),
        Err(why) => {
            let aside = path.with_extension("set-aside");
            let moved_to = fs::rename(path, &aside).ok().map(|()| aside);
            Loaded::SetAside { why, moved_to }
        }
    }
}

/// Adds what a run saw to the file, which other runs may have changed meanwhile.
///
/// Two runs that end at the same moment may lose the heat of one; the file is whole in any case.
/// Returns the heat as written.
///
/// Errors: the folder cannot be made, the file cannot be written.
pub fn save(path: &Path, fingerprint: &str, seen: &Heat) -> Result<Heat, HeatError> {
    let mut heat = seen.clone();
    if let Loaded::Known(before) = load(path, fingerprint, seen.shape) {
        heat.merge(&before);
    }
    let failed = |source| HeatError::Io { path: path.to_path_buf(), source };
    write_atomically(path, &bytes_of(&heat, fingerprint)).map_err(failed)?;
    Ok(heat)
}

/// Forgets a heat; false if there was none.
///
/// Errors: the file cannot be removed.
pub fn remove(path: &Path) -> Result<bool, HeatError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(HeatError::Io { path: path.to_path_buf(), source }),
    }
}

/// After a crash at any point the old file is there or the new one.
fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().expect("a heat lies in a folder");
    fs::create_dir_all(folder)?;
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let written = File::create(&partial).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(e) = written.and_then(|()| fs::rename(&partial, path)) {
        // The first error is the one to tell.
        let _ = fs::remove_file(&partial);
        return Err(e);
    }
    File::open(folder)?.sync_all()
}

fn bytes_of(heat: &Heat, fingerprint: &str) -> Vec<u8> {
    assert_eq!(fingerprint.len(), FINGERPRINT_BYTES, "SHA-256 in hex");
    let shape = heat.shape;
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(fingerprint.as_bytes());
    for count in [shape.layers, shape.experts, shape.top_k] {
        bytes.extend_from_slice(&(count as u32).to_le_bytes());
    }
    bytes.extend_from_slice(&heat.tokens.to_le_bytes());
    bytes.extend_from_slice(&heat.prefill.tokens.to_le_bytes());
    bytes.extend_from_slice(&heat.decode.tokens.to_le_bytes());
    for position in 0..shape.total() {
        bytes.extend_from_slice(&(heat.prefill.counts[position] as f32).to_le_bytes());
        bytes.extend_from_slice(&(heat.decode.counts[position] as f32).to_le_bytes());
        bytes.extend_from_slice(&heat.totals[position].to_le_bytes());
    }
    let sum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&sum);
    bytes
}

fn parse(bytes: &[u8], fingerprint: &str, expected: Shape) -> Result<Heat, Broken> {
    if bytes.len() < HEAD_BYTES + SUM_BYTES || !bytes.starts_with(MAGIC) {
        return Err(Broken::Foreign);
    }
    let (body, sum) = bytes.split_at(bytes.len() - SUM_BYTES);
    if Sha256::digest(body)[..] != *sum {
        return Err(Broken::Checksum);
    }
    let mut fields = Fields(&body[MAGIC.len()..]);
    let found = String::from_utf8_lossy(fields.take(FINGERPRINT_BYTES)).into_owned();
    if found != fingerprint {
        return Err(Broken::OtherCheckpoint { found });
    }
    let [layers, experts, top_k] = [(); 3].map(|()| u32::from_le_bytes(fields.array()) as usize);
    let found = Shape { layers, experts, top_k };
    if found != expected {
        return Err(Broken::OtherShape { found, expected });
    }
    let length = HEAD_BYTES + EXPERT_BYTES * expected.total();
    if body.len() != length {
        return Err(Broken::Length { found: body.len(), expected: length });
    }
    fields.heat(expected)
}

/// What is left to read of a body whose length is known to suffice.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().expect("as many as taken")
    }

    fn heat(&mut self, shape: Shape) -> Result<Heat, Broken> {
        let tokens = u64::from_le_bytes(self.array());
        let [prefill, decode] = [(); 2].map(|()| f64::from_le_bytes(self.array()));
        let mut heat = Heat::new(shape);
        heat.tokens = tokens;
        heat.prefill.tokens = prefill;
        heat.decode.tokens = decode;
        for position in 0..shape.total() {
            heat.prefill.counts[position] = f64::from(f32::from_le_bytes(self.array()));
            heat.decode.counts[position] = f64::from(f32::from_le_bytes(self.array()));
            heat.totals[position] = u64::from_le_bytes(self.array());
        }
        let sound = |f: &Fading| {
            let counts = f.counts.iter().chain([&f.tokens]);
            counts.copied().all(|count| count.is_finite() && count >= 0.0)
        };
        if sound(&heat.prefill) && sound(&heat.decode) { Ok(heat) } else { Err(Broken::Count) }
    }
}

#[cfg(test)]
mod tests;
