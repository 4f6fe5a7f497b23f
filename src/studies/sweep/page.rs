//! The HTML page of a sweep: a single file that needs neither network nor scripts. A point's tooltip shows the command
//! that replays it.

use super::objective::SweepObjective;
use super::setting;
use super::table::{SweepTable, list_best_values_so_far, measures_of_replayed_row};
use chakram_base::config::ConfigLiteral;
use chakram_base::units::format_thousands;
use chakram_report::draw::lines::{self, StepChartLine};
use chakram_report::draw::parallel::{self, ParallelCoordinateLine};
use chakram_report::draw::scatter::{
    LogarithmicOrAutomaticScale, ScatterChart, ScatterPoint, ScatterPolyline,
};
use chakram_report::html::page::{
    escape_html, render_figure, render_page, render_section_unless_empty,
    render_table_of_escaped_cells,
};

/// Maximum number of points in a chart.
const MOST_MARKS: usize = 2_000;
/// Maximum number of lines in the chart of parallel coordinates.
const MOST_LINES: usize = 300;
/// Maximum number of rows in the table.
const ROWS: usize = 50;

/// Renders the page; `command` maps a row's index to the command that replays it.
pub fn render_sweep_page(sweep: &SweepTable<'_>, command: &dyn Fn(usize) -> String) -> String {
    let study = sweep.study;
    let ranked = sweep.ranked_rows();
    let mut body = format!(
        "<h1>{}</h1><p class=\"sub\">{}</p>",
        escape_html(&study.name),
        escape_html(&sweep.describe_counts())
    );
    let notes = sweep.describe_keys_without_effect();
    if !notes.is_empty() {
        let notes: String = (notes.iter())
            .map(|note| format!("<li>{}</li>", escape_html(note)))
            .collect();
        body += &format!("<ul class=\"warnings\">{notes}</ul>");
    }
    if !ranked.is_empty() {
        let bests = sweep.best_row_by_each_objective();
        body += &render_best_row_tiles(sweep, &bests);
        body += &render_section_unless_empty(
            "Points",
            "points",
            &render_objective_charts(sweep, &ranked, &bests, command),
        );
        body += &render_section_unless_empty(
            "Parallel coordinates",
            "parallel",
            &render_parallel_coordinates(sweep, &ranked, command),
        );
        body += &render_section_unless_empty(
            "Best so far",
            "best",
            &render_chart_of_best_values_so_far(sweep),
        );
        body += &render_section_unless_empty(
            "Rows",
            "rows",
            &render_rows(sweep, &ranked, &bests, command),
        );
    }
    body += &format!("<footer>chakram {}</footer>", env!("CARGO_PKG_VERSION"));
    render_page(&study.name, &body)
}

fn row_title(sweep: &SweepTable<'_>, index: usize, command: &dyn Fn(usize) -> String) -> String {
    let row = &sweep.rows[index];
    let values = sweep.all_objective_values_of_row(index).unwrap_or_default();
    let values: Vec<_> = (sweep.study.objectives.iter().zip(values))
        .map(|(objective, value)| {
            format!(
                "{} {}",
                objective.column_name(),
                objective.format_value(*value)
            )
        })
        .collect();
    let point = setting::format_settings_short(&row.point, sweep.axis_keys());
    format!(
        "row {}: {}; {point} — {}",
        row.number,
        values.join(", "),
        command(index)
    )
}

