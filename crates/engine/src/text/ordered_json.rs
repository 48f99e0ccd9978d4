//! JSON that keeps the order of its keys, because a chat template prints them in that order.
//!
//! `serde_json::Value` sorts keys (its `preserve_order` is a feature that would change every other
//! crate too), and tools rendered with sorted keys are a different prompt.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A JSON value whose objects keep their keys in order.
#[derive(Clone, Debug, PartialEq)]
pub enum OrderedJson {
    Null,
    Bool(bool),
    Int(i64),
    /// Only for numbers above `i64::MAX`.
    UInt(u64),
    Float(f64),
    Text(String),
    List(Vec<OrderedJson>),
    Object(Vec<(String, OrderedJson)>),
}

impl OrderedJson {
    /// The value under a key of an object.
    pub fn get(&self, key: &str) -> Option<&OrderedJson> {
        let OrderedJson::Object(entries) = self else { return None };
        entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            OrderedJson::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The same value as a template sees it.
    pub(super) fn to_template(&self) -> minijinja::Value {
        match self {
            OrderedJson::Null => minijinja::Value::from(()),
            OrderedJson::Bool(flag) => minijinja::Value::from(*flag),
            OrderedJson::Int(number) => minijinja::Value::from(*number),
            OrderedJson::UInt(number) => minijinja::Value::from(*number),
            OrderedJson::Float(number) => minijinja::Value::from(*number),
            OrderedJson::Text(text) => minijinja::Value::from(text.as_str()),
            OrderedJson::List(items) => items.iter().map(OrderedJson::to_template).collect(),
            OrderedJson::Object(entries) => object_to_template(entries),
        }
    }
}

/// An object as a template sees it.
pub(super) fn object_to_template(entries: &[(String, OrderedJson)]) -> minijinja::Value {
    let entries = entries
        .iter()
        .map(|(key, value)| (minijinja::Value::from(key.as_str()), value.to_template()))
        .collect();
    minijinja::Value::from_object(TemplateObject { entries })
}

/// Sets a key as a Python dict does: a known key keeps its place.
pub(super) fn set_entry(entries: &mut Vec<(String, OrderedJson)>, key: String, value: OrderedJson) {
    match entries.iter_mut().find(|(name, _)| *name == key) {
        Some((_, old)) => *old = value,
        None => entries.push((key, value)),
    }
}

/// A mapping for templates; the engine's own one sorts its keys.
#[derive(Debug)]
struct TemplateObject {
    entries: Vec<(minijinja::Value, minijinja::Value)>,
}

impl Object for TemplateObject {
    fn get_value(self: &Arc<Self>, key: &minijinja::Value) -> Option<minijinja::Value> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let keys: Vec<minijinja::Value> = self.entries.iter().map(|(key, _)| key.clone()).collect();
        Enumerator::Values(keys)
    }
}

impl From<&str> for OrderedJson {
    fn from(text: &str) -> OrderedJson {
        OrderedJson::Text(text.to_owned())
    }
}

impl From<String> for OrderedJson {
    fn from(text: String) -> OrderedJson {
        OrderedJson::Text(text)
    }
}

impl From<bool> for OrderedJson {
    fn from(flag: bool) -> OrderedJson {
        OrderedJson::Bool(flag)
    }
}

/// Keys come in the order `serde_json` has them: sorted, unless its `preserve_order` is on.
impl From<serde_json::Value> for OrderedJson {
    fn from(value: serde_json::Value) -> OrderedJson {
        match value {
            serde_json::Value::Null => OrderedJson::Null,
            serde_json::Value::Bool(flag) => OrderedJson::Bool(flag),
            serde_json::Value::Number(number) => from_number(&number),
            serde_json::Value::String(text) => OrderedJson::Text(text),
            serde_json::Value::Array(items) => {
                OrderedJson::List(items.into_iter().map(OrderedJson::from).collect())
            }
            serde_json::Value::Object(entries) => OrderedJson::Object(
                entries.into_iter().map(|(key, value)| (key, OrderedJson::from(value))).collect(),
            ),
        }
    }
}

fn from_number(number: &serde_json::Number) -> OrderedJson {
    match (number.as_i64(), number.as_u64()) {
        (Some(int), _) => OrderedJson::Int(int),
        (None, Some(uint)) => OrderedJson::UInt(uint),
        (None, None) => OrderedJson::Float(number.as_f64().unwrap_or(f64::NAN)),
    }
}

impl<'de> Deserialize<'de> for OrderedJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OrderedJson, D::Error> {
        deserializer.deserialize_any(OrderedJsonVisitor)
    }
}

struct OrderedJsonVisitor;

impl<'de> Visitor<'de> for OrderedJsonVisitor {
    type Value = OrderedJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Int(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<OrderedJson, E> {
        Ok(i64::try_from(number).map_or(OrderedJson::UInt(number), OrderedJson::Int))
    }

    fn visit_f64<E>(self, number: f64) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<OrderedJson, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(OrderedJson::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OrderedJson, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry()? {
            set_entry(&mut entries, key, value);
        }
        Ok(OrderedJson::Object(entries))
    }
}
