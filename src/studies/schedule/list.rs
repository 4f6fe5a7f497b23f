//! List scheduling: in each step, or whenever a chip is free, chips run the first ready sub-layers in the list.
//!
//! As printed, DEAP's Algorithm 1 gives a chip every ready sub-layer, because no line ends the inner loop. It also
//! never frees a chip. [`SubLayerChipAssignmentRule::Steps`] corrects both errors: a chip runs one sub-layer per step,
//! and the sub-layer counts as finished from the next step on. In [`SubLayerChipAssignmentRule::Durations`], a
//! sub-layer takes as much time as it has operations, and a free chip immediately begins its next sub-layer.
//! [`SubLayerChipAssignmentRule::Printed`] follows the printed text, and ends when no chip can be given another
//! sub-layer.

use super::{OrderedSubLayersOfModel, SubLayersByAcceleratorAndStep};
use chakram_base::setting::EnumeratedSetting;

/// Rule for assigning sub-layers to chips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubLayerChipAssignmentRule {
    /// In each step, every chip runs at most one sub-layer.
    Steps,
    /// A chip begins its next sub-layer as soon as it is free. Steps then only state the order on each chip. Where a
    /// sub-layer waits for another chip, its chip has an empty step.
    Durations,
    /// DEAP's Algorithm 1 as printed.
    Printed,
}

impl EnumeratedSetting for SubLayerChipAssignmentRule {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Steps, "steps", "One sub-layer per chip in each step"),
        (
            Self::Durations,
            "durations",
            "As soon as a chip is free; a sub-layer takes as long as its number of operations",
        ),
        (Self::Printed, "printed", "DEAP's Algorithm 1 as printed"),
    ];
}

/// Reason why a schedule cannot be completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubLayerChipAssignmentError {
    /// The number of chips is zero.
    #[error("found no chips, expected one or more")]
    NoChips,
    /// DEAP's Algorithm 1, as printed, is stuck: it can assign no further sub-layer.
    #[error(
        "Algorithm 1 as printed assigned {given} of {all} sub-layers to chips and never frees a chip for the \
         others\n  try: the corrected form"
    )]
    Stuck {
        /// Number of sub-layers that were assigned.
        given: usize,
        /// Number of sub-layers in the model.
        all: usize,
    },
}

/// Schedules the sub-layers of `graph` on `chips` chips.
///
/// # Errors
///
/// Fails if there are no chips, or if DEAP's Algorithm 1, as printed, gets stuck.
pub fn schedule_sub_layers_on_chips(
    graph: &OrderedSubLayersOfModel,
    chips: usize,
    rule: SubLayerChipAssignmentRule,
) -> Result<SubLayersByAcceleratorAndStep, SubLayerChipAssignmentError> {
    if chips == 0 {
        return Err(SubLayerChipAssignmentError::NoChips);
    }
    match rule {
        SubLayerChipAssignmentRule::Steps => Ok(assign_sub_layers_to_chips_by_step(graph, chips)),
        SubLayerChipAssignmentRule::Durations => Ok(schedule_by_durations(graph, chips).0),
        SubLayerChipAssignmentRule::Printed => schedule_as_printed(graph, chips),
    }
}

fn assign_sub_layers_to_chips_by_step(
    graph: &OrderedSubLayersOfModel,
    chips: usize,
) -> SubLayersByAcceleratorAndStep {
    let mut waiting = dependency_counts(graph);
    let followers = build_dependents(graph);
    // Ready sub-layers, sorted by index.
    let mut ready: std::collections::BTreeSet<u32> = (0..)
        .zip(&waiting)
        .filter(|(_, count)| **count == 0)
        .map(|(task, _)| task)
        .collect();
    let mut schedule = SubLayersByAcceleratorAndStep {
        chips: vec![Vec::new(); chips],
    };
    while !ready.is_empty() {
        let mut done = Vec::new();
        for of_chip in &mut schedule.chips {
            let task = ready.pop_first();
            of_chip.push(task);
            done.extend(task);
        }
        // A sub-layer counts as finished only from the next step on.
        for task in done {
            for &next in &followers[task as usize] {
                waiting[next as usize] -= 1;
                if waiting[next as usize] == 0 {
                    ready.insert(next);
                }
            }
        }
    }
    schedule
}

