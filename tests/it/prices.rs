//! Prices of kernels, collectives and hosts against measurements, and scores of predictions.
//!
//! Measurements are read where the variable `CHAKRAM_CORPUS` names a folder that has them, in `validation`; without it
//! tests that need them say that they are skipped.

use crate::commands::chakram;
use crate::corpus::corpus;
use chakram::internals::collective::{CollectiveCurve, CollectiveProtocol};
use chakram::internals::compute::{AttentionSizes, PowerThrottling};
use chakram::machine::Machine;
use chakram::trace::{CollectiveKind, Dtype};
use chakram::units::Bandwidth;
use serde_json::Value;
use std::collections::BTreeMap;

/// Rows of a file of CSV without quotes.
fn rows(name: &str) -> Option<Vec<BTreeMap<String, String>>> {
    let text = std::fs::read_to_string(corpus("validation")?.join(name)).expect("it can be read");
    Some(table(&text))
}

fn table(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned));
    let heads: Vec<String> = lines.next().expect("there are headings").collect();
    lines
        .map(|cells| heads.iter().cloned().zip(cells).collect())
        .collect()
}

/// Rows of a packed file.
fn packed_rows(name: &str) -> Option<Vec<BTreeMap<String, String>>> {
    let file = std::fs::File::open(corpus("validation")?.join(name)).expect("it can be read");
    let mut text = String::new();
    let mut unpacked = flate2::read::GzDecoder::new(file);
    std::io::Read::read_to_string(&mut unpacked, &mut text).expect("it is sound");
    Some(table(&text))
}

/// Shapes of GEMMs with what an independent program makes of the formula and the same constants.
#[test]
fn gemm_curves_follow_their_formula() {
    let Some(rows) = rows("prices_gemm_check.csv") else {
        return;
    };
    let mut seen = 0;
    for row in &rows {
        let (machine, efficiency) = match row["gpu"].as_str() {
            "a100" => ("dgx-a100", 0.873),
            // The preset is slower by a factor for continuous load, which the table leaves out.
            "h100" => ("dgx-h100", 0.87),
            _ => continue,
        };
        let machine = Machine::preset(machine).expect("it is a preset");
        let class = &machine.classes()[0];
        let mut curve = class.curves.gemm[Dtype::Bf16 as usize].expect("it has a curve");
        curve.efficiency = efficiency;
        // Neither has it the slowdown of long products.
        curve.throttling = None;
        let number = |head: &str| row[head].parse::<f64>().expect("it is a number");
        let [m, n, k] = ["m", "n", "k"].map(|head| number(head) as u64);
        let peak = class
            .peaks
            .get(Dtype::Bf16)
            .expect("it has a peak")
            .per_second();
        let memory = class.memory.bandwidth;
        let seconds = curve.seconds([1, m, n, k], 2.0, peak, memory);
        let off = seconds * 1e6 / number("model_us") - 1.0;
        assert!(off.abs() < 0.003, "{m} x {n} x {k}: {:.2} %", 100.0 * off);
        seen += 1;
    }
    assert!(seen >= 200, "only {seen} shapes");
}

/// One wave of one tile, by hand: 128 x 128 x 1024 on a single multiprocessor without other limits.
#[test]
fn a_gemm_of_one_tile_takes_its_loop_and_its_end() {
    let machine = Machine::preset("dgx-a100").expect("it is a preset");
    let mut curve = machine.classes()[0].curves.gemm[Dtype::Bf16 as usize].expect("it has a curve");
    (curve.start, curve.efficiency, curve.multiprocessors) = (1e-6, 1.0, 1.0);
    (curve.operands, curve.results, curve.memory, curve.reduction) = (1e30, 1e9, 1.0, 1.0);
    curve.throttling = None;
    let memory = Bandwidth::new(1e30).expect("it is a rate");
    // 2 x 128 x 128 x 1024 / 1e12 = 33.55 us, 128 x 128 x 2 / 1e9 = 32.77 us, and 1 us to start.
    let seconds = curve.seconds([1, 128, 128, 1024], 2.0, 1e12, memory);
    assert!(
        (seconds * 1e6 - (33.554_432 + 32.768 + 1.0)).abs() < 1e-6,
        "{seconds}"
    );
    // Ten times as long as this product is half of a slowdown of a tenth: 1 + 0.1 x 1 / 11.
    let mut hot = curve;
    hot.throttling = Some(PowerThrottling {
        slower: 0.1,
        after: 10.0 * seconds,
    });
    let slower = hot.seconds([1, 128, 128, 1024], 2.0, 1e12, memory);
    assert!((slower / seconds - (1.0 + 0.1 / 11.0)).abs() < 1e-12);
    // Two products are two waves.
    let two = curve.seconds([2, 128, 128, 1024], 2.0, 1e12, memory);
    assert!(
        (two * 1e6 - (2.0 * (33.554_432 + 32.768) + 1.0)).abs() < 1e-6,
        "{two}"
    );
}

