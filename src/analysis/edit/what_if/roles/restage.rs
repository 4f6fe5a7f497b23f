//! Changes the number of pipeline stages.
//!
//! Each new stage copies a captured stage of the same role. The role is first, last or middle stage; captured middle
//! stages are copied in turn. Each stage keeps its number of layers, so a pipeline with more stages has more layers.
//! Peers, groups and tags change as they do for added ranks. In addition, 1F1B passes are reordered for the new stage,
//! and the labels of layers are renumbered.

use super::super::layers::shift_layer_labels_of_all_nodes;
use super::{
    AbsentRankModelRule, AbsentRankWriter, CapturedAndAddedGroupNames, CapturedRank,
    PipelineStagePosition, RankTraces, StridedRankGrid, build_missing_stage_error,
    check_communication_matches, check_traces_fit_memory, derive_missing_ranks, share_equal_traces,
    tag_differences_between_stages,
};
use crate::edit::what_if::grammar::{JobEdit, PipelinePassOrder};
use crate::edit::what_if::program::EditableRankProgram;
use crate::edit::what_if::{
    MatchedAndChangedItemCounts, add_edit_to_trace_edit_list, refuse_edit, repeat,
};
use chakram_base::ids::MAX_NPUS;
use chakram_trace::format::TraceError;
use chakram_trace::format::groups::DeclaredGroups;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// In a pipeline with `stages` stages, the stage `stage` copies a captured stage. Returns the index of that stage among
/// the `captured` captured stages.
fn captured_stage_to_copy(stage: u32, stages: u32, captured: u32) -> u32 {
    match PipelineStagePosition::from_stage(stage, stages) {
        PipelineStagePosition::Only | PipelineStagePosition::First => 0,
        PipelineStagePosition::Last => captured - 1,
        PipelineStagePosition::Middle => 1 + (stage - 1) % (captured - 2).max(1),
    }
}

