//! Compares curves of GEMMs, attention and collectives with measurements of single operations.

use super::{read_compressed_csv_rows, read_validation_rows};
use chakram::machine::{
    AttentionSizes, CollectiveCurve, FittedCollectiveProtocol, LongGemmPowerLimitSlowdown, Machine,
};
use chakram::trace::{CollectiveKind, Dtype};
use chakram::units::Bandwidth;
use std::collections::BTreeMap;

/// Compares GEMM shapes with the results of an independent program for the same formula and constants.
#[test]
fn gemm_curves_follow_their_formula() {
    let Some(rows) = read_validation_rows("prices_gemm_check.csv") else {
        return;
    };
    let mut seen = 0;
    for row in &rows {
        let (machine, efficiency) = match row["gpu"].as_str() {
            "a100" => ("dgx-a100", 0.873),
            // The preset includes a slowdown under continuous load, which the table excludes.
            "h100" => ("dgx-h100", 0.87),
            _ => continue,
        };
        let machine = Machine::load_preset(machine).expect("it is a preset");
        let class = &machine.npu_classes()[0];
        let mut curve = class.curves.gemm[Dtype::Bf16 as usize].expect("it has a curve");
        curve.efficiency = efficiency;
        // The table also excludes the slowdown of long matrix products.
        curve.throttling = None;
        let number = |head: &str| row[head].parse::<f64>().expect("it is a number");
        let [m, n, k] = ["m", "n", "k"].map(|head| number(head) as u64);
        let peak = class
            .peaks
            .peak_rate_if_supported(Dtype::Bf16)
            .expect("it has a peak")
            .per_second();
        let memory = class.memory_bandwidth().unwrap();
        let seconds = curve.predict_seconds([1, m, n, k], 2.0, peak, memory);
        let off = seconds * 1e6 / number("model_us") - 1.0;
        assert!(off.abs() < 0.003, "{m} x {n} x {k}: {:.2} %", 100.0 * off);
        seen += 1;
    }
    assert!(seen >= 200, "only {seen} shapes");
}

/// One wave of one tile is computed by hand: 128 x 128 x 1024 on a single multiprocessor without
/// other limits.
#[test]
fn a_gemm_of_one_tile_takes_the_times_of_start_loop_and_results() {
    let machine = Machine::load_preset("dgx-a100").expect("it is a preset");
    let mut curve =
        machine.npu_classes()[0].curves.gemm[Dtype::Bf16 as usize].expect("it has a curve");
    (curve.start, curve.efficiency, curve.multiprocessors) = (1e-6, 1.0, 1.0);
    (curve.operands, curve.results, curve.memory, curve.reduction) = (1e30, 1e9, 1.0, 1.0);
    curve.throttling = None;
    let memory = Bandwidth::new(1e30).expect("it is a rate");
    // The loop takes 2 x 128 x 128 x 1024 / 1e12 = 33.55 us, the results take 128 x 128 x 2 / 1e9 =
    // 32.77 us, and the start takes 1 us.
    let seconds = curve.predict_seconds([1, 128, 128, 1024], 2.0, 1e12, memory);
    assert!(
        (seconds * 1e6 - (33.554_432 + 32.768 + 1.0)).abs() < 1e-6,
        "{seconds}"
    );
    // The half-way constant is ten times this matrix product's time, and the slowdown is a tenth: 1
    // + 0.1 x 1 / 11.
    let mut hot = curve;
    hot.throttling = Some(LongGemmPowerLimitSlowdown {
        slower: 0.1,
        after: 10.0 * seconds,
    });
    let slower = hot.predict_seconds([1, 128, 128, 1024], 2.0, 1e12, memory);
    assert!((slower / seconds - (1.0 + 0.1 / 11.0)).abs() < 1e-12);
    // Two matrix products are two waves.
    let two = curve.predict_seconds([2, 128, 128, 1024], 2.0, 1e12, memory);
    assert!(
        (two * 1e6 - (2.0 * (33.554_432 + 32.768) + 1.0)).abs() < 1e-6,
        "{two}"
    );
}

