//! Tests `chakram sweep`: search strategies against replays of all points, threads, shards, resuming after a kill, and
//! errors.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn run_chakram_in_folder(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chakram"));
    command.current_dir(folder).args(words).output().unwrap()
}

fn run_sweep(folder: &Path, words: &[&str]) -> String {
    let output = run_chakram_in_folder(folder, &[&["sweep"], words].concat());
    assert!(
        output.status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn read_sweep_rows(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("rows.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Returns a study of all plans of a small GPT on 8 NPUs, with two micro-batch sizes.
fn format_plans_study(strategy: &str) -> String {
    format!(
        "name = \"plans\"\nobjective = \"time\"\n{strategy}\n[base]\nmachine = \"dgx-h100\"\nmodel = \"gpt2-small\"\n\
         tokens = 64\n\"model.layers\" = 4\nplan.batch = 16\ncompute = \"roofline\"\n[limits]\nfits = true\n[[axis]]\nplans = 8\n\
         [[axis]]\nkey = \"plan.micro_batch\"\nvalues = [1, 2]\n"
    )
}

/// Returns a short study: two ranks exchange a message, for several bandwidths and latencies.
fn format_wires_study(tail: &str) -> String {
    format!(
        "name = \"wires\"\nseed = 5\n{tail}\n[base]\nmachine = \"dgx-h100\"\nmodel = \"gpt2-small\"\ntokens = 16\n\
         \"model.layers\" = 2\nplan.data = 2\nplan.batch = 2\ncompute = \"roofline\"\n[[axis]]\nkey = \"machine.dimension.nvlink.bandwidth\"\n\
         from = \"50 GB/s\"\nto = \"450 GB/s\"\nstep = \"100 GB/s\"\n[[axis]]\n\
         key = \"machine.dimension.nvlink.latency\"\nvalues = [\"1 us\", \"500 ns\", \"2 us\", \"1 us\"]\n"
    )
}

struct StudyFolder {
    dir: tempfile::TempDir,
}

impl StudyFolder {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("s.toml"), text).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the study into the folder `into` and returns the output.
    fn run(&self, into: &str, more: &[&str]) -> String {
        run_sweep(self.dir.path(), &[&["s.toml", "-o", into], more].concat())
    }

    /// Returns the rows as JSON lines, rows as CSV, and the Pareto front, from the folder `of`.
    fn read_rows_and_front_files(&self, of: &str) -> [String; 3] {
        ["rows.jsonl", "rows.csv", "front.csv"]
            .map(|name| std::fs::read_to_string(self.path(of).join(name)).unwrap())
    }
}

fn read_time_ps(row: &Value) -> Option<u64> {
    row["time_ps"].as_u64()
}

#[test]
fn branch_and_bound_finds_the_optimum_without_replaying_all() {
    let all = StudyFolder::new(&format_plans_study("strategy = \"grid\""));
    all.run("out", &[]);
    let bounded = StudyFolder::new(&format_plans_study("strategy = \"branch-and-bound\""));
    bounded.run("out", &[]);
    let (all, bounded) = (
        read_sweep_rows(&all.path("out")),
        read_sweep_rows(&bounded.path("out")),
    );
    assert_eq!(all.len(), bounded.len());
    let best = |rows: &[Value]| {
        rows.iter()
            .filter_map(|row| Some((read_time_ps(row)?, row["row"].as_u64()?)))
            .min()
    };
    assert_eq!(best(&all), best(&bounded));
    let mut excluded = 0;
    for (one, other) in all.iter().zip(&bounded) {
        assert_eq!(one["point"], other["point"]);
        match other["outcome"].as_str().unwrap() {
            "dominated" => {
                excluded += 1;
                // No replay is faster than its lower bound, and no excluded row has a bound below the best time.
                let bound = other["bound_ps"].as_u64().unwrap();
                assert!(
                    read_time_ps(one).is_none_or(|time| time >= bound),
                    "{one} {other}"
                );
                assert!(bound >= best(&all).unwrap().0);
            }
            // Rows close to the best have intervals. Other rows decide which rows do, so intervals are not compared.
            _ => {
                let [one, other] = [one, other].map(|row| {
                    let mut row = row.clone();
                    row.as_object_mut().unwrap().remove("interval_ps");
                    row
                });
                assert_eq!(one, other);
            }
        }
    }
    assert!(excluded > 5, "{excluded} of {}", all.len());
}

/// Returns the words of the first command of a page, without the program's name.
fn find_first_command_args_on_page(page: &str) -> Vec<&str> {
    let from = page.find("<code>").unwrap() + 6;
    let command = &page[from..from + page[from..].find("</code>").unwrap()];
    command.split_whitespace().skip(1).collect()
}

/// A row's interval equals that of its replay, and the text names the rows within the interval of the best.
#[test]
fn rows_have_the_interval_of_their_replay() {
    let text = format_plans_study("strategy = \"grid\"").replace("compute = \"roofline\"\n", "");
    let study = StudyFolder::new(&text.replace("\"model.layers\" = 4\n", ""));
    let text = study.run("out", &[]);
    let rows = read_sweep_rows(&study.path("out"));
    let known = rows.iter().filter(|row| row["interval_ps"].is_array());
    assert!((10..=20).contains(&known.count()), "{rows:?}");
    let best = rows
        .iter()
        .filter(|row| read_time_ps(row).is_some())
        .min_by_key(|row| read_time_ps(row))
        .unwrap();
    let page = std::fs::read_to_string(study.path("out/index.html")).unwrap();
    let report = run_chakram_in_folder(
        study.dir.path(),
        &[
            &find_first_command_args_on_page(&page)[..],
            &["--format", "json"],
        ]
        .concat(),
    );
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["makespan_ps"], best["time_ps"], "{best}");
    let ends = ["low_ps", "high_ps"].map(|end| report["interval"][end].as_u64().unwrap());
    assert_eq!(best["interval_ps"], serde_json::json!(ends));
    let inside = rows
        .iter()
        .filter_map(read_time_ps)
        .filter(|time| (ends[0]..=ends[1]).contains(time));
    let others = inside.count() - 1;
    assert!(others > 1, "{rows:?}");
    let said = format!(
        "{others} other rows are within the interval of row {}",
        best["row"]
    );
    assert!(
        text.split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .contains(&said),
        "{text}"
    );
    assert!(page.contains(&said), "{said}");
    assert_eq!(
        page.matches("within the interval of the best").count(),
        others
    );
}

#[test]
fn rows_do_not_depend_on_the_number_of_threads() {
    let nested = "[[layer]]\naxes = [\"machine.dimension.nvlink.latency\"]\nstrategy = \"random\"\ndraws = 2\n\
                  [[layer]]\naxes = [\"machine.dimension.nvlink.bandwidth\"]\nstrategy = \"coordinate\"\n";
    let flat = format_wires_study("");
    for text in [
        format_plans_study("strategy = \"branch-and-bound\""),
        format_wires_study("strategy = \"random\"\ndraws = 9"),
        format_wires_study("strategy = \"coordinate\""),
        format!("{flat}{nested}"),
    ] {
        let study = StudyFolder::new(&text);
        let one = study.run("one", &["--threads", "1"]);
        assert_eq!(one, study.run("four", &["--threads", "4"]));
        assert_eq!(
            study.read_rows_and_front_files("one"),
            study.read_rows_and_front_files("four")
        );
        // No two threads replay the same point.
        let journal = std::fs::read_to_string(study.path("four").join("journal.jsonl")).unwrap();
        let asked = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            let whole = &line["bound"]["is_whole"];
            (
                line["point"].to_string(),
                whole.to_string(),
                line["answer"].is_null(),
            )
        };
        let lines: Vec<_> = journal.lines().skip(1).map(asked).collect();
        let once: std::collections::BTreeSet<_> = lines.iter().collect();
        assert_eq!(once.len(), lines.len());
    }
}

/// The best row leads the only other row by less than its interval, but the search excludes that row by its bound. The
/// text must not say that the row is outside the interval.
#[test]
fn rows_without_replay_may_be_within_the_interval_of_the_best() {
    let text = "name = \"x\"\nstrategy = \"branch-and-bound\"\n[base]\nmodel = \"gpt3-1.3b\"\nmachine = \"dgx-h100\"\n\
                plan.batch = 8\n[[axis]]\nkey = \"plan.attention\"\nvalues = VALUES\n";
    let said = |values: &str| {
        let study = StudyFolder::new(&text.replace("VALUES", values));
        let text = study.run("out", &[]);
        let rows = read_sweep_rows(&study.path("out"));
        let replayed = rows.iter().filter(|row| read_time_ps(row).is_some());
        assert_eq!(replayed.count(), 1, "{rows:?}");
        let words: Vec<_> = text.split_whitespace().collect();
        words.join(" ")
    };
    let near = said("[\"flash\", \"unpadded\"]");
    assert!(
        near.contains("row 0 leads the other replayed rows by more than its interval")
            && near
                .contains("but 1 row that was not replayed may be within it, because its bound is not beyond it"),
        "{near}"
    );
    let far = said("[\"flash\", \"unfused\"]");
    assert!(
        far.contains("row 0 leads by more than its interval"),
        "{far}"
    );
}

/// A capacity in the plan overrides that of the machine's NPUs, also in limits.
#[test]
fn limits_know_the_capacity_in_the_plan() {
    for strategy in ["grid", "branch-and-bound"] {
        let text = "name = \"x\"\n[base]\nmodel = \"gpt2-small\"\nmachine = \"dgx-h100\"\n\"model.layers\" = 2\n\
                    tokens = 64\nplan.batch = 1\n[limits]\nfits = true\n[[axis]]\nkey = \"plan.capacity\"\n\
                    values = [\"100 MB\", \"10 GB\"]\n";
        let study = StudyFolder::new(&format!("strategy = \"{strategy}\"\n{text}"));
        study.run("out", &[]);
        let rows = read_sweep_rows(&study.path("out"));
        assert_eq!(rows[0]["reason"], "limits.fits", "{rows:?}");
        let detail = rows[0]["detail"].as_str().unwrap();
        assert!(detail.ends_with("and has 100.0 MB"), "{detail}");
        assert_eq!(rows[1]["outcome"], "replayed", "{rows:?}");
    }
}

/// A sweep without a result says so and exits with code 3. A shard exits with code 0, because another shard may have
/// results.
#[test]
fn a_study_without_results_exits_with_3() {
    let text = format_plans_study("");
    let study = StudyFolder::new(&text.replace(
        "plan.batch = 16",
        "plan.batch = 16\nplan.capacity = \"1 MB\"",
    ));
    let exit_code_and_error = |words: &[&str]| {
        let output = run_chakram_in_folder(study.dir.path(), words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), error)
    };
    let (code, error) = exit_code_and_error(&["sweep", "s.toml"]);
    assert_eq!(code, Some(3), "{error}");
    assert!(
        error.contains("no point of the study has a result: plans: 20 points, 0 replayed")
            && error.contains("limits.fits"),
        "{error}"
    );
    for (shard, folder) in [("0/2", "a"), ("1/2", "b")] {
        let (code, error) =
            exit_code_and_error(&["sweep", "s.toml", "-o", folder, "--shard", shard]);
        assert_eq!((code, error.as_str()), (Some(0), ""));
    }
    let merged = exit_code_and_error(&["sweep", "merge", "s.toml", "a", "b", "-o", "all"]);
    assert_eq!(merged.0, Some(3), "{}", merged.1);
}

