//! Tests machine files made from ASTRA-sim's inputs, and the notes about them.

use super::*;

const NETWORK: &str = "topology: [Ring, FullyConnected, Switch]\nnpus_count: [4, 8, 2]\n\
                       bandwidth: [50, 25, 100]\nlatency: [500, 300, 0.5]\n";

fn build_named_input_text<'a>(file: &'a str, text: &'a str) -> NamedInputText<'a> {
    NamedInputText { file, text }
}

fn import_machine_file(system: Option<&str>, memory: Option<&str>) -> ImportedMachineFile {
    let system = system.map(|text| build_named_input_text("s.json", text));
    let memory = memory.map(|text| build_named_input_text("m.json", text));
    machine_file(
        "three",
        build_named_input_text("n.yml", NETWORK),
        system,
        memory,
    )
    .expect("it is imported")
}

fn parse_imported_machine(imported: &ImportedMachineFile) -> Machine {
    Machine::parse(&imported.text, "imported").expect("it is a machine file")
}

/// In a network file, a GB is 2^30 bytes. An NPU has 50 GB/s on the ring (half in each direction) and 100 GB/s at the
/// switch. In the fully connected dimension, an NPU has 175 GB/s, because `direct` uses its seven 25 GB/s links one
/// after another.
#[test]
fn imported_bandwidths_preserve_algorithm_durations() {
    let system = r#"{"preferred-dataset-splits": 4, "active-chunks-per-dimension": 2, "endpoint-delay": 0,
        "scheduling-policy": "LIFO", "collective-optimization": "localBWAware",
        "all-reduce-implementation": ["ring", "direct", "halvingDoubling"]}"#;
    let imported = import_machine_file(Some(system), None);
    let machine = parse_imported_machine(&imported);
    let gib = |count: f64| count * 1_073_741_824.0;
    let dimensions = machine.topology().dimensions();
    let rates = dimensions.iter().map(|d| d.bandwidth.bytes_per_second());
    assert!(rates.eq([gib(50.0), gib(175.0), gib(100.0)]));
    // The latency is 0.5 ns.
    assert_eq!(dimensions[2].latency.0, 500);
    let pipeline = machine.chunking_settings();
    let chunks = pipeline.chunks.map(std::num::NonZeroU32::get);
    assert_eq!((chunks, pipeline.active.get()), (Some(4), 2));
    // The system file states no rates, so the NPUs' rates are unknown.
    assert!(machine.npu_classes()[0].memory.is_none());
    let keys = imported.notes.iter().map(|note| note.key.as_str());
    assert!(keys.eq(["scheduling-policy", "quirks", "bandwidth", "bandwidth"]));
    for note in &imported.notes {
        assert!(imported.text.contains(&format!("#   {note}\n")), "{note}");
    }
}

#[test]
fn npus_have_the_rates_that_the_system_file_says_and_no_others() {
    let system = r#"{"preferred-dataset-splits": 1, "local-mem-bw": 1600, "peak-perf": 900,
        "roofline-enabled": 1, "all-reduce-implementation": ["ring"]}"#;
    let memory =
        r#"{"memory-type": "MEMORY_POOL", "remote-mem-latency": 700, "remote-mem-bw": 30}"#;
    let imported = import_machine_file(Some(system), Some(memory));
    let machine = parse_imported_machine(&imported);
    let class = &machine.npu_classes()[0];
    for (dtype, name) in Dtype::ALL {
        let peak = class
            .peaks
            .peak_rate_if_supported(dtype)
            .map(|peak| peak.per_second());
        assert_eq!(peak, Some(900e12), "{name}");
    }
    let own = class.memory.expect("its bandwidth is known");
    assert_eq!(own.bandwidth.bytes_per_second(), 1.6e12);
    assert_eq!((own.latency, own.capacity), (None, None));
    assert_eq!(machine.npu_memory_capacity_with_port_share(0), None);
    let remote = machine.unnamed_remote_memory().expect("there is one");
    assert_eq!(remote.bandwidth.bytes_per_second(), 30e9);
    assert_eq!((remote.latency.0, remote.capacity), (700_000, None));
    assert_eq!(machine.remote_memory_beyond_npu_capacity(), None);
    for key in [
        "endpoint-delay",
        "local-mem-bw",
        "roofline-enabled",
        "all-reduce-implementation",
        "collective-optimization",
    ] {
        let about = imported.notes.iter().filter(|note| note.key == key);
        assert_eq!(about.count(), 1, "{key}: {:?}", imported.notes);
    }
    let half = import_machine_file(
        Some(r#"{"preferred-dataset-splits": 1, "peak-perf": 900}"#),
        None,
    );
    let note = "a class of NPUs needs local-mem-bw too";
    assert!(half.text.contains(note), "{}", half.text);
}

#[test]
fn a_network_alone_is_a_machine_that_chooses_algorithms() {
    let memory = r#"{"memory-type": "PER_NODE_MEMORY_EXPANSION", "remote-mem-latency": 1,
        "remote-mem-bw": 1, "num-nodes": 8, "num-npus-per-node": 8}"#;
    let imported = import_machine_file(None, Some(memory));
    let machine = parse_imported_machine(&imported);
    assert_eq!(
        (
            machine.topology().npu_count(),
            machine.unnamed_remote_memory()
        ),
        (64, None)
    );
    assert!(imported.text.contains("algorithm = \"auto\""));
    assert!(imported.notes.iter().any(|note| note.key == "memory-type"));
    let huge = "topology: [Ring]\nnpus_count: [8]\nbandwidth: [1e300]\nlatency: [500]\n";
    let error = machine_file("x", build_named_input_text("n.yml", huge), None, None).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("no machine file can say these numbers"),
        "{error}"
    );
}
