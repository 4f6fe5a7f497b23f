//! Explains in words how two machines differ.

use super::{
    CommunicationOnOneMachine, CommunicationOnTwoMachines, DurationOnTwoMachines,
    MakespanExplanation,
};
use crate::text::format_share;
use crate::{NpuTimeCategory, WaitingAndTransferTime};
use chakram_base::units::{self, Span, format_given_percent_change};

/// Maximum number of communications, and of operators, that are named. The others are summarized.
const NAMED: usize = 3;
/// Changes below this share of the longer makespan are listed only briefly.
const MATTERS: f64 = 0.002;
/// Parts with at least this share of the makespan are named as unchanged. They must also change by less than `STAYS`
/// percent.
const LARGE: f64 = 0.05;
const STAYS: f64 = 1.0;

/// A line's indentation and text.
pub(super) type IndentedLine = (usize, String);

/// Returns the explanation: one line with the change in the makespan, then lines for each part of the time. `same`
/// returns the reason to print if no part changed.
pub(super) fn explain_makespan_change(
    why: &MakespanExplanation,
    (first, other): (&str, &str),
    same: impl FnOnce() -> String,
) -> Vec<IndentedLine> {
    let mut lines = vec![(
        0,
        format!(
            "{first} → {other}: {}",
            format_makespan_change(&why.makespan)
        ),
    )];
    if why
        .parts
        .iter()
        .all(|(_, change)| change.increase_ps() == 0)
    {
        lines.push((1, same()));
        return lines;
    }
    let longer = why.makespan.before.max(why.makespan.after);
    let matters = |change: &DurationOnTwoMachines| {
        change.absolute_change_ps() as f64 >= MATTERS * longer.0 as f64
    };
    let mut rest = Vec::new();
    for (part, change) in &why.parts {
        let (_, name) = NpuTimeCategory::ALL[*part as usize];
        if change.increase_ps() == 0 {
            continue;
        }
        if !matters(change) {
            rest.push(format!(
                "{name} {} ({})",
                format_signed_change(change),
                format_from_to(change)
            ));
            continue;
        }
        lines.push((
            1,
            format!(
                "{name} {}: {}",
                format_signed_change(change),
                format_from_to(change)
            ),
        ));
        let details = match part {
            NpuTimeCategory::Compute | NpuTimeCategory::Memory => explain_operators(why, *part),
            NpuTimeCategory::Communication => explain_communication(why),
            NpuTimeCategory::Bubble => vec![explain_bubble(why)],
            NpuTimeCategory::Host => vec![explain_host(why)],
            NpuTimeCategory::Idle => vec![explain_idle_around_last_node(why)],
        };
        lines.extend(details.into_iter().map(|detail| (2, detail)));
    }
    if !rest.is_empty() {
        lines.push((1, format!("hardly moved: {}", rest.join(", "))));
    }
    let stays = list_large_parts_that_changed_little(why);
    if !stays.is_empty() {
        lines.push((1, format!("stays: {}", stays.join(", "))));
    }
    lines
}

/// Formats the change of a makespan, as in `96.578 ms shorter (-73.63 %), 3.79x as fast`.
pub(super) fn format_makespan_change(change: &DurationOnTwoMachines) -> String {
    let longer = match change.increase_ps() {
        0 => return format!("the same makespan, {}", change.after),
        1.. => "longer",
        _ => "shorter",
    };
    let span = absolute_change_as_span(change);
    let percent = format_change_as_percent(change)
        .map_or_else(String::new, |percent| format!(" ({percent})"));
    let speed = change
        .speedup()
        .map(|speed| format!(", {}", format_speedup(speed)));
    format!("{span} {longer}{percent}{}", speed.unwrap_or_default())
}

/// Formats a change as a percentage, as in `-73.63 %`.
pub(super) fn format_change_as_percent(change: &DurationOnTwoMachines) -> Option<String> {
    change.percent_increase().map(format_given_percent_change)
}

fn format_speedup(speed: f64) -> String {
    format!("speedup {speed:.2}x")
}

fn absolute_change_as_span(change: &DurationOnTwoMachines) -> Span {
    Span(u64::try_from(change.absolute_change_ps()).unwrap_or(u64::MAX))
}

