//! Every field is mandatory, and what the column "refused where" promises is refused.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use store::jnf::Store;
use store::sidecar::Sidecar;

use super::document::fields;
use super::fixture::Fixture;
use super::reader::{read, seal, sha256};

/// The name of the error with which a folder is refused as a store; empty where it is not.
fn refusal(root: &Path) -> String {
    let opened = Store::open(root).and_then(|store| store.check_dense().map(|()| store));
    opened.err().map_or_else(String::new, |error| name(&error))
}

fn name(error: &dyn std::fmt::Debug) -> String {
    format!("{error:?}").split([' ', '(']).next().unwrap().to_string()
}

/// A file changed, asked about, and put back.
fn with(path: &Path, changed: &Value, ask: &dyn Fn() -> String) -> String {
    let before = fs::read(path).unwrap();
    fs::write(path, seal(changed)).unwrap();
    let answer = ask();
    fs::write(path, before).unwrap();
    answer
}

/// Every object of a file that a table describes: its pointer, and the heading of the table. Of
/// the objects of a list the first.
fn objects(heading: &str, pointer: &str, found: &mut Vec<(String, String)>) {
    found.push((pointer.to_string(), heading.to_string()));
    for field in fields(heading) {
        if let Some(below) = field.kind.strip_prefix("object: ") {
            objects(below, &format!("{pointer}/{}", field.name), found);
        }
        if let Some(below) = field.kind.strip_prefix("list: ") {
            objects(below, &format!("{pointer}/{}/0", field.name), found);
        }
    }
}

fn check_mandatory(path: &Path, heading: &str, refusal: &dyn Fn() -> String) {
    let whole = read(path);
    assert_eq!(with(path, &whole, refusal), "", "{heading}: unchanged, in another order");
    let mut places = Vec::new();
    objects(heading, "", &mut places);
    for (pointer, heading) in places {
        let change = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
            let mut changed = whole.clone();
            change(changed.pointer_mut(&pointer).unwrap().as_object_mut().unwrap());
            with(path, &changed, refusal)
        };
        let more = change(&|object| drop(object.insert("more".to_string(), json!(1))));
        assert_eq!(more, "Sealed", "{heading}: an unknown field");
        for field in fields(&heading) {
            let name = &field.name;
            let absent = change(&|object| drop(object.remove(name)));
            assert_eq!(absent, "Sealed", "{heading}: {name} absent");
            let null = change(&|object| drop(object.insert(name.clone(), Value::Null)));
            assert_eq!(null == "Sealed", !field.may_be_null, "{heading}: {name} null: {null}");
        }
    }
}

#[test]
fn every_field_is_mandatory() {
    let fixture = Fixture::new();
    let root = fixture.store(1);
    let index = root.join("layers/01/index.json");
    check_mandatory(&root.join("manifest.json"), "manifest.json", &|| refusal(&root));
    let of_index = || match &refusal(&root)[..] {
        // the manifest has the hash of the index as the converter wrote it
        "WrongHash" => String::new(),
        other => other.to_string(),
    };
    check_mandatory(&index, "index.json", &of_index);
}

#[test]
fn every_field_of_the_other_sealed_files_is_mandatory() {
    let fixture = Fixture::new();
    let root = fixture.unfinished();
    let go_on = || match fixture.convert(&root, false, Some(1..=1)) {
        Ok(_) => String::new(),
        Err(store::convert::ConvertError::Store(error)) => name(&error),
        Err(error) => name(&error),
    };
    check_mandatory(&root.join("conversion.json"), "conversion.json", &go_on);
    let path = fixture.folder().join(".tarfa/manifest.json");
    let checkpoint = fixture.open();
    let fingerprint = checkpoint.sha256_fingerprint();
    let observe = &mut |_| std::ops::ControlFlow::Continue(());
    let experts = fixture.experts(&checkpoint);
    let (known, _) =
        store::verify::verify_in_place(&checkpoint, &experts, Default::default(), observe).unwrap();
    known.save(&path).unwrap();
    let load = |fingerprint: &str| {
        Sidecar::load(&path, fingerprint).err().map_or_else(String::new, |error| name(&error))
    };
    check_mandatory(&path, "Sidecar", &|| load(&fingerprint));
    assert_eq!(load("another"), "OtherCheckpoint");
}

/// A value that is refused, and the row of the document that says so.
type Case = (&'static str, Value, &'static str, &'static str);

fn check_refused(root: &Path, path: PathBuf, cases: &[Case]) {
    let whole = read(&path);
    for (pointer, value, heading, field) in cases {
        let mut changed = whole.clone();
        let place = changed.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}"));
        assert_ne!(place, value, "{pointer}");
        *place = value.clone();
        let error = with(&path, &changed, &|| refusal(root));
        let row = fields(heading).into_iter().find(|row| row.name == *field).unwrap();
        let promised = row.refused.contains(&format!("`{error}`"));
        assert!(promised, "{pointer} = {value}: {error:?}, the document: {}", row.refused);
    }
}

