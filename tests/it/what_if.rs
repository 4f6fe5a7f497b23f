//! Tests transforms of jobs: compares transformed jobs with jobs generated with the target plan, with the results of
//! inverse transforms, and with measured runs.

use crate::commands::run_chakram;
use crate::corpus::corpus_path_or_count_skip;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use tempfile::TempDir;

mod plan_grid;

/// Returns a transformer with this many layers, small enough for a test.
fn make_small_transformer_toml(layers: u32) -> String {
    let shown = run_chakram(&["model", "show", "gpt2-small", "--toml"]);
    let text = String::from_utf8(shown.stdout).expect("it is text");
    let mut model = String::new();
    for line in text.lines() {
        let line = match line.split_once(" = ") {
            Some(("layers", _)) => format!("layers = {layers}"),
            Some(("hidden", _)) => "hidden = 256".to_owned(),
            Some(("heads", _)) => "heads = 4".to_owned(),
            _ => line.to_owned(),
        };
        writeln!(model, "{line}").expect("strings grow");
    }
    model
}

fn run_for_stdout(words: &[&str]) -> String {
    let output = run_chakram(words);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8(output.stdout).expect("it is text")
}

fn expect_cli_error(words: &[&str]) -> String {
    let output = run_chakram(words);
    assert_eq!(output.status.code(), Some(2), "{words:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Jobs in a folder.
struct Jobs(TempDir);

impl Jobs {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("there is room"))
    }

    fn create_job_folder(&self, name: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(&path).expect("there is room");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// Generates a job with these options.
    fn generate(&self, name: &str, layers: u32, options: &str) -> String {
        let file = self.0.path().join(format!("of-{layers}.toml"));
        std::fs::write(&file, make_small_transformer_toml(layers)).expect("there is room");
        let to = format!("{}/job", self.create_job_folder(name));
        let mut words = vec![
            "generate",
            file.to_str().expect("UTF-8"),
            "--bucket",
            "2MB",
            "-o",
            &to,
        ];
        words.extend(options.split_ascii_whitespace());
        if !options.contains("--tokens") {
            words.extend(["--tokens", "64"]);
        }
        run_for_stdout(&words);
        self.create_job_folder(name)
    }

    /// Writes a transformed job.
    fn edit(&self, job: &str, name: &str, edits: &[&str]) -> String {
        let to = format!("{}/job", self.create_job_folder(name));
        // Tests may have added recorded times to the kernels since the job was written.
        let mut words = vec!["edit", job, "--no-verify", "-o", &to];
        edits.iter().for_each(|edit| words.extend(["--edit", edit]));
        run_for_stdout(&words);
        self.create_job_folder(name)
    }
}

fn replay_for_json(job: &str, options: &[&str]) -> Value {
    let machine: &[&str] = match options.contains(&"-m") {
        true => &[],
        false => &["-m", "dgx-h100"],
    };
    let words = [&["replay", job, "--format", "json"], machine, options].concat();
    serde_json::from_str(&run_for_stdout(&words)).expect("it is JSON")
}

fn read_trace_files(folder: &str) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(folder).expect("it is a folder");
    let paths = files.map(|file| file.expect("it is there").path());
    let traces = paths.filter(|path| path.extension().is_some_and(|end| end == "et"));
    let mut traces: Vec<_> = traces
        .map(|path| {
            let name = path
                .file_name()
                .expect("it has a name")
                .to_string_lossy()
                .into_owned();
            (name, std::fs::read(&path).expect("it is readable"))
        })
        .collect();
    traces.sort();
    traces
}

