//! The differences of reports for programs.

use super::{Moved, Replay, Reports};
use crate::diff::Aspect;
use crate::diff::render::json::{SCHEMA, shift};
use crate::diff::render::{Titles, Verdict};
use serde_json::{Value, json};

/// Renders the differences.
pub fn render(reports: &Reports, titles: &Titles<'_>, verdict: &Verdict) -> Value {
    json!({
        "schema": SCHEMA,
        "tool_version": env!("CARGO_PKG_VERSION"),
        "of": "reports",
        "before": titles.names[0],
        "after": titles.names[1],
        "notes": reports.notes,
        "only_before": reports.only[0],
        "only_after": reports.only[1],
        "differs": {
            "structure": reports.differs(Aspect::Structure),
            "time": reports.differs(Aspect::Time),
            "bytes": reports.differs(Aspect::Bytes),
        },
        "replays": reports.replays.iter().map(of_replay).collect::<Vec<_>>(),
        "exceeded": verdict.exceeded,
    })
}

fn of_replay(replay: &Replay) -> Value {
    let moved = |moved: &Moved| json!({"what": moved.what, "mean_ps": shift(&moved.shift)});
    json!({
        "before_machine": replay.machines[0],
        "after_machine": replay.machines[1],
        "notes": replay.notes,
        "makespan_ps": shift(&replay.makespan),
        "parts": replay.parts.iter().map(|part| json!({
            "part": part.name,
            "mean_ps": shift(&part.mean),
            "sum_over_npus_ps": shift(&part.sum),
            "behind": part.behind.iter().map(moved).collect::<Vec<_>>(),
            "rest_ps": i64::try_from(part.rest).unwrap_or(i64::MAX),
        })).collect::<Vec<_>>(),
        "collectives": replay.collectives.iter().map(|collective| json!({
            "what": collective.what,
            "calls": shift(&collective.calls),
            "buffer_bytes_sum": shift(&collective.bytes),
            "transfer_ps": shift(&collective.transfer),
            "waited_ps_sum_over_members": shift(&collective.waited),
        })).collect::<Vec<_>>(),
        "ranks": replay.ranks.iter().map(|(rank, finish)| json!({
            "rank": rank,
            "finish_ps": shift(finish),
        })).collect::<Vec<_>>(),
    })
}
