//! `chakram generate MODEL --dry-run`: what a plan comes to, as text and as JSON.

use crate::generate::training::{Stage, Summary};
use crate::report::summary::thousands;
use crate::trace::{Phase, TensorClass};
use crate::units::Bytes;
use serde_json::{Value, json};
use std::fmt::Write;

const CLASSES: [&str; TensorClass::COUNT] = [
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "temporary",
];

fn phase(phase: Option<Phase>) -> &'static str {
    match phase {
        Some(Phase::Forward) => "forward",
        Some(Phase::Backward) => "backward",
        Some(Phase::Recompute) => "recompute",
        Some(Phase::Synchronize) => "synchronize",
        Some(Phase::Optimizer) => "optimizer",
        None => "",
    }
}

fn size(bytes: u128) -> String {
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX)).to_string()
}

/// The plan for people.
pub fn text(name: &str, summary: &Summary) -> String {
    let mut out = String::new();
    let stages = &summary.stages;
    let mut line = |text: String| writeln!(out, "{text}").expect("a string grows as needed");
    line(format!(
        "{name}: {} ranks, {} parameters",
        thousands(summary.ranks.into()),
        thousands(summary.parameters)
    ));
    line(format!(
        "FLOPS     {:.4e} of a job, {:.4} x the model's {:.4e}",
        summary.flops as f64,
        summary.flops as f64 / summary.model_flops.max(1) as f64,
        summary.model_flops as f64
    ));
    line(format!(
        "BUBBLE    {:.1} % of a stage's work, {} micro-batches on {} stages",
        100.0 * summary.bubble,
        thousands(summary.micro_batches.into()),
        stages.len()
    ));
    line(format!("RECOMPUTE {}", summary.recompute));
    line(String::new());
    line(format!(
        "{:<14}{:>8}{:>9}   MEMBERS OF THE FIRST",
        "GROUPS", "COUNT", "MEMBERS"
    ));
    for group in &summary.groups {
        let shown: Vec<_> = group.members.iter().take(8).map(u32::to_string).collect();
        let more = if group.members.len() > 8 { ", …" } else { "" };
        line(format!(
            "  {:<12}{:>8}{:>9}   {}{more}",
            group.family,
            group.count,
            group.members.len(),
            shown.join(", ")
        ));
    }
    line(String::new());
    line(format!(
        "{:<7}{:>16}{:>12}{:>10}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}   LAYERS",
        "STAGES",
        "PARAMETERS",
        "FLOPS",
        "NODES",
        "PEAK",
        "WEIGHTS",
        "GRADIENTS",
        "OPTIMIZER",
        "ACTIVATED",
        "TEMPORARY"
    ));
    for (i, stage) in stages.iter().enumerate() {
        let layers = stage
            .layers
            .iter()
            .map(|[first, last]| match first == last {
                true => first.clone(),
                false => format!("{first}…{last}"),
            });
        let memory: Vec<_> = stage
            .memory
            .iter()
            .map(|bytes| format!("{:>11}", size((*bytes).into())))
            .collect();
        line(format!(
            "  {:<5}{:>16}{:>12.3e}{:>10}{:>11}{}   {}",
            i,
            thousands(stage.parameters),
            stage.flops as f64,
            thousands(stage.nodes),
            size(stage.peak.into()),
            memory.concat(),
            layers.collect::<Vec<_>>().join(", ")
        ));
    }
    line(
        "  of one rank; memory when most of it is used, nodes running in the order of their ids"
            .to_owned(),
    );
    line(String::new());
    line(format!(
        "{:<28}{:<14}{:>12}{:>10}{:>12}{:>12}",
        "COMMUNICATION", "PHASE", "AMONG", "CALLS", "BYTES", "MEAN"
    ));
    for (i, stage) in stages.iter().enumerate() {
        // Stages that do the same are told of once.
        if i > 0 && stages[i - 1].communication == stage.communication {
            continue;
        }
        let last = stages[i..]
            .iter()
            .take_while(|other| other.communication == stage.communication)
            .count()
            + i
            - 1;
        let which = if last > i {
            format!("stages {i}-{last}")
        } else {
            format!("stage {i}")
        };
        for sum in &stage.communication {
            line(format!(
                "  {:<12}{:<14}{:<14}{:>12}{:>10}{:>12}{:>12}",
                which,
                sum.kind,
                phase(sum.phase),
                sum.family,
                thousands(sum.calls),
                size(sum.bytes),
                size(sum.bytes / u128::from(sum.calls.max(1)))
            ));
        }
    }
    line("  of one rank; bytes of whole buffers".to_owned());
    out
}

fn stage(stage: &Stage) -> Value {
    let memory = CLASSES.iter().zip(stage.memory);
    let memory: serde_json::Map<_, _> = memory
        .map(|(class, bytes)| ((*class).to_owned(), bytes.into()))
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
        "bytes_at_peak": memory,
        "stored_passes": stage.stored.0,
        "bytes_of_a_pass": stage.stored.1,
        "communication": communication.collect::<Vec<_>>(),
    })
}

/// The plan for programs.
pub fn json(name: &str, summary: &Summary) -> String {
    let groups = summary.groups.iter().map(|group| {
        json!({
            "family": group.family,
            "count": group.count,
            "members_of_first": group.members,
        })
    });
    let value = json!({
        "schema": "chakram.plan.1",
        "tool_version": env!("CARGO_PKG_VERSION"),
        "name": name,
        "ranks": summary.ranks,
        "parameters": summary.parameters,
        "micro_batches": summary.micro_batches,
        "flops": summary.flops as f64,
        "model_flops": summary.model_flops as f64,
        "recompute": summary.recompute.to_string(),
        "bubble": summary.bubble,
        "groups": groups.collect::<Vec<_>>(),
        "stages": summary.stages.iter().map(stage).collect::<Vec<_>>(),
    });
    format!("{value:#}\n")
}
