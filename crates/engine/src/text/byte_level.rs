//! The alphabet of byte-level BPE: which byte a character of a vocabulary entry stands for.

/// One more than the largest code point of the alphabet (256 + the 68 bytes that are moved).
const ALPHABET_END: usize = 324;

static BYTE_OF_CHAR: [Option<u8>; ALPHABET_END] = build();

/// Printable bytes stand for themselves; the others, in order, take the code points from 256 on.
const fn build() -> [Option<u8>; ALPHABET_END] {
    let mut table = [None; ALPHABET_END];
    let mut byte = 0usize;
    let mut moved = 0usize;
    while byte < 256 {
        if matches!(byte, 33..=126 | 161..=172 | 174..=255) {
            table[byte] = Some(byte as u8);
        } else {
            table[256 + moved] = Some(byte as u8);
            moved += 1;
        }
        byte += 1;
    }
    table
}

/// Appends the bytes that a byte-level vocabulary entry stands for.
///
/// An entry with any character outside the alphabet (an added token such as `<|im_end|>` with a
/// space in it) stands for its own UTF-8 bytes, all of it, as in the reference.
///
/// Source: tokenizers 0.23.2, `ByteLevel::decode_chain`.
pub(super) fn push_token_bytes(token: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for character in token.chars() {
        match BYTE_OF_CHAR.get(character as usize).copied().flatten() {
            Some(byte) => bytes.push(byte),
            None => {
                bytes.truncate(start);
                bytes.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_names_every_byte_once() {
        let mut seen = [0; 256];
        for byte in BYTE_OF_CHAR.iter().flatten() {
            seen[usize::from(*byte)] += 1;
        }
        assert_eq!(seen, [1; 256]);
    }

    #[test]
    fn entries_become_bytes() {
        let check = |token: &str, expect: &[u8]| {
            let mut bytes = vec![7];
            push_token_bytes(token, &mut bytes);
            assert_eq!(&bytes[1..], expect, "{token}");
        };
        check("Ġthe", b" the");
        check("Ċ", b"\n");
        check("Ã©", "é".as_bytes());
        check("a b", b"a b");
        check("Ġ漢", "Ġ漢".as_bytes());
    }
}
