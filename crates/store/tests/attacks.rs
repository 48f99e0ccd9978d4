//! A folder of attacks: each takes a small valid checkpoint, spoils one thing, and names the words
//! that the refusal must contain. Every attack is run twice: over the disk, and as embedded files.

#[path = "attacks/fixture.rs"]
mod fixture;

use std::fs;
use std::path::Path;

use fixture::{A, B, CONFIG, INDEX};
use fixture::{embed, entry, refusal, shard, spoil_b, write_header, write_index, write_valid};
use store::{Checkpoint, CheckpointError};

fn check(attack: impl Fn(&Path), expected: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    write_valid(folder.path());
    Checkpoint::open(folder.path()).expect("valid before the attack");
    embed(folder.path()).expect("valid before the attack, embedded");
    attack(folder.path());
    let message = refusal(folder.path());
    for words in expected {
        assert!(message.contains(words), "no {words:?} in: {message}");
    }
}

#[test]
fn files_that_are_not_there() {
    check(|d| fs::remove_file(d.join(CONFIG)).unwrap(), &["no config.json", "download"]);
    check(|d| fs::remove_file(d.join(B)).unwrap(), &[B, "shard is missing", "index.json names it"]);
    check(
        |d| [A, B, INDEX].iter().for_each(|name| fs::remove_file(d.join(name)).unwrap()),
        &["no weights here", "GGUF"],
    );
    check(
        |d| fs::write(d.join("model.safetensors"), shard(&[("d", &[1])])).unwrap(),
        &["model.safetensors", "not named by", "move it away"],
    );
    check(
        |d| {
            [A, B].iter().for_each(|name| fs::remove_file(d.join(name)).unwrap());
            write_index(d, &[]);
        },
        &["no weights here"],
    );
}

#[test]
fn json_that_is_not() {
    check(
        |d| fs::write(d.join(CONFIG), "{\n\"a\": 1,\n}").unwrap(),
        &["config.json, line 3", "bad JSON"],
    );
    check(|d| fs::write(d.join(CONFIG), "").unwrap(), &["config.json", "bad JSON", "EOF"]);
    check(|d| fs::write(d.join(CONFIG), "[]").unwrap(), &["config.json", "expected an object"]);
    check(|d| fs::write(d.join(INDEX), "{}").unwrap(), &[INDEX, "missing field `weight_map`"]);
    check(|d| fs::write(d.join(INDEX), "").unwrap(), &[INDEX, "line 1", "bad JSON"]);
    check(
        |d| write_index(d, &[("a", A), ("b", A), ("c", B), ("a", B)]),
        &[INDEX, "line 5", "tensor a is listed twice"],
    );
}

#[test]
fn an_index_that_disagrees() {
    check(
        |d| write_index(d, &[("a", A), ("b", A), ("c", B), ("x", B)]),
        &["tensor x: the index places it in", B, "does not hold it"],
    );
    check(
        |d| write_index(d, &[("a", A), ("b", B), ("c", B)]),
        &["tensor b", B, "does not hold it"],
    );
    check(|d| write_index(d, &[("a", A), ("c", B)]), &["tensor b", A, "index does not name it"]);
    check(
        |d| fs::write(d.join(B), shard(&[("c", &[1]), ("a", &[2, 3])])).unwrap(),
        &["tensor a: held twice", A, B],
    );
    check(
        |d| write_index(d, &[("a", A), ("b", A), ("c", "../c.safetensors")]),
        &["`../c.safetensors`", "not a plain *.safetensors file name"],
    );
    check(|d| write_index(d, &[("a", A), ("b", A), ("c", "/etc/passwd")]), &["`/etc/passwd`"]);
    check(|d| write_index(d, &[("a", A), ("b", A), ("c", "")]), &["a shard ``"]);
}

#[test]
fn one_tensor_under_two_names_or_in_two_files() {
    check(
        |d| {
            let wrapped = "model.language_model.norm.weight";
            let both = shard(&[("model.norm.weight", &[1]), (wrapped, &[1])]);
            fs::write(d.join(B), both).unwrap();
            write_index(d, &[("a", A), ("b", A), ("model.norm.weight", B), (wrapped, B)]);
        },
        &["norm.weight: held twice"],
    );
    check(
        |d| {
            fs::remove_file(d.join(INDEX)).unwrap();
            fs::copy(d.join(A), d.join("copy.safetensors")).unwrap();
        },
        &["held twice", "copy.safetensors", A],
    );
}

