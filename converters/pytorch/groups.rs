//! Parses process groups that host traces and Kineto traces declare.
//!
//! In a long list of ranks, profilers replace the middle by `...`. The omitted members can be reconstructed if the
//! first members' stride, when continued, leads to the last members and to the recorded size.

use super::{ProcessGroup, number};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// A process group entry. Later versions added fields, and different writers use different keys for them.
#[derive(Deserialize)]
struct ProcessGroupEntry<'a> {
    #[serde(borrow)]
    pg_name: &'a RawValue,
    #[serde(default)]
    pg_desc: Option<String>,
    #[serde(default)]
    backend_config: Option<String>,
    #[serde(borrow, default)]
    ranks: Option<&'a RawValue>,
    #[serde(alias = "group_size", default)]
    pg_size: Option<u32>,
}

impl From<ProcessGroupEntry<'_>> for ProcessGroup {
    fn from(entry: ProcessGroupEntry<'_>) -> Self {
        Self {
            name: number::unquote_json_value(entry.pg_name.get()).into_owned(),
            desc: entry.pg_desc.unwrap_or_default(),
            ranks: entry
                .ranks
                .and_then(|list| {
                    parse_ranks(&number::unquote_json_value(list.get()), entry.pg_size)
                })
                .unwrap_or_default(),
            size: entry.pg_size,
            backend: entry.backend_config.unwrap_or_default(),
        }
    }
}

/// Parses a list of a group's ranks; `size` is the number of members, if known. Returns `None` if
/// the text is not such a list, or if `...` replaces ranks that cannot be reconstructed.
pub(super) fn parse_ranks(text: &str, size: Option<u32>) -> Option<Vec<u32>> {
    let inner = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    if inner.trim().is_empty() {
        return Some(Vec::new());
    }
    let parse = |items: &str| -> Option<Vec<u32>> {
        let items = items.split(',').map(str::trim);
        items.map(|item| item.parse().ok()).collect()
    };
    let mut parts = inner.splitn(2, "...");
    let front = parts.next()?.trim_end_matches([' ', ',', '"', '\'']);
    let Some(back) = parts.next() else {
        return parse(front);
    };
    let (front, back) = (
        parse(front)?,
        parse(back.trim_start_matches([' ', ',', '"', '\''])),
    );
    let stride = match front[..] {
        [.., one, next] => next.checked_sub(one)?,
        // A single member shows the stride only if the group's size is also known.
        [first] => match (&back, size) {
            (Some(back), Some(size)) => {
                let [last] = back[..] else { return None };
                last.checked_sub(first)?.checked_div(size.checked_sub(1)?)?
            }
            _ => return None,
        },
        [] => return None,
    };
    let first = *front.first()?;
    let size = match (size, back.as_ref().and_then(|back| back.last())) {
        (Some(size), _) => size,
        (None, Some(last)) => last
            .checked_sub(first)?
            .checked_div(stride)?
            .checked_add(1)?,
        (None, None) => return None,
    };
    let ranks = rank_progression(first, stride, size)?;
    let ends = back.unwrap_or_default();
    (ranks.starts_with(&front) && ranks.ends_with(&ends)).then_some(ranks)
}

/// Maximum number of members of a group.
pub(super) const LARGEST_GROUP: u32 = 1 << 20;

/// Returns `size` ranks that start at `first` and are `stride` apart. Returns `None` if the group would be too large or
/// would contain a rank twice.
pub(super) fn rank_progression(first: u32, stride: u32, size: u32) -> Option<Vec<u32>> {
    if size == 0 || size > LARGEST_GROUP || stride == 0 && size > 1 {
        return None;
    }
    let rank = |i: u32| first.checked_add(i.checked_mul(stride)?);
    (0..size).map(rank).collect()
}

/// Quotes each `...` that replaces values, so that the text becomes valid JSON.
fn quote_ellipses(json: &str) -> Cow<'_, str> {
    if !json.contains("...") {
        return Cow::Borrowed(json);
    }
    let mut quoted = String::with_capacity(json.len() + 16);
    let (mut in_string, mut escaped) = (false, false);
    for (at, c) in json.char_indices() {
        let is_gap = !in_string && json[at..].starts_with("...");
        if is_gap {
            quoted.push('"');
        }
        quoted.push(c);
        if !in_string && quoted.ends_with("...") {
            quoted.push('"');
        }
        (in_string, escaped) = match c {
            '"' if !escaped => (!in_string, false),
            '\\' => (in_string, in_string && !escaped),
            _ => (in_string, false),
        };
    }
    Cow::Owned(quoted)
}