/// Returns the rows to show in a chart. If there are too many, these are the Pareto front and a sample of the others,
/// evenly spaced in the ranking.
fn choose_pareto_and_sampled_rows(sweep: &SweepTable<'_>, ranked: &[usize]) -> Vec<usize> {
    let mut chosen = ranked.to_vec();
    if ranked.len() > MOST_MARKS {
        let front = sweep.pareto_front();
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

/// Renders, for each objective, the best row and its interval, which is compared with other rows.
fn render_best_row_tiles(sweep: &SweepTable<'_>, bests: &[(SweepObjective, usize)]) -> String {
    let tile = |(objective, row): &(SweepObjective, usize)| {
        let place = sweep
            .study
            .objectives
            .iter()
            .position(|one| one == objective);
        let value = place.and_then(|i| {
            Some(objective.format_value(sweep.all_objective_values_of_row(*row)?[i]))
        });
        let interval = match &*sweep.interval_text(*row, *objective) {
            "" => String::new(),
            ends => format!("<small>90 %: {}</small>", escape_html(ends)),
        };
        format!(
            "<div class=\"tile\"><span>best {}</span><b>{}</b><small>row {}</small>{interval}</div>",
            objective.column_name(),
            escape_html(&value.unwrap_or_default()),
            sweep.rows[*row].number,
        )
    };
    let tiles: String = bests.iter().map(tile).collect();
    let (first, best) = bests[0];
    let stated = sweep.unoptimised_objectives().into_iter().filter_map(|objective| {
        let value = sweep.objective_value_of_row(best, objective)?;
        let (name, shown) = (objective.column_name(), escape_html(&objective.format_value(value)));
        let number = sweep.rows[best].number;
        Some(format!(
            "<div class=\"tile\"><span>{name}</span><b>{shown}</b><small>row {number}</small></div>"
        ))
    });
    let tiles = tiles + &stated.collect::<String>();
    let lead = sweep.describe_rows_within_interval_of_best(first, best);
    let lead = lead.map_or(String::new(), |lead| {
        format!("<p class=\"sub\">{}.</p>", escape_html(&lead))
    });
    format!("<div class=\"tiles\">{tiles}</div>{lead}")
}

/// Renders a chart of the first objective against each of the others. If there is no other objective, charts show the
/// first against memory, NPUs or the row's index.
fn render_objective_charts(
    sweep: &SweepTable<'_>,
    ranked: &[usize],
    bests: &[(SweepObjective, usize)],
    command: &dyn Fn(usize) -> String,
) -> String {
    let study = sweep.study;
    let first = study.objectives[0];
    let others = [SweepObjective::Memory, SweepObjective::Npus];
    let varies = |objective: &SweepObjective| {
        let mut values = ranked
            .iter()
            .map(|row| objective_value_of_row(sweep, *row, *objective));
        let one = values.next().flatten();
        one.is_some() && values.any(|other| other != one)
    };
    let mut beside: Vec<Option<SweepObjective>> =
        study.objectives[1..].iter().copied().map(Some).collect();
    // Omit the chart if one row is the best by both objectives, because there is no trade-off to show.
    let is_chosen = |second: &Option<SweepObjective>| {
        let best = |objective: SweepObjective| {
            let mut bests = bests.iter();
            bests
                .find(|(one, _)| *one == objective)
                .map(|(_, row)| *row)
        };
        second.is_none_or(|second| best(second) != best(first))
    };
    if beside.iter().any(is_chosen) {
        beside.retain(is_chosen);
    }
    if beside.is_empty() {
        beside.push(others.into_iter().filter(|o| *o != first).find(varies));
    }
    let front = sweep.pareto_front();
    let charts = beside.into_iter().map(|second| {
        let chart = PointsChart {
            sweep,
            ranked,
            bests,
            front: &front,
            first,
            second,
        };
        chart.draw_chart(command)
    });
    charts.collect()
}

fn objective_value_of_row(
    sweep: &SweepTable<'_>,
    row: usize,
    objective: SweepObjective,
) -> Option<f64> {
    let settings = sweep.study.merge_with_base_settings(&sweep.rows[row].point);
    objective.value_of_point(measures_of_replayed_row(&sweep.rows[row])?, &settings)
}

/// A chart of the first objective against another quantity.
struct PointsChart<'a> {
    sweep: &'a SweepTable<'a>,
    ranked: &'a [usize],
    bests: &'a [(SweepObjective, usize)],
    front: &'a [usize],
    first: SweepObjective,
    /// Second objective; `None` for the row's index.
    second: Option<SweepObjective>,
}

impl PointsChart<'_> {
    /// Returns the coordinates of a row in the chart.
    fn coordinates_of_row(&self, row: usize) -> Option<(f64, f64)> {
        let x = match self.second {
            Some(objective) => objective_value_of_row(self.sweep, row, objective)?,
            None => self.sweep.rows[row].number as f64,
        };
        Some((x, objective_value_of_row(self.sweep, row, self.first)?))
    }

    /// Returns the labels of the best rows. Each has the row's coordinates, and the objectives by which the row is
    /// best.
    fn best_row_labels(&self) -> Vec<(f64, f64, String)> {
        let mut named: Vec<(usize, Vec<&str>)> = Vec::new();
        for (objective, row) in self.bests {
            match named.iter_mut().find(|(known, _)| known == row) {
                Some((_, names)) => names.push(objective.column_name()),
                None => named.push((*row, vec![objective.column_name()])),
            }
        }
        let named = named.into_iter().filter_map(|(row, names)| {
            let (x, y) = self.coordinates_of_row(row)?;
            let number = self.sweep.rows[row].number;
            Some((x, y, format!("best {}: row {number}", names.join(", "))))
        });
        named.collect()
    }

    /// Returns the Pareto front of the two quantities, from left to right. Empty if there is no second quantity.
    fn pareto_front_line(&self) -> ScatterPolyline {
        let less_is_better = |objective: SweepObjective, value: f64| match objective.is_maximised()
        {
            true => -value,
            false => value,
        };
        let mut way: Vec<(f64, f64)> = Vec::new();
        if let Some(second) = self.second {
            let places = self
                .ranked
                .iter()
                .filter_map(|row| self.coordinates_of_row(*row));
            let mut places: Vec<_> = places
                .map(|(x, y)| {
                    (
                        less_is_better(second, x),
                        less_is_better(self.first, y),
                        (x, y),
                    )
                })
                .collect();
            places.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
            let mut least = f64::INFINITY;
            for (_, y, place) in places {
                if y < least {
                    least = y;
                    way.push(place);
                }
            }
        }
        ScatterPolyline {
            name: "no row is better in both".to_owned(),
            series: 6,
            way,
        }
    }

    fn draw_chart(&self, command: &dyn Fn(usize) -> String) -> String {
        let (sweep, first, second) = (self.sweep, self.first, self.second);
        let has_front = sweep.study.objectives.len() > 1;
        let is_best = |row: usize| self.bests.iter().any(|(_, best)| *best == row);
        let mut points: Vec<ScatterPoint> = choose_pareto_and_sampled_rows(sweep, self.ranked)
            .into_iter()
            .filter_map(|row| {
                let (x, y) = self.coordinates_of_row(row)?;
                let series = match row {
                    row if is_best(row) => 2,
                    row if has_front && self.front.contains(&row) => 6,
                    _ => 0,
                };
                let title = row_title(sweep, row, command);
                Some(ScatterPoint {
                    x,
                    y,
                    series,
                    title,
                })
            })
            .collect();
        // Draw named points last, so that they are on top.
        points.sort_by_key(|point| [0, 6, 2].iter().position(|series| *series == point.series));
        let line = self.pareto_front_line();
        let beside = second.map_or("row", SweepObjective::column_name);
        let format_x = |x: f64| {
            second.map_or_else(|| format!("{x:.0}"), |objective| objective.format_value(x))
        };
        let format_y = |y: f64| first.format_value(y);
        let picture = ScatterChart {
            name: &format!("{} against {beside}", first.column_name()),
            axes: (beside, first.column_name()),
            scales: (
                LogarithmicOrAutomaticScale::Fitting,
                LogarithmicOrAutomaticScale::Fitting,
            ),
            points: &points,
            lines: if line.way.is_empty() { &[] } else { &[line] },
            names: &self.best_row_labels(),
            ..ScatterChart::default()
        };
        let picture = picture.draw_chart((&format_x, &format_y));
        let mut legend = vec![(0, "replayed"), (2, "best")];
        if has_front {
            legend.push((
                6,
                "Pareto front of all objectives; the line is that of these two",
            ));
        }
        let cut = match self.ranked.len() - points.len() {
            0 => String::new(),
            left_out => format!(
                " {} points are left out.",
                format_thousands(left_out as u64)
            ),
        };
        let caption = format!("Hover over a point for its settings and its command.{cut}");
        render_figure(&picture, &legend, &caption)
    }
}

