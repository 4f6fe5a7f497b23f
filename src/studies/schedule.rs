//! Schedules sub-layers on chips. The result states which sub-layer each chip runs in each step, where the data are,
//! and how long each step takes.
//!
//! Chip schedules follow Agrawal and Xu, "DEAP: Design Space Exploration for DNN Accelerator Parallelism" (2023). A
//! model is a list of sub-layers with dependencies ([`OrderedSubLayersOfModel`]). A schedule assigns each chip one
//! sub-layer per step ([`SubLayersByAcceleratorAndStep`]). [`MultiChipMachine::simulate_steps`] tracks the data on each
//! chip to find where each step gets its data from. The simulation has a barrier after each stage. It also computes how
//! much time and energy each step takes. For chips without barriers, [`ScheduleWithCosts`] writes traces for a replay.

mod cycles;
mod family;
mod list;
mod literal;
mod partition;
mod record;
mod steps;
mod traces;

pub use cycles::LayerCyclesAndEnergyTable;
pub use family::{DeapLanguageModel, MatrixProductPartitionRule, ModelCutsAndMovedWords};
pub use list::{SubLayerChipAssignmentRule, schedule_sub_layers_on_chips};
pub use partition::MatrixCutDirection;
pub use record::{SubLayerShapeAndKind, format_schedule_file, parse_schedule};
pub use steps::{
    ChipDataId, ChipDataNeedOrEviction, MultiChipMachine, ScheduleRunError,
    StepCostsAndTransferLog, StepTimeAndEnergy, SubLayerTimeAndEnergy, TransferSource,
};
pub use traces::ScheduleWithCosts;

/// A part of a layer that one accelerator computes in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPartOfOneAccelerator {
    /// Name of the sub-layer's nodes in written traces.
    pub name: String,
    /// Type and sizes of the computation.
    pub record: SubLayerShapeAndKind,
    /// Indices of the sub-layers that provide the inputs. They are smaller than the sub-layer's own index.
    pub after: Vec<u32>,
    /// Index of the piece that the sub-layer reads from each of these outputs; `None` if it reads them whole.
    pub piece: Option<u32>,
    /// Number of pieces into which other sub-layers divide this sub-layer's output.
    pub pieces: u32,
    /// Index of the sub-layer's weights. Sub-layers with equal indices share them. `None` without weights.
    pub weights: Option<u32>,
    /// Index of the part that the sub-layer reads of the model's input. Sub-layers with equal indices read the same
    /// part. `None` if the sub-layer reads only outputs of other sub-layers.
    pub input: Option<u32>,
}

/// The sub-layers of a model, in the scheduler's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderedSubLayersOfModel {
    /// The sub-layers. Each comes after its dependencies.
    pub tasks: Vec<LayerPartOfOneAccelerator>,
}

/// The sub-layer that an accelerator runs in a step, for each accelerator and step; `None` if the
/// accelerator is idle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubLayersByAcceleratorAndStep {
    /// A list for each accelerator, with an entry per step. The accelerators of a chip are
    /// consecutive.
    pub chips: Vec<Vec<Option<u32>>>,
}

impl SubLayersByAcceleratorAndStep {
    /// Returns the number of steps, which is the same on all accelerators.
    pub fn step_count(&self) -> usize {
        self.chips.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Returns the sub-layer that an accelerator executes in `step`; `None` if it is idle.
    pub fn sub_layer_of_accelerator_at_step(&self, accelerator: usize, step: usize) -> Option<u32> {
        self.chips.get(accelerator)?.get(step).copied().flatten()
    }

    /// Returns the sub-layers that `chip` runs in `step`, for the given number of accelerators per chip.
    pub fn sub_layers_of_chip_at_step(
        &self,
        chip: usize,
        accelerators: usize,
        step: usize,
    ) -> impl Iterator<Item = (usize, u32)> {
        let all = 0..accelerators;
        all.filter_map(move |own| {
            Some((
                own,
                self.sub_layer_of_accelerator_at_step(chip * accelerators + own, step)?,
            ))
        })
    }
}

#[cfg(test)]
mod tests;
