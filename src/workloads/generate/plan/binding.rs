//! Binds a plan to a machine: fills the plan's open options with the machine's values, and checks that the machine has
//! the plan's cores and dimensions.

use super::{CorePlacement, ParallelismPlan, RecomputePolicy, ResidencyRule, TiledMachineCoreGrid};
use crate::generate::PatternOptionError;
use chakram_base::shared_memory::RemoteMemoryCapacityAndSharers;

/// Properties of a machine that plans depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanMachineProperties {
    /// Number of bytes that an NPU can store in all its memories (minimum over all NPUs).
    pub capacity: Option<u64>,
    /// Size in bytes of an NPU's own memory (minimum over all NPUs). Plans with a residency rule use it as SRAM.
    pub sram: Option<u64>,
    /// Maximum number of bytes per access to remote memory. Plans with a residency rule load from and store to this
    /// memory.
    pub remote: Option<u64>,
    /// Remote memory for offloaded state and, with a residency rule, for bytes that do not fit into SRAM.
    pub shared: Option<RemoteMemoryCapacityAndSharers>,
    /// Dimensions, innermost first, each with its name and its number of NPUs.
    pub dimensions: Vec<(String, u32)>,
    /// Grid of cores, if the machine consists of tiles.
    pub cores: Option<TiledMachineCoreGrid>,
}

impl ParallelismPlan {
    /// Sets options that the plan leaves open: capacity, SRAM, largest access, and the placement of
    /// ranks on dimensions or tiles.
    ///
    /// Returns the machine properties that the traces depend on: equal plans with equal properties
    /// generate equal traces.
    ///
    /// # Errors
    ///
    /// Fails if the plan places ranks on a dimension or core that the machine does not have.
    pub fn fill_open_options_from_machine(
        &mut self,
        machine: &PlanMachineProperties,
    ) -> Result<PlanMachineProperties, PatternOptionError> {
        let mut taken = PlanMachineProperties::default();
        if self.uses_remote_memory() || self.residency != ResidencyRule::None {
            self.shared_memory = machine.shared;
            if self.recompute == RecomputePolicy::AsNeeded {
                taken.shared = machine.shared;
            }
        }
        if self.residency != ResidencyRule::None {
            if self.sram.is_none() {
                self.sram = machine.sram;
                taken.sram = machine.sram;
            }
            if self.largest_access.is_none() {
                self.largest_access = machine.remote;
                taken.remote = machine.remote;
            }
        }
        if self.capacity.is_none() {
            self.capacity = machine.capacity;
            if self.recompute == RecomputePolicy::AsNeeded {
                taken.capacity = machine.capacity;
            }
        }
        if !self.place.is_empty() {
            let dimensions = machine.dimensions.iter();
            let dimensions: Vec<_> = dimensions.map(|(name, size)| (&name[..], *size)).collect();
            self.resolve_place_dimensions(&dimensions)?;
            taken.dimensions.clone_from(&machine.dimensions);
        }
        if self.tiles != CorePlacement::None {
            self.place_on_tiles(machine.cores.as_ref())?;
            taken.cores.clone_from(&machine.cores);
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::plan::PlanDraft;

    fn build_plan_from_options(words: &[(&str, &str)]) -> ParallelismPlan {
        let mut draft = PlanDraft::new(ParallelismPlan::new());
        for (key, value) in words {
            let mut options = crate::generate::plan::OPTIONS.iter();
            let option = options.find(|option| option.key == *key).unwrap();
            (option.set)(&mut draft, &[(*value).to_owned()]).unwrap();
        }
        draft.finish_plan().unwrap()
    }

    fn build_machine_properties() -> PlanMachineProperties {
        PlanMachineProperties {
            capacity: Some(80),
            sram: Some(8),
            remote: Some(1000),
            shared: None,
            dimensions: vec![("ring".to_owned(), 4), ("switch".to_owned(), 2)],
            cores: None,
        }
    }

    #[test]
    fn a_plan_keeps_what_it_states() {
        let mut stating = build_plan_from_options(&[("capacity", "40B")]);
        assert_eq!(
            stating
                .fill_open_options_from_machine(&build_machine_properties())
                .unwrap(),
            PlanMachineProperties::default()
        );
        assert_eq!((stating.capacity, stating.sram), (Some(40), None));
        let mut open = build_plan_from_options(&[]);
        // Traces depend on the capacity only if it decides which activations are recomputed.
        assert_eq!(
            open.fill_open_options_from_machine(&build_machine_properties())
                .unwrap(),
            PlanMachineProperties::default()
        );
        assert_eq!(open.capacity, Some(80));
        let mut needing = build_plan_from_options(&[]);
        needing.recompute = RecomputePolicy::AsNeeded;
        let taken = needing
            .fill_open_options_from_machine(&build_machine_properties())
            .unwrap();
        assert_eq!(taken.capacity, Some(80));
    }

    #[test]
    fn residency_takes_the_memories_of_the_machine() {
        let (_, word) = ResidencyRule::ALL
            .iter()
            .find(|(rule, _)| *rule != ResidencyRule::None)
            .unwrap();
        let mut open = build_plan_from_options(&[("residency", word)]);
        let taken = open
            .fill_open_options_from_machine(&build_machine_properties())
            .unwrap();
        assert_eq!((open.sram, open.largest_access), (Some(8), Some(1000)));
        assert_eq!((taken.sram, taken.remote), (Some(8), Some(1000)));
    }

    #[test]
    fn placed_cores_need_a_machine_of_tiles() {
        let mut tiled = build_plan_from_options(&[]);
        tiled.tiles = CorePlacement::Cores(vec![[0, 0]]);
        let error = tiled
            .fill_open_options_from_machine(&build_machine_properties())
            .unwrap_err()
            .to_string();
        assert!(error.contains("a machine of tiles"), "{error}");
    }
}
