//! `tojson` as transformers defines it: Python's `json.dumps` without ASCII escapes.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// The arguments of `json.dumps` that transformers passes on.
struct Layout {
    ensure_ascii: bool,
    /// Line break and indentation per level, or all on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The `tojson` filter.
///
/// Source: transformers 5.24, `chat_template_utils.py`, `tojson`; CPython 3.11, `json.encoder`.
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let ensure_ascii = match ensure_ascii {
        Some(given) => Some(given),
        None => options.get("ensure_ascii")?,
    };
    let indent = match indent {
        Some(given) => Some(given),
        None => options.get("indent")?,
    };
    let indent = indent.as_ref().map(indentation).transpose()?.flatten();
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(invalid("tojson: separators are a pair of strings".to_owned())),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let layout = Layout {
        ensure_ascii: ensure_ascii.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
        sort_keys: sort_keys.unwrap_or(false),
    };
    let mut text = String::new();
    layout.write(value, 0, &mut text)?;
    Ok(text)
}

fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// `indent` is None, a number of spaces (true counts as 1) or the text itself.
fn indentation(indent: &Value) -> Result<Option<String>, Error> {
    if indent.is_none() {
        return Ok(None);
    }
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let spaces = i64::try_from(indent.clone())?;
    Ok(Some(" ".repeat(usize::try_from(spaces).unwrap_or(0))))
}

impl Layout {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)?),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                self.write_container('[', ']', &items, depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let keys = self.keys(value)?;
                self.write_container('{', '}', &keys, depth, out, |(name, key), out| {
                    self.write_text(name, out);
                    out.push_str(&self.key_separator);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            kind => return Err(invalid(format!("tojson: a value of type {kind} is not JSON"))),
        }
        Ok(())
    }

    /// The keys of a mapping, each with the text it has in JSON.
    fn keys(&self, map: &Value) -> Result<Vec<(String, Value)>, Error> {
        let mut keys = Vec::new();
        for key in map.try_iter()?.checked() {
            let key = key?;
            let name = match key.kind() {
                ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
                ValueKind::Bool | ValueKind::None | ValueKind::Number => {
                    let mut name = String::new();
                    self.write(&key, 0, &mut name)?;
                    name
                }
                kind => return Err(invalid(format!("tojson: a key of type {kind} is not JSON"))),
            };
            keys.push((name, key));
        }
        if self.sort_keys {
            keys.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        Ok(keys)
    }

    fn write_container<T>(
        &self,
        open: char,
        close: char,
        items: &[T],
        depth: usize,
        out: &mut String,
        mut write_item: impl FnMut(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            self.break_line(depth + 1, out);
            write_item(item, out)?;
        }
        if !items.is_empty() {
            self.break_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn write_text(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => push_escape(character, out),
                '\u{7f}'.. if self.ensure_ascii => push_escape(character, out),
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

fn push_escape(character: char, out: &mut String) {
    let mut units = [0; 2];
    for unit in character.encode_utf16(&mut units) {
        out.push_str(&format!("\\u{unit:04x}"));
    }
}

fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let number = f64::try_from(value.clone())?;
    Ok(match (number.is_finite(), number.is_nan()) {
        (true, _) => python_float(number),
        (false, true) => "NaN".to_owned(),
        (false, false) => if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
    })
}

/// A float as Python's `str` writes it.
///
/// Rust's debug form has the same digits and turns to exponents at the same sizes, but writes
/// `1e16`, `1e-5` and `NaN` where Python writes `1e+16`, `1e-05` and `nan`.
pub(super) fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    let text = format!("{number:?}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, power) = match exponent.strip_prefix('-') {
        Some(power) => ('-', power),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{power:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python_writes_them() {
        let check = |number, expect: &str| assert_eq!(python_float(number), expect);
        check(1.0, "1.0");
        check(-0.0, "-0.0");
        check(0.1, "0.1");
        check(1e16, "1e+16");
        check(1e15, "1000000000000000.0");
        check(1.5e-5, "1.5e-05");
        check(1e-4, "0.0001");
        check(1.25e300, "1.25e+300");
        check(f64::NEG_INFINITY, "-inf");
        check(f64::NAN, "nan");
    }
}
