//! Compares two machine files key by key, to show which constants changed.

use std::collections::BTreeMap;

/// A machine constant that was changed, added or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineConstantChange {
    /// Section and key of the constant, such as `dimension 2 bandwidth`.
    pub key: String,
    /// Value before the change, as written in the file; `None` if the constant was added.
    pub before: Option<String>,
    /// Value after the change, as written in the file; `None` if the constant was removed.
    pub after: Option<String>,
}

/// Returns the constants that differ between two machine files. Comments and layout are ignored.
pub fn constant_changes(before: &str, after: &str) -> Vec<MachineConstantChange> {
    let (before, after) = (
        parse_machine_values_by_key(before),
        parse_machine_values_by_key(after),
    );
    let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    let changed = keys
        .into_iter()
        .filter(|key| before.get(*key) != after.get(*key));
    let change = |key: &String| MachineConstantChange {
        key: key.clone(),
        before: before.get(key).cloned(),
        after: after.get(key).cloned(),
    };
    changed.map(change).collect()
}

/// Returns the values of a machine file by key. A key consists of the section and the key in the file. Sections in
/// double brackets that share a name are numbered from 1.
fn parse_machine_values_by_key(text: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let (mut section, mut list) = (String::new(), None::<String>);
    for line in text.lines() {
        let line = strip_comment(line);
        // A list may continue on the next line.
        if let Some(key) = &list {
            let value: &mut String = all.entry(key.clone()).or_default();
            value.push_str(line);
            if bracket_depth(value) <= 0 {
                list = None;
            }
            continue;
        }
        if let Some(name) = line.strip_prefix("[[").and_then(|l| l.strip_suffix("]]")) {
            let count = counts.entry(name.to_owned()).or_default();
            *count += 1;
            section = format!("{name} {count} ");
        } else if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = format!("{name} ");
        } else if let Some((key, value)) = line.split_once('=') {
            let key = format!("{section}{}", key.trim());
            let value = value.trim().to_owned();
            if bracket_depth(&value) > 0 {
                list = Some(key.clone());
            }
            all.insert(key, value);
        }
    }
    all
}

/// Removes a comment, which begins at the first `#` outside quotes.
fn strip_comment(line: &str) -> &str {
    let mut quote = None;
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') => return line[..at].trim(),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    line.trim()
}

fn bracket_depth(value: &str) -> i64 {
    let count = |c: char| value.matches(c).count() as i64;
    count('[') + count('{') - count(']') - count('}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_named_by_section_and_key() {
        let before = "name = \"a\" # b\n[npu]\npeak = { fp16 = \"1 T\",\n fp8 = \"2 T\" }\n[[dimension]]\nsize = 8\n[[dimension]]\nlatency = \"1 us\"\n";
        let after = before
            .replace("1 us", "2 us")
            .replace("# b", "# c")
            .replace("size = 8\n", "size = 8\nshape = \"ring\"\n");
        let change = |key: &str, before: Option<&str>, after: Option<&str>| MachineConstantChange {
            key: key.to_owned(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
        };
        assert_eq!(
            constant_changes(before, &after),
            [
                change("dimension 1 shape", None, Some("\"ring\"")),
                change("dimension 2 latency", Some("\"1 us\""), Some("\"2 us\"")),
            ]
        );
        let other = before.replace("2 T", "3 T");
        assert_eq!(constant_changes(before, &other)[0].key, "npu peak");
        assert!(constant_changes(before, before).is_empty());
    }
}
