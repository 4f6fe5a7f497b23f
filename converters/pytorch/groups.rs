//! Process groups as both files declare them.

use super::{ProcessGroup, number};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A process group entry; writers disagree about the keys of later versions.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    pg_name: &'a RawValue,
    #[serde(default)]
    pg_desc: Option<String>,
    #[serde(default)]
    backend_config: Option<String>,
    #[serde(default)]
    ranks: Vec<u32>,
    #[serde(alias = "group_size", default)]
    pg_size: Option<u32>,
}

impl From<Entry<'_>> for ProcessGroup {
    fn from(entry: Entry<'_>) -> Self {
        Self {
            name: number::text(entry.pg_name.get()).into_owned(),
            desc: entry.pg_desc.unwrap_or_default(),
            ranks: entry.ranks,
            size: entry.pg_size,
            backend: entry.backend_config.unwrap_or_default(),
        }
    }
}

/// Parses a list of groups. Where the text is damaged or truncated, returns the groups before that together with the
/// error.
pub(super) fn parse(json: &str) -> (Vec<ProcessGroup>, Option<String>) {
    let mut groups = Vec::new();
    let Some(mut rest) = json.trim_start().strip_prefix('[') else {
        return (groups, Some("it is not a list".to_owned()));
    };
    loop {
        rest = rest.trim_start();
        if rest.starts_with(']') && groups.is_empty() {
            return (groups, None);
        }
        let mut entries = serde_json::Deserializer::from_str(rest).into_iter::<Entry<'_>>();
        match entries.next() {
            Some(Ok(entry)) => groups.push(entry.into()),
            Some(Err(error)) => return (groups, Some(error.to_string())),
            None => return (groups, Some("it ends early".to_owned())),
        }
        rest = rest[entries.byte_offset()..].trim_start();
        match rest.as_bytes().first() {
            Some(b',') => rest = &rest[1..],
            Some(b']') => return (groups, None),
            _ => return (groups, Some("it ends early".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_up_to_where_their_list_is_cut() {
        let json = r#"[{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo", "ranks": [],
            "group_size": 4, "group_count": 2}, {"pg_name": 1, "uid": 0, "pg_size": 2, "ranks": [0, 2]}]"#;
        let (groups, wrong) = parse(json);
        assert_eq!(wrong, None);
        let [all, pair] = groups.as_slice() else {
            panic!("{groups:?}")
        };
        assert_eq!((all.name.as_str(), all.desc.as_str()), ("0", "default_pg"));
        assert_eq!((all.size, all.backend.as_str()), (Some(4), "cpu:gloo"));
        assert_eq!((pair.name.as_str(), &pair.ranks[..]), ("1", &[0, 2][..]));
        assert_eq!(pair.size, Some(2));
        for end in 0..json.len() {
            let (cut, wrong) = parse(&json[..end]);
            assert!(wrong.is_some(), "{end}");
            assert_eq!(cut, groups[..cut.len()]);
        }
        assert_eq!(parse(" [ ] "), (Vec::new(), None));
    }
}
