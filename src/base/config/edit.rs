//! Texts of TOML with some values replaced, by their paths: `dimension.nvlink.bandwidth`, `npu.h100.peak.bf16`.
//!
//! A part of a path is a key of a table, or, of a list of tables, the `name` of one of them or its index from 0. The
//! last part may be a key that is not there yet; whether it is one at all says whoever reads the text.

use super::{ConfigError, ConfigLiteral, did_you_mean, nearest};
use toml::{Table, Value};

/// A path that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found no `{part}`, expected one of {}{}", .known.join(", "), did_you_mean(nearest(.part, .known.iter().map(String::as_str))))]
pub struct PathError {
    /// The part that is not there.
    pub part: String,
    /// The parts that are.
    pub known: Vec<String>,
}

/// A text that cannot be edited.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// It is not TOML.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A path leads nowhere.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// Returns `text`, called `file` in errors, with the value at each path replaced.
///
/// # Errors
///
/// If the text is not TOML, or a path leads nowhere.
pub fn with_values(
    text: &str,
    file: &str,
    values: &[(&str, &ConfigLiteral)],
) -> Result<String, EditError> {
    // Reports syntax errors with their line.
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
        let mut at = EditCursor::Table(&mut root);
        for part in parts {
            at = at.down(part)?;
        }
        match at {
            EditCursor::Table(table) => {
                table.insert(last.to_owned(), value.toml());
            }
            EditCursor::List(items) => {
                let index = index_of(items, last)?;
                items[index] = value.toml();
            }
        }
    }
    Ok(toml::to_string(&root).expect("what was read can be written"))
}

/// A place in a document that has parts.
enum EditCursor<'t> {
    Table(&'t mut Table),
    List(&'t mut Vec<Value>),
}

impl<'t> EditCursor<'t> {
    fn down(self, part: &str) -> Result<Self, PathError> {
        let value = match self {
            Self::Table(table) => {
                let known: Vec<String> = table.keys().cloned().collect();
                table.get_mut(part).ok_or_else(|| PathError {
                    part: part.to_owned(),
                    known,
                })?
            }
            Self::List(items) => {
                let index = index_of(items, part)?;
                &mut items[index]
            }
        };
        match value {
            Value::Table(table) => Ok(Self::Table(table)),
            Value::Array(items) => Ok(Self::List(items)),
            _ => Err(PathError {
                part: format!("{part}.…"),
                known: vec![part.to_owned()],
            }),
        }
    }
}

/// The index of the item that `part` names.
fn index_of(items: &[Value], part: &str) -> Result<usize, PathError> {
    let name = |item: &Value| item.get("name").and_then(Value::as_str).map(str::to_owned);
    let named = items
        .iter()
        .position(|item| name(item).as_deref() == Some(part));
    let numbered = || {
        part.parse::<usize>()
            .ok()
            .filter(|index| *index < items.len())
    };
    named.or_else(numbered).ok_or_else(|| PathError {
        part: part.to_owned(),
        known: (items.iter().enumerate())
            .map(|(i, item)| name(item).unwrap_or_else(|| i.to_string()))
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
        let edit =
            |path: &str, value: ConfigLiteral| with_values(TEXT, "m.toml", &[(path, &value)]);
        let named = edit("dimension.outer.size", ConfigLiteral::Whole(8)).unwrap();
        assert_eq!(
            named,
            edit("dimension.1.size", ConfigLiteral::Whole(8)).unwrap()
        );
        let read: Table = named.parse().unwrap();
        assert_eq!(read["dimension"][1]["size"].as_integer(), Some(8));
        assert_eq!(read["dimension"][0]["size"].as_integer(), Some(4));
        // A key that is not there yet.
        let new = edit("npu.a.host_lanes", ConfigLiteral::Whole(1)).unwrap();
        assert!(new.contains("host_lanes = 1"), "{new}");
    }

    #[test]
    fn paths_that_lead_nowhere_name_what_is_there() {
        let error = |path: &str| {
            let found = with_values(TEXT, "m.toml", &[(path, &ConfigLiteral::Flag(true))]);
            found.unwrap_err().to_string()
        };
        let inner = "found no `iner`, expected one of inner, outer; did you mean `inner`?";
        assert_eq!(error("dimension.iner.size"), inner);
        let root = "found no `dimensions`, expected one of name, npu, dimension; did you mean `dimension`?";
        assert_eq!(error("dimensions.inner.size"), root);
    }
}
