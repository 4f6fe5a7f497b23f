//! The `curve` tables of a dimension: measured times of collectives along it.

use super::{CAPACITY, LATENCY};
use crate::collective::CollectiveCurve;
use crate::config::{ConfigError, ConfigTable, quoted};
use crate::trace::CollectiveKind;
use crate::units::{Bytes, Span};

const KEYS: &[&str] = &["collective", "members", "first", "factor", "times"];

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
