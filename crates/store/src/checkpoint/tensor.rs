//! One tensor of a checkpoint: where its bytes are and what they mean.

use std::fmt;
use std::path::PathBuf;

use bytes::Bytes;

/// The element type of a tensor; weights are `Bf16` or `F32`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dtype {
    Bf16,
    F32,
    /// Anything else, under its safetensors name.
    Other(&'static str),
}

impl Dtype {
    /// The name as safetensors files spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "BF16",
            Self::F32 => "F32",
            Self::Other(name) => name,
        }
    }

    pub(super) fn from_safetensors(dtype: safetensors::Dtype) -> Self {
        use safetensors::Dtype as S;
        match dtype {
            S::BF16 => Self::Bf16,
            S::F32 => Self::F32,
            S::BOOL => Self::Other("BOOL"),
            S::F4 => Self::Other("F4"),
            S::F6_E2M3 => Self::Other("F6_E2M3"),
            S::F6_E3M2 => Self::Other("F6_E3M2"),
            S::U8 => Self::Other("U8"),
            S::I8 => Self::Other("I8"),
            S::F8_E5M2 => Self::Other("F8_E5M2"),
            S::F8_E4M3 => Self::Other("F8_E4M3"),
            S::F8_E8M0 => Self::Other("F8_E8M0"),
            S::F8_E4M3FNUZ => Self::Other("F8_E4M3FNUZ"),
            S::F8_E5M2FNUZ => Self::Other("F8_E5M2FNUZ"),
            S::I16 => Self::Other("I16"),
            S::U16 => Self::Other("U16"),
            S::F16 => Self::Other("F16"),
            S::I32 => Self::Other("I32"),
            S::U32 => Self::Other("U32"),
            S::C64 => Self::Other("C64"),
            S::F64 => Self::Other("F64"),
            S::I64 => Self::Other("I64"),
            S::U64 => Self::Other("U64"),
            _ => Self::Other("a type this version does not know"),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tensor as its file holds it; cloning shares the bytes.
///
/// Shapes: row-major, outermost dimension first. Units: `offset` in bytes from the start of the
/// file. The bytes are little-endian and need not be aligned: neither the format nor an embedded
/// file promises it.
#[derive(Clone)]
pub struct Tensor {
    /// The name in the file, wrapped or not.
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Bytes,
    /// Whether `bytes` are a packed projection: in memory only, see `Checkpoint::own`.
    pub packed: bool,
    pub file: PathBuf,
    pub offset: u64,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, dtype, shape, file, offset, bytes, .. } = self;
        let (file, len) = (file.display(), bytes.len());
        write!(f, "{name} {dtype} {shape:?}, {len} bytes at {offset} of {file}")
    }
}