/// Renders a chart of parallel coordinates: first the study's axes, then its objectives.
fn render_parallel_coordinates(
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
        let (axis, of_rows) = chart_axis_of_setting(sweep, key, &chosen);
        for (place, at) in places.iter_mut().zip(of_rows) {
            place.push(at);
        }
        axes.push(axis);
    }
    for (i, objective) in study.objectives.iter().enumerate() {
        let all: Vec<f64> = chosen
            .iter()
            .filter_map(|row| Some(sweep.all_objective_values_of_row(*row)?[i]))
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
        let ends = match most > least {
            true => vec![
                (0.0, objective.format_value(least)),
                (1.0, objective.format_value(most)),
            ],
            false => vec![(0.0, objective.format_value(least))],
        };
        axes.push(parallel::ParallelCoordinateAxis {
            name: objective.column_name().to_owned(),
            values: ends,
        });
    }
    let tenth = chosen.len().div_ceil(10);
    // Draw the best rows last, so that they are on top.
    let lines = chosen
        .iter()
        .enumerate()
        .rev()
        .map(|(rank, row)| ParallelCoordinateLine {
            places: places[rank].clone(),
            series: match rank {
                0 => 2,
                rank if rank < tenth => 1,
                _ => 4,
            },
            title: row_title(sweep, *row, command),
        });
    let lines: Vec<_> = lines.collect();
    let picture = parallel::draw_parallel_coordinates("Parallel coordinates", &axes, &lines);
    let legend = [(2, "best"), (1, "best tenth"), (4, "others")];
    let caption = match ranked.len() > MOST_LINES {
        true => format!("The best {MOST_LINES} rows."),
        false => "All rows that were replayed.".to_owned(),
    };
    render_figure(&picture, &legend, &caption)
}

