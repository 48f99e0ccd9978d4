//! The header of a packed projection, and what can be wrong with one.

use std::ops::Range;

use super::{GROUP_BYTES, GROUP_ELEMENTS};

/// The first bytes.
const MAGIC: [u8; 4] = *b"TFPK";
/// The only version.
const VERSION: u32 = 1;
/// Sections start at multiples of this; the header is the first.
pub(super) const SECTION_ALIGN: usize = 64;
/// The largest base: its window ends at the largest exponent.
pub(super) const BASE_MAX: u8 = 240;
/// Where the fields end and the reserved bytes begin.
const FIELDS_END: usize = 40;

/// Why a packed projection was refused.
///
/// Units: offsets and lengths in bytes from the start of the block, places in elements.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    #[error("packed block: truncated: at least {expected} bytes needed, {found} found")]
    Truncated { expected: usize, found: usize },
    #[error("packed block: not a packed projection: expected {MAGIC:?}, found {found:?}")]
    Magic { found: [u8; 4] },
    #[error("packed block: version {found}; this program reads version {VERSION}")]
    Version { found: u32 },
    #[error("packed block: a shape of {rows} x {cols} with {escapes} escapes is impossible")]
    Shape { rows: u64, cols: u64, escapes: u64 },
    #[error("packed block: {expected} groups needed for its shape, {found} found")]
    Groups { expected: u64, found: u64 },
    #[error("packed block: its header needs {expected} bytes, it has {found}")]
    Length { expected: usize, found: usize },
    #[error("packed block, offset {offset}: {found:#04x} where zeros belong")]
    Padding { offset: usize, found: u8 },
    #[error("packed block, row {row}: base {found} is beyond {limit}")]
    Base { row: usize, found: u8, limit: u8 },
    #[error("packed block, escape {index}: place {found} is not in {range:?}")]
    Place { index: usize, found: usize, range: Range<usize> },
    #[error("packed block, escape {index}: bits {bits:#06x} need none with base {base}")]
    NeedlessEscape { index: usize, bits: u16, base: u8 },
    #[error(
        "packed block, escape {index} at {place}: its code is {found:#06x}, \
         expected {expected:#06x}"
    )]
    Substitute { index: usize, place: usize, expected: u16, found: u16 },
    #[error("packed block, place {place}: not zero behind the last of {elements} elements")]
    Tail { place: usize, elements: usize },
}

/// The sizes of a packed projection; the block is as long as they say.
#[derive(Clone, Copy)]
pub(super) struct Header {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) groups: usize,
    pub(super) escapes: usize,
}

impl Header {
    /// `None` where the elements cannot be counted in u32, or there are none.
    pub(super) fn of(rows: usize, cols: usize, escapes: usize) -> Option<Header> {
        let elements = rows.checked_mul(cols).filter(|n| *n > 0 && u32::try_from(*n).is_ok())?;
        let groups = elements.div_ceil(GROUP_ELEMENTS);
        (escapes <= elements).then_some(Header { rows, cols, groups, escapes })
    }

    /// Length of the block.
    pub(super) fn len_bytes(&self) -> Option<usize> {
        let sections = [
            self.rows,
            self.groups.checked_mul(GROUP_BYTES)?,
            self.escapes.checked_mul(4)?,
            self.escapes.checked_mul(2)?,
        ];
        sections.into_iter().try_fold(SECTION_ALIGN, |total, len| {
            total.checked_add(len.checked_next_multiple_of(SECTION_ALIGN)?)
        })
    }

    pub(super) fn write(&self, block: &mut [u8]) {
        block[..4].copy_from_slice(&MAGIC);
        block[4..8].copy_from_slice(&VERSION.to_le_bytes());
        let counts = [self.rows, self.cols, self.groups, self.escapes];
        for (place, count) in block[8..FIELDS_END].chunks_exact_mut(8).zip(counts) {
            place.copy_from_slice(&(count as u64).to_le_bytes());
        }
    }

    pub(super) fn parse(block: &[u8]) -> Result<Header, PackError> {
        let (expected, found) = (SECTION_ALIGN, block.len());
        let short = PackError::Truncated { expected, found };
        let (head, _) = block.split_first_chunk::<SECTION_ALIGN>().ok_or(short)?;
        let four = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
        if four(0) != MAGIC {
            return Err(PackError::Magic { found: four(0) });
        }
        let version = u32::from_le_bytes(four(4));
        if version != VERSION {
            return Err(PackError::Version { found: version });
        }
        if let Some(i) = head[FIELDS_END..].iter().position(|byte| *byte != 0) {
            let offset = FIELDS_END + i;
            return Err(PackError::Padding { offset, found: head[offset] });
        }
        let mut counts = [0u64; 4];
        for (count, bytes) in counts.iter_mut().zip(head[8..FIELDS_END].chunks_exact(8)) {
            *count = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        Header::counted(counts, found)
    }

    /// From the four counts of a block of `found` bytes.
    fn counted(counts: [u64; 4], found: usize) -> Result<Header, PackError> {
        let [rows, cols, groups, escapes] = counts;
        let shape = PackError::Shape { rows, cols, escapes };
        let size = |v: u64| usize::try_from(v).ok();
        let (Some(r), Some(c), Some(e)) = (size(rows), size(cols), size(escapes)) else {
            return Err(shape);
        };
        let header = Header::of(r, c, e).ok_or(shape.clone())?;
        if header.groups as u64 != groups {
            return Err(PackError::Groups { expected: header.groups as u64, found: groups });
        }
        let expected = header.len_bytes().ok_or(shape)?;
        match expected == found {
            true => Ok(header),
            false => Err(PackError::Length { expected, found }),
        }
    }
}
