//! A checkpoint's chat template, rendered as transformers renders it.
//!
//! Templates are programs written for Python's jinja2, so the engine here is set up to act like it:
//! block trimming, Python's methods, `tojson` as `json.dumps`, loop controls, lenient undefined
//! values. `tests/data/chat_templates.json` holds texts that the real jinja2 rendered.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value, escape_formatter};

use super::chat_message::ChatMessage;
use super::ordered_json::OrderedJson;
use super::python_json::{python_float, tojson};
use super::python_methods;
use super::strftime::strftime;

/// The name under which the template is compiled, as error messages show it.
const TEMPLATE_NAME: &str = "chat_template";

/// Special tokens that a template may name.
///
/// Source: transformers 5.24, `PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES`.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// What can go wrong between a list of messages and a prompt.
#[derive(Debug, thiserror::Error)]
pub enum ChatTemplateError {
    #[error(
        "this checkpoint has no chat template (no chat_template.jinja, no chat_template in \
         tokenizer_config.json): send a plain prompt instead of messages, or put the model's \
         chat_template.jinja beside its tokenizer.json"
    )]
    NoTemplate,
    #[error("tokenizer_config.json is not JSON")]
    Config { source: serde_json::Error },
    #[error(
        "tokenizer_config.json: chat_template lists {names:?} and none is \"default\": put the \
         one to use into chat_template.jinja"
    )]
    NoDefault { names: Vec<String> },
    #[error("tokenizer_config.json: chat_template is neither text nor a list of named templates")]
    NotATemplate,
    #[error("the chat template cannot be read, line {line}: {detail}")]
    Syntax { line: usize, detail: String },
    #[error("the chat template refuses these messages: {reason}")]
    Raised { reason: String },
    #[error("the chat template failed, line {line}")]
    Render { line: usize, source: Error },
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(String, OrderedJson)>,
}

impl ChatTemplate {
    /// Takes the text of `chat_template.jinja` if there, else what `tokenizer_config.json` holds.
    ///
    /// The config also gives the special tokens (`bos_token`, ...) that templates print.
    ///
    /// Errors: [`ChatTemplateError::NoTemplate`], or what is wrong with the one found.
    pub fn new(
        chat_template_jinja: Option<&str>,
        tokenizer_config_json: Option<&[u8]>,
    ) -> Result<ChatTemplate, ChatTemplateError> {
        let config: OrderedJson = match tokenizer_config_json {
            Some(bytes) => serde_json::from_slice(bytes)
                .map_err(|source| ChatTemplateError::Config { source })?,
            None => OrderedJson::Null,
        };
        let source = match chat_template_jinja {
            Some(source) => source,
            None => template_of_config(&config)?,
        };
        let mut environment = environment_like_transformers();
        environment.add_template_owned(TEMPLATE_NAME, without_generation_tags(source)).map_err(
            |error| ChatTemplateError::Syntax {
                line: error.line().unwrap_or(0),
                detail: error.detail().unwrap_or("unknown").to_owned(),
            },
        )?;
        Ok(ChatTemplate { environment, special_tokens: special_tokens(&config) })
    }

    /// The same template with `strftime_now` standing still, so that a run can be replayed.
    ///
    /// Units: seconds since 1970-01-01T00:00:00Z.
    pub fn at_time(mut self, unix_seconds: u64) -> ChatTemplate {
        self.environment
            .add_function("strftime_now", move |format: &str| strftime_at(format, unix_seconds));
        self
    }

    /// Renders messages into the text of a prompt, to be encoded with
    /// [`Tokenizer::encode_rendered`](super::Tokenizer::encode_rendered).
    ///
    /// `add_generation_prompt` opens the assistant's turn. `extra` is null or an object with the
    /// further variables of the template (`tools`, `documents`, `enable_thinking`, ...); `tools`
    /// and `documents` are none unless given.
    ///
    /// Errors: [`ChatTemplateError::Raised`] with the text of the template's own `raise_exception`,
    /// else [`ChatTemplateError::Render`].
    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
        extra: &OrderedJson,
    ) -> Result<String, ChatTemplateError> {
        let mut variables: BTreeMap<&str, Value> = BTreeMap::new();
        variables.insert("tools", Value::from(()));
        variables.insert("documents", Value::from(()));
        let extra: &[(String, OrderedJson)] = match extra {
            OrderedJson::Object(entries) => entries,
            _ => &[],
        };
        for (name, value) in self.special_tokens.iter().chain(extra) {
            variables.insert(name, value.to_template());
        }
        let messages = messages.iter().map(ChatMessage::to_template).collect();
        variables.insert("messages", messages);
        variables.insert("add_generation_prompt", Value::from(add_generation_prompt));
        let template = self.environment.get_template(TEMPLATE_NAME).map_err(render_error)?;
        template.render(Value::from(variables)).map_err(render_error)
    }
}

