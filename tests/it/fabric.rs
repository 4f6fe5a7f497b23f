//! Tests machines with individual links: the paper's notation, bytes over each link, slow links,
//! graphs, and Clos networks.

use super::commands::{run_chakram, run_for_exit_code};
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

mod tiers;

fn run_chakram_ok(args: &[&str]) -> String {
    let output = run_chakram(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).expect("it is text")
}

fn run_chakram_json(args: &[&str]) -> Value {
    let text = run_chakram_ok(&[args, &["--format", "json"]].concat());
    serde_json::from_str(&text).expect("it is JSON")
}

fn replay_makespan(args: &[&str]) -> u64 {
    run_chakram_json(args)["makespan_ps"].as_u64().unwrap()
}

fn expect_chakram_error(args: &[&str]) -> String {
    let output = run_chakram(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns a machine file with one dimension; `dimension` gives the lines after its bandwidth and
/// latency.
fn write_one_dimension_machine(dir: &TempDir, name: &str, dimension: &str) -> String {
    let notation = run_chakram_ok(&["machine", "show", "w-2d:Switch(2):1 GB/s:1 us"]);
    let npu = &notation[notation.find("[npu").unwrap()..notation.find("[[dimension").unwrap()];
    let path = dir.path().join(name).to_str().unwrap().to_owned();
    let text = format!(
        "name = \"{name}\"\n{npu}[[dimension]]\nname = \"fabric\"\nbandwidth = \"1 GB/s\"\nlatency = \"1 us\"\n\
         {dimension}\n"
    );
    fs::write(&path, text).unwrap();
    path
}

const RING_OF_MESSAGES: &[&str] = &["generate", "p2p", "ring", "--size", "1MB"];

/// The rates come from flags, from the notation alone, and from the equivalent file.
#[test]
fn a_machine_in_notation_equals_its_machine_file() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("m.toml").to_str().unwrap().to_owned();
    let notation = "Ring(4)_Switch(2):250GB/s,50 GB/s:500ns";
    fs::write(&path, run_chakram_ok(&["machine", "show", notation])).unwrap();
    let job = [
        "generate",
        "collective",
        "all-reduce",
        "--size",
        "1GB",
        "--ranks",
        "8",
    ];
    let found = replay_makespan(&[&job[..], &["-m", notation]].concat());
    assert_eq!(found, replay_makespan(&[&job[..], &["-m", &path]].concat()));
    let flags = [
        "-m",
        "Ring(4)_Switch(2)",
        "--bandwidth",
        "250GB/s,50 GB/s",
        "--latency",
        "500ns",
    ];
    assert_eq!(found, replay_makespan(&[&job[..], &flags].concat()));
    for (flags, expected) in [
        (&["-m", "Ring(8)"][..], "no bandwidth"),
        (
            &["-m", "Ring(8)", "--bandwidth", "1GB/s"],
            "--bandwidth needs --latency",
        ),
        (
            &["-m", "Torus(8)", "--bandwidth", "1GB/s", "--latency", "0ns"],
            "shape \"Torus\"",
        ),
        (
            &["-m", "dgx-h100", "--bandwidth", "1GB/s", "--latency", "0ns"],
            "dgx-h100 has its own",
        ),
        (
            &["-m", "dgx-h100", "--bandwidth", "1GB/s"],
            "dgx-h100 has its own",
        ),
        (
            &["-m", "nope", "--bandwidth", "1GB/s", "--latency", "0ns"],
            "no machine is called \"nope\"",
        ),
        (
            &["-m", "no.toml", "--bandwidth", "1GB/s", "--latency", "0ns"],
            "cannot read machine file no.toml",
        ),
        (
            &["-m", "Ring(8", "--bandwidth", "1GB/s", "--latency", "0ns"],
            "expected a `)` after the size",
        ),
    ] {
        let error = expect_chakram_error(&[&job[..], flags].concat());
        assert!(error.contains(expected), "{error}");
    }
}

/// A network notation does not describe NPUs. Kernels that need a rate are therefore errors, but collectives and
/// recorded kernels work. A preset or an NPU's name before the notation adds the peaks, on any network: 2 x 10^12 FLOP
/// take at least as long as at 989.4 TFLOP/s.
#[test]
fn kernels_need_npus_that_the_machine_describes() {
    let line = "Switch(8):450GB/s:500ns";
    let model = [
        "generate",
        "gpt3-1.3b",
        "--tensor",
        "8",
        "--batch",
        "4",
        "-m",
    ];
    let error = expect_chakram_error(&[&model[..], &[line]].concat());
    for said in [
        "node ",
        "FLOPs or bytes but no recorded duration",
        "machine `Switch(8):450GB/s:500ns` describes no NPU",
        "h100:Switch(8):450GB/s:500ns",
    ] {
        assert!(error.contains(said), "{error}");
    }
    let by = |npu: &str| replay_makespan(&[&model[..], &[&format!("{npu}:{line}")]].concat());
    assert_eq!(by("h100"), by("dgx-h100"));
    assert!(by("a100") > by("h100"));
    assert_eq!(
        run_for_exit_code(&["replay", "traces/ddp-resnet18", "-m", line]),
        0
    );
    let shown = run_chakram_json(&["machine", "show", line]);
    let class = &shown["classes"][0];
    assert!(class["memory_bandwidth_bytes_per_s"].is_null(), "{class}");
    // Loads and stores in the NPU's own memory also need the NPU's rates.
    let loads = [
        "generate", "memory", "--ranks", "2", "--bytes", "1MB", "--local", "-m", line,
    ];
    assert!(expect_chakram_error(&loads).contains("describes no NPU"));
}

/// The message sizes of Table IV of the ASTRA-sim 2.0 paper follow from its rule. An all-reduce of
/// S bytes over p x q NPUs sends 2 (p - 1) / p S over the links of the first dimension, and 2
/// (q - 1) / q S / p over the links of the second.
#[test]
fn bytes_per_dimension_match_the_paper_and_the_bottleneck_is_named() {
    let machine = "Switch(4)_Switch(2):250 GB/s,10 GB/s:0 ns";
    let job = [
        "generate",
        "collective",
        "all-reduce",
        "--size",
        "64MB",
        "--ranks",
        "8",
    ];
    for network in ["contention-free", "ports", "links", "fair-sharing"] {
        let args = [&job[..], &["-m", machine, "--links", "--network", network]].concat();
        let report = run_chakram_json(&args);
        let dimensions = report["links"]["dimensions"].as_array().unwrap();
        let own = |d: usize| dimensions[d]["bytes_per_npu"].as_u64().unwrap();
        assert_eq!((own(0), own(1)), (96_000_000, 16_000_000), "{network}");
        // The same number of bytes enters and leaves the switches.
        let all = |d: usize| dimensions[d]["bytes"].as_u64().unwrap();
        assert_eq!((all(0), all(1)), (2 * 8 * own(0), 2 * 8 * own(1)));
        let links = report["links"]["links"].as_array().unwrap();
        assert_eq!(links.len(), 32);
        let sum: u64 = links
            .iter()
            .map(|link| link["bytes"].as_u64().unwrap())
            .sum();
        assert_eq!(sum, all(0) + all(1));
        // 16 MB take 1.6 ms at 10 GB/s, and 96 MB take 0.384 ms at 250 GB/s.
        assert_eq!(dimensions[1]["most_busy_ps"], 1_600_000_000_u64);
        assert!(report["makespan_ps"].as_u64().unwrap() >= 1_600_000_000);
        let text = run_chakram_ok(&args);
        assert!(
            text.contains("bottleneck: switch-2, the link from NPU 0 to switch-2 switch at 0"),
            "{text}"
        );
    }
    let table = run_chakram_ok(
        &[
            &job[..],
            &["-m", machine, "--format", "csv", "--table", "links"],
        ]
        .concat(),
    );
    assert_eq!(table.lines().count(), 1 + 32);
    assert!(
        table.starts_with("dimension,from,to,bytes,busy_ps,load\n"),
        "{table}"
    );
    // Bytes are counted only on request, and counting does not change the results.
    let plain = run_chakram_json(&[&job[..], &["-m", machine]].concat());
    assert!(plain.get("links").is_none());
}

/// A message of 1 MB takes 1 ms plus two links of 1 us. If either NPU's link has half the rate, it takes 2 ms; if the
/// link has 10 us of latency, it takes 9 us more.
#[test]
fn a_slow_link_slows_the_messages_that_pass_it() {
    let dir = TempDir::new().unwrap();
    let shape = "shape = \"switch\"\nsize = 4\nalgorithm = \"ring\"";
    let whole = write_one_dimension_machine(&dir, "whole.toml", shape);
    let slow = write_one_dimension_machine(
        &dir,
        "slow.toml",
        &format!("{shape}\n[[link]]\nnpus = \"3\"\nbandwidth = \"500 MB/s\"\nlatency = \"10 us\""),
    );
    let on = |machine: &str, map: &str| {
        let args = ["--ranks", "2", "-m", machine, "--map", map];
        replay_makespan(&[RING_OF_MESSAGES, &args].concat())
    };
    assert_eq!(on(&whole, "0,3"), 1_002_000_000);
    assert_eq!(on(&slow, "0,1"), 1_002_000_000);
    assert_eq!(on(&slow, "0,3"), 2_011_000_000);
    for model in ["contention-free", "ports", "links"] {
        let args = [
            RING_OF_MESSAGES,
            &["--ranks", "2", "-m", &slow, "--network", model],
        ]
        .concat();
        assert!(
            expect_chakram_error(&args).contains("--network fair-sharing"),
            "{model}"
        );
    }
}

/// Each of four NPUs runs ten kernels of 1 us. One NPU takes 1.5 times as long, whatever the source of kernel times.
#[test]
fn a_slow_npu_takes_longer_for_recorded_kernels_too() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("slow.toml").to_str().unwrap().to_owned();
    let text = run_chakram_ok(&["machine", "show", "w-2d:Ring(4):1 GB/s:1 us"]);
    let npu = &text[text.find("[npu").unwrap()..text.find("[[dimension").unwrap()];
    let write = |slowdown: &str| {
        let slow = npu.replace("npu.a100", "npu.worn");
        let head = "[npu.worn]\n";
        let slow = slow.replacen(head, &format!("{head}slowdown = {slowdown}\n"), 1);
        let assign = "[assign]\na100 = \"0-2\"\nworn = \"3\"\n";
        fs::write(&path, format!("{text}\n{slow}\n{assign}")).unwrap();
    };
    let job = [
        "generate", "chain", "--ranks", "4", "--nodes", "10", "-m", &path,
    ];
    write("1.5");
    let report = run_chakram_json(&job);
    let ends = report["npus"].as_array().unwrap().iter();
    let ends: Vec<_> = ends.map(|npu| npu["finish_ps"].as_u64().unwrap()).collect();
    assert_eq!(ends, [10_000_000, 10_000_000, 10_000_000, 15_000_000]);
    write("0.5");
    assert!(expect_chakram_error(&job).contains("a factor of at least 1"));
}

