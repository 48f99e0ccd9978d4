//! Each rule is shown what it must reject and what it must let pass.

use super::finding::Severity;
use super::table::{FILE_LINES_MAX, FILE_LINES_WARN, FORWARD_LINES_MAX, FUNCTION_LINES_MAX};
use super::tree::{File, Tree};
use super::{Finding, check};
use std::path::Path;

fn findings(files: &[(&str, &str)]) -> Vec<Finding> {
    let files =
        files.iter().map(|(path, text)| File { path: (*path).into(), text: (*text).into() });
    check(&Tree { files: files.collect() })
}

/// Checks that exactly the rules in `expected` ("rule:line") fire on one file.
#[track_caller]
fn expect(path: &str, text: &str, expected: &[&str]) {
    expect_tree(&[(path, text)], expected);
}

#[track_caller]
fn expect_tree(files: &[(&str, &str)], expected: &[&str]) {
    let found: Vec<String> =
        findings(files).iter().map(|f| format!("{}:{}", f.rule, f.line)).collect();
    assert_eq!(found, expected, "{files:?}");
}

const ENGINE: &str = "crates/engine/src/a.rs";
const NUMERICS: &str = "crates/numerics/src/a.rs";

#[test]
fn lengths() {
    let lines = |count: usize| "const A: u8 = 1;\n".repeat(count);
    expect(ENGINE, &lines(FILE_LINES_WARN), &[]);
    let warned = findings(&[(ENGINE, &lines(FILE_LINES_WARN + 1))]);
    assert_eq!(warned[0].severity, Severity::Warning);
    let failed = findings(&[(ENGINE, &lines(FILE_LINES_MAX + 1))]);
    assert_eq!((failed[0].rule, failed[0].severity), ("file-length", Severity::Error));
    expect("NUMERICS.md", &lines(FILE_LINES_MAX + 1), &[]);

    let forward = "crates/engine/src/model/forward.rs";
    expect(forward, &lines(FORWARD_LINES_MAX), &[]);
    expect(forward, &lines(FORWARD_LINES_MAX + 1), &["forward-length:151"]);

    let body = |count: usize| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(count));
    expect(ENGINE, &body(FUNCTION_LINES_MAX - 2), &[]);
    expect(ENGINE, &body(FUNCTION_LINES_MAX - 1), &["function-length:1"]);
    let method = format!("impl A {{\n/// doc\n{}}}\n", body(FUNCTION_LINES_MAX));
    expect(ENGINE, &method, &["function-length:3"]);
    let braces = "fn f() {\n    g(\"}\"); // }\n    h('}');\n}\n";
    expect(ENGINE, braces, &[]);
}

#[test]
fn widths() {
    let comment = |columns: usize| format!("//{}\n", "é".repeat(columns - 2));
    expect(ENGINE, &comment(100), &[]);
    expect(ENGINE, &comment(101), &["line-width:1"]);
    expect("README.md", &"x".repeat(200), &["test-command:1"]);
}

#[test]
fn words() {
    let note = concat!("// TO", "DO later\n");
    expect(ENGINE, note, &["unfinished:1"]);
    expect(ENGINE, concat!("// TO", "DOS is a word\n"), &[]);
    expect("bench/a.py", concat!("# FIX", "ME\n"), &["unfinished:1"]);
    expect("A.md", concat!("see /ho", "me/someone\n"), &["machine-path:1"]);
    expect("A.md", concat!("`/t", "mp/x`\n"), &["machine-path:1"]);
    expect("A.md", concat!("https://x.org/ro", "ot and ./wo", "rk and /wo", "rkspace\n"), &[]);
}

#[test]
fn fast_math() {
    let flags = concat!("[build]\nrustflags = [\"-Cllvm-args=--fast-", "math\"]\n");
    expect(".cargo/config.toml", flags, &["fast-math:2"]);
    expect("crates/numerics/src/a.rs", concat!("// no fast-", "math here\n"), &[]);
    expect("build.sh", concat!("cc -O", "fast\n"), &["fast-math:1"]);
}

