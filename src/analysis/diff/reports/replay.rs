//! Compares two single-machine reports.

use super::{
    GroupCollectivesChange, RankFinishTimeChange, ReplayDiff, TimeContributorChange, TimePartChange,
};
use crate::diff::AmountChange;
use chakram_report::{self as report, Report};
use chakram_trace::graph::NodeKind;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Divides the parts of the time, summed over NPUs, by `npus`. The means are rounded so that they sum to the makespan.
fn divide_time_parts_by_npus<const N: usize>(sums: [u128; N], npus: usize) -> [u128; N] {
    let count = npus.max(1) as u128;
    let mut whole = 0;
    sums.map(|sum| {
        // Round the cumulative sums instead of the parts, so that the last sum is the makespan.
        let rounded = |sum: u128| (sum + count / 2) / count;
        let before = rounded(whole);
        whole += sum;
        rounded(whole) - before
    })
}

/// Compares two single-machine reports.
pub(super) fn compare_replays(first: &Report, second: &Report) -> ReplayDiff {
    let both = [first, second];
    let npus = both.map(|report| report.rows.len());
    let sums = both.map(|report| {
        std::array::from_fn(|part| {
            let times = report.rows.iter().map(|row| row.time.parts[part].0);
            times.map(u128::from).sum::<u128>()
        })
    });
    let means = [
        divide_time_parts_by_npus(sums[0], npus[0]),
        divide_time_parts_by_npus(sums[1], npus[1]),
    ];
    let mut parts: Vec<_> = report::NpuTimeCategory::ALL
        .iter()
        .zip(report::NpuTimeCategory::KEYS)
        .map(|(&(part, _), name)| {
            let i = part as usize;
            let pair = |of: &[[u128; report::NpuTimeCategory::COUNT]; 2]| AmountChange {
                before: of[0][i],
                after: of[1][i],
            };
            let behind = list_changed_contributors_to_time_category(both, npus, part);
            let mean = pair(&means);
            let explained: i128 = behind
                .iter()
                .map(|moved| moved.shift.signed_increase())
                .sum();
            TimePartChange {
                name,
                mean,
                sum: pair(&sums),
                rest: mean.signed_increase() - explained,
                behind,
            }
        })
        .collect();
    parts.sort_by_key(|part| Reverse(part.mean.signed_increase().unsigned_abs()));
    let (collectives, calls) = changed_collectives_and_if_calls_differ(both);
    let counts = both.map(|r| {
        let outcome = &r.outcome;
        let messages = outcome.messages;
        (
            r.ranks,
            outcome.nodes,
            messages,
            r.rows.len(),
            count_calls_by_operator(r),
        )
    });
    let mut notes = Vec::new();
    if first.machine.name != second.machine.name {
        let names = both.map(|report| &report.machine.name);
        notes.push(format!("another machine: {} → {}", names[0], names[1]));
    }
    for (what, pair) in [
        ("ranks", both.map(|r| u64::from(r.ranks))),
        ("nodes", both.map(|r| r.outcome.nodes)),
        ("ranks with a trace", both.map(|r| r.rows.len() as u64)),
    ] {
        if pair[0] != pair[1] {
            notes.push(format!("another job: {} {what} → {}", pair[0], pair[1]));
        }
    }
    ReplayDiff {
        before_machine: first.machine.name.clone(),
        after_machine: second.machine.name.clone(),
        notes,
        makespan: AmountChange {
            before: first.outcome.makespan.0.into(),
            after: second.outcome.makespan.0.into(),
        },
        parts,
        collectives,
        ranks: compare_rank_finish_times(both),
        structure: calls || counts[0] != counts[1],
    }
}

/// Returns how often each operator was called, by kind and name.
fn count_calls_by_operator(report: &Report) -> BTreeMap<(u8, &str), u64> {
    let operators = report.operators.iter();
    let calls = operators.map(|o| ((o.kind as u8, &*o.name), o.calls));
    calls.collect()
}