/// A table without a rate for a graph's chips says which option gives one.
#[test]
fn missing_link_rates_are_named_with_an_option_that_helps() {
    let said = |options: &[&str]| run_chakram_ok(&[&["topology", "show"], options].concat());
    assert!(said(&["ring:1", "--interpolate", "step"]).contains("no two chips are connected"));
    assert!(said(&["ring:4", "--interpolate", "none"]).contains("try: --interpolate step"));
    let only_one = ["ring:4", "--interpolate", "step", "--rates", "1=1GB/s"];
    assert!(said(&only_one).contains("try: --rates 2=RATE"));
    // The rule takes the rate of the next larger number.
    let larger = ["ring:4", "--interpolate", "step", "--rates", "3=64GB/s"];
    assert!(said(&larger).contains("at 64.0 GB/s a link"));
}

/// With another numbering, the cube is both a 2 x 4 torus and a 2 x 2 x 2 torus: y in a ring of four is the y-th word
/// of a Gray code. For each k, messages from every rank r to rank r + k therefore take the same time on both tori.
/// Their sum is larger on a mesh, which has fewer links.
#[test]
fn renumbered_tori_take_equal_times_and_a_mesh_takes_longer() {
    let dir = TempDir::new().unwrap();
    let graph = |name: &str, links: &str| {
        let rest = format!(
            "shape = \"graph\"\nsize = 8\nlinks = \"{links}\"\nroutes = \"sprayed\"\nalgorithm = \"direct\""
        );
        write_one_dimension_machine(&dir, name, &rest)
    };
    let (flat, cube) = (
        graph("flat.toml", "torus:2x4"),
        graph("cube.toml", "torus:2x2x2"),
    );
    let mesh = graph("mesh.toml", "mesh:2x4");
    let on = |machine: &str, map: &str| {
        let strides = ["1", "2", "3", "4", "5", "6", "7"].map(|stride| {
            let job = [
                "generate", "p2p", "stride", "--stride", stride, "--size", "1MB",
            ];
            replay_makespan(&[&job[..], &["--ranks", "8", "-m", machine, "--map", map]].concat())
        });
        strides.to_vec()
    };
    let found = on(&flat, "0-7");
    assert_eq!(found, on(&cube, "0,1,3,2,4,5,7,6"));
    let sum = |all: Vec<u64>| all.into_iter().sum::<u64>();
    assert!(sum(on(&mesh, "0-7")) > sum(found));
    // A graph built from the printed links of a torus is that torus.
    let printed = run_chakram_ok(&["topology", "show", "torus:2x4", "--links"]);
    let printed = graph("printed.toml", printed.trim());
    let job = [
        "generate",
        "collective",
        "all-to-all",
        "--size",
        "1MB",
        "--ranks",
        "8",
        "-m",
    ];
    assert_eq!(
        replay_makespan(&[&job[..], &[&printed]].concat()),
        replay_makespan(&[&job[..], &[&flat]].concat())
    );
    // The file lists the path link by link, and gives the link 1-2 a distance. A message from 0 to
    // 2 goes through 1, and takes 3 us on this link.
    let path = graph("path.toml", "0-1,1-2:3,2-3,3-4,4-5,5-6,6-7");
    let args = ["--ranks", "2", "-m", &path, "--map", "0,2"];
    assert_eq!(
        replay_makespan(&[RING_OF_MESSAGES, &args].concat()),
        1_004_000_000
    );
}

