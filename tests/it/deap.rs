//! Tests `chakram schedule`: relations between results of the DEAP studies that the rules imply, and replays of
//! schedules with and without barriers.

use super::commands::run_chakram;
use chakram::trace::{Dtype, KernelShape, NodeView, Op, Sink, TraceWriter};
use chakram::units::Span;
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn run_chakram_ok(args: &[&str]) -> String {
    let output = run_chakram(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).expect("it is text")
}

/// A row of the printed table.
#[derive(Clone, Debug, PartialEq)]
struct PrintedTableRow {
    name: String,
    chips: u32,
    steps: u32,
    distance: f64,
    communication: f64,
    processing: f64,
    all: f64,
}

fn parse_table_rows(text: &str) -> Vec<PrintedTableRow> {
    let lines = text
        .lines()
        .filter(|line| line.contains(" us ") && line.starts_with("  "));
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // After a name of one or two words, the row has chips, steps, distance, three times and an
        // energy, with units.
        let at = words.len() - 11;
        let number = |i: usize| words[at + i].parse::<f64>().unwrap_or(0.0);
        PrintedTableRow {
            name: words[..at].join(" "),
            chips: number(0) as u32,
            steps: number(1) as u32,
            distance: number(2),
            communication: number(3),
            processing: number(5),
            all: number(7),
        }
    };
    lines.map(row).collect()
}

/// Returns the output of a committed study, as one table for each command.
fn read_committed_study_tables(name: &str) -> Vec<Vec<PrintedTableRow>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("traces")
        .join(name)
        .join("expected.txt");
    let text = fs::read_to_string(path).unwrap();
    text.split("$ chakram")
        .skip(1)
        .map(parse_table_rows)
        .collect()
}

/// Links reduce the communication time, on a torus at least as much as on the mesh that it contains. They do not change
/// the processing time.
#[test]
fn links_shorten_communication_and_a_torus_no_less_than_its_mesh() {
    let all = read_committed_study_tables("deap-fixed");
    assert_eq!(all.len(), 3);
    for rows in all {
        let [interfaces, mesh, flat, cube] = &rows[..] else {
            panic!("{rows:?}")
        };
        assert_eq!(
            [mesh.distance, flat.distance, cube.distance],
            [2.0, 1.714, 1.714]
        );
        assert!(flat.communication <= mesh.communication);
        for linked in [mesh, flat, cube] {
            assert!(linked.communication < interfaces.communication);
            assert_eq!(
                (linked.processing, linked.steps),
                (interfaces.processing, interfaces.steps)
            );
            assert!((linked.all - linked.communication - linked.processing).abs() < 0.01);
        }
    }
}