/// Returns the schedule and its total time, in operations.
pub(super) fn schedule_by_durations(
    graph: &OrderedSubLayersOfModel,
    chips: usize,
) -> (SubLayersByAcceleratorAndStep, u64) {
    let mut waiting = dependency_counts(graph);
    let followers = build_dependents(graph);
    let mut ready: std::collections::BTreeSet<u32> = (0..)
        .zip(&waiting)
        .filter(|(_, count)| **count == 0)
        .map(|(task, _)| task)
        .collect();
    // Running sub-layers are sorted by end time, and free chips by index.
    let mut running = std::collections::BTreeSet::new();
    let mut free: std::collections::BTreeSet<usize> = (0..chips).collect();
    let mut order: Vec<Vec<u32>> = vec![Vec::new(); chips];
    let (mut now, mut end) = (0_u64, 0);
    loop {
        while let (Some(&chip), Some(&task)) = (free.first(), ready.first()) {
            free.remove(&chip);
            ready.remove(&task);
            order[chip].push(task);
            let lasts = graph.tasks[task as usize].record.operation_count();
            end = end.max(now.saturating_add(lasts));
            running.insert((now.saturating_add(lasts), chip, task));
        }
        let Some(&(next, _, _)) = running.first() else {
            break;
        };
        now = next;
        while let Some(&(at, chip, task)) = running.first().filter(|(at, _, _)| *at == now) {
            running.remove(&(at, chip, task));
            free.insert(chip);
            for &next in &followers[task as usize] {
                waiting[next as usize] -= 1;
                if waiting[next as usize] == 0 {
                    ready.insert(next);
                }
            }
        }
    }
    (assign_steps_after_dependencies(graph, &order), end)
}

/// Assigns each sub-layer to a step after the steps of its dependencies and of all earlier sub-layers on its chip.
fn assign_steps_after_dependencies(
    graph: &OrderedSubLayersOfModel,
    order: &[Vec<u32>],
) -> SubLayersByAcceleratorAndStep {
    let mut chip_of = vec![0; graph.tasks.len()];
    let mut before: Vec<Option<u32>> = vec![None; graph.tasks.len()];
    for (chip, tasks) in order.iter().enumerate() {
        for pair in tasks.windows(2) {
            before[pair[1] as usize] = Some(pair[0]);
        }
        tasks.iter().for_each(|task| chip_of[*task as usize] = chip);
    }
    // Repeat until no step changes, because a sub-layer may come before its chip's previous sub-layer in the list.
    let mut step_of = vec![0_usize; graph.tasks.len()];
    loop {
        let mut moved = false;
        for (task, of) in graph.tasks.iter().enumerate() {
            let all = of.after.iter().copied().chain(before[task]);
            let least = all.map(|one| step_of[one as usize] + 1).max().unwrap_or(0);
            if step_of[task] < least {
                step_of[task] = least;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let steps = step_of.iter().max().map_or(0, |last| last + 1);
    let mut schedule = SubLayersByAcceleratorAndStep {
        chips: vec![vec![None; steps]; order.len()],
    };
    for (task, step) in step_of.into_iter().enumerate() {
        schedule.chips[chip_of[task]][step] = Some(task as u32);
    }
    schedule
}

/// Schedules by the printed algorithm, which gives sub-layers only to chips that have none. Such a chip gets all ready
/// sub-layers, and runs them one by one.
fn schedule_as_printed(
    graph: &OrderedSubLayersOfModel,
    chips: usize,
) -> Result<SubLayersByAcceleratorAndStep, SubLayerChipAssignmentError> {
    let all = graph.tasks.len();
    let mut finished = vec![false; all];
    let mut given = vec![false; all];
    let mut schedule = SubLayersByAcceleratorAndStep {
        chips: vec![Vec::new(); chips],
    };
    let mut taken = vec![false; chips];
    while finished.iter().any(|done| !done) {
        let mut moved = false;
        for (chip, of_chip) in schedule.chips.iter_mut().enumerate() {
            if !taken[chip] {
                for (task, of) in graph.tasks.iter().enumerate() {
                    let ready = of.after.iter().all(|one| finished[*one as usize]);
                    if !given[task] && ready {
                        given[task] = true;
                        taken[chip] = true;
                        moved = true;
                        of_chip.push(Some(task as u32));
                    }
                }
            }
            if of_chip.is_empty() {
                of_chip.push(None);
            }
        }
        // No line of DEAP's Algorithm 1 marks sub-layers as finished. This code counts all sub-layers of a round as
        // finished from the next round on.
        finished.clone_from(&given);
        if !moved {
            let given = given.iter().filter(|given| **given).count();
            return if given == all {
                Ok(schedule)
            } else {
                Err(SubLayerChipAssignmentError::Stuck { given, all })
            };
        }
    }
    Ok(schedule)
}

/// Returns how many dependencies each sub-layer has.
fn dependency_counts(graph: &OrderedSubLayersOfModel) -> Vec<usize> {
    graph.tasks.iter().map(|task| task.after.len()).collect()
}

/// Returns, for each sub-layer, the sub-layers that depend on it. A repeated dependency is listed repeatedly.
fn build_dependents(graph: &OrderedSubLayersOfModel) -> Vec<Vec<u32>> {
    let mut followers = vec![Vec::new(); graph.tasks.len()];
    for (task, of) in (0..).zip(&graph.tasks) {
        of.after
            .iter()
            .for_each(|one| followers[*one as usize].push(task));
    }
    followers
}
