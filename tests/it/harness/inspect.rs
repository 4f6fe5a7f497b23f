//! Inspects random bytes as a trace. Every readable part is summarized, and the sums agree. No
//! input causes a panic, and a trace that replays accept has no fault.

use chakram::inspect::{
    InspectedRankTrace, NodeFilter, NodeNeighbourhood, RankInspectionSummary,
    RankTimesForCriticalPath, critical_path,
};
use chakram::trace::decompress_bytes;
use chakram::units::{Span, Time};
use chakram::workload::{EnforcedDependencyKinds, Graph};
use std::path::Path;

/// Runs the target on `data`.
pub fn check_inspection_of_bytes(data: &[u8]) {
    let unpacked = match decompress_bytes(data) {
        Some(Ok(unpacked)) if unpacked.len() <= 1 << 20 => Some(unpacked),
        Some(_) => return,
        None => None,
    };
    let contents = unpacked.as_deref().unwrap_or(data);
    let file = Path::new("fuzz.0.et");
    let replayed = Graph::read_graph(contents, 0, EnforcedDependencyKinds::Auto);
    let trace = match InspectedRankTrace::read_trace(0, contents, |e| e.in_file(file)) {
        Ok(trace) => trace,
        Err(error) => {
            assert!(replayed.is_err() && !error.to_string().is_empty());
            return;
        }
    };
    if let Ok((graph, _)) = &replayed {
        assert_eq!(
            trace.faults.count_replay_rejecting_faults(),
            0,
            "{:?}",
            trace.faults
        );
        assert_eq!(trace.raw.nodes.len(), graph.len());
        assert_eq!(trace.times.run.ran, graph.len());
    }
    check_summary_tables_count_same_nodes(&trace, file, contents.len() as u64);
    check_neighbours_name_each_other(&trace);
    check_critical_path_is_gapless(trace);
}

/// Checks that all tables of a summary count the same nodes.
fn check_summary_tables_count_same_nodes(trace: &InspectedRankTrace<'_>, file: &Path, size: u64) {
    let mut job = chakram::inspect::JobInspectionSummary::default();
    job.add_rank(RankInspectionSummary::new(
        trace,
        &NodeFilter::default(),
        file,
        (size, size),
    ));
    let nodes = trace.raw.nodes.len() as u64;
    let rank = &job.ranks[0];
    assert_eq!((rank.nodes, rank.selected), (nodes, nodes));
    let totals = [
        job.types.sum_over_all_rows(),
        job.lanes.sum_over_all_rows(),
        job.operators.sum_over_all_rows(),
    ];
    assert!(totals.iter().all(|total| *total == totals[0]), "{totals:?}");
    assert_eq!(totals[0].nodes, nodes);
    assert!(u64::from(rank.depth) <= nodes && u64::from(rank.width) <= nodes);
    assert!(rank.start <= rank.end);
    assert!(job.attributes.values().all(|&count| count <= nodes));
    let mut listed = trace.order_by_start(None);
    listed.sort_unstable();
    assert!(listed.into_iter().eq(trace.raw.range_of_all_node_indices()));
}

/// Checks that neighbours name each other.
fn check_neighbours_name_each_other(trace: &InspectedRankTrace<'_>) {
    let nodes = &trace.raw.nodes;
    for item in nodes.first().into_iter().chain(nodes.last()) {
        let id = item.view.id;
        let near = NodeNeighbourhood::new(trace, id, 2, 50).expect("it is there");
        assert_eq!(near.node.row.id, id);
        let ids: Vec<u64> = [&near.before, &near.after]
            .iter()
            .flat_map(|side| side.nodes.iter().map(|other| other.row.id))
            .chain([id])
            .collect();
        assert!(
            near.edges
                .iter()
                .all(|(from, to, _)| ids.contains(from) && ids.contains(to))
        );
        assert!(near.render_dot().starts_with("digraph {"));
    }
}

/// Checks that the parts of the critical path follow one another from start to end.
fn check_critical_path_is_gapless(trace: InspectedRankTrace<'_>) {
    let (_, end) = trace.times.first_start_and_last_end();
    let track = RankTimesForCriticalPath::new(trace).expect("names are short");
    let Some(path) = critical_path(&[track], true) else {
        return;
    };
    let mut at = Time::ZERO;
    for piece in &path.pieces {
        assert_eq!(piece.from, at);
        at = at + piece.duration();
    }
    if end != Time::END {
        assert_eq!((at, path.total_time()), (end, Span(end.0)));
    }
}
