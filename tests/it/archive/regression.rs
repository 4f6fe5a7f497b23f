//! Tests checks of an archive in which some predictions changed and others did not.

use super::ArchiveTestFolder;
use crate::corpus::is_whole_corpus_requested;
use serde_json::Value;
use std::fmt::Write;

/// Returns the machine of the tests. The parameters are the peak rate and the memory bandwidth of
/// an NPU, and two network dimensions.
pub fn format_machine_toml(
    peak: f64,
    memory: f64,
    inner: f64,
    outer: f64,
    latency: f64,
    shape: &str,
) -> String {
    format!(
        "name = \"m\"\n[npu.a]\nmemory_bandwidth = \"{memory:.3} GB/s\"\nmemory_latency = \"300 ns\"\n\
         memory_capacity = \"80 GB\"\nlanes = 32\nhost_lanes = 8\n[npu.a.peak]\nbf16 = \"{peak:.3} TFLOP/s\"\n\
         fp32 = \"{peak:.3} TFLOP/s\"\n[[dimension]]\nname = \"inner\"\nshape = \"{shape}\"\nsize = 4\n\
         bandwidth = \"{inner:.3} GB/s\"\nlatency = \"{latency:.3} us\"\nalgorithm = \"ring\"\n[[dimension]]\n\
         name = \"outer\"\nshape = \"switch\"\nsize = 2\nbandwidth = \"{outer:.3} GB/s\"\n\
         latency = \"{latency:.3} us\"\nalgorithm = \"ring\"\n"
    )
}

pub const SOUND: [f64; 5] = [300.0, 2000.0, 200.0, 25.0, 2.0];

pub fn format_sound_machine() -> String {
    format_machine_toml(SOUND[0], SOUND[1], SOUND[2], SOUND[3], SOUND[4], "ring")
}

pub fn run_archive_check(corpus: &ArchiveTestFolder, words: &[&str]) -> (i32, Value) {
    let output =
        corpus.run_program(&[&["archive", "check", "@a.etz", "--format", "json"], words].concat());
    let code = output.status.code().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let value = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (code, value)
}

pub fn join_prediction_causes(check: &Value, at: usize) -> String {
    let list = check["predictions"][at]["causes"].as_array().unwrap();
    let list: Vec<&str> = list.iter().map(|cause| cause.as_str().unwrap()).collect();
    list.join("\n")
}

#[test]
fn causes_of_changed_predictions_are_named() {
    let corpus = ArchiveTestFolder::new();
    std::fs::write(corpus.at("m.toml"), format_sound_machine()).unwrap();
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    let job = |layers: &str, at: &str| {
        corpus.run_successfully(&[
            "generate",
            "data-parallel",
            "--ranks",
            "8",
            "--layers",
            layers,
            "--hidden",
            "512",
            "-o",
            at,
        ])
    };
    job("2", "@two/job");
    corpus.run_successfully(&[
        "archive", "add", "@a.etz", "@two/job", "--name", "dp", "--with", "@m.toml",
    ]);
    let words = ["--reason", "first", "--", "--compute", "roofline"];
    corpus.run_successfully(
        &[
            &["archive", "baseline", "@a.etz", "-m", "m.toml"][..],
            &words,
        ]
        .concat(),
    );
    let (code, same) = run_archive_check(&corpus, &[]);
    assert_eq!(
        (code, &same["predictions"][0]["change_percent"]),
        (0, &Value::from(0.0))
    );
    let changed = |text: String| {
        std::fs::write(corpus.at("new.toml"), text).unwrap();
        let (code, found) = run_archive_check(&corpus, &["--machine", "m.toml=@new.toml"]);
        assert_eq!(code, 3);
        join_prediction_causes(&found, 0)
    };
    let [peak, memory, inner, outer, latency] = SOUND;
    // Each case changes one constant of the machine, and lists the predictions that this constant
    // changes.
    let found = changed(format_machine_toml(
        peak / 2.0,
        memory,
        inner,
        outer,
        latency,
        "ring",
    ));
    assert!(
        found.contains("machine: npu.a.peak bf16: \"300.000 TFLOP/s\" → \"150.000 TFLOP/s\""),
        "{found}"
    );
    assert!(found.contains("compute: "), "{found}");
    // Here the topology changes, too.
    let found = changed(format_machine_toml(
        peak,
        memory,
        inner,
        outer / 4.0,
        latency,
        "switch",
    ));
    assert!(
        found.contains("machine: dimension 1 shape: \"ring\" → \"switch\""),
        "{found}"
    );
    // Two constants change at the same time, and the check names both.
    assert!(
        found.contains("machine: dimension 2 bandwidth: \"25.000 GB/s\" → \"6.250 GB/s\""),
        "{found}"
    );
    assert!(found.contains("communication: all 8 ranks"), "{found}");
    // The changed traces have different operators and a different group.
    job("3", "@three/job");
    corpus.run_successfully(&[
        "archive",
        "add",
        "@a.etz",
        "@three/job",
        "--name",
        "dp",
        "--with",
        "@m.toml",
        "--replace",
    ]);
    let (code, found) = run_archive_check(&corpus, &[]);
    assert_eq!(code, 3);
    let found = join_prediction_causes(&found, 0);
    assert!(found.contains("workload: the files differ"), "{found}");
    assert!(
        found.contains("compute: step0/layer2/")
            && found.contains("collectives: all-reduce, all 8 ranks"),
        "{found}"
    );
    // The archive keeps the reasons of the first and the second baseline.
    corpus.run_successfully(&[
        "archive",
        "baseline",
        "@a.etz",
        "-m",
        "m.toml",
        "--reason",
        "a third layer",
        "--",
        "--compute",
        "roofline",
    ]);
    assert_eq!(run_archive_check(&corpus, &[]).0, 0);
    let shown = corpus.run_successfully(&["archive", "show", "@a.etz::dp"]);
    assert!(
        shown.contains("first") && shown.contains("a third layer"),
        "{shown}"
    );
    corpus.run_successfully(&["archive", "verify", "@a.etz"]);
}

