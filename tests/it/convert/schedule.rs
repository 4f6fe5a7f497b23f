//! Computes the start and the end of a job's nodes, with a few lines of code that share nothing with the engine. Every
//! node starts after its dependencies and its delay, and every part of a communication after the parts that it needs.

use super::rig::{
    self, COLLECTIVE, RECEIVE, SEND, SchemaRankTrace, find_integer_attribute, has_eager_attribute,
    list_node_dependency_ids, read_delay_ns, read_duration_ns,
};
use std::collections::BTreeMap;

/// Returns the start (when the node was ready) and the end of every node of every trace, in ns.
pub fn compute_node_schedule(
    traces: &[SchemaRankTrace],
    late: impl Fn(u32) -> u64,
) -> Vec<Vec<(u64, u64)>> {
    let places: Vec<BTreeMap<u64, usize>> = traces
        .iter()
        .map(|t| t.nodes.iter().enumerate().map(|(i, n)| (n.id, i)).collect())
        .collect();
    let meetings = match_communication_nodes_across_ranks(traces);
    let mut meeting_of: Vec<Vec<Option<usize>>> =
        traces.iter().map(|t| vec![None; t.nodes.len()]).collect();
    for (m, parts) in meetings.iter().enumerate() {
        for &(t, n) in parts {
            meeting_of[t][n] = Some(m);
        }
    }
    let mut times: Vec<Vec<(Option<u64>, Option<u64>)>> = traces
        .iter()
        .map(|t| vec![(None, None); t.nodes.len()])
        .collect();
    let mut arrived = vec![0; meetings.len()];
    // Repeat from the point where each rank got stuck.
    let mut open: Vec<Vec<usize>> = traces
        .iter()
        .map(|t| (0..t.nodes.len()).collect())
        .collect();
    loop {
        let mut progress = false;
        for t in 0..traces.len() {
            let mut left = Vec::new();
            for &n in &open[t] {
                let node = &traces[t].nodes[n];
                if times[t][n].0.is_none() {
                    let ends: Option<Vec<u64>> = list_node_dependency_ids(node)
                        .map(|id| times[t][places[t][&id]].1)
                        .collect();
                    if let Some(ends) = ends {
                        let since = ends.into_iter().max().unwrap_or(late(traces[t].rank));
                        times[t][n].0 = Some(since + read_delay_ns(node));
                        progress = true;
                        if let Some(m) = meeting_of[t][n] {
                            arrived[m] += 1;
                        }
                    }
                }
                let Some(start) = times[t][n].0 else {
                    left.push(n);
                    continue;
                };
                let parts = meeting_of[t][n].filter(|_| !has_eager_attribute(node));
                let needed = match parts {
                    Some(m) if arrived[m] == meetings[m].len() => Some(
                        latest_start_of_needed_parts(traces, &meetings[m], (t, n), &times),
                    ),
                    Some(_) => None,
                    None => Some(start),
                };
                match needed {
                    Some(from) => {
                        times[t][n].1 = Some(from + read_duration_ns(node));
                        progress = true;
                    }
                    None => left.push(n),
                }
            }
            open[t] = left;
        }
        if !progress {
            break;
        }
    }
    let done = |(start, end): &(Option<u64>, Option<u64>)| (start.unwrap(), end.unwrap());
    times
        .iter()
        .map(|list| list.iter().map(done).collect())
        .collect()
}

/// Returns the latest start of the parts that a part needs, including the part itself.
fn latest_start_of_needed_parts(
    traces: &[SchemaRankTrace],
    parts: &[(usize, usize)],
    own: (usize, usize),
    times: &[Vec<(Option<u64>, Option<u64>)>],
) -> u64 {
    let start = |&(t, n): &(usize, usize)| times[t][n].0.unwrap();
    let root = find_integer_attribute(&traces[own.0].nodes[own.1], "comm_root");
    let root = root.and_then(|root| {
        let part = |&&(t, _): &&(usize, usize)| i64::from(traces[t].rank) == root;
        parts.iter().find(part)
    });
    match root {
        Some(root) if *root != own => start(&own).max(start(root)),
        _ => parts.iter().map(start).max().unwrap(),
    }
}

/// Returns the nodes that belong together: the k-th collective of a group, or the k-th message with
/// a tag from one rank to another.
pub fn match_communication_nodes_across_ranks(
    traces: &[SchemaRankTrace],
) -> Vec<Vec<(usize, usize)>> {
    let mut known: BTreeMap<(String, i64, u64), Vec<(usize, usize)>> = BTreeMap::new();
    for (t, trace) in traces.iter().enumerate() {
        let mut counts: BTreeMap<(String, i64), u64> = BTreeMap::new();
        let own = i64::from(trace.rank);
        for (n, node) in trace.nodes.iter().enumerate() {
            let number = |name| find_integer_attribute(node, name);
            let (key, direction) = match node.r#type {
                COLLECTIVE if !rig::on_host(node) => (
                    rig::find_text_attribute(node, "pg_name")
                        .unwrap_or("")
                        .to_owned(),
                    0,
                ),
                SEND if !rig::on_host(node) => {
                    (format!("{own} to {}", number("comm_dst").unwrap()), 1)
                }
                RECEIVE if !rig::on_host(node) => {
                    (format!("{} to {own}", number("comm_src").unwrap()), 2)
                }
                _ => continue,
            };
            let key = format!("{key} {}", number("comm_tag").unwrap_or(0));
            let count = counts.entry((key.clone(), direction)).or_default();
            let of = i64::from(direction > 0);
            known.entry((key, of, *count)).or_default().push((t, n));
            *count += 1;
        }
    }
    known.into_values().collect()
}
