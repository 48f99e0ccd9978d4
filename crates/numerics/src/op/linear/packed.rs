//! Losslessly packed bf16 weights, as the kernels read them in place.

use std::ops::Range;

use half::bf16;

use crate::cpu::{Cpu, linear as kernel};

/// Elements of a group.
pub(crate) const GROUP: usize = 128;
/// Lanes of a plane, of which a group has three.
pub(crate) const PLANE: usize = 32;
/// Stored u16 of a group.
pub(crate) const GROUP_WORDS: usize = 3 * PLANE;
/// The largest base: the exponents above it still fit eight bits.
const BASE_MAX: u8 = 240;

/// The parts of a packed projection.
///
/// The elements, row after row without gaps, make groups of 128; zeros fill the last. A group has
/// three planes of 32 lanes of 16 bits. In bits 15, 10..7 and 6..0 of lane l of plane p are sign,
/// exponent minus the base of its row and mantissa of element 32 p + l. The other bits hold element
/// 96 + l: with w the three lanes, bits 15..4 of `w0 << 1 ^ w1 >> 3 ^ w2 >> 7` are its sign,
/// exponent and mantissa. Elements with other exponents are escapes; in their place the group
/// holds any.
///
/// Shapes: `bases` `[rows]`; `groups` 96 words for each 128 elements; an escape is a place, counted
/// in elements, ascending, and its value. Vectors are read unaligned; where `groups` starts at a
/// multiple of 64 bytes none of them crosses a cache line.
///
/// Source: FORMAT.md, "Packed projection".
#[derive(Clone, Copy, Debug)]
pub struct PackedRows<'a> {
    pub rows: usize,
    pub cols: usize,
    pub bases: &'a [u8],
    pub groups: &'a [u16],
    pub escape_places: &'a [u32],
    pub escape_values: &'a [bf16],
}

impl PackedRows<'_> {
    /// Asserts that the parts belong together; whoever read them has checked them.
    pub(super) fn check(&self) {
        let elements = self.rows * self.cols;
        assert_eq!(self.bases.len(), self.rows, "a base for each row");
        assert!(self.bases.iter().all(|base| *base <= BASE_MAX), "a base beyond {BASE_MAX}");
        assert_eq!(self.groups.len(), elements.div_ceil(GROUP) * GROUP_WORDS, "groups");
        assert_eq!(self.escape_places.len(), self.escape_values.len(), "a value for each escape");
        assert!(self.escape_places.is_sorted_by(|a, b| a < b), "escapes ascend");
        assert!(self.escape_places.last().is_none_or(|p| (*p as usize) < elements), "an escape");
    }

    /// Stored bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.bases)
            + size_of_val(self.groups)
            + size_of_val(self.escape_places)
            + size_of_val(self.escape_values)
    }

    /// Writes some rows as plain bf16, with one thread.
    ///
    /// Shapes: `out` is `[rows, cols]`, the rows asked for.
    pub fn unpack(&self, cpu: &Cpu, rows: Range<usize>, out: &mut [bf16]) {
        self.check();
        kernel::unpack_at(cpu.level(), self, rows, out);
    }

    /// One row as plain bf16, element by element: for embeddings and messages.
    pub fn row(&self, row: usize) -> Vec<bf16> {
        let elements = row * self.cols..(row + 1) * self.cols;
        let mut values: Vec<bf16> = elements.clone().map(|place| self.in_group(place)).collect();
        for i in self.escapes_in(elements.clone()) {
            values[self.escape_places[i] as usize - elements.start] = self.escape_values[i];
        }
        values
    }

    /// Which escapes lie in some elements.
    pub(crate) fn escapes_in(&self, elements: Range<usize>) -> Range<usize> {
        let before = |end: usize| self.escape_places.partition_point(|p| (*p as usize) < end);
        before(elements.start)..before(elements.end)
    }

    /// What the groups hold at a place, escape or not.
    pub(crate) fn in_group(&self, place: usize) -> bf16 {
        let group = &self.groups[place / GROUP * GROUP_WORDS..][..GROUP_WORDS];
        let (plane, lane) = (place % GROUP / PLANE, place % PLANE);
        let w = |p: usize| group[p * PLANE + lane];
        let code = match plane {
            0..3 => w(plane),
            _ => (((w(0) << 1 ^ w(1) >> 3 ^ w(2) >> 7) as i16) >> 4) as u16,
        };
        let base = u16::from(self.bases[place / self.cols]) << 7;
        bf16::from_bits((code & crate::cpu::lanes::CODE).wrapping_add(base))
    }
}
