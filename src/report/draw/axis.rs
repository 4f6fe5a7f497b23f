//! Values to places, and the values that an axis names.

use super::ValueFormat;
use super::svg::{Frame, SvgDrawing, TextAnchor};

/// A range of values on a range of places.
#[derive(Clone, Copy, Debug)]
pub struct AxisScale {
    values: (f64, f64),
    places: (f64, f64),
    logarithmic: bool,
}

impl AxisScale {
    /// From 0 to `most`.
    pub fn linear(most: f64, places: (f64, f64)) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        Self {
            values: (0.0, most),
            places,
            logarithmic: false,
        }
    }

    /// Over `values` by their ratio: powers of ten where that is above 20, from 0 where it is above 3, and else from the least to
    /// the most of them with a little room.
    pub fn fitting((least, most): (f64, f64), places: (f64, f64)) -> Self {
        if least > 0.0 && most / least > 20.0 {
            return Self::logarithmic((least, most), places);
        }
        if least < most / 3.0 {
            return Self {
                values: (least.min(0.0), most * 1.05),
                ..Self::linear(most, places)
            };
        }
        let room = match most - least {
            0.0 => most.abs().max(1.0) * 0.05,
            range => range * 0.08,
        };
        Self {
            values: (least - room, most + room),
            ..Self::linear(most, places)
        }
    }

    /// Over the powers of ten around `values`, which are above 0.
    pub fn logarithmic(values: (f64, f64), places: (f64, f64)) -> Self {
        let (least, most) = (values.0.log10().floor(), values.1.log10().ceil());
        Self {
            values: (least, most.max(least + 1.0)),
            places,
            logarithmic: true,
        }
    }

    /// The place of a value.
    pub fn place(&self, value: f64) -> f64 {
        let value = if self.logarithmic {
            value.log10()
        } else {
            value
        };
        let ((least, most), (from, to)) = (self.values, self.places);
        from + (to - from) * ((value - least) / (most - least)).clamp(0.0, 1.0)
    }

    /// The values at its ends.
    pub fn bounds(&self) -> (f64, f64) {
        let (least, most) = self.values;
        match self.logarithmic {
            true => (10_f64.powf(least), 10_f64.powf(most)),
            false => (least, most),
        }
    }

    /// The values that the axis names.
    pub fn ticks(&self) -> Vec<f64> {
        let (least, most) = self.values;
        if self.logarithmic {
            let step = ((most - least) / 8.0).ceil().max(1.0) as usize;
            // Within few decades the values between them are named too.
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
        let step = round_step((most - least) / 6.0);
        let (first, last) = ((least / step - 1e-9).ceil(), (most / step + 1e-9).floor());
        let count = (last - first).max(0.0) as u32;
        let ticks = (0..=count).map(|tick| (first + f64::from(tick)) * step);
        ticks.collect()
    }

    /// Draws grid lines and values below `area`.
    pub fn below(&self, svg: &mut SvgDrawing, area: Frame, format: ValueFormat<'_>) {
        let foot = area.y + area.height;
        for tick in self.ticks() {
            let x = self.place(tick);
            svg.line((x, area.y), (x, foot), "grid");
            svg.text((x, foot + 16.0), TextAnchor::Middle, "axis", &format(tick));
        }
    }

    /// Draws grid lines and values left of `area`.
    pub fn beside(&self, svg: &mut SvgDrawing, area: Frame, format: ValueFormat<'_>) {
        for tick in self.ticks() {
            let y = self.place(tick);
            svg.line((area.x, y), (area.x + area.width, y), "grid");
            svg.text(
                (area.x - 6.0, y + 4.0),
                TextAnchor::End,
                "axis",
                &format(tick),
            );
        }
    }
}

/// The next of 1, 2 and 5 times a power of ten that is not below `step`.
fn round_step(step: f64) -> f64 {
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
    fn axes_name_round_values() {
        let scale = AxisScale::linear(11.7, (0.0, 117.0));
        // 11.7 / 6 = 1.95, so every 2.
        assert_eq!(scale.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!((scale.place(2.0), scale.place(11.7)), (20.0, 117.0));
        // Values that lie near one another fill the axis: 97.6 to 130.4, every 6 and a bit rounds to 10.
        let scale = AxisScale::fitting((100.0, 128.0), (0.0, 1.0));
        assert_eq!(scale.ticks(), [100.0, 110.0, 120.0, 130.0]);
        let scale = AxisScale::fitting((1.0, 10.0), (0.0, 1.0));
        assert_eq!(scale.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        let scale = AxisScale::fitting((1.0, 100.0), (0.0, 1.0));
        assert_eq!(scale.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        let scale = AxisScale::logarithmic((30.0, 4000.0), (0.0, 3.0));
        assert_eq!(scale.ticks(), [10.0, 100.0, 1000.0, 10_000.0]);
        assert!((scale.place(1000.0) - 2.0).abs() < 1e-12);
        let scale = AxisScale::logarithmic((30.0, 40.0), (0.0, 1.0));
        assert_eq!(scale.ticks(), [10.0, 20.0, 50.0, 100.0]);
    }
}
