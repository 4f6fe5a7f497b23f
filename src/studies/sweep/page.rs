//! The page of a sweep: one file that needs no network and no script. Every point carries its command as a title.

use super::objective::SweepObjective;
use super::setting;
use super::table::{SweepTable, best_so_far, measures};
use chakram_base::units::thousands;
use chakram_report::draw::lines::{self, LineSeries};
use chakram_report::draw::parallel::{self, CoordinateLine};
use chakram_report::draw::scatter::{self, ScatterPoint};
use chakram_report::html::page::{figure, page, section, table, text};

/// Points that a chart shows, at most.
const MOST_MARKS: usize = 2_000;
/// Lines of the parallel coordinates, at most.
const MOST_LINES: usize = 300;
/// Rows of the table.
const ROWS: usize = 50;

/// Renders the page; `command` is the command of a row.
pub fn render(sweep: &SweepTable<'_>, command: &dyn Fn(usize) -> String) -> String {
    let study = sweep.study;
    let ranked = sweep.ranked();
    let mut body = format!(
        "<h1>{}</h1><p class=\"sub\">{}</p>",
        text(&study.name),
        text(&sweep.counts())
    );
    let notes = sweep.notes();
    if !notes.is_empty() {
        let notes: String = (notes.iter())
            .map(|note| format!("<li>{}</li>", text(note)))
            .collect();
        body += &format!("<ul class=\"warnings\">{notes}</ul>");
    }
    if let Some(best) = ranked.first() {
        let tiles = study.objectives.iter().enumerate().map(|(i, objective)| {
            let value = sweep
                .values(*best)
                .map(|all| objective.shown(all[i]))
                .unwrap_or_default();
            format!(
                "<div class=\"tile\"><span>best row: {}</span><b>{}</b><small>row {}</small></div>",
                objective.name(),
                text(&value),
                sweep.rows[*best].number
            )
        });
        let stated = sweep.stated().into_iter().filter_map(|objective| {
            let value = sweep.stated_value(*best, objective)?;
            let (name, shown) = (objective.name(), text(&objective.shown(value)));
            Some(format!(
                "<div class=\"tile\"><span>{name}</span><b>{shown}</b><small>of it</small></div>"
            ))
        });
        let tiles = tiles.chain(stated);
        body += &format!("<div class=\"tiles\">{}</div>", tiles.collect::<String>());
        body += &section("Points", "points", &points(sweep, &ranked, command));
        body += &section(
            "Parallel coordinates",
            "parallel",
            &coordinates(sweep, &ranked, command),
        );
        body += &section("Best so far", "best", &so_far(sweep));
        body += &section("Rows", "rows", &rows(sweep, &ranked, command));
    }
    body += &format!("<footer>chakram {}</footer>", env!("CARGO_PKG_VERSION"));
    page(&study.name, &body)
}

fn title(sweep: &SweepTable<'_>, index: usize, command: &dyn Fn(usize) -> String) -> String {
    let row = &sweep.rows[index];
    let values = sweep.values(index).unwrap_or_default();
    let values: Vec<_> = (sweep.study.objectives.iter().zip(values))
        .map(|(objective, value)| format!("{} {}", objective.name(), objective.shown(*value)))
        .collect();
    let point = setting::short(&row.point, sweep.keys());
    format!(
        "row {}: {}; {point} — {}",
        row.number,
        values.join(", "),
        command(index)
    )
}

/// Rows that a chart shows: the front, the best, and others evenly.
fn shown(sweep: &SweepTable<'_>, ranked: &[usize]) -> Vec<usize> {
    let mut chosen = ranked.to_vec();
    if ranked.len() > MOST_MARKS {
        let front = sweep.front();
        let step = ranked
            .len()
            .div_ceil(MOST_MARKS - front.len().min(MOST_MARKS / 2));
        chosen = ranked
            .iter()
            .copied()
            .step_by(step)
            .chain(front.into_iter().take(MOST_MARKS / 2))
            .collect();
        chosen.sort_unstable();
        chosen.dedup();
    }
    chosen
}

