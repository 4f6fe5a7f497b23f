//! Tests `--extrapolate`: a step simulated with only some of its micro-batches.

use super::run_for_json;
use crate::corpus::sample_every_nth;
use crate::files::Folder;

fn build_gpt2_arguments<'a>(machine: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let plan = [
        "generate",
        "gpt2-small",
        "--tokens",
        "128",
        "--pipeline",
        "4",
        "--data",
        "2",
        "--batch",
        "64",
        "--compute",
        "roofline",
        "--machine",
        machine,
    ];
    [&plan[..], more].concat()
}

/// 12 of 32 micro-batches are simulated; with interleaved chunks, these are 12 turns of four. Once the pipeline is
/// full, every turn adds the time of the slowest stage, so the result is exact. The stated error is 0, and the actual
/// error is no larger.
#[test]
fn a_full_pipeline_goes_on_as_it_does() {
    let folder = Folder::new();
    let steps = [
        ("wafer-5x4", &["--place", "s_shape"][..]),
        ("dgx-a100", &[]),
        ("dgx-a100", &["--schedule", "interleaved", "--chunks", "3"]),
        ("dgx-a100", &["--schedule", "gpipe"]),
    ];
    for (machine, more) in sample_every_nth(2, steps) {
        let whole = run_for_json(&folder, &build_gpt2_arguments(machine, more));
        let some = [more, &["--extrapolate", "12"]].concat();
        let some = run_for_json(&folder, &build_gpt2_arguments(machine, &some));
        let found = &some["extrapolation"];
        let number = |key: &str| found[key].as_u64().unwrap_or_else(|| panic!("{found}"));
        assert_eq!(
            (number("micro_batches"), number("simulated")),
            (32, 12),
            "{more:?}"
        );
        let makespan = whole["makespan_ps"].as_u64().unwrap();
        let off = number("makespan_ps").abs_diff(makespan);
        assert!(
            off <= number("error_ps") + makespan / 1_000_000,
            "{more:?}: {found} {makespan}"
        );
        assert!(number("error_ps") <= makespan / 1000, "{more:?}: {found}");
        let rate = 64e12 / number("makespan_ps") as f64;
        assert!((found["samples_per_s"].as_f64().unwrap() / rate - 1.0).abs() < 1e-9);
        // The makespan covers the simulated part alone, and the rates cover the whole step.
        let own = some["makespan_ps"].as_u64().unwrap();
        assert!(own < makespan / 2, "{own} {makespan}");
        let [all, found] = [&whole, &some].map(|report| report["throughput"].as_object().unwrap());
        assert!(all.keys().eq(found.keys()), "{found:?}");
        for (key, expected) in all.iter().filter(|(_, value)| value.is_number()) {
            let [expected, found] = [expected, &found[key]].map(|value| value.as_f64().unwrap());
            assert!(
                (found / expected - 1.0).abs() < 2e-3,
                "{more:?}: {key} {found} {expected}"
            );
        }
        assert_eq!(found["samples"], 64);
    }
}

/// All formats state the same rates of an extrapolated step, and a replay of the whole step has the same rates.
#[test]
fn text_json_and_csv_state_the_same_rates_of_an_extrapolated_step() {
    let folder = Folder::new();
    let some = ["--extrapolate", "12"];
    let [whole, part] = [&[][..], &some].map(|more| {
        let text = folder.run_successfully_for_stdout(&build_gpt2_arguments("dgx-a100", more));
        let line = text.lines().find(|line| line.contains("tokens/s"));
        line.expect("the rates are known").to_owned()
    });
    assert_eq!(whole, part);
    let report = run_for_json(&folder, &build_gpt2_arguments("dgx-a100", &some));
    let rate = report["throughput"]["tokens_per_s"].as_f64().unwrap();
    let table = [&some[..], &["--format", "csv", "--table", "cost"]].concat();
    let table = folder.run_successfully_for_stdout(&build_gpt2_arguments("dgx-a100", &table));
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split(',').collect())
        .collect();
    let column = rows[0].iter().position(|name| *name == "tokens_per_s");
    assert_eq!(rows[1][column.unwrap()], format!("{rate:.9}"), "{table}");
    let page = [&some[..], &["--html", "page.html"]].concat();
    folder.run_successfully_for_stdout(&build_gpt2_arguments("dgx-a100", &page));
    let page = String::from_utf8(folder.read("page.html")).unwrap();
    let shown = whole.split_whitespace().next().unwrap();
    assert!(page.contains(&format!(">{shown}<")), "{shown}");
}

/// In inference with continuous input, two replicas together complete two samples each time the
/// slowest stage ends a pass. This time is the difference between full replays of 64 and of 62
/// samples. With filling and draining the rate is lower.
#[test]
fn inference_has_the_rate_of_a_full_pipeline() {
    let folder = Folder::new();
    let report = |samples: &str, more: &[&str]| {
        let mut args = build_gpt2_arguments(
            "wafer-5x4",
            &["--place", "s_shape", "--schedule", "inference"],
        );
        let batch = args.iter().position(|arg| *arg == "64").unwrap();
        args[batch] = samples;
        run_for_json(&folder, &[&args, more].concat())
    };
    let took = |samples| report(samples, &[])["makespan_ps"].as_u64().unwrap();
    let full = 2e12 / (took("64") - took("62")) as f64;
    let some = report("64", &["--extrapolate", "12"]);
    let found = &some["extrapolation"]["full_samples_per_s"];
    let found = found.as_f64().unwrap_or_else(|| panic!("{some}"));
    assert!((found / full - 1.0).abs() < 1e-9, "{found} {full}");
    let with_ends = some["extrapolation"]["samples_per_s"].as_f64().unwrap();
    assert!(with_ends < full, "{with_ends} {full}");
}

#[test]
fn extrapolation_from_invalid_micro_batch_counts_is_refused() {
    let folder = Folder::new();
    let refused = |more: &[&str], says: &str| {
        let error = folder.run_refused_for_stderr(&build_gpt2_arguments("dgx-a100", more));
        assert!(error.contains(says), "{more:?}: {error}");
    };
    refused(&["--extrapolate", "2"], "from 3 to less than the 32");
    refused(&["--extrapolate", "32"], "from 3 to less than the 32");
    refused(
        &["--extrapolate", "3", "--steps", "2"],
        "of a plan with one step",
    );
    let chunks = ["--schedule", "interleaved", "--chunks", "3"];
    refused(
        &[&chunks[..], &["--extrapolate", "10"]].concat(),
        "a multiple of 4, from 12",
    );
}

/// GPipe keeps the activations of all micro-batches, so the memory of a few of them is not that of the step.
#[test]
fn extrapolation_under_gpipe_warns_that_memory_is_not_of_the_step() {
    let folder = Folder::new();
    let some = |schedule: &'static str| {
        ["--schedule", schedule, "--extrapolate", "12"].map(|word: &str| word)
    };
    let report = |schedule| {
        let report = run_for_json(&folder, &build_gpt2_arguments("dgx-a100", &some(schedule)));
        report["warnings"].to_string()
    };
    assert!(report("gpipe").contains("keeps the activations of all 32 micro-batches"));
    assert!(!report("1f1b").contains("keeps the activations"));
    let require = [&some("gpipe")[..], &["--fit", "require"]].concat();
    let error = folder.run_refused_for_stderr(&build_gpt2_arguments("dgx-a100", &require));
    assert!(
        error.contains("memory is that of 12 of 32 micro-batches"),
        "{error}"
    );
}
