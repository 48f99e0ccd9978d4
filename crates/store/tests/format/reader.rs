//! A reader of stores written from FORMAT.md alone: no code of the store is used.

use std::fs;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};
use twox_hash::XxHash3_128;

/// The last bytes of a sealed file: text, 64 digits, text.
const SEAL: [&[u8]; 2] = [b",\n  \"self_sha256\": \"", b"\"\n}\n"];

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The object of a sealed file without its seal, its hash compared.
pub fn unseal(bytes: &[u8]) -> Value {
    let (content, seal) = bytes.split_at(bytes.len() - 88);
    let (before, rest) = seal.split_at(20);
    let (digits, after) = rest.split_at(64);
    assert_eq!([before, after], SEAL);
    assert_eq!(sha256(content).as_bytes(), digits, "the hash of all before the seal");
    serde_json::from_slice(&[content, b"}"].concat()).unwrap()
}

/// The bytes of a sealed file with that content.
pub fn seal(object: &Value) -> Vec<u8> {
    let json = serde_json::to_vec_pretty(object).unwrap();
    let content = json.strip_suffix(b"\n}").unwrap();
    [content, SEAL[0], sha256(content).as_bytes(), SEAL[1]].concat()
}

pub fn read(path: impl AsRef<Path>) -> Value {
    unseal(&fs::read(path).unwrap())
}

pub fn number(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

/// XXH3-128 as files spell it.
pub fn xxh3(seed: u64, bytes: &[u8]) -> String {
    let sum = XxHash3_128::oneshot_with_seed(seed, bytes).to_be_bytes();
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn seed(layer: u64, expert: u64, code: u64) -> u64 {
    (layer << 40) + (expert << 8) + code
}

/// Gate_up and down of an expert as bf16.
pub fn expert(root: &Path, layer: u32, expert: usize) -> [Vec<u8>; 2] {
    let folder = root.join("layers").join(format!("{layer:02}"));
    let index = read(folder.join("index.json"));
    let shape = &index["shape"];
    let [experts, hidden, width] = ["experts", "hidden", "width"].map(|name| number(&shape[name]));
    let projections = [(0, [2 * width, hidden], 0), (1, [hidden, width], 3)];
    projections.map(|(at, [rows, cols], code)| {
        let block = &index["blocks"][at * experts + expert];
        let file = fs::read(folder.join(index["files"][at]["name"].as_str().unwrap())).unwrap();
        let stored = &file[number(&block["offset"])..][..number(&block["stored_bytes"])];
        assert_eq!(block["sha256"], sha256(stored));
        assert_eq!(block["xxh3"], xxh3(seed(layer.into(), expert as u64, code), stored));
        let weights = match block["encoding"].as_str().unwrap() {
            "bf16" => stored.to_vec(),
            "packed" => unpack(stored, rows, cols),
            other => panic!("{other}"),
        };
        assert_eq!(block["weights_sha256"], sha256(&weights));
        weights
    })
}

fn u64_at(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

/// A packed block as bf16.
pub fn unpack(block: &[u8], rows: usize, cols: usize) -> Vec<u8> {
    assert_eq!(block[..8], *b"TFPK\x01\0\0\0");
    let [stored_rows, stored_cols, groups, escapes] = [8, 16, 24, 32].map(|at| u64_at(block, at));
    assert_eq!([stored_rows, stored_cols], [rows, cols]);
    assert_eq!(groups, (rows * cols).div_ceil(128));
    let mut at = 64;
    let mut section = |len: usize| {
        let bytes = &block[at..at + len];
        at = (at + len).next_multiple_of(64);
        bytes
    };
    let (bases, lanes) = (section(rows), section(192 * groups));
    let (places, values) = (section(4 * escapes), section(2 * escapes));
    assert_eq!(at, block.len());
    let mut weights: Vec<u16> = (0..rows * cols)
        .map(|element| {
            let group = &lanes[element / 128 * 192..][..192];
            code(group, element % 128) + (u16::from(bases[element / cols]) << 7)
        })
        .collect();
    for escape in 0..escapes {
        let place = u32::from_le_bytes(places[4 * escape..][..4].try_into().unwrap());
        weights[place as usize] = u16_at(values, 2 * escape);
    }
    weights.into_iter().flat_map(u16::to_le_bytes).collect()
}

fn code(group: &[u8], element: usize) -> u16 {
    if element < 96 {
        return u16_at(group, 2 * element) & 0x87ff;
    }
    let [w0, w1, w2] = [0, 1, 2].map(|plane| u16_at(group, 2 * (32 * plane + element - 96)));
    let t = (w0 << 1) ^ (w1 >> 3) ^ (w2 >> 7);
    ((t as i16 >> 4) as u16) & 0x87ff
}
