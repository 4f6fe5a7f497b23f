//! The `curve` and `protocol` tables and the key `across_share` of a dimension: measured times of collectives, and the
//! formulas of a library's protocols.

use super::{BANDWIDTH, CAPACITY, LATENCY};
use crate::collective::{
    CollectiveCurve, CrossNodeNcclRingAndTreeModel, FittedCollectiveProtocol,
    MeasurementSetupLinkProperties,
};
use crate::machine::Machine;
use crate::topology::TopologyDimension;
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::config::{ConfigError, ConfigField, ConfigTable, quote_and_truncate_for_message};
use chakram_base::units::{Bandwidth, Bytes, Span};

const KEYS: &[&str] = &[
    "collective",
    "members",
    "points",
    "first",
    "factor",
    "times",
];

const PROTOCOL: &[&str] = &["collective", "start", "step", "members", "bandwidths"];

/// Collectives that have curves, with their names.
const KINDS: [(CollectiveKind, &str); 4] = [
    (CollectiveKind::AllReduce, "all-reduce"),
    (CollectiveKind::AllGather, "all-gather"),
    (CollectiveKind::ReduceScatter, "reduce-scatter"),
    (CollectiveKind::AllToAll, "all-to-all"),
];

/// Maximum number of members in a curve, and maximum factor between successive buffer sizes.
const MOST: u32 = 1 << 20;
/// Maximum size of a buffer in bytes: the largest integer in TOML.
const MOST_BYTES: u64 = i64::MAX as u64;

const LINKS: &[&str] = &["bandwidth", "latency"];

/// Parses the key `measured_at`, which describes the links of the measurements in `table`.
pub(super) fn measured_at(
    table: &ConfigTable<'_>,
) -> Result<Option<MeasurementSetupLinkProperties>, ConfigError> {
    table.read_optional("measured_at", |field| {
        let links = field.read_table(Some(LINKS))?;
        Ok(MeasurementSetupLinkProperties {
            bandwidth: links.read_quantity("bandwidth", BANDWIDTH)?,
            latency: links.read_quantity("latency", LATENCY)?,
        })
    })
}

/// Returns the rates of the links in dimension `name` of `original`, the machine before an edit.
pub(super) fn link_rates_before_edit(
    original: Option<&Machine>,
    name: &str,
) -> Option<MeasurementSetupLinkProperties> {
    let mut dimensions = original?.topology().dimensions().iter();
    let dimension = dimensions.find(|dimension| dimension.name == name)?;
    Some(MeasurementSetupLinkProperties::copy_from_topology_dimension(dimension))
}

/// Parses the curves in a dimension's table. `measured_at` is the rates of the measured links.
pub(super) fn parse_collective_time_curves(
    dimension: &ConfigTable<'_>,
    measured_at: Option<MeasurementSetupLinkProperties>,
) -> Result<Vec<CollectiveCurve>, ConfigError> {
    let Some(field) = dimension.get("curve") else {
        return Ok(Vec::new());
    };
    let mut curves: Vec<CollectiveCurve> = Vec::new();
    for table in field.read_tables(KEYS)? {
        let kind = table.read_choice("collective", &KINDS)?;
        let members = table.read_count("members", MOST)?;
        let points = match table.get("points") {
            Some(field) => parse_measured_curve_points(&field)?,
            None => parse_regular_curve_points(&table)?,
        };
        if curves
            .iter()
            .any(|curve| curve.kind == kind && curve.members == members)
        {
            let found = format!(
                "a second curve of {} among {members} members",
                quote_and_truncate_for_message(&kind.to_string())
            );
            return Err(
                table.invalid_table_error(found, "one curve for each kind and number of members")
            );
        }
        curves.push(CollectiveCurve {
            kind,
            members,
            points,
            measured_at,
        });
    }
    Ok(curves)
}

/// Returns the points of a curve whose buffer sizes grow by a constant factor, which the key `factor` states.
fn parse_regular_curve_points(table: &ConfigTable<'_>) -> Result<Vec<(f64, f64)>, ConfigError> {
    let Bytes(first) = super::parse_size(table, "first", CAPACITY)?;
    let factor = f64::from(table.read_count("factor", MOST)?);
    let list = "a list of times, one for each size";
    let field = table.require_field("times", list)?;
    let mut points = Vec::new();
    let mut bytes = first as f64;
    for item in field.read_array_items(list)? {
        let time: Span = item.read_quantity(LATENCY)?;
        if time == Span::ZERO {
            return Err(item.invalid_value_error("no time", "more than zero"));
        }
        points.push((bytes, time.as_seconds()));
        bytes *= factor;
    }
    if points.is_empty() || factor < 2.0 && points.len() > 1 {
        return Err(field.invalid_value_error("an empty list, or a factor below 2", list));
    }
    Ok(points)
}

