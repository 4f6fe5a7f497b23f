//! Heat maps: one cell per row and column, shaded by its value.

use super::svg::{DrawingRect, SvgDrawing, TextAnchor};

/// Side length of the map, in drawing units.
const SIDE: f64 = 480.0;
const LEFT: f64 = 80.0;
const HEAD: f64 = 24.0;

/// Draws a map of `rows`, where each row is the list of its columns' values. `label` returns the label of a row or
/// column. `describe` returns the tooltip of the cell at a row and column.
pub fn draw_heat_map(
    name: &str,
    values: &[Vec<u64>],
    label: &dyn Fn(usize) -> String,
    describe: &dyn Fn(usize, usize) -> String,
) -> String {
    let most = values.iter().flatten().copied().max().unwrap_or(0).max(1);
    let count = values.len().max(1);
    let cell = (SIDE / count as f64).min(48.0);
    let side = cell * count as f64;
    let mut svg = SvgDrawing::new(LEFT + side + 8.0, HEAD + side + 8.0);
    // If the labels would overlap, show only every n-th label.
    let every = (16.0 / cell).ceil().max(1.0) as usize;
    for i in (0..values.len()).step_by(every) {
        let middle = (i as f64 + 0.5) * cell;
        svg.add_text(
            (LEFT - 6.0, HEAD + middle + 4.0),
            TextAnchor::End,
            "axis",
            &label(i),
        );
        if i % (2 * every) == 0 || cell > 30.0 {
            svg.add_text(
                (LEFT + middle, HEAD - 6.0),
                TextAnchor::Middle,
                "axis",
                &label(i),
            );
        }
    }
    let whole = DrawingRect {
        x: LEFT,
        y: HEAD,
        width: side,
        height: side,
    };
    svg.add_rect(whole, "m0", "0 B", &[]);
    for (i, row) in values.iter().enumerate() {
        for (j, value) in row.iter().enumerate() {
            let at = DrawingRect {
                x: LEFT + j as f64 * cell,
                y: HEAD + i as f64 * cell,
                width: cell,
                height: cell,
            };
            if *value == 0 {
                continue;
            }
            // The style sheet has ten shades. Values are rounded up to the next shade, so that the smallest nonzero
            // value is visible.
            let shade = (*value as f64 / most as f64 * 10.0).ceil() as u32;
            svg.add_rect(at, &format!("m{shade}"), &describe(i, j), &[]);
        }
    }
    svg.into_element(name)
}
