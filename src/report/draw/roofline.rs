//! Roofline charts: the FLOPs per second of kernels over their FLOPs per byte, on logarithmic axes, below the peak
//! rates of the kernels' NPUs.

use super::AxisValueFormatFn;
use super::axis::LinearOrLogAxisScale;
use super::scatter::{ScatterPoint, chart_area, start_chart_with_axes, value_range};
use super::svg::TextAnchor;

const HEIGHT: f64 = 340.0;
const LEFT: f64 = 96.0;

/// Peak rates that limit an NPU's kernels.
#[derive(Clone, Debug)]
pub struct RooflinePeakRates {
    /// Name next to the line.
    pub name: String,
    /// Memory bandwidth, in bytes per second.
    pub bytes_per_s: f64,
    /// Compute rate, in FLOPs per second.
    pub flops_per_s: f64,
}

/// Draws `points` (FLOPs per byte, FLOPs per second) below the limits `roofs`.
pub fn draw_roofline(
    name: &str,
    points: &[ScatterPoint],
    roofs: &[RooflinePeakRates],
    formats: (AxisValueFormatFn<'_>, AxisValueFormatFn<'_>),
) -> String {
    let ridges = roofs.iter().map(|roof| roof.flops_per_s / roof.bytes_per_s);
    let across = points.iter().map(|point| point.x).chain(ridges);
    let up = points.iter().map(|point| point.y);
    let up = up.chain(roofs.iter().map(|roof| roof.flops_per_s));
    let area = chart_area(LEFT, HEIGHT);
    let right =
        LinearOrLogAxisScale::logarithmic_scale(value_range(across), (area.x, area.x + area.width));
    let up = LinearOrLogAxisScale::logarithmic_scale(value_range(up), (HEIGHT, area.y));
    let names = (
        "FLOPs per byte between kernel and memory",
        "achieved FLOP/s",
    );
    let mut svg = start_chart_with_axes(area, (right, up), names, formats);
    let (low, high) = right.end_values();
    let floor = up.end_values().0;
    for roof in roofs {
        let ridge = roof.flops_per_s / roof.bytes_per_s;
        // The bandwidth line enters the picture at the left or the bottom edge, whichever point is further right.
        let enters = low.max(floor / roof.bytes_per_s).min(ridge);
        let line = [
            (enters, enters * roof.bytes_per_s),
            (ridge, roof.flops_per_s),
            (high.max(ridge), roof.flops_per_s),
        ];
        let line: Vec<_> = line
            .map(|(x, y)| (right.position_of_value(x), up.position_of_value(y)))
            .into();
        svg.add_polyline(&line, "roof", &roof.name);
        let y = up.position_of_value(roof.flops_per_s) - 5.0;
        let x = area.x + area.width - 4.0;
        svg.add_text((x, y), TextAnchor::End, "label", &roof.name);
    }
    for point in points {
        let at = (
            right.position_of_value(point.x),
            up.position_of_value(point.y),
        );
        svg.add_small_circle_with_tooltip(at, &format!("c{} point", point.series), &point.title);
    }
    svg.into_element(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits of 1 TB/s and 100 TFLOP/s meet at 100 FLOPs per byte. The horizontal axis covers 10 to 1000 FLOPs per
    /// byte in 824 units from x = 96. The vertical axis covers 10 to 100 TFLOP/s in 314 units, upwards from y = 340.
    /// With these scales, the roof begins at (10 FLOPs per byte, 10 TFLOP/s). The roof bends in the middle at x = 508,
    /// and ends at the right edge at x = 920. A point at 100 FLOPs per byte and sqrt(10) times 10 TFLOP/s is halfway up
    /// the picture.
    #[test]
    fn the_roof_bends_where_both_peaks_meet() {
        let point = |x: f64, y: f64| ScatterPoint {
            x,
            y,
            series: 0,
            title: "mm".to_owned(),
        };
        let points = [
            point(11.0, 11e12),
            point(100.0, 10e12 * 10_f64.sqrt()),
            point(900.0, 9e13),
        ];
        let roof = RooflinePeakRates {
            name: "npu".to_owned(),
            bytes_per_s: 1e12,
            flops_per_s: 1e14,
        };
        let plain = |value: f64| format!("{value:.0}");
        let svg = draw_roofline("r", &points, &[roof], (&plain, &plain));
        let line = "points=\"96.0,340.0 508.0,26.0 920.0,26.0 \"";
        assert!(svg.contains(line), "{svg}");
        assert!(svg.contains("cx=\"508.0\" cy=\"183.0\""), "{svg}");
    }
}
