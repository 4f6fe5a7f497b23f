//! Tests the captures themselves, if available.

use super::event::{ProductAttentionOrAllReduce, format_captured_line};
use super::{CAPTURED, OLDER};
use crate::convert::rig::{
    self, COLLECTIVE, RECEIVE, SEND, SchemaRankTrace, find_integer_attribute, find_text_attribute,
};
use crate::corpus::corpus_path_or_count_skip;
use chakram::convert::HostTrace;

/// Returns the lines of a converted rank, with the FLOPs that the converter computes for each.
fn list_converted_events(trace: &SchemaRankTrace) -> Vec<(String, u64)> {
    let mut lines = Vec::new();
    for node in &trace.nodes {
        assert!(![SEND, RECEIVE].contains(&node.r#type), "{}", node.name);
        if node.r#type == COLLECTIVE {
            assert_eq!(
                find_integer_attribute(node, "comm_type"),
                Some(0),
                "an all-reduce"
            );
            assert_eq!(find_text_attribute(node, "pg_name"), None, "of all ranks");
            let line = format!(
                "all-reduce {}",
                find_integer_attribute(node, "comm_size").unwrap()
            );
            lines.push((
                find_integer_attribute(node, "launch").unwrap() as u64,
                line,
                0,
            ));
            continue;
        }
        let flops = find_integer_attribute(node, "num_ops").unwrap_or(0) as u64;
        if flops > 0 {
            let inputs = match &node.inputs {
                Some(inputs) => &inputs.shapes,
                None => panic!("{}", node.name),
            };
            let line = format_captured_line(&node.name, inputs);
            lines.push((node.id, line.unwrap_or_else(|| node.name.clone()), flops));
        }
    }
    lines.sort();
    let lines = lines.into_iter();
    lines.map(|(_, line, flops)| (line, flops)).collect()
}

#[test]
fn the_converted_capture_has_the_recorded_events() {
    let Some(folder) = corpus_path_or_count_skip("captures/pytorch/ddp_gpt") else {
        return;
    };
    let job = rig::convert_folder(&folder);
    assert_eq!(job.traces.len(), 4);
    for trace in &job.traces {
        let found = list_converted_events(trace);
        let lines: Vec<_> = found.iter().map(|(line, _)| &line[..]).collect();
        assert_eq!(
            lines,
            CAPTURED.lines().collect::<Vec<_>>(),
            "{}",
            trace.rank
        );
        for (line, flops) in &found {
            assert_eq!(
                *flops,
                ProductAttentionOrAllReduce::parse(line).flops(),
                "{line}"
            );
        }
        // The wait for a reduction comes after the last product, and before the optimizer step.
        let mut backwards = trace.nodes.iter().rev();
        let last = backwards.find(|node| find_integer_attribute(node, "num_ops") > Some(0));
        let mut nodes = trace.nodes.iter();
        let step = nodes.find(|node| node.name.starts_with("Optimizer.step"));
        let (last, step) = (last.unwrap().id, step.unwrap().id);
        for reduction in trace.nodes.iter().filter(|node| node.r#type == COLLECTIVE) {
            let waits = trace.nodes.iter();
            let waits = waits
                .filter(|node| rig::list_node_dependency_ids(node).any(|id| id == reduction.id));
            let waits: Vec<_> = waits.map(|node| node.id).collect();
            assert!(!waits.is_empty() && waits.iter().all(|id| (last..step).contains(id)));
        }
    }
}

/// The older capture cannot be converted, because its files share no ids; one of them contains the capture's operators.
#[test]
fn the_older_capture_differs_in_its_buckets_alone() {
    let Some(folder) = corpus_path_or_count_skip("captures/pytorch/t231_ddp_gpt") else {
        return;
    };
    for rank in 0..4 {
        let host = HostTrace::read_file(&folder.join(format!("host.{rank}.json.zst"))).unwrap();
        let mut nodes: Vec<_> = host.nodes.iter().zip(&host.records).collect();
        nodes.sort_by_key(|(_, record)| record.id);
        let (mut lines, mut reduced) = (Vec::new(), Vec::new());
        for (node, _) in nodes {
            let (name, shapes) = (
                host.texts.get(node.name),
                host.shared_properties_of_node(node).shapes_in,
            );
            let inputs = host.texts.get(shapes);
            if name.starts_with("c10d::") {
                assert_eq!(name, "c10d::allreduce_");
                let all: Vec<serde_json::Value> = serde_json::from_str(inputs).unwrap();
                let elements = all[0][0][0].as_u64().unwrap();
                reduced.push(4 * elements);
            }
            lines.extend(format_captured_line(name, inputs));
        }
        assert_eq!(reduced, OLDER, "rank {rank}");
        let products = CAPTURED.lines().filter(|line| !line.starts_with("all"));
        assert_eq!(lines, products.collect::<Vec<_>>(), "rank {rank}");
    }
}
