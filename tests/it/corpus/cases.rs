//! Contents of the corpus's cases, and machines for them.

use super::CaseFiles;
use chakram::machine::{
    CollectiveAlgorithm, DimensionAlgorithmChoice, LocalMemory, Machine, MemoryAttachment,
    NpuClass, PeakRatesByFormat, RemoteMemory,
};
use chakram::topology::{DimensionShape, Topology, TopologyDimension};
use chakram::units::{Bandwidth, Bytes, Span};

/// Returns the rank of a trace, given its file name.
pub fn parse_rank_of_trace_file(file: &str) -> Option<u32> {
    file.strip_prefix("wl/wl.")?
        .strip_suffix(".et")?
        .parse()
        .ok()
}

/// Returns the sizes of the dimensions, from the line `npus_count: [ 4, 8 ]`.
pub fn parse_dimension_sizes(case: &CaseFiles) -> Vec<u32> {
    let text = std::str::from_utf8(&case["network.yml"]).expect("it is text");
    let list = text
        .lines()
        .find_map(|line| line.strip_prefix("npus_count:"));
    let list = list.expect("every network has sizes").trim();
    let list = list
        .strip_prefix('[')
        .and_then(|l| l.split(']').next())
        .expect("a list");
    list.split(',')
        .map(|n| n.trim().parse().expect("a size"))
        .collect()
}

/// Returns a machine of switches of these sizes, with local and remote memory.
pub fn build_switch_machine(sizes: &[u32]) -> Machine {
    let bandwidth = Bandwidth::new(50e9).expect("positive");
    let latency = Span::from_ns(500);
    let dimension = |&size: &u32| TopologyDimension {
        name: String::new(),
        shape: DimensionShape::Switch,
        size,
        bandwidth,
        latency,
    };
    let topology = Topology::new(sizes.iter().map(dimension).collect()).expect("small");
    let capacity = Some(Bytes(1 << 50));
    let class = NpuClass {
        name: "npu".to_owned(),
        peaks: PeakRatesByFormat::default(),
        curves: Default::default(),
        memory: Some(LocalMemory {
            bandwidth,
            latency: Some(latency),
            capacity,
        }),
        lanes: 8,
        host_lanes: 8,
        slowdown: 1.0,
    };
    let remote = RemoteMemory {
        attachment: MemoryAttachment::Pool,
        bandwidth,
        latency,
        capacity,
        whole_ns: false,
        through: None,
    };
    let algorithms = vec![DimensionAlgorithmChoice::Named(CollectiveAlgorithm::Ring); sizes.len()];
    Machine::create_with_one_npu_class(
        "corpus".to_owned(),
        topology,
        algorithms,
        class,
        Some(remote),
    )
    .expect("valid")
}
