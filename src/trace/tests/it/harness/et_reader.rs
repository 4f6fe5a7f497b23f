//! Reads arbitrary bytes as a trace file. No reader may panic. The fast reader must agree with the generated types on
//! every record that they can read.

use super::oracle;
use chakram_trace::format::file::decompress_bytes;
use chakram_trace::format::wire::FrameCursor;
use chakram_trace::graph::{EnforcedDependencyKinds, Graph};

/// Runs the fuzz target on `data`.
pub fn check_fuzzed_et_file(data: &[u8]) {
    let unpacked = match decompress_bytes(data) {
        Some(Ok(unpacked)) if unpacked.len() <= 1 << 20 => Some(unpacked),
        Some(_) => return,
        None => None,
    };
    let contents = unpacked.as_deref().unwrap_or(data);
    let mut frames = FrameCursor::new(contents);
    while let Ok(Some(record)) = frames.next_record() {
        if record.number > 0 {
            oracle::check_readers_agree(record);
        }
    }
    for policy in [
        EnforcedDependencyKinds::Auto,
        EnforcedDependencyKinds::Both,
        EnforcedDependencyKinds::Data,
    ] {
        match Graph::read_graph(contents, 0, policy) {
            Ok((graph, _)) => check_edges_match_in_degrees(&graph),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// Checks an invariant of every graph: the rows contain as many edges as the degrees count.
fn check_edges_match_in_degrees(graph: &Graph) {
    let mut degrees = vec![0; graph.len()];
    for node in graph.nodes() {
        for next in graph.successors(node) {
            degrees[next.index()] += 1;
        }
    }
    assert_eq!(degrees, graph.in_degrees());
    assert!(graph.nodes().map(|n| graph.id(n)).is_sorted());
}
