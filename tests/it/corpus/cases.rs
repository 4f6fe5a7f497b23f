//! The cases of the corpus, and machines that suit them.

use super::corpus;
use chakram::machine::{
    AlgorithmChoice, CollectiveAlgorithm, LocalMemory, Machine, MemoryAttachment, NpuClass,
    PeakRates, RemoteMemory,
};
use chakram::topology::{DimensionShape, Topology, TopologyDimension};
use chakram::units::{Bandwidth, Bytes, Span};
use std::collections::BTreeMap;
use std::io::Read;

/// The files of a case: path to contents.
pub type Case = BTreeMap<String, Vec<u8>>;

/// Every case by its name, unpacked in memory.
pub fn cases() -> Option<BTreeMap<String, Case>> {
    let packed = std::fs::read(corpus("astra-sim/cases.tar.zst")?).expect("the corpus is there");
    let unpacked = zstd::decode_all(&packed[..]).expect("it is zstd");
    let mut cases: BTreeMap<String, Case> = BTreeMap::new();
    for entry in tar::Archive::new(&unpacked[..])
        .entries()
        .expect("it is tar")
    {
        let mut entry = entry.expect("it is tar");
        let path = entry
            .path()
            .expect("paths are text")
            .to_string_lossy()
            .into_owned();
        let path = path.trim_start_matches("./");
        let Some((case, file)) = path
            .split_once('/')
            .filter(|(_, file)| !file.ends_with('/'))
        else {
            continue;
        };
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("it is tar");
        if !file.is_empty() {
            cases
                .entry(case.to_owned())
                .or_default()
                .insert(file.to_owned(), bytes);
        }
    }
    assert!(cases.len() > 200, "{} cases", cases.len());
    Some(cases)
}

/// The rank of a trace among the files of a case.
pub fn rank_of(file: &str) -> Option<u32> {
    file.strip_prefix("wl/wl.")?
        .strip_suffix(".et")?
        .parse()
        .ok()
}

/// The sizes of the dimensions, from the line `npus_count: [ 4, 8 ]`.
pub fn sizes(case: &Case) -> Vec<u32> {
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

/// Switches of these sizes, on NPUs with memory beyond their own.
pub fn machine(sizes: &[u32]) -> Machine {
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
    let capacity = Bytes(1 << 50);
    let class = NpuClass {
        name: "npu".to_owned(),
        peaks: PeakRates::default(),
        curves: Default::default(),
        memory: LocalMemory {
            bandwidth,
            latency,
            capacity,
        },
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
    let algorithms = vec![AlgorithmChoice::Named(CollectiveAlgorithm::Ring); sizes.len()];
    Machine::uniform(
        "corpus".to_owned(),
        topology,
        algorithms,
        class,
        Some(remote),
    )
    .expect("valid")
}
