//! Measures the time and the memory of replaying a step of a large language model on thousands of
//! NPUs. To run it: `cargo bench --bench scale`. To run only some lines:
//! `cargo bench --bench scale -- 1024 sequence`.
//!
//! The times of the parts are the process's CPU times. The number of node runs is the number of nodes per rank times
//! the number of ranks, so a collective of 8 ranks counts as 8 runs. Memory is the process's peak, which includes
//! earlier lines. To measure the peak of one line, run only this line.

mod job;

use chakram::engine::{CompiledReplay, ReplayOptions};
use chakram::machine::Machine;
use chakram::report;
use job::ParallelTrainingJobSize;
use std::hint::black_box;
use std::time::Instant;

const LINES: [(&str, ParallelTrainingJobSize); 4] = [
    ("1024", GPT),
    (
        "1024 sequence",
        ParallelTrainingJobSize {
            sequence: true,
            ..GPT
        },
    ),
    ("16384", LLAMA),
    (
        "16384 sequence",
        ParallelTrainingJobSize {
            sequence: true,
            ..LLAMA
        },
    ),
];

/// GPT-3 175B on 1,024 ranks: 96 layers in 16 stages, and a batch of 1,536 in micro-batches of 1.
const GPT: ParallelTrainingJobSize = ParallelTrainingJobSize {
    tensor: 8,
    stages: 16,
    replicas: 8,
    micro_batches: 192,
    layers: 6,
    sequence: false,
};

/// Llama 3 405B on 16,384 ranks: 126 layers, padded to 128, in 16 stages.
const LLAMA: ParallelTrainingJobSize = ParallelTrainingJobSize {
    replicas: 128,
    micro_batches: 16,
    layers: 8,
    ..GPT
};

fn main() {
    let asked = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"));
    let asked = asked.collect::<Vec<_>>().join(" ");
    for (name, job) in LINES {
        if asked.is_empty() || asked == name {
            measure_and_print_job_replay(name, job);
        }
    }
}

fn measure_and_print_job_replay(name: &str, job: ParallelTrainingJobSize) {
    let text = format!("dgx-h100x{}", job.ranks() / 8);
    let machine = Machine::load_preset(&text).expect("it scales");
    let (start, mut before) = (Instant::now(), read_process_cpu_seconds());
    let mut lap = || {
        let now = read_process_cpu_seconds();
        now - std::mem::replace(&mut before, now)
    };
    let workload = job.workload();
    let generated = lap();
    let options = ReplayOptions::default();
    let prepared = CompiledReplay::new(&workload, &machine, &options).expect("it can run");
    let planned = lap();
    let (report, ()) = report::replay_to_report(&prepared, ()).expect("it ends");
    let replayed = lap();
    let style = report::text::TextStyleWidthAndDetail::default();
    black_box(report::report_text::render_text(&report, name, "", style));
    let rendered = lap();
    let nodes = workload.node_count() as f64;
    println!(
        "{name}: {nodes:.2e} node runs in {:.1} s; of these at work {:.1} s: generate {generated:.2}, plan \
         {planned:.2}, replay {replayed:.2} ({:.2e} node runs a second), render {rendered:.2}; {:.2} GB, \
         report {:016x}",
        start.elapsed().as_secs_f64(),
        generated + planned + replayed + rendered,
        nodes / replayed,
        read_peak_memory_gb(),
        chakram::internals::stable_hash(&format!("{report:?}")),
    );
}

/// Returns the CPU time of the process in seconds, if the system reports it. Wall time would
/// include other processes on a busy machine.
fn read_process_cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
    nanoseconds.map_or(f64::NAN, |ns| ns / 1e9)
}

/// Returns the peak memory of the process in GB, if the system reports it.
fn read_peak_memory_gb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
    number.map_or(f64::NAN, |kib| kib * 1024.0 / 1e9)
}
