//! The file of a trace, written as the passes come.
//!
//! Layout: the line `tarfa trace 1`; the header as one line of JSON; the passes; an end. A number
//! is a LEB128 varint. A pass is its length in bytes (above 0), its phase (0 prefill, 1 decode),
//! its tokens, and for each layer: how many experts, each with its id and its tokens (the tokens
//! only in prefill, else 1 each), how many predicted, each with its id. The end is a length of 0
//! and the SHA-256 of everything before that length.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{Header, LayerUses, Pass, Trace, Use};
use crate::index::ExpertIdx;
use crate::tiers::{Phase, Shape};

const MAGIC: &[u8] = b"tarfa trace 1\n";
const HEADER_BYTES_MAX: usize = 1 << 16;
const PASS_BYTES_MAX: u64 = 1 << 28;
const LAYERS_MAX: usize = 1 << 14;
const EXPERTS_MAX: usize = 1 << 20;

/// Why a trace cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },

    #[error("{path}: no trace of version 1; record one with the tarfa that reads it")]
    Foreign { path: PathBuf },

    #[error("{path}: the header cannot be read: {source}")]
    Header { path: PathBuf, source: serde_json::Error },

    #[error(
        "{path}: the header's {field} is {found}, expected {expected}; the file is damaged, \
         record it again"
    )]
    HeaderField { path: PathBuf, field: &'static str, found: usize, expected: String },

    #[error(
        "{path}, offset {offset}: {field} is {found}, expected {expected}; the file is damaged, \
         record it again"
    )]
    Pass { path: PathBuf, offset: u64, field: &'static str, found: u64, expected: String },

    #[error("{path}: the checksum does not fit; the file is damaged, record it again")]
    Checksum { path: PathBuf },
}

/// Writes a trace pass by pass.
pub struct TraceWriter {
    path: PathBuf,
    file: BufWriter<File>,
    sum: Sha256,
    shape: Shape,
}

impl TraceWriter {
    /// Begins a file; one that is there is replaced.
    ///
    /// Errors: it cannot be written.
    pub fn create(path: &Path, header: &Header) -> Result<TraceWriter, TraceError> {
        let failed = |source| TraceError::Io { path: path.to_path_buf(), source };
        let file = BufWriter::new(File::create(path).map_err(failed)?);
        let (path, sum, shape) = (path.to_path_buf(), Sha256::new(), header.shape);
        let mut writer = TraceWriter { path, file, sum, shape };
        writer.put(MAGIC)?;
        writer.put(serde_json::to_string(header).expect("plain fields").as_bytes())?;
        writer.put(b"\n")?;
        Ok(writer)
    }

    /// Writes one pass.
    ///
    /// Errors: the disk is full. Panics where the pass has another number of layers.
    pub fn pass(&mut self, pass: &Pass) -> Result<(), TraceError> {
        assert_eq!(pass.layers.len(), self.shape.layers, "layers of a pass");
        let mut body = vec![u8::from(pass.phase == Phase::Decode)];
        put_number(&mut body, u64::from(pass.tokens));
        for layer in &pass.layers {
            put_number(&mut body, layer.uses.len() as u64);
            for u in &layer.uses {
                put_number(&mut body, u64::from(u.expert.0));
                if pass.phase == Phase::Prefill {
                    put_number(&mut body, u64::from(u.tokens));
                }
            }
            put_number(&mut body, layer.predicted.len() as u64);
            layer.predicted.iter().for_each(|e| put_number(&mut body, u64::from(e.0)));
        }
        let mut length = Vec::new();
        put_number(&mut length, body.len() as u64);
        self.put(&length)?;
        self.put(&body)
    }

    /// Writes the end; a file without it counts as cut short.
    ///
    /// Errors: the disk is full.
    pub fn finish(mut self) -> Result<(), TraceError> {
        let sum = self.sum.clone().finalize();
        self.put(&[0])?;
        self.put(&sum)?;
        let failed = |source| TraceError::Io { path: self.path.clone(), source };
        self.file.flush().and_then(|()| self.file.get_ref().sync_all()).map_err(failed)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), TraceError> {
        self.sum.update(bytes);
        let failed = |source| TraceError::Io { path: self.path.clone(), source };
        self.file.write_all(bytes).map_err(failed)
    }
}

