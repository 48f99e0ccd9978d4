//! `cargo xtask tidy`: the countable rules of the house, each with a test of its own.

mod docs;
mod finding;
mod layout;
mod lines;
mod manifests;
mod syntax;
mod table;
mod tokens;
mod tree;

#[cfg(test)]
mod tests;

use anyhow::Result;
use finding::{Finding, Severity};
use std::path::Path;
use tree::Tree;

/// Checks the tree under `root` and prints every finding; true if none of them is an error.
pub fn run(root: &Path) -> Result<bool> {
    let tree = Tree::read(root)?;
    let findings = check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|f| f.severity == Severity::Error).count();
    println!(
        "tidy: {} files, {errors} errors, {} warnings",
        tree.files.len(),
        findings.len() - errors
    );
    Ok(errors == 0)
}

/// Every finding of every rule, in the order of the files.
fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        lines::check(file, &mut findings);
        if file.is_rust() {
            tokens::check(file, &mut findings);
            syntax::check(file, &mut findings);
        }
    }
    layout::check(tree, &mut findings);
    manifests::check(tree, &mut findings);
    docs::check(tree, &mut findings);
    findings.sort_by(|a, b| (&a.path, a.line, a.rule).cmp(&(&b.path, b.line, b.rule)));
    findings
}
