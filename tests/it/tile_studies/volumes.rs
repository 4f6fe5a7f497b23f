//! Tests how many bytes a layer's all-reduces, the links and the parameters have (Eq. 6, Fig. 9).

use super::{LAYER, build_plan_on_16_cores, read_makespan_seconds, write_one_and_two_layer_models};
use crate::files::Folder;
use serde_json::Value;

/// By Eq. 6, a transformer layer all-reduces 8 B S H Nm / N + 24 H² / Nm bytes in 16 bits: four activations of a
/// replica over its tensor group, and the weights' gradients over replicas. For the paper's T-145B on N = 16 with
/// micro-batches of B = 115 this is 4.7060, 6.6941 and 12.029 GB for Nm of 2, 4 and 8. Here B is 112, so the test
/// scales the first term by 115 / 112. The formula also counts all-reduces over a single member, for Nm of 1 and 16,
/// which traces do not have, and omits biases and norms, 13 H in addition to 12 H².
#[test]
fn a_layer_sums_the_bytes_of_eq_6() {
    let folder = Folder::new();
    write_one_and_two_layer_models(&folder);
    for (tensor, published) in [
        (1_u32, 5.0709),
        (2, 4.7060),
        (4, 6.6941),
        (8, 12.029),
        (16, 23.379),
    ] {
        let bytes = |file: &str, group: &str| -> f64 {
            let plan = build_plan_on_16_cores(file, tensor, &["--dry-run"]).report(&folder);
            let rows = plan["stages"][0]["communication"].as_array().unwrap();
            let own = rows.iter().filter(|row| row["group"] == group);
            own.map(|row| row["bytes"].as_f64().unwrap()).sum()
        };
        // The second file has one more layer and is otherwise the same.
        let layer = |group: &str| bytes("two.toml", group) - bytes("one.toml", group);
        let found = ["tensor", "data"].map(layer);
        let [first, second] = compute_eq6_terms(tensor);
        let near = |found: f64, formula: f64| {
            assert!(
                (found / formula - 1.0).abs() < 2e-3,
                "{tensor}: {found} {formula}"
            )
        };
        for (found, sum, members) in [(found[0], first, tensor), (found[1], second, 16 / tensor)] {
            if members > 1 {
                near(found, sum);
            } else {
                assert_eq!(found, 0.0);
            }
        }
        near(first * 115.0 / 112.0 + second, published * 1e9);
    }
}

/// Returns both terms of Eq. 6.
fn compute_eq6_terms(tensor: u32) -> [f64; 2] {
    let [b, s, h] = LAYER;
    let tensor = f64::from(tensor);
    [8.0 * b * s * h * tensor / 16.0, 24.0 * h * h / tensor]
}

/// Returns the bytes over the wafer's links, and the time in seconds, for a plan on the 16 cores of
/// one die.
fn measure_link_bytes_and_makespan(folder: &Folder, model: &str, tensor: u32) -> (f64, f64) {
    let wafer = ["--machine", "wafer-5x4", "--place", "s_shape"];
    let report = build_plan_on_16_cores(model, tensor, &wafer).report(folder);
    let links = report["tiles"]["links"].as_array().unwrap().iter();
    let busy: f64 = links.map(|link| link["busy_ps"].as_f64().unwrap()).sum();
    // Links have 1024 GB/s, which is 1.024 bytes per picosecond.
    (busy * 1.024, read_makespan_seconds(&report))
}

/// Compares Fig. 9: how much of a die's links a layer of T-145B uses, by tensor degree. Eq. 6 gives the bytes: 8 B S H
/// Nm / N over tensor groups and 24 H² / Nm over replicas. In a ring of P each member sends 2 (P - 1) / P of them over
/// the links to its neighbour. On a die of 4 x 4 cores, filled row by row, the mean number of these links is 1 for a
/// pair, (3 x 1 + 3) / 4 for a row, and 1 for eight cores in two rows as a ring. The mean is 9/8 for sixteen cores in
/// alternating rows, where the path back takes three links. The paper finds the least occupancy with a tensor degree of
/// 2, as Eq. 6 does. The reason is that the formula counts an all-reduce of 1.41 GB over a single member, which sends
/// no data. Without this all-reduce, a tensor degree of 1 has the least occupancy, both by Eq. 6 and by the links'
/// bytes, and 2 has the least of the degrees above 1.
#[test]
fn links_carry_the_bytes_of_eq_6_as_often_as_rings_cross_them() {
    let folder = Folder::new();
    write_one_and_two_layer_models(&folder);
    let (mut eq_6, mut occupancy) = (Vec::new(), Vec::new());
    for (tensor, tensor_links, data_links) in [
        (1_u32, 0.0, 1.125),
        (2, 1.0, 2.25),
        (4, 1.5, 3.5),
        (8, 1.0, 2.0),
        (16, 1.125, 0.0),
    ] {
        let members = [tensor, 16 / tensor].map(f64::from);
        let [one, two] = ["one.toml", "two.toml"]
            .map(|model| measure_link_bytes_and_makespan(&folder, model, tensor));
        let (found, time) = (two.0 - one.0, two.1 - one.1);
        let sums = compute_eq6_terms(tensor);
        let sent = |p: f64, sum: f64, links: f64| 16.0 * 2.0 * (p - 1.0) / p * sum * links;
        let expected =
            sent(members[0], sums[0], tensor_links) + sent(members[1], sums[1], data_links);
        // The excess comes from biases and norms, 13 H in addition to 12 H², and from a nanosecond for each link of a
        // step.
        let off = found / expected - 1.0;
        assert!((0.0..2e-4).contains(&off), "{tensor}: {found} {expected}");
        eq_6.push(sums[0] + sums[1]);
        // The occupancy is the fraction of the capacity of 48 links, counting both directions, that is used in this
        // time.
        occupancy.push(found / 1.024e12 / 48.0 / time);
    }
    let least = |of: &[f64]| (0..5).min_by(|a, b| of[*a].total_cmp(&of[*b])).unwrap();
    assert_eq!(least(&eq_6), 1, "{eq_6:?}");
    assert_eq!(least(&occupancy), 0, "{occupancy:?}");
    assert!(occupancy.is_sorted(), "{occupancy:?}");
}

