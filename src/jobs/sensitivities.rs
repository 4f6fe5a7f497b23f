//! Computes how sensitive a job's makespan is to classes of durations, and to the machine's rates
//! and latencies.

use chakram_base::config::{
    ConfigLiteral, list_toml_number_like_values_with_paths, replace_toml_values,
};
use chakram_base::units::Span;
use chakram_engine::ReplayError;
use chakram_hardware::machine::Machine;
use chakram_report::sensitivity::{
    MakespanSensitivityReport, MakespanSensitivityRow, SensitivityReplayInputs, TENTH_LESS,
};

/// Maximum number of nodes in a job for which replays confirm every row of the report. Each row takes about thirty
/// replays.
const CONFIRMED_NODES: u64 = 20_000;

/// Text of a machine file, and its name for error messages.
#[derive(Clone, Copy, Debug)]
pub struct NamedMachineText<'a> {
    /// Contents of the file.
    pub text: &'a str,
    /// Name of the file for error messages.
    pub file: &'a str,
}

/// Words in the keys of rates. A higher value is faster.
const RATES: [&str; 4] = ["bandwidth", "memory_bandwidth", "peak", "local_bandwidth"];
/// Words in the keys of times. A lower value is faster.
const TIMES: [&str; 3] = ["latency", "memory_latency", "host"];
/// Smallest factor for a time. It makes the time nearly zero; exactly zero would need an infinite rate.
const NEARLY_NONE: f64 = 1e-6;

/// Largest factor used to measure a slope, and therefore the factor nearest to 1.
const NEAREST: f64 = 0.9999;
/// Number of bisections between the last factor in the linear part and the first factor beyond it.
const HALVINGS: u32 = 6;
/// Positions within a range, as fractions of its length. At these positions, the makespans are compared with a straight
/// line. Most nonlinear curves already leave the line at the first of these positions.
const PARTS_OF_RANGE: [f64; 7] = [0.5, 0.25, 0.75, 0.125, 0.875, 0.375, 0.625];

/// Finds the sensitivities of `run` on the machine that the text describes.
///
/// # Errors
///
/// Fails if a replay fails.
pub fn find_sensitivities(
    run: &SensitivityReplayInputs<'_>,
    machine: NamedMachineText<'_>,
) -> Result<MakespanSensitivityReport, ReplayError> {
    let nodes = run.workload.node_count();
    let mut report = run.find_sensitivities(nodes <= CONFIRMED_NODES)?;
    if nodes > super::MAX_REPEATED_NODES {
        report.notes.push(
            "the machine's rates and latencies were not varied: with this many nodes a replay for each takes too long".to_owned(),
        );
        return Ok(report);
    }
    let makespan = run.replay_makespan_on(run.machine)?;
    for (path, value) in list_toml_number_like_values_with_paths(machine.text) {
        let has = |words: &[&str]| path.split('.').any(|part| words.contains(&part));
        let is_rate = has(&RATES);
        if !is_rate && !has(&TIMES) || describes_measurements(&path) {
            continue;
        }
        // `end` replays the job with the key's time multiplied by approximately `factor`.
        let end = |factor: f64| -> Option<ScaledMachineKeyRun> {
            let (factor, scaled) = match is_rate {
                true => (
                    factor,
                    scale_number_or_leading_number(&value, 1.0 / factor)?,
                ),
                false => scale_time_to_whole_picoseconds(&value, factor)?,
            };
            let text = replace_toml_values(machine.text, machine.file, &[(&path, &scaled)]).ok()?;
            let other =
                Machine::parse_edited_text_of_machine(&text, machine.file, run.machine).ok()?;
            let makespan = run.replay_makespan_on(&other).ok()?;
            Some(ScaledMachineKeyRun { factor, makespan })
        };
        if let Some(row) = sensitivity_row(
            &path,
            makespan,
            report.path_nodes,
            nodes <= CONFIRMED_NODES,
            end,
        ) {
            report.rows.push(row);
        }
    }
    report.sort_by_gain();
    Ok(report)
}

