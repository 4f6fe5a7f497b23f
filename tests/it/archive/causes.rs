//! Tests the causes that a check names for moved predictions: each cause alone, and two causes
//! together.

use super::ArchiveTestFolder;
use super::regression::{
    SOUND, format_machine_toml, format_sound_machine, join_prediction_causes, run_archive_check,
};

/// Returns an archive with a baseline for the job that `words` generate, on the machine `SOUND`.
fn create_archive_with_baseline(words: &[&str]) -> ArchiveTestFolder {
    let corpus = ArchiveTestFolder::new();
    std::fs::write(corpus.at("m.toml"), format_sound_machine()).unwrap();
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    archive_generated_job(&corpus, words, &[]);
    let baseline = ["archive", "baseline", "@a.etz", "-m", "m.toml"];
    let options = ["--reason", "first", "--", "--compute", "roofline"];
    corpus.run_successfully(&[&baseline[..], &options].concat());
    assert_eq!(run_archive_check(&corpus, &[]).0, 0);
    corpus
}

/// Generates the job that `words` describe, and adds it to the archive as `w`, with `options`.
fn archive_generated_job(corpus: &ArchiveTestFolder, words: &[&str], options: &[&str]) {
    corpus.run_successfully(&[&["generate"], words, &["-o", "@job/job"]].concat());
    let add = ["archive", "add", "@a.etz", "@job/job", "--name", "w"];
    corpus.run_successfully(&[&add[..], &["--with", "@m.toml"], options].concat());
}

/// Returns the causes that a check names. If `text` is given, it describes the machine to use.
fn list_prediction_causes_of_check(corpus: &ArchiveTestFolder, text: Option<&str>) -> Vec<String> {
    std::fs::write(corpus.at("new.toml"), text.unwrap_or_default()).unwrap();
    let words: &[&str] = &["--machine", "m.toml=@new.toml"];
    let (code, found) = run_archive_check(corpus, if text.is_some() { words } else { &[] });
    assert_eq!(code, 3);
    join_prediction_causes(&found, 0)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Returns the causes of one kind.
fn filter_causes_by_kind<'c>(causes: &'c [String], kind: &str) -> Vec<&'c str> {
    let own = causes.iter().filter_map(|cause| cause.strip_prefix(kind));
    own.map(str::trim_start).collect()
}

/// Returns the arguments for a step in which only attention depends on the sequence length.
fn generate_arguments_with_sequence(sequence: &str) -> Vec<&str> {
    let words = "data-parallel --ranks 8 --layers 2 --hidden 512 --tokens 2048 --sequence";
    words.split(' ').chain([sequence]).collect()
}

#[test]
fn a_constant_of_the_machine_is_named_alone() {
    let corpus = create_archive_with_baseline(&generate_arguments_with_sequence("512"));
    let [peak, memory, inner, outer, latency] = SOUND;
    for (text, constant, part) in [
        (
            format_machine_toml(peak / 2.0, memory, inner, outer, latency, "ring"),
            "npu.a.peak bf16: \"300.000 TFLOP/s\" → \"150.000 TFLOP/s\"",
            "compute:",
        ),
        (
            format_machine_toml(peak, memory, inner, outer / 2.0, latency, "ring"),
            "dimension 2 bandwidth: \"25.000 GB/s\" → \"12.500 GB/s\"",
            "communication:",
        ),
    ] {
        // The peak of the other format changes too, but the job has no node in this format.
        let text = text.replace("fp32 = \"150.000", "fp32 = \"300.000");
        let found = list_prediction_causes_of_check(&corpus, Some(&text));
        assert_eq!(filter_causes_by_kind(&found, "machine:"), [constant]);
        // The changed constant causes one of the two largest time changes. The other change may be
        // transfers that slower kernels expose.
        assert!(
            found
                .iter()
                .skip(1)
                .take(2)
                .any(|cause| cause.starts_with(part)),
            "{found:?}"
        );
        assert!(
            filter_causes_by_kind(&found, "workload:").is_empty(),
            "{found:?}"
        );
        assert!(
            filter_causes_by_kind(&found, "collectives:").is_empty(),
            "{found:?}"
        );
    }
}

#[test]
fn a_topology_is_named_alone() {
    let corpus = create_archive_with_baseline(&generate_arguments_with_sequence("512"));
    let [peak, memory, inner, outer, latency] = SOUND;
    let text = format_machine_toml(peak, memory, inner, outer, latency, "mesh");
    let found = list_prediction_causes_of_check(&corpus, Some(&text));
    assert_eq!(
        filter_causes_by_kind(&found, "machine:"),
        ["dimension 1 shape: \"ring\" → \"mesh\""]
    );
    assert!(
        found[1].starts_with("communication: all 8 ranks +"),
        "{found:?}"
    );
    assert!(
        filter_causes_by_kind(&found, "workload:").is_empty(),
        "{found:?}"
    );
}

