//! FORMAT.md against the code: fields, constants and hashes, and a reader that knows the document
//! only.

#[path = "format/document.rs"]
mod document;
#[path = "format/fixture.rs"]
mod fixture;
#[path = "format/reader.rs"]
mod reader;
#[path = "format/refusals.rs"]
mod refusals;

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Value, json};
use store::experts::{BlockId, Projection, checksum};
use store::jnf::{self, Store};
use store::sidecar;
use store::verify::{InPlace, verify_in_place, verify_store};

use document::{check_object, constant, quoted, section, table};
use fixture::{CONFIG, EXPERTS, Fixture, HIDDEN, LAYERS, SHARDS, WIDTH};
use reader::{number, read, seed, sha256, unseal, xxh3};

fn layer_folder(root: &Path, layer: u32) -> std::path::PathBuf {
    root.join("layers").join(format!("{layer:02}"))
}

/// Names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

#[test]
fn the_constants_are_those_of_the_code() {
    let mut checked = 0;
    let mut check = |name: &str, code: &dyn std::fmt::Display| {
        assert_eq!(constant(name), code.to_string(), "{name}");
        checked += 1;
    };
    check("name of the manifest", &jnf::MANIFEST_NAME);
    check("name of a layer's index", &jnf::INDEX_NAME);
    check("name of the state of a conversion", &jnf::CONVERSION_NAME);
    check("name of the lock", &jnf::LOCK_NAME);
    check("name of a hot list", &jnf::HOTLIST_NAME);
    check("folder of the layers", &jnf::LAYERS_FOLDER);
    check("folder of the dense files", &jnf::DENSE_FOLDER);
    check("folder beside a checkpoint", &sidecar::FOLDER);
    check("name of a sidecar", &sidecar::SIDECAR_NAME);
    check("suffix of what is not finished", &jnf::PARTIAL_SUFFIX);
    check("format of a manifest", &jnf::MANIFEST_FORMAT);
    check("format of an index", &jnf::INDEX_FORMAT);
    check("format of a sidecar", &sidecar::SIDECAR_FORMAT);
    check("versions of manifest and index", &jnf::VERSIONS.map(|v| v.to_string()).join(", "));
    check("alignment of blocks", &jnf::BLOCK_ALIGN_BYTES);
    check("dtype of experts", &jnf::EXPERT_DTYPE);
    check("layers at most", &jnf::LAYERS_MAX);
    check("experts of a layer at most", &jnf::EXPERTS_MAX);
    check("hidden and width at most", &jnf::DIMENSION_MAX);
    // three more are compared with files below; the limit of dense files would need 4 GiB
    assert_eq!(checked + 4, table("Conventions", "| constant |").len());
    let seal = table("Sealed files", "| part |");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for (row, code) in [(&seal[0], jnf::SEAL_BEFORE), (&seal[2], jnf::SEAL_AFTER)] {
        assert_eq!((row[1].clone(), quoted(&row[2])), (code.len().to_string(), hex(code)));
    }
    assert!(section("Sealed files").join(" ").contains(&format!("{} bytes", jnf::SEAL_BYTES)));
}

