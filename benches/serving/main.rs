//! Measures the time and the memory of serving requests. To run it: `cargo bench --bench serving`.
//! Each line is a run of the program.
//!
//! If `CHAKRAM_CORPUS` names a folder with `validation/requests_azure2023_conv.csv.gz` and
//! `validation/serving_splitwise.part.csv`, one line serves an hour of Azure's requests, repeated five times. Further
//! lines serve language models whose step times are given, and show requests and steps per second. One of them serves
//! 16 users. Others read files from the same folder: Azure's hour on four engines, and Mooncake's conversations
//! (`validation/requests_mooncake_conversation.jsonl.gz`) on sixteen engines. The bench fails if a run takes more time
//! or memory than its line allows, or if ten times as many requests take more memory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A run of the program, with its limits on time and memory.
struct ServingBenchCaseWithBudgets {
    name: &'static str,
    scenario: PathBuf,
    requests: u64,
    platform: Option<&'static str>,
    /// The number of runs, of which the bench keeps the best one.
    runs: u32,
    seconds: f64,
    megabytes: f64,
}

/// The wall time and CPU time in seconds, and the peak memory in MB.
#[derive(Clone, Copy)]
struct WallCpuTimeAndPeakMemory {
    wall: f64,
    cores: f64,
    megabytes: f64,
}

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/serving");
    let own = read_own_peak_megabytes();
    println!(
        "{:34} {:>9} {:>8} {:>8} {:>7}",
        "", "requests", "wall s", "cores s", "MB"
    );
    let million = |name, requests, seconds| ServingBenchCaseWithBudgets {
        name,
        scenario: folder.join("million.toml"),
        requests,
        platform: Some("a100x"),
        runs: 1,
        seconds,
        megabytes: 50.0,
    };
    let few = assert_best_serving_run_in_budget(&million("mixed models", 100_000, 2.0));
    let many = assert_best_serving_run_in_budget(&million("mixed models", 1_000_000, 20.0));
    let grown = many.megabytes - few.megabytes.max(own);
    assert!(
        grown < 2.0,
        "ten times the requests take {grown:.1} MB more"
    );
    for platform in ["lightning", "brainwave"] {
        assert_best_serving_run_in_budget(&ServingBenchCaseWithBudgets {
            name: "9.2e7 products on either platform",
            scenario: folder.join("chatgpt.toml"),
            requests: 1,
            platform: Some(platform),
            runs: 5,
            seconds: 0.1,
            megabytes: 50.0,
        });
    }
    if let Some(scenario) = write_azure_scenario_if_files_exist() {
        assert_best_serving_run_in_budget(&ServingBenchCaseWithBudgets {
            name: "an hour of Azure, five times",
            scenario: scenario.path().join("azure.toml"),
            requests: 96_830,
            platform: None,
            runs: 1,
            seconds: 30.0,
            megabytes: 500.0,
        });
    }
    print_language_model_serving_speed(&folder);
}

/// Prints how fast engines serve language models.
fn print_language_model_serving_speed(folder: &Path) {
    println!(
        "\n{:34} {:>9} {:>8} {:>10} {:>11} {:>7}",
        "", "requests", "cores s", "requests/s", "steps/s", "MB"
    );
    print_best_of_three_llm_runs(
        "1,024/128 tokens, 16 users",
        &folder.join("users.toml"),
        10_000.0,
    );
    let Some(corpus) = std::env::var_os("CHAKRAM_CORPUS") else {
        return;
    };
    let made = tempfile::tempdir().expect("a folder can be made");
    for (name, file, engine, least) in [
        (
            "Azure's hour, 4 engines",
            "requests_azure2023_conv.csv.gz",
            "blocks = 16384\nreplicas = 4\nmax_num_batched_tokens = 8192",
            3_700.0,
        ),
        (
            "Mooncake's talks, 16 engines",
            "requests_mooncake_conversation.jsonl.gz",
            "blocks = 2048\nblock_size = 512\nreplicas = 16\nrouter = \"longest-prefix\"\nmax_num_batched_tokens = 8192",
            1_150.0,
        ),
    ] {
        let requests = Path::new(&corpus).join("validation").join(file);
        if !requests.is_file() {
            continue;
        }
        let text = format!(
            "name = \"hour\"\n[engine]\n{engine}\n[step]\nbase = \"5 ms\"\ntoken = \"30 us\"\nrequest = \"10 us\"\n\
             context = \"20 ns\"\n[requests]\narrivals = \"file\"\nfile = {requests:?}\n"
        );
        let scenario = made.path().join("hour.toml");
        std::fs::write(&scenario, text).expect("it can be written");
        print_best_of_three_llm_runs(name, &scenario, least);
    }
}