/// Writes a whole trace.
///
/// Errors: as `TraceWriter`.
pub fn write(path: &Path, trace: &Trace) -> Result<(), TraceError> {
    let mut writer = TraceWriter::create(path, &trace.header)?;
    trace.passes.iter().try_for_each(|pass| writer.pass(pass))?;
    writer.finish()
}

/// Reads a whole trace.
///
/// Errors: as `TraceReader`.
pub fn read(path: &Path) -> Result<Trace, TraceError> {
    let mut reader = TraceReader::open(path)?;
    let mut passes = Vec::new();
    while let Some(pass) = reader.pass()? {
        passes.push(pass);
    }
    Ok(Trace { complete: reader.complete, header: reader.header, passes })
}

/// Reads a trace pass by pass.
pub struct TraceReader {
    path: PathBuf,
    file: BufReader<File>,
    sum: Sha256,
    offset: u64,
    header: Header,
    complete: bool,
}

impl TraceReader {
    /// Opens a file.
    ///
    /// Errors: no trace, another version, a header without sense.
    pub fn open(path: &Path) -> Result<TraceReader, TraceError> {
        let failed = |source| TraceError::Io { path: path.to_path_buf(), source };
        let mut file = BufReader::new(File::open(path).map_err(failed)?);
        let mut magic = [0; MAGIC.len()];
        match file.read_exact(&mut magic) {
            Ok(()) if magic == MAGIC => {}
            Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => return Err(failed(e)),
            _ => return Err(TraceError::Foreign { path: path.to_path_buf() }),
        }
        let mut line = Vec::new();
        let mut limited = (&mut file).take(HEADER_BYTES_MAX as u64);
        limited.read_until(b'\n', &mut line).map_err(failed)?;
        let header: Header = serde_json::from_slice(&line)
            .map_err(|source| TraceError::Header { path: path.to_path_buf(), source })?;
        check_shape(path, header.shape)?;
        let sum = Sha256::new().chain_update(MAGIC).chain_update(&line);
        let offset = (MAGIC.len() + line.len()) as u64;
        Ok(TraceReader { path: path.to_path_buf(), file, sum, offset, header, complete: false })
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next pass; `None` at the end, or where the writing was cut short.
    ///
    /// Errors: damage.
    pub fn pass(&mut self) -> Result<Option<Pass>, TraceError> {
        if self.complete {
            return Ok(None);
        }
        let Some((length, prefix)) = self.length()? else { return Ok(None) };
        if length == 0 {
            return self.end();
        }
        if length > PASS_BYTES_MAX {
            let expected = format!("{PASS_BYTES_MAX} at most");
            return Err(self.damaged(0, "the length of a pass", length, expected));
        }
        let mut body = Vec::new();
        let path = self.path.clone();
        let failed = |source| TraceError::Io { path, source };
        (&mut self.file).take(length).read_to_end(&mut body).map_err(failed)?;
        if (body.len() as u64) < length {
            return Ok(None);
        }
        self.sum.update(&prefix);
        self.sum.update(&body);
        self.offset += prefix.len() as u64;
        let pass = Body { reader: self, bytes: &body, read: 0 }.pass()?;
        self.offset += length;
        Ok(Some(pass))
    }

    fn end(&mut self) -> Result<Option<Pass>, TraceError> {
        let mut rest = Vec::new();
        let failed = |source| TraceError::Io { path: self.path.clone(), source };
        (&mut self.file).take(33).read_to_end(&mut rest).map_err(failed)?;
        if rest.len() < 32 {
            return Ok(None);
        }
        if rest[..] != self.sum.clone().finalize()[..] {
            return Err(TraceError::Checksum { path: self.path.clone() });
        }
        self.complete = true;
        Ok(None)
    }

    /// A length and its bytes; `None` where the file ends before it does.
    fn length(&mut self) -> Result<Option<(u64, Vec<u8>)>, TraceError> {
        let (mut value, mut bytes) = (0u64, Vec::new());
        loop {
            let mut byte = [0];
            match self.file.read_exact(&mut byte) {
                Ok(()) => bytes.push(byte[0]),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(source) => return Err(TraceError::Io { path: self.path.clone(), source }),
            }
            value |= u64::from(byte[0] & 0x7f) << (7 * (bytes.len() - 1));
            if byte[0] & 0x80 == 0 {
                return Ok(Some((value, bytes)));
            }
            if bytes.len() == 5 {
                let expected = format!("{PASS_BYTES_MAX} at most");
                return Err(self.damaged(0, "the length of a pass", value, expected));
            }
        }
    }

    fn damaged(&self, at: usize, field: &'static str, found: u64, expected: String) -> TraceError {
        let (path, offset) = (self.path.clone(), self.offset + at as u64);
        TraceError::Pass { path, offset, field, found, expected }
    }
}

fn check_shape(path: &Path, shape: Shape) -> Result<(), TraceError> {
    let fields = [
        ("layers", shape.layers, LAYERS_MAX),
        ("experts", shape.experts, EXPERTS_MAX),
        ("top_k", shape.top_k, shape.experts),
    ];
    for (field, found, most) in fields {
        if found == 0 || found > most {
            let (path, expected) = (path.to_path_buf(), format!("1 to {most}"));
            return Err(TraceError::HeaderField { path, field, found, expected });
        }
    }
    Ok(())
}

/// A pass whose bytes are all there.
struct Body<'a> {
    reader: &'a TraceReader,
    bytes: &'a [u8],
    read: usize,
}

