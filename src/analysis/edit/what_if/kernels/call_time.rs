//! How much time a kernel takes whatever it works on.

/// Line of time over work of the kernels of a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallTime {
    pub fixed: f64,
    pub by_line: bool,
}

/// Returns the time of no work on the line through `points` of work and time, by least squares of relative errors: at least 0,
/// and at most nine tenths of the shortest. `None` where the works do not differ twice.
pub(super) fn intercept(points: &[(f64, f64)]) -> Option<f64> {
    let works = points.iter().map(|point| point.0);
    let (least, most) = works.fold((f64::MAX, 0.0_f64), |(a, b), w| (a.min(w), b.max(w)));
    if points.len() < 2 || most < 2.0 * least {
        return None;
    }
    // Weights 1/t^2: sums of w, wx, wy, wxx, wxy with y = t.
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

    /// t = 10 + 2 w: 14 at 2, 18 at 4, 30 at 10.
    #[test]
    fn a_line_through_exact_points_has_their_intercept() {
        let fixed = intercept(&[(2.0, 14.0), (4.0, 18.0), (10.0, 30.0)]).unwrap();
        assert!((fixed - 10.0).abs() < 1e-9, "{fixed}");
        assert_eq!(
            intercept(&[(2.0, 14.0), (3.0, 18.0)]),
            None,
            "works differ too little"
        );
        // Falling times have no negative slope to take: the intercept is at most 0.9 of the shortest.
        let falling = intercept(&[(1.0, 20.0), (4.0, 10.0)]).unwrap();
        assert!((falling - 9.0).abs() < 1e-9, "{falling}");
    }
}