#[test]
fn files_that_are_too_short_or_too_long() {
    check(|d| fs::write(d.join(B), "").unwrap(), &[B, "expected 8 bytes, found 0"]);
    check(|d| fs::write(d.join(B), [9, 0, 0]).unwrap(), &[B, "expected 8 bytes, found 3"]);
    check(|d| fs::write(d.join(B), 9u64.to_le_bytes()).unwrap(), &["expected 17 bytes, found 8"]);
    let whole = shard(&[("c", &[1])]);
    for cut in 1..whole.len() {
        let cut = &whole[..whole.len() - cut];
        check(|d| fs::write(d.join(B), cut).unwrap(), &[B, "truncated", "download it again"]);
    }
    let longer = [&whole[..], b"x"].concat();
    check(|d| fs::write(d.join(B), &longer).unwrap(), &[B, "its tensors end at byte"]);
}

#[test]
fn header_lengths_that_lie() {
    for length in [u64::MAX, u64::MAX - 7, 1 << 63, 100_000_001] {
        let says = format!("its length field says {length} bytes");
        check(|d| fs::write(d.join(B), length.to_le_bytes()).unwrap(), &[B, &says]);
    }
    check(
        |d| fs::write(d.join(B), 100_000_000u64.to_le_bytes()).unwrap(),
        &["truncated: expected 100000008 bytes, found 8"],
    );
    check(|d| fs::write(d.join(B), 0u64.to_le_bytes()).unwrap(), &[B, "not JSON", "EOF"]);
}

