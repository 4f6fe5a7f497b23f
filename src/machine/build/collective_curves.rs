//! The `curve` and `protocol` tables of a dimension: measured times of collectives along it, and the formula of a library.

use super::{BANDWIDTH, CAPACITY, LATENCY};
use crate::collective::{CollectiveCurve, CollectiveProtocol};
use crate::config::{ConfigError, ConfigTable, quoted};
use crate::trace::CollectiveKind;
use crate::units::{Bandwidth, Bytes, Span};

const KEYS: &[&str] = &["collective", "members", "first", "factor", "times"];

const PROTOCOL: &[&str] = &["collective", "start", "step", "members", "bandwidths"];

/// Collectives that have curves, with their names.
const KINDS: [(CollectiveKind, &str); 4] = [
    (CollectiveKind::AllReduce, "all-reduce"),
    (CollectiveKind::AllGather, "all-gather"),
    (CollectiveKind::ReduceScatter, "reduce-scatter"),
    (CollectiveKind::AllToAll, "all-to-all"),
];

/// Most members of a curve, and factor between its sizes.
const MOST: u32 = 1 << 20;

/// The curves that the table of a dimension has.
pub(super) fn curves(dimension: &ConfigTable<'_>) -> Result<Vec<CollectiveCurve>, ConfigError> {
    let Some(field) = dimension.get("curve") else {
        return Ok(Vec::new());
    };
    let mut curves: Vec<CollectiveCurve> = Vec::new();
    for table in field.tables(KEYS)? {
        let expected = format!("a whole number from 1 to {MOST}");
        let kind = table.choice("collective", &KINDS)?;
        let members = table.need("members", &expected)?.count(MOST)?;
        let first = super::size(&table, "first", CAPACITY)?;
        let factor = f64::from(table.need("factor", &expected)?.count(MOST)?);
        let list = "a list of times, one for each size";
        let field = table.need("times", list)?;
        let mut points = Vec::new();
        let Bytes(first) = first;
        let mut bytes = first as f64;
        for item in field.items(list)? {
            let time: Span = item.quantity(LATENCY)?;
            if time == Span::ZERO {
                return Err(item.refuse("no time", "more than zero"));
            }
            points.push((bytes, time.seconds()));
            bytes *= factor;
        }
        if points.is_empty() || factor < 2.0 && points.len() > 1 {
            return Err(field.refuse("no time, or a factor of 1", list));
        }
        if curves
            .iter()
            .any(|curve| curve.kind == kind && curve.members == members)
        {
            let found = format!(
                "a second curve of {} among {members}",
                quoted(&kind.to_string())
            );
            return Err(table.refuse(found, "one for each kind and number of members"));
        }
        curves.push(CollectiveCurve {
            kind,
            members,
            points,
        });
    }
    Ok(curves)
}

/// The protocols that the table of a dimension has.
pub(super) fn protocols(
    dimension: &ConfigTable<'_>,
) -> Result<Vec<CollectiveProtocol>, ConfigError> {
    let Some(field) = dimension.get("protocol") else {
        return Ok(Vec::new());
    };
    let mut protocols = Vec::new();
    for table in field.tables(PROTOCOL)? {
        let list = "a list of numbers of members, ascending";
        let mut members: Vec<u32> = Vec::new();
        for item in table.need("members", list)?.items(list)? {
            let number = item.count(MOST)?;
            if members.last().is_some_and(|last| *last >= number) {
                return Err(item.refuse(number, "more than the number before"));
            }
            members.push(number);
        }
        let list = "a list of bandwidths, one for each number of members";
        let field = table.need("bandwidths", list)?;
        let mut rates = Vec::new();
        for item in field.items(list)? {
            let rate: Bandwidth = item.quantity(BANDWIDTH)?;
            rates.push(rate.bytes_per_second());
        }
        if rates.len() != members.len() || rates.is_empty() {
            return Err(field.refuse(format_args!("{} bandwidths", rates.len()), list));
        }
        let seconds = |key| Ok(table.quantity::<Span>(key, LATENCY)?.seconds());
        protocols.push(CollectiveProtocol {
            kind: table.choice("collective", &KINDS)?,
            start: seconds("start")?,
            step: seconds("step")?,
            rates: members.into_iter().zip(rates).collect(),
        });
    }
    Ok(protocols)
}