/// The cube is the 2 x 4 torus with renumbered chips, so every step takes the same time on both.
#[test]
fn a_renumbered_torus_has_equal_step_times() {
    let dir = TempDir::new().unwrap();
    let number = [0, 1, 3, 2, 4, 5, 7, 6];
    let links = run_chakram_ok(&["topology", "show", "torus:2x2x2", "--links"]);
    let mut of = vec![Vec::new(); 8];
    for link in links.trim().split(',') {
        let ends: Vec<usize> = link
            .split('-')
            .map(|end| number[end.parse::<usize>().unwrap()])
            .collect();
        of[ends[0]].push(ends[1].to_string());
        of[ends[1]].push(ends[0].to_string());
    }
    let mut text = "{\nTopology: cube\nSize: 8\nDimension: 3\n};\n".to_owned();
    for (chip, of) in of.iter().enumerate() {
        let ones = vec!["1"; of.len()].join(", ");
        text += &format!(
            "{{\nChip_id: {chip}\nConnected_chip_id: {{{}}}\nConnected_chip_distance: {{{ones}}}\n}}\n",
            of.join(", ")
        );
    }
    let file = dir.path().join("cube.topology");
    fs::write(&file, text).unwrap();
    let on = |graph: &str| {
        let text = run_chakram_ok(&[
            "schedule",
            "--decoders",
            "1",
            "--embedding",
            "64",
            "--forward",
            "128",
            "--sequence",
            "16",
            "--tensor",
            "8",
            "--micro-batches",
            "2",
            "--steps",
            "--topology",
            graph,
        ]);
        text.lines().skip(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let steps = on("torus:2x4");
    assert!(steps.len() > 10);
    assert_eq!(steps, on(file.to_str().unwrap()));
    assert_ne!(steps, on("mesh:2x4"));
}

/// For a prime number of chips, the torus with the fewest mean hops is a ring. Its mean distance is larger than with
/// one chip fewer or one chip more.
#[test]
fn hops_peak_at_prime_numbers_of_chips() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/deap-chips/expected.txt");
    let text = fs::read_to_string(path).unwrap();
    let tori = text.split("$ chakram topology tori").nth(1).unwrap();
    let hops: Vec<f64> = tori
        .lines()
        .filter(|line| line.trim_start().starts_with("torus:"))
        .map(|line| line.split_whitespace().last().unwrap().parse().unwrap())
        .collect();
    assert_eq!(hops.len(), 36);
    for prime in [13, 17, 19, 23, 29, 31] {
        // In a ring of an odd number n, the mean is 2 (1 + ... + (n - 1)/2) / (n - 1) = (n + 1)/4.
        assert_eq!(hops[prime - 1], (prime + 1) as f64 / 4.0);
        assert!(
            hops[prime - 1] > hops[prime - 2] && hops[prime - 1] > hops[prime],
            "{prime}"
        );
    }
    for (chips, expected) in [
        (4, 1.333),
        (6, 1.4),
        (8, 1.714),
        (9, 1.5),
        (12, 1.818),
        (16, 2.133),
        (25, 2.5),
        (36, 3.086),
    ] {
        assert_eq!(hops[chips - 1], expected, "{chips}");
    }
    // On the best torus for each number of chips, there are at least as many steps as the number of sub-layers divided
    // by the number of chips.
    let rows = &read_committed_study_tables("deap-chips")[0];
    assert_eq!(rows.len(), 36);
    for (row, chips) in rows.iter().zip(1..) {
        assert_eq!(row.chips, chips);
        assert!(row.steps * chips >= rows[0].steps && row.steps <= rows[0].steps);
        assert!(row.distance >= hops[chips as usize - 1]);
    }
    assert_eq!(rows[12].distance, 3.5);
    // Communication therefore peaks at prime numbers of chips, for which only a ring is possible. The peak exists even
    // though each of a chip's two links in a ring is faster than each of its four links in a torus. There is one
    // exception. 16 chips process the 16 parts of each product at once, so the second micro-batch starts after the
    // first. Its input of 64 x 256 B takes 16.384 us, in a step without weights. A seventeenth chip loads this input
    // while the other chips load weights.
    for prime in [13, 17, 19, 23, 29, 31] {
        let time = |chips: usize| rows[chips - 1].communication;
        let input = if prime == 17 { 16.384 } else { 0.0 };
        assert!(
            time(prime) > time(prime - 1) - input && time(prime) > time(prime + 1),
            "{prime}"
        );
    }
    assert!(rows[35].all < rows[0].all);
}

#[test]
fn random_searches_get_better_and_stay_below_fifty_chips() {
    for rows in read_committed_study_tables("deap-random") {
        assert!(rows.len() > 1);
        assert!(rows.windows(2).all(|pair| pair[1].all < pair[0].all));
        assert!(rows.iter().all(|row| (2..50).contains(&row.chips)));
        let draws: Vec<u32> = rows
            .iter()
            .map(|row| row.name.trim_start_matches("draw ").parse().unwrap())
            .collect();
        assert!(draws.windows(2).all(|pair| pair[0] < pair[1]) && draws[draws.len() - 1] <= 250);
    }
}

/// Without contention, and with the same order on each chip, chips that wait only for their data
/// are never later than chips that wait at barriers. If all chips do the same work at the same time
/// and exchange no data, both take the same time.
#[test]
fn chips_without_barriers_are_never_slower() {
    let dir = TempDir::new().unwrap();
    let makespan = |words: &[&str], barriers: bool| {
        let prefix = dir.path().join(if barriers { "with" } else { "without" });
        let prefix = prefix.to_str().unwrap();
        let mut words = [
            &["schedule", "--topology", "interfaces:4", "--traces", prefix][..],
            words,
        ]
        .concat();
        if !barriers {
            words.push("--without-barriers");
        }
        let table = parse_table_rows(&run_chakram_ok(&words));
        let replay = run_chakram_ok(&["replay", prefix, "-m", "gemminix4", "--format", "json"]);
        let report: Value = serde_json::from_str(&replay).unwrap();
        (report["makespan_ps"].as_u64().unwrap(), table[0].all)
    };
    let mut faster = 0;
    for words in [
        &[
            "--decoders",
            "1",
            "--embedding",
            "64",
            "--forward",
            "96",
            "--sequence",
            "16",
            "--tensor",
            "3",
            "--micro-batches",
            "3",
        ][..],
        &[
            "--encoders",
            "2",
            "--embedding",
            "32",
            "--forward",
            "64",
            "--sequence",
            "24",
            "--tensor",
            "2",
            "--micro-batches",
            "5",
        ],
        &[
            "--encoders",
            "1",
            "--embedding",
            "64",
            "--forward",
            "64",
            "--sequence",
            "8",
            "--tensor",
            "4",
            "--rule",
            "durations",
        ],
        // Each chip has two accelerators, and a host issues commands.
        &[
            "--encoders",
            "1",
            "--embedding",
            "32",
            "--forward",
            "64",
            "--sequence",
            "16",
            "--tensor",
            "8",
            "--micro-batches",
            "3",
            "--accelerators",
            "2",
            "--dispatch",
            "1us",
        ],
        // Outputs are read in parts.
        &[
            "--decoders",
            "1",
            "--embedding",
            "32",
            "--forward",
            "64",
            "--sequence",
            "64",
            "--tensor",
            "4",
            "--micro-batches",
            "6",
            "--partition",
            "hypar",
        ],
    ] {
        let ((with, steps), (without, _)) = (makespan(words, true), makespan(words, false));
        assert!(without <= with, "{words:?} {without} {with}");
        faster += u32::from(without < with);
        // Barriers divide the replay into steps. A step takes the sum of its stages, unless one
        // interface serves several transfers of a chip in turn.
        assert!(
            with as f64 >= steps * 1e6 * 0.999,
            "{words:?} {with} {steps}"
        );
    }
    assert!(faster > 0);
    // In a single step, a product runs in four equal parts, which load their weights from memory at
    // the same time.
    let file = dir.path().join("one.txt");
    let record = "{'C': 64, 'K': 64, 'P': 64, 'type': 'LinearLayer'}";
    fs::write(
        &file,
        format!("[{}]", vec![format!("[{record}]"); 4].join(",")),
    )
    .unwrap();
    let one = [file.to_str().unwrap()];
    assert_eq!(makespan(&one, true).0, makespan(&one, false).0);
}

/// 7,000 cycles at 700 MHz are 10 us, for any number of chips. If the table lacks a shape, the
/// model maps it, with a note.
#[test]
fn kernel_times_come_from_a_cycle_table_of_another_tool() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let record = "{'C': 64, 'K': 64, 'P': 64, 'type': 'LinearLayer'}";
    let file = at("one.txt", &format!("[[{record}], [{record}]]"));
    let on = |table: &str| {
        let graph = ["schedule", &file, "--topology", "ring:2", "--cycles", table];
        run_chakram_ok(&graph)
    };
    let table = at("t.csv", "P,C,K,cycles,energy_pj\n64,64,64,7000,3e6\n");
    let text = on(&table);
    assert_eq!(parse_table_rows(&text)[0].processing, 10.0);
    // Two sub-layers use 3 uJ each, and connections use no power.
    assert!(
        text.contains(" 6.000 uJ") && !text.contains("the table lacks"),
        "{text}"
    );
    let other = on(&at("u.csv", "C,cycles\n3,7000\n"));
    assert!(other.contains("lacks them: 1 of 1 layer\n"), "{other}");
    let wrong = at("v.csv", "C,cycle\n3,7000\n");
    let output = run_chakram(&[
        "schedule",
        &file,
        "--topology",
        "ring:2",
        "--cycles",
        &wrong,
    ]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("v.csv:1: found a column \"cycle\""),
        "{error}"
    );
}

