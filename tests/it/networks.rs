//! Tests the network model: its selection on the command line, and its name in reports and
//! machines.

use super::commands::{run_chakram, run_for_exit_code};
use serde_json::Value;

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

const INCAST: &[&str] = &[
    "generate",
    "p2p",
    "incast",
    "--size",
    "1MiB",
    "--ranks",
    "8",
    "--machine",
    "dgx-h100",
];

/// Seven NPUs send 1 MiB each to one NPU at 450 GB/s. A message takes s = 2,330,168.9 ps, over two
/// links of the switch. With contention, the messages enter one after another.
#[test]
fn the_network_flag_selects_the_model_that_reports_name() {
    let machine = run_chakram_json(&["machine", "show", "dgx-h100"]);
    let latency = &machine["machine"]["dimensions"][0]["latency_ps"];
    let latency = 2 * latency.as_u64().unwrap();
    for (flag, name, entered) in [
        (None, "contention_free", 1),
        (Some("contention-free"), "contention_free", 1),
        (Some("ports"), "ports", 7),
        (Some("links"), "links", 7),
    ] {
        let flag = flag.map_or(Vec::new(), |flag| vec!["--network", flag]);
        let args = [INCAST, &flag].concat();
        let report = run_chakram_json(&args);
        assert_eq!(report["network"], name);
        let asked = (!flag.is_empty()).then_some(name);
        assert_eq!(report["options"]["network"].as_str(), asked);
        assert_eq!(
            report["makespan_ps"],
            latency + entered * 2_330_169,
            "{name}"
        );
        let text = run_chakram_ok(&args);
        let second = text.lines().nth(1).unwrap();
        let ending = match entered {
            1 => "   no kernels".to_owned(),
            _ => format!("   no kernels, network model {name}"),
        };
        assert!(second.ends_with(&ending), "{second}");
    }
}

#[test]
fn the_network_flag_applies_to_each_of_several_machines() {
    let job = [
        "replay",
        "traces/data-parallel-8",
        "-m",
        "dgx-a100",
        "-m",
        "dgx-h100",
    ];
    let named = |flag: &[&str]| {
        let text = run_chakram_ok(&[&job, flag].concat());
        text.matches("; network model links").count()
    };
    assert_eq!((named(&[]), named(&["--network", "links"])), (0, 2));
    let both = run_chakram_json(&[&job[..], &["--network", "links"]].concat());
    for machine in both["machines"].as_array().unwrap() {
        assert_eq!(machine["network"], "links");
    }
}

#[test]
fn a_network_model_is_refused_with_recorded_communication() {
    let recorded = ["replay", "traces/ddp-resnet18", "--comm", "recorded"];
    assert_eq!(run_chakram_json(&recorded)["network"], Value::Null);
    assert_eq!(
        run_for_exit_code(&[&recorded[..], &["--network", "ports"]].concat()),
        2
    );
}

#[test]
fn machine_check_states_non_default_network_settings() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("my.toml");
    let path = path.to_str().unwrap();
    let plain = run_chakram_ok(&["machine", "show", "dgx-h100"]);
    let said = |table: &str| {
        std::fs::write(path, format!("{plain}\n{table}")).unwrap();
        let line = run_chakram_ok(&["machine", "check", path]);
        let network = run_chakram_json(&["machine", "show", path])["machine"]["network"].clone();
        let end = line.trim_end().rsplit_once(" GB/s").unwrap().1.to_owned();
        (end, network)
    };
    let network = |model: &str, segment: Option<u64>| serde_json::json!({"model": model, "segment_bytes": segment, "send_completion": "injected"});
    assert_eq!(
        said(""),
        (String::new(), network("contention_free", Some(0)))
    );
    let table = "[network]\nmodel = \"links\"\nsegment = \"4 KiB\"\n";
    let expected = ", network links, cut-through by 4096 B".to_owned();
    assert_eq!(said(table), (expected, network("links", Some(4096))));
    let table = "[network]\nswitching = \"store_and_forward\"\n";
    let expected = ", store-and-forward".to_owned();
    assert_eq!(said(table), (expected, network("contention_free", None)));
    let (line, json) = said("[network]\nsend_completion = \"delivered\"\n");
    assert_eq!(line, ", sends complete when delivered");
    assert_eq!(json["send_completion"], "delivered");
    assert_eq!(said("[network]\nsend_completion = \"injected\"\n").0, "");
}
