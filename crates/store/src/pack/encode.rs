//! From bf16 to a packed projection.

use super::group::{self, WINDOW};
use super::header::{BASE_MAX, Header, SECTION_ALIGN};
use super::{GROUP_BYTES, GROUP_ELEMENTS};

/// Packs a projection, or says by `None` that this would not make it smaller.
///
/// Shapes: `bf16_le` is `[rows, cols]`, row-major, little-endian.
pub fn encode(rows: usize, cols: usize, bf16_le: &[u8]) -> Option<Vec<u8>> {
    let elements = rows.checked_mul(cols).expect("a projection that fits the memory");
    assert_eq!(bf16_le.len(), 2 * elements, "{rows} x {cols} bf16");
    let bases: Vec<Window> = bf16_le.chunks(2 * cols.max(1)).map(Window::of).collect();
    let header = Header::of(rows, cols, bases.iter().map(|b| b.escapes).sum())?;
    let len = header.len_bytes().filter(|len| *len < bf16_le.len())?;

    let mut block = vec![0; len];
    header.write(&mut block);
    let (base_bytes, rest) = block[SECTION_ALIGN..].split_at_mut(aligned(rows));
    let (groups, rest) = rest.split_at_mut(aligned(header.groups * GROUP_BYTES));
    let (places, values) = rest.split_at_mut(aligned(header.escapes * 4));
    for (byte, window) in base_bytes.iter_mut().zip(&bases) {
        *byte = window.base;
    }
    let mut escapes = Escapes { places, values, count: 0 };
    let mut writer = GroupWriter { groups, codes: [0; GROUP_ELEMENTS], filled: 0 };
    for (row, (window, bits)) in bases.iter().zip(bf16_le.chunks_exact(2 * cols)).enumerate() {
        writer.row(window.base, bits);
        if window.escapes > 0 {
            escapes.row(row * cols, window.base, bits);
        }
    }
    writer.finish();
    assert_eq!(escapes.count, header.escapes);
    Some(block)
}

fn aligned(len: usize) -> usize {
    len.next_multiple_of(SECTION_ALIGN)
}

fn bits_of(pair: &[u8]) -> u16 {
    u16::from_le_bytes([pair[0], pair[1]])
}

/// The exponents that the codes of a row reach.
struct Window {
    base: u8,
    /// Elements outside.
    escapes: usize,
}

impl Window {
    /// The lowest of the windows that leave the fewest elements outside.
    fn of(row: &[u8]) -> Window {
        // Four tables, so that neighbours with one exponent do not wait for each other.
        let mut tables = [[0u32; 256]; 4];
        let mut fours = row.chunks_exact(8);
        for four in &mut fours {
            for (table, pair) in tables.iter_mut().zip(four.chunks_exact(2)) {
                table[usize::from(group::exponent(bits_of(pair)))] += 1;
            }
        }
        for pair in fours.remainder().chunks_exact(2) {
            tables[0][usize::from(group::exponent(bits_of(pair)))] += 1;
        }
        let count = |e: usize| tables.iter().map(|t| t[e] as usize).sum::<usize>();
        let mut inside: usize = (0..WINDOW).map(count).sum();
        let (mut base, mut most) = (0, inside);
        for b in 1..=usize::from(BASE_MAX) {
            inside = inside + count(b + WINDOW - 1) - count(b - 1);
            if inside > most {
                (base, most) = (b as u8, inside);
            }
        }
        Window { base, escapes: row.len() / 2 - most }
    }
}

/// The two lists of escapes.
struct Escapes<'a> {
    places: &'a mut [u8],
    values: &'a mut [u8],
    count: usize,
}

impl Escapes<'_> {
    /// Lists the escapes of a row whose first element is at `first`.
    fn row(&mut self, first: usize, base: u8, row: &[u8]) {
        for (i, pair) in row.chunks_exact(2).enumerate() {
            if !group::in_window(bits_of(pair), base) {
                let place = u32::try_from(first + i).expect("the header counts in u32");
                self.places[4 * self.count..][..4].copy_from_slice(&place.to_le_bytes());
                self.values[2 * self.count..][..2].copy_from_slice(pair);
                self.count += 1;
            }
        }
    }
}

/// Codes on their way into groups, across the ends of rows.
struct GroupWriter<'a> {
    /// What is left of the section.
    groups: &'a mut [u8],
    codes: [u16; GROUP_ELEMENTS],
    filled: usize,
}

impl GroupWriter<'_> {
    fn row(&mut self, base: u8, mut row: &[u8]) {
        while !row.is_empty() {
            let free = &mut self.codes[self.filled..];
            let (some, rest) = row.split_at(row.len().min(2 * free.len()));
            for (code, pair) in free.iter_mut().zip(some.chunks_exact(2)) {
                *code = group::code(bits_of(pair), base);
            }
            self.filled += some.len() / 2;
            row = rest;
            if self.filled == GROUP_ELEMENTS {
                self.flush();
            }
        }
    }

    fn finish(&mut self) {
        if self.filled > 0 {
            self.codes[self.filled..].fill(0);
            self.flush();
        }
    }

    fn flush(&mut self) {
        let groups = std::mem::take(&mut self.groups);
        let (group, rest) = groups.split_at_mut(GROUP_BYTES);
        group::write(&self.codes, group);
        (self.groups, self.filled) = (rest, 0);
    }
}
