//! The tables `gemm`, `attention`, `moving` and `power` of an NPU class: curves of measured kernels.

use super::{BANDWIDTH, LATENCY};
use crate::compute::{
    AttentionCurve, AttentionWaves, DecodeCurve, GemmCurve, KeptRates, KernelCurves, MovingCurve,
    PowerThrottling, WidthFactors,
};
use chakram_base::config::{ConfigError, ConfigField, ConfigTable};
use chakram_base::dtype::Dtype;
use chakram_base::kernel_shape::MovingKernel;
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
fn kept_rates(class: &ConfigTable<'_>) -> Result<KeptRates, ConfigError> {
    let Some(field) = class.get("power") else {
        return Ok(KeptRates::default());
    };
    let table = field.table(Some(POWER))?;
    let sustained = table.or("sustained", 1.0, |field| field.positive(1.0))?;
    let capped = match (table.get("limit"), table.get("rated")) {
        (None, None) => 1.0,
        (Some(limit), Some(rated)) => {
            let rated = rated.positive(MOST)?;
            (limit.positive(rated)? / rated).sqrt()
        }
        (Some(_), None) => {
            return Err(table.missing("rated", "the watts at which the rates were measured"));
        }
        (None, Some(_)) => {
            return Err(table.missing("limit", "the power limit of an NPU, in watts"));
        }
    };
    let throttling = match (table.get("slower"), table.get("slower_after")) {
        (None, None) => None,
        (Some(slower), Some(after)) => Some(PowerThrottling {
            slower: slower.positive(1.0)?,
            after: after.quantity::<Span>(LATENCY)?.seconds(),
        }),
        (Some(_), None) => {
            let expected = "the time until half of the slowdown is reached";
            return Err(table.missing("slower_after", expected));
        }
        (None, Some(_)) => {
            let expected = "the fraction by which long matrix multiplications are slower";
            return Err(table.missing("slower", expected));
        }
    };
    Ok(KeptRates {
        products: sustained * capped,
        attention: capped,
        throttling,
    })
}

/// Returns the curve for short runs of matrix products, which excludes the slowdown under continuous load.
pub(super) fn in_short_runs(
    class: &ConfigTable<'_>,
    curve: GemmCurve,
) -> Result<GemmCurve, ConfigError> {
    let power = class.get("power");
    let power = power.map(|field| field.table(Some(POWER))).transpose()?;
    let sustained = match power.as_ref().and_then(|table| table.get("sustained")) {
        Some(field) => field.positive(1.0)?,
        None => 1.0,
    };
    Ok(GemmCurve {
        efficiency: curve.efficiency / sustained,
        ..curve
    })
}

/// Maximum value of several keys: multiprocessors of an NPU, queries at which a ramp reaches half, watts, and factors.
const MOST: f64 = 1e6;
/// Maximum factor by which a collective slows kernels down.
const MOST_BESIDE: f64 = 10.0;

/// Parses the curves in the table of a class.
pub(super) fn curves(class: &ConfigTable<'_>) -> Result<KernelCurves, ConfigError> {
    let mut curves = KernelCurves {
        kept: kept_rates(class)?,
        ..KernelCurves::default()
    };
    add_kernels(class, &mut curves)?;
    if let Some(field) = class.get("beside_collectives") {
        let factor = field.positive(MOST_BESIDE)?;
        if factor < 1.0 {
            return Err(field.refuse(factor, "a factor on the time of kernels, 1 or more"));
        }
        curves.beside_collectives = Some(factor);
    }
    Ok(curves)
}

