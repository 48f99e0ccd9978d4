//! What a rule reports.

use std::fmt;

/// A warning is printed; an error also fails the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Warning,
    Error,
}

/// One violation of one rule at one place.
#[derive(Clone, Debug)]
pub struct Finding {
    pub path: String,
    pub line: usize,
    pub rule: &'static str,
    pub message: String,
    pub severity: Severity,
}

impl Finding {
    pub fn error(path: &str, line: usize, rule: &'static str, message: String) -> Finding {
        Finding { path: path.to_owned(), line, rule, message, severity: Severity::Error }
    }

    pub fn warning(path: &str, line: usize, rule: &'static str, message: String) -> Finding {
        Finding { severity: Severity::Warning, ..Finding::error(path, line, rule, message) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.severity == Severity::Warning { "warning: " } else { "" };
        write!(f, "{}:{}: {mark}{}: {}", self.path, self.line, self.rule, self.message)
    }
}
