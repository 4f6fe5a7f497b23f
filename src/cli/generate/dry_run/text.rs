//! A plan for people.

use super::fit::Room;
use super::lies::{Along, Lies};
use super::{DryRun, phase};
use crate::generate::training::{Stage, Summary};
use crate::report::summary::thousands;
use crate::units::Bytes;
use std::fmt::{Result, Write};

/// Lines on what does not fit; JSON has all.
const STAGES: usize = 8;

/// The plan for people.
pub fn render(dry: &DryRun<'_>) -> String {
    let mut out = String::new();
    write(&mut out, dry).expect("a string grows as needed");
    out
}

fn write(out: &mut String, dry: &DryRun<'_>) -> Result {
    head(out, dry)?;
    groups(out, dry.summary)?;
    if let Some((machine, lies)) = &dry.on {
        placed(out, machine, lies)?;
    }
    stages(out, &dry.summary.stages)?;
    too_large(out, &dry.room)?;
    communication(out, &dry.summary.stages)
}

fn head(out: &mut String, dry: &DryRun<'_>) -> Result {
    let DryRun {
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

fn groups(out: &mut String, summary: &Summary) -> Result {
    if summary.groups.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{:<14}{:>8}{:>9}   MEMBERS OF THE FIRST",
        "GROUPS", "COUNT", "MEMBERS"
    )?;
    for groups in &summary.groups {
        let members = &groups.all[0];
        let shown: Vec<_> = members.iter().take(8).map(u32::to_string).collect();
        let more = if members.len() > 8 { ", …" } else { "" };
        writeln!(
            out,
            "  {:<12}{:>8}{:>9}   {}{more}",
            groups.family,
            thousands(groups.all.len() as u64),
            members.len(),
            shown.join(", ")
        )?;
    }
    Ok(())
}

fn placed(out: &mut String, machine: &str, lies: &[Lies]) -> Result {
    if lies.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{:<14}{:>8}   MEMBERS ALONG DIMENSIONS OF {machine}, INNERMOST FIRST",
        "PLACEMENT", "COUNT"
    )?;
    for lies in lies {
        let along: Vec<_> = lies.extent.along.iter().map(along).collect();
        let uneven = match lies.extent.regular {
            true => "",
            false => "; no grid: one line over all members",
        };
        writeln!(
            out,
            "  {:<12}{:>8}   {}{uneven}",
            lies.family,
            thousands(lies.groups.into()),
            along.join(" x ")
        )?;
    }
    writeln!(
        out,
        "  of all NPUs along a dimension; apart: how far neighbours are, where it is not 1"
    )
}

/// `2 of 8 nvlink, 4 apart`.
fn along(along: &Along) -> String {
    let apart = match along.apart {
        Some(1) => String::new(),
        Some(apart) => format!(", {apart} apart"),
        None => ", unevenly apart".to_owned(),
    };
    format!("{} of {} {}{apart}", along.members, along.size, along.name)
}

fn stages(out: &mut String, stages: &[Stage]) -> Result {
    writeln!(
        out,
        "\n{:<7}{:>16}{:>12}{:>10}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}   LAYERS",
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
    )?;
    for (i, stage) in stages.iter().enumerate() {
        let layers = stage
            .layers
            .iter()
            .map(|[first, last]| match first == last {
                true => first.clone(),
                false => format!("{first}…{last}"),
            });
        write!(
            out,
            "  {:<5}{:>16}{:>12.3e}{:>10}{:>11}",
            i,
            thousands(stage.parameters),
            stage.flops as f64,
            thousands(stage.nodes),
            Bytes(stage.peak),
        )?;
        for bytes in stage.memory {
            write!(out, "{:>11}", Bytes(bytes))?;
        }
        writeln!(out, "   {}", layers.collect::<Vec<_>>().join(", "))?;
    }
    writeln!(
        out,
        "  of one rank; memory when most of it is used if nodes run in the order of their ids: a replay's peak \
         can differ"
    )
}

fn too_large(out: &mut String, room: &Room) -> Result {
    for (_, text) in room.too_large.iter().take(STAGES) {
        writeln!(out, "  ! DOES NOT FIT: {text}")?;
    }
    if room.too_large.len() > STAGES {
        writeln!(out, "  ! … {} more", room.too_large.len() - STAGES)?;
    }
    match room.too_large.is_empty() {
        true => Ok(()),
        false => writeln!(out, "    try: {}", room.hint),
    }
}

fn communication(out: &mut String, stages: &[Stage]) -> Result {
    if stages.iter().all(|stage| stage.communication.is_empty()) {
        return Ok(());
    }
    writeln!(
        out,
        "\n{:<29}{:<14}{:>12}{:>10}{:>12}{:>12}",
        "COMMUNICATION", "PHASE", "AMONG", "CALLS", "BYTES", "MEAN"
    )?;
    let mut first = 0;
    // Stages that do the same are told of once.
    for alike in stages.chunk_by(|a, b| a.communication == b.communication) {
        let last = first + alike.len() - 1;
        let which = match last > first {
            true => format!("stages {first}-{last}"),
            false => format!("stage {first}"),
        };
        first = last + 1;
        for sum in &alike[0].communication {
            writeln!(
                out,
                "  {which:<12}{:<15}{:<14}{:>12}{:>10}{:>12}{:>12}",
                sum.kind,
                phase(sum.phase),
                sum.family,
                thousands(sum.calls),
                size(sum.bytes),
                size(sum.bytes / u128::from(sum.calls.max(1)))
            )?;
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
