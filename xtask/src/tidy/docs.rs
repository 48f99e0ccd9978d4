//! Rules on the documents: their tables agree with the code, their links lead somewhere.

use super::finding::Finding;
use super::table::{
    FENCES, FILE_LINES_MAX, FILE_LINES_WARN, FORWARD_LINES_MAX, FUNCTION_LINES_MAX,
    LINE_COLUMNS_MAX,
};
use super::tree::{File, Tree};

const LEDGER_HEADER: &str = "| date | change | prediction | measurement | verdict |";

pub fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files.iter().filter(|file| file.extension() == "md") {
        links(tree, file, findings);
    }
    if let Some(file) = tree.get("ARCHITECTURE.md") {
        fence_table(tree, file, findings);
    }
    if let Some(file) = tree.get("CONTRIBUTING.md") {
        limits(file, findings);
    }
    if let Some(file) = tree.get("EXACTNESS.md") {
        ledger(file, findings);
    }
    if let Some(file) = tree.get("README.md") {
        test_command(file, findings);
    }
}

/// A relative link names a file or folder of the tree. Data files are not in the tree.
fn links(tree: &Tree, file: &File, findings: &mut Vec<Finding>) {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    for (number, line) in file.lines() {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            if target.is_empty() || target.contains(':') || !is_checked(target) {
                continue;
            }
            let path = resolve(folder, target);
            if tree.get(&path).is_none() && !is_folder(tree, &path) {
                let message = format!("`{target}` does not exist");
                findings.push(Finding::error(&file.path, number, "dead-link", message));
            }
        }
    }
}

fn is_checked(target: &str) -> bool {
    let name = target.trim_end_matches('/').rsplit('/').next().unwrap_or(target);
    !name.contains('.') || [".md", ".rs", ".py", ".toml", ".sh"].iter().any(|e| name.ends_with(e))
}

fn is_folder(tree: &Tree, path: &str) -> bool {
    let prefix = format!("{path}/");
    tree.files.iter().any(|file| file.path.starts_with(&prefix))
}

/// `folder/target` without `.` and `..`.
fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(target.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// Rows "| `crate` | what it may know | ..." repeat the fences, one for every crate that exists.
fn fence_table(tree: &Tree, file: &File, findings: &mut Vec<Finding>) {
    for fence in FENCES {
        let name = format!("`{}`", fence.package);
        let row = file.lines().find(|(_, line)| cells(line).first() == Some(&name.as_str()));
        let expected = if fence.may_know.is_empty() {
            "no other crate".to_owned()
        } else {
            fence.may_know.iter().map(|known| format!("`{known}`")).collect::<Vec<_>>().join(", ")
        };
        match row {
            Some((number, line)) if cells(line).get(1) != Some(&expected.as_str()) => {
                let message = format!("{name} may know {expected}");
                findings.push(Finding::error(&file.path, number, "fence-table", message));
            }
            None if tree.get(&format!("{}/Cargo.toml", fence.folder)).is_some() => {
                let message = format!("no row for {name}");
                findings.push(Finding::error(&file.path, 1, "fence-table", message));
            }
            Some(_) | None => {}
        }
    }
}

/// The limits that contributors read are the ones that tidy enforces.
fn limits(file: &File, findings: &mut Vec<Finding>) {
    let phrases = [
        format!("Files up to {FILE_LINES_MAX} lines"),
        format!("a warning above {FILE_LINES_WARN}"),
        format!("functions up to {FUNCTION_LINES_MAX}"),
        format!("{LINE_COLUMNS_MAX} columns"),
        format!("`model/forward.rs` up to {FORWARD_LINES_MAX} lines"),
    ];
    let text = file.text.split_whitespace().collect::<Vec<_>>().join(" ");
    for phrase in phrases.iter().filter(|phrase| !text.contains(*phrase)) {
        let message = format!("must say \"{phrase}\"");
        findings.push(Finding::error(&file.path, 1, "limits", message));
    }
}

/// Every row of the ledger fills every column: a prediction without a verdict is no entry.
fn ledger(file: &File, findings: &mut Vec<Finding>) {
    let mut rows = file.lines().skip_while(|(_, line)| *line != LEDGER_HEADER).peekable();
    if rows.peek().is_none() {
        let message = format!("no ledger: `{LEDGER_HEADER}`");
        findings.push(Finding::error(&file.path, 1, "ledger", message));
    }
    for (number, line) in rows.skip(2).take_while(|(_, line)| line.starts_with('|')) {
        let row = cells(line);
        if row.len() != 5 || row.iter().any(|cell| cell.is_empty()) {
            let message = "fill date, change, prediction, measurement and verdict".to_owned();
            findings.push(Finding::error(&file.path, number, "ledger", message));
        }
    }
}

fn cells(row: &str) -> Vec<&str> {
    let inner = row.strip_prefix('|').and_then(|row| row.trim_end().strip_suffix('|'));
    inner.map_or(Vec::new(), |inner| inner.split('|').map(str::trim).collect())
}

/// `.ci/run` runs the README's own test command, so there must be exactly one.
fn test_command(file: &File, findings: &mut Vec<Finding>) {
    let count = file.lines().filter(|(_, line)| line.starts_with("cargo test")).count();
    if count != 1 {
        let message = format!("{count} lines begin with `cargo test`, there must be one");
        findings.push(Finding::error(&file.path, 1, "test-command", message));
    }
}
