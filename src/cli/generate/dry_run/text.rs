//! Renders the plan of a dry run as text.

use super::group_locations::{GroupExtentInOneDimension, SameExtentGroups};
use super::memory_fit::AllStagesMemoryFit;
use super::{DryRunReport, phase_name};
use chakram_base::units::{Bytes, format_percent};
use chakram_report::summary::{format_count_with_noun, format_thousands};
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::{TextStyleWidthAndDetail, write_paragraph};
use chakram_workloads::generate::training::{PerRankStageTotals, PlanSummary};
use std::fmt::{Display, Result, Write};

/// Maximum number of lines about stages that do not fit. The JSON document has no such limit.
const STAGES: usize = 8;

/// Maximum width of a stage's list of layers, in columns.
const LAYERS: usize = 46;

/// Renders the plan as text.
pub fn render_text(dry: &DryRunReport<'_>, style: TextStyleWidthAndDetail) -> String {
    let mut out = String::new();
    write_text(&mut out, dry, style).expect("a string grows as needed");
    out
}

fn write_text(out: &mut String, dry: &DryRunReport<'_>, style: TextStyleWidthAndDetail) -> Result {
    write_head(out, dry)?;
    if let Some(stack) = dry.stack {
        writeln!(out, "stack     {}", stack.to_line())?;
    }
    write_groups(out, dry.summary, style)?;
    if let Some((machine, lies)) = &dry.on {
        write_group_locations(out, machine, lies, style)?;
    }
    write_stages(out, &dry.summary.stages, style)?;
    write_memory_excess(out, &dry.room, style)?;
    write_communication(out, &dry.summary.stages, style)
}

/// Returns the number of parameters; if some weights are frozen, also returns the number of trained parameters.
fn format_all_and_trained_parameters(summary: &PlanSummary) -> String {
    let [all, trained] = [summary.parameters, summary.trained_parameters].map(format_thousands);
    match summary.trained_parameters == summary.parameters {
        true => format!("{all} parameters"),
        false => format!("{all} parameters, {trained} trained"),
    }
}

