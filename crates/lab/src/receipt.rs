//! The receipt of an answer: what was asked, what came out, and the hashes that a replay on any
//! other machine must find again.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use engine::counters::PhaseCounters;
use engine::generate::digest::{Transcript, hex};
use engine::generate::sampler::SamplingParams;
use engine::index::TokenId;
use engine::tiers::Tiers;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::checkpoint::Checkpoint;

/// The layout of the file.
pub const RECEIPT_VERSION: u64 = 1;
/// The version of NUMERICS.md: two versions may give different bits, one never does.
pub const NUMERICS_VERSION: &str = "1";
/// The contract that the answer was made under.
pub const MODE_EXACT: &str = "exact";
/// What a reader of the machine part should know.
const MACHINE_NOTE: &str = "where it ran; no effect on any bit";

/// A shard of the checkpoint, without its weights' values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardIdentity {
    pub name: String,
    pub bytes: u64,
    pub header_sha256: String,
}

/// Which checkpoint answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelIdentity {
    /// Where it lay; says nothing about what it is.
    pub label: String,
    pub fingerprint: String,
    pub shards: Vec<ShardIdentity>,
}

impl ModelIdentity {
    /// The identity of an opened checkpoint.
    pub fn of(checkpoint: &Checkpoint) -> ModelIdentity {
        let shard = |s: &store::checkpoint::Shard| ShardIdentity {
            name: s.file_name.clone(),
            bytes: s.bytes.len() as u64,
            header_sha256: hex(&s.header_sha256),
        };
        ModelIdentity {
            label: checkpoint.label().to_string(),
            fingerprint: checkpoint.sha256_fingerprint(),
            shards: checkpoint.shards().iter().map(shard).collect(),
        }
    }
}

/// Where an answer was made: nothing here may change a bit of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub note: String,
    pub simd: String,
    pub threads: usize,
    pub chunk: usize,
}

impl Machine {
    /// A machine part with its note.
    pub fn new(simd: &str, threads: usize, chunk: usize) -> Machine {
        Machine { note: MACHINE_NOTE.to_string(), simd: simd.to_string(), threads, chunk }
    }
}

/// How many blocks of routed experts were compared with what, since the first run of the folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checked {
    /// All that the model has.
    pub blocks: u64,
    /// With a manifest that `tarfa convert` or `tarfa verify` wrote.
    pub manifest: u64,
    /// With their own first reading.
    pub first_seen: u64,
}

impl Checked {
    /// What is known of a model's experts by now.
    pub fn of(tiers: &Tiers) -> Checked {
        let (blocks, tally) = (tiers.map().all().count() as u64, tiers.digests().tally());
        Checked { blocks, manifest: tally.manifest, first_seen: tally.first_seen }
    }
}

/// Work of an answer, by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    pub prefill: PhaseCounters,
    pub decode: PhaseCounters,
}

/// Wall clock of an answer, by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seconds {
    pub load: f64,
    pub prefill: f64,
    pub decode: f64,
}

/// An answer and everything that defines it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// [`RECEIPT_VERSION`].
    pub receipt: u64,
    /// Version of the program that wrote it.
    pub tarfa: String,
    /// [`NUMERICS_VERSION`].
    pub numerics: String,
    /// [`MODE_EXACT`].
    pub mode: String,
    pub model: ModelIdentity,
    pub sampling: SamplingParams,
    pub prompt: Vec<TokenId>,
    /// SHA-256 of the logits of every prompt position, where they were computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logits_sha256: Option<Vec<String>>,
    pub tokens: Vec<TokenId>,
    /// SHA-256 of the logits that each token was chosen from.
    pub logits_sha256: Vec<String>,
    pub transcript_sha256: String,
    pub machine: Machine,
    pub counters: Counters,
    /// What the weights were compared with; absent in receipts of early versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<Checked>,
    pub seconds: Seconds,
}

impl Receipt {
    /// Reads a receipt of this version.
    ///
    /// Errors: no such file, not a receipt, another version of the layout, of the numerics or of
    /// the mode, lists that do not fit together. Nothing is said about the hashes yet.
    pub fn read(path: &Path) -> Result<Receipt> {
        let bytes = fs::read(path).with_context(|| format!("{}", path.display()))?;
        Receipt::parse(&bytes).with_context(|| format!("{}: not usable", path.display()))
    }

