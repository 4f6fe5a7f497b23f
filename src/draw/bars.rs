//! Stacked bars, one for each row.

use super::axis::AxisScale;
use super::svg::{Frame, SvgDrawing, TextAnchor};
use super::{FOOT, LABELS, ROW, ValueFormat, WIDTH};

/// A part of a bar.
#[derive(Clone, Debug)]
pub(crate) struct BarPart {
    /// Number of its series.
    pub series: usize,
    /// Name of its series, as a program knows it.
    pub key: &'static str,
    /// Its length.
    pub value: u64,
    /// Text that explains it.
    pub title: String,
}

/// A bar.
#[derive(Clone, Debug)]
pub(crate) struct BarRow {
    pub label: String,
    pub parts: Vec<BarPart>,
}

/// Draws bars against an axis from 0 to `most`.
pub(crate) fn chart(name: &str, rows: &[BarRow], most: u64, format: ValueFormat<'_>) -> String {
    let height = ROW * rows.len() as f64;
    let mut svg = SvgDrawing::new(WIDTH, height + FOOT);
    let area = Frame {
        x: LABELS,
        y: 0.0,
        width: WIDTH - LABELS - 40.0,
        height,
    };
    let scale = AxisScale::linear(most as f64, (area.x, area.x + area.width));
    scale.below(&mut svg, area, format);
    for (i, row) in rows.iter().enumerate() {
        let y = ROW * i as f64;
        svg.text(
            (LABELS - 8.0, y + 14.0),
            TextAnchor::End,
            "label",
            &row.label,
        );
        let mut until = 0;
        for part in &row.parts {
            let (from, to) = (until, until + part.value);
            until = to;
            let (x, end) = (scale.place(from as f64), scale.place(to as f64));
            let at = Frame {
                x,
                y: y + 2.0,
                width: end - x,
                height: ROW - 4.0,
            };
            let data = [
                ("row", row.label.clone()),
                ("key", part.key.to_owned()),
                ("value", part.value.to_string()),
            ];
            svg.rect(at, &format!("c{}", part.series), &part.title, &data);
        }
    }
    svg.finish(name)
}