/// Compares prefill on A100 and H100, and decoding with one query at a time on H100.
#[test]
fn attention_curves_are_near_what_was_measured() {
    let bf16 = Dtype::Bf16 as usize;
    let mean = |machine: &str, all: Vec<([u64; 6], f64)>| {
        let machine = Machine::load_preset(machine).expect("it is a preset");
        let class = &machine.npu_classes()[0];
        let curve = class.curves.attention[bf16].expect("it has a curve");
        let peak = class
            .peaks
            .peak_rate_if_supported(Dtype::Bf16)
            .expect("it has a peak")
            .per_second();
        let off = all.iter().map(|(sizes, seconds)| {
            let of = AttentionSizes {
                sizes: *sizes,
                causal: true,
                element: 2.0,
            };
            (curve.predict_seconds(&of, peak, class.memory_bandwidth().unwrap()) / seconds - 1.0)
                .abs()
        });
        off.sum::<f64>() / all.len() as f64
    };
    for (gpu, preset, most) in [("a100", "dgx-a100", 0.12), ("h100", "dgx-h100", 0.12)] {
        let Some(rows) = read_compressed_csv_rows(&format!("aic_attn_ctx_{gpu}.csv.gz")) else {
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
    let rows =
        read_compressed_csv_rows("serving_attn_gen_h100.csv.gz").expect("it is beside the others");
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

/// Compares NCCL's measured times, at all sizes and from all versions, with the presets' curves. Also compares
/// separately the sizes above 1 MB that are not points of the curves.
#[test]
fn collective_curves_are_near_what_was_measured() {
    let Some(rows) = read_validation_rows("nccl_a100_h100_b200.csv") else {
        return;
    };
    for (system, version, preset) in [
        ("a100_sxm", "2.27.3", "dgx-a100"),
        ("h100_sxm", "2.29.2", "dgx-h100"),
        ("b200_sxm", "2.29.2", "dgx-b200"),
    ] {
        let machine = Machine::load_preset(preset).expect("it is a preset");
        let curves: &[CollectiveCurve] = &machine.collective_curves()[0];
        assert_eq!(curves.len(), 12, "four kinds among 2, 4 and 8");
        let protocols: &[FittedCollectiveProtocol] = &machine.collective_protocols()[0];
        let mut formula = Vec::new();
        let mut between = Vec::new();
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
                let predicted = curve.predict_seconds(number("bytes")) * 1e6;
                let off = (predicted / number("latency_us") - 1.0).abs();
                errors.push(off);
                let known = |point: &(f64, f64)| point.0 == number("bytes");
                let newest = row["nccl_version"] == version;
                if newest && number("bytes") > 1e6 && !curve.points.iter().any(known) {
                    between.push(off);
                }
                let alike = protocols.iter().filter(|protocol| protocol.kind == kind);
                let seconds = alike.map(|protocol| protocol.seconds_for(members, number("bytes")));
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
        between.sort_by(f64::total_cmp);
        let mean = between.iter().sum::<f64>() / between.len() as f64;
        let p90 = between[between.len() * 9 / 10];
        println!(
            "{preset}: {:.1} % of {} sizes above 1 MB between points, p90 {:.1} %",
            100.0 * mean,
            between.len(),
            100.0 * p90
        );
        assert!(between.len() >= 24 && mean < 0.05 && p90 < 0.10, "{preset}");
        let mean = formula.iter().sum::<f64>() / formula.len() as f64;
        println!("{preset} by protocols: {:.1} %", 100.0 * mean);
        assert!(mean < 0.09, "{preset} by protocols: {:.1} %", 100.0 * mean);
    }
}

/// Uses every other size in NCCL's newest tables as a curve, and compares it with the sizes in
/// between.
#[test]
fn collective_sizes_left_out_of_a_curve_are_interpolated() {
    let Some(rows) = read_validation_rows("nccl_a100_h100_b200.csv") else {
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
        // Some sizes were measured several times, so the test uses the median.
        points.sort_by(|a, b| a.partial_cmp(b).expect("they are numbers"));
        let sizes = points.chunk_by(|a, b| a.0 == b.0);
        let points: Vec<(f64, f64)> = sizes.map(|runs| runs[runs.len() / 2]).collect();
        let curve = CollectiveCurve {
            kind: CollectiveKind::AllReduce,
            members: 2,
            points: points.iter().step_by(2).copied().collect(),
            measured_at: None,
        };
        for &(bytes, time) in points.iter().skip(1).step_by(2) {
            let off = (curve.predict_seconds(bytes) / time - 1.0).abs();
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
    // NCCL changes protocols between sizes, so its times jump.
    assert!(p90 < 0.13, "{:.1} %", 100.0 * p90);
}