/// Returns text traces with messages of `bytes` from every chip to every other chip, one after another. The messages
/// follow an Eulerian circuit of all ordered pairs. Each message's sender is the previous one's receiver, so it begins
/// when the previous one has arrived.
fn write_all_pairs_message_traces(dir: &TempDir, chips: usize, bytes: u64) -> String {
    let mut left: Vec<Vec<usize>> = (0..chips)
        .map(|from| (0..chips).filter(|to| *to != from).collect())
        .collect();
    // Hierholzer's algorithm walks until it is stuck, and prepends vertices on the way back.
    let (mut stack, mut circuit) = (vec![0], Vec::new());
    while let Some(&at) = stack.last() {
        match left[at].pop() {
            Some(next) => stack.push(next),
            None => circuit.extend(stack.pop()),
        }
    }
    circuit.reverse();
    assert_eq!(circuit.len(), chips * (chips - 1) + 1);
    let mut nodes = vec![Vec::<String>::new(); chips];
    for (tag, pair) in circuit.windows(2).enumerate() {
        let halves = [
            (pair[0], "SEND", "dst", pair[1]),
            (pair[1], "RECV", "src", pair[0]),
        ];
        for (rank, kind, end, peer) in halves {
            let id = nodes[rank].len() + 1;
            let after = if id > 1 {
                format!("\"data_deps\":[{}],", id - 1)
            } else {
                String::new()
            };
            nodes[rank].push(format!(
                "{{\"id\":{id},\"name\":\"message {tag}\",\"type\":\"COMM_{kind}_NODE\",{after}\"attr\":[{{\"name\":\"is_cpu_op\",\
                 \"bool_val\":false}},{{\"name\":\"comm_{end}\",\"int32_val\":{peer}}},{{\"name\":\"comm_tag\",\"int32_val\":{tag}}},\
                 {{\"name\":\"comm_size\",\"int64_val\":{bytes}}}]}}"
            ));
        }
    }
    let prefix = dir.path().join("pairs");
    for (rank, nodes) in nodes.iter().enumerate() {
        let text = format!(
            "{{\"schema\":\"chakram.trace.1\",\"version\":\"0.0.4\"}}\n{}\n",
            nodes.join("\n")
        );
        fs::write(format!("{}.{rank}.jsonl", prefix.display()), text).unwrap();
    }
    prefix.to_str().unwrap().to_owned()
}

