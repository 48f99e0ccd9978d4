//! Rules on `Cargo.toml`: who may know whom.

use super::finding::Finding;
use super::table::{FENCES, Fence, TOLERANCE_CRATES};
use super::tree::{File, Tree};
use toml::{Table, Value};

const DEPENDENCY_TABLES: &[&str] = &["dependencies", "dev-dependencies", "build-dependencies"];

pub fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files.iter().filter(|file| file.name() == "Cargo.toml") {
        match file.text.parse::<Table>() {
            Ok(manifest) if manifest.contains_key("package") => {
                member(file, &manifest, findings);
            }
            Ok(_) => {}
            Err(error) => {
                let message = error.message().to_owned();
                findings.push(Finding::error(&file.path, 1, "parse", message));
            }
        }
    }
}

fn member(file: &File, manifest: &Table, findings: &mut Vec<Finding>) {
    let inherits = manifest.get("lints").and_then(|lints| lints.get("workspace"));
    if inherits != Some(&Value::Boolean(true)) {
        let message = "needs `[lints] workspace = true`".to_owned();
        findings.push(Finding::error(&file.path, 1, "lints", message));
    }
    let folder = file.path.trim_end_matches("Cargo.toml").trim_end_matches('/');
    let Some(fence) = FENCES.iter().find(|fence| fence.folder == folder) else {
        let message = format!("no fence for `{folder}` in xtask/src/tidy/table.rs");
        findings.push(Finding::error(&file.path, 1, "fence", message));
        return;
    };
    for name in dependencies(manifest) {
        if let Some((rule, message)) = objection(fence, &name) {
            findings.push(Finding::error(&file.path, line_of(&file.text, &name), rule, message));
        }
    }
}

fn objection(fence: &Fence, name: &str) -> Option<(&'static str, String)> {
    let package = fence.package;
    let ours = FENCES.iter().any(|other| other.package == name);
    if ours && !fence.may_know.contains(&name) {
        return Some(("fence", format!("`{package}` must not know `{name}`")));
    }
    if name == "anyhow" && !fence.may_use_anyhow {
        return Some(("anyhow", format!("`{package}` has typed errors, not anyhow")));
    }
    if TOLERANCE_CRATES.contains(&name) {
        return Some(("tolerance", format!("`{name}`: bits are compared with `to_bits`")));
    }
    None
}

/// Package names of all dependencies, those of `[target.*]` included.
fn dependencies(manifest: &Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let per_target = targets.into_iter().flat_map(|targets| targets.values());
    let tables = std::iter::once(manifest).chain(per_target.filter_map(Value::as_table));
    tables
        .flat_map(|table| DEPENDENCY_TABLES.iter().filter_map(|name| table.get(*name)))
        .filter_map(Value::as_table)
        .flat_map(|entries| entries.iter().map(|(key, value)| package_of(key, value)))
        .collect()
}

/// `package = "..."` renames a dependency; without it the key is the name.
fn package_of(key: &str, value: &Value) -> String {
    value.get("package").and_then(Value::as_str).unwrap_or(key).to_owned()
}

/// The first line that begins with the dependency, else the first that names it.
fn line_of(text: &str, name: &str) -> usize {
    let position = |found: &dyn Fn(&str) -> bool| text.lines().position(found);
    position(&|line: &str| line.starts_with(name))
        .or_else(|| position(&|line: &str| line.contains(name)))
        .map_or(1, |index| index + 1)
}