/// Data that no chip has, including the model's input, come from memory (section IV-C). The input has 1,024 x 64 =
/// 65,536 B, which take 65.536 us at 1 GB/s. The 64 x 192 = 12,288 B of weights loaded at the same time take less time,
/// so the input determines step 0. The other products have weights of 4,096 B (twice), 12,288 B and 2 x 4,096 B in
/// steps of their own, which take 28.672 us. All other data stay on the chip.
#[test]
fn the_input_comes_from_memory_in_every_micro_batch() {
    let on = |more: &[&str]| {
        let words = "schedule --decoders 1 --embedding 64 --forward 64 --sequence 1024 --log";
        let words: Vec<&str> = words.split(' ').chain(more.iter().copied()).collect();
        run_chakram_ok(&words)
    };
    let inputs = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.contains(": input "));
        lines.map(str::to_owned).collect()
    };
    let one = ["--topology", "interfaces:1"];
    let text = on(&one);
    assert_eq!(parse_table_rows(&text)[0].communication, 65.536 + 28.672);
    assert_eq!(
        inputs(&text),
        ["step 0 chip 0: input 0, 65536 B from memory"]
    );
    // For the second micro-batch, the weights are on the chip. Its input is in memory, and is
    // needed for the first of the 10 products.
    let text = on(&[&one[..], &["--micro-batches", "2"]].concat());
    assert_eq!(
        parse_table_rows(&text)[0].communication,
        2.0 * 65.536 + 28.672
    );
    assert_eq!(
        inputs(&text)[1..],
        ["step 10 chip 0: input 1, 65536 B from memory"]
    );
    // If products are cut along columns, each part needs the whole input, which comes from memory
    // if no chip has it. If products are cut along rows, each part needs half of the input.
    let two = ["--tensor", "2", "--topology", "ring:2"];
    assert_eq!(
        inputs(&on(&two)),
        [
            "step 0 chip 0: input 0, 65536 B from memory",
            "step 0 chip 1: input 0, 65536 B from memory"
        ]
    );
    assert_eq!(
        inputs(&on(&[&two[..], &["--partition", "rows"]].concat())),
        [
            "step 0 chip 0: input 0, 32768 B from memory",
            "step 0 chip 1: input 1, 32768 B from memory"
        ]
    );
}

