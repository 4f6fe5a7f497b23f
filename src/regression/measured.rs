//! Predictions beside measured step times.

use crate::archive::MeasuredTimes;
use crate::units::Span;

/// Distance of a prediction from measured steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredVerdict {
    /// Number of measured steps.
    pub steps: u64,
    /// Their median in picoseconds.
    pub median_ps: u64,
    /// Difference from the median in percent of it.
    pub percent: f64,
    /// The same in standard deviations of the steps, estimated by 1.4826 times their MAD; infinite where all steps
    /// took the same.
    pub deviations: f64,
}

/// Standard deviations beyond which a prediction lies outside the measured steps. Of normally distributed steps 0.27 %
/// lie there themselves.
const OUTSIDE: f64 = 3.0;
/// Standard deviations of a normal distribution per MAD.
const PER_MAD: f64 = 1.4826;

impl MeasuredVerdict {
    /// Compares the prediction with `measured`.
    pub fn new(measured: &MeasuredTimes, predicted_ps: u64) -> Self {
        let difference = predicted_ps as f64 - measured.median_ps as f64;
        let deviation = PER_MAD * measured.mad_ps as f64;
        Self {
            steps: measured.steps,
            median_ps: measured.median_ps,
            percent: difference / (measured.median_ps as f64).max(1.0) * 100.0,
            deviations: if difference == 0.0 {
                0.0
            } else {
                difference / deviation
            },
        }
    }

    /// Whether a step that took as long as predicted would be none of the measured kind.
    pub fn is_outside(&self) -> bool {
        self.deviations.abs() > OUTSIDE
    }
}

/// Reads step times, one in a line with its unit (`12.3 ms`); empty lines and those that begin with `#` are passed over.
///
/// # Errors
///
/// Fails, with the line, at what is no time, and if there is none.
pub fn read_steps(text: &str) -> Result<MeasuredTimes, String> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let steps = lines.map(|(number, line)| {
        line.parse::<Span>()
            .map(|span| span.0)
            .map_err(|error| format!("line {number}: {error}"))
    });
    let mut steps: Vec<u64> = steps.collect::<Result<_, _>>()?;
    let median_ps = median(&mut steps).ok_or("there is no step time")?;
    let mut deviations: Vec<u64> = steps.iter().map(|step| step.abs_diff(median_ps)).collect();
    Ok(MeasuredTimes {
        steps: steps.len() as u64,
        median_ps,
        mad_ps: median(&mut deviations).unwrap_or(0),
    })
}

/// Sorts `values` and returns the one in the middle, of an even number the mean of two, rounded down.
fn median(values: &mut [u64]) -> Option<u64> {
    values.sort_unstable();
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some(values[middle - 1] + (values[middle] - values[middle - 1]) / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_become_a_median_and_a_deviation() {
        // 10, 11, 12, 14 and 30 ms: the median is 12, the deviations are 2, 1, 0, 2 and 18, of which the median is 2.
        let measured = read_steps("# warm\n10ms\n 30 ms\n11ms\n\n14ms\n12ms\n").unwrap();
        let ms = 1_000_000_000;
        let expected = MeasuredTimes {
            steps: 5,
            median_ps: 12 * ms,
            mad_ps: 2 * ms,
        };
        assert_eq!(measured, expected);
        // 18 ms is 50 % more; 6 ms are 6 / (1.4826 x 2) = 2.02 deviations, and 9 ms are 3.04.
        let verdict = MeasuredVerdict::new(&measured, 18 * ms);
        assert!(
            (verdict.percent - 50.0).abs() < 1e-9 && !verdict.is_outside(),
            "{verdict:?}"
        );
        assert!(MeasuredVerdict::new(&measured, 21 * ms).is_outside());
        assert!(read_steps("12 parsec").unwrap_err().starts_with("line 1"));
        assert!(read_steps("\n").is_err());
    }

    #[test]
    fn of_normal_steps_as_many_lie_outside_as_is_stated() {
        // Sums of twelve uniform numbers less 6 are nearly normal with deviation 1, up to 3 or so: 0.21 % lie beyond 3.
        let mut state = 1u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / f64::from(1 << 24)
        };
        let mut step = || (1000.0 + 10.0 * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0)) * 1e6;
        let text: Vec<String> = (0..2001).map(|_| format!("{:.0} ps", step())).collect();
        let measured = read_steps(&text.join("\n")).unwrap();
        let outside = (0..20_000)
            .filter(|_| MeasuredVerdict::new(&measured, step() as u64).is_outside())
            .count();
        // 0.27 % of 20,000 are 54.
        assert!((20..100).contains(&outside), "{outside} of 20,000");
    }
}
