//! The `npu` tables: classes of NPUs, one per table.

use super::npu_rates::NpuRates;
use super::{BANDWIDTH, LATENCY, curves, measured, optional_capacity, products};
use crate::compute::{PeakRates, RecordingClass, SystolicArrays};
use crate::machine::{Machine, NpuClass};
use crate::memory::LocalMemory;
use chakram_base::config::{ConfigError, ConfigField, ConfigTable, quoted};
use chakram_base::dtype::Dtype;

/// The allowed keys of each table.
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
    "slowdown",
    "beside_collectives",
    "systolic",
    "measured",
    "product",
    "measured_at",
];

/// An example of a rate, for error messages.
const RATE: &str = "989.4 TFLOP/s";

/// Maximum number of rows or columns of an array, and of arrays along either side of a result.
const MAX_SIDE: u32 = 1 << 16;

/// Maximum number of NPU lanes, and of host lanes.
const MAX_LANES: u32 = 1 << 16;

/// Parses every class in the order of the file, or returns one unknown class if the file has none. If the file is an
/// edit of another machine, `original` is that machine.
pub(super) fn classes(
    root: &ConfigTable<'_>,
    original: Option<&Machine>,
) -> Result<Vec<NpuClass>, ConfigError> {
    let expected = "a table [npu.NAME] for each class of NPU";
    let Some(field) = root.get("npu") else {
        return Ok(vec![NpuClass::unknown()]);
    };
    let tables = field.table(None)?;
    let classes: Vec<_> = tables
        .fields()
        .map(|(name, field)| class(name, &field, original))
        .collect::<Result<_, _>>()?;
    if classes.is_empty() {
        Err(tables.refuse("no class", expected))
    } else {
        Ok(classes)
    }
}

fn class(
    name: &str,
    field: &ConfigField<'_>,
    original: Option<&Machine>,
) -> Result<NpuClass, ConfigError> {
    let table = field.table(Some(KEYS))?;
    if name.trim().is_empty() || name.chars().any(char::is_control) {
        return Err(table.refuse(quoted(name), "a name for the class"));
    }
    let mut peaks = peaks(&table)?;
    peaks.set_systolic(table.optional("systolic", systolic)?);
    let bandwidth = table.quantity("memory_bandwidth", BANDWIDTH)?;
    let mut curves = curves::curves(&table)?;
    curves.measured = measured::measured(&table)?;
    let rates = NpuRates {
        peaks: peaks.clone(),
        memory: bandwidth,
    };
    let before = || {
        let mut classes = original?.classes().iter();
        classes.find(|class| class.name == name)
    };
    let stated = table.optional("measured_at", |field| measured_at(field, &rates))?;
    let measured_at = stated.or_else(|| before().and_then(NpuRates::of));
    let measured_at = measured_at.unwrap_or(rates);
    products::add(&table, &mut curves, &measured_at, before())?;
    curves
        .measured
        .set_measured_on(RecordingClass::new(&measured_at.peaks, measured_at.memory));
    Ok(NpuClass {
        name: name.to_owned(),
        curves,
        peaks,
        memory: Some(LocalMemory {
            bandwidth,
            latency: table.optional("memory_latency", |field| field.quantity(LATENCY))?,
            capacity: optional_capacity(&table, "memory_capacity")?,
        }),
        lanes: table.count("lanes", MAX_LANES)?,
        host_lanes: table.count("host_lanes", MAX_LANES)?,
        slowdown: slowdown(&table)?,
    })
}

/// Parses the rates of the NPUs on which kernels were measured. A missing rate is taken from `own`, the rates of the
/// class.
fn measured_at(field: &ConfigField<'_>, own: &NpuRates) -> Result<NpuRates, ConfigError> {
    let table = field.table(Some(&["memory_bandwidth", "peak"]))?;
    let mut rates = NpuRates {
        peaks: own.peaks.clone(),
        memory: table.or("memory_bandwidth", own.memory, |field| {
            field.quantity(BANDWIDTH)
        })?,
    };
    if table.get("peak").is_some() {
        rates.peaks = peaks(&table)?;
    }
    Ok(rates)
}

/// Parses the factor on kernel durations; the default is 1.
fn slowdown(class: &ConfigTable<'_>) -> Result<f64, ConfigError> {
    class.or("slowdown", 1.0, |field| match field.positive(1e6)? {
        factor if factor < 1.0 => Err(field.refuse(factor, "a factor of at least 1")),
        factor => Ok(factor),
    })
}

/// Parses systolic arrays: rows and columns of one array, numbers of arrays along the rows and
/// columns of a result, and the clock.
fn systolic(field: &ConfigField<'_>) -> Result<SystolicArrays, ConfigError> {
    let table = field.table(Some(&["array", "arrays", "clock"]))?;
    let pair = |field: &ConfigField<'_>| -> Result<[u32; 2], ConfigError> {
        let [a, b] = field.array("numbers", "two whole numbers such as [32, 32]")?;
        Ok([a.count(MAX_SIDE)?, b.count(MAX_SIDE)?])
    };
    Ok(SystolicArrays {
        array: pair(&table.need("array", "rows and columns of an array such as [32, 32]")?)?,
        arrays: table.or("arrays", [1, 1], pair)?,
        clock: table.quantity("clock", "1.2 GHz")?,
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
