//! Charts as SVG: axes, bars, lines, scatter, Gantt, ribbon, roofline, map, network and parallel
//! coordinates.
//!
//! A chart is text that stands inside a page; colours come from the page, by class: `c0`, `c1`, … for series, `axis`,
//! `grid` and `label` for the rest. Marks carry what they show as a title, and as data attributes for programs.

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

pub use svg::{document, escape};

/// Width of charts, in units of the drawing; pages scale them.
const WIDTH: f64 = 960.0;
/// Width of the labels of rows.
const LABELS: f64 = 150.0;
/// Height of a row.
const ROW: f64 = 20.0;
/// Height below a chart for its axis.
const FOOT: f64 = 26.0;

/// Text of a value on an axis.
pub type ValueFormat<'f> = &'f dyn Fn(f64) -> String;
