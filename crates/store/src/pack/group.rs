//! A group: 128 elements of 12 bits in three planes of 32 lanes of 16 bits.
//!
//! A *code* is an element whose exponent is counted from the base of its row: sign in bit 15,
//! exponent in bits 10..7, mantissa in bits 6..0. Lane l of plane p holds the code of element
//! 32p + l in place. The bits 14..11 that are free there hold element 96 + l, so that three
//! shifts and two exclusive ors bring it together without a mask: see [`fourth`].

use super::{GROUP_BYTES, GROUP_ELEMENTS};

/// Lanes of a plane.
const LANES: usize = 32;
/// The bits of a code.
const CODE: u16 = 0x87ff;
/// The bits that a code has in common with the bf16.
pub(super) const SIGN_AND_MANTISSA: u16 = 0x807f;

/// Exponents that a code can tell apart.
pub(super) const WINDOW: usize = 16;

/// The exponent of a bf16.
pub(super) fn exponent(bits: u16) -> u8 {
    (bits >> 7) as u8
}

/// Whether a code can stand for these bits.
pub(super) fn in_window(bits: u16, base: u8) -> bool {
    usize::from(exponent(bits).wrapping_sub(base)) < WINDOW
}

/// The code of bits in the window; of others that of the same sign and mantissa at the base.
pub(super) fn code(bits: u16, base: u8) -> u16 {
    let offset = if in_window(bits, base) { exponent(bits) - base } else { 0 };
    bits & SIGN_AND_MANTISSA | u16::from(offset) << 7
}

/// The code of element 96 + l from lane l of each plane; the inverse of [`join`].
fn fourth(w: [u16; 3]) -> u16 {
    let twelve = w[0] << 1 ^ w[1] >> 3 ^ w[2] >> 7;
    ((twelve as i16) >> 4) as u16 & CODE
}

/// Lane l of each plane from the codes of elements l, 32 + l, 64 + l and 96 + l.
fn join(codes: [u16; 4]) -> [u16; 3] {
    let [a, b, c, d] = codes;
    // What `fourth` will see of the codes in place is taken out beforehand.
    let twelve = (d & 0x8000 | d << 4 & 0x7ff0) ^ a << 1 ^ b >> 3 ^ c >> 7;
    [a | twelve >> 1 & 0x7800, b | twelve << 3 & 0x7800, c | twelve << 7 & 0x7800]
}

/// The codes of a stored group.
pub(super) fn codes(bytes: &[u8]) -> [u16; GROUP_ELEMENTS] {
    assert_eq!(bytes.len(), GROUP_BYTES);
    let mut out = [0; GROUP_ELEMENTS];
    for l in 0..LANES {
        let word = |p: usize| {
            let at = 2 * (p * LANES + l);
            u16::from_le_bytes([bytes[at], bytes[at + 1]])
        };
        let w = [word(0), word(1), word(2)];
        out[l] = w[0] & CODE;
        out[LANES + l] = w[1] & CODE;
        out[2 * LANES + l] = w[2] & CODE;
        out[3 * LANES + l] = fourth(w);
    }
    out
}

/// Stores a group.
pub(super) fn write(codes: &[u16; GROUP_ELEMENTS], bytes: &mut [u8]) {
    assert_eq!(bytes.len(), GROUP_BYTES);
    for l in 0..LANES {
        let own = [codes[l], codes[LANES + l], codes[2 * LANES + l], codes[3 * LANES + l]];
        for (p, w) in join(own).into_iter().enumerate() {
            bytes[2 * (p * LANES + l)..][..2].copy_from_slice(&w.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fourth_code_survives_beside_any_others() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as u16 & CODE
        };
        for d in (0..=u16::MAX).filter(|d| d & !CODE == 0) {
            for _ in 0..8 {
                let [a, b, c] = [next(), next(), next()];
                let w = join([a, b, c, d]);
                assert_eq!([w[0] & CODE, w[1] & CODE, w[2] & CODE, fourth(w)], [a, b, c, d]);
            }
        }
    }
}