/// Formats a change as a signed difference, as in `+1.205 ms`; `0` if nothing changed.
pub(super) fn format_signed_change(change: &DurationOnTwoMachines) -> String {
    match change.increase_ps() {
        0 => "0".to_owned(),
        1.. => format!("+{}", absolute_change_as_span(change)),
        _ => format!("-{}", absolute_change_as_span(change)),
    }
}

/// Formats a duration before and after, as in `129.966 ms → 33.785 ms`.
fn format_from_to(change: &DurationOnTwoMachines) -> String {
    format!("{} → {}", change.before, change.after)
}

fn explain_operators(why: &MakespanExplanation, part: NpuTimeCategory) -> Vec<String> {
    let changes: Vec<_> = why.operators.iter().filter(|(p, ..)| *p == part).collect();
    let what = match part {
        NpuTimeCategory::Compute => "kernels",
        _ => "loads and stores",
    };
    if changes.is_empty() {
        return vec![format!(
            "its {what} last as long; they overlap differently with other work"
        )];
    }
    let mut texts: Vec<_> = changes
        .iter()
        .take(NAMED)
        .map(|(_, name, change)| {
            let name = if name.is_empty() { "(no name)" } else { name };
            let name: String = name.chars().take(40).collect();
            let speed = change
                .speedup()
                .map(|speed| format!(" ({})", format_speedup(speed)));
            format!(
                "{name} {}{}",
                format_from_to(change),
                speed.unwrap_or_default()
            )
        })
        .collect();
    if changes.len() > NAMED {
        let others =
            sum_durations_on_two_machines(changes.iter().skip(NAMED).map(|(.., change)| *change));
        let count = changes.len() - NAMED;
        texts.push(format!("{count} others {}", format_from_to(&others)));
    }
    vec![format!(
        "{what} of a rank, all together: {}",
        texts.join("; ")
    )]
}

fn sum_durations_on_two_machines(
    changes: impl Iterator<Item = DurationOnTwoMachines>,
) -> DurationOnTwoMachines {
    changes.fold(DurationOnTwoMachines::default(), |sum, change| {
        DurationOnTwoMachines {
            before: sum.before + change.before,
            after: sum.after + change.after,
        }
    })
}

fn explain_communication(why: &MakespanExplanation) -> Vec<String> {
    let moved = why.communication.iter();
    let moved: Vec<_> = moved
        .filter(|m| m.exposed_communication_on_both_machines().increase_ps() != 0)
        .collect();
    let mut texts: Vec<_> = moved
        .iter()
        .take(NAMED)
        .map(|m| describe_communication_change(m))
        .collect();
    if moved.len() > NAMED {
        let others = sum_durations_on_two_machines(
            moved
                .iter()
                .skip(NAMED)
                .map(|m| m.exposed_communication_on_both_machines()),
        );
        let count = moved.len() - NAMED;
        texts.push(format!("{count} others {}", format_signed_change(&others)));
    }
    texts
}

/// Formats the change of a communication, as in `all-reduce, all 8 ranks +7.1 ms: transfers in 9.9 ms instead of 3.0
/// ms (…), …`.
pub(super) fn describe_communication_change(moved: &CommunicationOnTwoMachines) -> String {
    let head = format!(
        "{} {}",
        moved.what,
        format_signed_change(&moved.exposed_communication_on_both_machines())
    );
    let (before, after) = match (&moved.before, &moved.after) {
        (Some(before), Some(after)) => (before, after),
        (None, _) => return format!("{head}: there is none on the first"),
        (_, None) => return format!("{head}: there is none any more"),
    };
    let mut texts = Vec::new();
    if moved.kind.is_some() {
        let mut how = vec![format_new_and_previous_value(
            &after.algorithm,
            &before.algorithm,
            "",
        )];
        if let (Some(before), Some(after)) = (before.bus, after.bus) {
            let [before, after] = [before, after].map(|bus| format!("{:.1}", bus / 1e9));
            how.push(format!(
                "bus {}",
                format_new_and_previous_value(&after, &before, " GB/s")
            ));
        }
        let times = [after, before].map(|side| side.transfer.to_string());
        let transfers = format!(
            "transfers in {}",
            format_new_and_previous_value(&times[0], &times[1], "")
        );
        texts.push(format!("{transfers} ({})", how.join(", ")));
    } else {
        let [under_way, instead_of] = [after, before].map(|side| side.mean.transferring);
        let times =
            format_new_and_previous_value(&under_way.to_string(), &instead_of.to_string(), "");
        texts.push(format!("transfer for {times}"));
    }
    if let Some(text) = describe_hiding_change(before, after) {
        texts.push(text);
    }
    let waiting = moved
        .communication_time_on_both_machines(|side| side.mean.exposed_waiting - side.mean.bubble);
    if waiting != DurationOnTwoMachines::default() {
        let latest = after.latest.map(|(rank, share)| {
            let share = units::format_percent(share);
            format!(", {share} of all waiting for rank {rank}")
        });
        let times = format_new_and_previous_value(
            &waiting.after.to_string(),
            &waiting.before.to_string(),
            "",
        );
        let latest = latest.unwrap_or_default();
        texts.push(format!("exposed waiting {times}{latest}"));
    }
    format!("{head}: {}", texts.join("; "))
}

