//! Rules that need no parser: lengths, widths and words.

use super::finding::Finding;
use super::table::{
    FAST_MATH, FILE_LINES_MAX, FILE_LINES_WARN, FORWARD_LINES_MAX, LINE_COLUMNS_MAX, MACHINE_PATHS,
    UNFINISHED,
};
use super::tree::File;

pub fn check(file: &File, findings: &mut Vec<Finding>) {
    file_length(file, findings);
    forward_length(file, findings);
    for (number, line) in file.lines() {
        line_width(file, number, line, findings);
        unfinished(file, number, line, findings);
        machine_path(file, number, line, findings);
        fast_math(file, number, line, findings);
    }
}

fn file_length(file: &File, findings: &mut Vec<Finding>) {
    let lines = file.text.lines().count();
    if !file.is_source() || lines <= FILE_LINES_WARN {
        return;
    }
    let message = format!("{lines} lines, at most {FILE_LINES_MAX}");
    findings.push(if lines > FILE_LINES_MAX {
        Finding::error(&file.path, lines, "file-length", message)
    } else {
        Finding::warning(&file.path, lines, "file-length", message)
    });
}

fn forward_length(file: &File, findings: &mut Vec<Finding>) {
    let lines = file.text.lines().count();
    if file.path.ends_with("model/forward.rs") && lines > FORWARD_LINES_MAX {
        let message = format!("the forward pass has {lines} lines, at most {FORWARD_LINES_MAX}");
        findings.push(Finding::error(&file.path, lines, "forward-length", message));
    }
}

fn line_width(file: &File, number: usize, line: &str, findings: &mut Vec<Finding>) {
    let columns = line.chars().count();
    if file.is_source() && file.extension() != "py" && columns > LINE_COLUMNS_MAX {
        let message = format!("{columns} columns, at most {LINE_COLUMNS_MAX}");
        findings.push(Finding::error(&file.path, number, "line-width", message));
    }
}

fn unfinished(file: &File, number: usize, line: &str, findings: &mut Vec<Finding>) {
    for word in UNFINISHED {
        if contains_word(line, word) {
            let message = format!("`{word}` belongs in an issue");
            findings.push(Finding::error(&file.path, number, "unfinished", message));
        }
    }
}

fn machine_path(file: &File, number: usize, line: &str, findings: &mut Vec<Finding>) {
    for path in MACHINE_PATHS {
        let found = line.match_indices(path).any(|(start, _)| {
            let before = line[..start].chars().next_back();
            let after = line[start + path.len()..].chars().next();
            !before.is_some_and(is_path_char) && !after.is_some_and(is_name_char)
        });
        if found {
            let message = format!("`{path}` is a folder of one machine");
            findings.push(Finding::error(&file.path, number, "machine-path", message));
        }
    }
}

/// Flags count where compilers read them; prose and tidy itself may name them.
fn fast_math(file: &File, number: usize, line: &str, findings: &mut Vec<Finding>) {
    let is_comment = line.trim_start().starts_with("//");
    if file.extension() == "md" || is_comment || file.path.starts_with("xtask/src/tidy/") {
        return;
    }
    for flag in FAST_MATH {
        if line.contains(flag) {
            let message = format!("`{flag}` changes the arithmetic");
            findings.push(Finding::error(&file.path, number, "fast-math", message));
        }
    }
}

/// True if `line` has `word` with no letter, digit or underscore next to it.
fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(is_name_char) && !after.is_some_and(is_name_char)
    })
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_path_char(c: char) -> bool {
    is_name_char(c) || matches!(c, '.' | '/' | '-' | '~' | '}' | '*')
}
