//! A store read from end to end, and compared with its manifest and, if asked, its checkpoint.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::Path;

use super::scan::{Scanned, Span, scan};
use super::{Findings, Place, VerifyError, What};
use crate::checkpoint::Checkpoint;
use crate::convert::{Observe, Progress, Sources};
use crate::experts::BlockId;
use crate::jnf::{
    BlockEntry, DENSE_FOLDER, LayerIndex, Sha256Hash, SourcePiece, Store, StoredAs,
    StoredProjection, layer_folder,
};
use crate::pack::Packed;

/// Reads every byte of a store; with a checkpoint, compares the weights with it, byte by byte.
///
/// Errors: a store that does not open, a checkpoint of another fingerprint, reading.
pub fn verify_store(
    store: &Store,
    source: Option<&Checkpoint>,
    observe: Observe,
) -> Result<Findings, VerifyError> {
    let source = source.map(|checkpoint| Source::new(store, checkpoint)).transpose()?;
    let mut verifier = Verifier {
        store,
        source,
        findings: Findings::default(),
        progress: Progress { done_bytes: 0, total_bytes: total_bytes(store) },
        observe,
    };
    verifier.dense()?;
    for index in store.indexes() {
        verifier.layer(index)?;
    }
    Ok(verifier.findings)
}

fn total_bytes(store: &Store) -> u64 {
    let dense = store.manifest().dense.iter().map(|file| file.size_bytes);
    let layers = store.indexes().iter().flat_map(|index| &index.files);
    dense.chain(layers.map(|file| file.size_bytes)).sum()
}

struct Verifier<'a> {
    store: &'a Store,
    source: Option<Source<'a>>,
    findings: Findings,
    progress: Progress,
    observe: Observe<'a>,
}

impl Verifier<'_> {
    fn dense(&mut self) -> Result<(), VerifyError> {
        for entry in &self.store.manifest().dense {
            let path = self.store.root().join(DENSE_FOLDER).join(&entry.name);
            let scanned = self.scan(&path, &[], &mut |_, _| ())?;
            let at = Place::file(&path);
            self.findings.compare(&at, What::SizeBytes, entry.size_bytes, scanned.size_bytes);
            self.findings.compare(&at, What::Sha256, entry.sha256, scanned.sha256);
            for tensor in &entry.tensors {
                self.dense_tensor(&at, &tensor.name, tensor.sha256, &tensor.source)?;
            }
        }
        Ok(())
    }

    /// The tensor against its hash, and against the checkpoint's bytes.
    fn dense_tensor(
        &mut self,
        file: &Place,
        name: &str,
        sha256: Sha256Hash,
        piece: &SourcePiece,
    ) -> Result<(), VerifyError> {
        let canonical = crate::checkpoint::canonical_name(name);
        let at = Place { tensor: Some(name.to_string()), ..file.clone() };
        let Some(tensor) = self.store.checkpoint().find(&canonical) else {
            let (expected, found) = ("a tensor".to_string(), "none".to_string());
            self.findings.differ(&at, What::Absent, expected, found);
            return Ok(());
        };
        self.findings.compare(&at, What::Sha256, sha256, Sha256Hash::of(&tensor.bytes));
        if let Some(source) = &self.source {
            let weights = source.read(std::slice::from_ref(piece))?;
            compare_weights(&mut self.findings, &at, &weights, &tensor.bytes);
        }
        Ok(())
    }

    fn layer(&mut self, index: &LayerIndex) -> Result<(), VerifyError> {
        for (projection, file) in StoredProjection::ALL.into_iter().zip(&index.files) {
            let path = layer_folder(self.store.root(), index.shape.layer).join(&file.name);
            let blocks: Vec<&BlockEntry> =
                index.blocks.iter().filter(|block| block.projection == projection).collect();
            let layer = index.shape.layer;
            let span = |block: &&BlockEntry| Span {
                id: block.id(layer),
                offset: block.offset,
                size_bytes: block.stored_bytes,
            };
            let spans: Vec<Span> = blocks.iter().map(span).collect();
            let weights_bytes = index.shape.weights_bytes(projection) as usize;
            let (scanned, compared) =
                self.scan_and_compare(&path, &spans, &blocks, weights_bytes)?;
            self.findings.differences.extend(compared.differences);
            let at = Place::file(&path);
            self.findings.compare(&at, What::SizeBytes, file.size_bytes, scanned.size_bytes);
            self.findings.compare(&at, What::Sha256, file.sha256, scanned.sha256);
            for (entry, found) in blocks.iter().zip(&scanned.blocks) {
                let at = block_place(&path, entry, found.id);
                self.findings.compare(&at, What::Sha256, entry.sha256, found.sha256);
                self.findings.compare(&at, What::Checksum, entry.xxh3, found.xxh3);
            }
            self.findings.blocks += scanned.blocks.len() as u64;
        }
        Ok(())
    }

    /// Scans a file, and meanwhile compares its blocks with the checkpoint.
    fn scan_and_compare(
        &mut self,
        path: &Path,
        spans: &[Span],
        blocks: &[&BlockEntry],
        weights_bytes: usize,
    ) -> Result<(Scanned, Findings), VerifyError> {
        let source = self.source.take();
        let mut compared = Findings::default();
        let mut failed = None;
        let mut entries = blocks.iter();
        let mut inspect = |span: &Span, stored: &[u8]| {
            let entry = entries.next().expect("one span per block");
            let at = block_place(path, entry, span.id);
            let unpacked = match unpack(entry, stored, weights_bytes) {
                Ok(unpacked) => unpacked,
                Err(reason) => {
                    let expected = "what the codec writes".to_string();
                    return compared.differ(&at, What::Packing, expected, reason);
                }
            };
            if entry.encoding == StoredAs::Packed {
                let found = Sha256Hash::of(&unpacked);
                compared.compare(&at, What::Weights, entry.weights_sha256, found);
            }
            let Some(source) = source.as_ref().filter(|_| failed.is_none()) else { return };
            match source.read(&entry.source) {
                Ok(weights) => compare_weights(&mut compared, &at, &weights, &unpacked),
                Err(error) => failed = Some(error),
            }
        };
        let scanned = self.scan(path, spans, &mut inspect);
        self.source = source;
        match failed {
            Some(error) => Err(error),
            None => Ok((scanned?, compared)),
        }
    }

    fn scan(
        &mut self,
        path: &Path,
        spans: &[Span],
        inspect: &mut (dyn FnMut(&Span, &[u8]) + Send),
    ) -> Result<Scanned, VerifyError> {
        let (progress, observe) = (&mut self.progress, &mut self.observe);
        let mut advance = |read_bytes: u64| -> ControlFlow<()> {
            progress.done_bytes += read_bytes;
            observe(*progress)
        };
        let scanned = scan(path, spans, inspect, &mut advance)
            .map_err(|source| VerifyError::Io { path: path.to_path_buf(), source })?;
        let read_bytes = self.progress.done_bytes;
        let scanned = scanned.ok_or(VerifyError::Interrupted { read_bytes })?;
        self.findings.files += 1;
        self.findings.read_bytes = read_bytes;
        Ok(scanned)
    }
}

