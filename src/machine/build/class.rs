//! The `npu` tables: classes of NPUs, one per table.

use super::{BANDWIDTH, LATENCY, capacity, curves};
use crate::compute::PeakRates;
use crate::config::{ConfigError, ConfigField, ConfigTable, quoted};
use crate::machine::NpuClass;
use crate::memory::LocalMemory;
use crate::trace::Dtype;

/// The keys that each table may have.
const KEYS: &[&str] = &[
    "peak",
    "memory_bandwidth",
    "memory_latency",
    "memory_capacity",
    "lanes",
    "host_lanes",
    "gemm",
    "attention",
    "moving",
    "power",
];

/// An example of a rate, for messages.
const RATE: &str = "989.4 TFLOP/s";

/// The most lanes of either kind that an NPU may have.
const MAX_LANES: u32 = 1 << 16;

/// Every class, as the file orders them.
pub(super) fn classes(root: &ConfigTable<'_>) -> Result<Vec<NpuClass>, ConfigError> {
    let expected = "a table [npu.NAME] for each class of NPU";
    let tables = root.need("npu", expected)?.table(None)?;
    let classes: Vec<_> = tables
        .fields()
        .map(|(name, field)| class(name, &field))
        .collect::<Result<_, _>>()?;
    if classes.is_empty() {
        Err(tables.refuse("no class", expected))
    } else {
        Ok(classes)
    }
}

fn class(name: &str, field: &ConfigField<'_>) -> Result<NpuClass, ConfigError> {
    let table = field.table(Some(KEYS))?;
    if name.trim().is_empty() || name.chars().any(char::is_control) {
        return Err(table.refuse(quoted(name), "a name for the class"));
    }
    let lanes = |key| {
        let field = table.need(key, format_args!("a whole number from 1 to {MAX_LANES}"))?;
        field.count(MAX_LANES)
    };
    Ok(NpuClass {
        name: name.to_owned(),
        curves: curves::curves(&table)?,
        peaks: peaks(&table)?,
        memory: LocalMemory {
            bandwidth: table.quantity("memory_bandwidth", BANDWIDTH)?,
            latency: table.quantity("memory_latency", LATENCY)?,
            capacity: capacity(&table, "memory_capacity")?,
        },
        lanes: lanes("lanes")?,
        host_lanes: lanes("host_lanes")?,
    })
}

fn peaks(class: &ConfigTable<'_>) -> Result<PeakRates, ConfigError> {
    let formats = Dtype::ALL.map(|(_, name)| name);
    let expected = format!("a rate for at least one of {}", formats.join(", "));
    let table = class.need("peak", &expected)?.table(Some(&formats))?;
    let mut peaks = PeakRates::default();
    let mut any = false;
    for (dtype, name) in Dtype::ALL {
        if let Some(field) = table.get(name) {
            peaks.set(dtype, field.quantity(RATE)?);
            any = true;
        }
    }
    if any {
        Ok(peaks)
    } else {
        Err(table.refuse("no rate", expected))
    }
}
