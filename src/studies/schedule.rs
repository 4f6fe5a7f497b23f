//! Sub-layers on chips: which chip does what in which step, where its data are, and what a step takes.
//!
//! After Agrawal and Xu, "DEAP: Design Space Exploration for DNN Accelerator Parallelism" (2023). A model is a list of
//! sub-layers with dependencies ([`TaskGraph`]), a schedule gives each chip one in each step ([`ChipSchedule`]), and
//! [`ChipMachine::steps`] finds out from a log of what each chip holds where the data of each step come from, and counts
//! time and energy of steps with a barrier around each stage. Chips without barriers are a replay of the traces that
//! [`ScheduledJob`] writes.

mod cycles;
mod family;
mod list;
mod literal;
mod partition;
mod record;
mod steps;
mod traces;

pub use cycles::CycleTable;
pub use family::{LanguageModel, PartitionRule, PartitionedModel};
pub use list::{ListRule, schedule};
pub use partition::CutAlong;
pub use record::{LayerRecord, parse_schedule, write_schedule};
pub use steps::{
    ChipMachine, DataName, DataPlace, StepCost, StepError, StepLog, StepTotals, TaskCost,
};
pub use traces::ScheduledJob;

/// A sub-layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubLayer {
    /// Its name.
    pub name: String,
    /// The computation.
    pub record: LayerRecord,
    /// Sub-layers whose outputs it takes, by index; all before it.
    pub after: Vec<u32>,
    /// The piece that it takes of each of these; all of them if not said.
    pub piece: Option<u32>,
    /// Pieces of its output that are taken one by one.
    pub pieces: u32,
    /// Number of its weights: sub-layers with equal numbers have the same. `None` of one that has none.
    pub weights: Option<u32>,
    /// Number of the part of the model's input that it takes: sub-layers with equal numbers take the same. `None` of one
    /// that takes outputs alone.
    pub input: Option<u32>,
}

/// Sub-layers in the order in which a scheduler looks at them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskGraph {
    /// The sub-layers.
    pub tasks: Vec<SubLayer>,
}

/// By accelerator and step the sub-layer that it does, if it does any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChipSchedule {
    /// Accelerators, those of a chip one after another, with a place for each step.
    pub chips: Vec<Vec<Option<u32>>>,
}

impl ChipSchedule {
    /// Number of steps.
    pub fn steps(&self) -> usize {
        self.chips.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Work of an accelerator in `step`.
    pub fn at(&self, accelerator: usize, step: usize) -> Option<u32> {
        self.chips.get(accelerator)?.get(step).copied().flatten()
    }

    /// Work of `chip` in `step`, if a chip has so many accelerators.
    pub fn of_chip(
        &self,
        chip: usize,
        accelerators: usize,
        step: usize,
    ) -> impl Iterator<Item = (usize, u32)> {
        let all = 0..accelerators;
        all.filter_map(move |own| Some((own, self.at(chip * accelerators + own, step)?)))
    }
}

#[cfg(test)]
mod tests;
