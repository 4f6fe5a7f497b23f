//! A plan for programs.

use super::group_locations::GroupLocation;
use super::{DryRunReport, phase};
use crate::generate::training::StageSummary;
use crate::trace::TensorClass;
use serde_json::{Map, Value, json};

/// The plan for programs.
pub fn render(dry: &DryRunReport<'_>) -> String {
    let DryRunReport { summary, room, .. } = dry;
    let groups = summary.groups.iter().map(|groups| {
        json!({
            "family": groups.family,
            "count": groups.all.len(),
            "members_of_first": groups.all[0],
        })
    });
    let stages = summary.stages.iter().zip(&room.capacities);
    let placement = dry.on.as_ref().map(|(machine, all)| {
        let families = all.iter().map(lies).collect::<Vec<_>>();
        json!({"machine": machine, "families": families})
    });
    let value = json!({
        "schema": "chakram.plan.1",
        "tool_version": env!("CARGO_PKG_VERSION"),
        "name": dry.name,
        "ranks": summary.ranks,
        "parameters": summary.parameters,
        "micro_batches": summary.micro_batches,
        "flops": summary.flops as f64,
        "model_flops": summary.model_flops as f64,
        "recompute": summary.recompute.to_string(),
        "bubble": summary.bubble,
        "fits": room.is_known().then_some(room.too_large.is_empty()),
        "groups": groups.collect::<Vec<_>>(),
        "placement": placement,
        "stages": stages.map(|(one, capacity)| stage(one, *capacity)).collect::<Vec<_>>(),
    });
    format!("{value:#}\n")
}

fn lies(lies: &GroupLocation) -> Value {
    let along = lies.extent.along.iter().map(|along| {
        json!({
            "dimension": along.dimension,
            "name": along.name,
            "size": along.size,
            "members": along.members,
            "apart": along.apart,
        })
    });
    json!({
        "family": lies.family,
        "count": lies.groups,
        "regular": lies.extent.regular,
        "along": along.collect::<Vec<_>>(),
    })
}

fn stage(stage: &StageSummary, capacity: Option<u64>) -> Value {
    let memory = TensorClass::ALL.iter().zip(stage.memory);
    let memory: Map<_, _> = memory
        .map(|((_, class), bytes)| ((*class).to_owned(), bytes.into()))
        .collect();
    let communication = stage.communication.iter().map(|sum| {
        json!({
            "kind": sum.kind,
            "among": sum.family,
            "phase": sum.phase.map(|_| phase(sum.phase)),
            "calls": sum.calls,
            "bytes": sum.bytes as f64,
        })
    });
    json!({
        "layers": stage.layers,
        "parameters": stage.parameters,
        "nodes": stage.nodes,
        "flops": stage.flops as f64,
        "peak_bytes": stage.peak,
        "capacity_bytes": capacity,
        "fits": capacity.map(|capacity| stage.peak <= capacity),
        "bytes_at_peak": memory,
        "stored_passes": stage.stored.0,
        "bytes_of_a_pass": stage.stored.1,
        "communication": communication.collect::<Vec<_>>(),
    })
}
