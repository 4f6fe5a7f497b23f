//! Tests every key of system files, and every error.

use super::*;

fn parse_system_file(text: &str) -> (AstraSystemFile, Vec<String>) {
    let (system, notes) = AstraSystemFile::parse(text, "s", false).unwrap();
    (
        system,
        notes
            .iter()
            .map(MisleadingValidInputNote::to_string)
            .collect(),
    )
}

fn unwrap_parse_error_text(text: &str) -> String {
    AstraSystemFile::parse(text, "s", true)
        .unwrap_err()
        .to_string()
}

/// A file that has every key and causes no notes.
const ALL: &str = r#"{
    "scheduling-policy": "EXPLICIT",
    "collective-optimization": "localBWAware",
    "endpoint-delay": 25,
    "active-chunks-per-dimension": 2,
    "preferred-dataset-splits": 4,
    "all-reduce-implementation": ["ring", "direct", "halvingDoubling"],
    "all-gather-implementation": ["oneDirect3"],
    "reduce-scatter-implementation": [],
    "all-to-all-implementation-custom": ["a/b"],
    "per-node-custom-implementation": "nodes.yml",
    "local-mem-bw": 1600.5,
    "peak-perf": 312,
    "roofline-enabled": 1,
    "trace-enabled": 0,
    "replay-only": 1,
    "track-local-mem": 1,
    "local-mem-trace-filename": "m",
    "local-reduction-delay": 7,
    "model-shared-bus": 1,
    "L": 10, "o": 5, "g": 6, "G": 0.01
}"#;

#[test]
fn every_key_is_read() {
    let (system, notes) = parse_system_file(ALL);
    assert_eq!(notes, [""; 0]);
    let plain = |algorithm| AlgorithmAndAllNpusAtOnceFlag {
        algorithm,
        one: false,
    };
    let all_reduce = vec![
        plain(AstraAlgorithm::Ring),
        plain(AstraAlgorithm::Direct { window: None }),
        plain(AstraAlgorithm::HalvingDoubling),
    ];
    let all_gather = vec![AlgorithmAndAllNpusAtOnceFlag {
        algorithm: AstraAlgorithm::Direct { window: Some(3) },
        one: true,
    }];
    let expected = AstraSystemFile {
        scheduling: ChunkSchedulingPolicy::Explicit,
        optimization: AllReduceDecomposition::LocalBwAware,
        endpoint_delay: Some(25),
        active_chunks: 2,
        splits: 4,
        implementations: PerCollectiveKind {
            all_reduce,
            all_gather,
            ..PerCollectiveKind::default()
        },
        custom: PerCollectiveKind {
            all_to_all: Some("a/b".into()),
            ..PerCollectiveKind::default()
        },
        per_node_custom: Some("nodes.yml".into()),
        local_memory_bandwidth: Some(1600.5),
        peak: 312.0,
        roofline: true,
        trace: false,
        replay_only: true,
        track_memory: true,
        memory_trace: "m".to_owned(),
        reduction_delay: 7,
        shared_bus: Some(LogGpBusParams {
            latency: 10,
            overhead: 5,
            gap: 6,
            gap_per_byte: 0.01,
        }),
    };
    assert_eq!(system, expected);
}

#[test]
fn absent_keys_take_defaults_and_odd_keys_are_noted() {
    let (system, notes) =
        parse_system_file("{\"preferred-dataset-splits\": 1.5,\n\"boost-mode\": 0, \"L\": 1}");
    assert_eq!(system.scheduling, ChunkSchedulingPolicy::Lifo);
    assert_eq!(system.optimization, AllReduceDecomposition::Baseline);
    assert_eq!(system.active_chunks, 1);
    assert_eq!(system.splits, 1);
    assert_eq!(system.memory_trace, "local_mem_trace");
    assert_eq!(system.reduction_delay, 1);
    assert_eq!(system.local_memory_bandwidth, None);
    assert_eq!((system.peak, system.shared_bus), (0.0, None));
    assert_eq!(
        notes,
        [
            "s:2: `boost-mode`: has no effect: ASTRA-sim 2 does not read it",
            "s: `scheduling-policy`: is absent and counts as LIFO; in the original the value is undefined",
            "s: `collective-optimization`: is absent and counts as baseline; in the original the \
             value is undefined",
            "s: `local-mem-bw`: is absent or 0: reductions take no time",
            "s:1: `preferred-dataset-splits`: 1.5 counts as 1: the original truncates the number",
            "s:2: `L`: has no effect without \"model-shared-bus\": 1",
        ]
    );
}

#[test]
fn scale_applies_to_stated_endpoint_delay_but_not_to_default() {
    let delay = |text: &str, scale| parse_system_file(text).0.scaled_endpoint_delay(scale);
    // If the file states no delay, the delay is 10 ns at any scale. 25 x 0.5 = 12.5 is truncated to 12.
    assert_eq!(delay("{\"preferred-dataset-splits\": 1}", 2.0), 10);
    assert_eq!(delay(ALL, 0.5), 12);
    assert_eq!(delay(ALL, 1.0), 25);
    assert_eq!(delay(&ALL.replace("25", "0"), 3.0), 0);
}

#[test]
fn values_that_crash_astra_sim_are_refused_with_the_reason() {
    for text in ["{}", "{\"preferred-dataset-splits\": 0}"] {
        let error = unwrap_parse_error_text(text);
        assert!(
            error.starts_with("s:1: key `preferred-dataset-splits`: found"),
            "{error}"
        );
        assert!(error.contains("divides by zero"), "{error}");
    }
    let with = |key: &str, value: &str| {
        let error = unwrap_parse_error_text(&format!(
            "{{\"preferred-dataset-splits\": 1,\n\"{key}\": {value}}}"
        ));
        assert!(
            error.starts_with(&format!("s:2: key `{key}`: found ")),
            "{error}"
        );
        error
    };
    with("scheduling-policy", "\"lifo\"");
    with("endpoint-delay", "-1");
    with("active-chunks-per-dimension", "0");
    with("roofline-enabled", "true");
    with("local-mem-bw", "\"50\"");
    with("all-reduce-implementation", "\"ring\"");
    with("all-gather-implementation-custom", "[\"a\", \"b\"]");
    with("all-gather-implementation", "[\"ring\", \"oneRing\"]");
    let error = with("all-to-all-implementation", "[\"Ring\"]");
    assert!(error.contains("did you mean `ring`?"), "{error}");
}

#[test]
fn unlikely_collective_implementations_are_noted() {
    let (_, notes) = parse_system_file(
        "{\"preferred-dataset-splits\": 1, \"scheduling-policy\": \"FIFO\",
        \"collective-optimization\": \"baseline\", \"local-mem-bw\": 1,
        \"all-reduce-implementation\": [\"oneRing\", \"ring\"],
        \"all-gather-implementation\": [\"doubleBinaryTree\"]}",
    );
    assert_eq!(notes.len(), 2);
    assert!(notes[0].starts_with("s:3: `all-reduce-implementation`: names after `oneRing`"));
    assert!(
        notes[1].starts_with("s:4: `all-gather-implementation`: doubleBinaryTree supports only")
    );
}
