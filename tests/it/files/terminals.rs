//! Tests progress on a terminal. Progress appears after one second, with the rate and the remaining
//! time, disappears at the end and on signals, and is never written to pipes. Long names are cut to
//! fit the line, unless `--details` is used.

use super::signals::restore_default_signal_actions;
use super::{Folder, text_from_bytes};
use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Stdio};
use std::ptr;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Returns a pseudo-terminal: the program's side, and the controlling side.
fn open_pseudo_terminal(columns: u16) -> (File, OwnedFd) {
    let (mut other, mut own) = (0, 0);
    // SAFETY: the type is a plain structure of numbers, for which zeros are valid.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    (size.ws_row, size.ws_col) = (24, columns);
    // SAFETY: the pointers are valid or null, and each opened descriptor gets exactly one owner
    // below.
    unsafe {
        let null = ptr::null_mut();
        let opened = libc::openpty(
            &mut other,
            &mut own,
            null,
            ptr::null_mut(),
            ptr::from_mut(&mut size),
        );
        assert_eq!(opened, 0, "a terminal can be opened");
        (File::from_raw_fd(other), OwnedFd::from_raw_fd(own))
    }
}

/// A running program with one stream on a terminal, and the text received so far.
struct WatchedTerminalProgram {
    child: Child,
    seen: Receiver<Vec<u8>>,
    text: String,
}

impl WatchedTerminalProgram {
    /// Starts the program with its standard error or its output on a terminal.
    fn start(folder: &Folder, args: &[&str], output: bool) -> Self {
        let (mut other, own) = open_pseudo_terminal(100);
        let mut command = folder.command(args);
        restore_default_signal_actions(&mut command);
        match output {
            true => command.stdout(own).stderr(Stdio::null()),
            false => command.stdout(Stdio::null()).stderr(own),
        };
        let child = command.spawn().unwrap();
        // The child now has the only open end, so reading ends when it exits.
        drop(command);
        let (send, seen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // After the program has ended, Linux returns an error.
            while let Ok(count @ 1..) = other.read(&mut bytes) {
                if send.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            seen,
            text: String::new(),
        }
    }

    /// Waits until `part` appears on the terminal.
    fn wait_for_text(&mut self, part: &str) {
        let begun = Instant::now();
        while !self.text.contains(part) {
            let left = Duration::from_secs(60).saturating_sub(begun.elapsed());
            let bytes = self.seen.recv_timeout(left);
            let bytes = bytes.unwrap_or_else(|_| panic!("no {part:?} in {:?}", self.text));
            self.text += &text_from_bytes(&bytes);
        }
    }

    /// Waits until the program ends, and returns all text on the terminal.
    fn wait_for_end_and_take_text(mut self) -> String {
        self.child.wait().unwrap();
        self.seen
            .iter()
            .for_each(|bytes| self.text += &text_from_bytes(&bytes));
        self.text
    }
}

#[test]
fn progress_bar_shows_rate_and_time_left_and_is_cleared_on_a_signal() {
    let folder = Folder::new();
    let mut run = WatchedTerminalProgram::start(&folder, &super::LONG_JOB, false);
    run.wait_for_text(" left");
    let bar = run.text.clone();
    assert!(
        bar.contains("writing ") && bar.contains(" of 64,000,000 nodes, ") && bar.contains("/s, "),
        "{bar:?}"
    );
    // SAFETY: the child was started here and is not waited for yet.
    assert_eq!(
        unsafe { libc::kill(run.child.id() as i32, libc::SIGINT) },
        0
    );
    let text = run.wait_for_end_and_take_text();
    let said = "interrupted: unfinished files were removed";
    let at = text.find(said).unwrap_or_else(|| panic!("{text:?}"));
    assert!(text[..at].ends_with("\r\u{1b}[2K"), "{text:?}");
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn short_runs_and_pipes_have_no_progress_bar() {
    let folder = Folder::new();
    let short = [
        "generate", "chain", "--ranks", "2", "--nodes", "10", "-o", "a",
    ];
    assert_eq!(
        WatchedTerminalProgram::start(&folder, &short, false).wait_for_end_and_take_text(),
        ""
    );
    assert_eq!(folder.run_successfully_for_stderr(&short), "");
}

#[test]
fn names_are_cut_in_the_middle_unless_details_are_asked_for() {
    let folder = Folder::new();
    let long = format!("{}_end", "long_".repeat(30));
    let node = format!("\"name\":\"{long}\",\"type\":\"COMP_NODE\",\"duration_micros\":7");
    super::write_text_trace(&folder, "job.0.jsonl", &[&node]);
    let reports: [&[&str]; 4] = [
        &["replay", "job.0.jsonl", "-m", "dgx-h100"],
        &["inspect", "job.0.jsonl"],
        &["inspect", "job.0.jsonl", "--list"],
        &["inspect", "job.0.jsonl", "--critical-path"],
    ];
    let is_cut = |text: &str, columns: usize, args: &[&str]| {
        let width = |line: &str| {
            line.replace("\u{1b}[1m", "")
                .replace("\u{1b}[0m", "")
                .chars()
                .count()
        };
        let widest = text.lines().map(width).max();
        assert!(
            widest <= Some(columns) && text.contains("…") && text.contains("_end"),
            "{args:?} {widest:?}: {text}"
        );
        assert!(!text.contains(&long), "{args:?}: {text}");
    };
    for args in reports {
        is_cut(
            &WatchedTerminalProgram::start(&folder, args, true).wait_for_end_and_take_text(),
            100,
            args,
        );
        is_cut(&folder.run_successfully_for_stdout(args), 120, args);
        for columns in [100, 140] {
            let mut command = folder.command(args);
            let output = command.env("COLUMNS", columns.to_string()).output();
            is_cut(&text_from_bytes(&output.unwrap().stdout), columns, args);
        }
        let details = [args, &["--details"]].concat();
        assert!(
            folder.run_successfully_for_stdout(&details).contains(&long),
            "{args:?}"
        );
        let json = [args, &["--format", "json"]].concat();
        assert!(
            folder.run_successfully_for_stdout(&json).contains(&long),
            "{args:?}"
        );
    }
}
