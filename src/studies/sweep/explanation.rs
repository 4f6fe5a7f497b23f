//! Compares a row with its neighbours. A neighbour differs from the row along exactly one axis.

use super::objective::PARTS;
use super::setting::Settings;
use super::table::{SweepTable, measures_of_replayed_row};
use chakram_base::units::Span;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::TextStyleWidthAndDetail;

/// Compares row number `index` with its neighbours, and formats the result as text for users. The text lists neighbours
/// by how far they are from the row in the first objective, nearest first.
pub fn compare_row_with_neighbours(
    sweep: &SweepTable<'_>,
    index: usize,
    style: TextStyleWidthAndDetail,
) -> String {
    let row = &sweep.rows[index];
    let Some(own) = measures_of_replayed_row(row) else {
        return String::new();
    };
    let objective = sweep.study.objectives[0];
    let own_settings = sweep.study.merge_with_base_settings(&row.point);
    let own_score = objective.score_to_minimise(own, &own_settings);
    let mut beside: Vec<(f64, usize, String)> = Vec::new();
    for (i, other) in sweep.rows.iter().enumerate() {
        let Some((axis, measures)) = only_differing_axis(sweep, &row.point, &other.point)
            .zip(measures_of_replayed_row(other))
        else {
            continue;
        };
        let settings = sweep.study.merge_with_base_settings(&other.point);
        let (Some(score), Some(own_score)) =
            (objective.score_to_minimise(measures, &settings), own_score)
        else {
            continue;
        };
        let keys = sweep.study.axes[axis].keys.iter().map(String::as_str);
        beside.push((
            score - own_score,
            i,
            super::setting::format_settings_short(&other.point, keys),
        ));
    }
    beside.sort_by(|a, b| a.0.abs().total_cmp(&b.0.abs()).then(a.1.cmp(&b.1)));
    let heading = format!("ROW {} AGAINST ITS NEIGHBOURS", row.number);
    let columns = [
        left_aligned_column(&heading, 40),
        right_aligned_column(
            objective.column_name(),
            objective.column_name().len().max(12),
        ),
        right_aligned_column("change", 10),
        left_aligned_column("  most of it", 30),
    ];
    let table = TextTable::new(columns);
    let mut text = table.render_empty_line_and_headings(style);
    if beside.is_empty() {
        text += "  no replayed row differs along only one axis\n";
    }
    for (_, other, change) in beside.iter().take(20) {
        let Some(measures) = measures_of_replayed_row(&sweep.rows[*other]) else {
            continue;
        };
        let settings = sweep
            .study
            .merge_with_base_settings(&sweep.rows[*other].point);
        let (Some(value), Some(own_value)) = (
            objective.value_of_point(measures, &settings),
            objective.value_of_point(own, &own_settings),
        ) else {
            continue;
        };
        let change_text = format!("{:+.1} %", 100.0 * (value / own_value - 1.0));
        // The parts of an NPU's time add up to the makespan, so their changes add up to its change.
        let parts = (0..PARTS.len()).map(|part| {
            let (a, b) = (own.parts_ps[part] as i128, measures.parts_ps[part] as i128);
            (b - a, PARTS[part])
        });
        let most = parts.max_by_key(|(change, _)| change.abs());
        let most = most
            .filter(|(change, _)| *change != 0)
            .map(|(change, part)| {
                let sign = if change < 0 { '-' } else { '+' };
                format!("  {part} {sign}{}", Span(change.unsigned_abs() as u64))
            });
        let name = style.clip_to_width(&format!("row {}: {change}", sweep.rows[*other].number), 38);
        let (value, most) = (objective.format_value(value), most.unwrap_or_default());
        text += &table.render_line(&[&name, &value, &change_text, &most], anstyle::Style::new());
    }
    text
}

/// Returns the axis along which two points differ; `None` if they differ along no axis or along several.
fn only_differing_axis(sweep: &SweepTable<'_>, a: &Settings, b: &Settings) -> Option<usize> {
    let differing = |axis: &usize| {
        sweep.study.axes[*axis]
            .keys
            .iter()
            .any(|key| a.get(key) != b.get(key))
    };
    let mut axes = (0..sweep.study.axes.len()).filter(differing);
    let only = axes.next()?;
    axes.next().is_none().then_some(only)
}
