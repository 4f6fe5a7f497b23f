//! Differences of traces as one JSON document, for programs; times in whole picoseconds.
//!
//! `schema` is `chakram.diff.1`; a field may be added under the same number, never changed.

use super::{Titles, Verdict};
use crate::diff::Shift;
use crate::diff::fields::Aspect;
use crate::diff::tally::{Amounts, By, Change, Tally};
use crate::diff::value::Value as Said;
use serde_json::{Map, Value, json};

/// Schema version of the document.
pub const SCHEMA: &str = "chakram.diff.1";

/// Renders `tally`.
pub fn render(tally: &Tally, titles: &Titles<'_>, verdict: &Verdict) -> Value {
    let lines: Vec<_> = tally.lines.iter().collect();
    let lines = lines[..titles.shown(lines.len())]
        .iter()
        .map(|(what, seen)| {
            json!({
                "change": change(&what.change),
                "field": match &what.change {
                    Change::Field(field) => Some(field.to_string()),
                    _ => None,
                },
                "name": what.name,
                "type": what.kind,
                "before": said(&what.before),
                "after": said(&what.after),
                "count": seen.count,
                "first": {"rank": seen.ranks[0], "before_id": seen.ids[0], "after_id": seen.ids[1]},
                "ranks": seen.ranks,
            })
        });
    let counts = tally.counts.iter().map(|(what, count)| {
        let name = match what {
            Change::Field(field) => field.to_string(),
            other => change(other).to_owned(),
        };
        (name, Value::from(*count))
    });
    let singles = tally.singles.iter().map(|single| {
        json!({
            "field": single.field.to_string(),
            "unit": single.field.unit(),
            "name": single.name,
            "type": single.kind,
            "before_id": single.ids[0],
            "after_id": single.ids[1],
            "before": single.before,
            "after": single.after,
            "ranks": single.ranks,
        })
    });
    let by = |wanted: By| -> Value {
        let rows = tally.by.iter().filter(|((by, _), _)| *by == wanted);
        let rows = rows.map(|((_, name), found)| {
            let mut row = Map::new();
            row.insert("name".to_owned(), name.as_str().into());
            row.extend(amounts(found));
            Value::Object(row)
        });
        rows.collect()
    };
    json!({
        "schema": SCHEMA,
        "tool_version": env!("CARGO_PKG_VERSION"),
        "of": "traces",
        "before": titles.names[0],
        "after": titles.names[1],
        "ranks": {
            "compared": tally.compared,
            "identical": tally.identical,
            "only_before": tally.only[0],
            "only_after": tally.only[1],
        },
        "faults": tally.faults.iter().map(|fault| json!({
            "rank": fault.rank,
            "of": if fault.second { "after" } else { "before" },
            "count": fault.count,
            "first": fault.text,
        })).collect::<Vec<_>>(),
        "differs": {
            "structure": tally.differs(Aspect::Structure),
            "time": tally.differs(Aspect::Time),
            "bytes": tally.differs(Aspect::Bytes),
        },
        "dependencies": {"before": tally.edges[0], "after": tally.edges[1]},
        "changed_nodes": tally.changed,
        "counts": counts.collect::<Map<_, _>>(),
        "differences": lines.collect::<Vec<_>>(),
        "total": amounts(&tally.total),
        "by_type": by(By::Type),
        "by_operator": by(By::Operator),
        "by_group": by(By::Group),
        "largest": singles.collect::<Vec<_>>(),
        "exceeded": verdict.exceeded,
    })
}

/// Returns the kind of change for programs.
pub(super) fn change(change: &Change) -> &'static str {
    match change {
        Change::Removed => "node removed",
        Change::Added => "node added",
        Change::Field(_) => "field changed",
        Change::EdgeRemoved => "dependency removed",
        Change::EdgeAdded => "dependency added",
    }
}

fn said(value: &Said) -> Value {
    match value {
        Said::Absent => Value::Null,
        Said::Count(count) => (*count).into(),
        Said::Time(span) => span.0.into(),
        Said::Text(text) => text.as_str().into(),
    }
}

fn amounts(amounts: &Amounts) -> Map<String, Value> {
    let named = [
        ("nodes", amounts.nodes),
        ("duration_ps", amounts.duration),
        ("delay_ps", amounts.delay),
        ("wait_ps", amounts.wait),
        ("bytes", amounts.bytes),
        ("flops", amounts.flops),
    ];
    let named = named.iter();
    named
        .map(|(name, found)| ((*name).to_owned(), shift(found)))
        .collect()
}

/// Renders the amounts before and after, and the increase.
pub(in crate::diff) fn shift(shift: &Shift) -> Value {
    // Readers of JSON expect at most 64 bits.
    let narrow = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
    let more = i64::try_from(shift.more()).unwrap_or(match shift.more() < 0 {
        true => i64::MIN,
        false => i64::MAX,
    });
    json!({
        "before": narrow(shift.before),
        "after": narrow(shift.after),
        "change": more,
        "change_percent": shift.percent(),
    })
}
