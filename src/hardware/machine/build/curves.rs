//! The tables `gemm`, `attention`, `moving` and `power` of an NPU class: curves of measured kernels.

use super::{BANDWIDTH, LATENCY};
use crate::compute::{
    AttentionKernelTimeCurve, AttentionWaveConstants, ComputeRateFactorsByHeadWidth,
    DecodeAttentionCurveConstants, GemmTimeCurve, KernelTimeCurves, LongGemmPowerLimitSlowdown,
    MemoryBoundKernelTimeCurve, PowerLimitMatrixAndAttentionFactors,
};
use chakram_base::config::{ConfigError, ConfigField, ConfigTable};
use chakram_base::dtype::Dtype;
use chakram_base::kernel_shape::MemoryBoundKernelClass;
use chakram_base::units::{Bandwidth, Span};

const GEMM: &[&str] = &[
    "formats",
    "start",
    "efficiency",
    "multiprocessors",
    "operands",
    "results",
    "memory",
    "reduction",
    "error",
    "carried_over",
];
const ATTENTION: &[&str] = &[
    "kernel", "formats", "start", "compute", "memory", "ramp", "backward", "waves", "decode",
    "widths", "error",
];
const WAVES: &[&str] = &["multiprocessors", "tail"];
const DECODE: &[&str] = &["start", "memory", "head", "multiprocessors"];
const MOVING: &[&str] = &["fraction", "floor", "gap", "error"];
const POWER: &[&str] = &["sustained", "limit", "rated", "slower", "slower_after"];

/// Parses the power keys of a class.
///
/// Near the power limit, an NPU's rate is proportional to the square root of its power.
fn parse_power_limit_factors(
    class: &ConfigTable<'_>,
) -> Result<PowerLimitMatrixAndAttentionFactors, ConfigError> {
    let Some(field) = class.get("power") else {
        return Ok(PowerLimitMatrixAndAttentionFactors::default());
    };
    let table = field.read_table(Some(POWER))?;
    let sustained = table.read_or_default("sustained", 1.0, |field| field.read_positive(1.0))?;
    let capped = match (table.get("limit"), table.get("rated")) {
        (None, None) => 1.0,
        (Some(limit), Some(rated)) => {
            let rated = rated.read_positive(MOST)?;
            (limit.read_positive(rated)? / rated).sqrt()
        }
        (Some(_), None) => {
            return Err(
                table.missing_entry_error("rated", "the watts at which the rates were measured")
            );
        }
        (None, Some(_)) => {
            return Err(table.missing_entry_error("limit", "the power limit of an NPU, in watts"));
        }
    };
    let throttling = match (table.get("slower"), table.get("slower_after")) {
        (None, None) => None,
        (Some(slower), Some(after)) => Some(LongGemmPowerLimitSlowdown {
            slower: slower.read_positive(1.0)?,
            after: after.read_quantity::<Span>(LATENCY)?.as_seconds(),
        }),
        (Some(_), None) => {
            let expected = "the time until half of the slowdown is reached";
            return Err(table.missing_entry_error("slower_after", expected));
        }
        (None, Some(_)) => {
            let expected = "the fraction by which long matrix multiplications are slower";
            return Err(table.missing_entry_error("slower", expected));
        }
    };
    Ok(PowerLimitMatrixAndAttentionFactors {
        products: sustained * capped,
        attention: capped,
        throttling,
    })
}

/// Returns the curve for matrix multiplications that run only briefly, and therefore without the slowdown under
/// continuous load.
pub(super) fn derive_gemm_curve_without_slowdown(
    class: &ConfigTable<'_>,
    curve: GemmTimeCurve,
) -> Result<GemmTimeCurve, ConfigError> {
    let power = class.get("power");
    let power = power
        .map(|field| field.read_table(Some(POWER)))
        .transpose()?;
    let sustained = match power.as_ref().and_then(|table| table.get("sustained")) {
        Some(field) => field.read_positive(1.0)?,
        None => 1.0,
    };
    Ok(GemmTimeCurve {
        efficiency: curve.efficiency / sustained,
        ..curve
    })
}