#[test]
fn the_tables_have_the_fields_of_the_files() {
    let fixture = Fixture::new();
    let unfinished = fixture.unfinished();
    let mut used = BTreeSet::new();
    let state = read(unfinished.join("conversion.json"));
    assert_eq!(constant("format of the state of a conversion"), text(&state["format"]));
    assert_eq!(constant("version of the state of a conversion"), state["version"].to_string());
    for root in [fixture.store(1), fixture.store(2), unfinished.clone()] {
        check_object("manifest.json", &read(root.join("manifest.json")), &mut used);
        check_object("index.json", &read(root.join("layers/01/index.json")), &mut used);
    }
    check_object("conversion.json", &state, &mut used);
    let path = fixture.folder().join(".tarfa/manifest.json");
    let (checkpoint, go_on) = (fixture.open(), &mut |_| ControlFlow::Continue(()));
    let experts = fixture.experts(&checkpoint);
    let (known, _) = verify_in_place(&checkpoint, &experts, InPlace::default(), go_on).unwrap();
    known.save(&path).unwrap();
    let found = read(&path);
    check_object("Sidecar", &found, &mut used);
    assert_eq!(constant("version of a sidecar"), found["version"].to_string());
    let expected = "block conversion.json dense file dense tensor expert layer file index.json \
                    layer manifest.json model Sidecar sidecar block sidecar file source \
                    source file source piece stamp";
    let mut all: Vec<String> = used.into_iter().collect();
    all.sort_by_key(|heading| heading.to_lowercase());
    assert_eq!(all.join(" "), expected);
    let codes = table("Hashes", "| projection |");
    for block in list(&found["blocks"]) {
        let code = codes.iter().find(|row| row[0] == text(&block["projection"])).unwrap();
        let [layer, expert] = ["layer", "expert"].map(|name| block[name].as_u64().unwrap());
        let bytes = match text(&block["projection"]) {
            "gate" => fixture.expert(layer as u32, expert as usize)[0][..2 * WIDTH * HIDDEN].into(),
            "up" => fixture.expert(layer as u32, expert as usize)[0][2 * WIDTH * HIDDEN..].into(),
            "gate_up" => fixture.expert(layer as u32, expert as usize)[0].clone(),
            _ => fixture.expert(layer as u32, expert as usize)[1].clone(),
        };
        let seed = seed(layer, expert, code[1].parse().unwrap());
        assert_eq!(text(&block["xxh3"]), xxh3(seed, &bytes));
    }
}

#[test]
fn the_example_of_a_sealed_file_is_one() {
    let lines = section("Sealed files");
    let example = lines.iter().skip_while(|line| **line != "```json").skip(1);
    let example: String =
        example.take_while(|line| **line != "```").map(|line| format!("{line}\n")).collect();
    let found = unseal(example.as_bytes());
    check_object("conversion.json", &found, &mut BTreeSet::new());
    let parsed: Value = jnf::unseal(example.as_bytes(), "jnf-conversion", &[1], "1").unwrap();
    assert_eq!(parsed, found);
}

#[test]
fn the_examples_of_checksums_are_right() {
    let codes = table("Hashes", "| projection |");
    let projections = [Projection::GateUp, Projection::Gate, Projection::Up, Projection::Down];
    let examples = table("Hashes", "| layer |");
    assert_eq!(examples.len(), 3);
    for row in examples {
        let [layer, expert, len] = [0, 1, 3].map(|at| row[at].parse::<u32>().unwrap());
        let bytes: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
        let code = codes.iter().position(|code| code[0] == row[2]).unwrap();
        assert_eq!(codes[code][1], code.to_string());
        assert_eq!(quoted(&row[4]), xxh3(seed(layer.into(), expert.into(), code as u64), &bytes));
        let id = BlockId { layer, expert, projection: projections[code] };
        assert_eq!(
            (projections[code].name(), &row[2][..]),
            (&row[2][..], projections[code].name())
        );
        assert_eq!(quoted(&row[4]), format!("{:032x}", checksum(id, &bytes)));
    }
}

#[test]
fn the_reader_of_the_document_gets_the_bytes_of_the_checkpoint() {
    let fixture = Fixture::new();
    for version in [1, 2] {
        let root = fixture.store(version);
        let mut encodings = BTreeSet::new();
        for layer in LAYERS {
            let index = read(layer_folder(&root, layer).join("index.json"));
            encodings
                .extend(list(&index["blocks"]).iter().map(|block| block["encoding"].to_string()));
            for expert in 0..EXPERTS {
                let (expected, found) =
                    (fixture.expert(layer, expert), reader::expert(&root, layer, expert));
                assert!(expected == found, "version {version}, layer {layer}, expert {expert}");
            }
        }
        // one expert's weights do not become smaller
        assert_eq!(encodings.len() as u64, version);
    }
}