/// Returns the operators or groups that contribute more or less to `part`. Times are means over
/// NPUs.
fn list_changed_contributors_to_time_category(
    both: [&Report; 2],
    npus: [usize; 2],
    part: report::NpuTimeCategory,
) -> Vec<TimeContributorChange> {
    let mut found: BTreeMap<String, [u128; 2]> = BTreeMap::new();
    for (side, report) in both.into_iter().enumerate() {
        let mut add = |what: &str, ps: u64| {
            found.entry(what.to_owned()).or_default()[side] += u128::from(ps);
        };
        match part {
            report::NpuTimeCategory::Communication => {
                report
                    .exposed
                    .iter()
                    .for_each(|e| add(&e.what, e.exposed.0));
            }
            report::NpuTimeCategory::Bubble => {
                let messages = report.messages_charged.bubble;
                let collectives = report.collectives.iter();
                let collectives = collectives.map(|row| (&*row.group, row.charged.bubble));
                for (what, bubble) in collectives.chain([("messages between stages", messages)]) {
                    if bubble.0 > 0 {
                        add(what, bubble.0);
                    }
                }
            }
            report::NpuTimeCategory::Idle => {
                let makespan = report.outcome.makespan.0;
                let finishes = report.rows.iter().map(|row| row.time.finish.0);
                let after = finishes.map(|finish| makespan.saturating_sub(finish));
                after.for_each(|ps| add("after a rank's last node", ps));
            }
            part => {
                let fits =
                    |kind: NodeKind| report::NpuTimeCategory::from_node_kind(kind) == Some(part);
                let operators = report.operators.iter().filter(|o| fits(o.kind));
                operators.for_each(|o| add(&o.name, o.total.0));
            }
        }
    }
    let mean = |sum: u128, npus: usize| (sum + npus as u128 / 2) / npus.max(1) as u128;
    let moved = found
        .into_iter()
        .map(|(what, [before, after])| TimeContributorChange {
            what,
            shift: AmountChange {
                before: mean(before, npus[0]),
                after: mean(after, npus[1]),
            },
        });
    let mut moved: Vec<_> = moved
        .filter(|moved| moved.shift.signed_increase() != 0)
        .collect();
    moved.sort_by_key(|moved| Reverse(moved.shift.signed_increase().unsigned_abs()));
    moved
}

/// Returns the collectives that changed, and true if any collective was called more or less often.
fn changed_collectives_and_if_calls_differ(
    both: [&Report; 2],
) -> (Vec<GroupCollectivesChange>, bool) {
    let mut found: BTreeMap<(String, usize), GroupCollectivesChange> = BTreeMap::new();
    for (side, report) in both.into_iter().enumerate() {
        let mut twins: BTreeMap<String, usize> = BTreeMap::new();
        for row in &report.collectives {
            let what = format!("{}, {}", row.kind, row.group);
            // If several groups have the same name, their order in the report distinguishes them.
            let twin = twins.entry(what.clone()).or_default();
            let entry =
                found
                    .entry((what.clone(), *twin))
                    .or_insert_with(|| GroupCollectivesChange {
                        what,
                        calls: AmountChange::default(),
                        bytes: AmountChange::default(),
                        transfer: AmountChange::default(),
                        waited: AmountChange::default(),
                    });
            *twin += 1;
            for (shift, amount) in [
                (&mut entry.calls, row.tally.calls),
                (&mut entry.bytes, row.tally.buffers.sum),
                (&mut entry.transfer, row.tally.transfer.0),
                (&mut entry.waited, row.tally.waited.0),
            ] {
                let side = if side == 0 {
                    &mut shift.before
                } else {
                    &mut shift.after
                };
                *side = amount.into();
            }
        }
    }
    let mut all: Vec<_> = found.into_values().collect();
    let calls = all.iter().any(|c| c.calls.signed_increase() != 0);
    let still = |c: &GroupCollectivesChange| {
        [c.calls, c.bytes, c.transfer, c.waited]
            .iter()
            .all(|s| s.signed_increase() == 0)
    };
    all.retain(|collective| !still(collective));
    let by = |c: &GroupCollectivesChange| {
        let [transfer, waited] = [c.transfer, c.waited].map(|s| s.signed_increase().unsigned_abs());
        Reverse((transfer, waited))
    };
    all.sort_by_key(by);
    (all, calls)
}

/// Returns the ranks in both reports that finish at different times.
fn compare_rank_finish_times(both: [&Report; 2]) -> Vec<RankFinishTimeChange> {
    let finish = |report: &Report| -> BTreeMap<u32, u64> {
        let rows = report.rows.iter();
        rows.map(|row| (row.rank.0, row.time.finish.0)).collect()
    };
    let (a, b) = (finish(both[0]), finish(both[1]));
    let common = a.iter().filter_map(|(&rank, &before)| {
        let finish = AmountChange {
            before: before.into(),
            after: (*b.get(&rank)?).into(),
        };
        (finish.signed_increase() != 0).then_some(RankFinishTimeChange { rank, finish })
    });
    let mut moved: Vec<_> = common.collect();
    moved.sort_by_key(|rank| Reverse(rank.finish.signed_increase().unsigned_abs()));
    moved
}

#[cfg(test)]
mod tests {
    use super::super::read::parse_report_document;
    use super::super::{ReportDiffByMachine, StructureTimeOrBytesAspect};
    use super::*;
    use crate::diff::render::DiffPercentLimitAndForbiddenAspects;

