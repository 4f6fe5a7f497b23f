//! A plan for people.

use super::group_locations::{DimensionMembers, GroupLocation};
use super::memory_fit::StageMemory;
use super::{DryRunReport, phase};
use crate::generate::training::{PlanSummary, StageSummary};
use crate::report::summary::thousands;
use crate::report::table::{TextTable, left, right};
use crate::report::text::TextStyle;
use crate::units::Bytes;
use std::fmt::{Display, Result, Write};

/// Lines on what does not fit; JSON has all.
const STAGES: usize = 8;

/// The plan for people.
pub fn render(dry: &DryRunReport<'_>) -> String {
    let mut out = String::new();
    write(&mut out, dry).expect("a string grows as needed");
    out
}

fn write(out: &mut String, dry: &DryRunReport<'_>) -> Result {
    head(out, dry)?;
    groups(out, dry.summary)?;
    if let Some((machine, lies)) = &dry.on {
        placed(out, machine, lies)?;
    }
    stages(out, &dry.summary.stages)?;
    too_large(out, &dry.room)?;
    communication(out, &dry.summary.stages)
}

fn head(out: &mut String, dry: &DryRunReport<'_>) -> Result {
    let DryRunReport {
        name,
        summary,
        room,
        ..
    } = dry;
    let stages = &summary.stages;
    writeln!(
        out,
        "{name}: {}, {} parameters",
        counted(summary.ranks.into(), "rank"),
        thousands(summary.parameters)
    )?;
    writeln!(
        out,
        "FLOPS     {:.4e} of a job, {:.4} x the model's {:.4e}",
        summary.flops as f64,
        summary.flops as f64 / summary.model_flops.max(1) as f64,
        summary.model_flops as f64
    )?;
    writeln!(
        out,
        "BUBBLE    {:.1} % of a stage's work, {} on {}",
        100.0 * summary.bubble,
        counted(summary.micro_batches.into(), "micro-batch"),
        counted(stages.len() as u64, "stage")
    )?;
    writeln!(out, "RECOMPUTE {}", summary.recompute)?;
    let Some(fullest) = room.fullest else {
        return Ok(());
    };
    if !room.too_large.is_empty() {
        return writeln!(
            out,
            "DOES NOT FIT  {} of {} more memory than an NPU has",
            room.too_large.len(),
            match stages.len() {
                1 => "1 stage needs".to_owned(),
                n => format!("{n} stages need"),
            }
        );
    }
    let capacity = Bytes(room.capacities[fullest].unwrap_or(u64::MAX));
    let peak = Bytes(stages[fullest].peak);
    writeln!(
        out,
        "FITS      {peak} of {capacity} on stage {fullest}, the fullest"
    )
}

fn groups(out: &mut String, summary: &PlanSummary) -> Result {
    if summary.groups.is_empty() {
        return Ok(());
    }
    let table = TextTable::new([
        left("GROUPS", 14),
        right("COUNT", 8),
        right("MEMBERS", 9),
        left("MEMBERS OF THE FIRST", 0).after(3),
    ]);
    table.heading(out, TextStyle::default())?;
    for groups in &summary.groups {
        let members = &groups.all[0];
        let shown: Vec<_> = members.iter().take(8).map(u32::to_string).collect();
        let more = if members.len() > 8 { ", …" } else { "" };
        let count = thousands(groups.all.len() as u64);
        let shown = shown.join(", ") + more;
        table.row(out, &[&groups.family, &count, &members.len(), &shown])?;
    }
    Ok(())
}

fn placed(out: &mut String, machine: &str, lies: &[GroupLocation]) -> Result {
    if lies.is_empty() {
        return Ok(());
    }
    let members = format!("MEMBERS ALONG DIMENSIONS OF {machine}, INNERMOST FIRST");
    let table = TextTable::new([
        left("PLACEMENT", 14),
        right("COUNT", 8),
        left(&members, 0).after(3),
    ]);
    table.heading(out, TextStyle::default())?;
    for lies in lies {
        let along: Vec<_> = lies.extent.along.iter().map(along).collect();
        let uneven = if lies.extent.regular {
            ""
        } else {
            "; no grid: one line over all members"
        };
        let count = thousands(lies.groups.into());
        let along = along.join(" x ") + uneven;
        table.row(out, &[&lies.family, &count, &along])?;
    }
    writeln!(
        out,
        "  of all NPUs along a dimension; apart: how far neighbours are, where it is not 1"
    )
}

