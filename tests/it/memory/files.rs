//! Tests memory changes in files: in graphs, in texts, and after commands that rewrite traces.

use super::{
    KERNEL, TraceNodeWithMemoryChanges, build_activation_allocs_and_frees, encode_trace_nodes,
};
use crate::commands::{run_chakram, run_for_output};
use chakram::ids::NodeIndex;
use chakram::trace::{
    NodeMemoryChanges, NodePhaseStageLayerAndShapes, NodeView, Sink, TrainingPhase,
};
use chakram::workload::{EnforcedDependencyKinds, Graph, GraphBuilder};
use serde_json::Value;
use std::path::Path;

/// Returns four kernels. The second and the fourth make the same memory changes, and the third makes others.
fn build_kernels_with_memory_changes() -> Vec<TraceNodeWithMemoryChanges> {
    let plain = NodeMemoryChanges::default();
    let changes = [
        plain,
        build_activation_allocs_and_frees(5, 0),
        build_activation_allocs_and_frees(0, 5),
        build_activation_allocs_and_frees(5, 0),
    ];
    let lines =
        changes.map(|changes| TraceNodeWithMemoryChanges(KERNEL, 1, 10, changes, Vec::new()));
    lines.into()
}

fn list_memory_changes_of_graph_nodes(graph: &Graph) -> Vec<Option<NodeMemoryChanges>> {
    let nodes = graph.nodes();
    nodes
        .map(|node| graph.memory_changes_of(node).copied())
        .collect()
}

#[test]
fn graphs_read_from_files_equal_graphs_built_in_memory() {
    let (read, _) = Graph::read_graph(
        &encode_trace_nodes(&build_kernels_with_memory_changes()),
        0,
        EnforcedDependencyKinds::Both,
    )
    .unwrap();
    let wanted: Vec<_> = build_kernels_with_memory_changes()
        .iter()
        .map(|line| line.3)
        .collect();
    let wanted: Vec<_> = wanted
        .iter()
        .map(|c| Some(*c).filter(|c| !c.is_none()))
        .collect();
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let mut builder = GraphBuilder::new(0, EnforcedDependencyKinds::Both, 10);
        for i in order {
            let TraceNodeWithMemoryChanges(op, lane, ns, memory, _) =
                build_kernels_with_memory_changes()[i];
            let name = format!("n{}", i + 1);
            let node = NodeView {
                lane: Some(lane),
                recorded: chakram::units::Span::from_ns(ns),
                memory,
                ..NodeView::new(i as u64 + 1, &name, op)
            };
            builder.receive_node(&node, &[]).unwrap();
        }
        let (graph, _) = builder.finish_graph().unwrap();
        assert_eq!(
            list_memory_changes_of_graph_nodes(&graph),
            wanted,
            "{order:?}"
        );
        assert_eq!(graph, read, "{order:?}");
        assert_eq!(graph.fingerprint(), read.fingerprint());
    }
}

/// Ranks that differ only in their allocations share no graph. If any node changes memory, each node takes 4 bytes
/// more, and each of the two distinct changes takes 88 bytes.
#[test]
fn graphs_grow_by_memory_changes_only_if_a_node_has_any() {
    let read = |lines: &[TraceNodeWithMemoryChanges]| {
        Graph::read_graph(&encode_trace_nodes(lines), 0, EnforcedDependencyKinds::Both)
            .unwrap()
            .0
    };
    let with = read(&build_kernels_with_memory_changes());
    let mut plain = build_kernels_with_memory_changes();
    plain
        .iter_mut()
        .for_each(|line| line.3 = NodeMemoryChanges::default());
    let without = read(&plain);
    assert_eq!(with.heap_bytes(), without.heap_bytes() + 4 * 4 + 2 * 88);
    assert_ne!(with.fingerprint(), without.fingerprint());
    assert_eq!(without.memory_changes_of(NodeIndex(0)), None);
    let mut other = build_kernels_with_memory_changes();
    other[3].3 = build_activation_allocs_and_frees(6, 0);
    assert_ne!(with.fingerprint(), read(&other).fingerprint());
}

