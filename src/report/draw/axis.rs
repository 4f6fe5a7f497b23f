//! Maps values to positions along an axis, and selects the values to label.

use super::AxisValueFormatFn;
use super::svg::{DrawingRect, SvgDrawing, TextAnchor};

/// Maps a value range to a range of positions in drawing units.
#[derive(Clone, Copy, Debug)]
pub struct LinearOrLogAxisScale {
    values: (f64, f64),
    places: (f64, f64),
    logarithmic: bool,
}

impl LinearOrLogAxisScale {
    /// Creates a linear scale that maps 0 to `places.0` and `most` to `places.1`.
    pub fn linear_scale(most: f64, places: (f64, f64)) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        Self {
            values: (0.0, most),
            places,
            logarithmic: false,
        }
    }

    /// Creates a scale that covers the values from `least` to `most`. The scale is logarithmic if `least` is positive
    /// and `most / least` is above 20. Otherwise it is linear. A linear scale starts at 0, or below for negative
    /// values, if `least` is below a third of `most`. Otherwise, it covers the range with a margin.
    pub fn fitting_scale((least, most): (f64, f64), places: (f64, f64)) -> Self {
        if least > 0.0 && most / least > 20.0 {
            return Self::logarithmic_scale((least, most), places);
        }
        if least < most / 3.0 {
            return Self {
                values: (least.min(0.0), most * 1.05),
                ..Self::linear_scale(most, places)
            };
        }
        let room = match most - least {
            0.0 => most.abs().max(1.0) * 0.05,
            range => range * 0.08,
        };
        Self {
            values: (least - room, most + room),
            ..Self::linear_scale(most, places)
        }
    }

    /// Creates a logarithmic scale that spans the powers of ten below and above `values`; `values` must be positive.
    pub fn logarithmic_scale(values: (f64, f64), places: (f64, f64)) -> Self {
        let (least, most) = (values.0.log10().floor(), values.1.log10().ceil());
        Self {
            values: (least, most.max(least + 1.0)),
            places,
            logarithmic: true,
        }
    }

    /// Returns the position of a value, in drawing units.
    pub fn position_of_value(&self, value: f64) -> f64 {
        let value = if self.logarithmic {
            value.log10()
        } else {
            value
        };
        let ((least, most), (from, to)) = (self.values, self.places);
        from + (to - from) * ((value - least) / (most - least)).clamp(0.0, 1.0)
    }

    /// Returns the values at the ends of the axis.
    pub fn end_values(&self) -> (f64, f64) {
        let (least, most) = self.values;
        match self.logarithmic {
            true => (10_f64.powf(least), 10_f64.powf(most)),
            false => (least, most),
        }
    }

    /// Returns the values to label, in ascending order.
    pub fn tick_values(&self) -> Vec<f64> {
        let (least, most) = self.values;
        if self.logarithmic {
            let step = ((most - least) / 8.0).ceil().max(1.0) as usize;
            // If the axis covers only a few decades, also label values between powers of ten.
            let between: &[f64] = if most - least <= 2.0 {
                &[1.0, 2.0, 5.0]
            } else {
                &[1.0]
            };
            let powers = (least as i32..=most as i32).step_by(step);
            let ticks = powers
                .flat_map(|power| between.iter().map(move |times| times * 10_f64.powi(power)));
            return ticks.filter(|tick| tick.log10() <= most + 1e-9).collect();
        }
        let step = round_up_tick_step((most - least) / 6.0);
        let (first, last) = ((least / step - 1e-9).ceil(), (most / step + 1e-9).floor());
        let count = (last - first).max(0.0) as u32;
        let ticks = (0..=count).map(|tick| (first + f64::from(tick)) * step);
        ticks.collect()
    }

    /// Draws vertical grid lines, and their labels below `area`.
    pub fn draw_ticks_below(
        &self,
        svg: &mut SvgDrawing,
        area: DrawingRect,
        format: AxisValueFormatFn<'_>,
    ) {
        let foot = area.y + area.height;
        for tick in self.tick_values() {
            let x = self.position_of_value(tick);
            svg.add_line((x, area.y), (x, foot), "grid");
            svg.add_text((x, foot + 16.0), TextAnchor::Middle, "axis", &format(tick));
        }
    }

    /// Draws horizontal grid lines, and their labels left of `area`.
    pub fn draw_grid_lines_with_labels_left(
        &self,
        svg: &mut SvgDrawing,
        area: DrawingRect,
        format: AxisValueFormatFn<'_>,
    ) {
        for tick in self.tick_values() {
            let y = self.position_of_value(tick);
            svg.add_line((area.x, y), (area.x + area.width, y), "grid");
            svg.add_text(
                (area.x - 6.0, y + 4.0),
                TextAnchor::End,
                "axis",
                &format(tick),
            );
        }
    }
}

/// Rounds `step` up to 1, 2 or 5 times a power of ten.
fn round_up_tick_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|times| times * power);
    let fits = steps
        .into_iter()
        .find(|round| *round >= step * (1.0 - 1e-9));
    fits.unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_ticks_are_round_values() {
        let scale = LinearOrLogAxisScale::linear_scale(11.7, (0.0, 117.0));
        // Six steps must cover 11.7: 11.7 / 6 = 1.95, which is rounded up to 2.
        assert_eq!(scale.tick_values(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(
            (scale.position_of_value(2.0), scale.position_of_value(11.7)),
            (20.0, 117.0)
        );
        // The values differ by less than a factor of 3, so the axis covers only 97.6 to 130.4. The step, slightly more
        // than 6, is rounded up to 10.
        let scale = LinearOrLogAxisScale::fitting_scale((100.0, 128.0), (0.0, 1.0));
        assert_eq!(scale.tick_values(), [100.0, 110.0, 120.0, 130.0]);
        let scale = LinearOrLogAxisScale::fitting_scale((1.0, 10.0), (0.0, 1.0));
        assert_eq!(scale.tick_values(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        let scale = LinearOrLogAxisScale::fitting_scale((1.0, 100.0), (0.0, 1.0));
        assert_eq!(
            scale.tick_values(),
            [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
        );
        let scale = LinearOrLogAxisScale::logarithmic_scale((30.0, 4000.0), (0.0, 3.0));
        assert_eq!(scale.tick_values(), [10.0, 100.0, 1000.0, 10_000.0]);
        assert!((scale.position_of_value(1000.0) - 2.0).abs() < 1e-12);
        let scale = LinearOrLogAxisScale::logarithmic_scale((30.0, 40.0), (0.0, 1.0));
        assert_eq!(scale.tick_values(), [10.0, 20.0, 50.0, 100.0]);
    }
}
