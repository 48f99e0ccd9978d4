//! Progress bars: on stderr, and only where that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar while a prompt is read; none for a prompt that is read in one piece.
pub fn prompt(tokens: usize, chunk: usize) -> ProgressBar {
    if tokens <= chunk {
        return ProgressBar::hidden();
    }
    styled(tokens as u64, "reading {bar:30} {pos}/{len} tokens, {eta} left")
}

/// A bar while a checkpoint is written.
pub fn writing(size_bytes: u64) -> ProgressBar {
    styled(
        size_bytes,
        "writing {bar:30} {decimal_bytes}/{decimal_total_bytes}, {decimal_bytes_per_sec}, \
         {eta} left",
    )
}

/// A bar while a checkpoint is read from end to end, and perhaps converted.
pub fn bytes(what: &'static str) -> ProgressBar {
    let template = "{prefix} {bar:30} {decimal_bytes}/{decimal_total_bytes}, \
                    {decimal_bytes_per_sec}, {eta} left";
    styled(0, template).with_prefix(what)
}

/// A bar while experts are read into memory.
pub fn filling(experts: u64) -> ProgressBar {
    styled(experts, "reading {bar:30} {pos}/{len} experts, {eta} left")
}

fn styled(length: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("a template of ours");
    ProgressBar::new(length).with_style(style)
}
