//! Tests signals while files are written, and files that are truncated while they are read.

use super::{Folder, text_from_bytes};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Restores the default action of signals for `command`. Shells start background jobs with SIGINT
/// ignored, and child processes inherit this setting.
pub(super) fn restore_default_signal_actions(command: &mut Command) {
    // SAFETY: the call is allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        })
    };
}

/// Starts the job, and returns when some output exists.
fn start_long_job(folder: &Folder) -> Child {
    let mut command = folder.command(&super::LONG_JOB);
    restore_default_signal_actions(&mut command);
    let child = command.stdout(Stdio::null()).spawn().unwrap();
    let id = format!("-{}-", child.id());
    wait_until("temporary file", || {
        let names = folder.names();
        names
            .iter()
            .any(|name| name.contains(&id) && name.ends_with(".tmp"))
    });
    child
}

fn send_signal(child: &Child, signal: i32) {
    // SAFETY: the child was started here and is not waited for yet, so the id is still valid.
    let sent = unsafe { libc::kill(child.id() as i32, signal) };
    assert_eq!(sent, 0);
}

#[test]
fn interrupted_runs_leave_no_files() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let folder = Folder::new();
        let mut child = start_long_job(&folder);
        send_signal(&child, signal);
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(signal), "{status}");
        assert_eq!(folder.names(), [""; 0], "signal {signal}");
    }
}

/// Under `nohup`, the parent sets the signal to be ignored.
#[test]
fn sighup_ignored_by_the_parent_stays_ignored() {
    let folder = Folder::new();
    let mut command = folder.command(&super::LONG_JOB);
    // SAFETY: the call is allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            Ok(())
        })
    };
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    wait_until("temporary file", || !folder.names().is_empty());
    send_signal(&child, libc::SIGHUP);
    std::thread::sleep(Duration::from_millis(50));
    send_signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn the_next_run_removes_temporary_files_of_killed_runs() {
    let folder = Folder::new();
    let mut child = start_long_job(&folder);
    send_signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    let left = folder.names();
    assert!(!left.is_empty());
    // Another run that is still active keeps its files.
    let mut other = start_long_job(&folder);
    let theirs = format!("-{}-", other.id());
    folder.run_successfully_for_stdout(&[
        "generate", "chain", "--ranks", "1", "--nodes", "1", "-o", "job",
    ]);
    let names = folder.names();
    assert!(left.iter().all(|name| !names.contains(name)), "{names:?}");
    assert!(names.iter().any(|name| name.contains(&theirs)), "{names:?}");
    send_signal(&other, libc::SIGTERM);
    other.wait().unwrap();
    assert_eq!(folder.names(), ["job.0.et", "job.job.json"]);
}

/// Writes a trace of nodes whose names are a megabyte of zeros each, so the sparse file takes no disk space.
fn write_huge_sparse_trace(folder: &Folder) {
    const NAME: u64 = 1 << 20;
    let varint = |mut value: u64| {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    };
    let mut file = File::create(folder.path_of_file("huge.0.et")).unwrap();
    // In the metadata record, the version (field 1) is 0.0.4.
    file.write_all(b"\x07\x0a\x050.0.4").unwrap();
    for id in 1..=192 {
        // Field 1 is the id, field 2 the name, and field 3 the type (a kernel, 4).
        let id = [vec![0x08], varint(id)].concat();
        let name = [vec![0x12], varint(NAME)].concat();
        let length = (id.len() + name.len()) as u64 + NAME + 2;
        file.write_all(&[varint(length), id, name].concat())
            .unwrap();
        file.seek(SeekFrom::Current(NAME as i64)).unwrap();
        file.write_all(&[0x18, 4]).unwrap();
    }
}

#[test]
fn a_trace_that_is_cut_while_it_is_read_is_an_error() {
    let folder = Folder::new();
    write_huge_sparse_trace(&folder);
    let mut command = folder.command(&["inspect", "huge.0.et", "-o", "report"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let maps = format!("/proc/{}/maps", child.id());
    wait_until("map", || {
        let maps = std::fs::read_to_string(&maps).unwrap_or_default();
        maps.contains("huge.0.et") || child.try_wait().unwrap().is_some()
    });
    let file = File::options()
        .write(true)
        .open(folder.path_of_file("huge.0.et"));
    file.unwrap().set_len(4096).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = text_from_bytes(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{:?} {error}", output.status);
    assert!(
        error.starts_with("error: huge.0.et: the file became shorter"),
        "{error}"
    );
    assert_eq!(folder.names(), ["huge.0.et"]);
}