/// `2 of 8 nvlink, 4 apart`.
fn along(along: &DimensionMembers) -> String {
    let apart = match along.apart {
        Some(1) => String::new(),
        Some(apart) => format!(", {apart} apart"),
        None => ", unevenly apart".to_owned(),
    };
    format!("{} of {} {}{apart}", along.members, along.size, along.name)
}

fn stages(out: &mut String, stages: &[StageSummary]) -> Result {
    let table = TextTable::new([
        left("STAGES", 7),
        right("PARAMETERS", 16),
        right("FLOPS", 12),
        right("NODES", 10),
        right("PEAK", 11),
        right("WEIGHTS", 11),
        right("GRADIENTS", 11),
        right("OPTIMIZER", 11),
        right("ACTIVATED", 11),
        right("TEMPORARY", 11),
        left("LAYERS", 0).after(3),
    ]);
    table.heading(out, TextStyle::default())?;
    for (i, stage) in stages.iter().enumerate() {
        let layers = stage.layers.iter().map(|[first, last]| {
            if first == last {
                first.clone()
            } else {
                format!("{first}…{last}")
            }
        });
        let memory = stage.memory.map(Bytes);
        let (parameters, nodes) = (thousands(stage.parameters), thousands(stage.nodes));
        let (flops, peak) = (format!("{:.3e}", stage.flops as f64), Bytes(stage.peak));
        let layers = layers.collect::<Vec<_>>().join(", ");
        let mut cells: Vec<&dyn Display> = vec![&i, &parameters, &flops, &nodes, &peak];
        cells.extend(memory.iter().map(|bytes| bytes as &dyn Display));
        cells.push(&layers);
        table.row(out, &cells)?;
    }
    writeln!(
        out,
        "  of one rank; memory when most of it is used if nodes run in the order of their ids: a replay's peak \
         can differ"
    )
}

fn too_large(out: &mut String, room: &StageMemory) -> Result {
    for (_, text) in room.too_large.iter().take(STAGES) {
        writeln!(out, "  ! DOES NOT FIT: {text}")?;
    }
    if room.too_large.len() > STAGES {
        writeln!(out, "  ! … {} more", room.too_large.len() - STAGES)?;
    }
    if room.too_large.is_empty() {
        Ok(())
    } else {
        writeln!(out, "    try: {}", room.hint)
    }
}

fn communication(out: &mut String, stages: &[StageSummary]) -> Result {
    if stages.iter().all(|stage| stage.communication.is_empty()) {
        return Ok(());
    }
    let table = TextTable::new([
        left("COMMUNICATION", 14),
        left("", 15),
        left("PHASE", 14),
        right("AMONG", 12),
        right("CALLS", 10),
        right("BYTES", 12),
        right("MEAN", 12),
    ]);
    table.heading(out, TextStyle::default())?;
    let mut first = 0;
    // Stages that do the same are told of once.
    for alike in stages.chunk_by(|a, b| a.communication == b.communication) {
        let last = first + alike.len() - 1;
        let which = if last > first {
            format!("stages {first}-{last}")
        } else {
            format!("stage {first}")
        };
        first = last + 1;
        for sum in &alike[0].communication {
            let cells: [&dyn Display; 7] = [
                &which,
                &sum.kind,
                &phase(sum.phase),
                &sum.family,
                &thousands(sum.calls),
                &size(sum.bytes),
                &size(sum.bytes / u128::from(sum.calls.max(1))),
            ];
            table.row(out, &cells)?;
        }
    }
    writeln!(out, "  of one rank; bytes of whole buffers")
}

fn size(bytes: u128) -> Bytes {
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// `1 stage`, `2 stages`.
fn counted(count: u64, one: &str) -> String {
    let ending = match (count, one.ends_with("ch")) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {one}{ending}", thousands(count))
}
