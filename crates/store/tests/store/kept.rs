//! A store of each version, kept for ever: what was written once opens always.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use store::experts::Encoding;
use store::jnf::Store;
use store::pack::Packed;

use crate::fixture::{Fixture, Layout, files};

/// SHA-256 of all weights in bf16: dense tensors by name, then experts by layer and index.
const WEIGHTS: &str = "820d1f3b754c8a2714f5890a5250841947ea989e62704544c3ede32d0068a79e";

fn kept(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/jnf-v{version}"))
}

fn weights_sha256(store: &Store) -> String {
    let mut hash = Sha256::new();
    for (name, tensor) in store.checkpoint().tensors() {
        hash.update(name);
        hash.update(&tensor.bytes);
    }
    let map = store.expert_map();
    for block in map.all() {
        let at = block.offset_bytes as usize;
        let stored = &map.file(block.file).bytes[at..at + block.stored_bytes as usize];
        if block.encoding == Encoding::Packed {
            let mut weights = vec![0; 2 * block.rows * block.cols];
            Packed::parse(stored).unwrap().decode(&mut weights);
            hash.update(weights);
        } else {
            hash.update(stored);
        }
    }
    hash.finalize().iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

#[test]
fn stores_of_every_version_open_with_the_weights_they_were_made_with() {
    for version in [1, 2] {
        let store = Store::open(&kept(version)).unwrap();
        store.check_dense().unwrap();
        assert_eq!(store.manifest().version, u64::from(version));
        assert_eq!(weights_sha256(&store), WEIGHTS, "version {version}");
    }
}

/// If this fails and the test above does not, the writer changed: say so in CHANGELOG.md.
#[test]
fn the_writer_still_writes_the_same_bytes() {
    let fixture = Fixture::new(Layout::Fused);
    for (version, pack) in [(1, false), (2, true)] {
        let made = files(&fixture.store(&format!("v{version}"), pack));
        let expected = files(&kept(version));
        let names = |files: &std::collections::BTreeMap<PathBuf, Vec<u8>>| -> Vec<PathBuf> {
            files.keys().cloned().collect()
        };
        assert_eq!(names(&made), names(&expected), "version {version}");
        for (name, bytes) in &expected {
            assert!(made[name] == *bytes, "version {version}: {}", name.display());
        }
    }
}
