//! An answer on stdout, piece by piece, never half a character.

use std::io::{Write, stdout};

use anyhow::Result;
use engine::index::TokenId;
use engine::text::{Tokenizer, Utf8Stream};

/// Prints tokens as text, or as ids where there is no tokenizer.
pub struct Printer {
    stream: Option<Utf8Stream>,
    text: String,
    live: bool,
    shown: bool,
}

impl Printer {
    /// A printer that shows pieces at once if `live`, and collects them in any case.
    pub fn new(tokenizer: Option<&Tokenizer>, live: bool) -> Printer {
        let stream = tokenizer.map(|tokenizer| Utf8Stream::new(tokenizer, true));
        Printer { stream, text: String::new(), live, shown: false }
    }

    /// Takes one token.
    ///
    /// # Errors
    /// The reader of stdout left, or the tokenizer fails.
    pub fn token(&mut self, token: TokenId) -> Result<()> {
        let piece = match &mut self.stream {
            Some(stream) => stream.push(token)?,
            None => format!("{} ", token.0),
        };
        self.text.push_str(&piece);
        self.show(&piece)
    }

    /// Ends the answer and its line; the text, if there is a tokenizer.
    ///
    /// # Errors
    /// As `token`.
    pub fn finish(mut self) -> Result<Option<String>> {
        let rest = self.stream.take().map(Utf8Stream::finish).transpose()?;
        self.show(&format!("{}\n", rest.as_deref().unwrap_or_default()))?;
        Ok(rest.map(|rest| self.text + &rest))
    }

    /// Ends the line of an answer that failed, so that the error gets its own.
    ///
    /// # Errors
    /// The reader of stdout left.
    pub fn abandon(mut self) -> Result<()> {
        if self.shown { self.show("\n") } else { Ok(()) }
    }

    fn show(&mut self, piece: &str) -> Result<()> {
        if self.live && !piece.is_empty() {
            self.shown = true;
            let mut out = stdout().lock();
            out.write_all(piece.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    }
}

/// Prints a line of output.
///
/// # Errors
/// The reader of stdout left.
pub fn line(text: &str) -> Result<()> {
    Ok(writeln!(stdout().lock(), "{text}")?)
}

/// Prints a value as JSON over several lines.
///
/// # Errors
/// The reader of stdout left.
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    line(&serde_json::to_string_pretty(value)?)
}