/// At 64 GB/s, the rate of chips with three links, 64 MB take 1 ms per hop. The mean number of hops
/// over all pairs is 12/7 on the cube, under both names, and 2 on the mesh. So 56 messages take 96
/// ms and 112 ms. Through interfaces of 1 GB/s, each message takes 64 ms. The total is 3,584 ms, or
/// 64 / (12/7) = 37.3 times the time.
#[test]
fn all_pairs_of_chips_take_their_mean_hops() {
    let dir = TempDir::new().unwrap();
    let pairs = write_all_pairs_message_traces(&dir, 8, 64_000_000);
    let file = |graph: &str| {
        let path = dir
            .path()
            .join("chips.topology")
            .to_str()
            .unwrap()
            .to_owned();
        run_chakram_ok(&["topology", "show", graph, "-o", &path]);
        path
    };
    let on = |machine: &str, map: &str| {
        replay_makespan(&["replay", &pairs, "-m", machine, "--map", map])
    };
    let own = "0-7";
    let ms = 1_000_000_000;
    assert_eq!(on(&file("torus:2x4"), own), 96 * ms);
    assert_eq!(on(&file("torus:2x2x2"), "0,1,3,2,4,5,7,6"), 96 * ms);
    assert_eq!(on(&file("mesh:2x4"), own), 112 * ms);
    assert_eq!(on("torus:2x4", own), 96 * ms);
    // If a rate equals the table's rate, nothing changes.
    assert_eq!(on("torus:2x4:64 GB/s", own), 96 * ms);
    assert_eq!(on("torus:2x4:32 GB/s", own), 192 * ms);
    assert_eq!(on("torus:2x4:64 GB/s:1 us", own), 96 * ms + 96 * 1_000_000);
    let interfaces = on("gemminix8", own);
    assert_eq!(interfaces, 3584 * ms);
    let times = interfaces as f64 / (96 * ms) as f64;
    assert!((times - 37.3).abs() < 0.05, "{times}");
    // A unit of length takes one transfer of the whole message, so on the mesh with all lengths 2, all messages take
    // twice as long.
    let text = fs::read_to_string(file("mesh:2x4")).unwrap();
    let long =
        text.lines().map(
            |line| match line.trim().strip_prefix("Connected_chip_distance:") {
                Some(list) => format!("Connected_chip_distance: {}", list.replace('1', "2")),
                None => line.to_owned(),
            },
        );
    let path = dir
        .path()
        .join("long.topology")
        .to_str()
        .unwrap()
        .to_owned();
    fs::write(&path, long.collect::<Vec<_>>().join("\n")).unwrap();
    assert_eq!(on(&path, own), 224 * ms);
    // Chips with four links need an explicit rule, and an error in a machine file names the line.
    let error = expect_chakram_error(&["replay", &pairs, "-m", "torus:3x3"]);
    assert!(
        error.contains("chips with 4 links") && error.contains("`step` or `log`"),
        "{error}"
    );
    fs::write(&path, text.replace("Chip_id: 3", "Chip_id: 3x")).unwrap();
    let error = expect_chakram_error(&["replay", &pairs, "-m", &path]);
    assert!(
        error.contains("long.topology:") && error.contains("\"3x\""),
        "{error}"
    );
}

