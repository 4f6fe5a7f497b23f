//! Parses the logs of nccl-tests, a benchmark of collectives.
//!
//! Lines that begin with `#` contain the test's name, a `# Rank` for each GPU, and the headings. All other lines begin
//! with the size of the whole buffer in bytes. The `time` columns are in microseconds. The first `time` column is for
//! out-of-place operation. The `#wrong` columns count wrong results; they contain `N/A` if results were not checked.

use super::ScoreError;
use chakram_base::config::quote_and_truncate_for_message;
use chakram_hardware::collective::CollectiveCurve;
use chakram_trace::format::CollectiveKind;

/// Names of the tests, each with the kind of its collective.
const TESTS: [(&str, CollectiveKind); 4] = [
    ("all_reduce", CollectiveKind::AllReduce),
    ("all_gather", CollectiveKind::AllGather),
    ("reduce_scatter", CollectiveKind::ReduceScatter),
    ("alltoall", CollectiveKind::AllToAll),
];

/// Parses the log `text`. Error messages call the log `file`.
///
/// # Errors
///
/// Fails if the log has no test name, no ranks or no times, or if a line is invalid.
pub fn parse_nccl_log(text: &str, file: &str) -> Result<CollectiveCurve, ScoreError> {
    let refuse = |why: String| ScoreError::Table {
        file: file.to_owned(),
        why,
    };
    let comments = || {
        text.lines()
            .filter_map(|line| line.trim().strip_prefix('#'))
    };
    let name = |text: &str| TESTS.iter().find(|(name, _)| text.contains(name));
    let stated = comments()
        .filter(|line| line.contains("_perf"))
        .find_map(name);
    let kind = stated.or_else(|| name(file.rsplit('/').next().unwrap_or(file)));
    let (_, kind) = kind.ok_or_else(|| {
        let names = TESTS.map(|(name, _)| format!("{name}_perf"));
        refuse(format!(
            "neither the log nor its name states the test; expected one of {}",
            names.join(", ")
        ))
    })?;
    let rank = |line: &&str| line.split_whitespace().next() == Some("Rank");
    let members = comments().filter(rank).count();
    let members = u32::try_from(members).ok().filter(|&members| members > 1);
    let members = members.ok_or_else(|| {
        refuse(
            "the log has no `# Rank` lines of two or more GPUs; expected a log of nccl-tests"
                .to_owned(),
        )
    })?;
    let heading = comments().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let time = words.iter().position(|word| *word == "time");
        let wrong = words.iter().position(|word| *word == "#wrong");
        time.filter(|_| words.first() == Some(&"size"))
            .map(|time| (time, wrong))
    });
    let (time, wrong) = heading
        .ok_or_else(|| refuse("the log has no heading line with `size` and `time`".to_owned()))?;
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let words: Vec<_> = line.split_whitespace().collect();
        let Some(Ok(bytes)) = words.first().map(|word| word.parse::<u64>()) else {
            continue;
        };
        let row = |why: String| ScoreError::Row {
            file: file.to_owned(),
            line: number,
            why,
        };
        let found = words.get(time).copied().unwrap_or_default();
        let micros = found.parse::<f64>().ok();
        let micros = micros.filter(|micros| micros.is_finite() && *micros > 0.0);
        let micros = micros.ok_or_else(|| {
            row(format!(
                "the time is {}; expected microseconds above zero",
                quote_and_truncate_for_message(found)
            ))
        })?;
        let count = wrong.and_then(|at| words.get(at)?.parse::<f64>().ok());
        if let Some(count) = count.filter(|count| *count > 0.0) {
            return Err(row(format!(
                "{count} numbers are wrong after the collective; expected 0, because times of a broken collective say \
                 nothing about a sound one"
            )));
        }
        if bytes == 0 {
            continue;
        }
        match points.last() {
            Some(&(last, _)) if bytes as f64 <= last => {
                return Err(row(format!(
                    "{bytes} B after {last} B; expected ascending sizes"
                )));
            }
            _ => points.push((bytes as f64, micros * 1e-6)),
        }
    }
    if points.is_empty() {
        return Err(refuse("the log has no size with a time".to_owned()));
    }
    Ok(CollectiveCurve {
        kind: *kind,
        members,
        points,
        measured_at: None,
    })
}

/// Predicts each size between the first and the last from the others, and returns the mean relative error. `None` for
/// fewer than three sizes.
pub fn mean_leave_one_out_prediction_error(curve: &CollectiveCurve) -> Option<f64> {
    let between = 1..curve.points.len().saturating_sub(1);
    let off = between.clone().map(|at| {
        let (bytes, seconds) = curve.points[at];
        let mut others = curve.clone();
        others.points.remove(at);
        (others.predict_seconds(bytes) / seconds - 1.0).abs()
    });
    (!between.is_empty()).then(|| off.sum::<f64>() / between.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
# Collective test starting: reduce_scatter_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor)
#  Rank  0 Group  0 Pid   3379 on     host device  0 [0x10] NVIDIA A100
#  Rank  1 Group  0 Pid   3379 on     host device  1 [0x16] NVIDIA A100
#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     0.19    0.00    0.00      0     0.18    0.00    0.00      0
        1024           128     float     sum      -1    10.00    0.10    0.05      0     9.00    0.10    0.05      0
        2048           256     float     sum      -1    11.00    0.10    0.05      0     9.00    0.10    0.05      0
        4096           512     float     sum      -1    16.00    0.10    0.05      0     9.00    0.10    0.05      0
# Avg bus bandwidth    : 41.7
";

    #[test]
    fn nccl_log_becomes_curve_of_out_of_place_times() {
        let curve = parse_nccl_log(LOG, "log.txt").unwrap();
        assert_eq!(
            (curve.kind, curve.members),
            (CollectiveKind::ReduceScatter, 2)
        );
        let micros = curve
            .points
            .iter()
            .map(|(bytes, seconds)| (*bytes, (seconds * 1e9).round() / 1e3));
        assert_eq!(
            micros.collect::<Vec<_>>(),
            [(1024.0, 10.0), (2048.0, 11.0), (4096.0, 16.0)]
        );
        // Without 2,048 B, interpolation a third of the way from 10 to 16 us gives 12 us instead of 11 us.
        assert!((mean_leave_one_out_prediction_error(&curve).unwrap() - 1.0 / 11.0).abs() < 1e-9);
        // Older logs have neither a column `root` nor a test name, so the file name must state the kind of collective.
        let older = LOG.replace("    root ", " ").replace("      -1 ", " ");
        let older = older.replace("# Collective test starting: reduce_scatter_perf\n", "");
        let other = parse_nccl_log(&older, "logs/reduce_scatter_2.txt").unwrap();
        assert_eq!(other, curve);
        for (log, file, expected) in [
            (older.as_str(), "log.txt", "states the test"),
            ("", "all_reduce.txt", "no `# Rank` lines"),
            (&LOG.replace("time", "busy"), "log.txt", "heading line"),
            (
                &LOG.replace("10.00", "N/A"),
                "log.txt",
                "log.txt:9: the time is \"N/A\"",
            ),
            (
                &LOG.replace(
                    "11.00    0.10    0.05      0",
                    "11.00    0.10    0.05      7",
                ),
                "log.txt",
                "log.txt:10: 7 numbers are wrong",
            ),
            (
                &LOG.replace("2048  ", "1024  "),
                "log.txt",
                "log.txt:10: 1024 B after 1024 B",
            ),
            (
                &LOG[..LOG.find("        1024").unwrap()],
                "log.txt",
                "no size with a time",
            ),
        ] {
            let error = parse_nccl_log(log, file).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
