//! Hashes as manifests spell them: lower-case hex.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// A SHA-256, in text 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256Hash(pub [u8; 32]);

impl Sha256Hash {
    pub fn of(bytes: &[u8]) -> Sha256Hash {
        Sha256Hash(Sha256::digest(bytes).into())
    }

    pub fn finish(hasher: Sha256) -> Sha256Hash {
        Sha256Hash(hasher.finalize().into())
    }
}

/// An XXH3-128, in text 32 hex digits, the most significant first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FastSum(pub u128);

/// Text that is not a hash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {digits} lower-case hex digits, found {found:?}")]
pub struct NotHex {
    pub digits: usize,
    pub found: String,
}

impl FromStr for Sha256Hash {
    type Err = NotHex;

    fn from_str(text: &str) -> Result<Self, NotHex> {
        let mut hash = [0; 32];
        let (high, low) = text.split_at_checked(32).ok_or_else(|| not_hex(64, text))?;
        hash[..16].copy_from_slice(&half(high).ok_or_else(|| not_hex(64, text))?);
        hash[16..].copy_from_slice(&half(low).ok_or_else(|| not_hex(64, text))?);
        Ok(Sha256Hash(hash))
    }
}

impl FromStr for FastSum {
    type Err = NotHex;

    fn from_str(text: &str) -> Result<Self, NotHex> {
        half(text).map(|bytes| FastSum(u128::from_be_bytes(bytes))).ok_or_else(|| not_hex(32, text))
    }
}

/// 16 bytes from 32 digits; one spelling only, so that equal texts are equal hashes.
fn half(digits: &str) -> Option<[u8; 16]> {
    let plain = digits.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    let value = u128::from_str_radix(digits, 16).ok();
    value.filter(|_| plain && digits.len() == 32).map(u128::to_be_bytes)
}

fn not_hex(digits: usize, found: &str) -> NotHex {
    NotHex { digits, found: found.to_string() }
}

impl fmt::Display for Sha256Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for FastSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

macro_rules! as_text {
    ($name:ident) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    };
}

as_text!(Sha256Hash);
as_text!(FastSum);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let hash = Sha256Hash::of(b"abc");
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((hash.to_string(), text.parse()), (text.to_string(), Ok(hash)));
        let sum = FastSum(0x0102);
        assert_eq!(sum.to_string().parse(), Ok(sum));
    }

    #[test]
    fn one_spelling_only() {
        let good = "0".repeat(64);
        let check = |text: &str| assert!(text.parse::<Sha256Hash>().is_err(), "{text}");
        check(&good[1..]);
        check(&format!("{good}0"));
        check(&good.replacen('0', "A", 1));
        check(&good.replacen('0', "+", 1));
        check(&"é".repeat(32));
    }
}
