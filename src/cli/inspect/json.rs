//! The summary as one JSON document, times in whole picoseconds.
//!
//! A field may be added under the same schema, never changed.

use super::SCHEMA;
use crate::inspect::{
    CountedFault, JobInspection, NodeSums, RECEIVED, RankOverview, SENT, SpreadRow, SpreadTable,
};
use serde_json::{Map, Value, json};

/// Returns the start of every document, with `what` it is.
pub fn head(what: &str) -> Map<String, Value> {
    let mut head = Map::new();
    head.insert("schema".to_owned(), SCHEMA.into());
    head.insert("tool_version".to_owned(), env!("CARGO_PKG_VERSION").into());
    head.insert("view".to_owned(), what.into());
    head
}

/// Renders the summary of `job`, of nodes that fit `options`.
pub fn summary(job: &JobInspection, options: Vec<(&'static str, Vec<String>)>) -> Value {
    let mut document = head("summary");
    let filter = options
        .into_iter()
        .map(|(name, values)| (name.to_owned(), values.into()));
    document.insert("filter".to_owned(), Value::Object(filter.collect()));
    document.insert("shared_clock".to_owned(), job.share_start().into());
    document.insert("ranks".to_owned(), job.ranks.iter().map(rank).collect());
    let unreadable = job.unreadable.iter().map(
        |(rank, path, why)| json!({"rank": rank, "file": path.display().to_string(), "why": why}),
    );
    document.insert("unreadable".to_owned(), unreadable.collect());
    document.insert("metadata".to_owned(), metadata(job));
    let groups = job.groups.iter().map(|(name, members)| {
        let torn = job.conflicting_groups.contains(name);
        json!({"name": name, "ranks": members, "declared_differently": torn})
    });
    document.insert("groups".to_owned(), groups.collect());
    let types = table(&job.types, |class| vec![("type", class.to_string().into())]);
    document.insert("types".to_owned(), types);
    let lanes = table(&job.lanes, |lane| {
        let name = job.lane_names.get(lane).map(|(name, _)| name.clone());
        vec![("lane", lane.to_string().into()), ("name", name.into())]
    });
    document.insert("lanes".to_owned(), lanes);
    let collectives = table(&job.collectives, |(group, kind)| {
        vec![
            ("group", group.clone().into()),
            ("kind", kind.to_string().into()),
        ]
    });
    document.insert("collectives".to_owned(), collectives);
    let messages = job.messages.iter().map(|((from, to), ends)| {
        json!({"from": from, "to": to, "sent": tally(&ends[SENT]), "received": tally(&ends[RECEIVED])})
    });
    document.insert("messages".to_owned(), messages.collect());
    let operators = table(&job.operators, |(name, class)| {
        vec![
            ("name", name.clone().into()),
            ("type", class.to_string().into()),
        ]
    });
    document.insert("operators".to_owned(), operators);
    let attributes = job.attributes.iter();
    let attributes =
        attributes.map(|((name, kind), nodes)| json!({"name": name, "type": kind, "nodes": nodes}));
    document.insert("attributes".to_owned(), attributes.collect());
    document.into()
}

fn metadata(job: &JobInspection) -> Value {
    let versions = job.versions.iter();
    let versions = versions.map(|(version, ranks)| json!({"version": version, "ranks": ranks}));
    let attributes = job.metadata.iter().map(|((name, kind), (value, ranks, same))| {
        json!({"name": name, "type": kind, "value": value, "ranks": ranks, "same_on_these": same})
    });
    json!({
        "versions": versions.collect::<Vec<_>>(),
        "attributes": attributes.collect::<Vec<_>>(),
    })
}

fn rank(rank: &RankOverview) -> Value {
    json!({
        "rank": rank.rank,
        "file": rank.path.display().to_string(),
        "file_bytes": rank.file_bytes,
        "contents_bytes": rank.contents_bytes,
        "nodes": rank.nodes,
        "selected": rank.selected,
        "data_dependencies": rank.data,
        "control_dependencies": rank.control,
        "depth": rank.depth,
        "width": rank.width,
        "start_ps": rank.start.0,
        "end_ps": rank.end.0,
        "captured_ps": rank.captured.map(|captured| captured.0),
        "times": rank.basis.word(),
        "durations_in_whole_us": rank.whole_micros,
        "nodes_with_start": rank.given_starts,
        "faults": complaints(&rank.faults.faults),
        "notes": complaints(&rank.faults.notes),
    })
}

/// Renders the faults of a file.
pub fn complaints(complaints: &[CountedFault]) -> Value {
    let complaints = complaints.iter();
    complaints
        .map(|c| json!({"count": c.count, "first": c.text}))
        .collect()
}

fn table<K: Ord>(table: &SpreadTable<K>, key: impl Fn(&K) -> Vec<(&'static str, Value)>) -> Value {
    let rows = table.rows().map(|(of, row)| {
        let key = key(of)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        let mut document: Map<String, Value> = key.collect();
        let SpreadRow {
            sum,
            ranks,
            least,
            most,
            fewest,
            largest,
        } = row;
        document.insert("ranks".to_owned(), (*ranks).into());
        if let Value::Object(sums) = tally(sum) {
            document.extend(sums);
        }
        let time = |(time, rank): &(crate::units::Span, u32)| json!({"ps": time.0, "rank": rank});
        document.insert("min_time".to_owned(), time(least));
        document.insert("max_time".to_owned(), time(most));
        let nodes = |(nodes, rank): &(u64, u32)| json!({"nodes": nodes, "rank": rank});
        document.insert("min_nodes".to_owned(), nodes(fewest));
        document.insert("max_nodes".to_owned(), nodes(largest));
        Value::Object(document)
    });
    rows.collect()
}

fn tally(tally: &NodeSums) -> Value {
    json!({
        "nodes": tally.nodes,
        "time_ps": tally.time.0,
        "wait_ps": tally.wait.0,
        "flops": tally.flops,
        "bytes": tally.bytes,
        "nodes_without_time": tally.untimed,
    })
}
