//! Everything that makes a store another one than was written is refused, by name.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;

use serde_json::Value;
use store::jnf::{Store, StoreError, seal};
use store::read::{Arena, ExpertReader, Fetch, Io, ReadError, ReadOptions, Urgency};
use store::verify::{What, verify_store};

use crate::fixture::{Fixture, Layout, refusal};

fn change(path: &Path, with: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    with(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Seals a changed manifest or index anew, as whoever means harm would.
fn forge(path: &Path, with: impl FnOnce(&mut Value)) {
    let mut json: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    json.as_object_mut().unwrap().remove("self_sha256");
    with(&mut json);
    fs::write(path, seal(&json)).unwrap();
}

fn index(root: &Path, layer: u32) -> PathBuf {
    root.join(format!("layers/{layer:02}/index.json"))
}

#[test]
fn every_flipped_byte_of_manifest_and_index_is_found() {
    let fixture = Fixture::new(Layout::Fused);
    let root = fixture.store("store", true);
    for path in [root.join("manifest.json"), index(&root, 2)] {
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&path, bad).unwrap();
            let error = refusal(&root);
            assert!(matches!(error, StoreError::Sealed { .. }), "byte {at}: {error}");
        }
        for len in (0..good.len()).step_by(37) {
            fs::write(&path, &good[..len]).unwrap();
            refusal(&root);
        }
        fs::write(&path, good).unwrap();
    }
    Store::open(&root).unwrap();
}

#[test]
fn other_versions_and_missing_fields_are_refused() {
    let fixture = Fixture::new(Layout::Fused);
    let root = fixture.store("store", false);
    let manifest = root.join("manifest.json");
    let good = fs::read(&manifest).unwrap();
    let fields: Value = serde_json::from_slice(&good).unwrap();
    for field in fields.as_object().unwrap().keys().filter(|field| *field != "self_sha256") {
        forge(&manifest, |json| drop(json.as_object_mut().unwrap().remove(field)));
        let message = refusal(&root).to_string();
        assert!(message.contains(&format!("missing field `{field}`")), "{field}: {message}");
        fs::write(&manifest, &good).unwrap();
    }
    forge(&manifest, |json| json["version"] = 3.into());
    let message = refusal(&root).to_string();
    assert!(message.contains("version 3, this program knows 1 and 2"), "{message}");
    fs::write(&manifest, &good).unwrap();
    forge(&manifest, |json| json["model"]["expert_layers"][0]["hidden"] = 64.into());
    let message = refusal(&root).to_string();
    assert!(message.contains("hidden is 32, expected 64"), "{message}");
    fs::write(&manifest, &good).unwrap();
    Store::open(&root).unwrap();
}

#[test]
fn missing_cut_and_exchanged_files_are_refused() {
    let fixture = Fixture::new(Layout::Fused);
    for name in [
        "manifest.json",
        "config.json",
        "tokenizer.json",
        "dense/model-00001-of-00001.safetensors",
        "layers/01/index.json",
        "layers/02/gate_up.bf16",
        "layers/03/down.bf16",
    ] {
        let root = fixture.store("missing", false);
        let path = root.join(name);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        refusal(&root);
        fs::remove_file(&path).unwrap();
        refusal(&root);
        fs::remove_dir_all(&root).unwrap();
    }
    let root = fixture.store("exchanged", false);
    let (a, b) = (root.join("layers/01"), root.join("layers/02"));
    let aside = root.join("layers/aside");
    for (from, to) in [(&a, &aside), (&b, &a), (&aside, &b)] {
        fs::rename(from, to).unwrap();
    }
    let message = refusal(&root).to_string();
    assert!(message.contains("layer is 2, expected 1"), "{message}");
    // A stale layer: of another conversion of a checkpoint with the same shapes.
    let separate = Fixture::new(Layout::Separate);
    let other = separate.store("other", false);
    let root = fixture.store("stale", false);
    fs::copy(index(&other, 1), index(&root, 1)).unwrap();
    let message = refusal(&root).to_string();
    assert!(message.contains("conversion is"), "{message}");
    // Another layer's weights under the right index: nothing but their bytes can tell.
    let root = fixture.store("weights", false);
    fs::copy(root.join("layers/03/down.bf16"), root.join("layers/01/down.bf16")).unwrap();
    damaged(&root, 1, 3);
}

#[test]
fn damaged_and_swapped_blocks_are_found_when_read_and_by_verifying() {
    let fixture = Fixture::new(Layout::Fused);
    for pack in [false, true] {
        let root = fixture.store(&format!("flipped-{pack}"), pack);
        let name = if pack { "layers/02/down.packed" } else { "layers/02/down.bf16" };
        change(&root.join(name), |bytes| bytes[4096 + 100] ^= 4);
        damaged(&root, 2, 1);
        let root = fixture.store(&format!("swapped-{pack}"), pack);
        change(&root.join(name), |bytes| {
            let (a, b) = bytes.split_at_mut(4096);
            a.swap_with_slice(&mut b[..4096]);
        });
        damaged(&root, 2, 2);
    }
    let root = fixture.store("dense", false);
    change(&root.join("dense/model-00001-of-00001.safetensors"), |bytes| {
        *bytes.last_mut().unwrap() ^= 1;
    });
    let error = refusal(&root);
    assert!(matches!(error, StoreError::Field { field: "XXH3-128", .. }), "{error}");
}

/// Some experts of a layer are not what they were: readers and verification must say so.
fn damaged(root: &Path, layer: u32, experts: usize) {
    let store = Store::open(root).unwrap();
    let found = verify_store(&store, None, &mut |_| ControlFlow::Continue(())).unwrap();
    let blocks = found.differences.iter().filter(|d| d.what == What::Checksum);
    let places: Vec<_> = blocks.map(|d| d.block.unwrap()).collect();
    assert_eq!(places.len(), experts, "{:?}", found.differences);
    assert!(places.iter().all(|id| id.layer == layer), "{places:?}");
    let (digests, map) = (Arc::new(store.digests()), Arc::new(store.expert_map()));
    for io in [Io::Auto, Io::Pread] {
        let arena = Arena::new(map.slot_bytes(), 1).unwrap();
        let options = ReadOptions { io, ..ReadOptions::default() };
        let reader = ExpertReader::open(map.clone(), digests.clone(), &arena, &options).unwrap();
        for id in &places {
            let (reply, answer) = channel();
            let (slot, urgency) = (arena.take().unwrap(), Urgency::Demand);
            reader.fetch(Fetch { layer, expert: id.expert, urgency, slot, reply });
            match answer.recv().unwrap().result {
                Err(ReadError::Differs { id: found, .. }) => assert_eq!(found, *id),
                other => panic!("{id:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_store_that_cannot_be_written_to_opens_and_reads() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new(Layout::Fused);
    let root = fixture.store("read-only", true);
    fs::set_permissions(&root, fs::Permissions::from_mode(0o555)).unwrap();
    let store = Store::open(&root).unwrap();
    store.check_dense().unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    // What nobody may read; root may, and then it is no fault.
    let path = root.join("layers/01/down.packed");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&path).is_err() {
        assert!(matches!(refusal(&root), StoreError::Io { .. }));
    }
}
