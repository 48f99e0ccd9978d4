//! Methods of Python strings that templates call and the template engine's own set lacks.

use minijinja::value::from_args;
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// Answers a method call that the template engine does not know.
///
/// Source: CPython 3.11, `str`.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, method, args);
    };
    match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => {
            let separator = separator(args)?;
            Ok(match text.split_once(separator) {
                Some((before, after)) => list([before, separator, after]),
                None => list([text, "", ""]),
            })
        }
        "rpartition" => {
            let separator = separator(args)?;
            Ok(match text.rsplit_once(separator) {
                Some((before, after)) => list([before, separator, after]),
                None => list(["", "", text]),
            })
        }
        "rsplit" => rsplit(text, args),
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn list<'a>(parts: impl IntoIterator<Item = &'a str>) -> Value {
    parts.into_iter().map(Value::from).collect()
}

fn separator(args: &[Value]) -> Result<&str, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    Ok(separator)
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (on, splits_max): (Option<&str>, Option<i64>) = from_args(args)?;
    let parts_max = splits_max.and_then(|splits| usize::try_from(splits).ok());
    let parts_max = parts_max.map_or(usize::MAX, |splits| splits.saturating_add(1));
    let parts: Vec<&str> = match on {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(on) => text.rsplitn(parts_max, on).collect(),
        None => rsplit_whitespace(text, parts_max),
    };
    Ok(list(parts.into_iter().rev()))
}

/// Parts from the right, the last one returned being all that is left.
fn rsplit_whitespace(text: &str, parts_max: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        let cut = rest.rfind(char::is_whitespace);
        let Some(cut) = cut.filter(|_| parts.len() + 1 < parts_max) else {
            parts.push(rest);
            break;
        };
        let width = rest[cut..].chars().next().map_or(0, char::len_utf8);
        parts.push(&rest[cut + width..]);
        rest = rest[..cut].trim_end();
    }
    parts
}