fn describe_hiding_change(
    before: &CommunicationOnOneMachine,
    after: &CommunicationOnOneMachine,
) -> Option<String> {
    let shares =
        [after, before].map(|side| side.hidden_transfer_fraction().map(units::format_percent));
    let [Some(after), Some(before)] = shares else {
        return None;
    };
    Some(match (after == before, &*after) {
        (true, "0.0 %") => "compute hides none of it".to_owned(),
        (true, _) => format!("compute hides {after} of it, as before"),
        (false, _) => format!("compute hides {after} of it instead of {before}"),
    })
}

/// Formats a value with the previous value, as in `9.9 instead of 3.0 GB/s`; formats it as `3.0 GB/s as before` if the
/// two are equal.
fn format_new_and_previous_value(after: &str, before: &str, unit: &str) -> String {
    if after == before {
        format!("{after}{unit} as before")
    } else {
        format!("{after} instead of {before}{unit}")
    }
}

/// Explains a change of the bubble. The bubble consists of waits for other stages, so the text adds only the change in
/// the transfers between ranks.
fn explain_bubble(why: &MakespanExplanation) -> String {
    let transfer = why
        .communication
        .iter()
        .filter(|moved| moved.kind.is_none());
    let transfer = sum_durations_on_two_machines(
        transfer
            .map(|moved| moved.communication_time_on_both_machines(|side| side.mean.transferring)),
    );
    format!(
        "waiting for other stages, which follows from what they do; transfers between ranks {}",
        format_from_to(&transfer)
    )
}

fn explain_host(why: &MakespanExplanation) -> String {
    match (
        why.host.increase_ps(),
        why.category_time_on_both_machines(NpuTimeCategory::Host)
            .increase_ps(),
    ) {
        (0, 1..) => "its work lasts as long; less of it is behind compute and communication",
        (0, _) => "its work lasts as long; more of it is behind compute and communication",
        _ => return format!("its work on a rank: {}", format_from_to(&why.host)),
    }
    .to_owned()
}

fn explain_idle_around_last_node(why: &MakespanExplanation) -> String {
    let end = why.after_last;
    let all = why.category_time_on_both_machines(NpuTimeCategory::Idle);
    let within = DurationOnTwoMachines {
        before: Span(all.before.0.saturating_sub(end.before.0)),
        after: Span(all.after.0.saturating_sub(end.after.0)),
    };
    format!(
        "after a rank's last node {}; before it {}",
        format_from_to(&end),
        format_from_to(&within)
    )
}

