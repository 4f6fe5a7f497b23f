//! Runs the commands of a page in order, and checks their output.

use super::align::{DiffLine, align_shown_and_printed_lines};
use super::{find_repository_root, list_book_pages_with_valid_commands, read_page};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Commands that need a network, a browser, a measured corpus, or more than a few seconds.
const NOT_RUN: usize = 49;
/// Minimum number of commands. Fewer commands would mean that the search for commands is broken.
const LEAST_RUN: usize = 100;

struct PageCommandSequence {
    /// Reason why the command is not run, if any.
    not_run: Option<String>,
    steps: Vec<SessionCommand>,
}

struct SessionCommand {
    /// The command's line number in its file, counted from 1.
    line: usize,
    command: String,
    /// Lines of the file that show the command's output, counted from 0.
    shown: std::ops::Range<usize>,
}

/// Returns the sessions of a page, in order.
fn parse_page_sessions(page: &Path, lines: &[&str]) -> Vec<PageCommandSequence> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        if !lines[at].starts_with("```") {
            at += 1;
            continue;
        }
        let before = lines[..at].iter().rfind(|line| !line.is_empty());
        let reason = before.and_then(|line| line.strip_prefix("<!-- not run: "));
        let not_run = reason.map(|reason| reason.trim_end_matches(" -->").to_owned());
        let start = at + 1;
        let length = lines[start..].iter().position(|line| *line == "```");
        let end = start + length.unwrap_or_else(|| panic!("{}:{start}: no end", page.display()));
        let steps = parse_session_commands(lines, start, end);
        assert!(
            not_run.is_none() || !steps.is_empty(),
            "{}:{start}: `not run` stands before no command",
            page.display()
        );
        if !steps.is_empty() {
            found.push(PageCommandSequence { not_run, steps });
        }
        at = end + 1;
    }
    found
}

fn parse_session_commands(lines: &[&str], start: usize, end: usize) -> Vec<SessionCommand> {
    let mut steps = Vec::new();
    let mut at = start;
    while at < end {
        let Some(first) = lines[at].strip_prefix("$ ") else {
            assert!(
                steps.is_empty(),
                "line {}: output follows its command",
                at + 1
            );
            return steps;
        };
        let line = at + 1;
        let mut command = first.to_owned();
        let until = first
            .split_once("<< '")
            .map(|(_, rest)| rest.split('\'').next());
        let until = until.flatten();
        while at + 1 < end && (lines[at].ends_with('\\') || until.is_some_and(|u| lines[at] != u)) {
            at += 1;
            command = command + "\n" + lines[at];
        }
        at += 1;
        let from = at;
        while at < end && !lines[at].starts_with("$ ") {
            at += 1;
        }
        steps.push(SessionCommand {
            line,
            command,
            shown: from..at,
        });
    }
    steps
}

/// Creates a folder for the commands of a page, with the program as `bin/chakram`.
fn create_page_folder(page: &Path) -> PathBuf {
    let name = page
        .with_extension("")
        .display()
        .to_string()
        .replace('/', "-");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("book")
        .join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).expect("an older one goes");
    }
    std::fs::create_dir_all(folder.join("bin")).expect("it can be made");
    std::fs::create_dir_all(folder.join("work")).expect("it can be made");
    let link = |from: &Path, to: PathBuf| {
        std::os::unix::fs::symlink(from, to).expect("a link can be made");
    };
    link(
        Path::new(env!("CARGO_BIN_EXE_chakram")),
        folder.join("bin/chakram"),
    );
    for name in ["traces", "converters", "docs"] {
        link(
            &find_repository_root().join(name),
            folder.join("work").join(name),
        );
    }
    folder
}

/// Runs a command. Returns its output lines, and `true` if the command exits with 0.
fn run_shell_command(folder: &Path, command: &str) -> (Vec<String>, bool) {
    let path = std::env::var("PATH").expect("there is a PATH");
    let output = Command::new("sh")
        .args(["-c", &format!("exec 2>&1\n{command}\n")])
        .current_dir(folder.join("work"))
        .env("PATH", format!("{}:{path}", folder.join("bin").display()))
        .env("NO_COLOR", "1")
        .env_remove("COLUMNS")
        .env_remove("CHAKRAM_CORPUS")
        .output()
        .expect("there is a shell");
    let printed = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<_> = printed
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    (lines, output.status.success())
}