/// The plans have several batches, layers, gradient accumulations and replicas. The structure and the time equal the
/// generator's, which shares no code with transforms.
#[test]
fn edited_jobs_equal_jobs_generated_with_the_edited_plan() {
    let jobs = Jobs::new();
    for (data, micro_batches) in [(1, 1), (2, 2)] {
        let plan = |data: u32, micro_batches: u32, micro_batch: u32| {
            let batch = data * micro_batches * micro_batch;
            format!("--data {data} --batch {batch} --micro-batch {micro_batch}")
        };
        let own = plan(data, micro_batches, 2);
        let base = jobs.generate("base", 4, &own);
        for (edit, layers, options) in [
            ("layers=+3", 7, own.clone()),
            ("layers=-2", 2, own.clone()),
            ("batch=3x", 4, plan(data, micro_batches, 6)),
            (
                "sequence=2x",
                4,
                own.replace("--data", "--tokens 128 --data"),
            ),
            ("accumulate=2", 4, plan(data, 2 * micro_batches, 2)),
            ("data=4", 4, plan(4, micro_batches, 2)),
        ] {
            if edit == "data=4" && data == 1 || edit == "accumulate=2" && micro_batches > 1 {
                continue;
            }
            let generated = jobs.generate("generated", layers, &options);
            let expected = replay_for_json(&generated, &[]);
            let edited = replay_for_json(&base, &["--edit", edit]);
            assert_eq!(edited["nodes"], expected["nodes"], "{edit} of {own}");
            let times =
                [&edited, &expected].map(|report| report["makespan_ps"].as_f64().expect("a time"));
            let off = times[0] / times[1] - 1.0;
            assert!(off.abs() < 0.01, "{edit} of {own}: {:+.2} %", off * 100.0);
            let unedited = replay_for_json(&base, &[])["makespan_ps"].clone();
            assert_eq!(edited["edits"]["unedited_makespan_ps"], unedited, "{edit}");
            std::fs::remove_dir_all(&generated).expect("it is there");
        }
        std::fs::remove_dir_all(&base).expect("it is there");
    }
}

/// Four of 64 ranks, with the others filled in by their roles, take as long as all 64. A role without a captured rank
/// is an error.
#[test]
fn jobs_of_a_few_ranks_are_completed_by_roles() {
    let jobs = Jobs::new();
    let machine = ["-m", "dgx-h100x8"];
    for (ranks, plan) in [
        (
            &[0, 17, 34, 51][..],
            "--data 4 --pipeline 4 --tensor 4 --batch 8",
        ),
        (
            &[0, 8, 24, 56],
            "--data 4 --pipeline 8 --tensor 2 --batch 32",
        ),
        (
            &[0, 1, 6, 15],
            "--data 4 --pipeline 8 --tensor 2 --batch 16 --schedule gpipe --order tp,pp,dp",
        ),
        (&[0, 1, 2, 3], "--data 64 --zero 3 --batch 64"),
        (
            &[0, 17, 34, 51],
            "--data 16 --tensor 4 --sequence-parallel --zero 1 --batch 16",
        ),
    ] {
        let whole = jobs.generate("whole", 8, plan);
        let part = jobs.create_job_folder("part");
        for rank in ranks {
            let file = format!("job.{rank}.et");
            std::fs::copy(Path::new(&whole).join(&file), Path::new(&part).join(&file))
                .expect("there is room");
        }
        let replay = |job: &str, more: &[&str]| {
            let words = [&["replay", job, "--format", "json"], &machine[..], more].concat();
            let report: Value = serde_json::from_str(&run_for_stdout(&words)).expect("it is JSON");
            (
                report["nodes"].clone(),
                report["makespan_ps"].as_f64().expect("a time"),
            )
        };
        let groups = format!("{whole}/job.groups.json");
        let declared = ["--groups", &groups];
        let declared = if Path::new(&groups).exists() {
            &declared[..]
        } else {
            &[]
        };
        let expected = replay(&whole, &[]);
        let completed = replay(&part, &[declared, &["--edit", "ranks=64"]].concat());
        assert_eq!(completed.0, expected.0, "{plan}");
        let off = completed.1 / expected.1 - 1.0;
        assert!(off.abs() < 0.005, "{plan}: {:+.2} %", off * 100.0);
        if plan.contains("pipeline 4") {
            std::fs::remove_file(Path::new(&part).join("job.51.et")).expect("it is there");
            let words = [
                &["replay", &part, "--edit", "ranks=64"],
                &machine[..],
                declared,
            ]
            .concat();
            let found = expect_cli_error(&words);
            assert!(
                found.contains("no captured rank is of the last stage"),
                "{found}"
            );
        }
        std::fs::remove_dir_all(&whole).expect("it is there");
        std::fs::remove_dir_all(&part).expect("it is there");
    }
}