#[test]
fn an_operator_is_named_alone_and_beside_a_constant() {
    let corpus = create_archive_with_baseline(&generate_arguments_with_sequence("512"));
    archive_generated_job(
        &corpus,
        &generate_arguments_with_sequence("2048"),
        &["--replace"],
    );
    let operators = |found: &[String]| {
        let compute = filter_causes_by_kind(found, "compute:");
        assert!(!compute.is_empty());
        compute.iter().all(|cause| cause.contains("/attention +"))
    };
    let found = list_prediction_causes_of_check(&corpus, None);
    assert!(operators(&found), "{found:?}");
    assert_eq!(filter_causes_by_kind(&found, "workload:").len(), 1);
    assert!(
        filter_causes_by_kind(&found, "machine:").is_empty(),
        "{found:?}"
    );
    assert!(
        filter_causes_by_kind(&found, "collectives:").is_empty(),
        "{found:?}"
    );
    // Two constants change at the same time. The check names both, and no third cause.
    let [peak, memory, inner, outer, latency] = SOUND;
    let text = format_machine_toml(peak, memory, inner, outer * 0.8, latency, "ring");
    let found = list_prediction_causes_of_check(&corpus, Some(&text));
    assert_eq!(
        filter_causes_by_kind(&found, "machine:"),
        ["dimension 2 bandwidth: \"25.000 GB/s\" → \"20.000 GB/s\""]
    );
    assert!(operators(&found), "{found:?}");
}

#[test]
fn groups_are_named_by_their_members() {
    let plan = |tensor, data, batch| {
        let all = ["llama3-8b", "--tensor", tensor, "--data", data];
        [&all[..], &["--batch", batch, "--tokens", "64"]].concat()
    };
    let corpus = create_archive_with_baseline(&plan("4", "2", "2"));
    archive_generated_job(&corpus, &plan("2", "4", "4"), &["--replace"]);
    let found = list_prediction_causes_of_check(&corpus, None);
    let calls = filter_causes_by_kind(&found, "collectives:");
    // Groups of two are removed, and groups of four are added.
    for (members, gone) in [("(0, 4)", true), ("(0, 2, 4, 6)", false)] {
        let row = calls.iter().find(|call| call.contains(members));
        let row = row.unwrap_or_else(|| panic!("{members}: {found:?}"));
        assert_eq!(row.contains("→ 0 calls"), gone, "{row}");
        assert_eq!(row.contains(": 0 →"), !gone, "{row}");
    }
    let times = filter_causes_by_kind(&found, "communication:");
    assert!(times[0].contains("(0, 2, 4, 6) +"), "{found:?}");
    assert!(
        filter_causes_by_kind(&found, "machine:").is_empty(),
        "{found:?}"
    );
}

/// The page of a check shows both breakdowns, the causes and the earlier baselines, with the same
/// numbers as the JSON.
#[test]
fn check_page_shows_causes_and_breakdowns_beside_earlier_baselines() {
    let corpus = create_archive_with_baseline(&generate_arguments_with_sequence("512"));
    // This second workload's prediction does not change.
    corpus.run_successfully(&[
        "generate",
        "p2p",
        "ring",
        "--size",
        "1MiB",
        "--ranks",
        "8",
        "-o",
        "@ring/job",
    ]);
    let add = ["archive", "add", "@a.etz", "@ring/job", "--name", "still"];
    corpus.run_successfully(&[&add[..], &["--with", "@m.toml"]].concat());
    let baseline = ["archive", "baseline", "@a.etz", "-m", "m.toml", "--reason"];
    corpus.run_successfully(
        &[
            &baseline[..],
            &["a <second> one", "--", "--compute", "roofline"],
        ]
        .concat(),
    );
    archive_generated_job(
        &corpus,
        &generate_arguments_with_sequence("2048"),
        &["--replace"],
    );
    let (code, found) = run_archive_check(&corpus, &["--html", "@check.html"]);
    assert_eq!(code, 3);
    let page = std::fs::read_to_string(corpus.at("check.html")).unwrap();
    // The page has six categories of time, before and after, and two baselines.
    assert_eq!(
        crate::page::check_page_numbers_match_report(&page, &found),
        2 + 2 * 6 + 2
    );
    for part in [
        "http:", "https:", "<script", "<link", "<img", "src=", "<second>",
    ] {
        assert!(!page.contains(part), "{part}");
    }
    let at = |name: &str| {
        let all = found["predictions"].as_array().unwrap();
        all.iter().find(|one| one["workload"] == name).unwrap()
    };
    let (moved, still) = (at("w"), at("still"));
    assert_eq!(
        (&moved["moved"], &still["moved"]),
        (&true.into(), &false.into())
    );
    assert!(still.get("mean_ps").is_none());
    // The parts of an NPU's time add up to its makespan, both at the baseline and now.
    for (side, whole) in [("before", "before_ps"), ("after", "after_ps")] {
        let parts = moved["mean_ps"][side].as_object().unwrap();
        let sum: u64 = parts.values().map(|part| part.as_u64().unwrap()).sum();
        assert_eq!(sum, moved[whole].as_u64().unwrap(), "{side}");
    }
    let reasons: Vec<&str> = moved["baselines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["reason"].as_str().unwrap())
        .collect();
    assert_eq!(reasons, ["first", "a <second> one"]);
    for part in [
        "w on m.toml: +",
        "workload: the files differ from the baseline",
        "/attention +",
        "2 baselines",
        "a &lt;second&gt; one",
        "--compute roofline",
        "nothing",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(
        !page.contains("still on"),
        "a prediction that stays is not shown"
    );
}