impl Body<'_> {
    fn pass(&mut self) -> Result<Pass, TraceError> {
        let shape = self.reader.header.shape;
        let phase = match self.number("the phase", 1)? {
            0 => Phase::Prefill,
            _ => Phase::Decode,
        };
        let tokens = self.number("tokens", u64::from(u32::MAX))? as u32;
        let layers = (0..shape.layers).map(|_| self.layer(phase, tokens)).collect::<Result<_, _>>();
        let pass = Pass { phase, tokens, layers: layers? };
        if self.read < self.bytes.len() {
            let left = (self.bytes.len() - self.read) as u64;
            return Err(self.reader.damaged(self.read, "bytes left", left, "0".to_string()));
        }
        Ok(pass)
    }

    fn layer(&mut self, phase: Phase, tokens: u32) -> Result<LayerUses, TraceError> {
        let experts = self.reader.header.shape.experts as u64;
        let mut layer = LayerUses::default();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..self.number("experts of a layer", experts)? {
            let expert = self.number("an expert", experts - 1)?;
            if !seen.insert(expert) {
                let expected = "each expert once".to_string();
                return Err(self.reader.damaged(self.read, "an expert", expert, expected));
            }
            let tokens = match phase {
                Phase::Prefill => self.number("tokens of an expert", u64::from(tokens))? as u32,
                Phase::Decode => 1,
            };
            layer.uses.push(Use { expert: ExpertIdx(expert as u32), tokens });
        }
        for _ in 0..self.number("predicted experts", experts)? {
            let expert = self.number("a predicted expert", experts - 1)?;
            layer.predicted.push(ExpertIdx(expert as u32));
        }
        Ok(layer)
    }

    fn number(&mut self, field: &'static str, most: u64) -> Result<u64, TraceError> {
        let (start, mut value) = (self.read, 0u64);
        for (i, byte) in self.bytes[start..].iter().take(5).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                self.read += i + 1;
                if value <= most {
                    return Ok(value);
                }
                break;
            }
        }
        Err(self.reader.damaged(start, field, value, format!("{most} at most")))
    }
}

fn put_number(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests;
