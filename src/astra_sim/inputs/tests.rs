//! Tests of complete inputs, and of contradictions between inputs.

use super::*;
use crate::AlgorithmAndAllNpusAtOnceFlag;
use crate::tests::build_astra_flags;
use std::collections::BTreeMap;

const SYSTEM: &str = r#"{"scheduling-policy": "LIFO", "collective-optimization": "baseline",
    "endpoint-delay": 10, "preferred-dataset-splits": 4, "local-mem-bw": 50,
    "all-reduce-implementation": ["ring", "direct"]}"#;
const NETWORK: &str =
    "topology: [Ring, Switch]\nnpus_count: [4, 2]\nbandwidth: [9, 8]\nlatency: [1, 2]";

/// Reads the files `s`, `n` and `m`, and the additional files in `more`.
fn read_astra_inputs(flags: &AstraFlags, more: &[(&str, &str)]) -> Result<AstraInputs, InputError> {
    let mut files = BTreeMap::from([
        ("s", SYSTEM),
        ("n", NETWORK),
        ("m", "{\"memory-type\": \"NO_MEMORY_EXPANSION\"}"),
    ]);
    files.extend(more.iter().copied());
    AstraInputs::read_files(flags, &mut |_, path| {
        let text = files.get(path.to_str().unwrap());
        let text = text.map(|text| (*text).to_owned());
        text.ok_or_else(|| io::ErrorKind::NotFound.into())
    })
}

fn format_notes(inputs: &AstraInputs) -> Vec<String> {
    inputs
        .notes
        .iter()
        .map(MisleadingValidInputNote::to_string)
        .collect()
}

#[test]
fn all_astra_sim_input_files_are_read() {
    let plain = read_astra_inputs(&build_astra_flags(), &[]).unwrap();
    assert_eq!(format_notes(&plain), [""; 0]);
    assert_eq!(plain.network.npu_count(), 8);
    assert_eq!(plain.endpoint_delay, 10);
    assert!(plain.groups.is_empty() && plain.memory.is_none());
    let direct = AlgorithmAndAllNpusAtOnceFlag::parse("direct");
    let second = plain.system.implementations.all_reduce.get(1).copied();
    assert_eq!(second, direct);

    let all = AstraFlags {
        groups: "g".into(),
        logging: "l".into(),
        logging_folder: Some("log".into()),
        compute_scale: 2.0,
        injection_scale: 2.5,
        ..build_astra_flags()
    };
    let system = SYSTEM.replacen('{', "{\"per-node-custom-implementation\": \"p\", ", 1);
    let more = [
        ("s", &*system),
        ("g", "{\"1\": [7, 0]}"),
        ("l", ""),
        ("p", "3: x"),
    ];
    let inputs = read_astra_inputs(&all, &more).unwrap();
    // The delay is 10 ns x 2.5.
    assert_eq!(inputs.endpoint_delay, 25);
    assert_eq!(inputs.groups.get(1), Some(&[7, 0][..]));
    assert_eq!(inputs.per_node.get(3), Some(Path::new("x")));
    let keys: Vec<_> = inputs.notes.iter().map(|note| &*note.key).collect();
    assert_eq!(
        keys,
        [
            "--compute-scale",
            "--logging-folder",
            "--logging-configuration"
        ]
    );
}

#[test]
fn contradicting_inputs_are_refused() {
    let error = |flags: &AstraFlags, more: &[(&str, &str)]| {
        read_astra_inputs(flags, more).unwrap_err().to_string()
    };
    let aware = AstraFlags {
        model: AnalyticalCongestionModel::Aware,
        ..build_astra_flags()
    };
    assert!(error(&aware, &[]).starts_with("n: key `topology`: found 2 dimensions, expected one"));
    let three = SYSTEM.replace("\"direct\"", "\"direct\", \"ring\"");
    let text = error(&build_astra_flags(), &[("s", &three)]);
    assert!(
        text.starts_with("s: key `all-reduce-implementation`: found 3 names"),
        "{text}"
    );
    let grouped = AstraFlags {
        groups: "g".into(),
        ..build_astra_flags()
    };
    let text = error(&grouped, &[("g", "{\"1\": [0, 8]}")]);
    assert!(
        text.starts_with("g: key `1`: found rank 8, expected ranks below 8"),
        "{text}"
    );
    assert_eq!(error(&grouped, &[]), "cannot read the groups file g");
    let memory = r#"{"memory-type": "PER_NODE_MEMORY_EXPANSION", "remote-mem-latency": 1,
        "remote-mem-bw": 1, "num-nodes": 1, "num-npus-per-node": 7}"#;
    let text = error(&build_astra_flags(), &[("m", memory)]);
    assert!(
        text.starts_with("m: key `num-nodes`: found 1 nodes of 7 NPUs"),
        "{text}"
    );
    let scaled = AstraFlags {
        injection_scale: 1e300,
        ..build_astra_flags()
    };
    let text = error(&scaled, &[]);
    assert!(
        text.starts_with("command line: key `--injection-scale`: found 1"),
        "{text}"
    );
}

#[test]
fn odd_combinations_of_inputs_are_noted() {
    let system = SYSTEM
        .replace(", \"direct\"", "")
        .replace("\"endpoint-delay\": 10,", "\"roofline-enabled\": 1,");
    let scaled = AstraFlags {
        injection_scale: 2.0,
        ..build_astra_flags()
    };
    let inputs = read_astra_inputs(&scaled, &[("s", &system)]).unwrap();
    assert_eq!(inputs.endpoint_delay, 10);
    let keys: Vec<_> = inputs.notes.iter().map(|note| &*note.key).collect();
    let expected = [
        "--injection-scale",
        "all-reduce-implementation",
        "roofline-enabled",
    ];
    assert_eq!(keys, expected);
}