/// Prefill on A100 and H100, and one query at a time on H100.
#[test]
fn attention_curves_are_near_what_was_measured() {
    let bf16 = Dtype::Bf16 as usize;
    let mean = |machine: &str, all: Vec<([u64; 6], f64)>| {
        let machine = Machine::preset(machine).expect("it is a preset");
        let class = &machine.classes()[0];
        let curve = class.curves.attention[bf16].expect("it has a curve");
        let peak = class
            .peaks
            .get(Dtype::Bf16)
            .expect("it has a peak")
            .per_second();
        let off = all.iter().map(|(sizes, seconds)| {
            let of = AttentionSizes {
                sizes: *sizes,
                causal: true,
                element: 2.0,
            };
            (curve.seconds(&of, peak, class.memory.bandwidth) / seconds - 1.0).abs()
        });
        off.sum::<f64>() / all.len() as f64
    };
    for (gpu, preset, most) in [("a100", "dgx-a100", 0.12), ("h100", "dgx-h100", 0.12)] {
        let Some(rows) = packed_rows(&format!("aic_attn_ctx_{gpu}.csv.gz")) else {
            return;
        };
        let plain = |row: &&BTreeMap<String, String>| {
            let formats = ["attn_dtype", "kv_cache_dtype"];
            formats.iter().all(|format| row[*format] == "bfloat16") && row["head_dim"] == "128"
        };
        let all: Vec<_> = rows
            .iter()
            .filter(plain)
            .map(|row| {
                let number = |head: &str| row[head].parse::<f64>().expect("it is a number");
                let heads = ["batch_size", "num_heads", "num_key_value_heads", "isl"];
                let [b, a, v, s] = heads.map(|head| number(head) as u64);
                ([b, a, v, s, s, 128], number("latency") / 1e3)
            })
            .collect();
        let count = all.len();
        let mean = mean(preset, all);
        println!("{preset} prefill: {:.1} % of {count}", 100.0 * mean);
        assert!(
            count > 1000 && mean < most,
            "{preset}: {:.1} % of {count}",
            100.0 * mean
        );
    }
    let rows = packed_rows("serving_attn_gen_h100.csv.gz").expect("it is beside the others");
    let plain = |row: &&BTreeMap<String, String>| {
        row["kv_dtype"] == "bfloat16" && row["head_dim"] == "128" && row["window"] == "0"
    };
    let all: Vec<_> = rows
        .iter()
        .filter(plain)
        .map(|row| {
            let number = |head: &str| row[head].parse::<f64>().expect("it is a number");
            let heads = ["batch", "heads", "kv_heads", "kv_len"];
            let [b, a, v, keys] = heads.map(|head| number(head) as u64);
            ([b, a, v, 1, keys + 1, 128], number("ms") / 1e3)
        })
        .collect();
    let count = all.len();
    let mean = mean("dgx-h100", all);
    println!("decode: {:.1} % of {count}", 100.0 * mean);
    assert!(
        count > 5000 && mean < 0.09,
        "{:.1} % of {count}",
        100.0 * mean
    );
}

