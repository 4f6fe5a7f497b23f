//! Studies of the paper on tiles, PALM: what its figures claim, beside what comes out.

use crate::files::Folder;
use serde_json::Value;

/// Bytes that links of the wafer carried, and the time it took in ps, for a plan of 16 cores of one die.
fn carried(folder: &Folder, model: &str, tensor: u32) -> (f64, f64) {
    let [tensor, data, samples] = [tensor, 16 / tensor, 112 * tensor / 16].map(|n| n.to_string());
    let plan = [
        "generate",
        model,
        "--tensor",
        &tensor,
        "--data",
        &data,
        "--micro-batch",
        &samples,
        "--batch",
        "112",
        "--dtype",
        "fp16",
        "--machine",
        "wafer-5x4",
        "--place",
        "s_shape",
        "--format",
        "json",
    ];
    let report: Value = serde_json::from_str(&folder.ok(&plan)).unwrap();
    let links = report["tiles"]["links"].as_array().unwrap().iter();
    let busy: f64 = links.map(|link| link["busy_ps"].as_f64().unwrap()).sum();
    // 1024 GB/s, and so 1.024 bytes in a picosecond.
    (busy * 1.024, report["makespan_ps"].as_f64().unwrap())
}

/// Fig. 9: links of a die under a layer of T-145B, by tensor degree. Of the sums of Eq. 6, 8 B S H Nm / N bytes over tensor
/// groups and 24 H² / Nm over replicas, a ring of P sends 2 (P - 1) / P for each member, over as many links as lie between
/// neighbours: on a die of 4 x 4 cores row by row 1 between two of a pair, (3 x 1 + 3) / 4 of a row, 1 of eight in two
/// rows taken as a ring, 9/8 of sixteen in rows to and fro that come back over three. The paper has the least occupancy with
/// a tensor degree of 2, as Eq. 6 does. That is because the formula counts a sum over one member, of 1.41 GB, that
/// sends nothing: with none of it a tensor degree of 1 has the least, by bytes of Eq. 6 and by what links carry alike, and 2
/// the least of those above 1.
#[test]
fn links_carry_the_bytes_of_eq_6_as_often_as_rings_cross_them() {
    let folder = Folder::new();
    for (file, layers) in [("one.toml", 1), ("two.toml", 2)] {
        let model = format!(
            "name = \"t\"\nsource = \"none\"\npositions = \"learned\"\nactivation = \"gelu\"\nnorm = \"layernorm\"\nbiases = true\ncausal = true\nhead = \"logits\"\ntied = false\nkind = \"transformer\"\nlayers = {layers}\nhidden = 12288\nheads = 96\nvocabulary = 51200\nsequence = 2048\n"
        );
        folder.write(file, model.as_bytes());
    }
    let (b, s, h) = (112.0, 2048.0, 12288.0);
    let (mut eq_6, mut occupancy) = (Vec::new(), Vec::new());
    for (tensor, tensor_links, data_links) in [
        (1_u32, 0.0, 1.125),
        (2, 1.0, 2.25),
        (4, 1.5, 3.5),
        (8, 1.0, 2.0),
        (16, 1.125, 0.0),
    ] {
        let members = [tensor, 16 / tensor].map(f64::from);
        let [one, two] = ["one.toml", "two.toml"].map(|model| carried(&folder, model, tensor));
        let (found, time) = (two.0 - one.0, two.1 - one.1);
        let sums = [
            8.0 * b * s * h * members[0] / 16.0,
            24.0 * h * h / members[0],
        ];
        let sent = |p: f64, sum: f64, links: f64| 16.0 * 2.0 * (p - 1.0) / p * sum * links;
        let expected =
            sent(members[0], sums[0], tensor_links) + sent(members[1], sums[1], data_links);
        // Biases and norms, 13 H beside 12 H², and a nanosecond for each link of a step are on top.
        let off = found / expected - 1.0;
        assert!((0.0..2e-4).contains(&off), "{tensor}: {found} {expected}");
        eq_6.push(sums[0] + sums[1]);
        // 48 links in both directions, by time and bandwidth.
        occupancy.push(found / 1.024 / 48.0 / time);
    }
    let least = |of: &[f64]| (0..5).min_by(|a, b| of[*a].total_cmp(&of[*b])).unwrap();
    assert_eq!(least(&eq_6), 1, "{eq_6:?}");
    assert_eq!(least(&occupancy), 0, "{occupancy:?}");
    assert!(occupancy.is_sorted(), "{occupancy:?}");
}

