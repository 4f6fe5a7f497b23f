//! Tests Clos networks and graphs in combination with other dimensions: nodes on a fabric of NICs.

use super::{
    RING_OF_MESSAGES, expect_chakram_error, replay_makespan, run_chakram_json, run_chakram_ok,
};
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

/// Returns a machine file with these dimensions, each given by its name and further keys.
fn write_machine_file(
    dir: &TempDir,
    name: &str,
    dimensions: &[(&str, &str)],
    more: &str,
) -> String {
    let notation = run_chakram_ok(&["machine", "show", "w-2d:Switch(2):1 GB/s:1 us"]);
    let npu = &notation[notation.find("[npu").unwrap()..notation.find("[[dimension").unwrap()];
    let path = dir.path().join(name).to_str().unwrap().to_owned();
    let dimensions: String = dimensions
        .iter()
        .map(|(name, keys)| format!("[[dimension]]\nname = \"{name}\"\n{keys}\n"))
        .collect();
    fs::write(&path, format!("name = \"{name}\"\n{npu}{dimensions}{more}")).unwrap();
    path
}

const NODE: (&str, &str) = (
    "node",
    "shape = \"switch\"\nsize = 2\nbandwidth = \"10 GB/s\"\nlatency = \"1 us\"\nalgorithm = \"direct\"",
);

/// Keys of a Clos network of 1 GB/s and 1 us that connects two nodes.
fn format_clos_keys(more: &str) -> String {
    format!(
        "shape = \"clos\"\nsize = 2\nbandwidth = \"1 GB/s\"\nlatency = \"1 us\"\nalgorithm = \"direct\"\n{more}"
    )
}

/// Returns machines of two nodes, each of two NPUs, on three networks: rails with one switch each, one fabric with a
/// switch for each rail, and one fabric with a switch for each node. In both fabrics, one uplink serves two NICs.
fn write_rails_and_two_fabric_machines(dir: &TempDir) -> [String; 3] {
    let of = |name: &str, more: &str| {
        write_machine_file(dir, name, &[NODE, ("nics", &format_clos_keys(more))], "")
    };
    [
        of("rails.toml", "levels = \"2\""),
        of(
            "optimized.toml",
            "levels = \"2x2\"\noversubscription = 2\nfabric = \"rail_optimized\"",
        ),
        of(
            "racks.toml",
            "levels = \"2x2\"\noversubscription = 2\nfabric = \"top_of_rack\"",
        ),
    ]
}

/// 1 MB between nodes takes 1 ms at 1 GB/s, plus 1 us for each link.
#[test]
fn nodes_on_a_fabric_send_over_it_and_inside_over_their_switch() {
    let dir = TempDir::new().unwrap();
    let machines = write_rails_and_two_fabric_machines(&dir);
    let on = |map: &str| {
        machines.clone().map(|machine| {
            let args = ["--ranks", "2", "-m", &machine, "--map", map];
            replay_makespan(&[RING_OF_MESSAGES, &args].concat())
        })
    };
    // A message inside a node takes 0.1 ms and two links, on every fabric.
    assert_eq!(on("0,1"), [102_000_000; 3]);
    // A message along a rail takes two links through the rail's switch, or four links up and down
    // between the switches of nodes.
    assert_eq!(on("0,2"), [1_002_000_000, 1_002_000_000, 1_004_000_000]);
    // A message to another rail takes two links inside the node and two of the rail, or four links
    // of the fabric.
    assert_eq!(on("0,3"), [1_004_000_000; 3]);
    // Each NPU sends to its partner on the other node, and receives from it. With a switch per
    // node, two messages share one uplink.
    let stride = |machine: &String| {
        let job = [
            "generate", "p2p", "stride", "--stride", "2", "--size", "1MB", "--ranks", "4",
        ];
        replay_makespan(&[&job[..], &["-m", machine]].concat())
    };
    let found: Vec<_> = machines.iter().map(stride).collect();
    assert_eq!(found, [1_002_000_000, 1_002_000_000, 2_004_000_000]);
}