/// Compares Fig. 9 as columns of a sweep by tensor degree. The mean time of a link and its share of
/// the makespan equal the values in each point's report, and the time is the least without tensor
/// groups.
#[test]
fn a_sweep_has_links_by_tensor_degree() {
    let folder = Folder::new();
    write_one_and_two_layer_models(&folder);
    let study = "name = \"fig9\"\nobjective = \"time\"\nstrategy = \"grid\"\n[base]\nmachine = \"wafer-5x4\"\nmodel = \"one.toml\"\n\
                 plan.batch = 112\nplan.dtype = \"fp16\"\nplan.place = \"s_shape\"\n[[axis]]\n\
                 keys = [\"plan.tensor\", \"plan.data\", \"plan.micro_batch\"]\n\
                 values = [[1, 16, 7], [2, 8, 14], [4, 4, 28], [8, 2, 56], [16, 1, 112]]\n";
    folder.write("fig9.toml", study.as_bytes());
    folder.run_successfully_for_stdout(&["sweep", "fig9.toml", "-o", "out"]);
    let text = String::from_utf8(folder.read("out/rows.jsonl")).unwrap();
    let rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 5);
    let csv = String::from_utf8(folder.read("out/rows.csv")).unwrap();
    let head: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let mut busy = Vec::new();
    for (row, line) in rows.iter().zip(csv.lines().skip(1)) {
        let tensor = row["point"]["plan.tensor"].as_u64().unwrap() as u32;
        let (bytes, time) = measure_link_bytes_and_makespan(&folder, "one.toml", tensor);
        let mean = row["links_busy_ps"].as_f64().unwrap();
        // The mean is over 1208 links, although only one die's links are used, and is rounded to
        // picoseconds.
        assert!((mean - bytes / 1.024 / 1208.0).abs() <= 1.0, "{row}");
        let cells: Vec<&str> = line.split(',').collect();
        let of = |name: &str| {
            let at = head.iter().position(|one| *one == name).unwrap();
            cells[at].parse::<f64>().unwrap()
        };
        assert_eq!(of("links_busy_ps"), mean);
        assert!((of("links_busy_share") * time * 1e12 / mean - 1.0).abs() < 1e-9);
        assert_eq!(of("ports_busy_ps"), 0.0);
        busy.push(mean);
    }
    assert!(busy.is_sorted(), "{busy:?}");
}

/// With Adam in 16 bits, a parameter takes 16 B: its weight, its gradient, a master copy of 4 B, and two moments of 4 B
/// each. The blocks of T-18B have 40 times 12 H² parameters, 289.9 GB, and 13 H of biases and norms each. The rest is
/// an embedding table of 51,200 words, a table of 2048 positions, and the final norm.
#[test]
fn blocks_of_t_18b_take_289_9_gb() {
    let plan = super::StudiedModelAndPlan {
        model: "megatron-18.4b",
        tensor: 1,
        data: 1,
        pipeline: 1,
        micro_batch: 1,
        batch: 1,
        more: &["--dry-run"],
    };
    let plan = plan.report(&Folder::new());
    let peak = &plan["stages"][0]["bytes_at_peak"];
    let bytes = ["weights", "gradients", "optimizer"].map(|key| peak[key].as_u64().unwrap());
    let h = 6144;
    assert_eq!(16 * 40 * 12 * h * h, 289_910_292_480_u64);
    let blocks = 16 * 40 * (12 * h * h + 13 * h);
    let rest = 16 * (51_200 + 2048 + 2) * h;
    assert_eq!(bytes.iter().sum::<u64>(), blocks + rest);
}
