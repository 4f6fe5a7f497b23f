//! Reads and writes declarations of rank groups, in separate files and in metadata nodes.

use super::{TraceError, escape_and_shorten_name};
use chakram_base::setting::SettingKey;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Declared groups: the name and the member ranks of each group. An empty list means all ranks.
pub type DeclaredGroups = BTreeMap<String, Vec<u32>>;

/// Substring of the name of a metadata node that declares process groups.
pub const NODE_MARK: &str = "process_group:init";

/// PyTorch's full name of such a node.
pub const NODE_NAME: &str = "## process_group:init ##";

/// Returns the `values` text for a metadata node that declares `groups`; [`parse_group_metadata`] is the inverse.
pub fn metadata_text(groups: &DeclaredGroups) -> String {
    let entries = groups.iter().map(|(name, ranks)| GroupEntry {
        pg_name: name.clone().into(),
        ranks: ranks.clone(),
    });
    let entries: Vec<GroupEntry> = entries.collect();
    serde_json::to_string(&entries).expect("names and numbers are JSON")
}

/// A declared group's new name and ranks, or `None` to remove it.
pub type GroupReplacementOrRemoval = Option<(String, Vec<u32>)>;

/// Rewrites a metadata node's `values` text with the names and ranks that `change` returns. Corrects `group_size`,
/// removes `group_count`, and keeps all other keys.
///
/// Fails on text that [`parse_group_metadata`] rejects. Also fails if `change` fails.
pub fn rewrite_group_metadata(
    node: u64,
    values: &str,
    mut change: impl FnMut(&str, &[u32]) -> Result<GroupReplacementOrRemoval, TraceError>,
) -> Result<String, TraceError> {
    let mut kept = Vec::new();
    for mut entry in
        parse_group_entries::<serde_json::Map<String, serde_json::Value>>(node, values)?
    {
        let one: GroupEntry = serde_json::from_value(entry.clone().into())
            .map_err(|e| unreadable_groups_error(node, &e.to_string()))?;
        let (name, ranks) = one.into_declaration(node)?;
        let Some((name, ranks)) = change(&name, &ranks)? else {
            continue;
        };
        entry.remove("group_count");
        // An empty list means all ranks of the job, whose number is unknown here.
        if let Some(size) = entry.get_mut("group_size").filter(|_| !ranks.is_empty()) {
            *size = ranks.len().into();
        }
        entry.insert("pg_name".to_owned(), name.into());
        entry.insert("ranks".to_owned(), ranks.into());
        kept.push(serde_json::Value::Object(entry));
    }
    let text = serde_json::Value::Array(kept).to_string();
    Ok(write_json_in_list_notation_of(values, text))
}

/// Returns the JSON `text`, in the notation that `before` uses. If `before` is a Python list of one string and `text`
/// needs no escapes, the result is also such a list.
pub fn write_json_in_list_notation_of(before: &str, text: String) -> String {
    let inner = before.trim_start().strip_prefix('[');
    let quoted = inner.is_some_and(|rest| rest.trim_start().starts_with(['\'', '"']));
    if quoted && !text.contains(['\\', '\'']) {
        format!("['{text}']")
    } else {
        text
    }
}

/// Reads a group file: a JSON object that maps each group's name to its ranks, such as `{"1": [0, 1]}`.
pub fn parse_group_file(text: &str) -> Result<DeclaredGroups, TraceError> {
    let file: DuplicateRejectingGroupMap = serde_json::from_str(text).map_err(|e| {
        TraceError::malformed_at(
            0,
            format!(
                "{e}; expected a JSON object from group names to ranks, such as {{\"1\": [0, 1]}}"
            ),
        )
    })?;
    Ok(file.0)
}

/// A map that rejects duplicate keys; a plain map would silently keep a key's last value.
#[derive(Default)]
pub(super) struct DuplicateRejectingGroupMap(pub(super) DeclaredGroups);

impl<'de> Deserialize<'de> for DuplicateRejectingGroupMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(GroupVisitor).map(Self)
    }
}

struct GroupVisitor;

impl<'de> Visitor<'de> for GroupVisitor {
    type Value = DeclaredGroups;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from group names to ranks")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<DeclaredGroups, A::Error> {
        let mut groups = DeclaredGroups::new();
        while let Some((name, ranks)) = entries.next_entry::<String, Vec<u32>>()? {
            let twice = format!(
                "group `{}` is declared twice",
                escape_and_shorten_name(&name)
            );
            if groups.insert(name, ranks).is_some() {
                return Err(A::Error::custom(twice));
            }
        }
        Ok(groups)
    }
}

