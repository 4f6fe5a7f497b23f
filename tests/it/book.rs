//! Tests README.md and the book under `docs/`. Runs every command in order, and compares its output with the lines
//! below it. Also checks that every link has a target, and that the table of contents is complete.
//!
//! In a fenced block, lines that begin with `$ ` are commands of a shell. A command continues while its lines end with
//! `\`, and to the end of a here-document. The lines after a command are its output, including errors. A line `…`
//! matches any number of lines. A line that ends with `…` matches every line that begins in the same way. All blocks of
//! a file run in one folder, which contains only `traces` and `converters`. Every command exits with 0. A comment `<!--
//! not run: REASON -->` before a block states why its commands are not run here. `BLESS=1 cargo test --test it book`
//! writes the output into the files, and keeps the cuts.

mod align;
mod code_names;
mod links;
mod options;
mod sessions;

use std::path::{Path, PathBuf};

fn find_repository_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the paths of README.md and of all Markdown files under `docs/`, relative to the root.
fn list_book_pages() -> Vec<PathBuf> {
    let mut pages = vec![PathBuf::from("README.md")];
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(find_repository_root().join(&folder)).expect("docs are there")
        {
            let entry = entry.expect("the folder can be listed");
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// Returns all pages except the page about wrong inputs, whose commands another test runs.
fn list_book_pages_with_valid_commands() -> Vec<PathBuf> {
    let mut pages = list_book_pages();
    pages.retain(|page| !page.ends_with("reference/messages.md"));
    pages
}

fn read_page(page: &Path) -> String {
    let text = std::fs::read_to_string(find_repository_root().join(page));
    text.unwrap_or_else(|e| panic!("{}: {e}", page.display()))
}

#[test]
fn the_readme_has_at_most_200_lines() {
    assert!(read_page(Path::new("README.md")).lines().count() <= 200);
}