    fn parse(bytes: &[u8]) -> Result<Receipt> {
        let json: Value = serde_json::from_slice(bytes).context("not JSON")?;
        match json["receipt"].as_u64() {
            Some(RECEIPT_VERSION) => {}
            Some(other) => bail!(
                "receipt version {other}, this program reads {RECEIPT_VERSION}; use the version \
                 of tarfa that wrote it"
            ),
            None => bail!("no receipt of tarfa: \"receipt\" with a version number is missing"),
        }
        let receipt: Receipt = serde_json::from_slice(bytes).context("a damaged receipt")?;
        let (numerics, mode) = (&receipt.numerics, &receipt.mode);
        ensure!(
            numerics == NUMERICS_VERSION,
            "numerics version {numerics:?}, this program computes version {NUMERICS_VERSION:?}"
        );
        ensure!(mode == MODE_EXACT, "mode {mode:?}, only {MODE_EXACT:?} can be replayed");
        let (tokens, hashes) = (receipt.tokens.len(), receipt.logits_sha256.len());
        ensure!(tokens == hashes, "{tokens} tokens, but {hashes} logits hashes");
        let prompt = receipt.prompt.len();
        let hashes = receipt.prompt_logits_sha256.as_ref().map_or(prompt, Vec::len);
        ensure!(prompt == hashes, "{prompt} prompt tokens, but {hashes} hashes of them");
        Ok(receipt)
    }

    /// Writes the receipt; never leaves half of one under that name.
    ///
    /// Errors: the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let written = File::create(&partial).and_then(|mut file| {
            file.write_all(&json)?;
            file.sync_all()?;
            fs::rename(&partial, path)
        });
        written.with_context(|| format!("cannot write the receipt {}", path.display()))
    }

    /// The transcript's hash, from what the receipt itself says.
    ///
    /// Another one than `transcript_sha256` means that somebody changed the file.
    pub fn transcript_of_content(&self) -> String {
        let mut transcript = Transcript::new(&self.model.fingerprint, &self.sampling, &self.prompt);
        for (hash, token) in self.logits_sha256.iter().zip(&self.tokens) {
            transcript.push(hash, *token);
        }
        transcript.sha256()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Receipt {
        let sampling = SamplingParams { temperature: 0.1 + 0.2, seed: 7, ..Default::default() };
        let mut receipt = Receipt {
            receipt: RECEIPT_VERSION,
            tarfa: "0.1.0".into(),
            numerics: NUMERICS_VERSION.into(),
            mode: MODE_EXACT.into(),
            model: ModelIdentity {
                label: "somewhere".into(),
                fingerprint: "f".repeat(64),
                shards: vec![],
            },
            sampling,
            prompt: vec![TokenId(1), TokenId(2)],
            prompt_logits_sha256: None,
            tokens: vec![TokenId(3)],
            logits_sha256: vec!["0".repeat(64)],
            transcript_sha256: String::new(),
            machine: Machine::new("scalar", 1, 512),
            counters: Counters::default(),
            weights: Some(Checked { blocks: 3, manifest: 1, first_seen: 2 }),
            seconds: Seconds::default(),
        };
        receipt.transcript_sha256 = receipt.transcript_of_content();
        receipt
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("receipt.json");
        sample().write(&path).unwrap();
        assert_eq!(Receipt::read(&path).unwrap(), sample());
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "no partial file stays behind");
    }

    #[test]
    fn another_version_or_shape_is_refused() {
        let check = |change: fn(&mut Value), expect: &str| {
            let mut json = serde_json::to_value(sample()).unwrap();
            change(&mut json);
            let error = Receipt::parse(json.to_string().as_bytes()).unwrap_err();
            assert!(format!("{error:#}").contains(expect), "{error:#}");
        };
        check(|j| j["receipt"] = 2.into(), "receipt version 2");
        check(|j| j["receipt"] = Value::Null, "no receipt");
        check(|j| j["numerics"] = "0".into(), "numerics version");
        check(|j| j["mode"] = "fast".into(), "mode");
        check(|j| j["tokens"] = Value::Array(vec![]), "0 tokens, but 1");
        check(|j| j["prompt_logits_sha256"] = Value::Array(vec![]), "but 0 hashes");
        check(|j| j["surprise"] = 1.into(), "surprise");
    }

    #[test]
    fn a_change_shows_in_the_transcript() {
        let mut receipt = sample();
        receipt.tokens[0] = TokenId(4);
        assert_ne!(receipt.transcript_of_content(), receipt.transcript_sha256);
    }
}
