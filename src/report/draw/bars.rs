//! Charts of stacked bars, one bar per row.

use super::AxisValueFormatFn;
use super::rows::RowChart;

/// A part of a bar.
#[derive(Clone, Debug)]
pub struct BarPart {
    /// Index of the part's series.
    pub series: usize,
    /// Name of the series in data attributes, which programs read.
    pub key: &'static str,
    /// Length of the part, in units of the axis.
    pub value: u64,
    /// Text of the tooltip.
    pub title: String,
}

/// A bar of a chart.
#[derive(Clone, Debug)]
pub struct BarRow {
    /// Name of the bar.
    pub label: String,
    /// Parts of the bar, starting at the axis.
    pub parts: Vec<BarPart>,
}

/// Draws one bar per row over an axis from 0 to `most`. `name` is the drawing's accessible name.
pub fn draw_bars(name: &str, rows: &[BarRow], most: u64, format: AxisValueFormatFn<'_>) -> String {
    let mut chart = RowChart::new(rows.len(), most, format);
    for (i, row) in rows.iter().enumerate() {
        chart.draw_label(i, &row.label);
        let mut until = 0;
        for part in &row.parts {
            let (from, to) = (until, until + part.value);
            until = to;
            let at = chart.rect_between_values(i, from, to);
            let data = [
                ("row", row.label.clone()),
                ("key", part.key.to_owned()),
                ("value", part.value.to_string()),
            ];
            let class = format!("c{}", part.series);
            chart.svg.add_rect(at, &class, &part.title, &data);
        }
    }
    chart.svg.into_element(name)
}