/// Files are transformed and transformed back.
#[test]
fn edits_and_their_inverses_give_the_same_bytes() {
    let jobs = Jobs::new();
    let generated = jobs.generate("base", 3, "--data 2 --batch 8 --micro-batch 2");
    let captured = jobs.create_job_folder("captured");
    let capture = ["convert", "pytorch", "traces/ddp-resnet18/capture", "-o"];
    run_for_stdout(&[&capture[..], &[&format!("{captured}/job")]].concat());
    for (job, there, back) in [
        (&generated, "layers=+2", "layers=-2"),
        (&generated, "layers=-1", "layers=+1"),
        (&generated, "batch=3x", "batch=1/3x"),
        (&captured, "batch=2x", "batch=1/2x"),
        (&captured, "sequence=3x", "sequence=1/3x"),
    ] {
        let edited = jobs.edit(job, "there", &[there]);
        assert!(
            read_trace_files(job) != read_trace_files(&edited),
            "{there} changes something"
        );
        let again = jobs.edit(&edited, "again", &[back]);
        assert!(
            read_trace_files(job) == read_trace_files(&again),
            "{there} and {back}"
        );
        let together = jobs.edit(job, "together", &[there, back]);
        assert!(
            read_trace_files(job) == read_trace_files(&together),
            "{there} with {back}"
        );
        for folder in [edited, again, together] {
            std::fs::remove_dir_all(folder).expect("it is there");
        }
    }
}

/// On a rank whose nodes run in sequence, each of two steps begins 3 ms later.
#[test]
fn a_delay_edit_lengthens_a_sequential_rank_by_that_delay() {
    let jobs = Jobs::new();
    let job = jobs.generate("base", 2, "--batch 2 --micro-batch 2");
    for at in ["forward", "backward", "optimizer"] {
        // Without launches no node runs ahead of the delay.
        let launch = ["--launch", "none"];
        let before = replay_for_json(&job, &launch)["makespan_ps"]
            .as_u64()
            .expect("a time");
        let edit = format!("delay=3ms,at={at}");
        let after =
            replay_for_json(&job, &[&launch[..], &["--edit", &edit]].concat())["makespan_ps"]
                .as_u64()
                .expect("a time");
        assert_eq!(after - before, 3_000_000_000, "{at}");
    }
}

/// With four micro-batches of half the size, there are twice as many messages, each with half the bytes.
#[test]
fn splitting_micro_batches_gives_the_messages_of_a_generated_job() {
    let jobs = Jobs::new();
    let plan = "--pipeline 2 --batch 8 --micro-batch 4";
    let job = jobs.generate("base", 4, plan);
    let generated = jobs.generate("generated", 4, "--pipeline 2 --batch 8 --micro-batch 2");
    let edited = replay_for_json(&job, &["--edit", "microbatches=2x"]);
    let expected = replay_for_json(&generated, &[]);
    assert_eq!(edited["nodes"], expected["nodes"]);
    assert_eq!(edited["messages"], expected["messages"]);
}

