//! Draws charts as SVG: axes, bars, lines, scatter, Gantt, ribbon, roofline, map, network and parallel coordinates.
//!
//! A chart is an SVG element for use inside a page. The page defines the colours by class: `c0`, `c1`, … for series,
//! and `axis`, `grid` and `label`. Each mark has its values as a tooltip, and also as data attributes, which programs
//! can read.

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
/// Width of row labels.
const LABELS: f64 = 150.0;
/// Height of a row.
const ROW: f64 = 20.0;
/// Height below a chart for the axis labels.
const FOOT: f64 = 26.0;

/// Function that formats a value on an axis.
pub type ValueFormat<'f> = &'f dyn Fn(f64) -> String;