/// Lists the parts of the time that take a large share of the makespan but change little.
fn list_large_parts_that_changed_little(why: &MakespanExplanation) -> Vec<String> {
    let exposed = |collective: bool, of: fn(&WaitingAndTransferTime) -> Span| {
        let changes = why.communication.iter();
        let changes = changes.filter(|moved| moved.kind.is_some() == collective);
        sum_durations_on_two_machines(
            changes.map(|moved| moved.communication_time_on_both_machines(|side| of(&side.mean))),
        )
    };
    let candidates = [
        (
            "compute",
            why.category_time_on_both_machines(NpuTimeCategory::Compute),
        ),
        (
            "exposed waiting",
            exposed(true, |mean| mean.exposed_waiting - mean.bubble),
        ),
        (
            "exposed transfer",
            exposed(true, |mean| mean.exposed_transferring),
        ),
        (
            "exposed waiting for messages",
            exposed(false, |mean| mean.exposed_waiting - mean.bubble),
        ),
        (
            "exposed messages",
            exposed(false, |mean| mean.exposed_transferring),
        ),
        (
            "pipeline bubble",
            why.category_time_on_both_machines(NpuTimeCategory::Bubble),
        ),
        (
            "memory",
            why.category_time_on_both_machines(NpuTimeCategory::Memory),
        ),
        (
            "host",
            why.category_time_on_both_machines(NpuTimeCategory::Host),
        ),
        (
            "idle",
            why.category_time_on_both_machines(NpuTimeCategory::Idle),
        ),
    ];
    let makespan = why.makespan.after;
    let large = |change: &DurationOnTwoMachines| change.after.0 as f64 >= LARGE * makespan.0 as f64;
    let still =
        |change: &DurationOnTwoMachines| change.percent_increase().is_some_and(|p| p.abs() < STAYS);
    let stays = candidates.iter().filter(|(_, c)| large(c) && still(c));
    let text = |(name, change): &(&str, DurationOnTwoMachines)| {
        let share = format_share(change.after, makespan);
        format!("{name} {} ({share} of the makespan)", change.after)
    };
    stays.map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_base::ids::Rank;
    use chakram_trace::format::CollectiveKind;

    const fn durations_before_and_after_us(from: u64, to: u64) -> DurationOnTwoMachines {
        DurationOnTwoMachines {
            before: Span::from_us(from),
            after: Span::from_us(to),
        }
    }

    /// Returns an all-reduce. Before, it takes 3.0 ms with 0.24 ms exposed; after, 9.9 ms with 3.861 ms exposed.
    /// Exposed waiting is 0.1 ms before and 0.2 ms after.
    fn all_reduce() -> CommunicationOnTwoMachines {
        let side = |transfer, exposed, waiting, bus, algorithm: &str| CommunicationOnOneMachine {
            mean: WaitingAndTransferTime {
                waiting: Span::from_us(waiting),
                exposed_waiting: Span::from_us(waiting),
                transferring: Span::from_us(transfer),
                exposed_transferring: Span::from_us(exposed),
                bubble: Span::ZERO,
            },
            transfer: Span::from_us(transfer),
            bus: Some(bus),
            algorithm: algorithm.to_owned(),
            waited: Span::from_us(waiting),
            latest: Some((Rank(5), 0.625)),
        };
        CommunicationOnTwoMachines {
            what: "all-reduce, all 8 ranks".to_owned(),
            kind: Some(CollectiveKind::AllReduce),
            groups: 1,
            before: Some(side(3000, 240, 100, 330e9, "ring 8 (nvlink)")),
            after: Some(side(9900, 3861, 200, 98e9, "ring 8 (xgmi)")),
        }
    }

    #[test]
    fn a_communication_says_how_it_is_carried_out_and_what_hides_it() {
        // Exposed time increases by 3.861 + 0.2 - 0.24 - 0.1 = 3.721 ms. The hidden share of the transfer falls from 1
        // - 0.24 / 3 = 92 % to 1 - 3.861 / 9.9 = 61 %.
        assert_eq!(
            describe_communication_change(&all_reduce()),
            "all-reduce, all 8 ranks +3.721 ms: transfers in 9.900 ms instead of 3.000 ms (ring 8 \
             (xgmi) instead of ring 8 (nvlink), bus 98.0 instead of 330.0 GB/s); compute hides 61.0 % \
             of it instead of 92.0 %; exposed waiting 200.000 us instead of 100.000 us, 62.5 % of all \
             waiting for rank 5"
        );
        let same = CommunicationOnTwoMachines {
            before: all_reduce().after,
            ..all_reduce()
        };
        assert_eq!(
            describe_communication_change(&same),
            "all-reduce, all 8 ranks 0: transfers in 9.900 ms as before (ring 8 (xgmi) as before, bus \
             98.0 GB/s as before); compute hides 61.0 % of it, as before; exposed waiting 200.000 us as \
             before, 62.5 % of all waiting for rank 5"
        );
    }

    #[test]
    fn time_parts_that_changed_are_explained_in_order() {
        // The makespan falls from 20 ms to 18.721 ms: 1.279 / 20 = 6.4 % less, or 20 / 18.721 = 1.068 times as fast.
        // Compute falls by 5 ms, and communication rises by 3.721 ms. Changes below 0.2 % of 20 ms = 40 us are listed
        // only briefly. The 10 us change of the idle time therefore gets no line of its own. The host's 10 ms, which
        // are 53 % of 18.721 ms, do not change.
        let why = MakespanExplanation {
            makespan: durations_before_and_after_us(20_000, 18_721),
            parts: vec![
                (
                    NpuTimeCategory::Compute,
                    durations_before_and_after_us(9_000, 4_000),
                ),
                (
                    NpuTimeCategory::Communication,
                    durations_before_and_after_us(340, 4_061),
                ),
                (
                    NpuTimeCategory::Idle,
                    durations_before_and_after_us(660, 670),
                ),
                (
                    NpuTimeCategory::Host,
                    durations_before_and_after_us(10_000, 10_000),
                ),
                (NpuTimeCategory::Memory, durations_before_and_after_us(0, 0)),
            ],
            communication: vec![all_reduce()],
            operators: vec![
                (
                    NpuTimeCategory::Compute,
                    "mm".to_owned(),
                    durations_before_and_after_us(8_000, 2_000),
                ),
                (
                    NpuTimeCategory::Compute,
                    "add".to_owned(),
                    durations_before_and_after_us(400, 1_200),
                ),
                (
                    NpuTimeCategory::Compute,
                    "mul".to_owned(),
                    durations_before_and_after_us(300, 500),
                ),
                (
                    NpuTimeCategory::Compute,
                    "sub".to_owned(),
                    durations_before_and_after_us(200, 300),
                ),
                (
                    NpuTimeCategory::Compute,
                    "div".to_owned(),
                    durations_before_and_after_us(100, 0),
                ),
            ],
            host: durations_before_and_after_us(12_000, 12_000),
            after_last: durations_before_and_after_us(0, 0),
        };
        let lines = explain_makespan_change(&why, ("a", "b"), || unreachable!("parts moved"));
        let text = |(indent, text): &IndentedLine| (*indent, text.clone());
        let found: Vec<_> = lines.iter().map(text).collect();
        let expected = [
            (0, "a → b: 1.279 ms shorter (-6.39 %), speedup 1.07x"),
            (1, "compute -5.000 ms: 9.000 ms → 4.000 ms"),
            (
                2,
                "kernels of a rank, all together: mm 8.000 ms → 2.000 ms (speedup 4.00x); add 400.000 us → \
                 1.200 ms (speedup 0.33x); mul 300.000 us → 500.000 us (speedup 0.60x); 2 others 300.000 \
                 us → 300.000 us",
            ),
            (1, "exposed communication +3.721 ms: 340.000 us → 4.061 ms"),
            (2, &*describe_communication_change(&all_reduce())),
            (1, "hardly moved: idle +10.000 us (660.000 us → 670.000 us)"),
            (1, "stays: host 10.000 ms (53.4 % of the makespan)"),
        ];
        assert_eq!(found, expected.map(|(n, text)| (n, text.to_owned())));
    }

    #[test]
    fn equal_makespans_are_explained_by_the_given_reason() {
        let why = MakespanExplanation {
            makespan: durations_before_and_after_us(5, 5),
            parts: vec![(
                NpuTimeCategory::Compute,
                durations_before_and_after_us(5, 5),
            )],
            communication: Vec::new(),
            operators: Vec::new(),
            host: durations_before_and_after_us(0, 0),
            after_last: durations_before_and_after_us(0, 0),
        };
        let lines = explain_makespan_change(&why, ("a", "b"), || "because".to_owned());
        assert_eq!(lines[0].1, "a → b: the same makespan, 5.000 us");
        assert_eq!(lines[1].1, "because");
        assert_eq!(lines.len(), 2);
    }
}
