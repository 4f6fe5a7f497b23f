//! Edits TOML texts: replaces values at paths such as `dimension.nvlink.bandwidth` or `npu.h100.peak.bf16`.
//!
//! Each part of a path is a key in a table. If the part refers to a list of tables, it is the `name` of one table or
//! its index, counted from 0. The last part may be a new key; the reader of the edited text decides whether that key is
//! valid.

use super::{ConfigError, ConfigLiteral, did_you_mean, find_most_similar_name};
use toml::{Table, Value};

/// A path that does not exist in a TOML text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found no `{part}`, expected one of {}{}", .known.join(", "), did_you_mean(find_most_similar_name(.part, .known.iter().map(String::as_str))))]
pub struct MissingTomlPathError {
    /// The part of the path that does not exist.
    pub part: String,
    /// The keys, names or indices that exist where `part` was expected.
    pub known: Vec<String>,
}

/// Reason why an edit of a TOML text failed.
#[derive(Debug, thiserror::Error)]
pub enum TomlEditError {
    /// The text is not TOML.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A path to a value does not exist in the text.
    #[error(transparent)]
    Path(#[from] MissingTomlPathError),
}

/// Returns `text` with the value at each path replaced. Error messages refer to the text as `file`.
///
/// # Errors
///
/// Fails if the text is not TOML, or if a path does not exist.
pub fn replace_toml_values(
    text: &str,
    file: &str,
    values: &[(&str, &ConfigLiteral)],
) -> Result<String, TomlEditError> {
    // Parse the text here only to report syntax errors with their line.
    super::ConfigDocument::parse(text, file)?;
    let mut root: Table = text
        .parse()
        .map_err(|error: toml::de::Error| ConfigError::Syntax {
            file: file.to_owned(),
            line: 1,
            why: error.message().replace('\n', ", "),
        })?;
    for (path, value) in values {
        let mut parts: Vec<&str> = path.split('.').collect();
        let last = parts.pop().unwrap_or_default();
        let mut at = TomlContainerCursor::Table(&mut root);
        for part in parts {
            at = at.descend_one_path_part(part)?;
        }
        match at {
            TomlContainerCursor::Table(table) => {
                table.insert(last.to_owned(), value.to_toml());
            }
            TomlContainerCursor::List(items) => {
                let index = find_list_item_index(items, last)?;
                items[index] = value.to_toml();
            }
        }
    }
    Ok(toml::to_string(&root).expect("what was read can be written"))
}

/// Returns the value at `path` in `text` as TOML text, or `None` if there is no such value.
pub fn toml_value_at(text: &str, path: &str) -> Option<String> {
    let mut at = &Value::Table(text.parse().ok()?);
    for part in path.split('.') {
        at = match at {
            Value::Table(table) => table.get(part)?,
            Value::Array(items) => &items[find_list_item_index(items, part).ok()?],
            _ => return None,
        };
    }
    Some(at.to_string())
}

/// Returns the numbers in `text`, and the strings that begin with a number, each with its path. Returns no values if
/// `text` is not TOML.
pub fn list_toml_number_like_values_with_paths(text: &str) -> Vec<(String, ConfigLiteral)> {
    fn collect_toml_number_like_values(
        at: &Value,
        path: &str,
        out: &mut Vec<(String, ConfigLiteral)>,
    ) {
        let inner = |part: &str| match path {
            "" => part.to_owned(),
            path => format!("{path}.{part}"),
        };
        match at {
            Value::Table(table) => {
                table.iter().for_each(|(key, value)| {
                    collect_toml_number_like_values(value, &inner(key), out)
                });
            }
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate().filter(|(_, item)| item.is_table()) {
                    let name = item.get("name").and_then(Value::as_str);
                    let part = name.map_or_else(|| i.to_string(), str::to_owned);
                    collect_toml_number_like_values(item, &inner(&part), out);
                }
            }
            Value::Integer(number) => out.push((path.to_owned(), ConfigLiteral::Whole(*number))),
            Value::Float(number) => out.push((path.to_owned(), ConfigLiteral::Number(*number))),
            Value::String(text) if text.starts_with(|c: char| c.is_ascii_digit()) => {
                out.push((path.to_owned(), ConfigLiteral::Text(text.clone())));
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    if let Ok(table) = text.parse::<Table>() {
        collect_toml_number_like_values(&Value::Table(table), "", &mut out);
    }
    out
}

/// A value that differs between an edited text and its original.
#[derive(Clone, Debug, PartialEq)]
pub struct TomlValueChangedByEdit {
    /// Path of the value, in the form that [`replace_toml_values`] expects.
    pub path: String,
    /// The value as TOML text, or `None` if the edit removed it.
    pub value: Option<String>,
    /// The edited text with only this value restored to the original.
    pub without: String,
}

/// Returns the values that differ between `text` and `original`, sorted by path. Returns no values if one of the texts
/// is not TOML.
///
/// Two lists of tables with the same items (identified by `name`, or else by index) are compared item by item. Other
/// lists are compared as whole values.
pub fn changed_values(text: &str, original: &str) -> Vec<TomlValueChangedByEdit> {
    let (Ok(edited), Ok(original)) = (text.parse::<Table>(), original.parse::<Table>()) else {
        return Vec::new();
    };
    let edited = Value::Table(edited);
    let mut places = Vec::new();
    find_changes(
        &edited,
        &Value::Table(original),
        &mut Vec::new(),
        &mut places,
    );
    let changed = places.into_iter().map(|(place, value, before)| {
        let mut root = edited.clone();
        set_or_remove_value_at_path(&mut root, &place, before);
        let parts: Vec<String> = place.iter().map(|(_, shown)| shown.clone()).collect();
        TomlValueChangedByEdit {
            path: parts.join("."),
            value: value.map(|value| value.to_string()),
            without: toml::to_string(&root).expect("what was read can be written"),
        }
    });
    changed.collect()
}

/// A part of a path (a key, or an index of a list) with its spelling in paths.
type SpelledTomlPathStep = (TomlPathStep, String);

#[derive(Clone)]
enum TomlPathStep {
    Key(String),
    Index(usize),
}

/// A path at which two documents differ, with the edited and the original value.
type TomlValueDifference = (Vec<SpelledTomlPathStep>, Option<Value>, Option<Value>);

fn find_changes(
    edited: &Value,
    original: &Value,
    place: &mut Vec<SpelledTomlPathStep>,
    found: &mut Vec<TomlValueDifference>,
) {
    match (edited, original) {
        (Value::Table(edited), Value::Table(original)) => {
            let added = edited.keys().filter(|key| !original.contains_key(*key));
            let keys: Vec<&String> = original.keys().chain(added).collect();
            for key in keys {
                place.push((TomlPathStep::Key(key.clone()), key.clone()));
                match (edited.get(key), original.get(key)) {
                    (Some(one), Some(other)) => find_changes(one, other, place, found),
                    (one, other) => found.push((place.clone(), one.cloned(), other.cloned())),
                }
                place.pop();
            }
        }
        (Value::Array(edited), Value::Array(original))
            if have_same_table_names_in_order(edited, original) =>
        {
            for (i, (one, other)) in edited.iter().zip(original).enumerate() {
                let shown = item_name(one).map_or_else(|| i.to_string(), str::to_owned);
                place.push((TomlPathStep::Index(i), shown));
                find_changes(one, other, place, found);
                place.pop();
            }
        }
        (edited, original) if edited == original => {}
        (edited, original) => {
            found.push((place.clone(), Some(edited.clone()), Some(original.clone())))
        }
    }
}

/// Returns true if two lists have the same items. All items must be tables, the lists must have equal lengths, and the
/// names at each index must be equal.
fn have_same_table_names_in_order(one: &[Value], other: &[Value]) -> bool {
    one.len() == other.len()
        && (one.iter().zip(other))
            .all(|(a, b)| a.is_table() && b.is_table() && item_name(a) == item_name(b))
}

fn item_name(item: &Value) -> Option<&str> {
    item.get("name").and_then(Value::as_str)
}

/// Sets the value at `place` to `value`, or removes it if `value` is `None`.
fn set_or_remove_value_at_path(
    root: &mut Value,
    place: &[SpelledTomlPathStep],
    value: Option<Value>,
) {
    let Some(((last, _), parts)) = place.split_last() else {
        return;
    };
    let mut at = root;
    for (part, _) in parts {
        at = match part {
            TomlPathStep::Key(key) => &mut at[key.as_str()],
            TomlPathStep::Index(index) => &mut at[*index],
        };
    }
    match (last, value, at) {
        (TomlPathStep::Key(key), Some(value), Value::Table(table)) => {
            table.insert(key.clone(), value);
        }
        (TomlPathStep::Key(key), None, Value::Table(table)) => {
            table.remove(key);
        }
        (TomlPathStep::Index(index), Some(value), Value::Array(items)) => items[*index] = value,
        // Lists are compared item by item only if both lists have the same items, so this function never adds or
        // removes items.
        _ => {}
    }
}

/// A place in a document: a table or a list, with the values in it.
enum TomlContainerCursor<'t> {
    Table(&'t mut Table),
    List(&'t mut Vec<Value>),
}

impl<'t> TomlContainerCursor<'t> {
    fn descend_one_path_part(self, part: &str) -> Result<Self, MissingTomlPathError> {
        let value = match self {
            Self::Table(table) => {
                let known: Vec<String> = table.keys().cloned().collect();
                table.get_mut(part).ok_or_else(|| MissingTomlPathError {
                    part: part.to_owned(),
                    known,
                })?
            }
            Self::List(items) => {
                let index = find_list_item_index(items, part)?;
                &mut items[index]
            }
        };
        match value {
            Value::Table(table) => Ok(Self::Table(table)),
            Value::Array(items) => Ok(Self::List(items)),
            _ => Err(MissingTomlPathError {
                part: format!("{part}.…"),
                known: vec![part.to_owned()],
            }),
        }
    }
}

/// Returns the index of the item that `part` names.
fn find_list_item_index(items: &[Value], part: &str) -> Result<usize, MissingTomlPathError> {
    let named = items.iter().position(|item| item_name(item) == Some(part));
    let numbered = || {
        part.parse::<usize>()
            .ok()
            .filter(|index| *index < items.len())
    };
    named.or_else(numbered).ok_or_else(|| MissingTomlPathError {
        part: part.to_owned(),
        known: (items.iter().enumerate())
            .map(|(i, item)| item_name(item).map_or_else(|| i.to_string(), str::to_owned))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"m\"\n[npu.a]\nlanes = 2\n[[dimension]]\nname = \"inner\"\nsize = 4\n\
                        [[dimension]]\nname = \"outer\"\nsize = 2\n";

    #[test]
    fn values_are_replaced_at_their_paths() {
        let edit = |path: &str, value: ConfigLiteral| {
            replace_toml_values(TEXT, "m.toml", &[(path, &value)])
        };
        let named = edit("dimension.outer.size", ConfigLiteral::Whole(8)).unwrap();
        assert_eq!(
            named,
            edit("dimension.1.size", ConfigLiteral::Whole(8)).unwrap()
        );
        let read: Table = named.parse().unwrap();
        assert_eq!(read["dimension"][1]["size"].as_integer(), Some(8));
        assert_eq!(read["dimension"][0]["size"].as_integer(), Some(4));
        // The last part of the path is a new key.
        let new = edit("npu.a.host_lanes", ConfigLiteral::Whole(1)).unwrap();
        assert!(new.contains("host_lanes = 1"), "{new}");
    }

    #[test]
    fn changed_values_are_found_and_taken_back_one_by_one() {
        let edited = TEXT.replace("size = 4", "size = 8") + "scalable = true\n";
        let edited = edited.replace("lanes = 2\n", "");
        let changes = changed_values(&edited, TEXT);
        let found = |path: &str| changes.iter().find(|change| change.path == path).unwrap();
        assert_eq!(changes.len(), 3);
        let size = found("dimension.inner.size");
        assert_eq!(size.value.as_deref(), Some("8"));
        let read = |text: &str| text.parse::<Table>().unwrap();
        let without = read(&size.without);
        assert_eq!(without["dimension"][0]["size"].as_integer(), Some(4));
        assert_eq!(without["dimension"][1]["scalable"].as_bool(), Some(true));
        assert!(without["npu"]["a"].get("lanes").is_none());
        let lanes = found("npu.a.lanes");
        assert_eq!(
            (lanes.value.as_deref(), lanes.without.contains("lanes = 2")),
            (None, true)
        );
        let scalable = found("dimension.outer.scalable");
        assert!(!scalable.without.contains("scalable"));
        // A missing table counts as one changed value, and so does a list with different items. Invalid TOML yields no
        // changed values.
        let fewer = changed_values("name = \"m\"\n[[dimension]]\nname = \"inner\"\n", TEXT);
        let paths: Vec<&str> = fewer.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(paths, ["npu", "dimension"]);
        assert!(changed_values(TEXT, TEXT).is_empty() && changed_values("=", TEXT).is_empty());
    }

    #[test]
    fn errors_about_missing_paths_name_existing_keys() {
        let error = |path: &str| {
            let found = replace_toml_values(TEXT, "m.toml", &[(path, &ConfigLiteral::Flag(true))]);
            found.unwrap_err().to_string()
        };
        let inner = "found no `iner`, expected one of inner, outer; did you mean `inner`?";
        assert_eq!(error("dimension.iner.size"), inner);
        let root = "found no `dimensions`, expected one of name, npu, dimension; did you mean `dimension`?";
        assert_eq!(error("dimensions.inner.size"), root);
    }
}
