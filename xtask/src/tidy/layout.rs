//! Rules on where files are and what they are called.

use super::finding::Finding;
use super::table::{FORBIDDEN_NAMES, NUMERICS_INFRASTRUCTURE};
use super::tree::{File, Tree};
use std::collections::BTreeSet;

const NUMERICS: &str = "crates/numerics/src/";

pub fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files.iter().filter(|file| file.is_source()) {
        vague_name(file, findings);
    }
    operation_stems(tree, findings);
}

/// True if a file, folder or module of this name says nothing about its content.
pub fn forbidden_name(name: &str) -> bool {
    FORBIDDEN_NAMES.contains(&name)
}

fn vague_name(file: &File, findings: &mut Vec<Finding>) {
    for part in file.path.split('/') {
        let stem = part.split('.').next().unwrap_or(part);
        if forbidden_name(stem) {
            let message = format!("`{part}`: name it after what it does");
            findings.push(Finding::error(&file.path, 1, "vague-name", message));
        }
    }
}

/// One op, one stem: a file in `cpu/` or `cuda/` implements a contract in `op/`, or is listed.
fn operation_stems(tree: &Tree, findings: &mut Vec<Finding>) {
    let contracts: BTreeSet<&str> =
        tree.files.iter().filter_map(|file| stem_in(&file.path, "op")).collect();
    for file in &tree.files {
        let stem = stem_in(&file.path, "cpu").or_else(|| stem_in(&file.path, "cuda"));
        let Some(stem) = stem else { continue };
        let listed = NUMERICS_INFRASTRUCTURE.iter().any(|(name, _)| *name == stem);
        if !listed && !contracts.contains(stem) {
            let message = format!("no contract `{NUMERICS}op/{stem}.rs` for `{stem}`");
            findings.push(Finding::error(&file.path, 1, "op-stem", message));
        }
    }
}

/// `matvec` for `crates/numerics/src/<folder>/matvec.rs` and `.../<folder>/matvec/avx2.rs`.
fn stem_in<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    let below = path.strip_prefix(NUMERICS)?.strip_prefix(folder)?.strip_prefix('/')?;
    below.split(['/', '.']).next()
}
