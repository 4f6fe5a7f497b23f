//! Provides inputs and graphs for the unit tests.

use super::{
    AnalyticalCongestionModel, AstraCollectiveBackend, AstraFlags, AstraInputs,
    AstraTraceGraphReader, QuirkSet,
};
use chakram_trace::format::Op;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::write::{Sink, TraceWriter};
use chakram_trace::graph::Graph;
use std::num::NonZeroU32;

/// Returns default flags, with a single letter as the name of each file.
pub fn build_astra_flags() -> AstraFlags {
    AstraFlags {
        model: AnalyticalCongestionModel::Unaware,
        workload: "wl".into(),
        groups: "empty".into(),
        system: "s".into(),
        memory: "m".into(),
        network: "n".into(),
        logging: "empty".into(),
        logging_folder: None,
        queues: NonZeroU32::MIN,
        compute_scale: 1.0,
        comm_scale: 1.0,
        injection_scale: 1.0,
        rendezvous: false,
        lenient: false,
        logs: false,
        quirks: QuirkSet::ALL,
    }
}

/// Reads inputs with two NPUs and the system file `system`.
pub fn read_two_npu_inputs(system: &str) -> AstraInputs {
    let read = |role: &str| match role {
        "system" => system.to_owned(),
        "network" => "topology: [Ring]\nnpus_count: [2]\nbandwidth: [1]\nlatency: [1]".to_owned(),
        _ => "{\"memory-type\": \"NO_MEMORY_EXPANSION\"}".to_owned(),
    };
    AstraInputs::read_files(&build_astra_flags(), &mut |role, _| Ok(read(role)))
        .expect("they are right")
}

/// Returns the graph of rank 0 with these nodes; each number is a recorded duration in microseconds.
pub fn build_rank_graph_of_nodes(inputs: &AstraInputs, nodes: &[(Op<'_>, u64)]) -> Graph {
    let mut writer = TraceWriter::new(Vec::new()).expect("memory takes all");
    for (id, (op, micros)) in nodes.iter().enumerate() {
        let mut node = NodeView::new(id as u64, "n", *op);
        node.recorded = chakram_base::units::Span::from_ns(micros * 1000);
        writer.receive_node(&node, &[]).expect("memory takes all");
    }
    let collectives = AstraCollectiveBackend::new(inputs);
    let reader = AstraTraceGraphReader::new(inputs, &collectives, false);
    let read = reader.read_graph(&writer.into_unflushed_sink(), 0, "wl.0.et");
    read.expect("the nodes make sense").graph
}