#[test]
fn baselines_survive_collections_and_merges() {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    corpus.add_small_job("@a.etz", "two", "2");
    corpus.run_successfully(&[
        "archive", "baseline", "@a.etz", "-m", "dgx-h100", "--reason", "first",
    ]);
    let gc = ["archive", "gc", "@a.etz", "--as-of", "2026-01-01"];
    corpus.run_successfully(&gc);
    corpus.run_successfully(&["archive", "create", "@b.etz"]);
    let merge = ["archive", "merge", "@b.etz", "@a.etz"];
    corpus.run_successfully(&merge);

    for archive in ["@a.etz", "@b.etz"] {
        let told = corpus.run_successfully(&["archive", "verify", archive]);
        assert!(told.contains("all committed data is intact"), "{told}");
    }
}

#[test]
fn a_prediction_that_cannot_be_made_is_told() {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    corpus.run_successfully(&[
        "generate", "chain", "--ranks", "2", "--nodes", "3", "-o", "@job",
    ]);
    corpus.run_successfully(&["archive", "add", "@a.etz", "@job", "--name", "chain"]);
    assert!(
        corpus
            .run_failing_with_code(2, &["archive", "check", "@a.etz"])
            .contains("none of the selected workloads has a baseline")
    );
    corpus.run_successfully(&[
        "archive", "baseline", "@a.etz", "-m", "dgx-h100", "--reason", "first",
    ]);
    std::fs::write(corpus.at("wrong.toml"), "name = 1").unwrap();
    let (code, found) = run_archive_check(&corpus, &["--machine", "dgx-h100=@wrong.toml"]);
    assert_eq!((code, found["failed"].as_array().unwrap().len()), (2, 1));
    let error = corpus.run_failing_with_code(
        2,
        &["archive", "check", "@a.etz", "--machine", "tpu=@wrong.toml"],
    );
    assert!(error.contains("no baseline is for this machine"), "{error}");
    // Measured steps take 10 us, far from the predicted 3 us.
    std::fs::write(corpus.at("steps"), "10us\n10.1us\n9.9us\n").unwrap();
    corpus.run_successfully(&[
        "archive",
        "add",
        "@a.etz",
        "@job",
        "--name",
        "chain",
        "--replace",
        "--measured",
        "@steps",
    ]);
    let text = corpus.run_successfully(&["archive", "check", "@a.etz", "--junit", "@junit.xml"]);
    assert!(
        text.contains("measured: -70.0 % of 3 steps measured, outside their spread"),
        "{text}"
    );
    let junit = std::fs::read_to_string(corpus.at("junit.xml")).unwrap();
    assert!(
        junit.contains("tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"0\""),
        "{junit}"
    );
    let markdown = corpus.run_successfully(&["archive", "check", "@a.etz", "--format", "markdown"]);
    assert!(
        markdown.starts_with("### 1 prediction checked, 0 moved by more than 1 %\n"),
        "{markdown}"
    );
}

