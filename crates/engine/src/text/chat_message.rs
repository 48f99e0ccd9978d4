//! One message of a chat, with every field a template may ask for.

use serde::de::{Deserialize, Deserializer, Error};

use super::ordered_json::{OrderedJson, object_to_template, set_entry};

/// Names under which clients send a message's reasoning; templates read the first.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A message: a role, usually content, and what else came with it (`tool_calls`, `name`, ...).
///
/// Fields keep their order; a field that is null counts as missing when rendered.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatMessage {
    fields: Vec<(String, OrderedJson)>,
}

impl ChatMessage {
    /// A message with a role and content: text, or a list of parts.
    pub fn new(role: impl Into<String>, content: impl Into<OrderedJson>) -> ChatMessage {
        let role = OrderedJson::Text(role.into());
        ChatMessage {
            fields: vec![("role".to_owned(), role), ("content".to_owned(), content.into())],
        }
    }

    /// The same message with one more field.
    pub fn with(mut self, field: impl Into<String>, value: impl Into<OrderedJson>) -> ChatMessage {
        set_entry(&mut self.fields, field.into(), value.into());
        self
    }

    /// Who speaks.
    pub fn role(&self) -> &str {
        self.get("role").and_then(OrderedJson::as_str).expect("checked when made")
    }

    /// A field, if the message has it.
    pub fn get(&self, field: &str) -> Option<&OrderedJson> {
        self.fields.iter().find(|(name, _)| name == field).map(|(_, value)| value)
    }

    /// Turns the arguments of tool calls from JSON text, as OpenAI clients send them, into objects.
    ///
    /// Newer templates (Qwen3.5) walk through the arguments and cannot read text. Arguments that
    /// are not the text of a JSON object stay as they are.
    pub fn with_parsed_tool_arguments(mut self) -> ChatMessage {
        for (field, calls) in &mut self.fields {
            if field == "tool_calls"
                && let OrderedJson::List(calls) = calls
            {
                calls.iter_mut().for_each(parse_arguments);
            }
        }
        self
    }

    /// The message as a template sees it: without null fields, which most templates print as
    /// `None`, and with its reasoning under the names that templates read.
    ///
    /// Source: transformers 5.24, `_normalize_chat_messages` and `_alias_reasoning_fields`.
    pub(super) fn to_template(&self) -> minijinja::Value {
        let given = |field: &&str| self.get(field).filter(|value| **value != OrderedJson::Null);
        let reasoning = REASONING_FIELDS.iter().find_map(given);
        let mut fields = Vec::new();
        if let Some(reasoning) = reasoning {
            set_entry(&mut fields, "thinking".to_owned(), reasoning.clone());
        }
        for (field, value) in &self.fields {
            if *value != OrderedJson::Null {
                set_entry(&mut fields, field.clone(), value.clone());
            }
        }
        if let Some(reasoning) = reasoning {
            set_entry(&mut fields, REASONING_FIELDS[0].to_owned(), reasoning.clone());
        }
        object_to_template(&fields)
    }
}

fn parse_arguments(call: &mut OrderedJson) {
    let OrderedJson::Object(entries) = call else { return };
    for (key, value) in entries {
        match (key.as_str(), &mut *value) {
            ("function", function) => parse_arguments(function),
            ("arguments", OrderedJson::Text(text)) => {
                if let Ok(object @ OrderedJson::Object(_)) = serde_json::from_str(text) {
                    *value = object;
                }
            }
            _ => {}
        }
    }
}

impl<'de> Deserialize<'de> for ChatMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ChatMessage, D::Error> {
        let value = OrderedJson::deserialize(deserializer)?;
        if value.get("role").and_then(OrderedJson::as_str).is_none() {
            return Err(D::Error::custom("a message needs a role, and a role is text"));
        }
        let OrderedJson::Object(fields) = value else {
            return Err(D::Error::custom("a message is an object"));
        };
        Ok(ChatMessage { fields })
    }
}