#[test]
fn labels_do_not_change_a_graph() {
    let graph = |labels| {
        let mut builder = GraphBuilder::new(0, EnforcedDependencyKinds::Both, 10);
        let node = NodeView {
            labels,
            ..NodeView::new(1, "n1", KERNEL)
        };
        builder.receive_node(&node, &[]).unwrap();
        builder.finish_graph().unwrap().0
    };
    let labels = NodePhaseStageLayerAndShapes {
        phase: Some(TrainingPhase::Backward),
        layer: Some(3),
        ..NodePhaseStageLayerAndShapes::default()
    };
    assert_eq!(
        graph(labels),
        graph(NodePhaseStageLayerAndShapes::default())
    );
}

const CASE: &str = "traces/tight-2";

/// Returns the peak and the missing memory of each rank, for the traces at `traces` on the case's
/// machine.
fn replay_memory_peaks(traces: &str) -> Vec<(u64, u64)> {
    let machine = format!("{CASE}/machine.toml");
    let text = run_for_output(&["replay", traces, "-m", &machine, "--format", "json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let rows = report["memory"]["npus"].as_array().unwrap().iter();
    let count = |value: &Value| value.as_u64().unwrap();
    rows.map(|row| {
        let missing = row["overfreed"]["bytes_by_class"]["activations"].as_u64();
        (count(&row["peak_bytes"]), missing.unwrap_or(0))
    })
    .collect()
}

const GB: u64 = 1_000_000_000;

/// The traces are converted to text and back, anonymised, and scaled from one rank to three.
#[test]
fn rewriting_traces_keeps_their_memory_changes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let records = at("records/job");
    run_for_output(&["convert", "trace", CASE, "--to", "et", "-o", &records]);
    let text = at("text/job");
    run_for_output(&["convert", "trace", &records, "--to", "jsonl", "-o", &text]);
    for rank in 0..2 {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let name = format!("job.{rank}.jsonl");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let again = read(&folder.path().join("text").join(&name));
        assert_eq!(again, read(&root.join(CASE).join(&name)));
    }
    let hidden = at("hidden/job");
    run_for_output(&["anonymise", &records, "--all", "--key", "k", "-o", &hidden]);
    for traces in [CASE, &records, &hidden] {
        assert_eq!(
            replay_memory_peaks(traces),
            [(17 * GB, 0), (14 * GB, 0)],
            "{traces}"
        );
    }

    let one = folder.path().join("one.0.et");
    let held = [
        build_activation_allocs_and_frees(5, 0),
        build_activation_allocs_and_frees(3, 3),
    ];
    let lines = held.map(|changes| TraceNodeWithMemoryChanges(KERNEL, 1, 10, changes, Vec::new()));
    std::fs::write(&one, encode_trace_nodes(&lines)).unwrap();
    let (one, three) = (at("one"), at("three"));
    run_for_output(&[
        "scale",
        &one,
        "--grid",
        "dp=1",
        "--to",
        "dp=2",
        "--side-by-side",
        "-o",
        &three,
    ]);
    assert_eq!(replay_memory_peaks(&three), [(8, 0), (8, 0)]);
}

/// The slice begins at node 6. The backward passes of rank 0 then free activations that were
/// allocated before the slice.
#[test]
fn a_slice_that_frees_memory_allocated_before_it_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let slice = folder.path().join("late");
    let slice = slice.to_str().unwrap();
    let machine = format!("{CASE}/machine.toml");
    let cut = run_chakram(&[
        "slice",
        CASE,
        "--from",
        "6",
        "--unmatched",
        "cut",
        "-o",
        slice,
    ]);
    assert!(cut.status.success(), "{cut:?}");
    let text = run_for_output(&["replay", slice, "-m", &machine]);
    assert!(
        text.contains("nodes free memory that nothing allocated"),
        "{text}"
    );
}

#[test]
fn diff_reports_a_difference_in_memory_changes() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, frees| {
        let path = folder.path().join(format!("{name}.0.et"));
        let line = TraceNodeWithMemoryChanges(
            KERNEL,
            1,
            10,
            build_activation_allocs_and_frees(5, frees),
            Vec::new(),
        );
        std::fs::write(&path, encode_trace_nodes(&[line])).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let output = run_chakram(&["diff", &write("a", 5), &write("b", 4)]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("frees.activations"), "{text}");
}