#[test]
fn seeded_regressions_are_caught_and_nothing_else() {
    let corpus = ArchiveTestFolder::new();
    std::fs::write(corpus.at("m.toml"), format_sound_machine()).unwrap();
    corpus.run_successfully(&["archive", "create", "--folder", "@a.etz"]);
    // The archive has 40 workloads: collectives, messages, chains, and steps of small models.
    for number in 0..40u32 {
        let size = format!("{} kB", 1 << (number % 10));
        let layers = (1 + number / 20).to_string();
        let hidden = (128 << (number % 3)).to_string();
        let kind =
            ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"][number as usize % 4];
        let words: &[&str] = match number % 5 {
            0 => &[
                "data-parallel",
                "--ranks",
                "8",
                "--layers",
                &layers,
                "--hidden",
                &hidden,
                "--tokens",
                "256",
            ],
            1 => &[
                "chain",
                "--ranks",
                "8",
                "--nodes",
                "5",
                "--flops",
                "100000000",
                "--bytes",
                &size,
            ],
            2 => &[
                "chain", "--ranks", "8", "--nodes", "4", "--flops", "1000000", "--bytes", "4 MB",
            ],
            _ => &["collective", kind, "--ranks", "8", "--size", &size],
        };
        let at = format!("@w{number}/job");
        let name = format!("w{number}");
        corpus.run_successfully(&[&["generate"], words, &["-o", &at]].concat());
        corpus.run_successfully(&[
            "archive", "add", "@a.etz", &at, "--name", &name, "--with", "@m.toml",
        ]);
    }
    corpus.run_successfully(&[
        "archive",
        "baseline",
        "@a.etz",
        "-m",
        "m.toml",
        "--reason",
        "first",
        "--",
        "--compute",
        "roofline",
    ]);
    let listed = corpus.run_successfully(&["archive", "list", "@a.etz", "--format", "json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let millis = |workload: &Value| workload["baselines"][0]["replay_ms"].as_u64().unwrap();
    let all: u64 = listed["workloads"]
        .as_array()
        .unwrap()
        .iter()
        .map(millis)
        .sum();
    let half = format!("{} us", (all * 500).max(1000));
    let (mut state, mut caught, mut with_budget) = (11u64, 0, 0);
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 31)
    };
    // Run only the first rounds, so that the sequence of random numbers is independent of the
    // number of rounds.
    let rounds = if is_whole_corpus_requested() { 50 } else { 15 };
    for number in 0..rounds {
        let mut constants = SOUND;
        let by = 1.0 - (0.005 + 0.195 * random());
        constants[number % 5] *= if number % 5 == 4 { 1.0 / by } else { by };
        let [peak, memory, inner, outer, latency] = constants;
        std::fs::write(
            corpus.at("new.toml"),
            format_machine_toml(peak, memory, inner, outer, latency, "ring"),
        )
        .unwrap();
        let (code, found) = run_archive_check(
            &corpus,
            &["--machine", "m.toml=@new.toml", "--threshold", "0.4%"],
        );
        // For a few workloads, compare the check's verdict with single replays.
        let mut moved = 0;
        for prediction in found["predictions"].as_array().unwrap() {
            let (before, after) = (
                prediction["before_ps"].as_u64().unwrap(),
                prediction["after_ps"].as_u64().unwrap(),
            );
            let change = (after as f64 / before as f64 - 1.0).abs();
            assert_eq!(
                prediction["moved"],
                Value::from(change > 0.004),
                "{prediction}"
            );
            moved += usize::from(change > 0.004);
        }
        assert_eq!(code, if moved > 0 { 3 } else { 0 });
        // If a prediction depends on only one constant, a change of 0.5 % or more in this constant changes the
        // prediction by nearly as much.
        caught += usize::from(moved > 0);
        let (code, part) = run_archive_check(
            &corpus,
            &[
                "--machine",
                "m.toml=@new.toml",
                "--threshold",
                "0.4%",
                "--budget",
                &half,
                "--threads",
                "1",
            ],
        );
        assert!(!part["left_out"].as_array().unwrap().is_empty());
        with_budget += usize::from(code == 3 && moved > 0);
    }
    let mut told = String::new();
    let _ = write!(
        told,
        "{caught} of {rounds} caught, {with_budget} with half the time"
    );
    println!("{told}");
    assert!(
        caught * 10 >= rounds * 9 && with_budget * 10 >= caught * 9,
        "{told}"
    );
    for _ in 0..rounds / 3 {
        assert_eq!(run_archive_check(&corpus, &["--threshold", "0%"]).0, 0);
    }
}

