//! The one place where a conversion meets the codec.

use std::fmt;

/// Packed bytes that the codec refuses to unpack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not what the codec writes")]
pub struct NotPacked;

/// Losslessly packs and unpacks a matrix of bf16.
#[derive(Clone, Copy)]
pub struct Codec {
    /// Rows, columns and weights to packed bytes; `None` where these would not be fewer.
    pub pack: fn(usize, usize, &[u8]) -> Option<Vec<u8>>,
    /// Packed bytes to exactly as many weights as the buffer takes.
    pub unpack: fn(&[u8], &mut [u8]) -> Result<(), NotPacked>,
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Codec")
    }
}
