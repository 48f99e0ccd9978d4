//! All weights but the routed experts, in safetensors files of their own.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use twox_hash::XxHash3_128;

use super::disk::{Disk, DiskFile, partial};
use super::error::ConvertError;
use super::layer::{Advance, Stopped, failed_at};
use super::source::Sources;
use crate::checkpoint::Tensor;
use crate::jnf::{DenseEntry, DenseTensor, FastSum, Sha256Hash, SourcePiece};

/// Bytes read and written at once.
const CHUNK_BYTES: u64 = 4 << 20;
/// Chunks that wait to be written.
const QUEUE: usize = 3;
/// Headers are filled up with blanks to a multiple of it, as the reference implementation does.
const HEADER_ALIGN_BYTES: usize = 8;

/// Writes one dense file beside its place and moves it there once all of it is on the disk.
pub fn write_dense(
    disk: &dyn Disk,
    sources: &Sources,
    folder: &Path,
    name: String,
    tensors: &[&Tensor],
    advance: Advance,
) -> Result<DenseEntry, Stopped> {
    let place = folder.join(&name);
    let path = partial(&place);
    let failed = failed_at(&path);
    let header = header(tensors);
    let file = disk.create(&path).map_err(&failed)?;
    let mut file = Hashed { file, sha256: Sha256::new(), xxh3: XxHash3_128::new(), end: 0 };
    file.append(&header).map_err(&failed)?;
    let hashes = thread::scope(|scope| {
        let (to_writer, chunks) = sync_channel(QUEUE);
        let (give_back, buffers) = channel();
        let reader = scope.spawn(move || read_all(sources, tensors, &to_writer, &buffers));
        let appended = append_all(&mut file, chunks, &give_back, &failed, advance);
        drop(give_back);
        let read = reader.join().expect("reading does not panic");
        appended.and_then(|()| Ok(read?))
    })?;
    let written = tensors.iter().zip(hashes).map(|(tensor, hash)| entry(tensor, hash)).collect();
    file.file.sync().map_err(&failed)?;
    let entry = DenseEntry {
        name,
        size_bytes: file.end,
        sha256: Sha256Hash::finish(file.sha256),
        xxh3: FastSum(file.xxh3.finish_128()),
        header_sha256: Sha256Hash::of(&header),
        tensors: written,
    };
    drop(file.file);
    disk.rename(&path, &place).map_err(failed_at(&place))?;
    disk.sync_dir(folder).map_err(failed_at(folder))?;
    Ok(entry)
}

/// Reads and hashes one tensor after the other; stops early, without an error, where nobody takes
/// what it reads.
fn read_all(
    sources: &Sources,
    tensors: &[&Tensor],
    to_writer: &SyncSender<Vec<u8>>,
    buffers: &Receiver<Vec<u8>>,
) -> Result<Vec<Sha256Hash>, ConvertError> {
    let mut hashes = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let mut hash = Sha256::new();
        let size_bytes = tensor.bytes.len() as u64;
        for begin in (0..size_bytes).step_by(CHUNK_BYTES as usize) {
            let len = CHUNK_BYTES.min(size_bytes - begin);
            let mut chunk = buffers.try_recv().unwrap_or_default();
            chunk.clear();
            sources.read(&tensor.file, tensor.offset + begin, len, &mut chunk)?;
            hash.update(&chunk);
            if to_writer.send(chunk).is_err() {
                return Ok(hashes);
            }
        }
        hashes.push(Sha256Hash::finish(hash));
    }
    Ok(hashes)
}

/// Appends what the reader sends, and gives the buffers back.
fn append_all(
    file: &mut Hashed,
    chunks: Receiver<Vec<u8>>,
    give_back: &Sender<Vec<u8>>,
    failed: impl Fn(io::Error) -> ConvertError,
    advance: Advance,
) -> Result<(), Stopped> {
    for chunk in chunks {
        file.append(&chunk).map_err(&failed)?;
        if advance(chunk.len() as u64).is_break() {
            return Err(Stopped::Interrupted);
        }
        // a reader that is through needs none
        let _ = give_back.send(chunk);
    }
    Ok(())
}

struct Hashed<'a> {
    file: Box<dyn DiskFile + 'a>,
    sha256: Sha256,
    xxh3: XxHash3_128,
    end: u64,
}

impl Hashed<'_> {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sha256.update(bytes);
        self.xxh3.write(bytes);
        self.end += bytes.len() as u64;
        self.file.write_all(bytes)
    }
}

fn entry(tensor: &Tensor, sha256: Sha256Hash) -> DenseTensor {
    let file = tensor.file.file_name().expect("a shard").to_string_lossy().into_owned();
    let source = SourcePiece {
        file,
        tensor: tensor.name.clone(),
        offset: tensor.offset,
        size_bytes: tensor.bytes.len() as u64,
    };
    DenseTensor { name: tensor.name.clone(), sha256, source }
}

/// The length field and the header of a safetensors file of these tensors, in this order.
fn header(tensors: &[&Tensor]) -> Vec<u8> {
    let mut entries: BTreeMap<&str, Value> = BTreeMap::new();
    let mut begin = 0;
    for tensor in tensors {
        let end = begin + tensor.bytes.len();
        let entry = json!({
            "dtype": tensor.dtype.name(),
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        });
        entries.insert(&tensor.name, entry);
        begin = end;
    }
    let mut json = serde_json::to_vec(&entries).expect("plain data");
    json.resize(json.len().next_multiple_of(HEADER_ALIGN_BYTES), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}
