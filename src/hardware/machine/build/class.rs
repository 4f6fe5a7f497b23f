//! The `npu` tables: classes of NPUs, one per table.

use super::npu_rates::KernelMeasurementNpuRates;
use super::{BANDWIDTH, LATENCY, curves, measured, parse_optional_capacity, products};
use crate::compute::{PeakRatesByFormat, RecordingNpuClass, SystolicArrays};
use crate::machine::{Machine, NpuClass};
use crate::memory::LocalMemory;
use chakram_base::config::{ConfigError, ConfigField, ConfigTable, quote_and_truncate_for_message};
use chakram_base::dtype::Dtype;

/// Keys that each `npu` table may have.
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

/// Maximum number of rows or columns in an array, and maximum number of arrays along either side of a result.
const MAX_SIDE: u32 = 1 << 16;

/// Maximum number of NPU lanes, and also of host lanes.
const MAX_LANES: u32 = 1 << 16;

/// Parses every class in the order of the file, or returns one unknown class if the file has none. For an edited file,
/// `original` is the machine before the edit.
pub(super) fn parse_classes(
    root: &ConfigTable<'_>,
    original: Option<&Machine>,
) -> Result<Vec<NpuClass>, ConfigError> {
    let expected = "a table [npu.NAME] for each class of NPU";
    let Some(field) = root.get("npu") else {
        return Ok(vec![NpuClass::create_class_with_unknown_rates()]);
    };
    let tables = field.read_table(None)?;
    let classes: Vec<_> = tables
        .fields()
        .map(|(name, field)| parse_class(name, &field, original))
        .collect::<Result<_, _>>()?;
    if classes.is_empty() {
        Err(tables.invalid_table_error("no class", expected))
    } else {
        Ok(classes)
    }
}

fn parse_class(
    name: &str,
    field: &ConfigField<'_>,
    original: Option<&Machine>,
) -> Result<NpuClass, ConfigError> {
    let table = field.read_table(Some(KEYS))?;
    if name.trim().is_empty() || name.chars().any(char::is_control) {
        return Err(
            table.invalid_table_error(quote_and_truncate_for_message(name), "a name for the class")
        );
    }
    let mut peaks = parse_peaks(&table)?;
    peaks.set_systolic_arrays(table.read_optional("systolic", parse_systolic)?);
    let bandwidth = table.read_quantity("memory_bandwidth", BANDWIDTH)?;
    let mut curves = curves::parse_kernel_curves(&table)?;
    curves.measured = measured::parse_measured_kernels(&table)?;
    let rates = KernelMeasurementNpuRates {
        peaks: peaks.clone(),
        memory: bandwidth,
    };
    let before = || {
        let mut classes = original?.npu_classes().iter();
        classes.find(|class| class.name == name)
    };
    let stated = table.read_optional("measured_at", |field| measured_at(field, &rates))?;
    let measured_at = stated.or_else(|| before().and_then(KernelMeasurementNpuRates::of_class));
    let measured_at = measured_at.unwrap_or(rates);
    products::add_measured_gemms(&table, &mut curves, &measured_at, before())?;
    curves.measured.set_measured_on(RecordingNpuClass::new(
        &measured_at.peaks,
        measured_at.memory,
    ));
    Ok(NpuClass {
        name: name.to_owned(),
        curves,
        peaks,
        memory: Some(LocalMemory {
            bandwidth,
            latency: table.read_optional("memory_latency", |field| field.read_quantity(LATENCY))?,
            capacity: parse_optional_capacity(&table, "memory_capacity")?,
        }),
        lanes: table.read_count("lanes", MAX_LANES)?,
        host_lanes: table.read_count("host_lanes", MAX_LANES)?,
        slowdown: parse_slowdown(&table)?,
    })
}

/// Parses the rates of the NPUs on which kernels were measured. Missing rates are taken from `own`, the class's rates.
fn measured_at(
    field: &ConfigField<'_>,
    own: &KernelMeasurementNpuRates,
) -> Result<KernelMeasurementNpuRates, ConfigError> {
    let table = field.read_table(Some(&["memory_bandwidth", "peak"]))?;
    let mut rates = KernelMeasurementNpuRates {
        peaks: own.peaks.clone(),
        memory: table.read_or_default("memory_bandwidth", own.memory, |field| {
            field.read_quantity(BANDWIDTH)
        })?,
    };
    if table.get("peak").is_some() {
        rates.peaks = parse_peaks(&table)?;
    }
    Ok(rates)
}

/// Parses the factor that multiplies kernel durations; the default is 1.
fn parse_slowdown(class: &ConfigTable<'_>) -> Result<f64, ConfigError> {
    class.read_or_default("slowdown", 1.0, |field| match field.read_positive(1e6)? {
        factor if factor < 1.0 => Err(field.invalid_value_error(factor, "a factor of at least 1")),
        factor => Ok(factor),
    })
}

/// Parses systolic arrays: rows and columns of one array, numbers of arrays along the rows and
/// columns of a result, and the clock.
fn parse_systolic(field: &ConfigField<'_>) -> Result<SystolicArrays, ConfigError> {
    let table = field.read_table(Some(&["array", "arrays", "clock"]))?;
    let pair = |field: &ConfigField<'_>| -> Result<[u32; 2], ConfigError> {
        let [a, b] =
            field.read_array_of_exact_length("numbers", "two whole numbers such as [32, 32]")?;
        Ok([a.read_count(MAX_SIDE)?, b.read_count(MAX_SIDE)?])
    };
    Ok(SystolicArrays {
        array: pair(
            &table.require_field("array", "rows and columns of an array such as [32, 32]")?,
        )?,
        arrays: table.read_or_default("arrays", [1, 1], pair)?,
        clock: table.read_quantity("clock", "1.2 GHz")?,
    })
}

fn parse_peaks(class: &ConfigTable<'_>) -> Result<PeakRatesByFormat, ConfigError> {
    let formats = Dtype::ALL.map(|(_, name)| name);
    let expected = format!("a rate for at least one of {}", formats.join(", "));
    let table = class
        .require_field("peak", &expected)?
        .read_table(Some(&formats))?;
    let mut peaks = PeakRatesByFormat::default();
    let mut any = false;
    for (dtype, name) in Dtype::ALL {
        if let Some(field) = table.get(name) {
            peaks.set_peak(dtype, field.read_quantity(RATE)?);
            any = true;
        }
    }
    if any {
        Ok(peaks)
    } else {
        Err(table.invalid_table_error("no rate", expected))
    }
}
