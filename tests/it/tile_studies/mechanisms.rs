//! Tests that each mechanism of the paper has a test.

use std::collections::BTreeSet;
use std::path::Path;

/// Adds the names of all tests in the files under `folder`.
fn collect_test_names_in_folder(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("the source is there") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            collect_test_names_in_folder(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("it is text");
            for part in text.split("#[test]").skip(1) {
                let name = part
                    .split_once("fn ")
                    .and_then(|(_, rest)| rest.split_once('('));
                found.extend(name.map(|(name, _)| name.trim().to_owned()));
            }
        }
    }
}

/// The validation table lists each of P1 to P26 once, in order, with its claim and tests that exist.
#[test]
fn every_mechanism_names_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    for folder in ["src", "tests/it"] {
        collect_test_names_in_folder(&root.join(folder), &mut tests);
    }
    let text = std::fs::read_to_string(root.join("docs/validation/tiles.md")).expect("it is there");
    let rows = text.lines().filter(|line| line.starts_with("| P"));
    let rows: Vec<Vec<&str>> = rows
        .map(|row| row.split('|').map(str::trim).collect())
        .collect();
    let numbers: Vec<&str> = rows.iter().map(|row| row[1]).collect();
    let expected: Vec<String> = (1..=26).map(|number| format!("P{number}")).collect();
    assert_eq!(numbers, expected);
    for row in &rows {
        let [_, number, mechanism, named, holds, _] = row[..] else {
            panic!("not five cells: {row:?}");
        };
        let named: Vec<&str> = named.split('`').skip(1).step_by(2).collect();
        assert!(
            !named.is_empty() && !mechanism.is_empty() && !holds.is_empty(),
            "{number}"
        );
        for name in named {
            assert!(tests.contains(name), "{number}: there is no test {name}");
        }
    }
}