/// Changes the number of stages in a job's pipeline to `stages`.
pub(in super::super) fn change_stage_count(
    traces: RankTraces,
    groups: &DeclaredGroups,
    stages: u32,
    choice: AbsentRankModelRule,
    counts: &mut MatchedAndChangedItemCounts,
) -> Result<(RankTraces, DeclaredGroups), TraceError> {
    let mut completed = MatchedAndChangedItemCounts::default();
    let (traces, groups) = derive_missing_ranks(traces, groups, None, choice, &mut completed)?;
    counts.completed += completed.completed;
    if completed.changed > 0 {
        counts.notes.extend(completed.notes);
        counts.notes.insert(format!(
            "{} of {} ranks had no trace",
            completed.changed,
            traces.len()
        ));
    }
    let mut captured = Vec::with_capacity(traces.len());
    for (rank, trace) in &traces {
        captured.push(CapturedRank::from_trace(*rank, trace, &groups)?);
    }
    let grid = StridedRankGrid::derive_grid_from_captured_ranks(&captured, traces.len() as u32)?;
    let old = grid.stage_count();
    if old < 2 || stages < 2 {
        return Err(refuse_edit(
            format!(
                "pipeline={stages}: the job has {old} stages; without messages between stages the work of a stage is unknown"
            ),
            "a captured or generated pipeline with two stages or more",
        ));
    }
    if stages > 2 && old < 3 {
        return Err(build_missing_stage_error(PipelineStagePosition::Middle));
    }
    let target = grid.grid_with_stage_count(stages);
    let target = target.filter(|target| target.rank_count() <= MAX_NPUS);
    let target = target.ok_or_else(|| {
        refuse_edit(
            format!("pipeline={stages}: the job would have too many ranks"),
            "fewer stages",
        )
    })?;
    let ranks = target.rank_count();
    counts.matched += u64::from(ranks);
    if stages == old {
        return Ok((traces, groups));
    }
    check_traces_fit_memory(&traces, ranks, "traces", "fewer stages")?;
    // Use the last stage, because in other stages 1F1B and GPipe may give the same order.
    let last = (grid.rank_count() - 1) as usize;
    let order =
        repeat::micro_batches_and_warm_up(&EditableRankProgram::read_program(&traces[last].1)?);
    let reorders = match order {
        Some(Some((_, 1))) => true,
        Some(Some((micro_batches, warm_up))) if warm_up != micro_batches => {
            return Err(unknown_pass_order_error(stages));
        }
        Some(None) => return Err(unknown_pass_order_error(stages)),
        _ => false,
    };
    // Derive the tag differences from a middle stage, because only a middle stage exchanges messages with two
    // neighbours.
    let middle = captured
        .iter()
        .find(|one| one.place == PipelineStagePosition::Middle);
    let tags = match middle {
        Some(one) => tag_differences_between_stages(&grid, one.rank, &traces[one.rank as usize].1)?,
        None => [0; 2],
    };
    let labels = count_layer_labels_by_stage(&grid, &traces)?;
    let mut table = CapturedAndAddedGroupNames::new(&captured, &groups);
    let mut prepared: BTreeMap<(u32, u32), Arc<Vec<u8>>> = BTreeMap::new();
    let mut all = RankTraces::with_capacity(ranks as usize);
    for rank in 0..ranks {
        let stage = target.stage_of(rank);
        let of = captured_stage_to_copy(stage, stages, old);
        let model = grid.rank_at_stage_and_other_coordinates(of, &target, rank);
        counts.changed += u64::from(of != stage || model != rank);
        let trace = match prepared.get(&(model, stage)) {
            Some(trace) => Arc::clone(trace),
            None => {
                let mut program = EditableRankProgram::read_program(&traces[model as usize].1)?;
                if reorders {
                    let order = PipelinePassOrder::OneForwardOneBackward;
                    repeat::reorder_micro_batch_passes_of_rank(
                        &mut program,
                        order,
                        stages - stage,
                    )?;
                }
                let before = |stages: &mut dyn Iterator<Item = u32>| -> i64 {
                    stages.map(|stage| labels[stage as usize]).sum()
                };
                let new =
                    before(&mut (0..stage).map(|stage| captured_stage_to_copy(stage, stages, old)));
                shift_layer_labels_of_all_nodes(&mut program, new - before(&mut (0..of)));
                add_edit_to_trace_edit_list(&mut program, &JobEdit::Pipeline(stages));
                let trace = Arc::new(program.encode_as_trace()?);
                prepared.insert((model, stage), Arc::clone(&trace));
                trace
            }
        };
        let mut writer = AbsentRankWriter {
            grid: &grid,
            target: &target,
            table: &mut table,
            model: model as usize,
            from: model,
            to: rank,
            tag_steps: tags,
        };
        let written = writer.write_trace(&trace)?;
        all.push((rank, Arc::new(written)));
    }
    let mut declared = table.declared;
    declared.retain(|_, members| members.iter().all(|&member| member < ranks));
    check_communication_matches(&all, &declared, ranks)?;
    counts.notes.insert(
        "stages between the first and the last copy the captured middle stages in turn, with equally many layers each".to_owned(),
    );
    counts.notes.insert(
        "recorded transfers and kernels are from the captured stages; use the machine's network for the times of transfers".to_owned(),
    );
    share_equal_traces(&mut all);
    Ok((all, declared))
}

fn unknown_pass_order_error(stages: u32) -> TraceError {
    refuse_edit(
        format!("pipeline={stages}: the micro-batches are neither in GPipe nor in 1F1B order"),
        "edit a schedule with one stage per rank",
    )
}

/// Returns how many different layer labels the ranks of each stage have.
fn count_layer_labels_by_stage(
    grid: &StridedRankGrid,
    traces: &RankTraces,
) -> Result<Vec<i64>, TraceError> {
    let mut labels = vec![BTreeSet::new(); grid.stage_count() as usize];
    for (rank, trace) in traces {
        let own = &mut labels[grid.stage_of(*rank) as usize];
        if own.is_empty() {
            let program = EditableRankProgram::read_program(trace)?;
            own.extend(program.facts.iter().filter_map(|facts| facts.layer));
        }
    }
    Ok(labels.iter().map(|labels| labels.len() as i64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_do_as_captured_ones_of_their_role() {
        let models = |stages, captured| -> Vec<u32> {
            let all = 0..stages;
            all.map(|stage| captured_stage_to_copy(stage, stages, captured))
                .collect()
        };
        assert_eq!(models(6, 4), [0, 1, 2, 1, 2, 3]);
        assert_eq!(models(5, 3), [0, 1, 1, 1, 2]);
        assert_eq!(models(2, 4), [0, 3]);
        assert_eq!(models(2, 2), [0, 1]);
    }
}
