//! FORMAT.md as data: its tables, found by the heading above them.

use std::collections::BTreeSet;

use serde_json::Value;

const TEXT: &str = include_str!("../../../../FORMAT.md");

/// A row of a table of JSON fields.
pub struct Field {
    pub name: String,
    pub kind: String,
    pub may_be_null: bool,
    /// When a reader refuses it, with the names of the errors.
    pub refused: String,
}

/// The lines below a heading, up to the next one.
pub fn section(heading: &str) -> Vec<&'static str> {
    let is_heading = |line: &str| line.starts_with('#') && line.contains("# ");
    let title = |line: &str| line.trim_start_matches('#').trim() == heading;
    let mut found = TEXT.lines().skip_while(|line| !(is_heading(line) && title(line)));
    assert!(found.next().is_some(), "FORMAT.md has no heading {heading:?}");
    found.take_while(|line| !is_heading(line)).collect()
}

/// The rows of the table below a heading whose header row begins with `header`, cell by cell,
/// backquotes left out.
pub fn table(heading: &str, header: &str) -> Vec<Vec<String>> {
    let lines = section(heading);
    let mut rows = lines.iter().skip_while(|line| !line.starts_with(header));
    assert!(rows.next().is_some(), "no table {header:?} below {heading:?}");
    rows.skip(1).take_while(|line| line.starts_with('|')).map(|line| cells(line)).collect()
}

fn cells(line: &str) -> Vec<String> {
    let line = line.replace("\\|", "\u{1}");
    let inner = line.trim().trim_matches('|');
    inner.split('|').map(|cell| cell.replace('\u{1}', "|").trim().to_string()).collect()
}

/// The text between the first pair of backquotes.
pub fn quoted(cell: &str) -> String {
    cell.split('`').nth(1).unwrap_or_else(|| panic!("no backquotes in {cell:?}")).to_string()
}

pub fn fields(heading: &str) -> Vec<Field> {
    let field = |cells: Vec<String>| {
        let may_be_null = match cells[2].as_str() {
            "yes" => false,
            "yes, or null" => true,
            other => panic!("{heading}: mandatory {other:?}"),
        };
        let refused = cells.get(4).cloned().unwrap_or_default();
        Field { name: quoted(&cells[0]), kind: cells[1].clone(), may_be_null, refused }
    };
    table(heading, "| field | type |").into_iter().map(field).collect()
}

/// The value of a constant, without backquotes.
pub fn constant(name: &str) -> String {
    let rows = table("Conventions", "| constant |");
    let row = rows.iter().find(|row| row[0].replace('`', "") == name);
    row.unwrap_or_else(|| panic!("no constant {name:?}"))[1].replace('`', "")
}

/// Panics where an object and everything below it has other fields or types than the tables say.
/// Adds the headings of the tables that were used.
pub fn check_object(heading: &str, object: &Value, used: &mut BTreeSet<String>) {
    used.insert(heading.to_string());
    let object = object.as_object().unwrap_or_else(|| panic!("{heading}: {object} is no object"));
    let fields = fields(heading);
    let documented: BTreeSet<&str> = fields.iter().map(|field| field.name.as_str()).collect();
    let found: BTreeSet<&str> = object.keys().map(String::as_str).collect();
    assert_eq!(documented, found, "{heading}: fields in FORMAT.md, and in the file");
    for field in &fields {
        let value = &object[&field.name];
        if !(field.may_be_null && value.is_null()) {
            check_kind(&field.kind, value, &format!("{heading}: {}", field.name), used);
        }
    }
}

fn check_kind(kind: &str, value: &Value, at: &str, used: &mut BTreeSet<String>) {
    if let Some(heading) = kind.strip_prefix("object: ") {
        return check_object(heading, value, used);
    }
    if let Some(heading) = kind.strip_prefix("list: ") {
        let items = value.as_array().unwrap_or_else(|| panic!("{at}: {value} is no list"));
        return items.iter().for_each(|item| check_object(heading, item, used));
    }
    let is_hex = |digits: usize| {
        let text = value.as_str().unwrap_or_default();
        text.len() == digits && text.bytes().all(|c| b"0123456789abcdef".contains(&c))
    };
    let sound = match kind {
        "string" => value.is_string(),
        "bool" => value.is_boolean(),
        "u32" => value.as_u64().is_some_and(|number| u32::try_from(number).is_ok()),
        "u64" => value.is_u64(),
        "i64" => value.is_i64(),
        "sha256" => is_hex(64),
        "xxh3" => is_hex(32),
        words if words.starts_with('"') => {
            words.split(" or ").any(|word| Some(word.trim_matches('"')) == value.as_str())
        }
        other => panic!("{at}: unknown type {other:?}"),
    };
    assert!(sound, "{at}: {value} is no {kind}");
}
