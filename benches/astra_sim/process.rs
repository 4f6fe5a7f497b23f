//! Runs the program, and measures its time and memory.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A run's time, memory and output.
pub struct MeasuredProcessRun {
    /// The wall time from the start of the process to its exit.
    pub wall: Duration,
    /// The CPU time in user and system mode.
    pub cpu: Duration,
    /// The peak resident memory in MB.
    pub megabytes: f64,
    /// The lines that the program printed about NPUs.
    pub said: String,
}

/// Runs the program in `folder`, which contains the inputs.
#[expect(clippy::zombie_processes, reason = "`wait` does, and learns more")]
pub fn run_chakram_astra_sim(folder: &Path, model: &str, stepwise: bool) -> MeasuredProcessRun {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chakram"));
    command.current_dir(folder).args([
        "astra-sim",
        "--workload-configuration=wl",
        "--system-configuration=system.json",
        "--remote-memory-configuration=memory.json",
        "--network-configuration=network.yml",
        "--network-model",
        model,
    ]);
    if stepwise {
        command.arg("--stepwise");
    }
    let start = Instant::now();
    // The child inherits standard error, so that its errors are visible.
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut said = String::new();
    let mut out = child.stdout.take().expect("it is a pipe");
    out.read_to_string(&mut said).expect("it is text");
    let (status, usage) = wait_for_child_and_resource_usage(child.id());
    let wall = start.elapsed();
    assert_eq!(status, 0, "the program fails with wait status {status}");
    MeasuredProcessRun {
        wall,
        cpu: duration_from_timeval(usage.ru_utime) + duration_from_timeval(usage.ru_stime),
        megabytes: peak_megabytes_from_rusage(&usage),
        said,
    }
}

/// Waits for a child process that no other code waits for. Returns its status and resource usage.
fn wait_for_child_and_resource_usage(child: u32) -> (libc::c_int, libc::rusage) {
    let mut status = 0;
    // SAFETY: the structure contains only integers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers point to variables that outlive the call.
    let gone = unsafe { libc::wait4(child as libc::pid_t, &mut status, 0, &mut usage) };
    assert_eq!(gone, child as libc::pid_t, "it is a child of this process");
    (status, usage)
}

/// Returns the peak resident memory of the bench itself in MB, if the system reports it. On Linux,
/// a child's peak starts at this value.
pub fn own_peak_megabytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let most = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = most.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

fn peak_megabytes_from_rusage(usage: &libc::rusage) -> f64 {
    // Linux reports KiB, and macOS reports bytes.
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    (usage.ru_maxrss * unit) as f64 / 1e6
}

fn duration_from_timeval(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
}
