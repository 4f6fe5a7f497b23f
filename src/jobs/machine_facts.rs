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
        sram: classes.iter().map(|class| class.memory.capacity.0).min(),
        remote: machine.remote().map(|memory| memory.capacity.0),
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

/// Returns the bytes that the NPU with the least memory has in all its memories.
pub fn least_memory(machine: &Machine) -> Option<u64> {
    let classes = 0..machine.classes().len();
    classes.map(|class| machine.npu_memory(class).0).min()
}