/// An all-reduce of 4 MB sends 2 MB to the partner inside the node and 1 MB to the partner outside,
/// and both again on the way back. Inside the node, a message takes 0.2 ms + 2 us. Outside the
/// node, a message takes 1 ms and two links through a rail's switch. If both rails share an uplink,
/// it takes half the rate and four links.
#[test]
fn collectives_go_inside_and_then_over_the_fabric() {
    let dir = TempDir::new().unwrap();
    let found = write_rails_and_two_fabric_machines(&dir).map(|machine| {
        // With several chunks, the phases inside and outside the node would overlap.
        let text = fs::read_to_string(&machine).unwrap();
        fs::write(&machine, text + "\n[collectives]\nchunks = 1\n").unwrap();
        let job = [
            "generate",
            "collective",
            "all-reduce",
            "--size",
            "4MB",
            "--ranks",
            "4",
            "--links",
        ];
        let report = run_chakram_json(&[&job[..], &["-m", &machine]].concat());
        let dimensions = report["links"]["dimensions"].as_array().unwrap().clone();
        let own = dimensions.iter().map(|of| of["bytes_per_npu"].as_u64());
        assert_eq!(
            own.collect::<Vec<_>>(),
            [Some(4_000_000), Some(2_000_000)],
            "{machine}"
        );
        report["makespan_ps"].as_u64().unwrap()
    });
    let inside = 2 * 202_000_000;
    assert_eq!(
        found,
        [
            inside + 2 * 1_002_000_000,
            inside + 2 * 1_002_000_000,
            inside + 2 * 2_004_000_000
        ]
    );
}

/// If all messages leave their nodes, as with strides from 4 to 12, they take as long as on the Clos network alone.
/// With one level, a rail equals the switch of its dimension, so all jobs take the same time on both.
#[test]
fn messages_leaving_their_nodes_take_as_long_as_on_the_fabric_alone() {
    let dir = TempDir::new().unwrap();
    let clos = |size: u32, more: &str| {
        format!(
            "shape = \"clos\"\nsize = {size}\nlevels = \"4x4\"\noversubscription = 2\nbandwidth = \"1 GB/s\"\n\
             latency = \"1 us\"\nalgorithm = \"direct\"\n{more}"
        )
    };
    let node = NODE.1.replace("size = 2", "size = 4");
    let alone = write_machine_file(&dir, "alone.toml", &[("nics", &clos(16, ""))], "");
    let over = [
        ("node", &node[..]),
        ("nics", &clos(4, "fabric = \"top_of_rack\"")),
    ];
    let over = write_machine_file(&dir, "over.toml", &over, "");
    for stride in ["4", "5", "7", "8", "11"] {
        let job = [
            "generate", "p2p", "stride", "--stride", stride, "--size", "3MB", "--ranks", "16",
        ];
        let [alone, over] =
            [&alone, &over].map(|file| replay_makespan(&[&job[..], &["-m", file]].concat()));
        assert!(alone.abs_diff(over) <= 16, "{stride}: {alone} {over}");
    }
    let switch = format_clos_keys("").replace("clos", "switch");
    let network = "[network]\nmodel = \"fair_sharing\"\n";
    let switch = write_machine_file(&dir, "switch.toml", &[NODE, ("nics", &switch)], network);
    let [rails, ..] = write_rails_and_two_fabric_machines(&dir);
    for job in [
        &["generate", "collective", "all-reduce"][..],
        &["generate", "collective", "all-to-all"],
        &["generate", "p2p", "incast"],
    ] {
        let nodes = [&switch, &rails].map(|file| {
            let args = ["--size", "3MB", "--ranks", "4", "-m", file];
            let report = run_chakram_json(&[job, &args].concat());
            report["npus"].clone()
        });
        assert_eq!(nodes[0], nodes[1], "{job:?}");
    }
}