/// If reductions follow the backward pass, the job equals that of a plan without overlap, and passes have the order of
/// the target schedule.
#[test]
fn edited_overlap_and_schedules_equal_those_of_generated_jobs() {
    let jobs = Jobs::new();
    let (stages, replicas) = (
        "--pipeline 2 --batch 8 --micro-batch 2 --schedule",
        "--data 2 --batch 4 --micro-batch 2 --overlap",
    );
    for (from, to, edit) in [
        (
            format!("{replicas} true"),
            format!("{replicas} false"),
            "overlap=off",
        ),
        (
            format!("{stages} gpipe"),
            format!("{stages} 1f1b"),
            "schedule=1f1b",
        ),
        (
            format!("{stages} 1f1b"),
            format!("{stages} gpipe"),
            "schedule=gpipe",
        ),
    ] {
        let base = jobs.generate("base", 4, &from);
        let generated = jobs.generate("generated", 4, &to);
        let [edited, expected] = [
            replay_for_json(&base, &["--edit", edit]),
            replay_for_json(&generated, &[]),
        ];
        assert_eq!(edited["makespan_ps"], expected["makespan_ps"], "{edit}");
        // The peak of activations distinguishes 1F1B from GPipe, which take equally long.
        assert_eq!(edited["memory"], expected["memory"], "{edit}");
        assert!(
            edited["edits"]["rows"][0]["changed"].as_u64() > Some(0),
            "{edit}"
        );
        std::fs::remove_dir_all(&base).expect("it is there");
        std::fs::remove_dir_all(&generated).expect("it is there");
    }
}

#[test]
fn edits_without_an_effect_or_an_answer_are_refused_by_name() {
    let job = "traces/ddp-resnet18";
    let edit = |edit: &str| expect_cli_error(&["replay", job, "-m", "dgx-h100", "--edit", edit]);
    for (wrong, says) in [
        (
            "tensor=2",
            "`tensor` cannot be edited: other tensor-parallel degrees",
        ),
        (
            "layer=2x",
            "no edit is called `layer`; did you mean `layers`?",
        ),
        ("batch=0x", "`0x` is not a factor"),
        ("layers=many", "`many` is not a value of layers"),
        ("microbatches=2x", "no step has several micro-batches"),
        ("delay=3ms,at=lunch", "`lunch` is not a phase"),
        ("reshard=on", "reshard=on cannot be made"),
        ("reshard=off", "finds nothing to change"),
        ("delay=3ms,rank=9", "finds nothing to change"),
    ] {
        let found = edit(wrong);
        assert!(found.contains(says), "{wrong}: {found}");
    }
}

/// Replicas of a one-rank job without communication would be eight independent jobs.
#[test]
fn jobs_without_communication_are_scaled_only_with_an_option() {
    let jobs = Jobs::new();
    let job = jobs.generate("base", 2, "--batch 2 --micro-batch 2");
    let to = format!("{}/job", jobs.create_job_folder("scaled"));
    let scale = ["scale", &job, "--grid", "dp=1", "--to", "dp=8", "-o", &to];
    let found = expect_cli_error(&scale);
    assert!(found.contains("exchange nothing"), "{found}");
    run_for_stdout(&[&scale[..], &["--side-by-side"]].concat());
    // The model is 256 wide, with 4 heads of 64: 1/256 of these are no heads of a whole width.
    let narrow = expect_cli_error(&["replay", &job, "-m", "dgx-h100", "--edit", "hidden=1"]);
    assert!(
        narrow.contains("a width of 64 would become 0.25, which is no whole number"),
        "{narrow}"
    );
    let inserted = expect_cli_error(&["replay", &job, "-m", "dgx-h100", "--edit", "data=8"]);
    assert!(
        inserted.contains("no hook of a parameter is captured"),
        "{inserted}"
    );
}

/// Reports of edited jobs name the plan options without effect, like reports of unedited jobs. An edit that keeps the
/// number of nodes and one that changes it both apply to the job without the option.
#[test]
fn plan_options_without_effect_are_named_beside_edits() {
    for edit in ["hidden=2x", "layers=+1"] {
        let mut words =
            "generate gpt2-small --tokens 64 --batch 4 --data 2 --prefetch 0 --machine dgx-h100 \
                         --format json --edit"
                .split_whitespace()
                .collect::<Vec<_>>();
        words.push(edit);
        let report: Value = serde_json::from_str(&run_for_stdout(&words)).expect("it is JSON");
        let settings = &report["settings"];
        let named = settings["without_effect"].as_array().expect("a list");
        let keys: Vec<&str> = named.iter().filter_map(|one| one["key"].as_str()).collect();
        assert_eq!(keys, ["plan.prefetch"], "{edit}: {settings}");
    }
}

