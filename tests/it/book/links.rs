//! Tests links between pages, and the table of contents.

use super::{find_repository_root, list_book_pages, read_page};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Returns the targets of the links on a page, except links in blocks of code.
fn list_link_targets(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let targets = prose.flat_map(|part| part.split("](").skip(1));
    targets
        .filter_map(|rest| rest.split([')', ' ']).next())
        .collect()
}

/// Returns the anchors of a page, which mdBook and code hosts derive from headings.
fn list_page_anchors(text: &str) -> BTreeSet<String> {
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
    for page in list_book_pages() {
        let text = read_page(&page);
        for target in list_link_targets(&text)
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
            let whole = find_repository_root().join(&path).canonicalize();
            let whole = whole.unwrap_or_else(|e| panic!("{}: {target}: {e}", page.display()));
            let inside = whole.starts_with(
                find_repository_root()
                    .join("docs")
                    .canonicalize()
                    .expect("it is there"),
            );
            assert!(
                inside || !page.starts_with("docs"),
                "{}: {target} leaves the book",
                page.display()
            );
            if !anchor.is_empty() {
                let there = std::fs::read_to_string(&whole).expect("anchors are in text");
                assert!(
                    list_page_anchors(&there).contains(anchor),
                    "{}: {target}",
                    page.display()
                );
            }
        }
    }
}

#[test]
fn the_table_of_contents_is_whole() {
    let summary = read_page(Path::new("docs/SUMMARY.md"));
    let listed: BTreeSet<_> = list_link_targets(&summary)
        .into_iter()
        .map(PathBuf::from)
        .collect();
    assert_eq!(
        listed.len(),
        list_link_targets(&summary).len(),
        "every page is listed once"
    );
    let there = list_book_pages().into_iter().filter_map(|page| {
        let page = page.strip_prefix("docs").ok()?.to_owned();
        (page != Path::new("SUMMARY.md")).then_some(page)
    });
    assert_eq!(listed, there.collect());
}
