//! Creates loads from and stores to memory outside the NPU, and one-dimensional machines with
//! memories.

use super::lines::{TestTraceNode, build_node};
use chakram::machine::Machine;
use chakram::trace::{MemoryLocation, Op};

/// The dimension `d`: its shape, its bytes per second, its latency in ns, and its algorithm.
pub type DimensionParameters<'a> = (&'a str, u64, u64, &'a str);

/// Returns a machine of `npus` NPUs along one dimension. Each entry of `memories` is a table that gives the memory's
/// name and all its keys except the capacity.
pub fn build_memory_machine(
    npus: u32,
    dimension: DimensionParameters<'_>,
    memories: &[(&str, &str)],
) -> Machine {
    let tables = memories.iter();
    let tables: String = tables
        .map(|(table, keys)| format!("[{table}]\ncapacity = \"1 TB\"\n{keys}\n"))
        .collect();
    let (shape, rate, ns, algorithm) = dimension;
    let text = format!(
        r#"name = "m"
[npu.a]
memory_bandwidth = "1000 GB/s"
memory_latency = "0"
memory_capacity = "40 GB"
lanes = 64
host_lanes = 1
peak = {{ fp32 = "1 TFLOP/s" }}
[[dimension]]
name = "d"
shape = "{shape}"
size = {npus}
bandwidth = "{rate} B/s"
latency = "{ns} ns"
algorithm = "{algorithm}"
{tables}"#
    );
    Machine::parse(&text, "m.toml").unwrap()
}

/// Returns a load from or store to `place`.
pub fn build_memory_access(
    place: MemoryLocation<'static>,
    store: bool,
    bytes: u64,
) -> TestTraceNode {
    build_node(Op::Memory {
        store,
        place,
        bytes,
        in_switch: false,
    })
}

/// Returns a load from the unnamed memory outside the NPU.
pub fn build_remote_load(bytes: u64) -> TestTraceNode {
    build_memory_access(MemoryLocation::Remote, false, bytes)
}