/// The first objective against the second, or against memory, NPUs or the row's number.
fn points(sweep: &SweepTable<'_>, ranked: &[usize], command: &dyn Fn(usize) -> String) -> String {
    let study = sweep.study;
    let first = study.objectives[0];
    let value = |index: usize, objective: SweepObjective| {
        objective.value(
            measures(&sweep.rows[index])?,
            &study.whole(&sweep.rows[index].point),
        )
    };
    let others = [SweepObjective::Memory, SweepObjective::Npus];
    let varies = |objective: &SweepObjective| {
        let mut values = ranked.iter().map(|row| value(*row, *objective));
        let one = values.next().flatten();
        one.is_some() && values.any(|other| other != one)
    };
    let second = study.objectives.get(1).copied();
    let second = second.or_else(|| others.into_iter().filter(|o| *o != first).find(varies));
    let front = sweep.front();
    let at = |row: usize| -> Option<(f64, f64)> {
        let y = value(row, first)?;
        let x = match second {
            Some(objective) => value(row, objective)?,
            None => sweep.rows[row].number as f64 + 1.0,
        };
        (x > 0.0 && y > 0.0).then_some((x, y))
    };
    let marks = shown(sweep, ranked);
    let best = ranked[0];
    let points: Vec<ScatterPoint> = marks
        .iter()
        .filter_map(|row| {
            let (x, y) = at(*row)?;
            let series = match *row {
                row if row == best => 2,
                row if study.objectives.len() > 1 && front.contains(&row) => 6,
                _ => 0,
            };
            Some(ScatterPoint {
                x,
                y,
                series,
                title: title(sweep, *row, command),
            })
        })
        .collect();
    let mut way: Vec<(f64, f64)> = match study.objectives.len() {
        2 => front.iter().filter_map(|row| at(*row)).collect(),
        _ => Vec::new(),
    };
    way.sort_by(|a, b| a.0.total_cmp(&b.0));
    let beside = second.map_or("row", SweepObjective::name);
    let format_x = |x: f64| second.map_or_else(|| format!("{x}"), |objective| objective.shown(x));
    let format_y = |y: f64| first.shown(y);
    let picture = scatter::with_line(
        "Points",
        &points,
        ("Pareto front", &way),
        (beside, first.name()),
        (&format_x, &format_y),
    );
    let mut legend = vec![(0, "replayed"), (2, "best")];
    if study.objectives.len() > 1 {
        legend.push((6, "Pareto front"));
    }
    let left_out = ranked.len() - points.len();
    let cut = match left_out {
        0 => String::new(),
        _ => format!(" {} points are left out.", thousands(left_out as u64)),
    };
    figure(
        &picture,
        &legend,
        &format!("Hover over a point for its settings and its command.{cut}"),
    )
}