#[test]
fn headers_that_are_not_headers() {
    let not_json = |header: &str, reason: &str| {
        check(|d| write_header(&d.join(B), header, 2), &[B, "not JSON of the right form", reason]);
    };
    not_json("{", "EOF");
    not_json("[]", "an object of tensors");
    not_json("{} {}", "trailing");
    not_json(&"[".repeat(100_000), "an object of tensors");
    not_json(&format!(r#"{{"c":{}"#, "[".repeat(100_000)), "tensor c: ");
    not_json(&format!(r#"{{"c":{{"x":{}"#, "[".repeat(100_000)), "tensor c: EOF");
    not_json(r#"{"c":{"dtype":"BF17","shape":[1],"data_offsets":[0,2]}}"#, "tensor c: unknown");
    not_json(r#"{"c":{"dtype":"BF16","shape":[-1],"data_offsets":[0,2]}}"#, "tensor c: invalid");
    not_json(r#"{"c":{"dtype":"BF16","shape":[1],"data_offsets":[0]}}"#, "tensor c: invalid");
    not_json(r#"{"c":{"dtype":"BF16","shape":[1],"data_offsets":[0,1,2]}}"#, "tensor c: ");
    not_json(r#"{"c":{"dtype":"BF16","shape":[1],"data_offsets":[0,2.0]}}"#, "tensor c: invalid");
    not_json(r#"{"c":{"dtype":"BF16","shape":[1]}}"#, "tensor c: missing field");
    not_json(r#"{"c":{"dtype":"F32","dtype":"BF16"}}"#, "tensor c: duplicate field");
    not_json(r#"{"__metadata__":{"format":1}}"#, "invalid type");
    check(
        |d| {
            let header = [b"\x04\0\0\0\0\0\0\0{\"", &[0xff, 0xfe][..]].concat();
            fs::write(d.join(B), header).unwrap();
        },
        &[B, "not JSON"],
    );
}

#[test]
fn a_name_listed_twice_in_a_header() {
    let twice = [entry("c", "[1]", 0, 2), entry("c", "[1]", 2, 4)];
    check(|d| spoil_b(d, &twice, 4), &[B, "tensor c is listed twice"]);
    // the same range twice: a parser that keeps the last one would see nothing wrong
    let same = [entry("c", "[1]", 0, 2), entry("c", "[1]", 0, 2)];
    check(|d| spoil_b(d, &same, 2), &[B, "tensor c is listed twice"]);
}

#[test]
fn ranges_that_overlap_or_leave_holes() {
    let c = || entry("c", "[1]", 0, 2);
    check(|d| spoil_b(d, &[c(), entry("d", "[1]", 1, 3)], 3), &[B, "tensor d begins at 1", "over"]);
    check(|d| spoil_b(d, &[c(), entry("d", "[1]", 0, 2)], 2), &[B, "begins at 0 and overlaps"]);
    check(
        |d| spoil_b(d, &[c(), entry("d", "[1]", 4, 6)], 6),
        &["a hole before tensor d: expected at 2, found at 4"],
    );
    check(|d| spoil_b(d, &[entry("c", "[1]", 2, 4)], 4), &["a hole before tensor c"]);
    check(|d| spoil_b(d, &[c()], 4), &["its tensors end at byte", "the file at"]);
    check(|d| spoil_b(d, &[entry("c", "[1]", 2, 0)], 2), &["begins at 2 and ends before that"]);
    check(|d| write_header(&d.join(B), "{}", 2), &["its tensors end at byte 10, the file at 12"]);
}

#[test]
fn shapes_that_lie() {
    check(|d| spoil_b(d, &[entry("c", "[2]", 0, 2)], 2), &["need 4 bytes, its range has 2"]);
    check(|d| spoil_b(d, &[entry("c", "[0]", 0, 2)], 2), &["need 0 bytes, its range has 2"]);
    check(|d| spoil_b(d, &[entry("c", "[]", 0, 4)], 4), &["need 2 bytes, its range has 4"]);
    let overflow = "[4294967296,4294967296,4]";
    check(
        |d| spoil_b(d, &[entry("c", overflow, 0, 2)], 2),
        &["tensor c: the size of shape", "over"],
    );
    // 2^63 elements fit, their bits do not
    check(|d| spoil_b(d, &[entry("c", "[9223372036854775808]", 0, 2)], 2), &["overflows"]);
    check(|d| spoil_b(d, &[entry("c", "[18446744073709551616]", 0, 2)], 2), &["tensor c: invalid"]);
}

/// Ranges that are consistent with each other and end so close to 2^64 that the length of the
/// header on top overflows. safetensors 0.8 adds them unchecked: a debug build of it panics.
#[test]
fn ranges_that_end_at_the_edge_of_the_address_space() {
    let step = 1u64 << 60; // the bits of each range fit in 64, the sum of the ranges barely
    let ends = (1..=16).map(|i| if i == 16 { u64::MAX - 1 } else { i * step });
    let mut begin = 0;
    let mut entries = Vec::new();
    for (i, end) in ends.enumerate() {
        entries.push(entry(&format!("t{i}"), &format!("[{}]", (end - begin) / 2), begin, end));
        begin = end;
    }
    check(|d| spoil_b(d, &entries, 64), &[B, "tensor t15 ends at 18446744073709551614, beyond"]);
}

#[test]
fn a_path_that_is_not_a_folder() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let message = Checkpoint::open(file.path()).unwrap_err().to_string();
    assert!(message.contains("not a folder; give the folder"), "{message}");
    let absent = Checkpoint::open(Path::new("/absent/checkpoint")).unwrap_err();
    assert!(matches!(absent, CheckpointError::NotADirectory { .. }));
}

#[cfg(unix)]
#[test]
fn links_that_lead_nowhere_and_folders_named_like_shards() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    write_valid(dir);
    fs::remove_file(dir.join(INDEX)).unwrap();
    std::os::unix::fs::symlink("/absent", dir.join("z.safetensors")).unwrap();
    let message = Checkpoint::open(dir).unwrap_err().to_string();
    assert!(message.contains("missing, a broken link names it"), "{message}");
    fs::remove_file(dir.join("z.safetensors")).unwrap();
    fs::create_dir(dir.join("z.safetensors")).unwrap();
    assert!(matches!(Checkpoint::open(dir), Err(CheckpointError::Io { .. })));
}
