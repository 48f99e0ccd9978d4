//! All weights but the routed experts, in safetensors files of their own.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use twox_hash::XxHash3_128;

use super::disk::{Disk, DiskFile, partial};
use super::layer::{Advance, Stopped, failed_at};
use super::source::Sources;
use crate::checkpoint::Tensor;
use crate::jnf::{DenseEntry, DenseTensor, FastSum, Sha256Hash, SourcePiece};

/// Bytes read and written at once.
const CHUNK_BYTES: u64 = 16 << 20;
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
    let mut written = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let mut hash = Sha256::new();
        let size_bytes = tensor.bytes.len() as u64;
        for begin in (0..size_bytes).step_by(CHUNK_BYTES as usize) {
            let len = CHUNK_BYTES.min(size_bytes - begin);
            let mut chunk = Vec::new();
            sources.read(&tensor.file, tensor.offset + begin, len, &mut chunk)?;
            hash.update(&chunk);
            file.append(&chunk).map_err(&failed)?;
            if advance(len) == ControlFlow::Break(()) {
                return Err(Stopped::Interrupted);
            }
        }
        written.push(entry(tensor, Sha256Hash::finish(hash)));
    }
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

struct Hashed<'a> {
    file: Box<dyn DiskFile + 'a>,
    sha256: Sha256,
    xxh3: XxHash3_128,
    end: u64,
}

impl Hashed<'_> {
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
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