/// Returns true if a key describes measurements instead of the machine itself: measured times, or the rates of the
/// parts on which they were measured (`measured_at`).
fn describes_measurements(path: &str) -> bool {
    path.contains("curve") || path.split('.').any(|part| part.starts_with("measured"))
}

/// A run with a changed value of one machine key.
#[derive(Clone, Copy, Debug)]
struct ScaledMachineKeyRun {
    /// Factor that multiplies the key's time. Below 1, the run is faster.
    factor: f64,
    makespan: Span,
}

/// Returns the row of a machine key, or `None` if the key has no effect on the makespan. `end` replays the job with the
/// key's time multiplied by approximately its argument.
fn sensitivity_row(
    path: &str,
    makespan: Span,
    path_nodes: u64,
    confirms: bool,
    end: impl Fn(f64) -> Option<ScaledMachineKeyRun>,
) -> Option<MakespanSensitivityRow> {
    let [tenth_less, none] = [end(TENTH_LESS)?, end(NEARLY_NONE)?].map(|at| at.makespan);
    if tenth_less == makespan && none == makespan {
        return None;
    }
    let saved = |at: ScaledMachineKeyRun| makespan.0 as f64 - at.makespan.0 as f64;
    let slope_to = |factor: f64| {
        let at = end(factor)?;
        Some(saved(at) / (1.0 - at.factor))
    };
    // Every node's end is rounded to a picosecond, so a wider range gives a more exact slope. The makespan is linear
    // down to `factor` if all makespans in between are on the line through the two end points.
    let straight_to = |factor: f64| -> Option<bool> {
        let slope = slope_to(factor)?;
        for part in PARTS_OF_RANGE {
            let at = end(1.0 - (1.0 - factor) * part)?;
            if (saved(at) - slope * (1.0 - at.factor)).abs() > path_nodes as f64 {
                return Some(false);
            }
        }
        Some(true)
    };
    let mut holds_to = 0.99;
    if confirms {
        let mut bad = 0.01;
        if straight_to(bad)? {
            holds_to = bad;
        } else {
            // The makespan may bend very close to the unchanged run, so try factors closer to 1.
            for near in [0.99, 0.999, 0.9999] {
                holds_to = near;
                if straight_to(near)? {
                    break;
                }
                (holds_to, bad) = (1.0, near);
            }
            for _ in 0..HALVINGS {
                let middle = f64::midpoint(holds_to, bad);
                match straight_to(middle)? {
                    true => holds_to = middle,
                    false => bad = middle,
                }
            }
        }
    }
    let slope = slope_to(holds_to.min(NEAREST))?;
    Some(MakespanSensitivityRow {
        what: format!("machine.{path}"),
        setting: format!("machine.{path}"),
        slope_ps: slope.round() as i64,
        holds_to,
        tenth_less,
        none,
        replayed: true,
    })
}

/// Multiplies a time by approximately `factor`, so that the result is a whole number of picoseconds. Also returns the
/// exact factor. Callers need the exact factor, because a replay uses the same rounded latency hundreds of times.
fn scale_time_to_whole_picoseconds(
    value: &ConfigLiteral,
    factor: f64,
) -> Option<(f64, ConfigLiteral)> {
    let ConfigLiteral::Text(text) = value else {
        return Some((factor, scale_number_or_leading_number(value, factor)?));
    };
    let time: Span = text.parse().ok()?;
    let scaled = (time.0 as f64 * factor).round();
    let factor = scaled / time.0.max(1) as f64;
    Some((factor, ConfigLiteral::Text(format!("{scaled} ps"))))
}

/// Multiplies a number, or the number at the start of a string, by `factor`.
fn scale_number_or_leading_number(value: &ConfigLiteral, factor: f64) -> Option<ConfigLiteral> {
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
