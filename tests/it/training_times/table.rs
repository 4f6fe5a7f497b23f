//! Prints the table of all rows: the prediction, the measurement, and the error without each
//! effect.

use super::rows::{
    MeasuredTrainingRun, find_measurement_corpus_if_present, format_plan_arguments,
    parse_cell_number, read_csv_rows, read_measured_rows,
};
use super::{
    assert_row_error_equals_listed, compute_error_percent, predict_step_seconds,
    predict_step_seconds_on_machine,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The names that `--without` uses for the effects, with headings.
const WITHOUT: &[(&str, &str)] = &[
    ("recompute", "recompute"),
    ("memory-bound", "memory"),
    ("tensor-communication", "tensor"),
    ("bubble", "bubble"),
    ("logits", "logits"),
    ("data-communication", "data"),
    ("optimizer", "optimizer"),
    ("pipeline-communication", "pipeline"),
];

/// Returns the results of `of` for each of `count` items, computed on all cores.
fn compute_in_parallel<T: Send>(count: usize, of: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count {
                        break;
                    }
                    let value = of(i);
                    found.lock().expect("no thread panicked").push((i, value));
                }
            });
        }
    });
    let mut found = found.into_inner().expect("no thread panicked");
    found.sort_by_key(|(i, _)| *i);
    found.into_iter().map(|(_, value)| value).collect()
}

fn compute_mean_absolute_error(errors: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = errors.len() as f64;
    errors.map(f64::abs).sum::<f64>() / count
}

/// Prints every row and its error with one constant.
#[test]
#[ignore = "minutes: up to 3,072 NPUs"]
fn every_measured_training_run_is_predicted_and_printed_with_its_error() {
    let Some(rows) = read_measured_rows() else {
        return;
    };
    let seconds = compute_in_parallel(rows.len(), |i| predict_step_seconds(&rows[i], &[]));
    println!("row                     measured  predicted   error");
    for (row, &seconds) in rows.iter().zip(&seconds) {
        let off = compute_error_percent(row, seconds);
        println!(
            "{:<22} {:>7.2} s  {seconds:>7.2} s {off:>+6.1} %",
            row.name, row.measured
        );
    }
    let errors: Vec<_> = rows
        .iter()
        .zip(&seconds)
        .map(|(row, &s)| compute_error_percent(row, s))
        .collect();
    let [first, second] = [&errors[..10], &errors[10..]]
        .map(|part| compute_mean_absolute_error(part.iter().copied()));
    println!("mean: SC'21 {first:.1} %, seqsel {second:.1} %");
    for (row, &off) in rows.iter().zip(&errors) {
        assert_row_error_equals_listed(&row.name, off);
    }
}

/// Prints each effect's contribution as the error without it.
#[test]
#[ignore = "an hour: all rows, once for each effect"]
fn print_prediction_errors_without_each_effect() {
    let Some(rows) = read_measured_rows() else {
        return;
    };
    let ways = WITHOUT.len() + 1;
    let errors = compute_in_parallel(rows.len() * ways, |i| {
        let (row, way) = (&rows[i / ways], i % ways);
        let more = match way {
            0 => vec![],
            way => vec!["--without", WITHOUT[way - 1].0],
        };
        compute_error_percent(row, predict_step_seconds(row, &more))
    });
    let heads: String = WITHOUT
        .iter()
        .map(|(_, head)| format!(" {head:>9}"))
        .collect();
    println!("error in %, without     nothing{heads}");
    for (row, errors) in rows.iter().zip(errors.chunks(ways)) {
        let cells: String = errors.iter().map(|off| format!(" {off:>+9.1}")).collect();
        println!("{:<21}{cells}", row.name);
    }
    for (part, name) in [(0..10, "SC'21"), (10..18, "seqsel")] {
        let of = |way| {
            compute_mean_absolute_error(part.clone().map(|row: usize| errors[row * ways + way]))
        };
        let cells: String = (0..ways).map(|way| format!(" {:>9.1}", of(way))).collect();
        println!("{:<21}{cells}", format!("mean of {name}"));
    }
    // The bubble of 1F1B is (p - 1) / m of the rest: 1 / 12 for the 39.1B row, and 63 / 512 for 1T.
    for (name, worth) in [("SC'21 39.1B", 6.0), ("seqsel 1T full", 9.0)] {
        let row = rows
            .iter()
            .position(|row| row.name == name)
            .expect("it is a row")
            * ways;
        let fall = errors[row] - errors[row + 4];
        assert!(
            fall > worth,
            "{name} without the bubble falls by {fall:.1} %"
        );
    }
}

/// Checks runs to which no constant was fitted: iterations of Megatron-DeepSpeed on 64 to 512 A100s, as vTrain's
/// authors measured them, with four 200 Gb/s ports for a node's eight NPUs.
#[test]
#[ignore = "minutes: 49 plans"]
fn unfitted_vtrain_runs_are_predicted() {
    let Some(folder) = find_measurement_corpus_if_present() else {
        return;
    };
    let cells = read_csv_rows(&folder.join("vtrain_a100_multi.part.csv"));
    let rows: Vec<_> = cells
        .iter()
        .map(|cells| {
            let get = |head| parse_cell_number(cells, head);
            let numbers = [
                ("tensor", get("tensor parallelism")),
                ("pipeline", get("pipeline parallelism")),
                ("data", get("data parallelism")),
                ("batch", get("global batch")),
                ("micro-batch", get("micro batch")),
            ];
            let model = match get("Parameters (billion)") {
                billions if billions > 100.0 => "gpt3-175b".to_owned(),
                billions => format!("megatron-{billions}b"),
            };
            let words = [
                "--recompute",
                "full",
                "--overlap",
                "false",
                "--tensor-overlap",
                "false",
            ];
            let shape: Vec<_> = numbers.iter().map(|(_, n)| n.to_string()).collect();
            MeasuredTrainingRun {
                name: format!("{model} {}", shape.join(",")),
                measured: get("iteration time (ms)") / 1e3,
                npus: get("# GPUs") as u32,
                plan: format_plan_arguments(&model, &numbers, &words),
            }
        })
        .collect();
    let selene = include_str!("../../../src/hardware/machine/presets/selene.toml");
    let files = tempfile::tempdir().expect("there is room");
    let seconds = compute_in_parallel(rows.len(), |i| {
        let nodes = format!("size = {} ", rows[i].npus / 8);
        let text = selene
            .replace("\"25 GB/s\"", "\"12.5 GB/s\"")
            .replace("size = 1 ", &nodes);
        let file = files.path().join(format!("{i}.toml"));
        std::fs::write(&file, text).expect("there is room");
        predict_step_seconds_on_machine(file.to_str().expect("a plain name"), &rows[i], &[])
    });
    println!("model tp,pp,dp,batch,micro-batch            measured  predicted   error");
    for (row, &seconds) in rows.iter().zip(&seconds) {
        let off = compute_error_percent(row, seconds);
        println!(
            "{:<40} {:>8.2} s {seconds:>8.2} s {off:>+7.1} %",
            row.name, row.measured
        );
    }
    let off = compute_mean_absolute_error(
        rows.iter()
            .zip(&seconds)
            .map(|(row, &s)| compute_error_percent(row, s)),
    );
    println!("mean {off:.1} % of {} rows", rows.len());
    assert!(off < 12.0, "{off:.2} %");
}