fn write_head(out: &mut String, dry: &DryRunReport<'_>) -> Result {
    let DryRunReport {
        name,
        summary,
        room,
        ..
    } = dry;
    let stages = &summary.stages;
    writeln!(
        out,
        "{name}: {}, {}",
        format_count_with_noun(summary.ranks.into(), "rank"),
        format_all_and_trained_parameters(summary)
    )?;
    writeln!(
        out,
        "FLOPS     {:.4e} per step, {:.4} x the model FLOPs of {:.4e}{}",
        summary.flops as f64,
        summary.flops as f64 / summary.model_flops.max(1) as f64,
        summary.model_flops as f64,
        match summary.attention {
            Some(counted) => format!(" ({} attention)", counted.stable_name()),
            None => String::new(),
        }
    )?;
    writeln!(
        out,
        "BUBBLE    {}, {} on {}",
        match summary.bubble {
            Some(bubble) => format!(
                "{} of the work of a stage (its wait for other stages)",
                format_percent(bubble)
            ),
            None => "unknown, because there is no formula for this order of passes".to_owned(),
        },
        format_count_with_noun(summary.micro_batches.into(), "micro-batch"),
        format_count_with_noun(stages.len() as u64, "stage")
    )?;
    let modules = summary.recompute_modules;
    match modules.is_empty() {
        true => writeln!(out, "RECOMPUTE {}", summary.recompute)?,
        false => writeln!(out, "RECOMPUTE {}, and {modules}", summary.recompute)?,
    }
    let Some(fullest) = room.fullest else {
        return Ok(());
    };
    if !room.too_large.is_empty() {
        return writeln!(
            out,
            "OUT OF MEMORY  {} of {} more than the NPU's capacity",
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
        "MEMORY    fits: {peak} of {capacity} on stage {fullest}, the fullest"
    )
}

fn write_groups(out: &mut String, summary: &PlanSummary, style: TextStyleWidthAndDetail) -> Result {
    if summary.groups.is_empty() {
        return Ok(());
    }
    let table = TextTable::new([
        left_aligned_column("GROUPS", 14),
        right_aligned_column("COUNT", 8),
        right_aligned_column("MEMBERS", 9),
        left_aligned_column("FIRST GROUP", 0).with_gap_before(3),
    ]);
    table.write_heading(out, style)?;
    for groups in &summary.groups {
        let members = &groups.all[0];
        let shown: Vec<_> = members.iter().take(8).map(u32::to_string).collect();
        let more = if members.len() > 8 { ", …" } else { "" };
        let count = format_thousands(groups.all.len() as u64);
        let shown = shown.join(", ") + more;
        table.write_row(out, &[&groups.family, &count, &members.len(), &shown])?;
    }
    Ok(())
}

fn write_group_locations(
    out: &mut String,
    machine: &str,
    lies: &[SameExtentGroups],
    style: TextStyleWidthAndDetail,
) -> Result {
    if lies.is_empty() {
        return Ok(());
    }
    let members = format!("MEMBERS BY DIMENSION OF {machine}, INNERMOST FIRST");
    let table = TextTable::new([
        left_aligned_column("PLACEMENT", 14),
        right_aligned_column("COUNT", 8),
        left_aligned_column(&members, 0).with_gap_before(3),
    ]);
    table.write_heading(out, style)?;
    for lies in lies {
        let along: Vec<_> = lies
            .extent
            .along
            .iter()
            .map(format_group_members_along_dimension)
            .collect();
        let uneven = if lies.extent.regular {
            ""
        } else {
            "; irregular: one ring over all members"
        };
        let count = format_thousands(lies.groups.into());
        let hops = lies.neighbours.map_or(String::new(), |hops| {
            let (mean, most) = (hops.mean_hops(), hops.most);
            let crossing = match hops.between_dies {
                0 => String::new(),
                dies => format!(", {dies} of {} ways to another die", hops.ways),
            };
            format!("; {mean:.2} links to the next member, at most {most}{crossing}")
        });
        // On a machine of tiles, every group is a single ring, so no group is uneven.
        let uneven = if lies.neighbours.is_some() {
            ""
        } else {
            uneven
        };
        let along = along.join(" x ") + uneven + &hops;
        table.write_row(out, &[&lies.family, &count, &along])?;
    }
    writeln!(
        out,
        "  members of the NPUs in a dimension; stride: distance of neighbouring members, where it is not 1"
    )
}

/// Formats a group's members along a dimension: `2 of 8 nvlink, stride 4`.
fn format_group_members_along_dimension(along: &GroupExtentInOneDimension) -> String {
    let apart = match along.apart {
        Some(1) => String::new(),
        Some(apart) => format!(", stride {apart}"),
        None => ", irregular stride".to_owned(),
    };
    format!("{} of {} {}{apart}", along.members, along.size, along.name)
}

fn write_stages(
    out: &mut String,
    stages: &[PerRankStageTotals],
    style: TextStyleWidthAndDetail,
) -> Result {
    let table = TextTable::new([
        left_aligned_column("STAGES", 9),
        right_aligned_column("PARAMETERS", 17),
        right_aligned_column("FLOPS", 12),
        right_aligned_column("NODES", 12),
        left_aligned_column("LAYERS", 0).with_gap_before(3),
    ]);
    table.write_heading(out, style)?;
    for (i, stage) in stages.iter().enumerate() {
        let layers = stage.layers.iter().map(|[first, last]| {
            if first == last {
                first.clone()
            } else {
                format!("{first}…{last}")
            }
        });
        let (parameters, nodes) = (
            format_thousands(stage.parameters),
            format_thousands(stage.nodes),
        );
        let flops = format!("{:.3e}", stage.flops as f64);
        let layers = style.clip_to_width(&layers.collect::<Vec<_>>().join(", "), LAYERS);
        table.write_row(out, &[&i, &parameters, &flops, &nodes, &layers])?;
    }
    writeln!(out, "  per rank")?;
    let table = TextTable::new([
        left_aligned_column("PEAK MEMORY", 13),
        right_aligned_column("PEAK", 12),
        right_aligned_column("WEIGHTS", 12),
        right_aligned_column("GRADIENTS", 12),
        right_aligned_column("OPTIMIZER", 12),
        right_aligned_column("ACTIVATIONS", 13),
        right_aligned_column("TEMPORARY", 12),
    ]);
    table.write_heading(out, style)?;
    for (i, stage) in stages.iter().enumerate() {
        let (stage_name_returning_batch_full, peak) = (format!("stage {i}"), Bytes(stage.peak));
        let memory = stage.memory.map(Bytes);
        let mut cells: Vec<&dyn Display> = vec![&stage_name_returning_batch_full, &peak];
        cells.extend(memory.iter().map(|bytes| bytes as &dyn Display));
        table.write_row(out, &cells)?;
    }
    let offloaded = stages.iter().map(|stage| stage.remote).max();
    if let Some(bytes) = offloaded.filter(|bytes| *bytes > 0) {
        writeln!(
            out,
            "  offloaded: at most {} of a rank in remote memory",
            Bytes(bytes)
        )?;
    }
    writeln!(
        out,
        "  per rank, at the peak if nodes run in the order of their ids: a replay's peak can differ"
    )
}

fn write_memory_excess(
    out: &mut String,
    room: &AllStagesMemoryFit,
    style: TextStyleWidthAndDetail,
) -> Result {
    if room.too_large.is_empty() {
        return Ok(());
    }
    for (_, text) in room.too_large.iter().take(STAGES) {
        write_paragraph(out, text, "  ! ", 4, style.warning)?;
    }
    if room.too_large.len() > STAGES {
        writeln!(out, "  ! … {} more", room.too_large.len() - STAGES)?;
    }
    write_paragraph(
        out,
        &format!("try: {}", room.hint),
        "    ",
        6,
        style.warning,
    )
}

fn write_communication(
    out: &mut String,
    stages: &[PerRankStageTotals],
    style: TextStyleWidthAndDetail,
) -> Result {
    if stages.iter().all(|stage| stage.communication.is_empty()) {
        return Ok(());
    }
    let table = TextTable::new([
        left_aligned_column("COMMUNICATION", 14),
        left_aligned_column("", 15),
        left_aligned_column("PHASE", 14),
        right_aligned_column("GROUP", 12),
        right_aligned_column("CALLS", 10),
        right_aligned_column("BYTES", 12),
        right_aligned_column("MEAN", 12),
    ]);
    table.write_heading(out, style)?;
    let mut first = 0;
    // Consecutive stages with equal communication share a line.
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
                &phase_name(sum.phase),
                &sum.family,
                &format_thousands(sum.calls),
                &saturating_bytes(sum.bytes),
                &saturating_bytes(sum.bytes / u128::from(sum.calls.max(1))),
            ];
            table.write_row(out, &cells)?;
        }
    }
    writeln!(out, "  per rank; bytes of whole buffers")
}

fn saturating_bytes(bytes: u128) -> Bytes {
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}