#[test]
fn data_files_are_blocks_and_zeros_up_to_4096() {
    let fixture = Fixture::new();
    for (version, extension) in [(1, "bf16"), (2, "packed")] {
        let root = fixture.store(version);
        for layer in LAYERS {
            let folder = layer_folder(&root, layer);
            let data = ["down", "gate_up"].map(|stem| format!("{stem}.{extension}"));
            assert_eq!(names(&folder), [&data[0], &data[1], "index.json"]);
            let index = read(folder.join("index.json"));
            for (at, stem) in ["gate_up", "down"].into_iter().enumerate() {
                let entry = &index["files"][at];
                assert_eq!(text(&entry["name"]), format!("{stem}.{extension}"));
                let bytes = fs::read(folder.join(text(&entry["name"]))).unwrap();
                assert_eq!(text(&entry["sha256"]), sha256(&bytes));
                let mut end = 0;
                for (expert, block) in
                    list(&index["blocks"])[at * EXPERTS..][..EXPERTS].iter().enumerate()
                {
                    assert_eq!(block["expert"], json!(expert));
                    assert_eq!(block["projection"], stem);
                    assert_eq!(number(&block["offset"]), end);
                    let stop = end + number(&block["stored_bytes"]);
                    end = stop.div_ceil(4096) * 4096;
                    assert!(bytes[stop..end].iter().all(|byte| *byte == 0));
                }
                assert_eq!((bytes.len(), number(&entry["size_bytes"])), (end, end));
            }
        }
    }
}

#[test]
fn the_folder_is_laid_out_as_the_document_says() {
    let fixture = Fixture::new();
    let root = fixture.store(1);
    let copied = ["LICENSE", "chat_template.jinja", "config.json", "tokenizer.json"];
    let of_store = [&copied[..3], &["dense", "layers", "manifest.json"], &copied[3..]].concat();
    assert_eq!(names(&root), of_store);
    assert_eq!(names(&root.join("layers")), ["01", "02"]);
    let manifest = read(root.join("manifest.json"));
    let listed: Vec<&str> =
        list(&manifest["files"]).iter().map(|file| text(&file["name"])).collect();
    assert_eq!(listed, copied);
    assert_eq!(manifest["tokenizer_sha256"], sha256(b"{}"));
    assert_eq!(manifest["model"]["revision"], "c0ffee");
    for entry in list(&manifest["layers"]) {
        let path = layer_folder(&root, number(&entry["layer"]) as u32).join("index.json");
        assert_eq!(entry["index_sha256"], sha256(&fs::read(path).unwrap()));
    }
    let unfinished = fixture.unfinished();
    assert!(names(&unfinished).contains(&"conversion.json".to_string()));
    assert!(!names(&unfinished).contains(&"convert.lock".to_string()));
    assert_eq!(
        read(unfinished.join("manifest.json"))["source"]["files"][0]["used_sha256"],
        json!(null)
    );
    let state = read(unfinished.join("conversion.json"));
    let stamped: Vec<&str> =
        list(&state["stamps"]).iter().map(|stamp| text(&stamp["name"])).collect();
    assert_eq!(stamped, ["config.json", SHARDS[0], SHARDS[1]]);
}

#[test]
fn dense_files_are_written_as_the_document_says() {
    let fixture = Fixture::new();
    let root = fixture.store(2);
    let entry = &read(root.join("manifest.json"))["dense"][0];
    assert_eq!(entry["name"], "model-00001-of-00001.safetensors");
    let bytes = fs::read(root.join("dense").join(text(&entry["name"]))).unwrap();
    let header_end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    assert_eq!(header_end % 8, 0);
    let header: Value = serde_json::from_slice(&bytes[8..header_end]).unwrap();
    assert_eq!(entry["sha256"], sha256(&bytes));
    assert_eq!(entry["xxh3"], xxh3(0, &bytes));
    assert_eq!(entry["header_sha256"], sha256(&bytes[..header_end]));
    let tensors = list(&entry["tensors"]);
    let canonical = |name: &str| name.replacen("model.language_model.", "model.", 1);
    let order: Vec<String> = tensors.iter().map(|t| canonical(text(&t["name"]))).collect();
    let expected = [
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.layers.10.input_layernorm.weight",
        "model.layers.2.mlp.gate.weight",
    ];
    assert_eq!(order, expected);
    assert_eq!(header.as_object().unwrap().len(), expected.len());
    let mut end = header_end;
    for tensor in tensors {
        let name = text(&tensor["name"]);
        let begin = end;
        end += fixture.bytes(name).len();
        let offsets = json!([begin - header_end, end - header_end]);
        assert_eq!(header[name]["data_offsets"], offsets);
        assert!(bytes[begin..end] == *fixture.bytes(name), "{name}");
        assert_eq!(tensor["sha256"], sha256(fixture.bytes(name)));
        let piece = &tensor["source"];
        let shard = fs::read(fixture.folder().join(text(&piece["file"]))).unwrap();
        let found = &shard[number(&piece["offset"])..][..number(&piece["size_bytes"])];
        assert!(found == fixture.bytes(name) && piece["tensor"] == tensor["name"], "{name}");
    }
    assert_eq!(end, bytes.len());
}