#[test]
fn a_file_of_edits_is_read_as_words_are() {
    let jobs = Jobs::new();
    let job = jobs.generate("base", 2, "--batch 2 --micro-batch 2");
    let file = jobs.0.path().join("edits.toml");
    std::fs::write(&file, "edits = [\"batch=2x\", \"layers=+1\"]\n").expect("there is room");
    let file = file.to_str().expect("UTF-8");
    let by_file = replay_for_json(&job, &["--edit", file]);
    let by_words = replay_for_json(&job, &["--edit", "batch=2x", "--edit", "layers=+1"]);
    assert_eq!(by_file["makespan_ps"], by_words["makespan_ps"]);
    assert_eq!(by_file["edits"], by_words["edits"]);
}

/// The change in each pair, as in its `pair.json`.
const PAIRS: [(&str, &str); 7] = [
    ("ddp_batch_x2", "batch=2x"),
    ("ddp_accum_2", "accumulate=2"),
    ("ddp_bucket_1_25", "bucket=25MiB"),
    ("ddp_sleep50", "delay=50ms,rank=1,at=backward"),
    ("fsdp_batch_x2", "batch=2x"),
    ("infer_batch_x4", "batch=4x"),
    ("pp_microbatches_4_8", "microbatches=2x"),
];

/// Run it with `cargo test --test it -- --ignored measured_pairs_are_predicted_by_edits`.
#[test]
#[ignore = "takes half a minute; docs/validation/captures.md has the command"]
fn measured_pairs_are_predicted_by_edits() {
    let Some(pairs) = corpus_path_or_count_skip("captures/interventions") else {
        return;
    };
    let jobs = Jobs::new();
    let mut file =
        "machine = \"dgx-a100\"\ncomm = \"recorded\"\nwithout = \"profiler\"\n".to_owned();
    for (name, edit) in PAIRS {
        let side = jobs.create_job_folder(&format!("{name}-capture"));
        for entry in std::fs::read_dir(pairs.join(name).join("A")).expect("it is there") {
            let path = entry.expect("it is there").path();
            let file = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            if file.starts_with("host.") || file.starts_with("kineto.") {
                std::fs::copy(&path, Path::new(&side).join(file)).expect("there is room");
            }
        }
        let job = jobs.create_job_folder(name);
        run_for_stdout(&["convert", "pytorch", &side, "-o", &format!("{job}/job")]);
        let pair =
            std::fs::read_to_string(pairs.join(name).join("pair.json")).expect("it is there");
        let pair: Value = serde_json::from_str(&pair).expect("it is JSON");
        let number = |key: &str| pair[key].as_f64().expect("a number");
        let noise = number("A_mad_pct").max(number("B_mad_pct"));
        writeln!(
            file,
            "[[pair]]\nname = \"{name}\"\njob = \"{name}\"\nedits = [\"{edit}\"]\nbaseline = \"{} ms\"\nmeasured = \"{} ms\"\n\
             noise = {noise}",
            number("A_median_ms"),
            number("B_median_ms")
        )
        .expect("strings grow");
    }
    let path = jobs.0.path().join("pairs.toml");
    std::fs::write(&path, file).expect("there is room");
    let path = path.to_str().expect("UTF-8");
    print!("{}", run_for_stdout(&["score", "--pairs", path]));
    let scores: Value = serde_json::from_str(&run_for_stdout(&[
        "score", "--pairs", path, "--format", "json",
    ]))
    .expect("JSON");
    let median = scores["chakram"]["median_percent"]
        .as_f64()
        .expect("a number");
    let mean = scores["chakram"]["mean_percent"]
        .as_f64()
        .expect("a number");
    assert!(median <= 2.0 && mean <= 4.0, "median {median}, mean {mean}");
    for null in ["no_change", "sample_ratio"] {
        let other = scores[null]["median_percent"].as_f64().expect("a number");
        assert!(other > 3.0 * median, "{null}: {other}");
    }
    let [all, right] = [&scores["signs"][0], &scores["signs"][1]];
    assert_eq!(all, right);
}