#[test]
fn unsafe_code() {
    let block = "fn f() {\n    // SAFETY: the caller holds the mapping\n    unsafe { g() }\n}\n";
    expect(NUMERICS, block, &[]);
    expect("crates/store/src/io/uring.rs", block, &[]);
    expect("crates/store/src/pack.rs", block, &["unsafe-home:3"]);
    expect(ENGINE, block, &["unsafe-home:3"]);
    expect(NUMERICS, "fn f() {\n    unsafe { g() }\n}\n", &["safety-comment:2"]);
    expect(NUMERICS, "fn f() {\n    // fast\n    unsafe { g() }\n}\n", &["safety-comment:3"]);
    let statement = "fn f() {\n    // SAFETY: ok\n    let x =\n        h(unsafe { g() });\n}\n";
    expect(NUMERICS, statement, &[]);
    let second = "fn f() {\n    // SAFETY: ok\n    unsafe { g() };\n    unsafe { g() };\n}\n";
    expect(NUMERICS, second, &["safety-comment:4"]);
    expect(NUMERICS, "unsafe impl Send for A {}\n", &["safety-comment:1"]);
    expect(NUMERICS, "unsafe fn f() {}\n", &[]);
    let in_macro = "macro_rules! m {\n    () => {\n        unsafe { g() }\n    };\n}\n";
    expect(NUMERICS, in_macro, &["safety-comment:3"]);
    expect(ENGINE, "// unsafe\nconst A: &str = \"unsafe { }\";\n", &[]);
    let forbidden = "#![forbid(unsafe_code)]\n";
    expect("crates/engine/src/lib.rs", forbidden, &[]);
    expect("crates/engine/src/lib.rs", "//! Docs.\n", &["forbid-unsafe:1"]);
    expect("crates/cli/src/main.rs", "fn main() {}\n", &["forbid-unsafe:1"]);
}

#[test]
fn rust_names() {
    expect(ENGINE, "enum E {\n    Msg(String),\n}\n", &["prose-error:2"]);
    expect(ENGINE, "enum LoadError {\n    Other(&'static str),\n}\n", &["prose-error:2"]);
    expect(ENGINE, "#[derive(Error)]\nenum E {\n    Text(String),\n}\n", &["prose-error:3"]);
    expect(ENGINE, "enum Value {\n    Text(String),\n}\n", &[]);
    expect(ENGINE, "enum E {\n    Shape { tensor: String },\n    Other(u8),\n}\n", &[]);
    expect(ENGINE, "mod helpers {}\n", &["vague-name:1"]);
    expect("crates/engine/src/utils.rs", "", &["vague-name:1"]);
    expect("crates/engine/src/common/x.rs", "", &["vague-name:1"]);
    expect(ENGINE, "fn f() { assert_close(a, b) }\n", &["tolerance:1"]);
    expect(ENGINE, "fn f() { check!(allclose(a, b)) }\n", &["tolerance:1"]);
    expect("crates/lab/src/golden.rs", "fn allclose() {}\n", &[]);
    expect(ENGINE, "fn f( {\n", &["parse:1", "parse:1"]);
}

#[test]
fn attributes() {
    expect(ENGINE, "#[cfg(feature = \"cuda\")]\nfn f() {}\n", &["cfg-feature:1"]);
    expect(ENGINE, "#[cfg_attr(all(feature = \"x\"), inline)]\nfn f() {}\n", &["cfg-feature:1"]);
    expect(ENGINE, "fn f() -> bool { cfg!(feature = \"x\") }\n", &["cfg-feature:1"]);
    expect(ENGINE, "#[target_feature(enable = \"avx2\")]\nfn f() {}\n", &[]);
    expect(ENGINE, "#[cfg(target_feature = \"avx2\")]\nfn f() {}\n", &[]);
    expect(ENGINE, "#[test]\n#[ignore]\nfn f() {}\n", &["ignore-reason:2"]);
    expect(ENGINE, "#[test]\n#[ignore = \"ten minutes\"]\nfn f() {}\n", &[]);
}

#[test]
fn tiers_do_not_know_the_model() {
    let tiers = "crates/engine/src/tiers/plan.rs";
    expect(tiers, "use crate::model::Layer;\n", &["tiers-know-model:1"]);
    expect(tiers, "use super::super::model;\n", &["tiers-know-model:1"]);
    expect(tiers, "use crate::{counters, model::Layer};\n", &["tiers-know-model:1"]);
    expect(tiers, "fn f() { crate::model::g() }\n", &["tiers-know-model:1"]);
    expect(tiers, "use crate::counters::model_bytes;\n", &[]);
    expect("crates/engine/src/generate.rs", "use crate::model::Layer;\n", &[]);
}

