//! Machines as data for plans.

use chakram_hardware::machine::Machine;
use chakram_workloads::generate::plan::{CoreGrid, MachineFacts};

/// Returns what plans depend on of `machine`.
pub fn machine_facts(machine: &Machine) -> MachineFacts {
    let classes = machine.classes();
    let topology = machine.topology();
    let dimensions = topology.dimensions().iter();
    MachineFacts {
        capacity: least_memory(machine),
        sram: least(classes.iter().map(|class| Some(class.memory?.capacity?.0))),
        remote: machine.remote().and_then(|memory| Some(memory.capacity?.0)),
        shared: machine.shared_memory(),
        dimensions: dimensions.map(|d| (d.name.to_string(), d.size)).collect(),
        cores: topology.tiles().map(|tiles| CoreGrid {
            dies: tiles.dies,
            cores: tiles.cores,
            faulty: (tiles.faulty_cores.iter())
                .map(|core| tiles.place(*core))
                .collect(),
        }),
    }
}

/// Returns the bytes that the NPU with the least memory has in all its memories; `None` if that of a class is unknown.
pub fn least_memory(machine: &Machine) -> Option<u64> {
    let classes = 0..machine.classes().len();
    least(classes.map(|class| Some(machine.npu_memory(class)?.0)))
}

/// The least of all, if all are known.
fn least(all: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    all.collect::<Option<Vec<_>>>()?.into_iter().min()
}
