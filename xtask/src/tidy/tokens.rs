//! Rules on the token stream: they see inside macros, and never inside strings or comments.

use super::finding::Finding;
use super::table::{TOLERANCE_HOME, TOLERANCE_NAMES, UNSAFE_HOMES};
use super::tree::File;
use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};

pub fn check(file: &File, findings: &mut Vec<Finding>) {
    match file.text.parse::<TokenStream>() {
        Ok(stream) => walk(file, stream, findings),
        Err(error) => {
            let line = error.span().start().line;
            findings.push(Finding::error(&file.path, line, "parse", error.to_string()));
        }
    }
}

fn walk(file: &File, stream: TokenStream, findings: &mut Vec<Finding>) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    for (index, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Ident(ident) => {
                ident_rules(file, ident, &trees[..index], &trees[index + 1..], findings)
            }
            TokenTree::Group(group) => walk(file, group.stream(), findings),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

fn ident_rules(
    file: &File,
    ident: &Ident,
    before: &[TokenTree],
    after: &[TokenTree],
    findings: &mut Vec<Finding>,
) {
    let name = ident.to_string();
    let line = ident.span().start().line;
    let mut report = |rule, message| findings.push(Finding::error(&file.path, line, rule, message));
    if name == "unsafe" {
        if !UNSAFE_HOMES.iter().any(|home| file.path.starts_with(home)) {
            report("unsafe-home", format!("unsafe outside {}", UNSAFE_HOMES.join(", ")));
        }
        if needs_safety_comment(after) && !has_safety_comment(&file.text, line) {
            report("safety-comment", "no `// SAFETY:` comment directly above".to_owned());
        }
    }
    if matches!(name.as_str(), "cfg" | "cfg_attr") && names_feature(after) {
        report("cfg-feature", "features are not used: decide at run time".to_owned());
    }
    if TOLERANCE_NAMES.contains(&name.as_str()) && !file.path.starts_with(TOLERANCE_HOME) {
        report("tolerance", format!("`{name}`: bits are compared with `to_bits`"));
    }
    if name == "model" && file.path.contains("/tiers") && follows_crate_or_super(before) {
        report("tiers-know-model", "`tiers` moves opaque bytes and never names `model`".to_owned());
    }
}

/// Blocks and impls explain themselves above; `unsafe fn` does it in its `# Safety` section.
fn needs_safety_comment(after: &[TokenTree]) -> bool {
    match after.first() {
        Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Brace,
        Some(TokenTree::Ident(next)) => next == "impl",
        _ => false,
    }
}

/// True if the statement that has `unsafe` in `line` follows a comment with `SAFETY:`.
fn has_safety_comment(text: &str, line: usize) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    let above = lines[..line - 1].iter().rev().map(|l| l.trim());
    let mut in_comment = false;
    for current in above {
        if current.starts_with("//") {
            in_comment = true;
            if current.contains("SAFETY:") {
                return true;
            }
        } else if in_comment || ends_statement(current) {
            return false;
        }
    }
    false
}

/// True if the next line begins a statement of its own, or has an unsafe of its own to explain.
fn ends_statement(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or("").trim_end();
    code.is_empty() || code.ends_with([';', '{', '}']) || code.contains("unsafe")
}

fn names_feature(after: &[TokenTree]) -> bool {
    let group = after.iter().take(2).find_map(|tree| match tree {
        TokenTree::Group(group) => Some(group.stream()),
        _ => None,
    });
    group.is_some_and(mentions_feature)
}

fn mentions_feature(stream: TokenStream) -> bool {
    stream.into_iter().any(|tree| match tree {
        TokenTree::Ident(ident) => ident == "feature",
        TokenTree::Group(group) => mentions_feature(group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// True after `crate::` and `super::`.
fn follows_crate_or_super(before: &[TokenTree]) -> bool {
    match before {
        [.., TokenTree::Ident(root), TokenTree::Punct(a), TokenTree::Punct(b)] => {
            a.as_char() == ':' && b.as_char() == ':' && (root == "crate" || root == "super")
        }
        _ => false,
    }
}
