//! Tests host time on other machines, and reports of jobs captured on CPUs.

use crate::files::{Folder, text_from_bytes, write_text_trace};
use serde_json::Value;
use testkit::capture::Device;

/// Returns the text report of a replay on a DGX H100, or on several machines.
fn replay_report(folder: &Folder, args: &[&str]) -> String {
    folder.run_successfully_for_stdout(&[&["replay"], args, &["-m", "dgx-h100"]].concat())
}

/// Returns the same report as JSON.
fn replay_report_json(folder: &Folder, args: &[&str]) -> Value {
    let report = replay_report(folder, &[args, &["--format", "json"]].concat());
    serde_json::from_str(&report).expect("it is JSON")
}

fn integer_from_json(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Returns the parts of the makespan, in picoseconds, divided by how they depend on the machine: `responds`, `fixed`
/// and `follows`. These parts add up to the makespan.
fn split_makespan_by_machine_dependence(report: &Value) -> [u64; 3] {
    let parts = ["responds_ps", "fixed_ps", "follows_ps"];
    let parts = parts.map(|part| integer_from_json(&report["response"][part]));
    assert_eq!(
        parts.iter().sum::<u64>(),
        integer_from_json(&report["makespan_ps"])
    );
    parts
}

/// Writes a job with 10 us of host work, and then 4 us of host delay before a kernel of 5 us.
fn write_dispatched_job(folder: &Folder) {
    let host = "\"name\":\"dispatch\",\"type\":\"COMP_NODE\",\"duration_micros\":10,\
                \"attr\":[{\"name\":\"is_cpu_op\",\"bool_val\":true}]";
    let kernel = "\"name\":\"kernel\",\"type\":\"COMP_NODE\",\"duration_micros\":5,\"data_deps\":[1],\
                  \"attr\":[{\"name\":\"is_cpu_op\",\"bool_val\":false},\
                  {\"name\":\"delay_ns\",\"uint64_val\":4000}]";
    write_text_trace(folder, "job.0.jsonl", &[host, kernel]);
}

#[test]
fn the_host_option_scales_only_host_time() {
    let folder = Folder::new();
    write_dispatched_job(&folder);
    for (host, wanted) in [
        ("recorded", 19_000_000),
        // The sum is 5 + 2 + 5 us.
        ("scaled:0.5", 12_000_000),
        // The sum is 20 + 8 + 5 us.
        ("scaled:2", 33_000_000),
        ("scaled:0", 5_000_000),
    ] {
        let found = replay_report_json(&folder, &["job.0.jsonl", "--host", host]);
        assert_eq!(integer_from_json(&found["makespan_ps"]), wanted, "{host}");
        let host_time = integer_from_json(&found["npus"][0]["time_ps"]["host"]);
        assert_eq!(host_time, wanted - 5_000_000, "{host}");
        if host != "recorded" {
            assert_eq!(found["options"]["host"], host);
        }
    }
    // Kernels scale, but the host does not, so the sum is 10 + 4 + 2.5 us.
    let found = replay_report_json(&folder, &["job.0.jsonl", "--compute", "scaled:0.5"]);
    assert_eq!(integer_from_json(&found["makespan_ps"]), 16_500_000);
    // A delay that the user gives does not scale, so the sum is 1 + 5 + 2 + 5 us.
    let late = ["job.0.jsonl", "--host", "scaled:0.5", "--delay", "0=1us"];
    assert_eq!(
        integer_from_json(&replay_report_json(&folder, &late)["makespan_ps"]),
        13_000_000
    );
}

#[test]
fn the_report_marks_a_job_of_mostly_host_time_as_host_bound() {
    let folder = Folder::new();
    write_dispatched_job(&folder);
    // Of 19 us, 14 us (73.7 %) are host time, and 26.3 % are a recorded kernel.
    let found = replay_report(&folder, &["job.0.jsonl"]).replace('\n', " ");
    let found = found.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        found.contains(
            "HOST-BOUND most of the time is host time: 100.0 % of the time is the same on every machine \
             (host 73.7 %, kernels as recorded 26.3 %), 0.0 % depends on the machine"
        ),
        "{found}"
    );
    // Host time is 2 + 0.8 us of 7.8 us.
    let found = replay_report(&folder, &["job.0.jsonl", "--host", "scaled:0.2"]);
    assert!(!found.contains("HOST-BOUND"), "{found}");
}