/// NCCL's measured times at all sizes, against curves that were fitted to them.
#[test]
fn collective_curves_are_near_what_was_measured() {
    let Some(rows) = rows("nccl_a100_h100_b200.csv") else {
        return;
    };
    for (system, preset) in [
        ("a100_sxm", "dgx-a100"),
        ("h100_sxm", "dgx-h100"),
        ("b200_sxm", "dgx-b200"),
    ] {
        let machine = Machine::preset(preset).expect("it is a preset");
        let curves: &[CollectiveCurve] = &machine.collective_curves()[0];
        assert_eq!(curves.len(), 12, "four kinds among 2, 4 and 8");
        let protocols: &[CollectiveProtocol] = &machine.collective_protocols()[0];
        let mut formula = Vec::new();
        for (kind, name) in [
            (CollectiveKind::AllReduce, "all_reduce"),
            (CollectiveKind::AllGather, "all_gather"),
            (CollectiveKind::ReduceScatter, "reduce_scatter"),
            (CollectiveKind::AllToAll, "alltoall"),
        ] {
            let mut errors = Vec::new();
            for row in rows
                .iter()
                .filter(|row| row["system"] == system && row["op_name"] == name)
            {
                let number = |head: &str| row[head].parse::<f64>().expect("it is a number");
                let members = number("num_gpus") as u32;
                let of = |curve: &&CollectiveCurve| curve.kind == kind && curve.members == members;
                let Some(curve) = curves.iter().find(of) else {
                    continue;
                };
                let predicted = curve.seconds(number("bytes")) * 1e6;
                errors.push((predicted / number("latency_us") - 1.0).abs());
                let alike = protocols.iter().filter(|protocol| protocol.kind == kind);
                let seconds = alike.map(|protocol| protocol.seconds(members, number("bytes")));
                let fastest = seconds.min_by(f64::total_cmp).expect("there is a protocol");
                formula.push((fastest * 1e6 / number("latency_us") - 1.0).abs());
            }
            let mean = errors.iter().sum::<f64>() / errors.len() as f64;
            println!(
                "{preset} {name}: {:.1} % of {} sizes",
                100.0 * mean,
                errors.len()
            );
            assert!(errors.len() > 30, "{preset} {name}: {} sizes", errors.len());
            // Measurements of all-to-all on H100 differ among NCCL's versions.
            let most = if name == "alltoall" { 0.1 } else { 0.06 };
            assert!(mean < most, "{preset} {name}: {:.1} %", 100.0 * mean);
        }
        let mean = formula.iter().sum::<f64>() / formula.len() as f64;
        println!("{preset} by protocols: {:.1} %", 100.0 * mean);
        assert!(mean < 0.09, "{preset} by protocols: {:.1} %", 100.0 * mean);
    }
}

/// Every other size of NCCL's newest tables as a curve, against the sizes between.
#[test]
fn sizes_that_were_left_out_are_interpolated() {
    let Some(rows) = rows("nccl_a100_h100_b200.csv") else {
        return;
    };
    let mut tables: BTreeMap<[&str; 4], Vec<(f64, f64)>> = BTreeMap::new();
    for row in &rows {
        let newest = [
            ("a100_sxm", "2.27.3"),
            ("h100_sxm", "2.29.2"),
            ("b200_sxm", "2.29.2"),
        ];
        let heads = ["system", "nccl_version", "op_name", "num_gpus"];
        let key = heads.map(|head| row[head].as_str());
        if newest.contains(&(key[0], key[1])) {
            let number = |head: &str| row[head].parse::<f64>().expect("it is a number");
            let points = tables.entry(key).or_default();
            points.push((number("bytes"), number("latency_us")));
        }
    }
    assert_eq!(
        tables.len(),
        36,
        "three machines, four kinds, 2, 4 and 8 members"
    );
    let (mut errors, mut large) = (Vec::new(), Vec::new());
    for points in tables.values_mut() {
        // Some sizes were measured several times: the median counts.
        points.sort_by(|a, b| a.partial_cmp(b).expect("they are numbers"));
        let sizes = points.chunk_by(|a, b| a.0 == b.0);
        let points: Vec<(f64, f64)> = sizes.map(|runs| runs[runs.len() / 2]).collect();
        let curve = CollectiveCurve {
            kind: CollectiveKind::AllReduce,
            members: 2,
            points: points.iter().step_by(2).copied().collect(),
        };
        for &(bytes, time) in points.iter().skip(1).step_by(2) {
            let off = (curve.seconds(bytes) / time - 1.0).abs();
            errors.push(off);
            if bytes > 1e6 {
                large.push(off);
            }
        }
    }
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    large.sort_by(f64::total_cmp);
    let p90 = large[large.len() * 9 / 10];
    println!(
        "mean {:.1} %, above 1 MB {:.1} %, p90 {:.1} %",
        100.0 * mean(&errors),
        100.0 * mean(&large),
        100.0 * p90
    );
    assert!(mean(&errors) < 0.05, "{:.1} %", 100.0 * mean(&errors));
    // Protocols change between two sizes; NCCL's own jumps are not smooth.
    assert!(p90 < 0.13, "{:.1} %", 100.0 * p90);
}

