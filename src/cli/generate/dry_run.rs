//! `chakram generate MODEL --dry-run`: shows the work, memory and placement of a plan as text and
//! as JSON.

mod group_locations;
mod json;
mod memory_fit;
mod text;

use super::training::RequestedTrainingRun;
use crate::output::{
    MemoryOverflowAction, ReplayAndReportArgs, ReportDestinationAndOutputs, ReportFormatArg,
};
use crate::terminal;
use chakram_base::ids::Npu;
use chakram_engine::place_ranks;
use chakram_hardware::machine::Machine;
use chakram_report::stack::SoftwareStackDecisionReport;
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::TrainingPhase;
use chakram_workloads::generate::ParallelismPlan;
use chakram_workloads::generate::plan::CorePlacement;
use chakram_workloads::generate::training::PlanSummary;
use group_locations::SameExtentGroups;
use memory_fit::AllStagesMemoryFit;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

/// Data that the text and the JSON document show.
struct DryRunReport<'r> {
    name: &'r str,
    summary: &'r PlanSummary,
    /// Name of the machine, and the locations of the plan's groups on it.
    on: Option<(&'r str, Vec<SameExtentGroups>)>,
    room: AllStagesMemoryFit,
    stack: Option<&'r SoftwareStackDecisionReport>,
}

fn phase_name(phase: Option<TrainingPhase>) -> &'static str {
    match phase {
        Some(TrainingPhase::Forward) => "forward",
        Some(TrainingPhase::Backward) => "backward",
        Some(TrainingPhase::Recompute) => "recompute",
        Some(TrainingPhase::Synchronize) => "synchronize",
        Some(TrainingPhase::Optimizer) => "optimizer",
        None => "",
    }
}

/// Returns the NPU of each rank; `None` unless the plan assigns cores and the machine has tiles.
fn npus_of_assigned_cores(plan: &ParallelismPlan, machine: &Machine) -> Option<Vec<Npu>> {
    match (&plan.tiles, machine.topology().tile_grid()) {
        (CorePlacement::Cores(cores), Some(tiles)) => {
            Some(cores.iter().map(|core| Npu(tiles.core_at(*core))).collect())
        }
        _ => None,
    }
}

/// Prints the work, memory and communication of the request `asked`. If there is a `machine`, also
/// prints the placement on it.
pub fn run(
    asked: RequestedTrainingRun,
    machine: Option<&Machine>,
    run: &ReplayAndReportArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    if machine.is_none() && run.rank_map().is_some() {
        return Err("--map is for a machine; add --machine MACHINE".into());
    }
    let plan = asked.training.plan.clone();
    let summary = asked.training.summarize_plan();
    let summary = summary.map_err(|error| asked.origin.locate_error_in_plan_file(error))?;
    let cores = machine.and_then(|machine| npus_of_assigned_cores(&plan, machine));
    let map = run.rank_map().or(cores.as_deref());
    let npus = machine.map(|machine| place_ranks(summary.ranks, machine, map));
    let npus = npus.transpose()?;
    let on = machine.zip(npus.as_deref());
    let room = AllStagesMemoryFit::new(&summary, &plan, asked.capacity, on);
    if run.fit == MemoryOverflowAction::Require && !room.is_any_capacity_known() {
        return Err("--fit require: the memory of an NPU is unknown\n  \
             try: --capacity 80GB, or --machine MACHINE"
            .into());
    }
    let dry = DryRunReport {
        name: &asked.name,
        summary: &summary,
        on: on.map(|(machine, npus)| {
            (
                machine.name(),
                group_locations::locate_groups(&summary, machine, npus),
            )
        }),
        room,
        stack: asked.stack.as_ref(),
    };
    let text = match run.format {
        ReportFormatArg::Text => {
            let to = ReportDestinationAndOutputs::create_on_standard_output(
                out,
                OutputsAndProtectedInputs::default(),
            );
            text::render_text(&dry, to.text_style())
        }
        ReportFormatArg::Json => json::render_json(&dry),
        ReportFormatArg::Csv => return Err("--dry-run prints text or json".into()),
    };
    out.write_all(text.as_bytes())?;
    match dry.room.describe_excess() {
        Some(text) if run.fit == MemoryOverflowAction::Require => {
            terminal::print_or_capture_stderr_line(format_args!("error: {text}"))?;
            Ok(ExitCode::from(3))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