/// Parses the list of points. Each point is a (bytes, time) pair; an empty list is an error.
fn parse_measured_curve_points(field: &ConfigField<'_>) -> Result<Vec<(f64, f64)>, ConfigError> {
    let list = "a list of [bytes, time], bytes ascending";
    let mut points: Vec<(f64, f64)> = Vec::new();
    for item in field.read_array_items(list)? {
        let pair = item.read_array_items("bytes and a time")?;
        let [bytes, time] = pair.as_slice() else {
            return Err(item.invalid_value_error(format_args!("{} values", pair.len()), list));
        };
        let bytes = bytes.read_integer_between(1, MOST_BYTES)? as f64;
        let span: Span = time.read_quantity(LATENCY)?;
        if span == Span::ZERO || points.last().is_some_and(|(last, _)| *last >= bytes) {
            return Err(item.invalid_value_error(
                "a time of 0, or not more bytes than in the entry before",
                list,
            ));
        }
        points.push((bytes, span.as_seconds()));
    }
    if points.is_empty() {
        return Err(field.invalid_value_error("no point", list));
    }
    Ok(points)
}

const MEASURED: &[&str] = &[
    "dimension",
    "collective",
    "members",
    "points",
    "measured_at",
];

/// Adds the `measured_collective` tables to the curves of their dimensions. `chakram calibrate --nccl` writes these
/// tables. A table replaces the curve for the same kind and number of members.
pub(super) fn add_measured_collectives(
    root: &ConfigTable<'_>,
    dimensions: &[TopologyDimension],
    original: Option<&Machine>,
    curves: &mut [Vec<CollectiveCurve>],
) -> Result<(), ConfigError> {
    let Some(field) = root.get("measured_collective") else {
        return Ok(());
    };
    let mut seen = Vec::new();
    for table in field.read_tables(MEASURED)? {
        let expected = "the name of a dimension";
        let name = table.require_field("dimension", expected)?;
        let at = name.read_text(expected)?;
        let Some(at) = dimensions.iter().position(|one| one.name == at) else {
            let names: Vec<_> = dimensions
                .iter()
                .map(|one| quote_and_truncate_for_message(&one.name))
                .collect();
            return Err(name.invalid_value_error(
                quote_and_truncate_for_message(at),
                format_args!("one of {}", names.join(", ")),
            ));
        };
        let kind = table.read_choice("collective", &KINDS)?;
        let expected = format!("a whole number from 2 to {MOST}");
        let members = table
            .require_field("members", &expected)?
            .read_count(MOST)?;
        let list = "a list of [bytes, time], bytes ascending";
        let points = parse_measured_curve_points(&table.require_field("points", list)?)?;
        if seen.contains(&(at, kind, members)) {
            let found = "a second table for the same dimension, kind and number of members";
            return Err(table.invalid_table_error(
                found,
                "one table for each dimension, kind and number of members",
            ));
        }
        seen.push((at, kind, members));
        curves[at].retain(|curve| (curve.kind, curve.members) != (kind, members));
        let before = || link_rates_before_edit(original, &dimensions[at].name);
        curves[at].push(CollectiveCurve {
            kind,
            members,
            points,
            measured_at: measured_at(&table)?.or_else(before),
        });
    }
    Ok(())
}

/// Parses the protocols in the table of a dimension.
pub(super) fn parse_protocols(
    dimension: &ConfigTable<'_>,
    measured_at: Option<MeasurementSetupLinkProperties>,
) -> Result<Vec<FittedCollectiveProtocol>, ConfigError> {
    let Some(field) = dimension.get("protocol") else {
        return Ok(Vec::new());
    };
    let mut protocols = Vec::new();
    for table in field.read_tables(PROTOCOL)? {
        let list = "an ascending list of numbers of members";
        let mut members: Vec<u32> = Vec::new();
        for item in table
            .require_field("members", list)?
            .read_array_items(list)?
        {
            let number = item.read_count(MOST)?;
            if members.last().is_some_and(|last| *last >= number) {
                return Err(item.invalid_value_error(number, "more than the number before"));
            }
            members.push(number);
        }
        let list = "a list of bandwidths, one for each entry of `members`";
        let field = table.require_field("bandwidths", list)?;
        let mut rates = Vec::new();
        for item in field.read_array_items(list)? {
            let rate: Bandwidth = item.read_quantity(BANDWIDTH)?;
            rates.push(rate.bytes_per_second());
        }
        if rates.len() != members.len() || rates.is_empty() {
            return Err(field.invalid_value_error(format_args!("{} bandwidths", rates.len()), list));
        }
        let seconds = |key| Ok(table.read_quantity::<Span>(key, LATENCY)?.as_seconds());
        protocols.push(FittedCollectiveProtocol {
            kind: table.read_choice("collective", &KINDS)?,
            start: seconds("start")?,
            step: seconds("step")?,
            rates: members.into_iter().zip(rates).collect(),
            measured_at,
        });
    }
    Ok(protocols)
}

/// Parses the key `across_share`: the fraction of the links' rate that the library reaches when a group spans several
/// nodes.
pub(super) fn parse_across_nodes_rate_share(
    dimension: &ConfigTable<'_>,
    measured_at: Option<MeasurementSetupLinkProperties>,
) -> Result<Option<CrossNodeNcclRingAndTreeModel>, ConfigError> {
    dimension.read_optional("across_share", |field| {
        Ok(CrossNodeNcclRingAndTreeModel {
            share: field.read_positive(1.0)?,
            measured_at,
        })
    })
}
