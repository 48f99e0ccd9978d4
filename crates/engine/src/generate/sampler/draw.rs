//! Random numbers that anyone can compute again.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// 32-bit words in a ChaCha block.
const BLOCK_WORDS: u128 = 16;

/// The 64 random bits for one token.
///
/// The first eight bytes, little-endian, of one block of ChaCha20 as Bernstein defined it: the key
/// is the seed, little-endian, followed by 24 zero bytes; the 64-bit nonce is the choice; the
/// 64-bit block counter is the position, the number of tokens generated before.
///
/// Source: D. J. Bernstein, "ChaCha, a variant of Salsa20", 2008.
pub(super) fn random(seed: u64, choice: u64, position: u64) -> u64 {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut stream = ChaCha20Rng::from_seed(key);
    stream.set_stream(choice);
    stream.set_word_pos(BLOCK_WORDS * u128::from(position));
    stream.next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// draft-agl-tls-chacha20poly1305-04, section 7, and RFC 8439, appendix A.1: the key streams
    /// for the zero key.
    #[test]
    fn the_bits_are_those_of_the_published_key_streams() {
        let check = |seed, choice, position, expect: [u8; 8]| {
            assert_eq!(random(seed, choice, position).to_le_bytes(), expect);
        };
        check(0, 0, 0, [0x76, 0xb8, 0xe0, 0xad, 0xa0, 0xf1, 0x3d, 0x90]);
        check(0, 0, 1, [0x9f, 0x07, 0xe7, 0xbe, 0x55, 0x51, 0x38, 0x7a]);
        // A nonce with its first byte 1, which is the choice 1.
        check(0, 1, 0, [0xef, 0x3f, 0xdf, 0xd6, 0xc6, 0x15, 0x78, 0xfb]);
        // A nonce with its last byte 1, which is the choice 2^56.
        check(0, 1 << 56, 0, [0xde, 0x9c, 0xba, 0x7b, 0xf3, 0xd6, 0x9e, 0xf5]);
    }

    /// RFC 8439, section 2.3.2: a key with no zero bytes and both halves of the nonce in use.
    #[test]
    fn the_library_computes_the_rfc_8439_block() {
        let mut stream = ChaCha20Rng::from_seed(std::array::from_fn(|i| i as u8));
        stream.set_stream(0x4a00_0000);
        stream.set_word_pos(BLOCK_WORDS * (0x0900_0000 << 32 | 1));
        assert_eq!(stream.next_u64().to_le_bytes(), 0x10f1_e7e4_d13b_5915u64.to_be_bytes());
    }
}