/// There are two boards, each a square of chips. One switch per position connects the boards. A
/// message from chip 0 to the opposite chip on the other board crosses two links of the square and
/// two links of the switch.
#[test]
fn messages_between_boards_of_linked_chips_pass_the_switch() {
    let dir = TempDir::new().unwrap();
    let square = "shape = \"graph\"\nsize = 4\nlinks = \"0-1,1-2,2-3,3-0\"\nbandwidth = \"1 GB/s\"\nlatency = \"1 us\"\n\
                  algorithm = \"ring\"";
    let above = NODE.1;
    let machine = write_machine_file(
        &dir,
        "boards.toml",
        &[("board", square), ("above", above)],
        "",
    );
    let on = |map: &str| {
        let args = ["--ranks", "2", "-m", &machine, "--map", map];
        replay_makespan(&[RING_OF_MESSAGES, &args].concat())
    };
    assert_eq!(on("0,2"), 1_002_000_000);
    assert_eq!(on("1,5"), 102_000_000);
    assert_eq!(on("0,6"), 1_004_000_000);
    let shown = run_chakram_ok(&["machine", "check", &machine]);
    assert!(
        shown.contains("8 NPUs, graph of 4 @ 1 GB/s, switch 2 @ 10 GB/s"),
        "{shown}"
    );
    let shown: Value = run_chakram_json(&["machine", "show", &machine]);
    let dimensions = &shown["machine"]["dimensions"];
    assert_eq!(dimensions[0]["links"], "graph of 4");
    assert_eq!(dimensions[1].get("links"), None);
}

/// Changes to links name a dimension. Here a rail has one NIC at half the rate.
#[test]
fn a_slow_nic_slows_what_passes_it() {
    let dir = TempDir::new().unwrap();
    let slow = "[[link]]\nnpus = \"3\"\ndimension = \"nics\"\nbandwidth = \"500 MB/s\"\n";
    let machine = write_machine_file(
        &dir,
        "slow.toml",
        &[NODE, ("nics", &format_clos_keys("levels = \"2\""))],
        slow,
    );
    let on = |map: &str| {
        let args = ["--ranks", "2", "-m", &machine, "--map", map];
        replay_makespan(&[RING_OF_MESSAGES, &args].concat())
    };
    assert_eq!((on("0,2"), on("1,3")), (1_002_000_000, 2_002_000_000));
    assert_eq!(on("2,3"), 102_000_000);
}

#[test]
fn invalid_fabric_keys_are_refused_with_the_valid_values() {
    let dir = TempDir::new().unwrap();
    let error = |dimensions: &[(&str, &str)], more: &str| {
        let machine = write_machine_file(&dir, "wrong.toml", dimensions, more);
        expect_chakram_error(&[RING_OF_MESSAGES, &["--ranks", "2", "-m", &machine]].concat())
    };
    let four = format_clos_keys("levels = \"2x2\"");
    let text = error(&[NODE, ("nics", &four)], "");
    assert!(
        text.contains("levels for 4 NPUs")
            && text.contains("or 4 if `fabric` is \"rail_optimized\""),
        "{text}"
    );
    let all = format_clos_keys("levels = \"2\"\nfabric = \"top_of_rack\"");
    let text = error(&[NODE, ("nics", &all)], "");
    assert!(text.contains("of all rails, 4"), "{text}");
    let alone = format_clos_keys("levels = \"2\"\nfabric = \"rail_only\"");
    let text = error(&[("nics", &alone)], "");
    assert!(
        text.contains("`fabric` only on a dimension that has inner dimensions"),
        "{text}"
    );
    let text = error(
        &[("node", &format!("{}\nfabric = \"rail_only\"", NODE.1))],
        "",
    );
    assert!(text.contains("this key only where shape is clos"), "{text}");
    let good = format_clos_keys("levels = \"2\"\nroutes = \"first\"");
    let text = error(
        &[NODE, ("nics", &good)],
        "[network]\nswitching = \"store_and_forward\"\n",
    );
    assert!(text.contains("every dimension is clos or graph"), "{text}");
}
