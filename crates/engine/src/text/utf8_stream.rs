//! Text that may be printed now, one token at a time.
//!
//! The concatenation of all pieces equals decoding all ids at once, and no piece ends inside a
//! character. Which of three ways leads there depends on the decoder in `tokenizer.json`:
//!
//! - *byte level*: tokens are bytes, so an incremental UTF-8 reader is exact;
//! - *window*: each token's text depends on whether it is the first and on runs of byte tokens
//!   (`<0xE2>`), so the last printed token is kept as the left neighbour and such a run is held
//!   until it ends: one bad byte turns the whole run into replacement characters;
//! - *at end*: for decoders where a later token may change earlier text (CTC, old `</w>` BPE),
//!   everything is printed by `finish`. No language model we know of ships one.

use serde_json::Value as Json;

use super::byte_level::push_token_bytes;
use super::tokenizer::{Tokenizer, TokenizerError};
use crate::index::TokenId;

/// How a decoder can be streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Streaming {
    ByteLevel,
    Window,
    AtEnd,
}

impl Streaming {
    /// Classifies the `decoder` entry of `tokenizer.json`.
    pub(super) fn of_decoder(decoder: &Json) -> Streaming {
        if decoder.is_null() {
            // Tokens are joined by spaces: only the first one differs.
            return Streaming::Window;
        }
        let steps: &[Json] = match decoder["type"].as_str() {
            Some("Sequence") => decoder["decoders"].as_array().map_or(&[], Vec::as_slice),
            _ => std::slice::from_ref(decoder),
        };
        match steps {
            [only] if only["type"] == "ByteLevel" => Streaming::ByteLevel,
            [only] if only["type"] == "WordPiece" => Streaming::Window,
            [_, ..] if steps.iter().all(looks_at_one_token_only) => Streaming::Window,
            _ => Streaming::AtEnd,
        }
    }
}

/// Whether a decoding step needs no more context than "first token or not" and byte runs.
fn looks_at_one_token_only(step: &Json) -> bool {
    match step["type"].as_str() {
        Some("Metaspace" | "ByteFallback" | "Fuse") => true,
        Some("Replace") => step["pattern"]["String"] == "▁" && step["content"] == " ",
        Some("Strip") => step["stop"] == 0 && step["start"].as_u64().is_some_and(|n| n <= 1),
        _ => false,
    }
}

/// A decoder that is fed one token at a time.
///
/// The work of a token does not depend on how many came before it.
#[derive(Debug)]
pub struct Utf8Stream {
    tokenizer: Tokenizer,
    skip_special: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Bytes that do not yet make a character: at most three.
    ByteLevel {
        incomplete: Vec<u8>,
    },
    Window(Window),
    AtEnd {
        ids: Vec<u32>,
    },
}

#[derive(Debug, Default)]
struct Window {
    /// The last printed token, and the text it decodes to when it comes first.
    context: Vec<u32>,
    context_text: String,
    /// Tokens not printed yet: an open run of byte tokens.
    pending: Vec<u32>,
}

impl Utf8Stream {
    /// A stream at the start of a text; `skip_special` as in [`Tokenizer::decode`].
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Utf8Stream {
        let state = match tokenizer.streaming() {
            Streaming::ByteLevel => State::ByteLevel { incomplete: Vec::new() },
            Streaming::Window => State::Window(Window::default()),
            Streaming::AtEnd => State::AtEnd { ids: Vec::new() },
        };
        Utf8Stream { tokenizer: tokenizer.clone(), skip_special, state }
    }

    /// Takes one token and returns the text that may be printed now, often empty.
    ///
    /// Errors: [`TokenizerError`] from the library's decoder.
    pub fn push(&mut self, id: TokenId) -> Result<String, TokenizerError> {
        let Some(token) = self.tokenizer.id_to_token(id) else { return Ok(String::new()) };
        if self.skip_special && self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        match &mut self.state {
            State::ByteLevel { incomplete } => {
                push_token_bytes(&token, incomplete);
                Ok(take_complete(incomplete))
            }
            State::Window(window) => {
                window.pending.push(id.0);
                if is_byte_token(&token) {
                    return Ok(String::new());
                }
                window.print_pending(&self.tokenizer, !token.is_empty())
            }
            State::AtEnd { ids } => {
                ids.push(id.0);
                Ok(String::new())
            }
        }
    }