/// A graph has a leaf, a triangle and a square, so no dimensions describe it. A second graph differs only in the
/// numbers of its chips. A captured job, and messages between all pairs, take the same time on both if ranks are on the
/// same chips.
#[test]
fn renumbering_the_chips_of_a_graph_does_not_change_times() {
    let dir = TempDir::new().unwrap();
    let links = [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 1),
        (3, 4),
        (4, 5),
        (5, 6),
        (6, 3),
        (2, 7),
    ];
    let number = [3, 6, 0, 5, 2, 7, 1, 4];
    let machine = |name: &str, number: &[usize], routes: &str, network: &str| {
        let list = links
            .map(|(a, b)| format!("{}-{}", number[a], number[b]))
            .join(",");
        let rest = format!(
            "shape = \"graph\"\nsize = 8\nlinks = \"{list}\"\nroutes = \"{routes}\"\nalgorithm = \"direct\"\n{network}"
        );
        write_one_dimension_machine(&dir, name, &rest)
    };
    let plain: Vec<usize> = (0..8).collect();
    let map = |number: &[usize], chips: &[usize]| {
        let places = chips.iter().map(|chip| number[*chip].to_string());
        places.collect::<Vec<_>>().join(",")
    };
    let both = |routes: &str, network: &str, job: &[&str], chips: &[usize]| {
        let one = machine("one.toml", &plain, routes, network);
        let other = machine("other.toml", &number, routes, network);
        let ends = [(&one, &plain[..]), (&other, &number[..])].map(|(file, number)| {
            replay_makespan(&[job, &["-m", file, "--map", &map(number, chips)]].concat())
        });
        // The order in which rates are summed may differ, which changes the last picoseconds.
        assert!(ends[0].abs_diff(ends[1]) <= 16, "{job:?} {ends:?}");
        ends[0]
    };
    let all: Vec<usize> = (0..8).collect();
    for stride in ["1", "2", "3", "5"] {
        let strides = [
            "generate", "p2p", "stride", "--stride", stride, "--size", "1MB", "--ranks", "8",
        ];
        both("sprayed", "", &strides, &all);
    }
    // Collectives follow the order of NPUs and not of ranks. All data that chip 7 must receive
    // cross its one link of 1 GB/s.
    for (kind, least) in [("all-reduce", 8_000_000_000), ("all-to-all", 7_000_000_000)] {
        let collective = [
            "generate",
            "collective",
            kind,
            "--size",
            "8MB",
            "--ranks",
            "8",
            "-m",
        ];
        let file = machine("whole.toml", &plain, "sprayed", "");
        let found = replay_makespan(&[&collective[..], &[&file]].concat());
        assert!((least..20 * least).contains(&found), "{kind} {found}");
    }
    // A captured job of two ranks runs on neighbours, and then on the leaf and the far corner,
    // which takes longer.
    let captured = ["replay", "traces/ddp-resnet18"];
    let near = both("sprayed", "", &captured, &[0, 1]);
    assert!(both("sprayed", "", &captured, &[7, 5]) > near);
    // Switches store and forward. Two chips with a single shortest path between them exchange messages, whichever of
    // the two chips comes first.
    let stores = "[network]\nswitching = \"store_and_forward\"";
    let near = both("first", stores, &captured, &[0, 1]);
    let far = both("first", stores, &captured, &[0, 4]);
    assert!(far > near);
    // The collectives are exchanges between two ranks, so without contention three hops take three
    // times as long as one hop.
    let pair = ["generate", "p2p", "ring", "--size", "1MB", "--ranks", "2"];
    let one = both("first", stores, &pair, &[0, 1]);
    assert_eq!(both("first", stores, &pair, &[0, 4]), 3 * one);
    let error = {
        let file = machine("sprayed.toml", &plain, "sprayed", stores);
        expect_chakram_error(&[&captured[..], &["-m", &file]].concat())
    };
    assert!(
        error.contains("if every dimension is clos or graph and routes are first or hashed"),
        "{error}"
    );
}