/// Parses a list of groups. If the text is damaged or truncated, returns the groups before the
/// damage, and an error.
pub(super) fn parse_group_list(json: &str) -> (Vec<ProcessGroup>, Option<String>) {
    let mut groups = Vec::new();
    let json = quote_ellipses(json);
    let Some(mut rest) = json.trim_start().strip_prefix('[') else {
        return (groups, Some("the text is not a list".to_owned()));
    };
    loop {
        rest = rest.trim_start();
        if rest.starts_with(']') && groups.is_empty() {
            return (groups, None);
        }
        let mut entries =
            serde_json::Deserializer::from_str(rest).into_iter::<ProcessGroupEntry<'_>>();
        match entries.next() {
            Some(Ok(entry)) => groups.push(entry.into()),
            Some(Err(error)) => return (groups, Some(error.to_string())),
            None => return (groups, Some("the list is cut short".to_owned())),
        }
        rest = rest[entries.byte_offset()..].trim_start();
        match rest.as_bytes().first() {
            Some(b',') => rest = &rest[1..],
            Some(b']') => return (groups, None),
            _ => return (groups, Some("the list is cut short".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_were_cut_go_on_by_their_stride() {
        let four = Some(vec![0, 2, 4, 6]);
        assert_eq!(parse_ranks("[0, 2, 4, 6]", Some(4)), four);
        for text in [
            "[0, 2, ..., 6]",
            "[0, ..., 6]",
            "[0, 2, \"...\", 6]",
            "[0, 2, ...]",
        ] {
            assert_eq!(parse_ranks(text, Some(4)), four, "{text}");
        }
        assert_eq!(parse_ranks("[0, 2, ..., 6]", None), four);
        assert_eq!(
            parse_ranks("[0, 1, ..., 7]", Some(8)),
            Some((0..8).collect())
        );
        // None of these lists can be reconstructed: no size and no end, a size that contradicts the
        // end, two different strides, and entries that are not ranks.
        for (text, size) in [
            ("[0, ...]", Some(4)),
            ("[0, 2, ...]", None),
            ("[0, 2, ..., 6]", Some(5)),
            ("[0, 2, 3, ..., 7]", Some(4)),
            ("[0, x]", None),
            ("0, 1", None),
        ] {
            assert_eq!(parse_ranks(text, size), None, "{text}");
        }
        assert_eq!(parse_ranks("[]", Some(4)), Some(Vec::new()));
        assert_eq!(rank_progression(0, 0, 2), None);
        assert_eq!(rank_progression(5, 0, 1), Some(vec![5]));
        assert_eq!(rank_progression(u32::MAX, 1, 2), None);
    }

    #[test]
    fn gaps_are_quoted_outside_of_strings() {
        let json = r#"[{"pg_name": "a...\"b", "ranks": [0, 1, ..., 7]}, {"pg_name": "c", "ranks": "[0, ..., 2]", "pg_size": 2}]"#;
        let (groups, wrong) = parse_group_list(json);
        assert_eq!(wrong, None);
        assert_eq!(groups[0].name, "a...\"b");
        assert_eq!(groups[0].ranks, (0..8).collect::<Vec<u32>>());
        assert_eq!(groups[1].ranks, [0, 2]);
    }

    #[test]
    fn groups_are_read_up_to_where_their_list_is_cut() {
        let json = r#"[{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo", "ranks": [],
            "group_size": 4, "group_count": 2}, {"pg_name": 1, "uid": 0, "pg_size": 2, "ranks": [0, 2]}]"#;
        let (groups, wrong) = parse_group_list(json);
        assert_eq!(wrong, None);
        let [all, pair] = groups.as_slice() else {
            panic!("{groups:?}")
        };
        assert_eq!((all.name.as_str(), all.desc.as_str()), ("0", "default_pg"));
        assert_eq!((all.size, all.backend.as_str()), (Some(4), "cpu:gloo"));
        assert_eq!((pair.name.as_str(), &pair.ranks[..]), ("1", &[0, 2][..]));
        assert_eq!(pair.size, Some(2));
        for end in 0..json.len() {
            let (cut, wrong) = parse_group_list(&json[..end]);
            assert!(wrong.is_some(), "{end}");
            assert_eq!(cut, groups[..cut.len()]);
        }
        assert_eq!(parse_group_list(" [ ] "), (Vec::new(), None));
    }
}
