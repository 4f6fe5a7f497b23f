//! Tests jobs that are written and read back: `generate -o` and `replay` give the same report as
//! `generate --machine`, and so does every job that is derived from a job.

use super::{Folder, text_from_bytes, write_text_trace};
use serde_json::Value;

/// Returns a command's report, without the fields about the report's source.
fn report_without_source(folder: &Folder, args: &[&str]) -> Value {
    let json = folder.run_successfully_for_stdout(&[args, &["--format", "json"]].concat());
    let mut report: Value = serde_json::from_str(&json).expect("it is JSON");
    for origin in ["tool_version", "options", "inputs"] {
        report.as_object_mut().expect("an object").remove(origin);
    }
    report
}

fn split_words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Returns the first lines of a text report after its title.
fn first_two_report_lines_after_title(folder: &Folder, args: &[&str]) -> String {
    let report = folder.run_successfully_for_stdout(args);
    let lines: Vec<&str> = report.lines().skip(1).take(2).collect();
    lines.join("\n")
}

/// Generates the job into `s`, replays it from there and directly, checks that both reports are
/// equal, and returns the report.
fn assert_replay_from_disk_equals_direct(
    folder: &Folder,
    job: &str,
    machine: &str,
    options: &str,
) -> Value {
    let run = |args: String| report_without_source(folder, &split_words(&args));
    let direct = run(format!("generate {job} -m {machine} {options}"));
    folder.run_successfully_for_stdout(&split_words(&format!("generate {job} -o s/job")));
    let back = run(format!("replay s -m {machine} {options}"));
    assert!(direct["makespan_ps"].as_u64() > Some(0), "{job}");
    assert_eq!(back, direct, "{job}");
    let of_text = |args: String| first_two_report_lines_after_title(folder, &split_words(&args));
    assert_eq!(
        of_text(format!("replay s -m {machine} {options}")),
        of_text(format!("generate {job} -m {machine} {options}")),
        "{job}"
    );
    direct
}

/// Models under plans have no recorded times, so the options choose curves or roofline for every
/// kernel.
#[test]
fn generated_models_replay_from_disk_as_without_files() {
    for (job, machine, options) in [
        ("llama3-8b --tensor 4 --data 2 --batch 4", "dgx-h100", ""),
        (
            "gpt2-small --pipeline 2 --data 2 --batch 8 --micro-batch 2 --recompute full",
            "dgx-a100",
            "--efficiency 0.5",
        ),
        (
            "resnet-50 --data 4 --batch 8 --zero 2",
            "tpu-v4",
            "--compute scaled:2",
        ),
        (
            "vit-l-16 --tensor 2 --batch 2",
            "dgx-h100",
            "--compute roofline",
        ),
        (
            "gpt2-small --tensor 2 --data 2 --batch 4 --order dp,tp,pp",
            "dgx-a100",
            "--network ports",
        ),
    ] {
        let folder = Folder::new();
        let report = assert_replay_from_disk_equals_direct(&folder, job, machine, options);
        let curves = ["dgx-a100", "dgx-h100"]
            .iter()
            .any(|name| machine.starts_with(name));
        let asked = match options.contains("roofline") {
            true => "priced",
            false if curves && !options.contains("efficiency") => "by_curves",
            false => "estimated",
        };
        let kernels = &report["kernels"];
        assert!(kernels[asked].as_u64() > Some(100), "{job}: {kernels}");
        for other in [
            "priced",
            "by_curves",
            "estimated",
            "kept_recorded",
            "unknown",
        ] {
            assert!(other == asked || kernels[other] == 0, "{job}: {kernels}");
        }
        assert!(report["mean_ps"]["compute"].as_u64() > Some(0), "{job}");
    }
}

/// Patterns have recorded durations, or no kernels.
#[test]
fn generated_patterns_replay_from_disk_as_without_files() {
    for (job, basis) in [
        (
            "collective all-gather --size 1MB --ranks 6 --group 4,1,2",
            "no kernels",
        ),
        ("data-parallel --ranks 8", "kernels as recorded"),
        ("p2p incast --size 1MiB --ranks 8", "no kernels"),
        ("chain --ranks 2 --nodes 100", "kernels as recorded"),
    ] {
        let folder = Folder::new();
        assert_replay_from_disk_equals_direct(&folder, job, "dgx-h100", "");
        let lines = first_two_report_lines_after_title(&folder, &["replay", "s", "-m", "dgx-h100"]);
        let first = lines.lines().next().unwrap();
        assert!(first.ends_with(basis), "{job}: {first}");
    }
}