#[test]
fn a_capture_on_cpus_says_so_in_the_first_lines() {
    let folder = Folder::new();
    folder.write_two_rank_cpu_capture("cap");
    folder.run_successfully_for_stdout(&["convert", "pytorch", "cap", "-o", "job/"]);
    for options in [
        &[][..],
        &["--compute", "roofline"],
        &["--comm", "recorded"],
        &["--comm", "captured"],
        &["--host", "scaled:0.25"],
    ] {
        let all = [&["job"], options].concat();
        let found = replay_report(&folder, &all);
        let first: Vec<&str> = found.lines().take(6).collect();
        assert!(
            first.iter().any(|line| line.starts_with("CPU CAPTURE  ")),
            "{options:?}: {first:#?}"
        );
        let found = replay_report_json(&folder, &all);
        let [responds, fixed, _] = split_makespan_by_machine_dependence(&found);
        let mean = |part: &str| integer_from_json(&found["mean_ps"][part]);
        assert_eq!(found["response"]["kernels_on_cpu"], true);
        if options.contains(&"roofline") {
            assert_eq!(fixed, mean("host"));
            assert!(responds >= mean("compute"));
        } else {
            assert!(fixed >= mean("host") + mean("compute"));
        }
        if options.contains(&"--comm") {
            assert_eq!(responds, 0);
        }
    }
    // The warning also appears on another machine, and for jobs derived from this one.
    let found = replay_report(&folder, &["job", "-m", "mi300x"]);
    assert!(
        found.contains("! on mi300x: the kernels ran on a CPU"),
        "{found}"
    );
    folder.run_successfully_for_stdout(&["anonymise", "job", "--key", "k", "-o", "hidden/"]);
    folder.run_successfully_for_stdout(&["slice", "job", "--from", "0", "-o", "sliced/"]);
    folder.run_successfully_for_stdout(&["convert", "trace", "job", "-o", "lines/a.jsonl"]);
    for made in ["hidden", "sliced", "lines"] {
        let found = replay_report(&folder, &[made]);
        assert!(found.contains("\nCPU CAPTURE  "), "{made}: {found}");
    }
}

#[test]
fn a_gpu_capture_is_not_reported_as_a_cpu_capture() {
    let folder = Folder::new();
    folder.write_two_rank_capture_on_device(Device::Cuda, "cap");
    folder.run_successfully_for_stdout(&["convert", "pytorch", "cap", "-o", "job/"]);
    let found = replay_report_json(&folder, &["job"]);
    assert_eq!(found["response"]["kernels_on_cpu"], false);
    split_makespan_by_machine_dependence(&found);
    assert!(!replay_report(&folder, &["job"]).contains("CPU CAPTURE"));
}

/// A generated model has no recorded times, so all its time except waiting depends on the machine.
#[test]
fn all_time_of_a_generated_job_except_waiting_depends_on_the_machine() {
    let folder = Folder::new();
    let job = "generate gpt2-small --pipeline 2 --data 2 --batch 8 -m dgx-h100 --format json";
    let job: Vec<&str> = job.split(' ').collect();
    let output = folder.run(&job);
    let found: Value = serde_json::from_str(&text_from_bytes(&output.stdout)).unwrap();
    let [responds, fixed, follows] = split_makespan_by_machine_dependence(&found);
    assert!(responds > follows && follows > 0 && fixed == 0, "{found}");
    let kernels_on_cpu = &found["response"]["kernels_on_cpu"];
    assert_eq!(*kernels_on_cpu, false);
}