fn block_place(path: &Path, entry: &BlockEntry, id: BlockId) -> Place {
    let tensor = entry.source.first().map(|piece| piece.tensor.clone());
    Place { file: path.to_path_buf(), tensor, block: Some(id) }
}

/// The weights of a block, or why there are none.
fn unpack<'a>(
    entry: &BlockEntry,
    stored: &'a [u8],
    weights_bytes: usize,
) -> Result<Cow<'a, [u8]>, String> {
    if entry.encoding == StoredAs::Bf16 {
        return Ok(Cow::Borrowed(stored));
    }
    match Packed::parse(stored) {
        Ok(packed) if 2 * packed.rows() * packed.cols() == weights_bytes => {
            let mut weights = vec![0; weights_bytes];
            packed.decode(&mut weights);
            Ok(Cow::Owned(weights))
        }
        Ok(packed) => Err(format!("{} x {} weights", packed.rows(), packed.cols())),
        Err(refused) => Err(refused.to_string()),
    }
}

/// The first byte that differs, if any.
fn compare_weights(findings: &mut Findings, at: &Place, expected: &[u8], found: &[u8]) {
    if expected == found {
        return;
    }
    let pair = expected.iter().zip(found).enumerate().find(|(_, (e, f))| e != f);
    let (byte, expected, found) = match pair {
        Some((byte, (e, f))) => (byte, format!("0x{e:02x}"), format!("0x{f:02x}")),
        None => (expected.len().min(found.len()), "as many bytes".into(), "others".into()),
    };
    findings.differ(at, What::Weights, format!("{expected} at byte {byte}"), found);
}

/// The checkpoint that a store is compared with.
struct Source<'a> {
    checkpoint: &'a Checkpoint,
    files: Sources,
}

impl Source<'_> {
    fn new<'a>(store: &Store, checkpoint: &'a Checkpoint) -> Result<Source<'a>, VerifyError> {
        let expected = store.manifest().source.fingerprint.to_string();
        let found = checkpoint.sha256_fingerprint();
        if expected != found {
            let path = store.root().to_path_buf();
            return Err(VerifyError::OtherSource { path, expected, found });
        }
        Ok(Source { checkpoint, files: Sources::open(checkpoint)? })
    }

    fn read(&self, pieces: &[SourcePiece]) -> Result<Vec<u8>, VerifyError> {
        let mut weights = Vec::new();
        for piece in pieces {
            let shard = self.checkpoint.shards().iter().find(|s| s.file_name == piece.file);
            let Some(shard) = shard else {
                let path = Path::new(self.checkpoint.label()).join(&piece.file);
                let source = std::io::ErrorKind::NotFound.into();
                return Err(VerifyError::Io { path, source });
            };
            let path = self.checkpoint.shard_path(shard);
            self.files.read(&path, piece.offset, piece.size_bytes, &mut weights)?;
        }
        Ok(weights)
    }
}