#[derive(Deserialize, Serialize)]
struct GroupEntry {
    pg_name: serde_json::Value,
    #[serde(default)]
    ranks: Vec<u32>,
}

impl GroupEntry {
    fn into_declaration(self, node: u64) -> Result<(String, Vec<u32>), TraceError> {
        match self.pg_name {
            serde_json::Value::String(name) => Ok((name, self.ranks)),
            serde_json::Value::Number(number) => Ok((number.to_string(), self.ranks)),
            other => Err(unreadable_groups_error(
                node,
                &format!("`pg_name` is {other}, expected text or a number"),
            )),
        }
    }
}

fn unreadable_groups_error(node: u64, why: &str) -> TraceError {
    TraceError::invalid_node(
        node,
        format!("the process groups of the metadata node cannot be read: {why}"),
        format!(
            "delete the node and pass the groups with {}",
            SettingKey::Groups
        ),
    )
}

/// Parses the `values` text of a `process_group:init` node. The text is a Python list of one JSON string, which lists
/// objects with `pg_name` and `ranks`.
pub fn parse_group_metadata(node: u64, values: &str) -> Result<DeclaredGroups, TraceError> {
    let entries = parse_group_entries::<GroupEntry>(node, values)?.into_iter();
    entries.map(|entry| entry.into_declaration(node)).collect()
}

fn parse_group_entries<T: serde::de::DeserializeOwned>(
    node: u64,
    values: &str,
) -> Result<Vec<T>, TraceError> {
    let json = match (values.find('['), values.rfind(']')) {
        (Some(start), Some(end)) if start < end => values[start + 1..end].trim(),
        _ => values.trim(),
    };
    // The text is either one string literal in Python's quotes or the JSON list itself.
    let unquoted = json
        .strip_prefix(['\'', '"'])
        .and_then(|rest| rest.strip_suffix(['\'', '"']))
        .map(|inner| inner.replace("\\\"", "\"").replace("\\'", "'"));
    let text = unquoted.as_deref().unwrap_or(values);
    serde_json::from_str(text).map_err(|e| unreadable_groups_error(node, &e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_files_are_objects() {
        let groups = parse_group_file(r#"{"1": [0, 1], "tp": [2]}"#).unwrap();
        assert_eq!(groups["1"], [0, 1]);
        assert_eq!(groups["tp"], [2]);
        assert!(parse_group_file("[1]").is_err());
        let twice = parse_group_file(r#"{"1": [0], "1": [1]}"#)
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
        let groups: DeclaredGroups = groups.collect();
        let text = metadata_text(&groups);
        assert_eq!(parse_group_metadata(1, &text).unwrap(), groups, "{text}");
        assert_eq!(
            parse_group_metadata(1, "[]").unwrap(),
            DeclaredGroups::new()
        );
    }

    #[test]
    fn rewritten_groups_keep_their_other_keys() {
        let inner = r#"[{"pg_name": "1", "pg_desc": "tp", "ranks": [0, 1], "group_size": 2, "group_count": 3}, {"pg_name": 2, "ranks": [0]}]"#;
        let change = |name: &str, ranks: &[u32]| {
            Ok((ranks.len() > 1).then(|| (format!("{name}0"), vec![4, 5, 6])))
        };
        let expected = r#"[{"pg_name":"10","pg_desc":"tp","ranks":[4,5,6],"group_size":3}]"#;
        assert_eq!(rewrite_group_metadata(1, inner, change).unwrap(), expected);
        let python = rewrite_group_metadata(1, &format!("['{inner}']"), change).unwrap();
        assert_eq!(python, format!("['{expected}']"));
        assert_eq!(parse_group_metadata(1, &python).unwrap()["10"], [4, 5, 6]);
        assert!(rewrite_group_metadata(7, "['nonsense']", change).is_err());
    }

    #[test]
    fn metadata_values_are_json_inside_a_python_list() {
        let inner = r#"[{"pg_name": "0", "ranks": []}, {"pg_name": 5, "ranks": [1, 3]}]"#;
        for values in [
            format!("['{inner}']"),
            format!("[\"{}\"]", inner.replace('"', "\\\"")),
            inner.to_owned(),
        ] {
            let groups = parse_group_metadata(7, &values).unwrap();
            assert_eq!(groups["0"], [0_u32; 0], "{values}");
            assert_eq!(groups["5"], [1, 3], "{values}");
        }
        let error = parse_group_metadata(7, "['nonsense']")
            .unwrap_err()
            .to_string();
        assert!(error.contains("node 7"), "{error}");
    }
}