/// Adds the curves of the tables `gemm`, `attention` and `moving` of a class. The factors in [`KernelCurves::kept`]
/// lower the rates of these curves.
pub(super) fn add_kernels(
    class: &ConfigTable<'_>,
    curves: &mut KernelCurves,
) -> Result<(), ConfigError> {
    let kept = curves.kept;
    for table in tables(class, "gemm", GEMM)? {
        let curve = GemmCurve {
            start: seconds(&table, "start")?,
            efficiency: kept.products * number(&table, "efficiency", 1.0)?,
            multiprocessors: number(&table, "multiprocessors", MOST)?,
            operands: rate(&table, "operands")?,
            results: rate(&table, "results")?,
            memory: number(&table, "memory", 2.0)?,
            reduction: seconds(&table, "reduction")?,
            error: number(&table, "error", 10.0)?,
            throttling: kept.throttling,
        };
        for dtype in formats(&table)? {
            curves.gemm[dtype as usize] = Some(curve);
        }
    }
    for table in tables(class, "attention", ATTENTION)? {
        let curve = AttentionCurve {
            start: seconds(&table, "start")?,
            compute: kept.attention * number(&table, "compute", 1.0)?,
            memory: number(&table, "memory", 2.0)?,
            ramp: number(&table, "ramp", MOST)?,
            backward: number(&table, "backward", MOST)?,
            error: number(&table, "error", 10.0)?,
            waves: table.optional("waves", waves)?,
            decode: table.optional("decode", decode)?,
            widths: table.optional("widths", read_widths)?,
        };
        for dtype in formats(&table)? {
            curves.attention[dtype as usize] = Some(curve);
        }
        if let Some(field) = table.get("kernel") {
            curves.attention_kernel = Some(field.line()?.to_owned());
        }
    }
    if let Some(field) = class.get("moving") {
        let table = field.table(Some(MOVING))?;
        curves.moving = Some(MovingCurve {
            fractions: fractions(&table)?,
            floor: seconds(&table, "floor")?,
            gap: seconds(&table, "gap")?,
            error: number(&table, "error", 10.0)?,
        });
    }
    Ok(())
}

/// Parses the factors on the compute rate of attention, by head width.
fn read_widths(field: &ConfigField<'_>) -> Result<WidthFactors, ConfigError> {
    let keys = WidthFactors::WIDTHS.map(|(_, key)| key);
    let table = field.table(Some(&keys))?;
    let mut factors = [0.0; WidthFactors::WIDTHS.len()];
    for (factor, key) in factors.iter_mut().zip(keys) {
        *factor = number(&table, key, 4.0)?;
    }
    Ok(WidthFactors(factors))
}

fn waves(field: &ConfigField<'_>) -> Result<AttentionWaves, ConfigError> {
    let table = field.table(Some(WAVES))?;
    Ok(AttentionWaves {
        multiprocessors: number(&table, "multiprocessors", MOST)?,
        tail: number(&table, "tail", MOST)?,
    })
}

fn decode(field: &ConfigField<'_>) -> Result<DecodeCurve, ConfigError> {
    let table = field.table(Some(DECODE))?;
    Ok(DecodeCurve {
        start: seconds(&table, "start")?,
        memory: number(&table, "memory", 2.0)?,
        head: seconds(&table, "head")?,
        multiprocessors: number(&table, "multiprocessors", MOST)?,
    })
}

fn tables<'d>(
    class: &ConfigTable<'d>,
    key: &str,
    keys: &[&str],
) -> Result<Vec<ConfigTable<'d>>, ConfigError> {
    match class.get(key) {
        Some(field) => field.tables(keys),
        None => Ok(Vec::new()),
    }
}

/// Parses the number formats for which a curve is valid.
fn formats(table: &ConfigTable<'_>) -> Result<Vec<Dtype>, ConfigError> {
    let expected = "a list of number formats";
    let items = table.need("formats", expected)?.items(expected)?;
    items.iter().map(|item| item.choice(&Dtype::ALL)).collect()
}

/// Parses one fraction for all classes of kernels, or a table with a fraction for each class.
fn fractions(table: &ConfigTable<'_>) -> Result<[f64; MovingKernel::ALL.len()], ConfigError> {
    let expected =
        "a fraction of the memory's bandwidth, or a table with a fraction for each class of kernel";
    let field = table.need("fraction", expected)?;
    if let Ok(one) = field.positive(2.0) {
        return Ok([one; MovingKernel::ALL.len()]);
    }
    let names = MovingKernel::ALL.map(|(_, name)| name);
    let table = field.table(Some(&names))?;
    let mut fractions = [0.0; MovingKernel::ALL.len()];
    for (fraction, name) in fractions.iter_mut().zip(names) {
        *fraction = number(&table, name, 2.0)?;
    }
    Ok(fractions)
}

fn number(table: &ConfigTable<'_>, key: &str, most: f64) -> Result<f64, ConfigError> {
    let expected = format!("a number above 0 and at most {most}");
    table.need(key, expected)?.positive(most)
}

fn seconds(table: &ConfigTable<'_>, key: &str) -> Result<f64, ConfigError> {
    Ok(table.quantity::<Span>(key, LATENCY)?.seconds())
}

fn rate(table: &ConfigTable<'_>, key: &str) -> Result<f64, ConfigError> {
    Ok(table
        .quantity::<Bandwidth>(key, BANDWIDTH)?
        .bytes_per_second())
}
