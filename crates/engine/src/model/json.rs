//! Fields of config.json, read with a name and an expectation.

use serde_json::Value;

use super::error::ConfigError;

/// The text model's config and the family that asks.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    pub(super) json: &'a Value,
    pub(super) family: &'static str,
}

impl<'a> Fields<'a> {
    /// The first of `names` that is there and not null.
    fn find(&self, names: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        names.iter().find_map(|n| self.json.get(n).filter(|v| !v.is_null()).map(|v| (*n, v)))
    }

    fn missing(&self, field: &'static str) -> ConfigError {
        ConfigError::Missing { field, family: self.family }
    }

    /// A positive size; `names` are spellings of the same field.
    pub(super) fn size(&self, names: &[&'static str]) -> Result<usize, ConfigError> {
        self.optional_size(names)?.ok_or_else(|| self.missing(names[0]))
    }

    /// As `size`, `None` where the field is absent.
    pub(super) fn optional_size(
        &self,
        names: &[&'static str],
    ) -> Result<Option<usize>, ConfigError> {
        let Some((field, value)) = self.find(names) else { return Ok(None) };
        match value.as_u64() {
            Some(n) if (1..1 << 40).contains(&n) => Ok(Some(n as usize)),
            _ => Err(bad(field, value, "a positive whole number")),
        }
    }

    /// A finite number.
    pub(super) fn number(&self, field: &'static str) -> Result<Option<f64>, ConfigError> {
        let Some((field, value)) = self.find(&[field]) else { return Ok(None) };
        match value.as_f64().filter(|v| v.is_finite()) {
            Some(v) => Ok(Some(v)),
            None => Err(bad(field, value, "a finite number")),
        }
    }

    /// A flag with its default.
    pub(super) fn flag(&self, field: &'static str, default: bool) -> Result<bool, ConfigError> {
        Ok(self.optional_flag(field)?.unwrap_or(default))
    }

    /// A flag that has no safe default.
    pub(super) fn required_flag(&self, field: &'static str) -> Result<bool, ConfigError> {
        self.optional_flag(field)?.ok_or_else(|| self.missing(field))
    }

    fn optional_flag(&self, field: &'static str) -> Result<Option<bool>, ConfigError> {
        let Some((field, value)) = self.find(&[field]) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| bad(field, value, "true or false"))
    }

    /// Refuses every value of a field but the ones the engine computes.
    pub(super) fn only(&self, field: &'static str, allowed: &[Value]) -> Result<(), ConfigError> {
        match self.find(&[field]) {
            Some((field, value)) if !allowed.contains(value) => {
                let list: Vec<String> = allowed.iter().map(Value::to_string).collect();
                let list = if list.is_empty() { "nothing".into() } else { list.join(" or ") };
                Err(bad(field, value, &list))
            }
            _ => Ok(()),
        }
    }

    /// A nested object, or an empty one.
    pub(super) fn nested(&self, field: &'static str) -> Result<Fields<'a>, ConfigError> {
        static EMPTY: Value = Value::Null;
        let json = match self.find(&[field]) {
            Some((field, value)) if !value.is_object() => {
                return Err(bad(field, value, "an object"));
            }
            found => found.map_or(&EMPTY, |(_, v)| v),
        };
        Ok(Fields { json, family: self.family })
    }

    /// A list, `None` where the field is absent.
    pub(super) fn list(&self, field: &'static str) -> Result<Option<&'a [Value]>, ConfigError> {
        let Some((field, value)) = self.find(&[field]) else { return Ok(None) };
        match value.as_array() {
            Some(list) => Ok(Some(list)),
            None => Err(bad(field, value, "a list")),
        }
    }

    /// A string, `None` where the field is absent.
    pub(super) fn text(&self, field: &'static str) -> Result<Option<&'a str>, ConfigError> {
        let Some((field, value)) = self.find(&[field]) else { return Ok(None) };
        match value.as_str() {
            Some(text) => Ok(Some(text)),
            None => Err(bad(field, value, "a string")),
        }
    }
}

/// A value that is not what the field needs.
pub(super) fn bad(field: &'static str, found: &Value, expected: &str) -> ConfigError {
    ConfigError::Value { field, found: found.to_string(), expected: expected.to_string() }
}