/// Axes of the study, then objectives.
fn coordinates(
    sweep: &SweepTable<'_>,
    ranked: &[usize],
    command: &dyn Fn(usize) -> String,
) -> String {
    let study = sweep.study;
    let varied: Vec<&str> = (study.axes.iter())
        .filter(|axis| axis.values.len() > 1)
        .flat_map(|axis| axis.keys.iter().map(String::as_str))
        .collect();
    let chosen: Vec<usize> = ranked.iter().copied().take(MOST_LINES).collect();
    let mut axes = Vec::new();
    let mut places: Vec<Vec<f64>> = vec![Vec::new(); chosen.len()];
    for key in varied {
        let mut values: Vec<(Option<u64>, String)> = chosen
            .iter()
            .filter_map(|row| sweep.rows[*row].point.get(key))
            .map(|value| (value.number().map(f64::to_bits), value.to_string()))
            .collect();
        values.sort();
        values.dedup();
        let most = values.len().saturating_sub(1).max(1) as f64;
        for (place, row) in places.iter_mut().zip(&chosen) {
            let own = sweep.rows[*row]
                .point
                .get(key)
                .map(ToString::to_string)
                .unwrap_or_default();
            let at = values
                .iter()
                .position(|(_, value)| *value == own)
                .unwrap_or(0);
            place.push(if values.len() > 1 {
                at as f64 / most
            } else {
                0.5
            });
        }
        axes.push(parallel::CoordinateAxis {
            name: last_parts(key).to_owned(),
            values: values.into_iter().map(|(_, value)| value).collect(),
        });
    }
    for (i, objective) in study.objectives.iter().enumerate() {
        let all: Vec<f64> = chosen
            .iter()
            .filter_map(|row| Some(sweep.values(*row)?[i]))
            .collect();
        let (least, most) = all
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| {
                (a.min(*v), b.max(*v))
            });
        let span = if most > least { most - least } else { 1.0 };
        for (place, value) in places.iter_mut().zip(&all) {
            place.push((value - least) / span);
        }
        let ends = if most > least {
            vec![least, most]
        } else {
            vec![least]
        };
        axes.push(parallel::CoordinateAxis {
            name: objective.name().to_owned(),
            values: ends
                .into_iter()
                .map(|value| objective.shown(value))
                .collect(),
        });
    }
    let tenth = chosen.len().div_ceil(10);
    // The best are drawn last, above the others.
    let lines = chosen
        .iter()
        .enumerate()
        .rev()
        .map(|(rank, row)| CoordinateLine {
            places: places[rank].clone(),
            series: match rank {
                0 => 2,
                rank if rank < tenth => 1,
                _ => 4,
            },
            title: title(sweep, *row, command),
        });
    let lines: Vec<_> = lines.collect();
    let picture = parallel::chart("Parallel coordinates", &axes, &lines);
    let legend = [(2, "best"), (1, "best tenth"), (4, "others")];
    let caption = match ranked.len() > MOST_LINES {
        true => format!("The best {MOST_LINES} rows."),
        false => "All rows that were replayed.".to_owned(),
    };
    figure(&picture, &legend, &caption)
}

/// The last part of a plan's key, and the last two of a path: names of axes stand side by side.
fn last_parts(key: &str) -> &str {
    let kept = if key.starts_with("plan.") { 1 } else { 2 };
    key.rmatch_indices('.')
        .nth(kept - 1)
        .map_or(key, |(at, _)| &key[at + 1..])
}

/// The best of the first objective by row.
fn so_far(sweep: &SweepTable<'_>) -> String {
    let objective = sweep.study.objectives[0];
    let curve = best_so_far(sweep, objective, 0);
    let most = curve
        .iter()
        .fold(0.0_f64, |most, (_, value)| most.max(*value));
    // Charts have whole numbers.
    let scale = if most > 0.0 { 1e12 / most } else { 1.0 };
    let series = LineSeries {
        label: format!("best {} so far", objective.name()),
        points: curve
            .iter()
            .map(|(row, value)| (*row, (value * scale) as u64))
            .collect(),
    };
    let end = sweep.rows.last().map_or(1, |row| row.number.max(1));
    let rows = |row: f64| format!("{row:.0}");
    let value = |value: f64| objective.shown(value / scale);
    let picture = lines::chart("Best so far", &[series], (end, None), (&rows, &value));
    figure(&picture, &[(0, "best so far")], "By number of the row.")
}

fn rows(sweep: &SweepTable<'_>, ranked: &[usize], command: &dyn Fn(usize) -> String) -> String {
    let mut heads = vec!["point".to_owned()];
    heads.extend(
        sweep
            .study
            .objectives
            .iter()
            .map(|one| one.name().to_owned()),
    );
    heads.extend(["limited by".to_owned(), "command".to_owned()]);
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let rows: Vec<Vec<String>> = ranked
        .iter()
        .take(ROWS)
        .map(|index| {
            let row = &sweep.rows[*index];
            let mut cells = vec![text(&format!(
                "row {}: {}",
                row.number,
                setting::short(&row.point, sweep.keys())
            ))];
            let values = sweep.values(*index).unwrap_or_default();
            cells.extend(
                sweep
                    .study
                    .objectives
                    .iter()
                    .zip(values)
                    .map(|(o, value)| text(&o.shown(*value))),
            );
            cells.push(measures(row).map(|m| text(&m.limit())).unwrap_or_default());
            cells.push(format!("<code>{}</code>", text(&command(*index))));
            cells
        })
        .collect();
    table(&heads, &rows)
}
