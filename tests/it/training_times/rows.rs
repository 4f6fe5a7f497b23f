//! Reads measured rows, and their plans.

use crate::corpus::corpus_path_or_count_skip;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A measured run.
#[derive(Clone, Debug)]
pub struct MeasuredTrainingRun {
    pub name: String,
    /// The seconds that a step takes.
    pub measured: f64,
    pub npus: u32,
    /// The arguments of `chakram generate` for the plan.
    pub plan: Vec<String>,
}

/// The cells of a CSV row by heading.
type CsvRowCells = BTreeMap<String, String>;

/// Returns the folder of measurements, or `None` without a corpus.
pub fn find_measurement_corpus_if_present() -> Option<PathBuf> {
    corpus_path_or_count_skip("validation")
}

/// Returns the rows of a CSV file without quotes.
pub fn read_csv_rows(file: &Path) -> Vec<CsvRowCells> {
    let text = std::fs::read_to_string(file).expect("the corpus can be read");
    let mut lines = text.trim_start_matches('\u{feff}').lines();
    let split = |line: &str| {
        line.split(',')
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let heads = split(lines.next().expect("there is a heading"));
    let cells = |line| heads.iter().cloned().zip(split(line)).collect();
    lines.filter(|line| !line.is_empty()).map(cells).collect()
}

/// Returns the number in a cell; panics if there is none.
pub fn parse_cell_number(row: &CsvRowCells, head: &str) -> f64 {
    let cell = row
        .get(head)
        .unwrap_or_else(|| panic!("there is no column {head}"));
    cell.parse().unwrap_or_else(|_| panic!("{head}: {cell}"))
}

/// Returns all 18 rows, if the corpus exists.
pub fn read_measured_rows() -> Option<Vec<MeasuredTrainingRun>> {
    let folder = find_measurement_corpus_if_present()?;
    let sc21 = read_csv_rows(&folder.join("megatron_sc21_a100.csv"));
    let seqsel = read_csv_rows(&folder.join("megatron_seqsel_a100.csv"));
    let mut rows: Vec<_> = sc21.iter().map(parse_narayanan_row).collect();
    rows.extend(seqsel.iter().flat_map(parse_korthikanti_rows));
    assert_eq!(rows.len(), 18, "all rows are there");
    Some(rows)
}

/// The common options of Megatron-LM's runs: half precision, and unfused attention.
const COMMON: &[&str] = &["--dtype", "fp16", "--attention", "unfused"];

/// Each member of a tensor group sends a part to the next stage, which gathers them (SC'21, section 4.1).
const SCATTER: &str = "--scatter-gather";

/// Returns the arguments of a plan from pairs of an option and a number, and from further words.
pub fn format_plan_arguments(model: &str, numbers: &[(&str, f64)], words: &[&str]) -> Vec<String> {
    let mut plan = vec![model.to_owned()];
    for (option, number) in numbers {
        plan.extend([format!("--{option}"), number.to_string()]);
    }
    plan.extend(COMMON.iter().chain(words).map(|&word| word.to_owned()));
    plan
}

/// With several chunks on a stage, passes are interleaved.
pub fn add_interleaved_stage_chunk_arguments(plan: &mut Vec<String>, chunks: f64) {
    if chunks > 1.0 {
        let words = ["--schedule", "interleaved", "--chunks", &chunks.to_string()];
        plan.extend(words.map(str::to_owned));
    }
}

/// The samples of a micro-batch and the chunks of a stage, which the paper's table omits. The numbers come from
/// Megatron-LM's examples/sc21/run_table_1.sh, which also reduces gradients during the backward pass (`DDP=torch`) if
/// there is one stage, and after it (`DDP=local`) if there are several.
const RUNS: [(&str, &str, f64, f64); 10] = [
    ("1.7", "megatron-1.7b", 16.0, 1.0),
    ("3.6", "megatron-3.6b", 16.0, 1.0),
    ("7.5", "megatron-7.5b", 16.0, 1.0),
    ("18.4", "megatron-18.4b", 8.0, 1.0),
    ("39.1", "megatron-39.1b", 4.0, 1.0),
    ("76.1", "megatron-76.1b", 2.0, 3.0),
    ("145.6", "megatron-145.6b", 2.0, 2.0),
    ("310.1", "megatron-310.1b", 1.0, 2.0),
    ("529.6", "megatron-529.6b", 1.0, 3.0),
    ("1008.0", "megatron-1t", 1.0, 1.0),
];

/// Returns a row of Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
/// Clusters Using Megatron-LM", SC'21, Table 1. The table gives FLOP/s, and the step's FLOPs follow
/// from the paper's equation 3, including recomputation:
/// `F = 96 B s l h^2 (1 + s / 6h + V / 16lh)`.
fn parse_narayanan_row(row: &CsvRowCells) -> MeasuredTrainingRun {
    let get = |head| parse_cell_number(row, head);
    let [batch, s, l, h, v] = ["global_batch", "seq", "layers", "hidden", "vocab"].map(get);
    let [tensor, pipeline, npus] = ["TP", "PP", "gpus"].map(get);
    let flops = 96.0 * batch * s * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
    let size = &row["params_B"];
    let run = RUNS
        .iter()
        .find(|run| run.0 == size)
        .expect("its run is known");
    let numbers = [
        ("tensor", tensor),
        ("pipeline", pipeline),
        ("data", npus / tensor / pipeline),
        ("batch", batch),
        ("micro-batch", run.2),
    ];
    let beside = if pipeline == 1.0 { "true" } else { "false" };
    let mut words = vec!["--recompute", "full", "--overlap", beside];
    // Only later versions overlapped products with the all-reduces of gradients over a tensor group.
    words.extend(["--tensor-overlap", "false"]);
    if pipeline > 1.0 {
        words.push(SCATTER);
    }
    let mut plan = format_plan_arguments(run.1, &numbers, &words);
    add_interleaved_stage_chunk_arguments(&mut plan, run.3);
    MeasuredTrainingRun {
        name: format!("SC'21 {size}B"),
        measured: flops / npus / (get("tflops_per_gpu") * 1e12),
        npus: npus as u32,
        plan,
    }
}

/// Returns two rows of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
/// Models", 2022, Table 5. One recomputes all of a block, and the other, with sequence parallelism,
/// only attention's scores. In these runs, the all-reduces of gradients are overlapped with
/// independent products (section 6).
fn parse_korthikanti_rows(row: &CsvRowCells) -> [MeasuredTrainingRun; 2] {
    let get = |head| parse_cell_number(row, head);
    let model = match row["model"].as_str() {
        "22B" => "megatron-22b",
        "175B" => "gpt3-175b",
        "530B" => "megatron-529.6b",
        _ => "megatron-1t",
    };
    let numbers = [
        ("tensor", get("TP")),
        ("pipeline", get("PP")),
        ("data", get("DP")),
        ("batch", get("global_batch")),
        ("micro-batch", get("micro_batch")),
    ];
    let stages = get("PP") > 1.0;
    let full = ["--recompute", "full", SCATTER];
    let full = if stages { &full[..] } else { &full[..2] };
    let selective = ["--recompute", "selective", "--sequence-parallel"];
    let ways = [
        ("full", "iter_s_full_recompute", full),
        ("selective", "iter_s_seqpar_selective", &selective),
    ];
    ways.map(|(way, seconds, words)| {
        let mut plan = format_plan_arguments(model, &numbers, words);
        add_interleaved_stage_chunk_arguments(&mut plan, get("interleave"));
        MeasuredTrainingRun {
            name: format!("seqsel {} {way}", row["model"]),
            measured: get(seconds),
            npus: get("gpus") as u32,
            plan,
        }
    })
}
