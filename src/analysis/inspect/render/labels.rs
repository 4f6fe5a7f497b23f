//! Formats text fragments shared by several views of traces.

use crate::inspect::{CountedFault, NodeStartTimesSource, RejectedAndRepairedFaults};
use chakram_base::units::Span;
use chakram_report::summary::format_thousands;

/// Formats a count with a unit prefix, such as `1.2 G`.
pub fn format_short_count(count: u64) -> String {
    let value = count as f64;
    match count {
        0 => "-".to_owned(),
        1..=9_999 => count.to_string(),
        10_000..=999_949 => format!("{:.1} k", value / 1e3),
        999_950..=999_949_999 => format!("{:.1} M", value / 1e6),
        999_950_000..=999_949_999_999 => format!("{:.1} G", value / 1e9),
        999_950_000_000..=999_949_999_999_999 => format!("{:.1} T", value / 1e12),
        _ => format!("{:.1} P", value / 1e15),
    }
}

/// Formats the faults of files, one line per kind with its ranks, the most serious kind first.
pub fn format_rejected_and_repaired_faults<'a>(
    ranks: impl Iterator<Item = (u32, &'a RejectedAndRepairedFaults)> + Clone,
) -> (Vec<String>, Vec<String>) {
    let lines = |of: fn(&RejectedAndRepairedFaults) -> &Vec<CountedFault>| {
        let mut lines = Vec::new();
        for (rank, faults) in ranks.clone() {
            for complaint in of(faults) {
                let times = match complaint.count {
                    1 => String::new(),
                    n => format!(" ({} in all)", format_thousands(n)),
                };
                lines.push(format!("rank {rank}: {}{times}", complaint.text));
            }
        }
        lines
    };
    (
        lines(|faults| &faults.faults),
        lines(|faults| &faults.notes),
    )
}

/// Describes where a rank's times come from; `end` is the rank's computed end, and `captured` its end in the capture.
pub fn describe_time_basis(
    basis: NodeStartTimesSource,
    whole_micros: bool,
    end: Span,
    captured: Option<Span>,
) -> String {
    match (basis, captured) {
        (NodeStartTimesSource::Given, _) => {
            "starts as in the file, counted from the first start of each rank".to_owned()
        }
        (NodeStartTimesSource::Kept, Some(captured)) if captured == end => {
            "durations and delays as captured; ends with the capture, to the picosecond".to_owned()
        }
        (NodeStartTimesSource::Kept, Some(captured)) => {
            format!("durations and delays as captured; the capture ended at {captured}")
        }
        (NodeStartTimesSource::Kept, None) => "durations and delays as in the file".to_owned(),
        (NodeStartTimesSource::Estimated, _) => format!(
            "an estimate: the file has durations{} and no delays, so gaps are missing and starts are early",
            if whole_micros {
                " in whole microseconds"
            } else {
                ""
            }
        ),
        (NodeStartTimesSource::Unknown, _) => "unknown: the file has no durations".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts = [0, 9_999, 999_949, 999_950, 1_500_000_000].map(format_short_count);
        assert_eq!(texts, ["-", "9999", "999.9 k", "1.0 M", "1.5 G"]);
    }
}