/// Runs a language model's scenario three times, and prints the best run. Fails if it serves fewer than `least`
/// requests per second.
fn print_best_of_three_llm_runs(name: &str, scenario: &Path, least: f64) {
    let best = (0..3).map(|_| measure_llm_serving_run(scenario));
    let (taken, [requests, steps]) = best
        .min_by(|a, b| a.0.cores.total_cmp(&b.0.cores))
        .expect("there are three");
    let rate = requests / taken.cores;
    println!(
        "{name:34} {requests:>9} {:>8.3} {rate:>10.0} {:>11.0} {:>7.1}",
        taken.cores,
        steps / taken.cores,
        taken.megabytes
    );
    assert!(rate > least, "at least {least} requests per second");
}

/// Returns a run's time and memory, and how many requests and steps it had.
fn measure_llm_serving_run(scenario: &Path) -> (WallCpuTimeAndPeakMemory, [f64; 2]) {
    let report = tempfile::NamedTempFile::new().expect("a file can be made");
    let mut command = Command::new(env!("CARGO_BIN_EXE_chakram"));
    command
        .arg("serve")
        .arg(scenario)
        .args(["--format", "json"]);
    command.stdout(report.reopen().expect("it can be opened"));
    let taken = run_and_measure_time_and_memory(&mut command);
    let text = std::fs::read_to_string(report.path()).expect("it can be read");
    let report: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let number = |path: &str| report.pointer(path).and_then(|value| value.as_f64());
    let numbers = ["/report/completed", "/report/steps/count"].map(number);
    (
        taken,
        numbers.map(|number| number.expect("reports have it")),
    )
}

/// Creates a folder with the scenario that serves Azure's hour, if its files exist.
fn write_azure_scenario_if_files_exist() -> Option<tempfile::TempDir> {
    let corpus = std::env::var_os("CHAKRAM_CORPUS")?;
    let file = |name: &str| {
        let path = Path::new(&corpus).join("validation").join(name);
        path.is_file().then_some(path)
    };
    let requests = file("requests_azure2023_conv.csv.gz")?;
    let steps = file("serving_splitwise.part.csv")?;
    let text = format!(
        "name = \"azure\"\nprocessors = 16\n[[model]]\nname = \"llama2-70b\"\n\
         steps = {{ file = {steps:?}, tokens = \"prompt_size\", batch = \"batch_size\", prefill = \"prompt_ms\", step = \"token_ms\", \
         where = {{ model = \"llama2-70b\", hardware = \"a100-80gb\", tensor_parallel = \"8\" }} }}\n\
         [stream]\narrivals = \"file\"\nfile = {requests:?}\nrepeat = 5\n\
         [policy]\nkind = \"batching\"\nbatch = 64\nwait = \"500 ms\"\n"
    );
    let folder = tempfile::tempdir().expect("a folder can be made");
    std::fs::write(folder.path().join("azure.toml"), text).expect("it can be written");
    Some(folder)
}

/// Runs a line several times, and prints the best run.
fn assert_best_serving_run_in_budget(
    line: &ServingBenchCaseWithBudgets,
) -> WallCpuTimeAndPeakMemory {
    let runs = (0..line.runs).map(|_| measure_serve_command_once(line));
    let best = runs.min_by(|a, b| a.cores.total_cmp(&b.cores));
    let best = best.expect("there is one run at least");
    println!(
        "{:34} {:>9} {:>8.3} {:>8.3} {:>7.1}",
        line.name, line.requests, best.wall, best.cores, best.megabytes
    );
    assert!(best.cores < line.seconds, "it may take {} s", line.seconds);
    // On Linux, a child's peak starts at its parent's memory.
    let most = line.megabytes.max(read_own_peak_megabytes());
    assert!(best.megabytes <= most, "it may take {most} MB");
    best
}

fn measure_serve_command_once(line: &ServingBenchCaseWithBudgets) -> WallCpuTimeAndPeakMemory {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chakram"));
    command.arg("serve").arg(&line.scenario);
    command.args(line.platform.iter().flat_map(|name| ["--machine", name]));
    if !line.name.contains("Azure") {
        command.args(["--requests", &line.requests.to_string()]);
    }
    command.stdout(Stdio::null());
    run_and_measure_time_and_memory(&mut command)
}

#[expect(clippy::zombie_processes, reason = "`wait4` does, and learns more")]
fn run_and_measure_time_and_memory(command: &mut Command) -> WallCpuTimeAndPeakMemory {
    let start = Instant::now();
    let child = command.spawn().expect("it starts");
    let mut status = 0;
    // SAFETY: the structure contains only integers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers point to variables that outlive the call.
    unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage) };
    let wall = start.elapsed().as_secs_f64();
    assert_eq!(status, 0, "the program fails with wait status {status}");
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    // Linux reports KiB, and macOS reports bytes.
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    WallCpuTimeAndPeakMemory {
        wall,
        cores: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        megabytes: (usage.ru_maxrss * unit) as f64 / 1e6,
    }
}

/// Returns the peak resident memory of the bench itself in MB, if the system reports it.
fn read_own_peak_megabytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
    kib.map_or(0.0, |kib| kib * 1024.0 / 1e6)
}
