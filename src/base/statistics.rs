//! Statistics of samples.

/// Returns the two middle values of `values`, the lower one first. If the number of values is odd, the two are equal.
/// Returns `None` if there are no values. Reorders `values`.
pub fn middle_values<T: Ord + Copy>(values: &mut [T]) -> Option<[T; 2]> {
    let upper = values.len() / 2;
    let is_odd = !values.len().is_multiple_of(2);
    if values.is_empty() {
        return None;
    }
    let (below, &mut upper, _) = values.select_nth_unstable(upper);
    let lower = below.iter().max().filter(|_| !is_odd);
    Some([lower.copied().unwrap_or(upper), upper])
}

/// Returns the median of `values`. If the number of values is even, the median is the mean of the middle two, rounded
/// down. Returns `None` if there are no values. Reorders `values`.
pub fn median(values: &mut [u64]) -> Option<u64> {
    let [lower, upper] = middle_values(values)?;
    Some(lower.midpoint(upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [7]), Some(7));
        assert_eq!(median(&mut [30, 11, 20, 12, 40]), Some(20));
        // (12 + 21) / 2 = 16.5, rounded down to 16.
        assert_eq!(median(&mut [30, 21, 11, 12]), Some(16));
        assert_eq!(median(&mut [u64::MAX, u64::MAX]), Some(u64::MAX));
        assert_eq!(middle_values(&mut [3, -1, 2, 2]), Some([2, 2]));
        assert_eq!(middle_values(&mut [3, -1]), Some([-1, 3]));
    }
}