/// The same schedule is printed as a document and as tables, on a link of 180 GB/s. Both chips load
/// the input of 65,536 B (65.536 us at 1 GB/s), together with half of the weights, 6,144 B. Then
/// each chip has half of the first output, 1,024 x 96 = 98,304 B, and gets the other half from the
/// other chip in 98,304 / 180e9 s = 546,133.3 ps.
#[test]
fn a_schedule_is_printed_as_json_and_as_tables() {
    let words = "schedule --decoders 1 --embedding 64 --forward 64 --sequence 1024 --tensor 2 --topology ring:2 --format";
    let on = |more: &[&str]| {
        let words: Vec<&str> = words.split(' ').chain(more.iter().copied()).collect();
        run_chakram_ok(&words)
    };
    let document: Value = serde_json::from_str(&on(&["json"])).unwrap();
    assert_eq!(document["schema"], "chakram.schedule.1");
    assert!(document["tool_version"].is_string());
    let ring = &document["topologies"][0];
    assert_eq!(
        (&ring["chips"], &ring["mean_distance"]),
        (&2.into(), &1.0.into())
    );
    let first = &ring["steps"][0];
    assert_eq!(first["communication_ps"], 65_536_000);
    assert_eq!(first["memory_bytes"], 2 * (65_536 + 6_144));
    assert_eq!(first["sub_layers"][1]["chip"], 1);
    let log = ring["log"].as_array().unwrap();
    let expected = |text| -> Value { serde_json::from_str(text).unwrap() };
    assert_eq!(
        log[0],
        expected(
            r#"{"step": 0, "chip": 0, "data": "input", "number": 0, "piece": null, "bytes": 65536,
                "place": "memory", "from_chip": null, "duration_ps": 65536000}"#
        )
    );
    assert_eq!(
        log[5],
        expected(
            r#"{"step": 1, "chip": 0, "data": "output", "number": 1, "piece": null, "bytes": 98304,
                "place": "chip", "from_chip": 1, "duration_ps": 546133}"#
        )
    );
    let sum = |key: &str| {
        let steps = ring["steps"].as_array().unwrap();
        steps
            .iter()
            .map(|step| step[key].as_u64().unwrap())
            .sum::<u64>()
    };
    for key in ["memory_bytes", "between_chips_bytes"] {
        assert_eq!(ring[key], sum(key), "{key}");
    }
    // Each step is rounded to whole picoseconds, and so is the sum.
    let steps = ring["steps"].as_array().unwrap().len() as u64;
    assert!(ring["total_ps"].as_u64().unwrap().abs_diff(sum("total_ps")) <= steps);
    let log = on(&["csv", "--log"]);
    let mut lines = log.lines();
    assert_eq!(
        lines.next(),
        Some("topology,step,chip,data,number,piece,bytes,place,from_chip,duration_ps")
    );
    assert_eq!(
        lines.next(),
        Some("ring:2,0,0,input,0,,65536,memory,,65536000")
    );
    assert_eq!(lines.count() + 1, ring["log"].as_array().unwrap().len());
    assert_eq!(on(&["csv", "--steps"]).lines().count() as u64, 1 + steps);
    assert_eq!(on(&["csv"]).lines().count(), 2);
    let both: Vec<&str> = words
        .split(' ')
        .chain(["csv", "--steps", "--log"])
        .collect();
    assert_eq!(run_chakram(&both).status.code(), Some(2));
}