/// 16 B a parameter in 16 bits with Adam: weights, gradients, a master copy of 4 B and two moments of 4 B. Blocks of T-18B are 40
/// times 12 H² parameters, 289.9 GB, and 13 H of biases and norms each. The rest is a table of 51,200 words and one of 2048
/// positions, and the last norm.
#[test]
fn blocks_of_t_18b_take_289_9_gb() {
    let plan = [
        "generate",
        "megatron-18.4b",
        "--micro-batch",
        "1",
        "--batch",
        "1",
        "--dtype",
        "fp16",
        "--dry-run",
        "--format",
        "json",
    ];
    let plan: Value = serde_json::from_str(&Folder::new().ok(&plan)).unwrap();
    let peak = &plan["stages"][0]["bytes_at_peak"];
    let bytes = ["weights", "gradients", "optimizer"].map(|key| peak[key].as_u64().unwrap());
    let h = 6144;
    assert_eq!(16 * 40 * 12 * h * h, 289_910_292_480_u64);
    let blocks = 16 * 40 * (12 * h * h + 13 * h);
    let rest = 16 * (51_200 + 2048 + 2) * h;
    assert_eq!(bytes.iter().sum::<u64>(), blocks + rest);
}

/// Samples per second of a model in 20 stages of 16 cores on the wafer, in micro-batches of `samples` of all replicas.
fn trained(folder: &Folder, model: &str, samples: u32, tensor: u32, laid: [&str; 2]) -> f64 {
    let data = 16 / tensor;
    // Whole samples for each replica, and 20 micro-batches.
    let own = (samples + data / 2) / data;
    let batch = own * data * 20;
    let [tensor, data, own, all] = [tensor, data, own, batch].map(|n| n.to_string());
    let degrees = ["--tensor", &tensor, "--data", &data, "--pipeline", "20"];
    let micro_batch = ["--micro-batch", &own, "--batch", &all];
    let rest = ["--recompute", "full", "--dtype", "fp16", "--adapters", "1"];
    let place = [
        "--machine",
        "wafer-5x4",
        "--place",
        laid[0],
        "--tensor-neighbours",
        laid[1],
    ];
    let run = [
        &["generate", model, "--format", "json"][..],
        &degrees,
        &micro_batch,
        &rest,
        &place,
    ]
    .concat();
    let report: Value = serde_json::from_str(&folder.ok(&run)).unwrap();
    f64::from(batch) * 1e12 / report["makespan_ps"].as_f64().unwrap()
}

/// Fig. 10 and Sec. V-B3: mapping, neighbours and tensor degree. The paper has T-18B and T-76B best with a tensor degree of 2
/// and T-145B with 4, S-shape before line, near neighbours before opposite ones, and a factor of 2 between the best and the
/// worst. By bytes and rates kernels take far longer than links here, so it comes out otherwise: a degree of 1 is ahead,
/// 2 within a part in a thousand of it; S-shape is never behind line, by 2 % ahead at most; opposite neighbours are behind
/// by 0.5 % at most and ahead by one part in ten thousand; and the whole gap is 3 %. PALM's public code, with a
/// line put into it, shows no more of the claim: line is level with S-shape up to a degree of 4 and ahead of it above.
#[test]
#[ignore = "long: sixty replays on 320 cores"]
fn mappings_decide_little_where_kernels_take_the_time() {
    let folder = Folder::new();
    for (model, samples) in [
        ("megatron-18.4b", 51),
        ("megatron-76.1b", 89),
        ("megatron-145.6b", 115),
    ] {
        let (mut all, mut best) = (Vec::new(), Vec::new());
        for tensor in [1, 2, 4, 8, 16] {
            let of = |laid| trained(&folder, model, samples, tensor, laid);
            let [line, snake] =
                ["line", "s_shape"].map(|place| [of([place, "near"]), of([place, "opposite"])]);
            let row = format!("{model} {tensor}: {line:?} {snake:?}");
            for [near, opposite] in [line, snake] {
                assert!((-5e-3..2e-4).contains(&(opposite / near - 1.0)), "{row}");
            }
            for (line, snake) in line.into_iter().zip(snake) {
                assert!((0.0..0.025).contains(&(snake / line - 1.0)), "{row}");
            }
            all.extend([line, snake].concat());
            best.push(snake[0]);
        }
        assert!(best.is_sorted_by(|a, b| a > b), "{model}: {best:?}");
        assert!(best[1] > best[0] * 0.999, "{model}: {best:?}");
        let [low, high] = [f64::min, f64::max].map(|of| all.iter().copied().reduce(of).unwrap());
        assert!((1.0..1.03).contains(&(high / low)), "{model}: {low} {high}");
    }
}
