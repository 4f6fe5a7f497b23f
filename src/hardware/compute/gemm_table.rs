//! Measured GEMMs: a table of measured shapes corrects the curve.
//!
//! Time rises in steps with the numbers of tiles and waves. Interpolation in a table alone would miss these steps, so
//! the table only corrects the curve. Residuals `r = ln (measured / curve)` are similar for shapes with similar
//! intermediate values of the curve's computation. With `t`, `M` and the best tile's `waves` as in
//! [`GemmTimeCurve`](super::GemmTimeCurve), and `up(q) = ln (ceil(q) / q)` for the time added by rounding up to whole
//! tiles and waves:
//!
//! ```text
//! x = (0.3 ln k, 0.25 ln t, 0.2 ln (M / t), 0.6 up(best waves), 0.5 up(m / 64), 0.5 up(n / 128),
//!      0.6 up(waves of 256 x 128), 0.5 up(waves of 64 x 64))
//! t = curve(m, n, k) exp (sum w r),   (C + 0.07 I) w = c + l 1,   sum w = 1,   C = exp(-|x_i - x_j|),   c = exp(-|x - x_i|)
//! ```
//!
//! over the 32 nearest points. The interpolation is ordinary kriging (N. Cressie, Statistics for Spatial Data, 1993,
//! section 3.2). A fraction of 0.07 of the variance is attributed to effects that are specific to a single shape. The
//! scales of `x` minimise the leave-one-out error over a thousand GEMMs measured on A100s. A GEMM of a measured shape
//! takes the measured time. The curve is not corrected for batches of multiplications, nor for shapes outside the range
//! of measured `m`, `n` or `k`.

use super::gemm::GemmTimeWithIntermediateValues;

/// Number of points that determine a shape's correction.
const NEAREST: usize = 32;
/// Fraction of the residuals' variance that is specific to a single shape.
const OWN: f64 = 0.07;
/// Number of coordinates by which two shapes are compared.
const PLACE: usize = 8;

/// A measured shape with its residual.
#[derive(Clone, Copy, Debug, PartialEq)]
struct GemmShapeResidual {
    sizes: [u64; 3],
    at: [f64; PLACE],
    residual: f64,
}

/// Measured GEMMs of one number format.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredGemms {
    points: Vec<GemmShapeResidual>,
    /// Minimum and maximum of each size (m, n, k) over all points.
    within: [[u64; 2]; 3],
    /// Relative error (one standard deviation) for shapes inside the range of measured sizes.
    pub error: f64,
}

/// Returns the coordinates of a shape (`x` in the module documentation). Shapes that are close to each other have
/// similar residuals.
fn feature_coordinates(
    [m, n, k]: [u64; 3],
    curve: &GemmTimeWithIntermediateValues,
) -> [f64; PLACE] {
    let up = |whole: f64| libm::log(whole.ceil() / whole);
    let [m, n, k] = [m, n, k].map(|size| size as f64);
    let waves = |a: f64, b: f64| up((m / a).ceil() * (n / b).ceil() / curve.multiprocessors);
    [
        0.3 * libm::log(k),
        0.25 * libm::log(curve.seconds),
        0.2 * libm::log(curve.memory_part),
        0.6 * up(curve.waves),
        0.5 * up(m / 64.0),
        0.5 * up(n / 128.0),
        0.6 * waves(256.0, 128.0),
        0.5 * waves(64.0, 64.0),
    ]
}