/// The reference page of studies lists all keys that the error for an unknown key lists.
#[test]
fn the_reference_lists_all_keys_of_studies() {
    let study = StudyFolder::new(&format_wires_study("").replace("plan.batch", "no_such_key"));
    let output = run_chakram_in_folder(study.dir.path(), &["sweep", "s.toml"]);
    let error = String::from_utf8(output.stderr).unwrap();
    let keys = error.split("expected one of ").nth(1).unwrap();
    let keys = keys.split(" or ").next().unwrap();
    let page = include_str!("../../docs/reference/studies.md");
    let keys: Vec<&str> = keys.split(", ").collect();
    assert!(keys.contains(&"edits"), "{error}");
    for key in keys {
        assert!(page.contains(&format!("`{key}`")), "{key}");
    }
}

#[test]
fn each_strategy_visits_the_points_expected_of_it() {
    let study = |text: &str| {
        let study = StudyFolder::new(text);
        study.run("out", &[]);
        read_sweep_rows(&study.path("out"))
    };
    let all = study(&format_wires_study(""));
    assert_eq!(all.len(), 20);
    let best = |rows: &[Value]| rows.iter().filter_map(read_time_ps).min().unwrap();
    // Equal points have equal answers, and the latency 1 us occurs twice.
    assert_eq!(all[0]["time_ps"], all[3]["time_ps"]);
    let random = study(&format_wires_study("strategy = \"random\"\ndraws = 9"));
    assert_eq!(random.len(), 9);
    assert!(random.iter().all(|row| {
        all.iter()
            .any(|one| one["point"] == row["point"] && read_time_ps(one) == read_time_ps(row))
    }));
    // The time decreases along both axes, so searching one axis after the other finds the best.
    let descent = study(&format_wires_study("strategy = \"coordinate\""));
    assert!(descent.len() < 20);
    assert_eq!(best(&descent), best(&all));
    let fastest = descent
        .iter()
        .find(|row| read_time_ps(row) == Some(best(&all)))
        .unwrap();
    assert_eq!(
        fastest["point"]["machine.dimension.nvlink.bandwidth"],
        "450 GB/s"
    );
    assert_eq!(
        fastest["point"]["machine.dimension.nvlink.latency"],
        "500 ns"
    );
}