/// A chip's two accelerators share one copy of the input. If another chip has the input from an earlier step, that chip
/// sends it.
#[test]
fn inputs_of_schedule_files_are_shared_by_their_numbers() {
    let dir = TempDir::new().unwrap();
    let log = |text: &str, more: &[&str]| {
        let path = dir.path().join("s.txt");
        fs::write(&path, text).unwrap();
        let words = ["schedule", path.to_str().unwrap(), "--log", "--topology"];
        let text = run_chakram_ok(&[&words[..], more].concat());
        let lines = text.lines().filter(|line| line.contains(": input "));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.join("\n")
    };
    let layer = |more: &str| format!("{{'C': 64, 'K': 64, 'P': 64{more}}}");
    // An input has 64 x 64 = 4,096 B. In the paper's printed schedule, each sub-layer of the first
    // step has its own input.
    let printed = format!("[[{0}, {0}], [{0}]]", layer(""));
    assert_eq!(
        log(&printed, &["ring:2"]),
        "step 0 chip 0: input 0, 4096 B from memory\nstep 0 chip 1: input 1, 4096 B from memory"
    );
    let shared = format!(
        "[[{}, None], [None, {}]]",
        layer(", 'id': 0, 'input': 7"),
        layer(", 'id': 1, 'input': 7")
    );
    assert_eq!(
        log(&shared, &["ring:2"]),
        "step 0 chip 0: input 7, 4096 B from memory\nstep 1 chip 1: input 7, 4096 B from chip 0"
    );
    let both = format!(
        "[[{}], [{}]]",
        layer(", 'id': 0, 'input': 7"),
        layer(", 'id': 1, 'input': 7")
    );
    assert_eq!(
        log(&both, &["interfaces:1", "--accelerators", "2"]),
        "step 0 chip 0: input 7, 4096 B from memory"
    );
    // An operation that inference omits passes its input on; `None` loads no data.
    let dropped = format!(
        "[[{{'type': 'Dropout', 'id': 0, 'input': 5}}, {}, {}]]",
        layer(", 'id': 1, 'after': [0]"),
        layer(", 'id': 2, 'input': None")
    );
    assert_eq!(
        log(&dropped, &["interfaces:1"]),
        "step 1 chip 0: input 5, 4096 B from memory"
    );
    // Windows of 7 x 7 with a stride of two for 112 x 112 outputs read (2 x 111 + 7)^2 = 229^2
    // inputs of 3 channels.
    let windows =
        "[[{'C': 3, 'K': 64, 'P': 112, 'Q': 112, 'R': 7, 'S': 7, 'Wstride': 2, 'Hstride': 2}]]";
    assert_eq!(
        log(windows, &["interfaces:1"]),
        "step 0 chip 0: input 0, 157323 B from memory"
    );
}