/// Runs the commands of a page. Returns the failures, the number of commands run, and the reasons why others were not
/// run.
fn check_page_sessions(page: &Path) -> (String, usize, Vec<String>) {
    let text = read_page(page);
    let lines: Vec<_> = text.lines().collect();
    let folder = create_page_folder(page);
    let bless = std::env::var_os("BLESS").is_some();
    let (mut wrong, mut count, mut not_run) = (String::new(), 0, Vec::new());
    let mut blessed: Vec<String> = Vec::new();
    let mut copied = 0;
    for session in parse_page_sessions(page, &lines) {
        if let Some(reason) = session.not_run {
            let steps = session.steps.iter();
            not_run.extend(steps.map(|step| format!("{}:{}: {reason}", page.display(), step.line)));
            continue;
        }
        for step in session.steps {
            count += 1;
            let mut shown = &lines[step.shown.clone()];
            while let [rest @ .., ""] = shown {
                shown = rest;
            }
            let (printed, sound) = run_shell_command(&folder, &step.command);
            let alignment = align_shown_and_printed_lines(shown, &printed);
            let place = format!("{}:{}: $ {}", page.display(), step.line, step.command);
            if !sound {
                let _ = writeln!(
                    wrong,
                    "{place}\n  exits with an error; {}",
                    printed.join("\n  ")
                );
            } else if !bless
                && alignment
                    .iter()
                    .any(|line| !matches!(line, DiffLine::Same(_)))
            {
                let _ = writeln!(wrong, "{place}");
                for line in &alignment {
                    match line {
                        DiffLine::Same(_) => {}
                        DiffLine::Gone(line) => _ = writeln!(wrong, "  shown   {line}"),
                        DiffLine::New(line) => _ = writeln!(wrong, "  printed {line}"),
                    }
                }
            }
            blessed.extend(
                lines[copied..step.shown.start]
                    .iter()
                    .map(|line| line.to_string()),
            );
            let mut gone = None;
            for line in &alignment {
                match *line {
                    DiffLine::Same(line) => blessed.push(line.to_owned()),
                    DiffLine::Gone(line) => gone = Some(line),
                    DiffLine::New(line) => {
                        blessed.push(cut_line_like_replaced_line(gone.take(), line))
                    }
                }
            }
            copied = step.shown.start + shown.len();
        }
    }
    // With BLESS=1, a page is not rewritten if one of its commands fails.
    if bless && wrong.is_empty() {
        blessed.extend(lines[copied..].iter().map(|line| line.to_string()));
        let fresh = blessed.join("\n") + "\n";
        if fresh != text {
            std::fs::write(find_repository_root().join(page), fresh)
                .expect("the page can be written");
        }
    }
    (wrong, count, not_run)
}

/// Cuts a printed line where the line that it replaces was cut.
fn cut_line_like_replaced_line(gone: Option<&str>, printed: &str) -> String {
    let length = gone.and_then(|gone| Some(gone.strip_suffix('…')?.chars().count()));
    match length {
        Some(length) if printed.chars().count() > length => {
            printed.chars().take(length).chain(['…']).collect()
        }
        _ => printed.to_owned(),
    }
}

#[test]
fn every_command_prints_what_is_shown() {
    let pages = list_book_pages_with_valid_commands();
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = pages
            .iter()
            .map(|page| scope.spawn(move || check_page_sessions(page)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no page panics"))
            .collect()
    });
    let wrong: String = results.iter().map(|(wrong, ..)| wrong.as_str()).collect();
    assert!(wrong.is_empty(), "\n{wrong}BLESS=1 writes what is printed");
    let run: usize = results.iter().map(|(_, count, _)| count).sum();
    let not_run: Vec<_> = results
        .into_iter()
        .flat_map(|(.., not_run)| not_run)
        .collect();
    println!(
        "{run} commands run, {} not run:\n{}",
        not_run.len(),
        not_run.join("\n")
    );
    assert!(run >= LEAST_RUN, "{run} commands were found");
    assert_eq!(not_run.len(), NOT_RUN, "not run: {not_run:#?}");
}
