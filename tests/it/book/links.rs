//! Tests links between pages, and the table of contents.

use super::{pages, root, text};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Returns the targets of the links on a page, except links in blocks of code.
fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let targets = prose.flat_map(|part| part.split("](").skip(1));
    targets
        .filter_map(|rest| rest.split([')', ' ']).next())
        .collect()
}

/// Returns the anchors of a page, which mdBook and code hosts derive from headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.split("```").step_by(2).flat_map(str::lines);
    let headings = headings.filter(|line| line.starts_with('#'));
    let slug = |heading: &str| -> String {
        let kept = heading.trim_start_matches('#').trim().chars();
        let kept = kept.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| {
            if c == ' ' {
                '-'
            } else {
                c.to_ascii_lowercase()
            }
        })
        .collect()
    };
    headings.map(slug).collect()
}

#[test]
fn links_lead_somewhere() {
    for page in pages() {
        let text = text(&page);
        for target in links(&text)
            .into_iter()
            .filter(|target| !target.contains("://"))
        {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let parent = page.parent().expect("a page is a file");
            let path = if file.is_empty() {
                page.clone()
            } else {
                parent.join(file)
            };
            let whole = root().join(&path).canonicalize();
            let whole = whole.unwrap_or_else(|e| panic!("{}: {target}: {e}", page.display()));
            let inside =
                whole.starts_with(root().join("docs").canonicalize().expect("it is there"));
            assert!(
                inside || !page.starts_with("docs"),
                "{}: {target} leaves the book",
                page.display()
            );
            if !anchor.is_empty() {
                let there = std::fs::read_to_string(&whole).expect("anchors are in text");
                assert!(
                    anchors(&there).contains(anchor),
                    "{}: {target}",
                    page.display()
                );
            }
        }
    }
}

#[test]
fn the_table_of_contents_is_whole() {
    let summary = text(Path::new("docs/SUMMARY.md"));
    let listed: BTreeSet<_> = links(&summary).into_iter().map(PathBuf::from).collect();
    assert_eq!(
        listed.len(),
        links(&summary).len(),
        "every page is listed once"
    );
    let there = pages().into_iter().filter_map(|page| {
        let page = page.strip_prefix("docs").ok()?.to_owned();
        (page != Path::new("SUMMARY.md")).then_some(page)
    });
    assert_eq!(listed, there.collect());
}