/// Maximum value of several keys: the number of multiprocessors, the number of queries at which attention reaches half
/// of its rate, power in watts, and factors.
const MOST: f64 = 1e6;
/// Maximum factor by which a collective slows kernels down.
const MOST_BESIDE: f64 = 10.0;

/// Parses the curves in the table of a class.
pub(super) fn parse_kernel_curves(
    class: &ConfigTable<'_>,
) -> Result<KernelTimeCurves, ConfigError> {
    let mut curves = KernelTimeCurves {
        kept: parse_power_limit_factors(class)?,
        ..KernelTimeCurves::default()
    };
    add_kernel_curves(class, &mut curves)?;
    if let Some(field) = class.get("beside_collectives") {
        let factor = field.read_positive(MOST_BESIDE)?;
        if factor < 1.0 {
            return Err(
                field.invalid_value_error(factor, "a factor on the time of kernels, 1 or more")
            );
        }
        curves.beside_collectives = Some(factor);
    }
    Ok(curves)
}

/// Adds the curves in the tables `gemm`, `attention` and `moving` of a class. The factors in [`KernelTimeCurves::kept`]
/// multiply their rates.
pub(super) fn add_kernel_curves(
    class: &ConfigTable<'_>,
    curves: &mut KernelTimeCurves,
) -> Result<(), ConfigError> {
    let kept = curves.kept;
    for table in read_tables_or_empty(class, "gemm", GEMM)? {
        let curve = GemmTimeCurve {
            start: parse_seconds(&table, "start")?,
            efficiency: kept.products * parse_positive(&table, "efficiency", 1.0)?,
            multiprocessors: parse_positive(&table, "multiprocessors", MOST)?,
            operands: parse_bytes_per_second(&table, "operands")?,
            results: parse_bytes_per_second(&table, "results")?,
            memory: parse_positive(&table, "memory", 2.0)?,
            reduction: parse_seconds(&table, "reduction")?,
            error: parse_positive(&table, "error", 10.0)?,
            is_carried_over: table.read_or_default(
                "carried_over",
                false,
                ConfigField::read_flag,
            )?,
            throttling: kept.throttling,
        };
        for dtype in parse_number_formats_of_curve(&table)? {
            curves.gemm[dtype as usize] = Some(curve);
        }
    }
    for table in read_tables_or_empty(class, "attention", ATTENTION)? {
        let curve = AttentionKernelTimeCurve {
            start: parse_seconds(&table, "start")?,
            compute: kept.attention * parse_positive(&table, "compute", 1.0)?,
            memory: parse_positive(&table, "memory", 2.0)?,
            ramp: parse_positive(&table, "ramp", MOST)?,
            backward: parse_positive(&table, "backward", MOST)?,
            error: parse_positive(&table, "error", 10.0)?,
            waves: table.read_optional("waves", parse_attention_wave_constants)?,
            decode: table.read_optional("decode", parse_decode_curve)?,
            widths: table.read_optional("widths", parse_head_width_factors)?,
        };
        for dtype in parse_number_formats_of_curve(&table)? {
            curves.attention[dtype as usize] = Some(curve);
        }
        if let Some(field) = table.get("kernel") {
            curves.attention_kernel = Some(field.read_one_line_text()?.to_owned());
        }
    }
    if let Some(field) = class.get("moving") {
        let table = field.read_table(Some(MOVING))?;
        curves.moving = Some(MemoryBoundKernelTimeCurve {
            fractions: parse_bandwidth_fractions_by_kernel_class(&table)?,
            floor: parse_seconds(&table, "floor")?,
            gap: parse_seconds(&table, "gap")?,
            error: parse_positive(&table, "error", 10.0)?,
        });
    }
    Ok(())
}