const COLUMNS: &str = "\
measured = \"seconds\"
unit = \"s\"
machine = \"dgx-a100\"
groups = [\"hidden\"]

[columns]
hidden = \"width\"
tensor = \"tp\"

[fixed]
layers = \"2\"
heads = \"8\"
sequence = \"128\"
vocabulary = \"1024\"
batch = \"2\"
";

fn score(csv: &str, columns: &str, more: &[&str]) -> (bool, String) {
    let folder = tempfile::tempdir().expect("there is room");
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("there is room");
        path.to_str().expect("a plain name").to_owned()
    };
    let (csv, columns) = (path("runs.csv", csv), path("columns.toml", columns));
    let output = chakram(&[&["score", &csv, "--columns", &columns][..], more].concat());
    let text = if output.status.success() {
        &output.stdout
    } else {
        &output.stderr
    };
    (
        output.status.success(),
        String::from_utf8_lossy(text).into_owned(),
    )
}

/// A run that is predicted as it was measured has no error, whatever else the table holds.
#[test]
fn scores_are_errors_of_predictions() {
    let first = score(
        "width,tp,seconds\n256,1,1\n256,2,2\n",
        COLUMNS,
        &["--format", "json"],
    );
    assert!(first.0, "{}", first.1);
    let first: Value = serde_json::from_str(&first.1).expect("it is JSON");
    let seconds = |i: usize| {
        first["runs"][i]["predicted_s"]
            .as_f64()
            .expect("it is a number")
    };
    // Measured: what is predicted, and half of it.
    let csv = format!(
        "width,tp,seconds\n256,1,{}\n256,2,{}\n",
        seconds(0),
        seconds(1) / 2.0
    );
    let (good, text) = score(&csv, COLUMNS, &["--format", "json"]);
    assert!(good, "{text}");
    let scores: Value = serde_json::from_str(&text).expect("it is JSON");
    let ours = &scores["scores"]["chakram"];
    let near = |key: &str, expected: f64| {
        let found = ours[key].as_f64().expect("it is a number");
        assert!((found - expected).abs() < 1e-9, "{key}: {found}");
    };
    // Errors 0 and 1: mean and bias 0.5, the largest 1.
    near("mean", 0.5);
    near("bias", 0.5);
    near("max", 1.0);
    assert_eq!(ours["runs"], 2);
}

/// A table in tokens per second of which half the rows count, and another in FLOPs, beside one in seconds.
#[test]
fn tables_state_rates_pick_rows_and_set_options() {
    let (good, text) = score(
        "width,tp,seconds\n256,1,1\n256,2,2\n",
        COLUMNS,
        &["--format", "json"],
    );
    assert!(good, "{text}");
    let runs: Value = serde_json::from_str(&text).expect("it is JSON");
    let of = |i: usize| {
        runs["runs"][i]["predicted_s"]
            .as_f64()
            .expect("it is a number")
    };
    // 2 samples of 128 tokens on 1 and 2 NPUs, at half of the predicted rate.
    let csv = format!(
        "width,cut,rate,phase\n256,one,{},train\n256,two,{},train\n256,two,nothing,tune\n",
        2.0 * 128.0 / of(0) / 2.0,
        2.0 * 128.0 / of(1) / 2.0 / 2.0
    );
    let columns = COLUMNS
        .replace("measured = \"seconds\"", "measured = \"rate\"")
        .replace("unit = \"s\"", "unit = \"tokens/s/npu\"")
        .replace("tensor = \"tp\"\n", "")
        + "[only]\nphase = [\"train\"]\n[when.cut]\none = { npus = \"1\" }\ntwo = { npus = \"2\", tensor = \"2\" }\n";
    let (good, text) = score(&csv, &columns, &["--format", "json"]);
    assert!(good, "{text}");
    let scores: Value = serde_json::from_str(&text).expect("it is JSON");
    let ours = &scores["scores"]["chakram"];
    assert_eq!(ours["runs"], 2, "the third row is of another phase");
    let bias = ours["bias"].as_f64().expect("it is a number");
    assert!((bias + 0.5).abs() < 1e-9, "{bias}");
    // Equation 3 of SC'21, without recomputation: 72 B s l h^2 (1 + s / 6h + V / 12lh).
    let (s, h, l, v) = (128.0, 256.0, 2.0, 1024.0);
    let flops = 2.0 * 72.0 * s * l * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * l * h));
    let csv = format!("width,tp,seconds\n256,1,{}\n", flops / 1e12 / of(0));
    let columns = COLUMNS.replace("unit = \"s\"", "unit = \"model TFLOP/s/npu\"");
    let (good, text) = score(&csv, &columns, &["--format", "json"]);
    assert!(good, "{text}");
    let scores: Value = serde_json::from_str(&text).expect("it is JSON");
    let most = scores["scores"]["chakram"]["max"]
        .as_f64()
        .expect("it is a number");
    assert!(most < 1e-6, "{most}");
}

