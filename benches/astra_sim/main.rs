//! Measures the rates and the memory of `chakram astra-sim`. To run it:
//! `cargo bench --bench astra_sim`.
//!
//! Each line is a job, which the bench writes into a temporary folder in ASTRA-sim's own file formats. A job trains on
//! a given number of NPUs with a given number of nodes each, runs an all-reduce of 1 MiB, or runs a single kernel. The
//! single kernel measures the start-up. All ranks share one file under many names, unless the line says otherwise.
//!
//! The release build runs the job as a separate process. The bench times it from start to end, including all reading
//! and printing. The job runs twice: with `--stepwise`, which simulates every message, and by default, where
//! collectives use closed forms that are proved to give the same result. Both runs must print the same lines. MB are
//! 10^6 bytes of peak resident memory. Times are the best of five runs. `*` marks runs of more than five seconds, which
//! ran only once.
//!
//! If the variable `CHAKRAM_CORPUS` names a folder, the table also contains ASTRA-sim's times for the same jobs, from
//! `astra-sim/scaling.csv`. It then also shows two kinds of ratios: ASTRA-sim's seconds to chakram's, with `--stepwise`
//! and by default, and ASTRA-sim's MB to chakram's by default. The job must then send the same number of messages as in
//! ASTRA-sim, and finish at the same nanosecond. `cargo bench --bench astra_sim -- ring` runs only the lines whose
//! first column contains `ring`.

mod inputs;
mod original;
mod process;

use inputs::{AstraSystemSettings, BenchmarkNpuWorkKind, LinkedOrCopiedRankFiles, UniformNetwork};
use original::MeasuredAstraSimRun;
use process::MeasuredProcessRun;
use std::collections::BTreeMap;
use std::time::Duration;

const RUNS: usize = 5;
/// A case that takes longer than this runs only once.
const LONG: Duration = Duration::from_secs(5);

/// A line of the table.
struct BenchmarkCase {
    label: &'static str,
    /// The name of ASTRA-sim's row for this case, if there is one.
    row: Option<&'static str>,
    model: &'static str,
    work: BenchmarkNpuWorkKind,
    files: LinkedOrCopiedRankFiles,
    network: UniformNetwork,
    system: AstraSystemSettings,
}

impl BenchmarkCase {
    const fn new(
        label: &'static str,
        row: Option<&'static str>,
        work: BenchmarkNpuWorkKind,
        network: UniformNetwork,
    ) -> Self {
        Self {
            label,
            row,
            model: "unaware",
            work,
            files: LinkedOrCopiedRankFiles::Linked,
            network,
            system: AstraSystemSettings {
                algorithm: "ring",
                optimization: "baseline",
                splits: 4,
                active: 1,
                memory: 1600,
                peak: None,
            },
        }
    }

    /// Creates a training case in which kernels take time.
    const fn new_training_case(
        label: &'static str,
        row: &'static str,
        nodes: u64,
        network: UniformNetwork,
    ) -> Self {
        let mut case = Self::new(
            label,
            Some(row),
            BenchmarkNpuWorkKind::Training(nodes),
            network,
        )
        .optimize_for_local_bandwidth();
        case.system.memory = 2039;
        case.system.peak = Some(312);
        case
    }

    const fn optimize_for_local_bandwidth(mut self) -> Self {
        self.system.optimization = "localBWAware";
        self
    }

    const fn use_aware_network_model(mut self) -> Self {
        self.model = "aware";
        self
    }

    const fn copy_trace_file_for_each_rank(mut self) -> Self {
        self.files = LinkedOrCopiedRankFiles::Copied;
        self
    }

    const fn with_dataset_splits(mut self, splits: u64) -> Self {
        self.system.splits = splits;
        self
    }

    /// Makes all chunks concurrent, and gives the NPUs slow memories.
    const fn make_all_chunks_concurrent(mut self) -> Self {
        self.system.active = self.system.splits;
        self.system.memory = 50;
        self
    }

    const fn use_direct_algorithm(mut self) -> Self {
        self.system.algorithm = "direct";
        self
    }

    fn count_all_reduce_messages(&self) -> u64 {
        self.work.all_reduce_count_per_npu()
            * self.system.splits
            * self.network.messages_per_all_reduce()
    }
}

const fn build_network(
    kind: &'static str,
    dimensions: &'static [u64],
    bandwidth: u64,
    latency: u64,
) -> UniformNetwork {
    UniformNetwork {
        kind,
        dimensions,
        bandwidth,
        latency,
    }
}

const fn build_ring_network(npus: &'static [u64]) -> UniformNetwork {
    build_network("Ring", npus, 50, 500)
}

const fn build_torus_network(dimensions: &'static [u64]) -> UniformNetwork {
    build_network("Ring", dimensions, 100, 100)
}

const fn build_fully_connected_network(npus: &'static [u64]) -> UniformNetwork {
    build_network("FullyConnected", npus, 25, 300)
}

const ONE: BenchmarkNpuWorkKind = BenchmarkNpuWorkKind::AllReduces(1);
const KERNEL: BenchmarkNpuWorkKind = BenchmarkNpuWorkKind::Kernel;

