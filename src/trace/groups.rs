//! Groups of ranks as side files and metadata nodes declare them.

use super::{TraceError, shown};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Declared groups: name to members. No members stand for all ranks.
pub type Declared = BTreeMap<String, Vec<u32>>;

/// Part of the name of a metadata node that declares process groups.
pub const NODE_MARK: &str = "process_group:init";

/// The whole name that PyTorch gives such a node.
pub const NODE_NAME: &str = "## process_group:init ##";

/// The `values` text of a metadata node that declares `groups`: what [`parse_metadata`] reads.
pub fn metadata_text(groups: &Declared) -> String {
    let entries = groups.iter().map(|(name, ranks)| Entry {
        pg_name: name.clone().into(),
        ranks: ranks.clone(),
    });
    let entries: Vec<Entry> = entries.collect();
    serde_json::to_string(&entries).expect("names and numbers are JSON")
}

/// Reads a group file: a JSON object from the group's name to its ranks, `{"1": [0, 1]}`.
pub fn parse_file(text: &str) -> Result<Declared, TraceError> {
    let file: GroupFile = serde_json::from_str(text).map_err(|e| {
        TraceError::malformed(
            0,
            format!("{e}; a group file is a JSON object from group to ranks, {{\"1\": [0, 1]}}"),
        )
    })?;
    Ok(file.0)
}

/// An object whose keys are all different; a plain map would keep the last of two.
struct GroupFile(Declared);

impl<'de> Deserialize<'de> for GroupFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(GroupVisitor).map(Self)
    }
}

struct GroupVisitor;

impl<'de> Visitor<'de> for GroupVisitor {
    type Value = Declared;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from group to ranks")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Declared, A::Error> {
        let mut groups = Declared::new();
        while let Some((name, ranks)) = entries.next_entry::<String, Vec<u32>>()? {
            let twice = format!("group `{}` is declared twice", shown(&name));
            if groups.insert(name, ranks).is_some() {
                return Err(A::Error::custom(twice));
            }
        }
        Ok(groups)
    }
}

#[derive(Deserialize, Serialize)]
struct Entry {
    pg_name: serde_json::Value,
    #[serde(default)]
    ranks: Vec<u32>,
}

/// Reads the `values` text of a `process_group:init` node: a Python list of one string, which is
/// itself JSON, a list of objects with `pg_name` and `ranks`.
pub fn parse_metadata(node: u64, values: &str) -> Result<Declared, TraceError> {
    let fail = |why: String| {
        TraceError::refused(
            node,
            format!("the process groups of the metadata node cannot be read: {why}"),
            "delete the node and pass the groups with --groups",
        )
    };
    let json = match (values.find('['), values.rfind(']')) {
        (Some(start), Some(end)) if start < end => values[start + 1..end].trim(),
        _ => values.trim(),
    };
    // One string literal in Python's quotes, or the list itself.
    let unquoted = json
        .strip_prefix(['\'', '"'])
        .and_then(|rest| rest.strip_suffix(['\'', '"']))
        .map(|inner| inner.replace("\\\"", "\"").replace("\\'", "'"));
    let text = unquoted.as_deref().unwrap_or(values);
    let entries: Vec<Entry> = serde_json::from_str(text).map_err(|e| fail(e.to_string()))?;
    entries
        .into_iter()
        .map(|entry| match entry.pg_name {
            serde_json::Value::String(name) => Ok((name, entry.ranks)),
            serde_json::Value::Number(number) => Ok((number.to_string(), entry.ranks)),
            other => Err(fail(format!("`pg_name` is {other}"))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_files_are_objects() {
        let groups = parse_file(r#"{"1": [0, 1], "tp": [2]}"#).unwrap();
        assert_eq!(groups["1"], [0, 1]);
        assert_eq!(groups["tp"], [2]);
        assert!(parse_file("[1]").is_err());
        let twice = parse_file(r#"{"1": [0], "1": [1]}"#)
            .unwrap_err()
            .to_string();
        assert!(twice.contains("group `1` is declared twice"), "{twice}");
    }

    #[test]
    fn declared_groups_are_read_back() {
        let names = ["0", "7", "tp_0", "it's \"quoted\" [1]", "back\\slash"];
        let groups = names.iter().zip(0..).map(|(name, i)| {
            let ranks: Vec<u32> = (0..i).map(|rank| rank * 3).collect();
            ((*name).to_owned(), ranks)
        });
        let groups: Declared = groups.collect();
        let text = metadata_text(&groups);
        assert_eq!(parse_metadata(1, &text).unwrap(), groups, "{text}");
        assert_eq!(parse_metadata(1, "[]").unwrap(), Declared::new());
    }

    #[test]
    fn metadata_values_are_json_inside_a_python_list() {
        let inner = r#"[{"pg_name": "0", "ranks": []}, {"pg_name": 5, "ranks": [1, 3]}]"#;
        for values in [
            format!("['{inner}']"),
            format!("[\"{}\"]", inner.replace('"', "\\\"")),
            inner.to_owned(),
        ] {
            let groups = parse_metadata(7, &values).unwrap();
            assert_eq!(groups["0"], [0_u32; 0], "{values}");
            assert_eq!(groups["5"], [1, 3], "{values}");
        }
        let error = parse_metadata(7, "['nonsense']").unwrap_err().to_string();
        assert!(error.contains("node 7"), "{error}");
    }
}
