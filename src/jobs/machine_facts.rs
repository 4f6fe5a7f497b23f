//! Extracts the machine properties that affect plans.

use chakram_hardware::machine::Machine;
use chakram_workloads::generate::plan::{PlanMachineProperties, TiledMachineCoreGrid};

/// Returns the properties of `machine` that affect plans.
pub fn machine_properties_for_plans(machine: &Machine) -> PlanMachineProperties {
    let classes = machine.npu_classes();
    let topology = machine.topology();
    let dimensions = topology.dimensions().iter();
    PlanMachineProperties {
        capacity: least_npu_memory(machine),
        sram: minimum_unless_any_unknown(
            classes.iter().map(|class| Some(class.memory?.capacity?.0)),
        ),
        remote: machine
            .unnamed_remote_memory()
            .and_then(|memory| Some(memory.capacity?.0)),
        shared: machine.remote_memory_beyond_npu_capacity(),
        dimensions: dimensions.map(|d| (d.name.to_string(), d.size)).collect(),
        cores: topology.tile_grid().map(|tiles| TiledMachineCoreGrid {
            dies: tiles.dies,
            cores: tiles.cores,
            faulty: (tiles.faulty_cores.iter())
                .map(|core| tiles.coordinates_of_core(*core))
                .collect(),
        }),
    }
}

/// Returns the smallest total memory of any NPU in bytes, or `None` if some class has unknown memory.
pub fn least_npu_memory(machine: &Machine) -> Option<u64> {
    let classes = 0..machine.npu_classes().len();
    minimum_unless_any_unknown(
        classes.map(|class| Some(machine.npu_memory_capacity_with_port_share(class)?.0)),
    )
}

/// Returns the minimum of `all`, or `None` if any of them is unknown.
fn minimum_unless_any_unknown(all: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    all.collect::<Option<Vec<_>>>()?.into_iter().min()
}