#[rustfmt::skip]
const CASES: &[BenchmarkCase] = &[
    BenchmarkCase::new_training_case("training 8 x 10k", "u_dp_8x10k", 10_000, build_ring_network(&[8])),
    BenchmarkCase::new_training_case("training 8 x 100k", "u_dp_8x100k", 100_000, build_ring_network(&[8])),
    BenchmarkCase::new_training_case("training 64 x 10k", "u_dp_64x10k", 10_000, build_torus_network(&[4, 4, 4])),
    BenchmarkCase::new_training_case("  a file per rank", "u_dp_64x10k", 10_000, build_torus_network(&[4, 4, 4])).copy_trace_file_for_each_rank(),
    BenchmarkCase::new_training_case("training 512 x 10k", "u_dp_512x10k", 10_000, build_torus_network(&[8, 8, 8])),
    BenchmarkCase::new("torus 16x16x16", Some("u_T16_ar_1MB_s4"), ONE, build_torus_network(&[16, 16, 16])),
    BenchmarkCase::new("  a file per rank", Some("u_T16_ar_1MB_s4"), ONE, build_torus_network(&[16, 16, 16])).copy_trace_file_for_each_rank(),
    BenchmarkCase::new("  localBWAware", Some("u_T16_ar_1MB_s4_lbw"), ONE, build_torus_network(&[16, 16, 16])).optimize_for_local_bandwidth(),
    BenchmarkCase::new("  64 splits at once", None, ONE, build_ring_network(&[16, 16, 16])).optimize_for_local_bandwidth().with_dataset_splits(64).make_all_chunks_concurrent(),
    BenchmarkCase::new("  a file per rank", None, ONE, build_ring_network(&[16, 16, 16])).optimize_for_local_bandwidth().with_dataset_splits(64).make_all_chunks_concurrent().copy_trace_file_for_each_rank(),
    BenchmarkCase::new("ring 64", Some("u_R64_ar_1MB_s4_ring"), ONE, build_ring_network(&[64])),
    BenchmarkCase::new("ring 256", Some("u_R256_ar_1MB_s4_ring"), ONE, build_ring_network(&[256])),
    BenchmarkCase::new("ring 1024", Some("u_R1024_ar_1MB_s4_ring"), ONE, build_ring_network(&[1024])),
    BenchmarkCase::new("ring 4096", Some("u_R4096_ar_1MB_s4_ring"), ONE, build_ring_network(&[4096])),
    BenchmarkCase::new("ring 64, aware", Some("a_R64_ar_1MB_s4_ring"), ONE, build_ring_network(&[64])).use_aware_network_model(),
    BenchmarkCase::new("ring 256, aware", Some("a_R256_ar_1MB_s4_ring"), ONE, build_ring_network(&[256])).use_aware_network_model(),
    BenchmarkCase::new("ring 1024, aware", Some("a_R1024_ar_1MB_s4_ring"), ONE, build_ring_network(&[1024])).use_aware_network_model(),
    BenchmarkCase::new("direct 1024, 1 split", None, ONE, build_fully_connected_network(&[1024])).use_direct_algorithm().with_dataset_splits(1),
    BenchmarkCase::new("direct 128, 200 times", None, BenchmarkNpuWorkKind::AllReduces(200), build_fully_connected_network(&[128])).use_direct_algorithm(),
    BenchmarkCase::new("start, ring 4096", None, KERNEL, build_ring_network(&[4096])),
    BenchmarkCase::new("start, 16x32x32", None, KERNEL, build_torus_network(&[16, 32, 32])),
    BenchmarkCase::new("  a file per rank", None, KERNEL, build_torus_network(&[16, 32, 32])).copy_trace_file_for_each_rank(),
];

/// Notes that are printed under the table.
#[derive(Default)]
struct ResultTableNotes {
    /// Descriptions of wrong results.
    faults: Vec<String>,
    /// Runs that shared a core with other processes, each with the share of the core that it got.
    busy: Vec<String>,
}

/// The best results of all runs of a case.
struct BestRunOfCase {
    run: MeasuredProcessRun,
    /// `true` if the case ran only once.
    once: bool,
}

fn measure_best_run(mut run: impl FnMut() -> MeasuredProcessRun) -> BestRunOfCase {
    let mut best = run();
    let once = best.wall > LONG;
    if !once {
        for _ in 1..RUNS {
            let run = run();
            assert!(run.said == best.said, "two runs say two things");
            let megabytes = best.megabytes.min(run.megabytes);
            if run.wall < best.wall {
                best = run;
            }
            best.megabytes = megabytes;
        }
    }
    BestRunOfCase { run: best, once }
}

/// Returns the time at which the last of `npus` NPUs finishes, in nanoseconds.
fn parse_last_finish_ns(said: &str, npus: u64) -> u64 {
    let lines = said.lines().filter_map(|line| {
        let (_, rest) = line.strip_prefix("sys[")?.split_once("] finished, ")?;
        rest.split_once(" cycles")?.0.parse::<u64>().ok()
    });
    let ends: Vec<u64> = lines.collect();
    assert_eq!(ends.len() as u64, npus, "every NPU finishes");
    ends.into_iter().max().expect("there are NPUs")
}

