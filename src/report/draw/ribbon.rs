//! Ribbon charts: one row of consecutive intervals, with a mark wherever the place (such as the rank) changes.

use super::axis::LinearOrLogAxisScale;
use super::svg::{DrawingRect, SvgDrawing, TextAnchor};
use super::{AxisValueFormatFn, FOOT, WIDTH, gantt};

/// Height, in drawing units, of the row with the names of places.
const NAMES: f64 = 18.0;
const HEIGHT: f64 = 34.0;
const SIDE: f64 = 20.0;

/// A section of the ribbon that belongs to one place, such as a rank.
#[derive(Clone, Debug)]
pub struct NamedRibbonSection {
    /// Name of the place, drawn above the section.
    pub place: String,
    /// Intervals of the section, in order of time.
    pub spans: Vec<gantt::GanttSpan>,
}

/// Draws `stretches` over an axis from 0 to `end`. A mark separates consecutive stretches. The name of a stretch's
/// place is drawn above the stretch if it fits.
pub fn draw_ribbon_of_named_stretches(
    name: &str,
    stretches: &[NamedRibbonSection],
    end: u64,
    format: AxisValueFormatFn<'_>,
) -> String {
    let mut svg = SvgDrawing::new(WIDTH, NAMES + HEIGHT + FOOT);
    let area = DrawingRect {
        x: SIDE,
        y: NAMES,
        width: WIDTH - 3.0 * SIDE,
        height: HEIGHT,
    };
    let scale = LinearOrLogAxisScale::linear_scale(end as f64, (area.x, area.x + area.width));
    scale.draw_ticks_below(&mut svg, area, format);
    let mut row = gantt::NarrowGanttSpans::default();
    for span in stretches.iter().flat_map(|stretch| &stretch.spans) {
        let (x, to) = (
            scale.position_of_value(span.from as f64),
            scale.position_of_value(span.to as f64),
        );
        let at = DrawingRect {
            x,
            y: NAMES + 4.0,
            width: to - x,
            height: HEIGHT - 6.0,
        };
        row.draw_or_store_span(&mut svg, at, span);
    }
    row.draw_stored_spans(&mut svg);
    let mut free = 0.0;
    for (i, stretch) in stretches.iter().enumerate() {
        let (Some(first), Some(last)) = (stretch.spans.first(), stretch.spans.last()) else {
            continue;
        };
        let (x, to) = (
            scale.position_of_value(first.from as f64),
            scale.position_of_value(last.to as f64),
        );
        if i > 0 {
            svg.add_line((x, NAMES - 2.0), (x, NAMES + HEIGHT), "change");
        }
        // A letter is about 7 drawing units wide. If the name does not fit, try its last word.
        let whole = &stretch.place[..];
        let last = whole.rsplit(' ').next().unwrap_or_default();
        let width = |name: &str| 7.0 * name.chars().count() as f64;
        let fits = |name: &&str| x.max(free) + width(name) <= to.max(x + 4.0);
        if let Some(shown) = [whole, last].into_iter().find(fits) {
            let at = (x.max(free) + 2.0, NAMES - 5.0);
            svg.add_text(at, TextAnchor::Start, "label", shown);
            free = at.0 + width(shown) + 6.0;
        }
    }
    svg.into_element(name)
}