    /// Ends the text: what was held back, with replacement characters where it is no text.
    ///
    /// Errors: [`TokenizerError`] from the library's decoder.
    pub fn finish(self) -> Result<String, TokenizerError> {
        match self.state {
            State::ByteLevel { incomplete } => {
                Ok(String::from_utf8_lossy(&incomplete).into_owned())
            }
            State::Window(window) if window.pending.is_empty() => Ok(String::new()),
            State::Window(mut window) => window.print_pending(&self.tokenizer, true),
            State::AtEnd { ids } => self.tokenizer.decode_raw(&ids, false),
        }
    }
}

impl Window {
    /// Decodes the pending tokens behind their left neighbour, and keeps the last as the next one.
    ///
    /// `last_has_text` is false for an empty vocabulary entry, which cannot stand in for the text
    /// before it (a decoder that strips the first space would strip the next one).
    fn print_pending(
        &mut self,
        tokenizer: &Tokenizer,
        last_has_text: bool,
    ) -> Result<String, TokenizerError> {
        let Some(&last) = self.pending.last() else { return Ok(String::new()) };
        let mut ids = std::mem::take(&mut self.context);
        ids.append(&mut self.pending);
        // Special tokens that must not show never get here, so none are skipped below.
        let text = tokenizer.decode_raw(&ids, false)?;
        let Some(new) = text.strip_prefix(self.context_text.as_str()).map(str::to_owned) else {
            let printed = std::mem::take(&mut self.context_text);
            return Err(TokenizerError::StreamRewritten { id: last, printed, now: text });
        };
        self.context = if last_has_text { vec![last] } else { ids };
        self.context_text = tokenizer.decode_raw(&self.context, false)?;
        Ok(new)
    }
}

/// Whether the `ByteFallback` decoder reads this entry as one byte.
///
/// Source: tokenizers 0.23.2, `ByteFallback::decode_chain`.
fn is_byte_token(token: &str) -> bool {
    let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    token.len() == 6 && hex.is_some_and(|hex| u8::from_str_radix(hex, 16).is_ok())
}

/// Removes and returns all complete text, writing U+FFFD for bytes that can never become text.
fn take_complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest = bytes.as_slice();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                bytes.clear();
                return text;
            }
            Err(error) => {
                let (valid, after) = rest.split_at(error.valid_up_to());
                text.push_str(std::str::from_utf8(valid).expect("valid up to here"));
                let Some(bad) = error.error_len() else {
                    let incomplete = after.to_vec();
                    *bytes = incomplete;
                    return text;
                };
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &after[bad..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoders_are_classified() {
        let check = |decoder: &str, expect: Streaming| {
            let decoder: Json = serde_json::from_str(decoder).expect("JSON");
            assert_eq!(Streaming::of_decoder(&decoder), expect, "{decoder}");
        };
        check(r#"{"type":"ByteLevel","add_prefix_space":true}"#, Streaming::ByteLevel);
        check(r#"{"type":"Sequence","decoders":[{"type":"ByteLevel"}]}"#, Streaming::ByteLevel);
        check("null", Streaming::Window);
        check(r#"{"type":"Metaspace","replacement":"▁"}"#, Streaming::Window);
        check(
            r#"{"type":"Sequence","decoders":[
                {"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},
                {"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}"#,
            Streaming::Window,
        );
        check(r#"{"type":"CTC","pad_token":"<pad>"}"#, Streaming::AtEnd);
        check(r#"{"type":"BPEDecoder","suffix":"</w>"}"#, Streaming::AtEnd);
        check(r#"{"type":"Strip","content":" ","start":0,"stop":1}"#, Streaming::AtEnd);
        check(
            r#"{"type":"Sequence","decoders":[{"type":"ByteLevel"},{"type":"Fuse"}]}"#,
            Streaming::AtEnd,
        );
    }

    #[test]
    fn bytes_leave_only_as_whole_characters() {
        let mut bytes = Vec::new();
        let mut printed = Vec::new();
        for byte in [0xe2, 0x82, 0xac, b'a', 0xff, 0xf0, 0x9f, b'b', 0xc3] {
            bytes.push(byte);
            printed.push(take_complete(&mut bytes));
        }
        assert_eq!(printed, ["", "", "€", "a", "\u{fffd}", "", "", "\u{fffd}b", ""]);
        assert_eq!(bytes, [0xc3]);
    }
}