#[test]
fn operation_stems() {
    let cpu = "crates/numerics/src/cpu/matvec.rs";
    expect(cpu, "", &["op-stem:1"]);
    expect_tree(&[(cpu, ""), ("crates/numerics/src/op/matvec.rs", "")], &[]);
    expect("crates/numerics/src/cpu/lanes_avx2.rs", "", &[]);
    expect("crates/numerics/src/cuda/matvec.cu", "", &["op-stem:1"]);
}

#[test]
fn manifests() {
    let with = |dependencies: &str| {
        format!("[package]\nname = \"x\"\n[lints]\nworkspace = true\n{dependencies}")
    };
    let expect_manifest = |folder: &str, dependencies: &str, expected: &[&str]| {
        expect(&format!("{folder}/Cargo.toml"), &with(dependencies), expected);
    };
    expect_manifest("crates/engine", "[dependencies]\nstore.workspace = true\n", &[]);
    expect_manifest("crates/store", "[dependencies]\nnumerics.workspace = true\n", &["fence:6"]);
    expect_manifest("crates/engine", "[dev-dependencies]\nlab.workspace = true\n", &["fence:6"]);
    expect_manifest("crates/server", "[dependencies]\nstore.workspace = true\n", &["fence:6"]);
    let renamed = "[target.'cfg(unix)'.dependencies]\ns = { package = \"store\", path = \"\" }\n";
    expect_manifest("crates/numerics", renamed, &["fence:6"]);
    expect_manifest("crates/store", "[dependencies]\nanyhow = \"1\"\n", &["anyhow:6"]);
    expect_manifest("crates/cli", "[dependencies]\nanyhow = \"1\"\n", &[]);
    expect_manifest("crates/cli", "[dependencies]\napprox = \"1\"\n", &["tolerance:6"]);
    expect_manifest("crates/new", "", &["fence:1"]);
    expect("crates/store/Cargo.toml", "[package]\nname = \"store\"\n", &["lints:1"]);
    expect("Cargo.toml", "[workspace]\nmembers = []\n", &[]);
    expect("crates/store/Cargo.toml", "[package\n", &["parse:1"]);
}

#[test]
fn documents() {
    expect("A.md", "[b](B.md) and [c](https://c.org) and [d](#d)\n", &["dead-link:1"]);
    expect_tree(&[("A.md", "[b](docs/B.md#x)\n"), ("docs/B.md", "[a](../A.md)\n")], &[]);
    let store = ("crates/store/Cargo.toml", "[package]\n[lints]\nworkspace = true\n");
    let row = |cells: &'static str| [("ARCHITECTURE.md", cells), store];
    expect_tree(&row("| `store` | no other crate | floats |\n"), &[]);
    expect_tree(&row("| `store` | `numerics` | floats |\n"), &["fence-table:1"]);
    expect_tree(&row("# Nothing\n"), &["fence-table:1"]);
    let ledger = |rows: &str| {
        format!("| date | change | prediction | measurement | verdict |\n|---|\n{rows}")
    };
    expect("EXACTNESS.md", &ledger(""), &[]);
    expect("EXACTNESS.md", &ledger("| a | b | c | d | e |\n"), &[]);
    expect("EXACTNESS.md", &ledger("| a | b | c | | e |\n"), &["ledger:3"]);
    expect("EXACTNESS.md", "# No ledger\n", &["ledger:1"]);
    expect("README.md", "```\ncargo test --workspace --release\n```\n", &[]);
    expect("README.md", "no command\n", &["test-command:1"]);
    let limits = format!(
        "Files up to {FILE_LINES_MAX} lines (a warning above {FILE_LINES_WARN}), functions up to\n\
         {FUNCTION_LINES_MAX}, 100 columns, `model/forward.rs` up to {FORWARD_LINES_MAX} lines.\n"
    );
    expect("CONTRIBUTING.md", &limits, &[]);
    expect("CONTRIBUTING.md", &limits.replace("to\n70", "to 80"), &["limits:1"]);
}

#[test]
fn this_workspace_is_read_without_its_products() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tree = Tree::read(&root).expect("the workspace is readable");
    assert!(tree.get("Cargo.toml").is_some());
    assert!(tree.files.iter().all(|file| !file.path.starts_with("target/")));
}