/// Returns a setting's axis in the chart, and where each row is on this axis. Places numbers by value (logarithmically
/// if their range is large), and words at even distances.
fn chart_axis_of_setting(
    sweep: &SweepTable<'_>,
    key: &str,
    rows: &[usize],
) -> (parallel::ParallelCoordinateAxis, Vec<f64>) {
    let value = |row: &usize| sweep.rows[*row].point.get(key);
    let number = |row: &usize| value(row).and_then(ConfigLiteral::as_number);
    let word = |row: &usize| value(row).map(ToString::to_string).unwrap_or_default();
    let numbers: Option<Vec<f64>> = rows.iter().map(number).collect();
    let mut words: Vec<String> = rows.iter().map(word).collect();
    let places = match numbers {
        Some(numbers) => {
            let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
            let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let is_wide = least > 0.0 && most / least > 3.0;
            let scale = |value: f64| if is_wide { value.ln() } else { value };
            let range = scale(most) - scale(least);
            let place = |value: f64| match range > 0.0 {
                true => (scale(value) - scale(least)) / range,
                false => 0.5,
            };
            numbers.into_iter().map(place).collect()
        }
        None => {
            let mut known = words.clone();
            known.sort();
            known.dedup();
            let last = known.len().saturating_sub(1).max(1) as f64;
            let place = |word: &String| match known.len() {
                1 => 0.5,
                _ => known.binary_search(word).unwrap_or(0) as f64 / last,
            };
            words.iter().map(place).collect::<Vec<f64>>()
        }
    };
    let mut values: Vec<(f64, String)> = places.iter().copied().zip(words.drain(..)).collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    values.dedup();
    let axis = parallel::ParallelCoordinateAxis {
        name: shorten_key(key).to_owned(),
        values,
    };
    (axis, places)
}

/// Returns the last part of a plan key, or the last two parts of another path, because an axis has no space for the
/// full name.
fn shorten_key(key: &str) -> &str {
    let kept = if key.starts_with("plan.") { 1 } else { 2 };
    key.rmatch_indices('.')
        .nth(kept - 1)
        .map_or(key, |(at, _)| &key[at + 1..])
}

