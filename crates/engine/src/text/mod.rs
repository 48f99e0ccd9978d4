//! Text in, token ids out, and back: tokenizer, streaming decoder, chat template, defaults.
//!
//! Nothing here knows about models, tiers or HTTP. Everything takes the bytes of a checkpoint's
//! files, so the embedded model and a folder on disk go the same way.

mod byte_level;
mod chat_message;
mod chat_template;
mod generation_defaults;
mod ordered_json;
mod python_json;
mod python_methods;
mod strftime;
mod tokenizer;
mod utf8_stream;

pub use chat_message::ChatMessage;
pub use chat_template::{ChatTemplate, ChatTemplateError};
pub use generation_defaults::{GenerationDefaults, GenerationDefaultsError};
pub use ordered_json::OrderedJson;
pub use tokenizer::{Tokenizer, TokenizerError};
pub use utf8_stream::Utf8Stream;