#[test]
fn shards_together_are_one_run_byte_for_byte() {
    for text in [
        format_wires_study(""),
        format_plans_study("strategy = \"branch-and-bound\""),
    ] {
        let study = StudyFolder::new(&text);
        let whole = study.run("whole", &[]);
        for shard in ["0/3", "1/3", "2/3"] {
            study.run(&format!("part{}", &shard[..1]), &["--shard", shard]);
        }
        let folder = study.dir.path();
        let merged = run_sweep(
            folder,
            &["merge", "s.toml", "part0", "part1", "part2", "-o", "all"],
        );
        assert_eq!(merged, whole);
        assert_eq!(
            study.read_rows_and_front_files("all"),
            study.read_rows_and_front_files("whole")
        );
        // If a shard is missing, its rows are missing, and a note says so.
        let output = run_chakram_in_folder(
            folder,
            &["sweep", "merge", "s.toml", "part0", "part2", "-o", "two"],
        );
        assert_eq!(output.status.code(), Some(2));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("of the points have no result yet")
        );
    }
}

/// Kills a sweep repeatedly, and resumes it until it ends. Returns the number of kills.
fn kill_and_resume_sweep_until_it_ends(
    study: &StudyFolder,
    mut pause: impl FnMut(u64) -> Duration,
) -> u64 {
    let mut kills = 0;
    loop {
        let mut child = Command::new(env!("CARGO_BIN_EXE_chakram"))
            .current_dir(study.dir.path())
            .args(["sweep", "s.toml", "-o", "killed", "--resume"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(pause(kills));
        // The sweep may have ended before the kill.
        let ended = child.try_wait().unwrap().is_some();
        child.kill().unwrap();
        child.wait().unwrap();
        if ended {
            return kills;
        }
        kills += 1;
    }
}

/// Returns the number of points with answers in a journal, and its number of lines.
fn count_answered_points_and_lines(study: &StudyFolder, of: &str) -> (usize, usize) {
    let text = std::fs::read_to_string(study.path(of).join("journal.jsonl")).unwrap();
    let lines = text
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let points: Vec<String> = lines
        .map(|line| line["point"].as_str().unwrap().to_owned())
        .collect();
    let count = points.len();
    let unique: std::collections::BTreeSet<String> = points.into_iter().collect();
    (unique.len(), count)
}

#[test]
fn sweeps_that_are_killed_lose_nothing_and_answer_nothing_twice() {
    let text = format_wires_study("").replace("step = \"100 GB/s\"", "step = \"20 GB/s\"");
    let study = StudyFolder::new(&text);
    let kills = kill_and_resume_sweep_until_it_ends(&study, |kills| {
        Duration::from_secs_f64(0.004 * 1.25_f64.powi(kills as i32))
    });
    assert!(kills > 1, "{kills}");
    study.run("whole", &[]);
    assert_eq!(
        study.read_rows_and_front_files("killed"),
        study.read_rows_and_front_files("whole")
    );
    // The study has 21 bandwidths and three different latencies.
    assert_eq!(count_answered_points_and_lines(&study, "killed"), (63, 63));
}

/// A machine of two NPUs, whose file is read very quickly.
const PAIR: &str = "name = \"pair\"\n[npu.a]\nmemory_bandwidth = \"2000 GB/s\"\nmemory_capacity = \"80 GB\"\nmemory_latency = \"300 ns\"\n\
                    lanes = 32\nhost_lanes = 8\n[npu.a.peak]\n\
                    bf16 = \"300 TFLOP/s\"\nfp32 = \"60 TFLOP/s\"\n[[dimension]]\nname = \"nvlink\"\nshape = \"switch\"\n\
                    size = 2\nbandwidth = \"100 GB/s\"\nlatency = \"1 us\"\nalgorithm = \"ring\"\n";

#[test]
#[ignore = "100,000 points, a minute: cargo test --release --test it -- --ignored a_hundred_thousand"]
fn a_hundred_thousand_points_survive_kills_and_three_shards_are_one_run() {
    let text = format_wires_study("")
        .replace("\"dgx-h100\"", "\"./pair.toml\"")
        .replace("step = \"100 GB/s\"", "step = \"0.02 GB/s\"")
        .replace(
            "[\"1 us\", \"500 ns\", \"2 us\", \"1 us\"]",
            "[\"1 us\", \"500 ns\", \"2 us\", \"3 us\", \"4 us\"]",
        );
    let study = StudyFolder::new(&text);
    std::fs::write(study.path("pair.toml"), PAIR).unwrap();
    let mut state = 7_u64;
    // Kills come after random times that grow, so that even a slow machine makes progress.
    let kills = kill_and_resume_sweep_until_it_ends(&study, |kills| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis(50 + (state >> 33) % 500 + 50 * kills)
    });
    assert!(kills > 3, "{kills}");
    assert_eq!(
        count_answered_points_and_lines(&study, "killed"),
        (100_005, 100_005)
    );
    study.run("whole", &[]);
    assert_eq!(
        study.read_rows_and_front_files("killed"),
        study.read_rows_and_front_files("whole")
    );
    for shard in ["0/3", "1/3", "2/3"] {
        study.run(&format!("part{}", &shard[..1]), &["--shard", shard]);
    }
    let merge = ["merge", "s.toml", "part0", "part1", "part2", "-o", "merged"];
    run_sweep(study.dir.path(), &merge);
    assert_eq!(
        study.read_rows_and_front_files("merged"),
        study.read_rows_and_front_files("whole")
    );
}

#[test]
fn studies_with_errors_are_refused_before_anything_runs() {
    for (from, to, expected) in [
        (
            "key = \"machine.dimension.nvlink.latency\"",
            "key = \"machine.dimension.nvlnk.latency\"",
            "found no `nvlnk`, expected one of nvlink, infiniband; did you mean `nvlink`?",
        ),
        (
            "key = \"machine.dimension.nvlink.latency\"",
            "key = \"machine.dimension.nvlink.latncy\"",
            "did you mean `latency`?",
        ),
        ("\"2 us\"", "\"2 uss\"", "s.toml:"),
        (
            "tokens = 16",
            "tokens = 0",
            "s.toml:7: tokens = 0: expected a whole number of tokens, 1 or more",
        ),
        (
            "tokens = 16\n\"model.layers\" = 2\nplan.data = 2\nplan.batch = 2\ncompute = \"roofline\"\n",
            "plan.data = 2\nplan.batch = 2\n[[axis]]\nkey = \"tokens\"\nvalues = [16, 0, 8]\n",
            "tokens = 0: expected a whole number of tokens, 1 or more",
        ),
        (
            "from = \"50 GB/s\"",
            "from = \"-50 GB/s\"",
            "s.toml:14: machine.dimension.nvlink.bandwidth = -50 GB/s",
        ),
        (
            "machine = \"dgx-h100\"",
            "machine = \"dgx-h10\"",
            "s.toml:5: machine = dgx-h10: no machine is called \"dgx-h10\"; did you mean `dgx-h100`?",
        ),
        (
            "model = \"gpt2-small\"",
            "model = \"gpt2-smal\"",
            "did you mean `gpt2-small`?",
        ),
        (
            "plan.data = 2",
            "plan.schedule = \"1f2b\"",
            "s.toml:9: plan.schedule = 1f2b",
        ),
        ("plan.data = 2", "plan.dta = 2", "did you mean `plan.data`?"),
        (
            "compute = \"roofline\"",
            "compute = \"rooflin\"",
            "expected recorded, scaled:F, curves, roofline or loopnest:ACCELERATOR",
        ),
        (
            "plan.data = 2",
            "network = \"link\"",
            "expected one of contention_free, ports, links",
        ),
    ] {
        let text = format_wires_study("");
        assert!(text.contains(from), "{from}");
        let study = StudyFolder::new(&text.replace(from, to));
        let output = run_chakram_in_folder(study.dir.path(), &["sweep", "s.toml", "-o", "out"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{to}: {error}");
        assert!(
            error.contains(expected) && error.contains("s.toml:"),
            "{to}: {error}"
        );
        assert!(!study.path("out").exists(), "{to}");
    }
    let study = StudyFolder::new(&format_wires_study(""));
    study.run("out", &[]);
    let output = run_chakram_in_folder(study.dir.path(), &["sweep", "s.toml", "-o", "out"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("try: --resume to resume the run"));
    std::fs::write(
        study.path("s.toml"),
        format_wires_study("strategy = \"coordinate\""),
    )
    .unwrap();
    let output = run_chakram_in_folder(
        study.dir.path(),
        &["sweep", "s.toml", "-o", "out", "--resume"],
    );
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("the journal is of a different study")
    );
}

#[test]
fn traces_are_swept_over_machines_networks_and_factors() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/ddp-resnet18");
    let study = StudyFolder::new(&format!(
        "name = \"captured\"\nobjective = [\"time\", \"cost\"]\n[base]\ntrace = {:?}\n\"price.npu\" = 2.5\n\
         [[axis]]\nkey = \"machine\"\nvalues = [\"dgx-h100\", \"dgx-a100\"]\n\
         [[axis]]\nkey = \"network\"\nvalues = [\"contention_free\", \"links\"]\n\
         [[axis]]\nkey = \"compute\"\nvalues = [\"recorded\", \"scaled:0.5\"]\n",
        traces.to_str().unwrap()
    ));
    study.run("out", &[]);
    let rows = read_sweep_rows(&study.path("out"));
    assert_eq!(rows.len(), 8);
    for row in [0, 3, 6].map(|i| &rows[i]) {
        let words = ["machine", "network", "compute"]
            .map(|key| row["point"][key].as_str().unwrap().to_owned());
        let network = words[1].replace('_', "-");
        let replay = [
            "replay",
            traces.to_str().unwrap(),
            "--machine",
            &words[0],
            "--network",
            &network,
            "--compute",
            &words[2],
            "--format",
            "json",
        ];
        let report: Value =
            serde_json::from_slice(&run_chakram_in_folder(study.dir.path(), &replay).stdout)
                .unwrap();
        assert_eq!(report["makespan_ps"], row["time_ps"], "{words:?}");
        // Each rank costs 2.5 an hour.
        let seconds = row["time_ps"].as_f64().unwrap() / 1e12;
        let cost = 2.5 * row["npus"].as_f64().unwrap() * seconds / 3600.0;
        assert!((row["cost"].as_f64().unwrap() / cost - 1.0).abs() < 1e-12);
    }
    // The number of NPUs in a capture is unknown before it is read.
    let text = std::fs::read_to_string(study.path("s.toml")).unwrap();
    let few = StudyFolder::new(&text.replace(
        "[[axis]]\nkey = \"machine\"",
        "[limits]\nnpus = 1\n[[axis]]\nkey = \"machine\"",
    ));
    let output = run_chakram_in_folder(few.dir.path(), &["sweep", "s.toml"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains("0 replayed, 8 infeasible: limits.npus 8"),
        "{said}"
    );
}

#[test]
fn pages_carry_commands_that_give_the_same_answer() {
    let study = StudyFolder::new(
        &format_plans_study("strategy = \"grid\"")
            .replace("\"model.layers\" = 4\n", "")
            .replace("\"time\"", "[\"time\", \"memory\"]"),
    );
    study.run("out", &[]);
    let page = std::fs::read_to_string(study.path("out/index.html")).unwrap();
    assert!(
        !page.contains("<script") && !page.contains("http"),
        "it needs nothing else"
    );
    let command = find_first_command_args_on_page(&page);
    let output = run_chakram_in_folder(
        study.dir.path(),
        &[&command[..], &["--format", "json"]].concat(),
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = read_sweep_rows(&study.path("out"));
    let best = rows.iter().filter_map(read_time_ps).min();
    assert_eq!(report["makespan_ps"].as_u64(), best, "{command:?}");
    // The fastest row is in the front, in which no row is dominated by another.
    let front = std::fs::read_to_string(study.path("out/front.csv")).unwrap();
    let front: Vec<u64> = front
        .lines()
        .skip(1)
        .map(|line| line.split(',').next().unwrap().parse().unwrap())
        .collect();
    let value = |row: &Value| Some((read_time_ps(row)?, row["memory_bytes"].as_u64()?));
    for row in &rows {
        let Some((time, memory)) = value(row) else {
            continue;
        };
        let better = rows
            .iter()
            .filter_map(value)
            .any(|(t, m)| t <= time && m <= memory && (t, m) != (time, memory));
        let number = row["row"].as_u64().unwrap();
        let equal = rows
            .iter()
            .filter(|other| value(other) == Some((time, memory)))
            .map(|r| r["row"].as_u64().unwrap())
            .min();
        assert_eq!(
            front.contains(&number),
            !better && equal == Some(number),
            "{row}"
        );
    }
    let explained = study.run("out", &["--resume", "--explain", &front[0].to_string()]);
    assert!(explained.contains("AGAINST ITS NEIGHBOURS"), "{explained}");
    let output = run_chakram_in_folder(
        study.dir.path(),
        &[
            "sweep",
            "s.toml",
            "-o",
            "out",
            "--resume",
            "--explain",
            "99",
        ],
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("the study has only rows 0 to 19"));
}

/// DEAP has two flows: memory, then plans, then chips, or memory, then chips, then plans, with the accelerator inside
/// both. Each flow visits the points in its own order, and both find the same best point.
#[test]
fn layers_nest_in_either_order_to_the_same_best() {
    let study = |layers: [&str; 3]| {
        let layers = layers
            .map(|axis| format!("[[layer]]\naxes = [\"{axis}\"]\nstrategy = \"coordinate\"\n"));
        let study = StudyFolder::new(&format!(
            "name = \"flow\"\nseed = 1\n[base]\nmodel = \"gpt2-small\"\ntokens = 16\n\"model.layers\" = 1\nplan.batch = 8\n\
             compute = \"loopnest:gemmini-16,mappings=30\"\n[[axis]]\nkey = \"accelerator.scratchpad\"\n\
             values = [\"64 KiB\", \"1 MiB\"]\n[[axis]]\nkey = \"machine\"\nvalues = [\"gemminix4\", \"ring:4:64GB/s\"]\n\
             [[axis]]\nplans = 4\n[[axis]]\nkey = \"accelerator.array\"\nvalues = [\"8x8\", \"16x16\"]\n\
             {}[[layer]]\naxes = [\"accelerator.array\"]\n",
            layers.concat()
        ));
        study.run("out", &["--threads", "1"]);
        read_sweep_rows(&study.path("out"))
    };
    let plans_first = study(["accelerator.scratchpad", "plans", "machine"]);
    let chips_first = study(["accelerator.scratchpad", "machine", "plans"]);
    let changes = |rows: &[Value], key: &str| {
        let values: Vec<&Value> = rows.iter().map(|row| &row["point"][key]).collect();
        values.windows(2).filter(|pair| pair[0] != pair[1]).count()
    };
    // Inner layers change more often than outer ones.
    for (rows, outer, inner) in [
        (&plans_first, "plan.tensor", "machine"),
        (&chips_first, "machine", "plan.tensor"),
    ] {
        assert!(rows.len() > 20, "{}", rows.len());
        let all = ["accelerator.scratchpad", outer, inner, "accelerator.array"]
            .map(|key| changes(rows, key));
        assert!(
            all[0] < all[1] && all[1] < all[3] && all[2] < all[3],
            "{all:?}"
        );
    }
    let best = |rows: &[Value]| {
        let best = rows
            .iter()
            .filter_map(|row| Some((read_time_ps(row)?, row["point"].to_string())));
        best.min().unwrap()
    };
    assert_eq!(best(&plans_first), best(&chips_first));
    assert!(best(&chips_first).1.contains("ring:4"));
}

/// The plans are all degrees of GPT-3 175B on 512 NPUs and of Llama-3 70B on 256, with four sizes
/// of micro-batches. The proved optimum equals the optimum of replaying all points, and no excluded
/// point is better.
#[test]
#[ignore = "minutes: cargo test --release --test it -- --ignored plans_of_large_models"]
fn plans_of_large_models_have_the_optimum_of_replaying_all() {
    for (machine, model, npus, batch) in [
        ("dgx-a100", "gpt3-175b", 512, 1536),
        ("dgx-h100", "llama3-70b", 256, 512),
    ] {
        let text = |strategy: &str| {
            format!(
                "name = \"plans\"\nstrategy = \"{strategy}\"\n[base]\nmachine = \"{machine}\"\nmodel = \"{model}\"\nplan.batch = {batch}\n\
                 [limits]\nfits = true\n[[axis]]\nplans = {npus}\n[[axis]]\nkey = \"plan.micro_batch\"\nvalues = [1, 2, 4, 8]\n"
            )
        };
        let of = |strategy: &str| {
            let study = StudyFolder::new(&text(strategy));
            study.run("out", &[]);
            read_sweep_rows(&study.path("out"))
        };
        let (all, bounded) = (of("grid"), of("branch-and-bound"));
        let best = |rows: &[Value]| {
            rows.iter()
                .filter_map(|row| Some((read_time_ps(row)?, row["row"].as_u64()?)))
                .min()
        };
        assert_eq!(best(&all), best(&bounded));
        assert_eq!(all.len(), bounded.len());
        for (one, other) in all.iter().zip(&bounded) {
            match other["bound_ps"].as_u64() {
                Some(bound) => assert!(read_time_ps(one).is_none_or(|time| time >= bound)),
                None if other["outcome"] == "infeasible" => {
                    // A row whose bound overflows has fewer facts than it has after a replay, so only reasons are
                    // compared.
                    assert_eq!(one["reason"], other["reason"]);
                }
                None => assert_eq!(one, other),
            }
        }
    }
}

/// Starting at the first values, (0, 0), layers are optimized in turn; one axis has two bandwidths, and the other has
/// two latencies. The first layer chooses 450 GB/s with the first latency, and the second chooses the lower latency
/// with this bandwidth. The second round visits the one remaining point of the four and finds no better point.
#[test]
fn layers_in_turns_end_with_a_round_that_finds_nothing() {
    let axis = |key: &str, values: &str| {
        format!("[[axis]]\nkey = \"machine.dimension.nvlink.{key}\"\nvalues = [{values}]\n")
    };
    let layer = |key: &str| format!("[[layer]]\naxes = [\"machine.dimension.nvlink.{key}\"]\n");
    let study = |rounds: &str| {
        StudyFolder::new(&format!(
            "name = \"turns\"\n{rounds}[base]\nmachine = \"dgx-h100\"\nmodel = \"gpt2-small\"\ntokens = 16\n\"model.layers\" = 2\n\
             plan.data = 2\nplan.batch = 2\ncompute = \"roofline\"\n{}{}{}{}",
            axis("bandwidth", "\"50 GB/s\", \"450 GB/s\""),
            axis("latency", "\"2 us\", \"500 ns\""),
            layer("bandwidth"),
            layer("latency")
        ))
    };
    let turns = study("rounds = 9\n");
    let text = turns.run("out", &["--threads", "2"]);
    let lines = text.lines().skip_while(|line| !line.starts_with("ROUND"));
    let lines: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let words = |line: &str, count: usize| {
        let words = line.split_whitespace().take(count);
        words.collect::<Vec<_>>().join(" ")
    };
    let shown: Vec<String> = lines[1..].chunks(2).map(|pair| words(pair[0], 4)).collect();
    assert_eq!(
        shown,
        ["1 2 row 1", "1 1 row 2", "2 1 as before", "2 0 as before"]
    );
    assert_eq!(lines[2], "    dimension.nvlink.bandwidth 450 GB/s");
    assert_eq!(lines[4], "    dimension.nvlink.latency 500 ns");
    // The nested layers visit all four points and find the same best.
    let nested = study("");
    nested.run("out", &[]);
    let best = |of: &StudyFolder| {
        let rows = read_sweep_rows(&of.path("out"));
        assert_eq!(rows.len(), 4);
        rows.iter().filter_map(read_time_ps).min()
    };
    assert_eq!(best(&nested), best(&turns));
    // A second run resumes from the results of the first, and writes the same bytes.
    let before = turns.read_rows_and_front_files("out");
    turns.run("out", &["--resume"]);
    assert_eq!(before, turns.read_rows_and_front_files("out"));
}
