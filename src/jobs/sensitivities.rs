//! Sensitivities of a job: the effect of classes of durations, and of the machine's rates and latencies.

use chakram_base::config::{ConfigLiteral, number_leaves, with_values};
use chakram_base::units::Span;
use chakram_engine::ReplayError;
use chakram_hardware::machine::Machine;
use chakram_report::sensitivity::{SensitivityReport, SensitivityRow, SensitivityRun, TENTH_LESS};

/// Maximum number of nodes for which replays confirm every row; each row takes about thirty replays.
const CONFIRMED_NODES: u64 = 20_000;

/// Text of a machine's file, and its name in errors.
#[derive(Clone, Copy, Debug)]
pub struct MachineText<'a> {
    /// The text.
    pub text: &'a str,
    /// Its name.
    pub file: &'a str,
}

/// Words in keys of rates (higher is faster).
const RATES: [&str; 4] = ["bandwidth", "memory_bandwidth", "peak", "local_bandwidth"];
/// Words in keys of times (lower is faster).
const TIMES: [&str; 3] = ["latency", "memory_latency", "host"];
/// Smallest factor on time that is tried, nearly no time; a factor of 0 would need an infinite rate.
const NEARLY_NONE: f64 = 1e-6;

/// Finds the sensitivities of `run` on the machine with this text.
///
/// # Errors
///
/// Fails if a replay fails.
pub fn find_sensitivities(
    run: &SensitivityRun<'_>,
    machine: MachineText<'_>,
) -> Result<SensitivityReport, ReplayError> {
    let nodes = run.workload.nodes();
    let mut report = run.find(nodes <= CONFIRMED_NODES)?;
    if nodes > super::MAX_REPEATED_NODES {
        report.notes.push(
            "rates and latencies of the machine take a replay each, and were not tried for so many nodes".to_owned(),
        );
        return Ok(report);
    }
    let makespan = run.makespan_on(run.machine)?;
    for (path, value) in number_leaves(machine.text) {
        let has = |words: &[&str]| path.split('.').any(|part| words.contains(&part));
        let is_rate = has(&RATES);
        if !is_rate && !has(&TIMES) || path.contains("curve") || path.starts_with("measured") {
            continue;
        }
        // Replays with this factor on the key's time and returns the makespan.
        let end = |factor: f64| -> Option<Span> {
            let scaled = scale(&value, if is_rate { 1.0 / factor } else { factor })?;
            let text = with_values(machine.text, machine.file, &[(&path, &scaled)]).ok()?;
            let other = Machine::parse_edited(&text, machine.file, run.machine).ok()?;
            run.makespan_on(&other).ok()
        };
        if let Some(row) = rate_row(
            &path,
            makespan,
            report.path_nodes,
            nodes <= CONFIRMED_NODES,
            end,
        ) {
            report.rows.push(row);
        }
    }
    report.sort();
    Ok(report)
}

/// Returns the row of a machine key; `None` if the key has no effect. `end` returns the makespan for a factor on the
/// key's time.
fn rate_row(
    path: &str,
    makespan: Span,
    path_nodes: u64,
    confirms: bool,
    end: impl Fn(f64) -> Option<Span>,
) -> Option<SensitivityRow> {
    let (tenth_less, none) = (end(TENTH_LESS)?, end(NEARLY_NONE)?);
    if tenth_less == makespan && none == makespan {
        return None;
    }
    let near = end(0.99)?;
    let slope = (makespan.0 as f64 - near.0 as f64) / 0.01;
    let line = |factor: f64| makespan.0 as f64 - slope * (1.0 - factor);
    // Tolerance: each node of the path is rounded, and so was the slope, which was measured over a change of 1 %.
    let is_on_line = |factor: f64| -> Option<bool> {
        let off = (end(factor)?.0 as f64 - line(factor)).abs();
        Some(off <= path_nodes as f64 * (1.0 + 100.0 * (1.0 - factor)))
    };
    let mut holds_to = 0.99;
    if confirms {
        let (mut good, mut bad) = (0.99, 0.01);
        match is_on_line(bad)? {
            true => good = bad,
            false => {
                for _ in 0..6 {
                    let middle = (good + bad) / 2.0;
                    match is_on_line(middle)? {
                        true => good = middle,
                        false => bad = middle,
                    }
                }
            }
        }
        holds_to = good;
    }
    Some(SensitivityRow {
        what: format!("machine.{path}"),
        setting: format!("machine.{path}"),
        slope_ps: slope.round() as i64,
        holds_to,
        tenth_less,
        none,
        replayed: true,
    })
}

/// Multiplies a number, or the leading number of a text, by `factor`.
fn scale(value: &ConfigLiteral, factor: f64) -> Option<ConfigLiteral> {
    Some(match value {
        ConfigLiteral::Whole(number) => ConfigLiteral::Number(*number as f64 * factor),
        ConfigLiteral::Number(number) => ConfigLiteral::Number(number * factor),
        ConfigLiteral::Text(text) => {
            let end = text
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(text.len());
            let (number, unit) = text.split_at(end);
            ConfigLiteral::Text(format!("{}{unit}", number.parse::<f64>().ok()? * factor))
        }
        _ => return None,
    })
}