/// Runs a case, prints its line, and records errors in its results.
fn run_case_print_line_and_record_errors(
    case: &BenchmarkCase,
    rows: Option<&BTreeMap<String, MeasuredAstraSimRun>>,
    findings: &mut ResultTableNotes,
) {
    let folder = tempfile::tempdir().expect("there is room");
    inputs::write_astra_inputs(
        folder.path(),
        case.work,
        case.files,
        &case.network,
        &case.system,
    );
    let run = |stepwise| {
        measure_best_run(|| process::run_chakram_astra_sim(folder.path(), case.model, stepwise))
    };
    let (closed, stepwise) = (run(false), run(true));
    let (npus, messages) = (case.network.npus(), case.count_all_reduce_messages());
    let at = parse_last_finish_ns(&stepwise.run.said, npus);
    let mut fault = |what: String| {
        findings
            .faults
            .push(format!("{}: {what}", case.label.trim()))
    };
    if closed.run.said != stepwise.run.said {
        let other = parse_last_finish_ns(&closed.run.said, npus);
        fault(format!("{at} ns by messages, {other} ns in closed form"));
    }
    let seconds = |best: &BestRunOfCase| best.run.wall.as_secs_f64();
    let millions = messages as f64 / 1e6;
    let rate = match messages {
        0 => "-".to_owned(),
        _ => format!("{:.1}", millions / seconds(&stepwise)),
    };
    print!(
        "{:<21}{npus:>5}{millions:>7.2} |{:>8}{rate:>5}{:>6.1} |{:>7}{:>6.1}",
        case.label,
        format_best_wall_time(&stepwise),
        stepwise.run.megabytes,
        format_best_wall_time(&closed),
        closed.run.megabytes,
    );
    let original = rows.map(|rows| case.row.map(|name| &rows[name]));
    match original {
        Some(Some(row)) => {
            print!(
                " |{:>7}{:>6.0}{:>5}{:>6}{:>4}",
                format_seconds(row.seconds),
                row.megabytes,
                format_ratio(row.seconds / seconds(&stepwise)),
                format_ratio(row.seconds / seconds(&closed)),
                format_ratio(row.megabytes / closed.run.megabytes),
            );
            if at != row.finish {
                fault(format!("{at} ns, {} ns in the original", row.finish));
            }
            let theirs = row.messages.filter(|theirs| *theirs != messages);
            if let Some(theirs) = theirs {
                fault(format!("{messages} messages, {theirs} in the original"));
            }
        }
        Some(None) => print!(" |{:>7}{:>6}{:>5}{:>6}{:>4}", "-", "-", "-", "-", "-"),
        None => {}
    }
    println!();
    for (best, manner) in [(&stepwise, "stepwise"), (&closed, "by closed form")] {
        let MeasuredProcessRun { wall, cpu, .. } = best.run;
        let share = cpu.as_secs_f64() / wall.as_secs_f64() * 100.0;
        if share < 80.0 && wall > Duration::from_millis(50) {
            let label = case.label.trim();
            findings.busy.push(format!("{label} {manner} {share:.0} %"));
        }
    }
}

/// Formats seconds with a few digits.
fn format_seconds(seconds: f64) -> String {
    match seconds {
        ..0.1 => format!("{seconds:.4}"),
        ..10.0 => format!("{seconds:.3}"),
        _ => format!("{seconds:.1}"),
    }
}

fn format_best_wall_time(best: &BestRunOfCase) -> String {
    let mark = if best.once { "*" } else { "" };
    format_seconds(best.run.wall.as_secs_f64()) + mark
}

fn format_ratio(ratio: f64) -> String {
    match ratio {
        ..10.0 => format!("{ratio:.1}"),
        _ => format!("{ratio:.0}"),
    }
}

fn main() {
    let asked: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let wanted =
        |case: &&BenchmarkCase| asked.is_empty() || asked.iter().any(|a| case.label.contains(a));
    let rows = original::load_astra_sim_measurements();
    let (first, second) = match rows {
        Some(_) => (
            " | original       times as much",
            " |      s    MB step  def.  MB",
        ),
        None => ("", ""),
    };
    println!("                          million | --stepwise         | default     {first}");
    println!("case                  NPUs messages |      s  M/s    MB |      s    MB{second}");
    let mut findings = ResultTableNotes::default();
    for case in CASES.iter().filter(wanted) {
        run_case_print_line_and_record_errors(case, rows.as_ref(), &mut findings);
    }
    println!("* run once");
    if let Some(own) = process::own_peak_megabytes() {
        println!("MB below {own:.1}, those of the bench itself, are not counted");
    }
    if !findings.busy.is_empty() {
        let runs = findings.busy.join("; ");
        println!("busy machine, cores were had for a part of the time: {runs}");
    }
    assert!(
        findings.faults.is_empty(),
        "\n{}",
        findings.faults.join("\n")
    );
}