#[test]
fn bad_values_of_a_manifest_are_refused_as_the_document_says() {
    let root_of = Fixture::new();
    let root = root_of.store(1);
    let other = json!("0".repeat(64));
    let cases = [
        ("/format", json!("jnf-layer"), "manifest.json", "format"),
        ("/version", json!(0), "manifest.json", "version"),
        ("/version", json!(3), "manifest.json", "version"),
        ("/version", json!(2), "manifest.json", "encoding"),
        ("/encoding", json!("packed"), "manifest.json", "encoding"),
        ("/conversion", other.clone(), "manifest.json", "conversion"),
        ("/complete", json!(false), "manifest.json", "complete"),
        ("/layers", json!([]), "manifest.json", "layers"),
        ("/layers/0/layer", json!(0), "manifest.json", "layers"),
        ("/layers/0/index_sha256", other.clone(), "layer", "index_sha256"),
        ("/model/dtype", json!("F32"), "model", "dtype"),
        ("/model/layer_count", json!(65537), "model", "layer_count"),
        ("/model/expert_layers/0/layer", json!(2), "model", "expert_layers"),
        ("/model/expert_layers/1/layer", json!(3), "expert layer", "layer"),
        ("/model/expert_layers/0/experts", json!(0), "expert layer", "experts"),
        ("/model/expert_layers/0/experts", json!(65537), "expert layer", "experts"),
        ("/model/expert_layers/0/hidden", json!(0), "expert layer", "hidden"),
        ("/model/expert_layers/0/width", json!(16777217), "expert layer", "width"),
        ("/files/0/name", json!("../LICENSE"), "file", "name"),
        ("/files/0/name", json!("absent.txt"), "manifest.json", "files"),
        ("/files/0/size_bytes", json!(5), "file", "size_bytes"),
        ("/files/0/sha256", other.clone(), "file", "sha256"),
        ("/dense", json!([]), "manifest.json", "dense"),
        ("/dense/0/name", json!("a/b"), "dense file", "name"),
        ("/dense/0/size_bytes", json!(5), "dense file", "size_bytes"),
        ("/dense/0/header_sha256", other, "dense file", "header_sha256"),
        ("/dense/0/xxh3", json!("0".repeat(32)), "dense file", "xxh3"),
    ];
    check_refused(&root, root.join("manifest.json"), &cases);
}

#[test]
fn bad_values_of_an_index_are_refused_as_the_document_says() {
    let root_of = Fixture::new();
    let root = root_of.store(1);
    let cases = [
        ("/format", json!("jnf"), "index.json", "format"),
        ("/version", json!(3), "index.json", "version"),
        ("/version", json!(2), "index.json", "version"),
        ("/conversion", json!("0".repeat(64)), "index.json", "conversion"),
        ("/shape/width", json!(41), "index.json", "shape"),
        ("/shape/layer", json!(2), "index.json", "shape"),
        ("/files", json!([]), "index.json", "files"),
        ("/files/0/name", json!("down.bf16"), "index.json", "files"),
        ("/files/0/size_bytes", json!(4096), "index.json", "files"),
        ("/files/0/sha256", json!("0".repeat(64)), "layer", "index_sha256"),
        ("/blocks", json!([]), "index.json", "blocks"),
        ("/blocks/0/expert", json!(1), "block", "expert"),
        ("/blocks/0/projection", json!("down"), "block", "projection"),
        ("/blocks/1/offset", json!(4096), "block", "offset"),
        ("/blocks/0/stored_bytes", json!(11518), "block", "stored_bytes"),
        ("/blocks/0/encoding", json!("packed"), "block", "encoding"),
        ("/blocks/0/weights_sha256", json!("0".repeat(64)), "block", "weights_sha256"),
    ];
    check_refused(&root, root.join("layers/01/index.json"), &cases);
}

#[test]
fn files_that_are_not_as_listed_are_refused() {
    let check = |spoil: &dyn Fn(&Path), expected: &str| {
        let fixture = Fixture::new();
        let root = fixture.store(1);
        spoil(&root);
        assert_eq!(refusal(&root), expected);
    };
    check(&|_| (), "");
    check(&|root| fs::remove_file(root.join("manifest.json")).unwrap(), "NotAStore");
    check(&|root| fs::remove_file(root.join("LICENSE")).unwrap(), "Io");
    check(&|root| fs::write(root.join("LICENSE"), "fre_").unwrap(), "WrongHash");
    check(&|root| fs::remove_dir_all(root.join("layers/02")).unwrap(), "Io");
    check(&|root| fs::write(root.join("layers/02/down.bf16"), "").unwrap(), "WrongLength");
    let extra = |root: &Path, name: &str| {
        let dense = root.join("dense");
        fs::copy(dense.join("model-00001-of-00001.safetensors"), dense.join(name)).unwrap();
    };
    check(&|root| extra(root, "other.partial"), "");
    check(&|root| fs::write(root.join("other"), "").unwrap(), "");
    // the same tensors twice, which a checkpoint must not have either
    check(&|root| extra(root, "other.safetensors"), "Checkpoint");
    check(&|root| fs::write(root.join("conversion.json"), "left by a crash").unwrap(), "");
}

#[test]
fn a_field_that_occurs_twice_is_refused() {
    let fixture = Fixture::new();
    let root = fixture.store(1);
    let path = root.join("manifest.json");
    let whole = fs::read_to_string(&path).unwrap();
    let field = "\n  \"tool\": \"tarfa test\",";
    let content = whole[..whole.len() - 88].replacen(field, &field.repeat(2), 1);
    let seal = format!(",\n  \"self_sha256\": \"{}\"\n}}\n", sha256(content.as_bytes()));
    fs::write(&path, content + &seal).unwrap();
    assert_eq!(refusal(&root), "Sealed");
}

#[test]
fn spoiled_padding_is_found_by_the_hash_of_the_file_only() {
    let fixture = Fixture::new();
    let root = fixture.store(1);
    let path = root.join("layers/01/gate_up.bf16");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() = 1;
    fs::write(&path, bytes).unwrap();
    let store = Store::open(&root).unwrap();
    let go_on = &mut |_| std::ops::ControlFlow::Continue(());
    let found = store::verify::verify_store(&store, None, go_on).unwrap().differences;
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0].file, found[0].block), (&path, None));
}