/// Renders a chart of the best value so far by the first objective, in the order of rows.
fn render_chart_of_best_values_so_far(sweep: &SweepTable<'_>) -> String {
    let objective = sweep.study.objectives[0];
    let curve = list_best_values_so_far(sweep, objective, 0);
    let most = curve
        .iter()
        .fold(0.0_f64, |most, (_, value)| most.max(*value));
    // Charts need integers, so scale the values to a large range.
    let scale = if most > 0.0 { 1e12 / most } else { 1.0 };
    let series = StepChartLine {
        label: format!("best {} so far", objective.column_name()),
        points: curve
            .iter()
            .map(|(row, value)| (*row, (value * scale) as u64))
            .collect(),
    };
    let end = sweep.rows.last().map_or(1, |row| row.number.max(1));
    let rows = |row: f64| format!("{row:.0}");
    let value = |value: f64| objective.format_value(value / scale);
    let picture = lines::draw_lines("Best so far", &[series], (end, None), (&rows, &value));
    render_figure(&picture, &[(0, "best so far")], "By number of the row.")
}

fn render_rows(
    sweep: &SweepTable<'_>,
    ranked: &[usize],
    bests: &[(SweepObjective, usize)],
    command: &dyn Fn(usize) -> String,
) -> String {
    let first = sweep.study.objectives[0];
    let best = bests.first().map_or(ranked[0], |(_, row)| *row);
    let within = sweep.interval_of_objective(best, first);
    let mut heads = vec!["point".to_owned()];
    heads.extend(
        sweep
            .study
            .objectives
            .iter()
            .map(|one| one.column_name().to_owned()),
    );
    heads.push(format!("{}, 90 %", first.column_name()));
    heads.extend(["limited by".to_owned(), "command".to_owned()]);
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let rows: Vec<Vec<String>> = ranked
        .iter()
        .take(ROWS)
        .map(|index| {
            let row = &sweep.rows[*index];
            let marks = bests.iter().filter(|(_, best)| best == index);
            let mut marks: Vec<String> = marks
                .map(|(one, _)| format!("best {}", one.column_name()))
                .collect();
            let value = objective_value_of_row(sweep, *index, first);
            let is_inside =
                |[low, high]: [f64; 2]| value.is_some_and(|own| (low..=high).contains(&own));
            if *index != best && within.is_some_and(is_inside) {
                marks.push("within the interval of the best".to_owned());
            }
            let marks = match &marks[..] {
                [] => String::new(),
                marks => format!(" <small>{}</small>", escape_html(&marks.join(", "))),
            };
            let point = setting::format_settings_short(&row.point, sweep.axis_keys());
            let mut cells = vec![format!(
                "{}{marks}",
                escape_html(&format!("row {}: {point}", row.number))
            )];
            let values = sweep
                .all_objective_values_of_row(*index)
                .unwrap_or_default();
            cells.extend(
                sweep
                    .study
                    .objectives
                    .iter()
                    .zip(values)
                    .map(|(o, value)| escape_html(&o.format_value(*value))),
            );
            cells.push(escape_html(&sweep.interval_text(*index, first)));
            cells.push(
                measures_of_replayed_row(row)
                    .map(|m| escape_html(&m.describe_largest_part()))
                    .unwrap_or_default(),
            );
            cells.push(format!("<code>{}</code>", escape_html(&command(*index))));
            cells
        })
        .collect();
    let left_out = ranked.len().saturating_sub(ROWS);
    let cut = match left_out {
        0 => String::new(),
        _ => format!(
            "<p class=\"sub\">{} more rows are in rows.csv.</p>",
            format_thousands(left_out as u64)
        ),
    };
    let lead = "<p class=\"sub\">A click on a command selects the whole of it.</p>";
    format!(
        "{lead}{}{cut}",
        render_table_of_escaped_cells(&heads, &rows)
    )
}