/// The text in `chat_template`, or of the template named "default" where it is a list.
fn template_of_config(config: &OrderedJson) -> Result<&str, ChatTemplateError> {
    match config.get("chat_template") {
        None | Some(OrderedJson::Null) => Err(ChatTemplateError::NoTemplate),
        Some(OrderedJson::Text(source)) => Ok(source),
        Some(OrderedJson::List(named)) => {
            let name = |entry: &OrderedJson| Some(entry.get("name")?.as_str()?.to_owned());
            let default = named.iter().find(|entry| name(entry).as_deref() == Some("default"));
            default.and_then(|entry| entry.get("template")?.as_str()).ok_or_else(|| {
                ChatTemplateError::NoDefault { names: named.iter().filter_map(name).collect() }
            })
        }
        Some(_) => Err(ChatTemplateError::NotATemplate),
    }
}

/// Special tokens as template variables; one that is null stays undefined and prints nothing.
fn special_tokens(config: &OrderedJson) -> Vec<(String, OrderedJson)> {
    let mut tokens = Vec::new();
    for name in SPECIAL_TOKENS {
        if let Some(token) = config.get(name).and_then(token_text) {
            tokens.push((name.to_owned(), OrderedJson::from(token)));
        }
    }
    if let Some(OrderedJson::List(listed)) = config.get("additional_special_tokens") {
        let texts = listed.iter().filter_map(token_text).map(OrderedJson::from).collect();
        tokens.push(("additional_special_tokens".to_owned(), OrderedJson::List(texts)));
    }
    tokens
}

/// A token is its text, or an object with the text as `content`.
fn token_text(token: &OrderedJson) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// Source: transformers 5.24, `_cached_compile_jinja_template`.
fn environment_like_transformers() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the default delimiters are valid"));
    environment.set_unknown_method_callback(python_methods::call);
    environment.set_formatter(|out, state, value| match float(value) {
        Some(number) => Ok(out.write_str(&python_float(number))?),
        None => escape_formatter(out, state, value),
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: Value| match float(&value) {
        Some(number) => Value::from(python_float(number)),
        None if value.kind() == ValueKind::String => value,
        None => Value::from(value.to_string()),
    });
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        strftime_at(format, now.map_or(0, |now| now.as_secs()))
    });
    environment
}

/// The number in a value that is a float, which Python prints in its own way.
fn float(value: &Value) -> Option<f64> {
    let is_float = value.is_number() && !value.is_integer();
    is_float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

fn strftime_at(format: &str, unix_seconds: u64) -> Result<String, Error> {
    strftime(format, unix_seconds).map_err(|directive| {
        let detail = format!("strftime_now: unknown directive %{directive} in {format:?}");
        Error::new(ErrorKind::InvalidOperation, detail)
    })
}

/// What a template passed to `raise_exception`, on its way through the template engine.
#[derive(Debug)]
struct RaisedByTemplate {
    reason: String,
}

impl fmt::Display for RaisedByTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for RaisedByTemplate {}

fn raise_exception(reason: String) -> Result<Value, Error> {
    let error = Error::new(ErrorKind::InvalidOperation, "raise_exception");
    Err(error.with_source(RaisedByTemplate { reason }))
}

fn render_error(error: Error) -> ChatTemplateError {
    // Inside a macro the engine wraps the error once more.
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        if let Some(raised) = inner.downcast_ref::<RaisedByTemplate>() {
            return ChatTemplateError::Raised { reason: raised.reason.clone() };
        }
        cause = inner.source();
    }
    ChatTemplateError::Render { line: error.line().unwrap_or(0), source: error }
}

/// Replaces transformers' own `{% generation %}` block, which marks the assistant's text for
/// training and prints its content, by a `with` block: the same scope, the same text.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        out.push_str(before);
        let Some(close) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inside = &tag[2..close];
        match inside.trim_matches(['-', '+']).trim() {
            "generation" => {
                out.push_str(&format!("{{%{}%}}", inside.replace("generation", "with")))
            }
            "endgeneration" => {
                out.push_str(&format!("{{%{}%}}", inside.replace("endgeneration", "endwith")));
            }
            _ => out.push_str(&tag[..close + 2]),
        }
        rest = &tag[close + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_scopes() {
        let check = |source, expect: &str| assert_eq!(without_generation_tags(source), expect);
        check("a{% generation %}b{%- endgeneration -%}c", "a{% with %}b{%- endwith -%}c");
        check("{%-generation-%}{% if x %}y", "{%-with-%}{% if x %}y");
        check("{{ '{% ' }} {%", "{{ '{% ' }} {%");
    }
}
