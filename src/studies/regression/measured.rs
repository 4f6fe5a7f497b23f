//! Compares predictions with measured step times.

use chakram_archive::MeasuredStepTimeDistribution;
use chakram_base::statistics::median;
use chakram_base::units::Span;

/// How far a prediction is from measured steps, as a percentage and in standard deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictionDistanceFromMeasuredSteps {
    /// Number of measured steps.
    pub steps: u64,
    /// Median of the measured steps, in picoseconds.
    pub median_ps: u64,
    /// How far the prediction is from the median, as a percentage of the median.
    pub percent: f64,
    /// How far the prediction is from the median, in standard deviations of the steps. The standard deviation is
    /// estimated as 1.4826 times the median absolute deviation (MAD). Infinite if all steps took the same time.
    pub deviations: f64,
}

/// A prediction is outside the measured steps if it differs from their median by more than this number of standard
/// deviations. 0.27 % of normally distributed steps exceed this limit. With few measured steps, the estimate is less
/// certain, so more steps exceed the limit. `docs/how-to/archives.md` states how often this happens, and a test below
/// measures these rates.
const OUTSIDE: f64 = 3.0;
/// Ratio of a normal distribution's standard deviation to its MAD.
const PER_MAD: f64 = 1.4826;

impl PredictionDistanceFromMeasuredSteps {
    /// Compares the prediction with `measured`.
    pub fn new(measured: &MeasuredStepTimeDistribution, predicted_ps: u64) -> Self {
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

    /// Returns true if the prediction is too far from the measured steps to be one of them.
    pub fn is_outside_measured_steps(&self) -> bool {
        self.deviations.abs() > OUTSIDE
    }
}

/// Parses step times, one per line with its unit (`12.3 ms`). Skips empty lines and lines that begin with
/// `#`.
///
/// # Errors
///
/// Fails if a line is not a time, or if there is no time. The error names the invalid line.
pub fn parse_step_times(text: &str) -> Result<MeasuredStepTimeDistribution, String> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let steps = lines.map(|(number, line)| match line.parse::<Span>() {
        Ok(Span::ZERO) => Err(format!(
            "line {number}: found {line}, expected a time longer than zero"
        )),
        Ok(span) => Ok(span.0),
        Err(error) => Err(format!("line {number}: {error}")),
    });
    let steps: Vec<u64> = steps.collect::<Result<_, _>>()?;
    summarize_steps(steps).ok_or_else(|| "the measurement has no step time".to_owned())
}

/// Returns the distribution of `steps` (in picoseconds), or `None` if the list is empty.
fn summarize_steps(mut steps: Vec<u64>) -> Option<MeasuredStepTimeDistribution> {
    let median_ps = median(&mut steps)?;
    let mut deviations: Vec<u64> = steps.iter().map(|step| step.abs_diff(median_ps)).collect();
    Some(MeasuredStepTimeDistribution {
        steps: steps.len() as u64,
        median_ps,
        mad_ps: median(&mut deviations).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_become_a_median_and_a_deviation() {
        // The median of 10, 11, 12, 14 and 30 ms is 12 ms. The deviations from the median are 2, 1, 0, 2 and 18 ms.
        // Their median is 2 ms.
        let wrong = parse_step_times("10ms\n0 ms\n").unwrap_err();
        assert_eq!(
            wrong,
            "line 2: found 0 ms, expected a time longer than zero"
        );
        let measured = parse_step_times("# warm\n10ms\n 30 ms\n11ms\n\n14ms\n12ms\n").unwrap();
        let ms = 1_000_000_000;
        let expected = MeasuredStepTimeDistribution {
            steps: 5,
            median_ps: 12 * ms,
            mad_ps: 2 * ms,
        };
        assert_eq!(measured, expected);
        // A prediction of 18 ms is 50 % above the median. A difference of 6 ms is 6 / (1.4826 x 2)
        // = 2.02 standard deviations, and a difference of 9 ms is 3.04.
        let verdict = PredictionDistanceFromMeasuredSteps::new(&measured, 18 * ms);
        assert!(
            (verdict.percent - 50.0).abs() < 1e-9 && !verdict.is_outside_measured_steps(),
            "{verdict:?}"
        );
        assert!(
            PredictionDistanceFromMeasuredSteps::new(&measured, 21 * ms)
                .is_outside_measured_steps()
        );
        assert!(
            parse_step_times("12 parsec")
                .unwrap_err()
                .starts_with("line 1")
        );
        assert!(parse_step_times("\n").is_err());
    }

    /// A number of measured steps, and two error rates in percent. The first is the percentage of further steps from
    /// the same distribution that are wrongly reported as outside. The second is the percentage of predictions five
    /// standard deviations from the median that are not reported. The page `docs/how-to/archives.md` states these
    /// rates.
    const ERROR_RATES: [(usize, f64, f64); 6] = [
        (5, 15.0, 6.4),
        (10, 5.2, 2.7),
        (20, 2.1, 0.8),
        (50, 0.9, 0.0),
        (100, 0.5, 0.0),
        (1000, 0.27, 0.0),
    ];

    #[test]
    fn outside_verdicts_have_the_documented_error_rate() {
        let mut state = 1u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        // Box-Muller transform: normally distributed steps with a mean of 1 ms and a standard deviation
        // of 10 us.
        let mut step = || {
            let radius = (-2.0 * uniform().ln()).sqrt();
            let normal = radius * (std::f64::consts::TAU * uniform()).cos();
            (1e9 + 1e7 * normal) as u64
        };
        for (steps, alarms, misses) in ERROR_RATES {
            // Distributions of many steps are nearly equal, so draw only a few of them and test each often.
            let (sets, each) = if steps < 1000 { (6000, 1) } else { (40, 500) };
            let (mut alarmed, mut missed) = (0, 0);
            for _ in 0..sets {
                let measured = summarize_steps((0..steps).map(|_| step()).collect()).unwrap();
                for _ in 0..each {
                    alarmed += usize::from(
                        PredictionDistanceFromMeasuredSteps::new(&measured, step())
                            .is_outside_measured_steps(),
                    );
                }
                let wrong = PredictionDistanceFromMeasuredSteps::new(&measured, 1_050_000_000);
                missed += usize::from(!wrong.is_outside_measured_steps());
            }
            // Allow the rate to deviate from the stated one by four standard errors of the count, plus half a unit in
            // its last digit.
            let holds = |found: usize, of: usize, percent: f64, unit: f64| {
                let expected = percent / 100.0 * of as f64;
                let slack = 4.0 * expected.sqrt() + unit / 200.0 * of as f64 + 1.0;
                assert!(
                    (found as f64 - expected).abs() <= slack,
                    "{steps} steps: {found} of {of}, stated are {percent} %"
                );
            };
            holds(alarmed, sets * each, alarms, 0.1);
            holds(missed, sets, misses, 0.1);
        }
    }
}
