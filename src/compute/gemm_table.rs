//! GEMMs that were measured: what a table of shapes says beyond the curve.
//!
//! A table alone misses the steps of tiles, so it corrects the curve: with the residuals `r = ln (measured / curve)` of the
//! points nearest in `x = (ln m, ln n, ln k)`,
//!
//! ```text
//! t = curve(m, n, k) exp (sum w r / sum w),   w = 1 / (|x - x_i|^2 + 1e-6),   of the 8 nearest points
//! ```
//!
//! inside the box of all points. Outside it, and for batches of products, the curve stands as it is.

/// Points that correct a shape.
const NEAREST: usize = 8;
/// Squared distance that keeps the weight of a point at its own place finite.
const LEAST: f64 = 1e-6;

/// A shape with its residual.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ResidualPoint {
    at: [f64; 3],
    residual: f64,
}

/// Measured GEMMs of one number format.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredGemms {
    points: Vec<ResidualPoint>,
    /// Least and most of each logarithm.
    within: [[f64; 2]; 3],
    /// Relative error of a shape inside, one standard deviation.
    pub error: f64,
}

/// Logarithms of sizes.
fn place(sizes: [u64; 3]) -> [f64; 3] {
    sizes.map(|size| libm::log(size as f64))
}

impl MeasuredGemms {
    /// Takes shapes with their times over those of the curve; `None` without any, or where one is not above zero.
    pub fn new(ratios: &[([u64; 3], f64)], error: f64) -> Option<Self> {
        let sound = |&(sizes, ratio): &([u64; 3], f64)| {
            ratio.is_finite() && ratio > 0.0 && sizes.iter().all(|&size| size > 0)
        };
        if ratios.is_empty() || !ratios.iter().all(sound) {
            return None;
        }
        let point = |&(sizes, ratio): &([u64; 3], f64)| ResidualPoint {
            at: place(sizes),
            residual: libm::log(ratio),
        };
        let points: Vec<_> = ratios.iter().map(point).collect();
        let mut within = [[f64::INFINITY, f64::NEG_INFINITY]; 3];
        for point in &points {
            for (range, x) in within.iter_mut().zip(point.at) {
                *range = [range[0].min(x), range[1].max(x)];
            }
        }
        Some(Self {
            points,
            within,
            error,
        })
    }

    /// Factor on the curve's time of `sizes`, if they lie within the table.
    pub fn factor(&self, sizes: [u64; 3]) -> Option<f64> {
        let at = place(sizes);
        let mut ranges = self.within.iter().zip(at);
        if !ranges.all(|(range, x)| (range[0]..=range[1]).contains(&x)) {
            return None;
        }
        // Distances and residuals of the nearest points, ascending.
        let mut nearest = [(f64::INFINITY, 0.0); NEAREST];
        for point in &self.points {
            let apart = point.at.iter().zip(at).map(|(a, b)| (a - b) * (a - b));
            let mut one = (apart.sum::<f64>(), point.residual);
            if one.0 >= nearest[NEAREST - 1].0 {
                continue;
            }
            for kept in &mut nearest {
                if one.0 < kept.0 {
                    std::mem::swap(kept, &mut one);
                }
            }
        }
        let (mut sum, mut over) = (0.0, 0.0);
        for (distance, residual) in nearest.iter().filter(|one| one.0.is_finite()) {
            let weight = 1.0 / (distance + LEAST);
            sum += weight * residual;
            over += weight;
        }
        Some(libm::exp(sum / over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_points_correct_a_shape_and_far_ones_do_not() {
        let points = [
            ([64, 64, 64], 2.0),
            ([64, 64, 1024], 0.5),
            ([64, 4096, 64], 0.5),
        ];
        let table = MeasuredGemms::new(&points, 0.05).unwrap();
        // At a point its own residual: the others are at ln 16 = 2.77 and ln 64 = 4.16, with weights of 0.13 and 0.06
        // against 1e6.
        assert!((table.factor([64, 64, 64]).unwrap() / 2.0 - 1.0).abs() < 1e-6);
        // Half way between the first two, ln 4 from each, and (ln 4)^2 + (ln 64)^2 = 10 (ln 4)^2 from the third: weights
        // 1, 1 and 0.1, residuals ln 2, -ln 2 and -ln 2: -0.1 / 2.1 of ln 2.
        let between = table.factor([64, 64, 256]).unwrap();
        let expected = libm::exp(-0.1 / 2.1 * libm::log(2.0));
        assert!((between / expected - 1.0).abs() < 1e-5, "{between}");
        // Outside of the box.
        assert_eq!(table.factor([65, 64, 64]), None);
        assert_eq!(table.factor([64, 64, 32]), None);
    }

    #[test]
    fn only_the_nearest_points_count() {
        // Eight points around 1,000, and one at each corner of the box.
        let mut points: Vec<_> = (1..=8).map(|i| ([1000 + i, 1000, 1000], 3.0)).collect();
        points.extend([([1, 1, 1], 0.1), ([1 << 20; 3], 0.1)]);
        let table = MeasuredGemms::new(&points, 0.05).unwrap();
        assert!((table.factor([1000; 3]).unwrap() / 3.0 - 1.0).abs() < 1e-12);
        assert!(MeasuredGemms::new(&[], 0.05).is_none());
        assert!(MeasuredGemms::new(&[([1, 0, 1], 1.0)], 0.05).is_none());
        assert!(MeasuredGemms::new(&[([1; 3], 0.0)], 0.05).is_none());
    }
}