/// Leaf switches have four NPUs each, and are below two spines. Four messages that leave a leaf
/// share two links of 1 GB/s, so 1 MB takes 2 ms.
#[test]
fn oversubscription_slows_messages_across_a_clos_network() {
    let dir = TempDir::new().unwrap();
    let clos = |name: &str, keys: &str| {
        let rest =
            format!("shape = \"clos\"\nsize = 8\nlevels = \"4x2\"\nalgorithm = \"ring\"\n{keys}");
        write_one_dimension_machine(&dir, name, &rest)
    };
    let across = [
        "generate", "p2p", "stride", "--stride", "4", "--size", "1MB", "--ranks", "8", "-m",
    ];
    let on = |machine: &str| replay_makespan(&[&across[..], &[machine]].concat());
    assert_eq!(on(&clos("full.toml", "")), 1_004_000_000);
    assert_eq!(
        on(&clos("half.toml", "oversubscription = 2")),
        2_004_000_000
    );
    let hashed = |seed: u32| {
        let keys = format!("oversubscription = 2\nroutes = \"hashed\"\nseed = {seed}");
        on(&clos(&format!("hashed{seed}.toml"), &keys))
    };
    let all: Vec<_> = (0..8).map(hashed).collect();
    assert!(all.iter().all(|&end| end >= 2_004_000_000), "{all:?}");
    assert!(all.iter().any(|&end| end > 2_004_000_000), "{all:?}");
    let shown = run_chakram_ok(&[
        "machine",
        "check",
        &clos("shown.toml", "oversubscription = 2"),
    ]);
    assert!(
        shown.contains("clos 4x2 @ 1 GB/s, network fair_sharing"),
        "{shown}"
    );
}

