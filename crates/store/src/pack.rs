//! Losslessly packed bf16 projections: three quarters of the bytes, and every bit comes back.
//!
//! The exponents of trained weights spread over few powers of two, so four bits for each, counted
//! from a base of its row, nearly always suffice; the rest are *escapes*, listed apart. FORMAT.md
//! ("Packed projection") is the layout; this is its plain reference, `numerics` has the kernels.

mod encode;
mod group;
mod header;

use std::ops::Range;

pub use encode::encode;
pub use header::PackError;

use header::{BASE_MAX, Header, SECTION_ALIGN};

/// Elements of a group.
pub const GROUP_ELEMENTS: usize = 128;
/// Stored bytes of a group.
pub const GROUP_BYTES: usize = 192;

/// A packed projection, `[rows, cols]`, whose every field has been checked.
///
/// Units: the sections are little-endian; they start at multiples of 64 bytes from the start of
/// the block, so where that is aligned to 4 bytes they can be read in place.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    rows: usize,
    cols: usize,
    bases: &'a [u8],
    groups: &'a [u8],
    /// u32 each.
    places: &'a [u8],
    /// u16 each.
    values: &'a [u8],
}

impl<'a> Packed<'a> {
    /// Checks all of a block but the contents of its groups, any of which are valid.
    ///
    /// # Errors
    /// Whatever [`encode`] would not have written.
    pub fn parse(block: &'a [u8]) -> Result<Packed<'a>, PackError> {
        let packed = Packed::sections(block)?;
        packed.check_bases()?;
        packed.check_escapes()?;
        packed.check_tail()?;
        Ok(packed)
    }

    /// The sections of a block that `parse` has accepted before: only the header is read again.
    ///
    /// # Errors
    /// A header that does not fit the block.
    pub fn sections(block: &'a [u8]) -> Result<Packed<'a>, PackError> {
        let header = Header::parse(block)?;
        let mut sections = Sections { block, at: SECTION_ALIGN };
        Ok(Packed {
            rows: header.rows,
            cols: header.cols,
            bases: sections.next(header.rows)?,
            groups: sections.next(header.groups * GROUP_BYTES)?,
            places: sections.next(header.escapes * 4)?,
            values: sections.next(header.escapes * 2)?,
        })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Of each row the smallest exponent that its codes reach.
    pub fn bases(&self) -> &'a [u8] {
        self.bases
    }

    /// Groups of 32 lanes in three planes, u16 each.
    pub fn groups(&self) -> &'a [u8] {
        self.groups
    }

    /// Where the escapes belong, counted in elements, ascending; u32 each.
    pub fn escape_places(&self) -> &'a [u8] {
        self.places
    }

    /// The bits of the escapes; u16 each.
    pub fn escape_values(&self) -> &'a [u8] {
        self.values
    }

    /// Writes the projection as it was: bf16, row-major, little-endian.
    ///
    /// Shapes: `out` has two bytes for each element.
    pub fn decode(&self, out: &mut [u8]) {
        assert_eq!(out.len(), 2 * self.rows * self.cols, "{} x {} bf16", self.rows, self.cols);
        let (mut row, mut left) = (0, self.cols);
        let parts = out.chunks_mut(2 * GROUP_ELEMENTS);
        for (part, bytes) in parts.zip(self.groups.chunks_exact(GROUP_BYTES)) {
            let codes = group::codes(bytes);
            for (place, code) in part.chunks_exact_mut(2).zip(codes) {
                let bits = code + (u16::from(self.bases[row]) << 7);
                place.copy_from_slice(&bits.to_le_bytes());
                left -= 1;
                if left == 0 {
                    (row, left) = (row + 1, self.cols);
                }
            }
        }
        for (place, bits) in self.escapes() {
            out[2 * place..][..2].copy_from_slice(&bits.to_le_bytes());
        }
    }

    /// Place and bits of each escape.
    fn escapes(&self) -> impl Iterator<Item = (usize, u16)> {
        self.places.chunks_exact(4).zip(self.values.chunks_exact(2)).map(|(p, v)| {
            let place = u32::from_le_bytes([p[0], p[1], p[2], p[3]]);
            (place as usize, u16::from_le_bytes([v[0], v[1]]))
        })
    }

    fn check_bases(&self) -> Result<(), PackError> {
        match self.bases.iter().position(|base| *base > BASE_MAX) {
            Some(row) => Err(PackError::Base { row, found: self.bases[row], limit: BASE_MAX }),
            None => Ok(()),
        }
    }

    /// Ascending, inside, needed, and over a code that says so: one projection, one encoding.
    fn check_escapes(&self) -> Result<(), PackError> {
        let (mut least, elements) = (0, self.rows * self.cols);
        for (index, (place, bits)) in self.escapes().enumerate() {
            if place < least || place >= elements {
                return Err(PackError::Place { index, found: place, range: least..elements });
            }
            least = place + 1;
            let base = self.bases[place / self.cols];
            if group::in_window(bits, base) {
                return Err(PackError::NeedlessEscape { index, bits, base });
            }
            let (expected, found) = (bits & group::SIGN_AND_MANTISSA, self.code(place));
            if found != expected {
                return Err(PackError::Substitute { index, place, expected, found });
            }
        }
        Ok(())
    }

    /// Behind the last element the group is zero.
    fn check_tail(&self) -> Result<(), PackError> {
        let elements = self.rows * self.cols;
        for place in elements..self.groups.len() / GROUP_BYTES * GROUP_ELEMENTS {
            if self.code(place) != 0 {
                return Err(PackError::Tail { place, elements });
            }
        }
        Ok(())
    }

    fn code(&self, place: usize) -> u16 {
        let bytes = &self.groups[place / GROUP_ELEMENTS * GROUP_BYTES..][..GROUP_BYTES];
        group::codes(bytes)[place % GROUP_ELEMENTS]
    }
}

/// The sections of a block, in order.
struct Sections<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> Sections<'a> {
    /// The next `len` bytes; the zeros behind them are checked and passed over.
    fn next(&mut self, len: usize) -> Result<&'a [u8], PackError> {
        let Range { start, end } = self.at..self.at + len;
        self.at = end.next_multiple_of(SECTION_ALIGN);
        if let Some(i) = self.block[end..self.at].iter().position(|byte| *byte != 0) {
            return Err(PackError::Padding { offset: end + i, found: self.block[end + i] });
        }
        Ok(&self.block[start..end])
    }
}