/// The capture contains rank 0 of 16. The baseline records how absent ranks are treated, so that the check treats them
/// in the same way.
#[test]
fn a_capture_of_some_ranks_has_a_baseline() {
    let corpus = ArchiveTestFolder::new();
    let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/archive/partial");
    corpus.run_successfully(&["convert", "pytorch", capture, "-o", "@j/j"]);
    let told = corpus.run_failing_with_code(2, &["archive", "add", "@c.etz", "@j"]);
    assert!(told.contains("chakram archive create"), "{told}");
    corpus.run_successfully(&["archive", "create", "@c.etz"]);
    corpus.run_successfully(&["archive", "add", "@c.etz", "@j", "--name", "d"]);
    let baseline = [
        "archive",
        "baseline",
        "@c.etz",
        "-m",
        "dgx-h100x2",
        "--reason",
        "x",
        "--",
    ];
    let with = |more: &[&'static str]| [&baseline[..], more].concat();
    let told = corpus.run_failing_with_code(2, &with(&[]));
    assert!(told.contains("--absent mirror"), "{told}");
    let told =
        corpus.run_failing_with_code(2, &with(&["--absent", "mirror", "--groups", "g.json"]));
    assert!(told.contains("g.json"), "{told}");
    let told = corpus.run_failing_with_code(2, &with(&["--no-such-option"]));
    assert_eq!(told.matches("error: ").count(), 1, "{told}");
    let mirrored = corpus.run_successfully(&with(&["--absent", "mirror"]));
    let delayed = corpus.run_successfully(&with(&["--absent", "mirror", "--delay", "0=10ms"]));
    assert_ne!(mirrored, delayed);
    corpus.run_successfully(&["archive", "check", "@c.etz"]);
    // The makespan equals the makespan of a replay of the traces.
    let predicted =
        corpus.run_successfully(&["replay", "@j", "-m", "dgx-h100x2", "--absent", "mirror"]);
    let makespan = mirrored.trim().rsplit(": ").next().unwrap();
    assert!(predicted.contains(makespan), "{makespan} in {predicted}");
}

/// A prediction with options equals the replay with these options, and a check repeats the
/// prediction.
#[test]
fn predictions_with_options_equal_replays_with_them() {
    let corpus = ArchiveTestFolder::new();
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/data-parallel-8");
    let inline = "Ring(4)_Switch(2)";
    let rates = ["--bandwidth", "250GB/s,50GB/s", "--latency", "500ns,1us"];
    let options: [(&str, &[&str], bool); 7] = [
        ("dgx-h100x2", &["--map", "0,8,1,9,2,10,3,11"], true),
        (
            "dgx-h100x2",
            &["--network", "fair-sharing", "--map", "0,8,1,9,2,10,3,11"],
            true,
        ),
        ("dgx-h100x2", &["--delay", "3=10ms"], true),
        ("dgx-h100x2", &["--compute", "scaled:2"], true),
        // These options change only the method, not the result.
        ("dgx-h100x2", &["--stepwise"], false),
        ("dgx-h100x2", &["--aggregate"], false),
        (inline, &rates, true),
    ];
    let makespan = |machine: &str, more: &[&str]| {
        let args = ["replay", job, "-m", machine, "--format", "json"];
        let report = corpus.run_successfully(&[&args[..], more].concat());
        let report: Value = serde_json::from_str(&report).expect("it is JSON");
        report["makespan_ps"].as_u64().expect("it has one")
    };
    let plain = makespan("dgx-h100x2", &[]);
    for (index, (machine, more, moves)) in options.into_iter().enumerate() {
        let archive = format!("@{index}.etz");
        corpus.run_successfully(&["archive", "create", &archive]);
        corpus.run_successfully(&["archive", "add", &archive, job, "--name", "d"]);
        let args = [
            "archive", "baseline", &archive, "-m", machine, "--reason", "x", "--",
        ];
        corpus.run_successfully(&[&args[..], more].concat());
        let list = corpus.run_successfully(&["archive", "list", &archive, "--format", "json"]);
        let list: Value = serde_json::from_str(&list).expect("it is JSON");
        let kept = &list["workloads"][0]["baselines"][0]["makespan_ps"];
        let expected = makespan(machine, more);
        assert_eq!(kept.as_u64(), Some(expected), "{more:?}");
        assert_eq!(expected != plain, moves, "{more:?}");
        corpus.run_successfully(&["archive", "check", &archive, "--threshold", "0%"]);
    }
}