/// A host that takes no time changes nothing; one that takes longer than its kernels is what a step takes.
#[test]
fn hosts_that_are_slower_than_kernels_set_the_time() {
    let csv = "width,tp,seconds\n256,1,1\n";
    let seconds = |more: &[&str]| {
        let (good, text) = score(csv, COLUMNS, &[&["--format", "json"], more].concat());
        assert!(good, "{text}");
        let found: Value = serde_json::from_str(&text).expect("it is JSON");
        found["runs"][0]["predicted_s"]
            .as_f64()
            .expect("it is a number")
    };
    let [eager, none, graph] = [
        &["--launch", "eager"][..],
        &["--launch", "none"],
        &["--launch", "graph"],
    ]
    .map(seconds);
    assert!(eager > 3.0 * none, "{eager} s against {none} s");
    assert!(
        graph >= none && graph < none + 1e-3,
        "{graph} s against {none} s"
    );
}

/// The makespan that a report in JSON states, and whether it states an interval.
fn makespan(arguments: &[&str]) -> (u64, bool) {
    let output = chakram(&[arguments, &["--format", "json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let makespan = report["makespan_ps"].as_u64().expect("it is a number");
    (makespan, report.get("interval").is_some())
}

/// Without flags a model is priced by curves, its host launches it, and collectives are measured, whether it is replayed
/// at once or from files; with an efficiency, or on machines without curves, it is as by roofline.
#[test]
fn generated_models_are_priced_by_curves_where_there_are_any() {
    let model = ["generate", "gpt2-small", "--tensor", "2", "--batch", "1"];
    let on = |machine: &str, more: &[&str]| {
        makespan(&[&model[..], &["--machine", machine], more].concat())
    };
    let (by_default, interval) = on("dgx-a100", &[]);
    assert!(interval);
    let all = [
        "--compute",
        "curves",
        "--launch",
        "eager",
        "--collectives",
        "curves",
    ];
    assert_eq!(by_default, on("dgx-a100", &all).0);
    for (flag, value) in [("--launch", "none"), ("--collectives", "algorithms")] {
        assert_ne!(
            by_default,
            on("dgx-a100", &[flag, value]).0,
            "{flag} {value}"
        );
    }
    let (roofline, interval) = on("dgx-a100", &["--compute", "roofline"]);
    assert!(!interval && roofline < by_default);
    assert_eq!(roofline, on("dgx-a100", &["--efficiency", "1"]).0);
    assert_eq!(on("mi300x", &[]), on("mi300x", &["--compute", "roofline"]));
    let folder = tempfile::tempdir().expect("there is room");
    let prefix = folder.path().join("job");
    let prefix = prefix.to_str().expect("a plain name");
    let output = chakram(&[&model[..], &["-o", prefix]].concat());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        by_default,
        makespan(&["replay", prefix, "--machine", "dgx-a100"]).0
    );
}

/// The machine file of A100s with a host that takes half again as long to launch an operator.
fn with_slower_launches() -> String {
    let preset = std::fs::read_to_string("src/machine/presets/dgx-a100.toml").expect("it is there");
    let slower = |line: &str| match line.strip_prefix("launch = \"") {
        Some(rest) => {
            let duration = rest.split('"').next().expect("a quoted duration");
            let micros = duration.strip_suffix(" us").expect("in microseconds");
            let micros: f64 = micros.parse().expect("a number");
            format!("launch = \"{} us\"\n", 1.5 * micros)
        }
        None => format!("{line}\n"),
    };
    let machine: String = preset.lines().map(slower).collect();
    assert_ne!(machine, preset, "the preset has launches of a host");
    machine
}

/// Runs that were measured on a machine whose host is half again as slow: what is fitted to the others predicts each.
#[test]
fn constants_are_fitted_to_the_runs_of_other_folds() {
    let folder = tempfile::tempdir().expect("there is room");
    let machine = folder.path().join("slower.toml");
    std::fs::write(&machine, with_slower_launches()).expect("there is room");
    let machine = machine.to_str().expect("a plain name");
    let table = |seconds: [f64; 4]| {
        let [a, b, c, d] = seconds;
        format!("width,tp,seconds\n256,1,{a}\n256,2,{b}\n512,1,{c}\n512,2,{d}\n")
    };
    let json = |csv: &str, more: &[&str]| -> Value {
        let columns = COLUMNS.replace("groups", "folds = [\"hidden\"]\ngroups");
        let (good, text) = score(csv, &columns, &[&["--format", "json"], more].concat());
        assert!(good, "{text}");
        serde_json::from_str(&text).expect("it is JSON")
    };
    let measured = json(&table([1.0; 4]), &["--machine", machine]);
    let seconds = [0, 1, 2, 3].map(|i| {
        measured["runs"][i]["predicted_s"]
            .as_f64()
            .expect("a number")
    });
    let csv = table(seconds);
    let mean = |scores: &Value| {
        scores["scores"]["chakram"]["mean"]
            .as_f64()
            .expect("a number")
    };
    let unfitted = json(&csv, &["--machine", "dgx-a100"]);
    let fitted = json(
        &csv,
        &["--machine", "dgx-a100", "--fit", "launch", "--folds", "2"],
    );
    assert!(
        mean(&unfitted) > 0.15 && mean(&fitted) < 0.01,
        "{unfitted} {fitted}"
    );
    for fold in [0, 1] {
        let factor = fitted["folds"][fold]["factors"]["launch"]
            .as_f64()
            .expect("a number");
        assert!((factor - 1.5).abs() < 0.02, "{fitted}");
    }
    assert_eq!(fitted["intervals"]["coverage"], 1.0);
}

/// Steps of a machine whose host is half again as slow correct a machine file, by which deeper models of the same width are
/// predicted; models without that product are as before.
#[test]
fn measured_steps_correct_the_prices_of_a_machine() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = |name: &str| {
        let path = folder.path().join(name);
        path.to_str().expect("a plain name").to_owned()
    };
    let write = |name: &str, text: &str| {
        std::fs::write(path(name), text).expect("there is room");
        path(name)
    };
    let slower = write("slower.toml", &with_slower_launches());
    let columns = COLUMNS.replace("layers = \"2\"\n", "");
    let columns = columns.replace("tensor = \"tp\"", "tensor = \"tp\"\nlayers = \"depth\"");
    let columns = write("columns.toml", &columns);
    let run = |arguments: &[&str]| {
        let output = chakram(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        output.stdout
    };
    let scored = |csv: &str, machine: &str| -> Value {
        let csv = write("runs.csv", csv);
        let more = [
            "--columns",
            &columns,
            "--machine",
            machine,
            "--format",
            "json",
        ];
        let text = run(&[&["score", &csv][..], &more].concat());
        serde_json::from_slice(&text).expect("it is JSON")
    };
    let sizes = [
        (256, 1, 2),
        (512, 2, 2),
        (256, 1, 8),
        (512, 2, 6),
        (128, 1, 2),
    ];
    let table = |seconds: &dyn Fn(usize) -> f64, picked: &[usize]| {
        let row = |&i: &usize| {
            let (width, tensor, layers) = sizes[i];
            format!("{width},{tensor},{layers},{}\n", seconds(i))
        };
        "width,tp,depth,seconds\n".to_owned() + &picked.iter().map(row).collect::<String>()
    };
    let predicted =
        |scores: &Value, i: usize| scores["runs"][i]["predicted_s"].as_f64().expect("a number");
    let all = table(&|_| 1.0, &[0, 1, 2, 3, 4]);
    let truth = scored(&all, &slower);
    let before = scored(&all, "dgx-a100");
    let measured = |i: usize| predicted(&truth, i);
    let steps = write("steps.csv", &table(&measured, &[0, 1]));
    let ours = path("ours.toml");
    let text = run(&[
        "calibrate",
        &steps,
        "--columns",
        &columns,
        "--machine",
        "dgx-a100",
        "-o",
        &ours,
    ]);
    assert!(
        String::from_utf8_lossy(&text).contains("2 steps"),
        "{}",
        String::from_utf8_lossy(&text)
    );
    let after = scored(&all, &ours);
    let error = |scores: &Value, i: usize| predicted(scores, i) / measured(i) - 1.0;
    for i in 0..4 {
        assert!(error(&before, i) < -0.15, "{i}: {}", error(&before, i));
        assert!(error(&after, i).abs() < 0.03, "{i}: {}", error(&after, i));
    }
    assert_eq!(predicted(&after, 4), predicted(&before, 4));
    // Again from what was written: the corrections are replaced, not corrected.
    let again = path("again.toml");
    run(&[
        "calibrate",
        &steps,
        "--columns",
        &columns,
        "--machine",
        &ours,
        "-o",
        &again,
    ]);
    let [once, twice] =
        [&ours, &again].map(|path| std::fs::read_to_string(path).expect("it is there"));
    assert_eq!(once, twice);
}

#[test]
fn tables_that_make_no_runs_are_refused() {
    for (csv, columns, expected) in [
        (
            "width,tp\n256,1\n",
            COLUMNS.to_owned(),
            "there is no column \"seconds\"",
        ),
        (
            "width,tp,seconds\n256,1,0\n",
            COLUMNS.to_owned(),
            "runs.csv:2: \"seconds\" is \"0\"",
        ),
        (
            "width,tp,seconds\n256,x,1\n",
            COLUMNS.to_owned(),
            "runs.csv:2: `tensor` is \"x\"",
        ),
        (
            "width,tp,seconds\n",
            COLUMNS.to_owned(),
            "there is no run in it",
        ),
        (
            "width,tp,seconds\n256,1,1\n",
            COLUMNS.replace("batch =", "bach ="),
            "did you mean `batch`?",
        ),
        (
            "width,tp,seconds\n256,1,1\n",
            COLUMNS.replace("[\"hidden\"]", "[\"width\"]"),
            "an unknown option",
        ),
    ] {
        let (good, text) = score(csv, &columns, &[]);
        assert!(!good, "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

/// Iterations that vTrain's authors measured, against predictions by curves.
#[test]
#[ignore = "minutes: 771 runs"]
fn measured_iterations_are_predicted() {
    let Some(folder) = corpus("validation") else {
        return;
    };
    for (table, mean, tau) in [("single", 0.058, 0.84), ("multi", 0.08, 0.5)] {
        let runs = folder.join(format!("vtrain_a100_{table}.part.csv"));
        let columns = format!("docs/columns/vtrain-{table}.toml");
        let runs = runs.to_str().expect("a plain name");
        let output = chakram(&["score", runs, "--columns", &columns, "--format", "json"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let scores: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        let ours = &scores["scores"]["chakram"];
        println!("{table}: {ours}");
        assert!(
            ours["mean"].as_f64().expect("it is a number") < mean,
            "{ours}"
        );
        assert!(
            ours["tau"].as_f64().expect("it is a number") > tau,
            "{ours}"
        );
    }
}

/// The makespan, in milliseconds, of `traces` on `machine` with kernels by curves or as recorded.
fn makespan_ms(traces: &str, machine: &str, compute: &str) -> f64 {
    let output = chakram(&[
        "replay",
        traces,
        "--machine",
        machine,
        "--compute",
        compute,
        "--format",
        "json",
    ]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    report["makespan_ps"].as_f64().expect("a number") / 1e9
}

/// A captured job is priced by its own kernels: their sums are kept, so that the makespan hardly moves.
#[test]
fn kernels_of_a_captured_job_price_it() {
    let folder = tempfile::tempdir().expect("there is room");
    let measured = folder.path().join("measured.toml");
    let measured = measured.to_str().expect("a plain name");
    let machine = "traces/tp-mlp/machine.toml";
    let arguments = ["calibrate", "--kernels", "traces/tp-mlp", "--machine"];
    let calibrate = |from: &str| {
        let output = chakram(&[&arguments[..], &[from, "-o", measured]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        std::fs::read_to_string(measured).expect("it was written")
    };
    let first = calibrate(machine);
    // A second calibration takes the place of the first.
    assert_eq!(calibrate(measured), first);
    let (own, recorded) = (
        makespan_ms("traces/tp-mlp", measured, "curves"),
        makespan_ms("traces/tp-mlp", measured, "recorded"),
    );
    assert!((own / recorded - 1.0).abs() < 0.05, "{own} {recorded}");
    // Kernels are an eighth of the critical path, by the report; the rest is the host's. Twice as long, they add that much.
    let doubled: String = first
        .lines()
        .map(|line| match line.strip_suffix(" us\"],") {
            Some(line) => {
                let (head, micros) = line.rsplit_once('"').expect("a quoted time");
                let micros: f64 = micros.parse().expect("a number");
                format!("{head}\"{} us\"],\n", 2.0 * micros)
            }
            None => format!("{line}\n"),
        })
        .collect();
    std::fs::write(measured, doubled).expect("there is room");
    let twice = makespan_ms("traces/tp-mlp", measured, "curves");
    assert!((twice / own - 1.125).abs() < 0.01, "{twice} {own}");
}

/// A step of twice the batch is predicted by the kernels of the smaller one.
#[test]
fn kernels_of_a_small_batch_price_a_larger_one() {
    let Some(pairs) = corpus("captures/interventions") else {
        return;
    };
    let folder = tempfile::tempdir().expect("there is room");
    let at = |name: &str| folder.path().join(name).to_str().expect("plain").to_owned();
    for side in ["A", "B"] {
        let capture = pairs.join("ddp_batch_x2").join(side);
        let capture = capture.to_str().expect("a plain name");
        let output = chakram(&[
            "convert",
            "pytorch",
            capture,
            "-o",
            &at(&format!("{side}/job")),
        ]);
        assert!(output.status.success());
    }
    let (machine, measured) = ("traces/ddp-resnet18/machine.toml", at("measured.toml"));
    let arguments = ["--machine", machine, "-o", &measured];
    let output = chakram(&[&["calibrate", "--kernels", &at("A")][..], &arguments].concat());
    assert!(output.status.success());
    let predicted = makespan_ms(&at("B"), &measured, "curves");
    let (smaller, recorded) = (
        makespan_ms(&at("A"), &measured, "recorded"),
        makespan_ms(&at("B"), &measured, "recorded"),
    );
    let error = |predicted: f64| (predicted / recorded - 1.0).abs();
    assert!(error(predicted) < 0.04, "{predicted} {recorded}");
    // Better than no change, and than all times twice as long.
    assert!(error(predicted) < error(smaller).min(error(2.0 * smaller)));
}

/// Jobs without a recorded time, and jobs that do not fit, calibrate nothing.
#[test]
fn jobs_without_kernels_calibrate_nothing() {
    let folder = tempfile::tempdir().expect("there is room");
    let at = |name: &str| folder.path().join(name).to_str().expect("plain").to_owned();
    let output = chakram(&[
        "generate",
        "resnet-18",
        "--batch",
        "2",
        "--data",
        "2",
        "-o",
        &at("job"),
    ]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let refused = |traces: &str, machine: &str| {
        let out = at("out.toml");
        let output = chakram(&[
            "calibrate",
            "--kernels",
            traces,
            "--machine",
            machine,
            "-o",
            &out,
        ]);
        assert_eq!(output.status.code(), Some(2));
        assert!(!std::path::Path::new(&out).exists());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let unknown = refused(&at("job"), "dgx-a100");
    assert!(unknown.contains("has a recorded time"), "{unknown}");
    let few = refused("traces/astra-sim-8", "traces/tp-mlp/machine.toml");
    assert!(few.contains("has 8 ranks"), "{few}");
}