#[test]
fn machine_files_with_invalid_links_are_refused() {
    let dir = TempDir::new().unwrap();
    for (rest, expected) in [
        (
            "shape = \"clos\"\nsize = 8\nlevels = \"4x3\"",
            "levels for 12 NPUs",
        ),
        ("shape = \"clos\"\nsize = 8", "levels"),
        (
            "shape = \"clos\"\nsize = 8\nlevels = \"4xtwo\"",
            "\"4xtwo\"",
        ),
        (
            "shape = \"clos\"\nsize = 8\nlevels = \"4x2\"\noversubscription = 3",
            "1.33",
        ),
        (
            "shape = \"clos\"\nsize = 8\nlevels = \"4x2\"\nseed = 1",
            "a seed",
        ),
        ("shape = \"ring\"\nsize = 8\nlevels = \"4x2\"", "`levels`"),
        (
            "shape = \"graph\"\nsize = 8\nlinks = \"torus:2x3\"",
            "a graph with 6 NPUs",
        ),
        (
            "shape = \"graph\"\nsize = 3\nlinks = \"0-1\"",
            "cannot be reached",
        ),
        (
            "shape = \"graph\"\nsize = 3\nlinks = \"0-1,1-3\"",
            "\"1-3\"",
        ),
        (
            "shape = \"ring\"\nsize = 3\n[[link]]\nnpus = \"7\"\nlatency = \"1 us\"",
            "\"7\"",
        ),
        (
            "shape = \"ring\"\nsize = 5\n[[link]]\nbetween = \"0,2\"\nlatency = \"1 us\"",
            "no link between these NPUs",
        ),
        (
            "shape = \"ring\"\nsize = 5\n[[link]]\nnpus = \"0\"",
            "neither `bandwidth` nor `latency`",
        ),
        (
            "shape = \"ring\"\nsize = 5\n[[link]]\nnpus = \"0\"\nlatency = \"1 us\"\n[network]\nmodel = \"ports\"",
            "a network model or switching",
        ),
    ] {
        let path =
            write_one_dimension_machine(&dir, "bad.toml", &format!("algorithm = \"ring\"\n{rest}"));
        let output = run_chakram(&["machine", "check", &path]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(2), "{rest}: {text}");
        assert!(text.contains(expected), "{rest}: {text}");
    }
    let large = "Ring(32768):1 GB/s:0 ns";
    let job = [
        "generate", "p2p", "ring", "--size", "1MB", "--ranks", "2", "-m", large,
    ];
    assert_eq!(run_for_exit_code(&job), 0);
    for more in [&["--links"][..], &["--network", "fair-sharing"]] {
        assert!(expect_chakram_error(&[&job[..], more].concat()).contains("at most 16384"));
    }
    // A machine file may name the network model. If communication takes its recorded time, the
    // model is not used.
    let keys =
        "shape = \"ring\"\nsize = 32768\nalgorithm = \"ring\"\n[network]\nmodel = \"fair_sharing\"";
    let large = write_one_dimension_machine(&dir, "large.toml", keys);
    let kernels = ["replay", "traces/ddp-resnet18", "-m", &large];
    assert!(expect_chakram_error(&kernels).contains("at most 16384"));
    assert_eq!(
        run_for_exit_code(&[&kernels[..], &["--comm", "recorded"]].concat()),
        0
    );
}

/// Eight NPUs below two leaf switches each load 1 MB from a shared memory of 500 MB/s at NPU 0, which takes 16 ms.
/// Links of 1 GB/s are not a bottleneck. The NPUs below the other leaf are four links of 1 us away.
#[test]
fn shared_memory_at_an_npu_of_a_clos_network_limits_loads() {
    let dir = TempDir::new().unwrap();
    let keys = "shape = \"clos\"\nsize = 8\nlevels = \"4x2\"\nalgorithm = \"ring\"\n[remote_memory]\n\
                attachment = \"ports\"\nat = \"0\"\nbandwidth = \"500 MB/s\"\nlatency = \"0\"\n\
                capacity = \"1 TB\"";
    let machine = write_one_dimension_machine(&dir, "memory.toml", keys);
    let loads = |ranks: &str| {
        let args = [
            "generate", "memory", "--bytes", "1MB", "--ranks", ranks, "-m", &machine,
        ];
        replay_makespan(&args)
    };
    assert_eq!(loads("8"), 16_004_000_000);
    assert_eq!(loads("4"), 8_002_000_000);
}