/// On a chip with too little memory, products are cut into more parts. With even less memory, data
/// are evicted.
#[test]
fn small_memories_split_sub_layers_and_let_data_go() {
    let on = |memory: &str| {
        run_chakram_ok(&[
            "schedule",
            "--decoders",
            "1",
            "--embedding",
            "64",
            "--forward",
            "256",
            "--sequence",
            "16",
            "--memory",
            memory,
            "--topology",
            "ring:2",
            "--log",
        ])
    };
    let (large, small) = (on("1 MB"), on("12 kB"));
    assert!(!large.contains("evicted") && !large.contains("parts"));
    assert!(
        small.contains("parts") && small.contains("evicted"),
        "{small}"
    );
    assert!(parse_table_rows(&small)[0].steps > parse_table_rows(&large)[0].steps);
    let output = run_chakram(&[
        "schedule",
        "--decoders",
        "1",
        "--topology",
        "ring:2",
        "--memory",
        "100 B",
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("needs"));
}

/// Every command gives the same energy for a kernel whose time comes from loop nests. A product of 2500 x 32 x 32 uses
/// its mapping's energy, and three of these products use three times this energy. A kernel of 1,000 operations and 80
/// bytes uses 500 x 0.3 pJ + 80 x 162.5 pJ. A kernel with neither operations nor bytes takes its recorded 2 us, and its
/// energy follows from `power.busy`.
#[test]
fn every_command_gives_the_same_kernel_energy() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let json = |args: &[&str]| -> Value { serde_json::from_str(&run_chakram_ok(args)).unwrap() };
    const ACCELERATOR: &str = "gemmini-16,scratchpad=32MB,mappings=50";
    let mapping = ["loopnest", ACCELERATOR, "--product", "2500x32x32"];
    let mapping = json(&[&mapping[..], &["--format", "json"]].concat());
    let energy = mapping["energy_pj"].as_f64().unwrap();
    assert!(energy > 0.0);
    // The schedule has only this sub-layer, and connections use no power.
    let record = "[[{'C': 32, 'K': 32, 'P': 2500, 'type': 'LinearLayer'}]]";
    fs::write(at("one.txt"), record).unwrap();
    let words = ["schedule", &at("one.txt"), "--topology", "interfaces:1"];
    let more = ["--accelerator", ACCELERATOR, "--format", "json"];
    let schedule = json(&[&words[..], &more].concat());
    let scheduled = &schedule["topologies"][0]["energy_pj"];
    let ratio = scheduled.as_f64().unwrap() / energy;
    assert!((ratio - 1.0).abs() < 1e-12, "{scheduled} {energy}");
    // If the table of cycles has no energy, the energy is unknown.
    fs::write(at("t.csv"), "P,C,K,cycles\n2500,32,32,10064\n").unwrap();
    let unknown = json(&[&words[..], &more, &["--cycles", &at("t.csv")]].concat());
    assert_eq!(unknown["topologies"][0]["energy_pj"], Value::Null);
    let shown = run_chakram_ok(&[&words[..], &["--cycles", &at("t.csv"), "--steps"]].concat());
    let lines = shown.lines().filter(|line| line.ends_with(" -"));
    assert_eq!(lines.count(), 2, "{shown}");

    let write = |name: &str, nodes: &[(u64, u64, Option<KernelShape>, u64)]| {
        let mut writer = TraceWriter::new(Vec::new()).unwrap();
        for (id, &(flops, bytes, kernel, us)) in (1..).zip(nodes) {
            let op = Op::Compute {
                flops,
                bytes,
                dtype: Some(Dtype::Int8),
            };
            let node = NodeView {
                kernel,
                recorded: Span(us * 1_000_000),
                micros: us,
                lane: Some(0),
                ..NodeView::new(id, "kernel", op)
            };
            writer.receive_node(&node, &[]).unwrap();
        }
        fs::write(at(&format!("{name}.0.et")), writer.into_unflushed_sink()).unwrap();
    };
    let product = KernelShape::Gemm {
        batch: 3,
        m: 2500,
        n: 32,
        k: 32,
    };
    let known = [
        (3 * 2 * 2500 * 32 * 32, 246_144, Some(product), 0),
        (1000, 80, None, 0),
    ];
    write("known", &known);
    write("some", &[&known[..], &[(0, 0, None, 2)]].concat());
    let expected = 3.0 * energy + 500.0 * 0.3 + 80.0 * 162.5;
    let is_near = |found: &Value, expected: f64| {
        let found = found.as_f64().unwrap();
        assert!((found / expected - 1.0).abs() < 1e-12, "{found} {expected}");
    };
    let compute = format!("loopnest:{ACCELERATOR}");
    let replay = |name: &str| {
        let words = ["replay", &at(name), "-m", "gemmini", "--compute", &compute];
        let text = run_chakram_ok(&words);
        let report = json(&[&words[..], &["--format", "json"]].concat());
        (report["kernel_energy"].clone(), text)
    };
    let (found, text) = replay("known");
    is_near(&found["energy_pj"], expected);
    assert_eq!(
        (&found["kernels"], &found["without"]),
        (&2.into(), &0.into())
    );
    assert!(text.contains(" uJ for 2 kernels by loop nests\n"), "{text}");
    let (found, text) = replay("some");
    is_near(&found["energy_pj"], expected);
    assert_eq!(
        (&found["kernels"], &found["without"]),
        (&2.into(), &1.into())
    );
    let line = " uJ for 2 kernels by loop nests, 1 kernel without known energy\n";
    assert!(text.contains(line), "{text}");
    // The roofline model gives no energy.
    let roofline = [
        "replay",
        &at("known"),
        "-m",
        "gemmini",
        "--compute",
        "roofline",
    ];
    let roofline = json(&[&roofline[..], &["--format", "json"]].concat());
    assert_eq!(roofline["kernel_energy"], Value::Null);

    let point = |name: &str, power: &str| {
        let study = format!(
            "name = \"e\"\nobjective = [\"energy\", \"time\", \"energy_delay\"]\n[base]\nmachine = \"gemmini\"\ntrace = {:?}\n\
             {power}\n[[axis]]\nkey = \"compute\"\nvalues = [{compute:?}]\n",
            at(name)
        );
        fs::write(at("s.toml"), study).unwrap();
        let folder = at(&format!("{name}-{}", power.len()));
        // Exit code 3 means that the energy is unknown.
        let code = run_chakram(&["sweep", &at("s.toml"), "-o", &folder])
            .status
            .code();
        assert!(matches!(code, Some(0 | 3)), "{power}");
        let rows = fs::read_to_string(Path::new(&folder).join("rows.jsonl")).unwrap();
        serde_json::from_str::<Value>(&rows).unwrap()
    };
    let row = point("known", "power.idle = 0");
    is_near(&row["kernel_energy_pj"], expected);
    is_near(&row["energy"], expected * 1e-12);
    let time = row["time_ps"].as_f64().unwrap() * 1e-12;
    is_near(&row["energy_delay"], expected * 1e-12 * time);
    // The last kernel takes 2 us at 50 mW, which is 0.1 uJ. Without this power, its energy is
    // unknown.
    let row = point("some", "power.idle = 0\npower.busy = 0.05");
    let found = row["energy"].as_f64().unwrap();
    assert!((found - expected * 1e-12 - 1e-7).abs() < 1e-12, "{found}");
    assert_eq!(point("some", "power.idle = 0")["energy"], Value::Null);
}

