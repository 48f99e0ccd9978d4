//! One safetensors header: read, checked, and turned into tensors that share the file's bytes.
//!
//! The `safetensors` crate judges ranges and shapes (holes, overlaps, overflow). Three things it
//! leaves open are judged here: a name listed twice (its map keeps the last), the sum of the data
//! and header lengths (added unchecked there), and which tensor is to blame.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use bytes::Bytes;
use safetensors::SafeTensorError;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde::de::{Error as _, MapAccess, Visitor};

use super::error::{CheckpointError, HeaderProblem};
use super::tensor::{Dtype, Tensor};

/// Bytes of the little-endian length field before the header.
const LENGTH_FIELD_BYTES: u64 = 8;
/// The longest header the format allows (as in safetensors 0.8).
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// The one key of a header that is not a tensor.
const METADATA_KEY: &str = "__metadata__";

/// A checked header: its length with the length field, and its tensors by offset.
pub struct Header {
    pub prefix_bytes: u64,
    pub tensors: Vec<Tensor>,
}

/// Reads and checks the header of the safetensors file `bytes`.
///
/// Errors: `Truncated` where the file is shorter than it says, `BadHeader` for the rest.
/// Source: safetensors 0.8, `SafeTensors::read_metadata`, with checked sums.
pub fn read_header(path: &Path, bytes: &Bytes) -> Result<Header, CheckpointError> {
    let (json, prefix_bytes) = header_json(path, bytes)?;
    let bad = |problem| CheckpointError::BadHeader { path: path.to_path_buf(), problem };
    let mut entries = parse_entries(json).map_err(bad)?;
    refuse_duplicates(&entries).map_err(bad)?;
    entries.sort_by_key(|(_, info)| info.data_offsets);
    check_ranges(&entries).map_err(bad)?;
    check_end(path, &entries, prefix_bytes, bytes.len() as u64)?;
    let tensor = |(name, info)| slice_tensor(path, bytes, prefix_bytes, name, info);
    Ok(Header { prefix_bytes, tensors: entries.into_iter().map(tensor).collect() })
}

/// The header's JSON and the number of bytes before the data.
fn header_json<'a>(path: &Path, bytes: &'a Bytes) -> Result<(&'a [u8], u64), CheckpointError> {
    let found = bytes.len() as u64;
    let truncated =
        |expected| CheckpointError::Truncated { path: path.to_path_buf(), expected, found };
    let (field, rest) = bytes.split_first_chunk().ok_or_else(|| truncated(LENGTH_FIELD_BYTES))?;
    let length = u64::from_le_bytes(*field);
    if length > HEADER_BYTES_MAX {
        let problem = HeaderProblem::TooLong { length, limit: HEADER_BYTES_MAX };
        return Err(CheckpointError::BadHeader { path: path.to_path_buf(), problem });
    }
    let prefix_bytes = LENGTH_FIELD_BYTES + length;
    let json = rest.get(..length as usize).ok_or_else(|| truncated(prefix_bytes))?;
    Ok((json, prefix_bytes))
}

/// Every entry in the order of the file, names that occur twice included.
struct Entries(Vec<(String, TensorInfo)>);

fn parse_entries(json: &[u8]) -> Result<Vec<(String, TensorInfo)>, HeaderProblem> {
    let entries: Entries =
        serde_json::from_slice(json).map_err(|error| HeaderProblem::NotJson {
            line: error.line(),
            column: error.column(),
            reason: reason_of(&error),
        })?;
    Ok(entries.0)
}

/// The parser's words without its "at line L column C", which our variants carry as numbers.
pub fn reason_of(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_string(),
        None => text,
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA_KEY {
                map.next_value::<std::collections::BTreeMap<String, String>>()?;
                continue;
            }
            let info = map
                .next_value::<TensorInfo>()
                .map_err(|error| A::Error::custom(format!("tensor {name}: {error}")))?;
            entries.push((name, info));
        }
        Ok(Entries(entries))
    }
}

