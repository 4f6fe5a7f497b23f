//! Estimates the fixed time of a kernel call, which does not depend on the call's work.

/// Fixed time per call of the kernels with one name, in nanoseconds, and a flag that is true if it is the intercept of
/// a fitted line.
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedKernelCallTime {
    pub fixed: f64,
    pub by_line: bool,
}

/// Fits a line to `points` (work, time) by minimizing the squares of the relative errors. Returns the line's value at
/// zero work, in the unit of the points' times. The result is at least 0 and at most nine tenths of the shortest time.
/// Returns `None` if the largest work is less than twice the smallest work.
pub(super) fn fit_intercept(points: &[(f64, f64)]) -> Option<f64> {
    let works = points.iter().map(|point| point.0);
    let (least, most) = works.fold((f64::MAX, 0.0_f64), |(a, b), w| (a.min(w), b.max(w)));
    if points.len() < 2 || most < 2.0 * least {
        return None;
    }
    // Sums of w, wx, wy, wxx and wxy. Here x is the work, y the time t, and w = 1/t^2 the weight.
    let mut sums = [0.0; 5];
    for &(x, y) in points {
        let weight = 1.0 / (y * y);
        for (sum, value) in sums.iter_mut().zip([1.0, x, y, x * x, x * y]) {
            *sum += weight * value;
        }
    }
    let [one, x, y, xx, xy] = sums;
    let below = one * xx - x * x;
    let fixed = (y * xx - x * xy) / below;
    let shortest = points.iter().map(|point| point.1).fold(f64::MAX, f64::min);
    fixed.is_finite().then(|| fixed.clamp(0.0, 0.9 * shortest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The points (2, 14), (4, 18) and (10, 30) are on the line t = 10 + 2 w.
    #[test]
    fn a_line_through_exact_points_has_their_intercept() {
        let fixed = fit_intercept(&[(2.0, 14.0), (4.0, 18.0), (10.0, 30.0)]).unwrap();
        assert!((fixed - 10.0).abs() < 1e-9, "{fixed}");
        assert_eq!(
            fit_intercept(&[(2.0, 14.0), (3.0, 18.0)]),
            None,
            "works differ too little"
        );
        // If times decrease with work, the intercept is limited to 0.9 times the shortest time.
        let falling = fit_intercept(&[(1.0, 20.0), (4.0, 10.0)]).unwrap();
        assert!((falling - 9.0).abs() < 1e-9, "{falling}");
    }
}
