//! JSON that carries a hash over its own bytes, so that damage to it is found before it is used.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::hash::Sha256Hash;
use crate::checkpoint::reason_of;

/// What stands between the content and the hash.
pub const SEAL_BEFORE: &[u8] = b",\n  \"self_sha256\": \"";
/// What stands after the hash: the end of the file.
pub const SEAL_AFTER: &[u8] = b"\"\n}\n";
const HASH_DIGITS: usize = 64;
/// Length of all of it.
pub const SEAL_BYTES: usize = SEAL_BEFORE.len() + HASH_DIGITS + SEAL_AFTER.len();

/// What is wrong with a sealed file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealProblem {
    #[error("it does not end with its own hash: it is cut off, or was edited")]
    NoSeal,
    #[error("its hash says {expected}, its bytes have {found}: it is damaged, or was edited")]
    WrongHash { expected: Sha256Hash, found: Sha256Hash },
    #[error("line {line}: {reason}")]
    NotJson { line: usize, reason: String },
    #[error("it is {found:?}, expected {expected:?}")]
    OtherFormat { expected: &'static str, found: String },
    #[error("it has version {found}, this program knows {known}: get a newer one")]
    UnknownVersion { found: u64, known: &'static str },
}

/// The first two fields of every sealed file, whatever its version.
#[derive(serde::Deserialize)]
struct Head {
    format: String,
    version: u64,
}

/// An object as the bytes of a file.
///
/// Panics for what is not an object with at least one field.
pub fn seal<T: Serialize>(object: &T) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(object).expect("plain data");
    assert!(bytes.ends_with(b"\n}"), "only objects can be sealed");
    bytes.truncate(bytes.len() - 2);
    let hash = Sha256Hash::of(&bytes);
    bytes.extend_from_slice(SEAL_BEFORE);
    bytes.extend_from_slice(hash.to_string().as_bytes());
    bytes.extend_from_slice(SEAL_AFTER);
    bytes
}

/// The object back, its hash, format and version checked before its fields are.
///
/// Errors: every `SealProblem`.
pub fn unseal<T: DeserializeOwned>(
    bytes: &[u8],
    format: &'static str,
    versions: &[u64],
    known: &'static str,
) -> Result<T, SealProblem> {
    let mut json = content(bytes)?.to_vec();
    json.extend_from_slice(b"\n}");
    let head: Head = parse(&json)?;
    if head.format != format {
        return Err(SealProblem::OtherFormat { expected: format, found: head.format });
    }
    if !versions.contains(&head.version) {
        return Err(SealProblem::UnknownVersion { found: head.version, known });
    }
    parse(&json)
}

/// The bytes that the hash covers.
fn content(bytes: &[u8]) -> Result<&[u8], SealProblem> {
    let at = bytes.len().checked_sub(SEAL_BYTES).ok_or(SealProblem::NoSeal)?;
    let (content, seal) = bytes.split_at(at);
    let expected = seal
        .strip_prefix(SEAL_BEFORE)
        .and_then(|rest| rest.strip_suffix(SEAL_AFTER))
        .and_then(|digits| std::str::from_utf8(digits).ok())
        .and_then(|digits| digits.parse().ok())
        .ok_or(SealProblem::NoSeal)?;
    let found = Sha256Hash::of(content);
    if found != expected {
        return Err(SealProblem::WrongHash { expected, found });
    }
    Ok(content)
}

fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, SealProblem> {
    serde_json::from_slice(json)
        .map_err(|error| SealProblem::NotJson { line: error.line(), reason: reason_of(&error) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    #[serde(deny_unknown_fields)]
    struct Thing {
        format: String,
        version: u64,
        value: u32,
    }

    fn thing() -> Thing {
        Thing { format: "thing".into(), version: 1, value: 7 }
    }

    fn open(bytes: &[u8]) -> Result<Thing, SealProblem> {
        unseal(bytes, "thing", &[1], "1")
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let sealed = seal(&thing());
        assert_eq!(open(&sealed), Ok(thing()));
        for at in 0..sealed.len() {
            for bit in 0..8 {
                let mut spoiled = sealed.clone();
                spoiled[at] ^= 1 << bit;
                let found = open(&spoiled).unwrap_err();
                let wrong = matches!(found, SealProblem::NoSeal | SealProblem::WrongHash { .. });
                assert!(wrong, "byte {at} bit {bit}: {found}");
            }
        }
    }

    #[test]
    fn every_cut_is_found() {
        let sealed = seal(&thing());
        for len in 0..sealed.len() {
            assert!(open(&sealed[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn the_sealed_file_is_plain_json() {
        let value: serde_json::Value = serde_json::from_slice(&seal(&thing())).unwrap();
        assert_eq!(value["value"], 7);
        assert_eq!(value["self_sha256"].as_str().unwrap().len(), HASH_DIGITS);
    }

    #[test]
    fn other_formats_versions_and_fields_are_refused() {
        let check = |json: serde_json::Value, expect: &str| {
            let message = open(&seal(&json)).unwrap_err().to_string();
            assert!(message.contains(expect), "{message}");
        };
        use serde_json::json;
        check(json!({"format": "other", "version": 1}), "\"other\", expected \"thing\"");
        check(json!({"format": "thing", "version": 9}), "version 9, this program knows 1");
        check(json!({"format": "thing", "version": 1}), "missing field `value`");
        let more = json!({"format": "thing", "version": 1, "value": 1, "x": 1});
        check(more, "unknown field `x`");
        check(json!({"version": 1}), "missing field `format`");
    }
}
