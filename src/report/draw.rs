//! Draws charts as SVG: axes, bars, lines, scatter, Gantt, ribbon, roofline, map, network and parallel coordinates.
//!
//! A chart is an SVG element to be embedded in a page. The page's style sheet defines colours for the classes `c0`,
//! `c1`, … of series, and for `axis`, `grid` and `label`. The tooltip and the data attributes of each mark state the
//! mark's values.

mod axis;
pub mod bars;
pub mod gantt;
pub mod lines;
pub mod map;
pub mod network;
pub mod parallel;
pub mod ribbon;
pub mod roofline;
mod rows;
pub mod scatter;
pub mod svg;

pub use svg::{escape_markup, standalone_svg};

/// Width of charts in drawing units; pages scale charts to the available width.
const WIDTH: f64 = 960.0;
/// Width of the row-label column, in drawing units.
const LABELS: f64 = 150.0;
/// Height of a row, in drawing units.
const ROW: f64 = 20.0;
/// Height of the space below a chart for axis labels, in drawing units.
const FOOT: f64 = 26.0;

/// Function that formats a value on an axis.
pub type AxisValueFormatFn<'f> = &'f dyn Fn(f64) -> String;