/// Every command that makes a job from a job keeps everything that a replay needs, and a machine file is found from any
/// folder.
#[test]
fn jobs_made_from_a_job_by_other_commands_replay_like_it() {
    let folder = Folder::new();
    let machine = folder.run_successfully_for_stdout(&["machine", "show", "dgx-h100"]);
    folder.write("my.toml", machine.as_bytes());
    let job = "generate gpt2-small --tensor 2 --data 2 --batch 4 --place tp@0,dp@0 -m my.toml";
    let direct = report_without_source(&folder, &split_words(job));
    folder.run_successfully_for_stdout(&split_words(&format!("{job} -o s/job")));
    let told: Value = serde_json::from_slice(&folder.read("s/job.job.json")).unwrap();
    assert_eq!(told["machine"], "../my.toml");
    for (made, command) in [
        ("text", "convert trace s -o text/a.jsonl"),
        ("packed", "convert trace text -o packed/b.et.zst"),
        ("sliced", "slice s --from 0 -o deep/er/sliced/c"),
        ("hidden", "anonymise s --key k -o hidden/d"),
    ] {
        std::fs::create_dir_all(folder.path_of_file("deep/er")).unwrap();
        folder.run_successfully_for_stdout(&split_words(command));
        let path = if made == "sliced" {
            "deep/er/sliced"
        } else {
            made
        };
        // The machine is part of the job, but with anonymous traces, the user's own machine file is not.
        let args = match made {
            "hidden" => vec!["replay", path, "-m", "my.toml"],
            _ => vec!["replay", path],
        };
        let back = report_without_source(&folder, &args);
        for key in ["makespan_ps", "mean_ps", "kernels", "npus"] {
            let captured = |report: &Value| {
                let mut value = report[key].clone();
                // A slice records the time at which its original ended.
                for row in value.as_array_mut().into_iter().flatten() {
                    row["captured_ps"] = Value::Null;
                    row["difference_percent"] = Value::Null;
                }
                value
            };
            assert_eq!(captured(&back), captured(&direct), "{made}: {key}");
        }
    }
    // The job is replayed from another folder, and after the whole folder is moved.
    std::fs::create_dir(folder.path_of_file("moved")).unwrap();
    for part in ["s", "my.toml"] {
        std::fs::rename(
            folder.path_of_file(part),
            folder.path_of_file(&format!("moved/{part}")),
        )
        .unwrap();
    }
    let mut replay = folder.command(&["replay", "s", "--format", "json"]);
    let output = replay
        .current_dir(folder.path_of_file("moved"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let back: Value = serde_json::from_str(&text_from_bytes(&output.stdout)).unwrap();
    assert_eq!(back["makespan_ps"], direct["makespan_ps"]);
}

/// A job scaled along the data dimension equals the job generated at this size, except for bucket sizes.
#[test]
fn scaled_job_replays_like_the_job_generated_at_its_size() {
    let folder = Folder::new();
    folder.run_successfully_for_stdout(&split_words(
        "generate gpt2-small --tensor 2 --data 2 --batch 4 -o s/job",
    ));
    folder.run_successfully_for_stdout(&split_words("scale s --grid dp=2,tp=2 --to dp=4 -o t/"));
    let before = report_without_source(&folder, &split_words("replay s -m dgx-h100"));
    let after = report_without_source(&folder, &split_words("replay t -m dgx-h100"));
    // With curves, a kernel takes longer while a collective runs, and collectives run at other
    // times in the scaled job.
    let compute = |job: &str| {
        let line = format!("replay {job} -m dgx-h100 --compute roofline");
        let report = report_without_source(&folder, &split_words(&line));
        report["mean_ps"]["compute"].as_u64().unwrap()
    };
    assert_eq!(compute("t"), compute("s"));
    assert_eq!(
        after["kernels"]["estimated"].as_u64().unwrap(),
        2 * before["kernels"]["estimated"].as_u64().unwrap()
    );
}

/// A converted capture has recorded kernels, which only `--compute` changes.
#[test]
fn a_converted_capture_replays_the_same_after_rewriting() {
    let folder = Folder::new();
    folder.write_two_rank_cpu_capture("cap");
    folder.run_successfully_for_stdout(&split_words("convert pytorch cap -o job/"));
    let replay = |job: &str| report_without_source(&folder, &["replay", job, "-m", "dgx-h100"]);
    let direct = replay("job");
    assert_eq!(direct["kernels"]["estimated"], 0);
    assert!(direct["kernels"]["priced"].as_u64() > Some(0));
    folder.run_successfully_for_stdout(&split_words("convert trace job -o text/a.jsonl"));
    folder.run_successfully_for_stdout(&split_words("convert trace text -o back/b.et"));
    for job in ["text", "back"] {
        assert_eq!(replay(job), direct, "{job}");
    }
    let captured = report_without_source(
        &folder,
        &split_words("replay back -m dgx-h100 --comm captured"),
    );
    assert_eq!(captured["makespan_ps"], captured["captured_ps"]);
}

/// ASTRA-sim's traces are jobs without a job file. When they are written again, they have one and give the same report.
#[test]
fn astra_sim_jobs_replay_the_same_after_rewriting() {
    let folder = Folder::new();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/");
    let inputs = format!("{root}astra-sim-8");
    let replay = |job: &str| report_without_source(&folder, &["replay", job, "-m", "dgx-h100"]);
    folder.run_successfully_for_stdout(&["convert", "trace", &inputs, "-o", "s/job.et"]);
    assert_eq!(replay("s"), replay(&inputs));
    // `replay` cannot use ASTRA-sim's system file as a machine. With `astra-sim`, the written job gives the same
    // results as the inputs.
    let all = |prefix: &str| {
        let flag = |name: &str, file: &str| format!("--{name}={root}astra-sim-8/{file}");
        let args = [
            "astra-sim".to_owned(),
            format!("--workload-configuration={prefix}"),
            flag("system-configuration", "system.json"),
            flag("network-configuration", "network.yml"),
            flag("remote-memory-configuration", "memory.json"),
        ];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        folder.run_successfully_for_stdout(&args)
    };
    assert_eq!(all("s/job"), all(&format!("{inputs}/all_reduce")));
}

/// Writes a text trace of kernels, which are given by their attributes.
fn write_kernel_trace(folder: &Folder, name: &str, kernels: &[&str]) {
    let nodes = (1..)
        .zip(kernels)
        .map(|(id, attributes)| format!("\"name\":\"k{id}\",\"type\":\"COMP_NODE\"{attributes}"));
    let nodes: Vec<String> = nodes.collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    write_text_trace(folder, name, &nodes);
}

const RECORDED: &str = ",\"duration_micros\":10";
/// 989.4e6 FLOPs take 1 us on an H100.
const WORK: &str = ",\"attr\":[{\"name\":\"num_ops\",\"uint64_val\":989400000},\
                    {\"name\":\"dtype\",\"string_val\":\"bf16\"}]";
const FP4: &str = ",\"attr\":[{\"name\":\"num_ops\",\"uint64_val\":989400000},\
                   {\"name\":\"dtype\",\"string_val\":\"fp4\"}]";
const NOTHING: &str = "";

#[test]
fn report_begins_with_kernel_counts_by_source_of_time() {
    let folder = Folder::new();
    let replay = ["replay", "job.0.jsonl", "-m", "dgx-h100"];
    write_kernel_trace(
        &folder,
        "job.0.jsonl",
        &[RECORDED, RECORDED, RECORDED, RECORDED, WORK, NOTHING, FP4],
    );
    let lines = first_two_report_lines_after_title(&folder, &replay);
    assert!(
        lines.contains("4 kernels as recorded, 1 by roofline, 2 without a price"),
        "{lines}"
    );
    // Independent nodes on one lane run one after another, which takes 4 x 10 + 1 us. Otherwise,
    // they run at the same time.
    let json = report_without_source(&folder, &replay);
    let lasts = |json: &Value| json["npus"][0]["time_ps"]["compute"].as_u64().unwrap();
    assert!([10_000_000, 41_000_000].contains(&lasts(&json)), "{json}");
}

#[test]
fn a_job_of_kernels_without_a_time_is_refused_and_they_are_named() {
    let folder = Folder::new();
    let replay = ["replay", "job.0.jsonl", "-m", "dgx-h100"];
    write_kernel_trace(&folder, "job.0.jsonl", &[RECORDED, NOTHING, NOTHING]);
    let error = folder.run_refused_for_stderr(&replay);
    assert!(
        error.contains("2 of 3 kernels have no time")
            && error.contains("rank 0 node 2 `k2`, rank 0 node 3 `k3`")
            && error.contains("--compute scaled:0"),
        "{error}"
    );
    // The option that the error message proposes works.
    folder.run_successfully_for_stdout(&[&replay[..], &["--compute", "scaled:0"]].concat());
    // Half of the kernels do not count as most kernels. Arithmetic in a format without a peak is an error if most
    // kernels have no recorded duration.
    write_kernel_trace(
        &folder,
        "job.0.jsonl",
        &[RECORDED, RECORDED, NOTHING, NOTHING],
    );
    folder.run_successfully_for_stdout(&replay);
    write_kernel_trace(&folder, "job.0.jsonl", &[RECORDED, WORK, WORK, FP4]);
    let error = folder.run_refused_for_stderr(&replay);
    assert!(
        error.contains("rank 0 node 4 `k4`: the kernel computes in fp4"),
        "{error}"
    );
}

#[test]
fn options_without_effect_are_refused() {
    let folder = Folder::new();
    write_kernel_trace(&folder, "job.0.jsonl", &[RECORDED]);
    let replay = ["replay", "job.0.jsonl", "-m", "dgx-h100"];
    let error = folder.run_refused_for_stderr(&[&replay[..], &["--efficiency", "0.5"]].concat());
    assert!(error.contains("try: --compute roofline"), "{error}");
    let error = folder.run_refused_for_stderr(&[&replay[..], &["--host", "scaled:0.5"]].concat());
    assert!(
        error.contains("no node of this job is host work"),
        "{error}"
    );
    write_kernel_trace(&folder, "job.0.jsonl", &[WORK]);
    let error =
        folder.run_refused_for_stderr(&[&replay[..], &["--recorded-on", "dgx-a100"]].concat());
    assert!(
        error.contains("the machine of recorded kernels, but this job has none"),
        "{error}"
    );
}