/// The text that begins a hash, as the table of recipes spells it.
fn domain(hash: &str) -> Vec<u8> {
    let rows = table("Hashes", "| hash |");
    let row = rows.iter().find(|row| row[0].replace('`', "") == hash).unwrap();
    quoted(&row[1]).replace("\\n", "\n").into_bytes()
}

fn unhex(digits: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

#[test]
fn the_hashes_follow_their_recipes() {
    let fixture = Fixture::new();
    let u64_bytes = |n: usize| (n as u64).to_le_bytes();
    let mut recipe = domain("fingerprint");
    recipe.extend(u64_bytes(CONFIG.len()));
    recipe.extend(CONFIG.as_bytes());
    recipe.extend(u64_bytes(SHARDS.len()));
    for name in SHARDS {
        let bytes = fs::read(fixture.folder().join(name)).unwrap();
        let header_end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        recipe.extend(u64_bytes(name.len()));
        recipe.extend(name.as_bytes());
        recipe.extend(u64_bytes(bytes.len()));
        recipe.extend(unhex(&sha256(&bytes[..header_end])));
    }
    let fingerprint = sha256(&recipe);
    for version in [1, 2] {
        let root = fixture.store(version);
        let manifest = read(root.join("manifest.json"));
        assert_eq!(manifest["source"]["fingerprint"], fingerprint[..]);
        let u64_version = u64_bytes(version as usize).to_vec();
        let recipe = [domain("conversion"), u64_version, unhex(&fingerprint)].concat();
        assert_eq!(manifest["conversion"], sha256(&recipe));
        for file in list(&manifest["source"]["files"]) {
            assert_eq!(text(&file["used_sha256"]), used(&root, &manifest, text(&file["name"])));
        }
    }
}

fn used(root: &Path, manifest: &Value, file: &str) -> String {
    let mut recipe = domain("used_sha256");
    for tensor in list(&manifest["dense"]).iter().flat_map(|dense| list(&dense["tensors"])) {
        if tensor["source"]["file"] == file {
            recipe.extend(unhex(text(&tensor["sha256"])));
        }
    }
    let mut split = 0;
    for layer in LAYERS {
        let index = read(layer_folder(root, layer).join("index.json"));
        for block in list(&index["blocks"]) {
            let pieces = list(&block["source"]);
            if pieces.iter().any(|piece| piece["file"] == file) {
                recipe.extend(unhex(text(&block["weights_sha256"])));
                split += usize::from(pieces.iter().any(|piece| piece["file"] != file));
            }
        }
    }
    assert_eq!(split, 1, "the block whose gate and up lie in two files");
    sha256(&recipe)
}

#[test]
fn the_code_accepts_what_the_reader_accepts() {
    let fixture = Fixture::new();
    for version in [1, 2] {
        let store = Store::open(&fixture.store(version)).unwrap();
        store.check_dense().unwrap();
        let go_on = &mut |_| ControlFlow::Continue(());
        let findings = verify_store(&store, Some(&fixture.open()), go_on).unwrap();
        assert_eq!(findings.differences, []);
    }
}
