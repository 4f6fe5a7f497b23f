//! Sub-layers on chips: the sub-layer of each chip in each step, the location of its data, and the time of a step.
//!
//! Chip schedules follow Agrawal and Xu, "DEAP: Design Space Exploration for DNN Accelerator Parallelism" (2023). A
//! model is a list of sub-layers with dependencies ([`TaskGraph`]), and a schedule gives each chip one sub-layer in
//! each step ([`ChipSchedule`]). [`ChipMachine::steps`] tracks the data on each chip to find the sources of each step's
//! data, and computes time and energy of steps with a barrier around each stage. For chips without barriers, replay the
//! traces that [`ScheduledJob`] writes.

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

/// A part of a layer that one accelerator computes in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubLayer {
    /// Name in traces.
    pub name: String,
    /// Type and sizes of the computation.
    pub record: LayerRecord,
    /// Indices of the sub-layers whose outputs are inputs of this sub-layer. All indices are
    /// smaller than its own index.
    pub after: Vec<u32>,
    /// Index of the piece of each of these outputs that is an input, or `None` for the whole
    /// outputs.
    pub piece: Option<u32>,
    /// Number of pieces into which the output is divided for its consumers.
    pub pieces: u32,
    /// Index of the weights: sub-layers with equal indices share weights. `None` without weights.
    pub weights: Option<u32>,
    /// Index of the part of the model's input that the sub-layer reads: sub-layers with equal
    /// indices read the same part. `None` if the sub-layer reads only outputs.
    pub input: Option<u32>,
}

/// Sub-layers in the order in which a scheduler considers them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskGraph {
    /// The sub-layers.
    pub tasks: Vec<SubLayer>,
}

/// Sub-layer of each accelerator in each step, or `None` for an idle accelerator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChipSchedule {
    /// Accelerators, consecutive for each chip, with an entry for each step.
    pub chips: Vec<Vec<Option<u32>>>,
}

impl ChipSchedule {
    /// Returns the number of steps.
    pub fn steps(&self) -> usize {
        self.chips.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Returns the sub-layer of an accelerator in `step`.
    pub fn at(&self, accelerator: usize, step: usize) -> Option<u32> {
        self.chips.get(accelerator)?.get(step).copied().flatten()
    }

    /// Returns the sub-layers of `chip` in `step`, with the given number of accelerators per chip.
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
