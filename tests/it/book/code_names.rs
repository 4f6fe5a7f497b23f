//! Tests that the files and names in CONTRIBUTING.md and ARCHITECTURE.md exist in the code.

use super::{find_repository_root, read_page};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Folders with Rust code, relative to the root.
const CODE: [&str; 7] = [
    "src",
    "converters",
    "testkit",
    "tests",
    "python",
    "fuzz",
    "proto",
];

/// Returns the text of all Rust files, and of the schema of traces.
fn read_all_code() -> String {
    let mut all = String::new();
    let mut folders: Vec<PathBuf> = CODE
        .iter()
        .map(|folder| find_repository_root().join(folder))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("code is there") {
            let path = entry.expect("the folder can be listed").path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "rs" || extension == "proto")
            {
                all += &std::fs::read_to_string(path).expect("code is text");
            }
        }
    }
    all
}

fn split_text_into_identifier_words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

/// Returns the words that follow one of `keywords` in the code.
fn list_defined_names<'c>(code: &'c str, keywords: &[&str]) -> BTreeSet<&'c str> {
    let pairs =
        split_text_into_identifier_words(code).zip(split_text_into_identifier_words(code).skip(1));
    let found = pairs.filter(|(keyword, _)| keywords.contains(keyword));
    found.map(|(_, name)| name).collect()
}

/// Returns the code spans of a page, except fenced blocks.
fn list_code_spans(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose
        .flat_map(|part| part.split('`').skip(1).step_by(2))
        .collect()
}

/// Returns true for a type name that consists of several words. Names of a single word may belong to std.
fn is_type_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().skip(1).any(|c| c.is_ascii_uppercase())
        && name.contains(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Returns what is wrong with a code span, or `None` if it is right or not a name.
fn find_code_span_fault(
    span: &str,
    known: &BTreeSet<&str>,
    types: &BTreeSet<&str>,
    functions: &BTreeSet<&str>,
) -> Option<String> {
    let is_path = CODE
        .iter()
        .chain(&["docs", "traces", "benches"])
        .any(|folder| {
            span.strip_prefix(folder)
                .is_some_and(|rest| rest.starts_with('/'))
        });
    if is_path {
        let is_pattern =
            span.contains(['*', ' ', '<']) || span.contains("CRATE") || span.contains("NAME");
        return (!is_pattern && !find_repository_root().join(span).exists())
            .then(|| format!("no file {span}"));
    }
    let name = span.split('(').next().unwrap_or(span);
    if name.contains([' ', '/', '-', '[', '"', '!', '=', '…', '<', '&', '$'])
        || name.is_empty()
        || name.ends_with(['_', ':'])
        || name.starts_with('_')
    {
        return None;
    }
    let last = name.rsplit("::").next().unwrap_or(name);
    if name.contains("::") {
        return (!known.contains(last)).then(|| format!("no {name}"));
    }
    if is_type_name(name) {
        return (!types.contains(name)).then(|| format!("no type {name}"));
    }
    let method = name.split_once('.').map(|(_, method)| method);
    let is_call = span.contains('(');
    if let Some(method) = method.filter(|_| is_call) {
        return (!functions.contains(method)).then(|| format!("no function {name}"));
    }
    let is_name = name.contains('_') && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_name && !known.contains(name)).then(|| format!("no {name}"))
}

#[test]
fn names_in_the_pages_for_contributors_exist() {
    let code = read_all_code();
    let known = split_text_into_identifier_words(&code).collect();
    let types = list_defined_names(&code, &["struct", "enum", "trait", "type"]);
    let functions = list_defined_names(&code, &["fn"]);
    let mut faults = Vec::new();
    for page in ["CONTRIBUTING.md", "ARCHITECTURE.md"] {
        let text = read_page(Path::new(page));
        let of_page = list_code_spans(&text);
        assert!(of_page.len() > 50, "{page} has few code spans");
        let found = of_page
            .iter()
            .filter_map(|span| find_code_span_fault(span, &known, &types, &functions));
        faults.extend(found.map(|fault| format!("{page}: {fault}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
