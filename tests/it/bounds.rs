//! Tests small inputs and options that need huge amounts of memory or time, whether from an attacker or a typing error.
//! The program runs under limits of memory and time.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

mod inputs;
mod names;
mod options;

/// The outcome of running the program.
#[derive(Debug)]
struct CommandExitCodeAndOutput {
    code: i32,
    out: String,
    error: String,
}

/// Time limit for running the program. A release build takes a tenth of this time; the rest is a
/// margin for busy machines.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the program under a limit, enforced by the system, of `room` MB of address space beyond its own code. A limit
/// on the peak resident size would not work, because the system includes this process's size at the fork.
fn run_with_memory_limit(room: u64, args: &[&str]) -> CommandExitCodeAndOutput {
    let folder = tempfile::tempdir().unwrap();
    let [out, error] = ["out", "error"].map(|name| folder.path().join(name));
    let file = |path: &Path| std::fs::File::create(path).unwrap();
    let program = env!("CARGO_BIN_EXE_chakram");
    let own = std::fs::metadata(program).unwrap().len();
    let mut command = Command::new(program);
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(args)
        // By default, the C library reserves 64 MB of addresses for each thread.
        .env("MALLOC_ARENA_MAX", "1")
        .stdin(Stdio::null())
        .stdout(file(&out))
        .stderr(file(&error));
    let limit = libc::rlimit {
        rlim_cur: own + room * 1_000_000,
        rlim_max: own + room * 1_000_000,
    };
    // SAFETY: `setrlimit` may be called between fork and exec.
    unsafe {
        command.pre_exec(
            move || match libc::setrlimit(libc::RLIMIT_AS, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            },
        )
    };
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    let (out, error) = (read(&out), read(&error));
    let code = status.code();
    CommandExitCodeAndOutput {
        code: code.unwrap_or_else(|| panic!("{args:?}: {status} {error}")),
        out,
        error,
    }
}

/// Runs the program with a limit of `room` MB of memory. The program must reject the arguments because of its own
/// bound, not the system's, with an error that contains all of `expected`.
fn expect_bound_error(args: &[&str], room: u64, expected: &[&str]) {
    let ran = run_with_memory_limit(room, args);
    assert_eq!(ran.code, 2, "{args:?}: {ran:?}");
    assert!(!ran.error.contains(SYSTEM), "{args:?}: {}", ran.error);
    for part in expected {
        assert!(ran.error.contains(part), "{args:?}: {part}: {}", ran.error);
    }
    assert!(ran.error.len() < 2_000, "{args:?}: {}", ran.error);
}

/// Text of the error when the system runs out of memory.
const SYSTEM: &str = "more than the system has";
