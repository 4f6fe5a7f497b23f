//! Memory at ports. It stores bytes that do not fit in the cores' SRAM.
//!
//! If a core has S bytes of SRAM and its peak is p bytes, then p - S bytes are in memory at the nearest port. Cores
//! reach their peaks at different times, so the sum over cores is only an upper bound on the memory in use at a port.
//! The bound is exact if all cores of a port peak at the same time.

use super::NpuMemoryUseRow;
use crate::Report;
use crate::section::SectionNote;
use crate::summary::format_thousands;
use chakram_base::ids::Npu;
use chakram_base::units::Bytes;
use chakram_engine::CompiledReplay;
use chakram_hardware::machine::Machine;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Use of the memory at one port, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct OnePortMemoryPeakAndCapacity {
    /// The NPU at the port.
    pub npu: Npu,
    /// Number of cores with bytes in this memory.
    pub cores: u32,
    /// Capacity of the memory.
    #[serde(rename = "capacity_bytes")]
    pub capacity: Bytes,
    /// The largest number of bytes that each of these cores has in this memory, summed over the cores.
    #[serde(rename = "peak_bytes")]
    pub peak: Bytes,
}

/// Returns by how many bytes `peak` exceeds the SRAM of `npu`; `None` on a machine without memory at ports.
pub(crate) fn bytes_beyond_sram(machine: &Machine, npu: Npu, peak: u64) -> Option<Bytes> {
    if machine
        .unnamed_remote_memory()?
        .list_npus_with_ports()
        .is_empty()
    {
        return None;
    }
    let own = machine.npu_classes()[machine.class_of_npu(npu)]
        .memory?
        .capacity?;
    Some(Bytes(peak.saturating_sub(own.0)))
}

/// Returns the memories at ports that contain bytes of the ranks in `rows`, in the machine's order.
pub(crate) fn list_port_memories(
    prepared: &CompiledReplay<'_>,
    rows: &[NpuMemoryUseRow],
) -> Vec<OnePortMemoryPeakAndCapacity> {
    let machine = prepared.machine();
    let Some(remote) = machine.unnamed_remote_memory() else {
        return Vec::new();
    };
    let Some(capacity) = remote.capacity else {
        return Vec::new();
    };
    let mut held: BTreeMap<u32, OnePortMemoryPeakAndCapacity> = BTreeMap::new();
    for row in rows {
        let beyond = row.beyond_sram.unwrap_or_default();
        if beyond.0 == 0 {
            continue;
        }
        let Some(port) = machine.nearest_memory_port(row.npu) else {
            continue;
        };
        let at = held.entry(port).or_insert(OnePortMemoryPeakAndCapacity {
            npu: remote.list_npus_with_ports()[port as usize],
            cores: 0,
            capacity,
            peak: Bytes(0),
        });
        at.cores += 1;
        at.peak = Bytes(at.peak.0.saturating_add(beyond.0));
    }
    held.into_values().collect()
}

/// Returns a note on memory at ports: the most that one core uses, and how full the fullest port's memory is.
pub(crate) fn describe_port_memory(report: &Report) -> Option<SectionNote> {
    let cores = report.memory.iter().filter_map(|row| row.beyond_sram);
    let port = report
        .memory_ports
        .iter()
        .rev()
        .max_by_key(|port| port.peak)?;
    let core = cores.max().unwrap_or_default();
    let text = format!(
        "beyond SRAM: at most {core} of a core; at most {} of {} at a port, NPU {}, of {}",
        port.peak,
        port.capacity,
        port.npu.0,
        match port.cores {
            1 => "1 core".to_owned(),
            cores => format!("{} cores", format_thousands(cores.into())),
        }
    );
    Some(SectionNote::from_one_line_sentence(text).mark_warning_if(port.peak > port.capacity))
}
