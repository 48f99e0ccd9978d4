//! Whether a block is what it must be: asked once for each that comes from a drive, and once for
//! each that is mapped, before anything computes with it.

use super::ReadError;
use crate::experts::{Block, Digests, Encoding, ExpertMap, Found, Provenance};
use crate::pack::Packed;

/// What a block was compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    Manifest,
    FirstSeen,
    /// Nothing; its checksum is recorded now.
    New,
}

/// Compares a block's checksum, which `found` is, and looks into it where it is packed.
///
/// # Errors
/// `Differs`; `Packed` for what no codec wrote, whose checksum is then of no use.
pub fn check_block(
    map: &ExpertMap,
    digests: &Digests,
    block: &Block,
    bytes: &[u8],
    found: u128,
) -> Result<Known, ReadError> {
    let (path, offset_bytes, id) = (&map.file(block.file).path, block.offset_bytes, block.id);
    let known = match digests.check(id, found) {
        Found::Equal(Provenance::Manifest) => Known::Manifest,
        Found::Equal(Provenance::FirstSeen) => Known::FirstSeen,
        Found::New => Known::New,
        Found::Differs { expected, from } => {
            let path = path.clone();
            return Err(ReadError::Differs { path, offset_bytes, id, expected, from, found });
        }
    };
    if block.encoding == Encoding::Packed {
        Packed::parse(bytes).map_err(|problem| {
            let path = path.clone();
            ReadError::Packed { path, offset_bytes, id, problem }
        })?;
    }
    Ok(known)
}