    /// Builds a report about two NPUs. `times` contains each NPU's compute, exposed communication and idle time; `mm`
    /// is the time of the only operator, summed over both NPUs.
    fn build_two_npu_report_json(makespan: u64, times: [[u64; 3]; 2], mm: u64) -> String {
        let npu = |rank: usize| {
            let [compute, communication, idle] = times[rank];
            format!(
                r#"{{"rank": {rank}, "npu": {rank}, "class": "npu", "communicating_ps": {communication}, "finish_ps":
                {}, "time_ps": {{"compute": {compute}, "communication":
                {communication}, "memory": 0, "host": 0, "idle": {idle}}}}}"#,
                makespan - idle
            )
        };
        let exposed = times[0][1] + times[1][1];
        format!(
            r#"{{"schema": "chakram.report.1", "machine": {{"name": "m", "npus": 2}}, "ranks": 2, "absent_ranks": [],
            "makespan_ps": {makespan}, "nodes": 4, "messages": 0, "collectives_analytical": 1,
            "collectives_materialized": 0, "collectives_simulated": 0, "collectives_recorded": 0, "kernels":
            {{"priced": 2, "kept_recorded": 0, "unknown": 0}}, "communication": {{"recorded": 0, "unknown": 0}},
            "mean_ps": {{"compute": 0, "communication": 0, "memory": 0, "host": 0, "idle": 0}},
            "mean_communicating_ps": 0, "warnings": [], "npus": [{}, {}], "collectives": [{{"group": "all 2 ranks",
            "group_index": 0, "members": 2, "present": 2, "kind": "all-reduce", "algorithm": "ring 2", "calls": 1,
            "calls_simulated": 0, "buffer_bytes": {{"sum": 64, "smallest": 64, "largest": 64}}, "transfer_ps": 30,
            "waited_ps_sum_over_members": 0}}], "exposed": [{{"name": "all 2 ranks", "sum_over_npus_ps":
            {exposed}}}], "operators": [{{"name": "mm", "kind": "compute", "calls": 2, "total_ps": {mm}}}]}}"#,
            npu(0),
            npu(1)
        )
    }

    #[test]
    fn parts_are_so_rounded_that_they_sum_to_the_whole() {
        // Before the change, compute is 60 + 50, communication 30 + 40 and idle 10 + 10, so the means are 55, 35 and 10
        // of 100 ps. After the change, compute is 41 + 40, communication 29 + 30 and idle 10 + 10, so the means are
        // 40.5, 29.5 and 10 of 80 ps. Rounded separately, the means would be 41, 30 and 10, which sum to 81. The
        // cumulative sums 40.5, 70 and 80 are rounded to 41, 70 and 80, so the parts are 41, 29 and 10.
        let before = build_two_npu_report_json(100, [[60, 30, 10], [50, 40, 10]], 100);
        let after = build_two_npu_report_json(80, [[41, 29, 10], [40, 30, 10]], 70);
        let [a, b] = [&before, &after].map(|text| parse_report_document(text).unwrap());
        let reports = ReportDiffByMachine::new(&a, &b);
        assert_eq!(reports.notes, Vec::<String>::new());
        let replay = &reports.replays[0];
        let found = replay
            .parts
            .iter()
            .map(|part| (part.name, part.mean.signed_increase()));
        let expected = [
            ("compute", -14),
            ("communication", -6),
            ("bubble", 0),
            ("memory", 0),
            ("host", 0),
            ("idle", 0),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        // The operator mm takes 50 ps per rank before and 35 ps after, a decrease of 15 ps. Compute decreased by only
        // 14 ps, so the rest is +1 ps.
        let compute = &replay.parts[0];
        assert_eq!(compute.behind[0].shift.signed_increase(), -15);
        assert_eq!(compute.rest, 1);
        // Every rank finishes 10 ps before the end: at 90 ps before the change, and at 70 ps after it.
        assert_eq!(
            replay.ranks[1],
            RankFinishTimeChange {
                rank: 1,
                finish: AmountChange {
                    before: 90,
                    after: 70
                }
            }
        );
        let differs = [
            StructureTimeOrBytesAspect::Structure,
            StructureTimeOrBytesAspect::Time,
            StructureTimeOrBytesAspect::Bytes,
        ];
        assert_eq!(
            differs.map(|aspect| reports.any_replay_differs_in_aspect(aspect)),
            [false, true, false]
        );
        // The makespan of 80 ps is 20 % less than 100 ps.
        let exceeded = |percent| {
            let limits = DiffPercentLimitAndForbiddenAspects {
                threshold: Some(percent),
                aspects: Vec::new(),
            };
            !reports
                .find_exceeded_thresholds(&limits)
                .exceeded
                .is_empty()
        };
        assert_eq!([19.9, 20.0].map(exceeded), [true, false]);
    }

    #[test]
    fn parts_that_do_not_sum_are_refused() {
        let error = parse_report_document(&build_two_npu_report_json(
            100,
            [[60, 30, 10], [50, 40, 11]],
            0,
        ))
        .unwrap_err();
        assert!(
            error.to_string().contains("rank 1 sum to 101 ps"),
            "{error}"
        );
    }
}