/// Parses factors on the compute rate of attention, one for each head width.
fn parse_head_width_factors(
    field: &ConfigField<'_>,
) -> Result<ComputeRateFactorsByHeadWidth, ConfigError> {
    let keys = ComputeRateFactorsByHeadWidth::WIDTHS.map(|(_, key)| key);
    let table = field.read_table(Some(&keys))?;
    let mut factors = [0.0; ComputeRateFactorsByHeadWidth::WIDTHS.len()];
    for (factor, key) in factors.iter_mut().zip(keys) {
        *factor = parse_positive(&table, key, 4.0)?;
    }
    Ok(ComputeRateFactorsByHeadWidth(factors))
}

fn parse_attention_wave_constants(
    field: &ConfigField<'_>,
) -> Result<AttentionWaveConstants, ConfigError> {
    let table = field.read_table(Some(WAVES))?;
    Ok(AttentionWaveConstants {
        multiprocessors: parse_positive(&table, "multiprocessors", MOST)?,
        tail: parse_positive(&table, "tail", MOST)?,
    })
}

fn parse_decode_curve(
    field: &ConfigField<'_>,
) -> Result<DecodeAttentionCurveConstants, ConfigError> {
    let table = field.read_table(Some(DECODE))?;
    Ok(DecodeAttentionCurveConstants {
        start: parse_seconds(&table, "start")?,
        memory: parse_positive(&table, "memory", 2.0)?,
        head: parse_seconds(&table, "head")?,
        multiprocessors: parse_positive(&table, "multiprocessors", MOST)?,
    })
}

fn read_tables_or_empty<'d>(
    class: &ConfigTable<'d>,
    key: &str,
    keys: &[&str],
) -> Result<Vec<ConfigTable<'d>>, ConfigError> {
    match class.get(key) {
        Some(field) => field.read_tables(keys),
        None => Ok(Vec::new()),
    }
}

/// Parses the number formats for which a curve is valid.
fn parse_number_formats_of_curve(table: &ConfigTable<'_>) -> Result<Vec<Dtype>, ConfigError> {
    let expected = "a list of number formats";
    let items = table
        .require_field("formats", expected)?
        .read_array_items(expected)?;
    items
        .iter()
        .map(|item| item.read_choice(&Dtype::ALL))
        .collect()
}

/// Parses either one fraction for all memory-bound kernels, or a table with one fraction for each kind.
fn parse_bandwidth_fractions_by_kernel_class(
    table: &ConfigTable<'_>,
) -> Result<[f64; MemoryBoundKernelClass::ALL.len()], ConfigError> {
    let expected =
        "a fraction of the memory's bandwidth, or a table with a fraction for each class of kernel";
    let field = table.require_field("fraction", expected)?;
    if let Ok(one) = field.read_positive(2.0) {
        return Ok([one; MemoryBoundKernelClass::ALL.len()]);
    }
    let names = MemoryBoundKernelClass::ALL.map(|(_, name)| name);
    let table = field.read_table(Some(&names))?;
    let mut fractions = [0.0; MemoryBoundKernelClass::ALL.len()];
    for (fraction, name) in fractions.iter_mut().zip(names) {
        // Copies to the host are so small that files may omit their fraction.
        let copy = MemoryBoundKernelClass::Copy.class_name();
        let is_optional = name == MemoryBoundKernelClass::HostCopy.class_name();
        let key = match is_optional && table.get(name).is_none() {
            true => copy,
            false => name,
        };
        *fraction = parse_positive(&table, key, 2.0)?;
    }
    Ok(fractions)
}

fn parse_positive(table: &ConfigTable<'_>, key: &str, most: f64) -> Result<f64, ConfigError> {
    let expected = format!("a number above 0 and at most {most}");
    table.require_field(key, expected)?.read_positive(most)
}

fn parse_seconds(table: &ConfigTable<'_>, key: &str) -> Result<f64, ConfigError> {
    Ok(table.read_quantity::<Span>(key, LATENCY)?.as_seconds())
}

fn parse_bytes_per_second(table: &ConfigTable<'_>, key: &str) -> Result<f64, ConfigError> {
    Ok(table
        .read_quantity::<Bandwidth>(key, BANDWIDTH)?
        .bytes_per_second())
}
