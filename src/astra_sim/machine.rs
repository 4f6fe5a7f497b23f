//! Builds the machine that the input files describe.

use super::{AstraInputs, Quirk, QuirkSet, RemoteMemoryFile, RemoteMemorySharing};
use chakram_base::units::{Bandwidth, Span};
use chakram_hardware::collective::{CollectiveAlgorithm, DimensionAlgorithmChoice};
use chakram_hardware::machine::{Machine, NpuClass};
use chakram_hardware::memory::{LocalMemory, MemoryAttachment, RemoteMemory};
use chakram_hardware::topology::{Topology, TopologyDimension};

/// Builds a machine with the NPUs and dimensions that `inputs` describe. Each NPU has `lanes` lanes.
///
/// The machine only determines where NPUs are and which memory they reach. This crate's networks and collectives
/// compute the times of transfers and collectives.
pub fn build_machine(inputs: &AstraInputs, lanes: u32) -> Machine {
    let one = Bandwidth::new(1e9).expect("1 GB/s is a bandwidth");
    let dimensions = inputs.network.dimensions.iter().zip(1..);
    let dimensions = dimensions.map(|(dimension, number)| TopologyDimension {
        name: format!("dimension {number}"),
        shape: dimension.shape,
        size: dimension.npus,
        bandwidth: {
            let rate = inputs.quirks.bytes_per_ns(dimension.bandwidth) * 1e9;
            Bandwidth::new(rate).unwrap_or(one)
        },
        latency: Span::from_seconds_saturating(dimension.latency * 1e-9),
    });
    let topology = Topology::new(dimensions.collect()).expect("the network file was checked");
    let bandwidth = inputs.system.local_memory_bandwidth.unwrap_or(0.0) * 1e9;
    let class = NpuClass {
        name: "npu".to_owned(),
        peaks: Default::default(),
        curves: Default::default(),
        memory: Some(LocalMemory {
            bandwidth: Bandwidth::new(bandwidth).unwrap_or(one),
            latency: None,
            capacity: None,
        }),
        lanes,
        host_lanes: 1,
        slowdown: 1.0,
    };
    let algorithms = vec![
        DimensionAlgorithmChoice::Named(CollectiveAlgorithm::Ring);
        inputs.network.dimensions.len()
    ];
    let remote = inputs
        .memory
        .map(|memory| build_remote_memory(memory, inputs.quirks));
    let machine = Machine::create_with_one_npu_class(
        "ASTRA-sim".to_owned(),
        topology,
        algorithms,
        class,
        remote,
    );
    machine.expect("an algorithm for each dimension, lanes and memory")
}

fn build_remote_memory(memory: RemoteMemoryFile, quirks: QuirkSet) -> RemoteMemory {
    RemoteMemory {
        attachment: match memory.sharing {
            RemoteMemorySharing::PerNpu => MemoryAttachment::PerNpu,
            RemoteMemorySharing::Pool => MemoryAttachment::Pool,
            RemoteMemorySharing::PerNode { npus_per_node, .. } => {
                MemoryAttachment::PerNode(npus_per_node)
            }
        },
        bandwidth: Bandwidth::new(memory.bandwidth as f64 * 1e9).expect("it is at least 1 GB/s"),
        latency: Span::from_ns(memory.latency),
        capacity: None,
        whole_ns: quirks.has_quirk(Quirk::WholeNs),
        through: None,
    }
}