/// Both flows of Fig. 8 optimize layers in turn, beginning with the layer that names the flow. No turn makes the best
/// point worse. The last round, over four layers, finds no better point, and both flows end at the same point.
#[test]
fn both_flows_end_where_no_layer_finds_a_better_point() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/deap-flows");
    let text = fs::read_to_string(root.join("expected.txt")).unwrap();
    let flows: Vec<&str> = text.split("$ chakram").skip(1).collect();
    let firsts = ["scratchpad", "machine"];
    let mut ends = Vec::new();
    assert_eq!(flows.len(), 2);
    for (flow, first) in flows.into_iter().zip(firsts) {
        let table = flow.split("\nBEST BY").next().unwrap();
        let lines: Vec<&str> = table
            .lines()
            .skip_while(|line| !line.starts_with("ROUND"))
            .collect();
        assert!(lines[2].contains(first), "{}", lines[2]);
        let turns: Vec<(u32, f64, bool)> = lines
            .iter()
            .filter_map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let round = words.first()?.parse().ok()?;
                let at = words
                    .iter()
                    .position(|word| word.contains('e') && word.contains('.'))?;
                Some((
                    round,
                    words[at].parse().unwrap(),
                    line.contains("as before"),
                ))
            })
            .collect();
        let last = turns.last().unwrap().0;
        assert!(last >= 2, "{flow}");
        for pair in turns.windows(2) {
            assert!(pair[1].1 <= pair[0].1, "{pair:?}");
        }
        let is_last = |turn: &&(u32, f64, bool)| turn.0 == last;
        let found_nothing = turns.iter().filter(is_last).all(|turn| turn.2);
        assert!(found_nothing && turns.iter().filter(is_last).count() == 4);
        ends.push(turns.last().unwrap().1);
    }
    assert_eq!(ends[0], ends[1]);
}