fn refuse_duplicates(entries: &[(String, TensorInfo)]) -> Result<(), HeaderProblem> {
    let mut seen = HashSet::with_capacity(entries.len());
    match entries.iter().find(|(name, _)| !seen.insert(name.as_str())) {
        Some((name, _)) => Err(HeaderProblem::DuplicateName { tensor: name.clone() }),
        None => Ok(()),
    }
}

/// Lets the safetensors crate judge the ranges, then finds the tensor to blame.
fn check_ranges(entries: &[(String, TensorInfo)]) -> Result<(), HeaderProblem> {
    let Err(verdict) = Metadata::new(None, entries.to_vec()) else {
        return Ok(());
    };
    let mut expected = 0;
    for (name, info) in entries {
        if let Some(problem) = problem_of(name, info, expected) {
            return Err(problem);
        }
        expected = info.data_offsets.1 as u64;
    }
    Err(unblamed(verdict))
}

/// What is wrong with one entry, given where the one before it ends.
fn problem_of(name: &str, info: &TensorInfo, expected: u64) -> Option<HeaderProblem> {
    let tensor = name.to_string();
    let (begin, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
    if end < begin {
        return Some(HeaderProblem::BackwardRange { tensor, begin, end });
    }
    if begin > expected {
        return Some(HeaderProblem::Hole { tensor, begin, expected });
    }
    if begin < expected {
        return Some(HeaderProblem::Overlap { tensor, begin, expected });
    }
    let Some(size_bits) = size_bits(info) else {
        return Some(HeaderProblem::SizeOverflow { tensor, shape: info.shape.clone() });
    };
    let (needed, found) = (size_bits.div_ceil(8), end - begin);
    let whole_bytes = size_bits.is_multiple_of(8);
    (needed != found || !whole_bytes).then_some(HeaderProblem::SizeMismatch {
        tensor,
        expected: needed,
        found,
    })
}

fn size_bits(info: &TensorInfo) -> Option<u64> {
    let elements = info.shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n))?;
    elements.checked_mul(info.dtype.bitsize()).map(|bits| bits as u64)
}

/// A verdict of the safetensors crate for which we found no tensor to blame.
fn unblamed(verdict: SafeTensorError) -> HeaderProblem {
    HeaderProblem::NotJson { line: 1, column: 0, reason: verdict.to_string() }
}

/// The data must end exactly where the file ends.
fn check_end(
    path: &Path,
    entries: &[(String, TensorInfo)],
    prefix_bytes: u64,
    found: u64,
) -> Result<(), CheckpointError> {
    let path = path.to_path_buf();
    let end = entries.last().map_or(0, |(_, info)| info.data_offsets.1 as u64);
    let Some(expected) = prefix_bytes.checked_add(end) else {
        let tensor = entries.last().map(|(name, _)| name.clone()).unwrap_or_default();
        let problem = HeaderProblem::OutOfRange { tensor, end };
        return Err(CheckpointError::BadHeader { path, problem });
    };
    if expected > found {
        return Err(CheckpointError::Truncated { path, expected, found });
    }
    if expected < found {
        let problem = HeaderProblem::TrailingBytes { expected, found };
        return Err(CheckpointError::BadHeader { path, problem });
    }
    Ok(())
}

fn slice_tensor(
    path: &Path,
    bytes: &Bytes,
    prefix_bytes: u64,
    name: String,
    info: TensorInfo,
) -> Tensor {
    let prefix = prefix_bytes as usize;
    let (begin, end) = (prefix + info.data_offsets.0, prefix + info.data_offsets.1);
    Tensor {
        name,
        dtype: Dtype::from_safetensors(info.dtype),
        shape: info.shape,
        bytes: bytes.slice(begin..end),
        packed: false,
        file: path.to_path_buf(),
        offset: begin as u64,
    }
}