fn squared_distance(a: &[f64; PLACE], b: &[f64; PLACE]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

impl MeasuredGemms {
    /// Builds the table from shapes, each with its measured seconds and its curve estimate. Returns `None` if `shapes`
    /// is empty, or if a value is not above zero.
    pub fn new(
        shapes: &[([u64; 3], f64, GemmTimeWithIntermediateValues)],
        error: f64,
    ) -> Option<Self> {
        let sound = |(sizes, seconds, curve): &([u64; 3], f64, GemmTimeWithIntermediateValues)| {
            let ratio = seconds / curve.seconds;
            ratio.is_finite() && ratio > 0.0 && sizes.iter().all(|&size| size > 0)
        };
        if shapes.is_empty() || !shapes.iter().all(sound) {
            return None;
        }
        let mut within = [[u64::MAX, 0]; 3];
        let points = shapes.iter().map(|&(sizes, seconds, curve)| {
            for (range, size) in within.iter_mut().zip(sizes) {
                *range = [range[0].min(size), range[1].max(size)];
            }
            GemmShapeResidual {
                sizes,
                at: feature_coordinates(sizes, &curve),
                residual: libm::log(seconds / curve.seconds),
            }
        });
        Some(Self {
            points: points.collect(),
            within,
            error,
        })
    }

    /// Returns the factor that corrects the time that the curve gives for a shape. Returns `None` outside the range of
    /// measured sizes.
    pub fn interpolate_factor(
        &self,
        sizes: [u64; 3],
        curve: &GemmTimeWithIntermediateValues,
    ) -> Option<f64> {
        let mut ranges = self.within.iter().zip(sizes);
        if !ranges.all(|([least, most], size)| (*least..=*most).contains(&size)) {
            return None;
        }
        let at = feature_coordinates(sizes, curve);
        // The nearest points and their distances, in ascending order of distance.
        let mut nearest: Vec<(f64, &GemmShapeResidual)> = Vec::with_capacity(NEAREST + 1);
        for point in &self.points {
            if point.sizes == sizes {
                return Some(libm::exp(point.residual));
            }
            let distance = squared_distance(&point.at, &at);
            if nearest.len() == NEAREST && distance >= nearest[NEAREST - 1].0 {
                continue;
            }
            let after = nearest.partition_point(|(other, _)| *other <= distance);
            nearest.insert(after, (distance, point));
            nearest.truncate(NEAREST);
        }
        Some(libm::exp(krige_residual(&nearest)))
    }
}

/// Returns the weighted mean residual of `points`, each given with its squared distance.
fn krige_residual(points: &[(f64, &GemmShapeResidual)]) -> f64 {
    let alike = |square: f64| libm::exp(-square.sqrt());
    let count = points.len();
    // Rows of the Cholesky factor of the covariances, with the solutions for the shape's covariances and for a vector
    // of ones.
    let mut factor = [[0.0; NEAREST]; NEAREST];
    let (mut of_shape, mut of_ones) = ([0.0; NEAREST], [0.0; NEAREST]);
    for i in 0..count {
        for j in 0..=i {
            let own = if i == j { OWN } else { 0.0 };
            let covariance = own + alike(squared_distance(&points[i].1.at, &points[j].1.at));
            let known: f64 = (0..j).map(|k| factor[i][k] * factor[j][k]).sum();
            factor[i][j] = match i == j {
                true => (covariance - known).sqrt(),
                false => (covariance - known) / factor[j][j],
            };
        }
        let solved = |sides: &[f64; NEAREST], side: f64| {
            let known: f64 = (0..i).map(|k| factor[i][k] * sides[k]).sum();
            (side - known) / factor[i][i]
        };
        of_shape[i] = solved(&of_shape, alike(points[i].0));
        of_ones[i] = solved(&of_ones, 1.0);
    }
    for i in (0..count).rev() {
        let solved = |sides: &[f64; NEAREST]| {
            let known: f64 = (i + 1..count).map(|k| factor[k][i] * sides[k]).sum();
            (sides[i] - known) / factor[i][i]
        };
        (of_shape[i], of_ones[i]) = (solved(&of_shape), solved(&of_ones));
    }
    // The Lagrange multiplier that makes the weights sum to one.
    let sums = [&of_shape, &of_ones].map(|sides| sides[..count].iter().sum::<f64>());
    let multiplier = (1.0 - sums[0]) / sums[1];
    let weights = of_shape
        .iter()
        .zip(&of_ones)
        .map(|(a, b)| a + multiplier * b);
    points
        .iter()
        .zip(weights)
        .map(|((_, point), w)| w * point.residual)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_gemm_estimate_from_seconds(seconds: f64) -> GemmTimeWithIntermediateValues {
        GemmTimeWithIntermediateValues {
            seconds,
            memory_part: 1.0,
            waves: 1.0,
            multiprocessors: 1.0,
        }
    }

    #[test]
    fn near_points_correct_a_shape_and_far_ones_do_not() {
        // All shapes of the test have whole tiles and waves, so their coordinates differ only in k and t. The second
        // shape's point is at a distance of 0.3 ln 16 = 0.83178 from the first shape's point.
        let points = [
            ([64, 128, 64], 2e-6, build_gemm_estimate_from_seconds(1e-6)),
            (
                [64, 128, 1024],
                0.5e-6,
                build_gemm_estimate_from_seconds(1e-6),
            ),
        ];
        let table = MeasuredGemms::new(&points, 0.05).unwrap();
        let factor =
            |k| table.interpolate_factor([64, 128, k], &build_gemm_estimate_from_seconds(1e-6));
        // At a measured point, the point's own residual applies.
        assert!((factor(64).unwrap() / 2.0 - 1.0).abs() < 1e-12);
        // Halfway between the points, both have the same weight, and their opposite residuals cancel.
        assert!((factor(256).unwrap() - 1.0).abs() < 1e-12);
        // At a quarter of the distance (ln 2 = 0.69315 of 2.7726 from the first point), the covariances with the two
        // points are a = exp(-0.20794) = 0.81225 and b = exp(-0.62383) = 0.53589. The covariance matrix has 1.07 on the
        // diagonal and C = exp(-0.83178) = 0.43528 off the diagonal. The weights differ by (a - b) / (1.07 - C) =
        // 0.43540, and the residuals are ln 2 and -ln 2.
        let expected = libm::exp(0.435_40 * libm::log(2.0));
        assert!((factor(128).unwrap() / expected - 1.0).abs() < 1e-5);
        // 32 is outside the range of measured sizes.
        assert_eq!(factor(32), None);
        assert_eq!(
            table.interpolate_factor([65, 128, 64], &build_gemm_estimate_from_seconds(1e-6)),
            None
        );
    }

    #[test]
    fn only_the_nearest_points_count() {
        // The 32 nearest points have similar times. The two distant points have different times, which must have no
        // effect.
        let near = 0..NEAREST as u64;
        let mut points: Vec<_> = near
            .map(|i| {
                (
                    [64, 128, 1000 + i],
                    3e-6,
                    build_gemm_estimate_from_seconds(1e-6),
                )
            })
            .collect();
        points.extend([
            ([64, 128, 1], 1e-7, build_gemm_estimate_from_seconds(1e-6)),
            (
                [64, 128, 1 << 20],
                1e-7,
                build_gemm_estimate_from_seconds(1e-6),
            ),
        ]);
        let table = MeasuredGemms::new(&points, 0.05).unwrap();
        let factor = table
            .interpolate_factor([64, 128, 999], &build_gemm_estimate_from_seconds(1e-6))
            .unwrap();
        assert!((factor / 3.0 - 1.0).abs() < 1e-9, "{factor}");
        assert!(MeasuredGemms::new(&[], 0.05).is_none());
        assert!(
            MeasuredGemms::new(
                &[([1, 0, 1], 1.0, build_gemm_estimate_from_seconds(1.0))],
                0.05
            )
            .is_none()
        );
        assert!(
            MeasuredGemms::new(
                &[([1; 3], 0.0, build_gemm_estimate_from_seconds(1.0))],
                0.05
            )
            .is_none()
        );
    }
}
