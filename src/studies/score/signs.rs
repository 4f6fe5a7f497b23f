//! Checks whether the predictions order two measured runs that differ in one option as the measurements do.

use super::MeasuredRun;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Relative difference between repeated measurements of a plan. Smaller differences between plans
/// are within the noise.
const CLEAR: f64 = 0.03;

/// Options that are degrees of parallelism. If the number of NPUs is constant, two of them must change together.
const DEGREES: [&str; 4] = ["context", "data", "pipeline", "tensor"];
/// Options that always change together, and so count as one.
const TOGETHER: [[&str; 2]; 2] = [["chunks", "schedule"], ["linears", "scaling"]];

/// Counts of pairs of runs that differ in only one option. Also counts the pairs that are predicted in the measured
/// order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CorrectlyOrderedRunPairCounts {
    /// The option (or two options that change together), such as `data, tensor`.
    pub option: String,
    /// Number of pairs whose measured times differ.
    pub pairs: usize,
    /// Number of these pairs predicted in the measured order.
    pub right: usize,
    /// Number of pairs whose measured times differ by more than 3 %.
    pub clear_pairs: usize,
    /// Number of these clear pairs predicted in the measured order.
    pub clear_right: usize,
}

/// Counts the pairs of `runs` that differ in one option. The result is sorted by option.
pub fn count_rightly_ordered_pairs_by_option(
    runs: &[MeasuredRun],
    predicted: &[f64],
) -> Vec<CorrectlyOrderedRunPairCounts> {
    let mut found: BTreeMap<String, CorrectlyOrderedRunPairCounts> = BTreeMap::new();
    for (i, run) in runs.iter().enumerate() {
        for (j, other) in runs.iter().enumerate().skip(i + 1) {
            if run.file != other.file || run.measured == other.measured {
                continue;
            }
            let Some(option) = only_differing_option(&run.options, &other.options) else {
                continue;
            };
            let signs = found.entry(option.clone()).or_default();
            signs.option = option;
            let measured = other.measured / run.measured;
            let is_right =
                (measured > 1.0) == (predicted[j] > predicted[i]) && predicted[j] != predicted[i];
            let is_clear = libm::log(measured).abs() > CLEAR;
            signs.pairs += 1;
            signs.right += usize::from(is_right);
            signs.clear_pairs += usize::from(is_clear);
            signs.clear_right += usize::from(is_clear && is_right);
        }
    }
    found.into_values().collect()
}

/// Returns the only option that differs between two runs. `None` if they differ in no option or in several.
fn only_differing_option(
    one: &BTreeMap<String, String>,
    other: &BTreeMap<String, String>,
) -> Option<String> {
    let keys: BTreeSet<&str> = (one.iter())
        .filter(|(key, value)| other.get(*key) != Some(value))
        .chain(other.iter().filter(|(key, _)| !one.contains_key(*key)))
        .map(|(key, _)| key.as_str())
        .collect();
    let keys: Vec<&str> = keys.into_iter().collect();
    let is_one_choice = match &keys[..] {
        [_] => true,
        [a, b] => TOGETHER.contains(&[*a, *b]) || [a, b].iter().all(|key| DEGREES.contains(key)),
        _ => false,
    };
    is_one_choice.then(|| keys.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_option_map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn runs_differ_in_one_choice_or_are_no_pair() {
        let base = build_option_map(&[("tensor", "2"), ("data", "4"), ("batch", "8")]);
        let swapped = build_option_map(&[("tensor", "4"), ("data", "2"), ("batch", "8")]);
        let smaller = build_option_map(&[("tensor", "2"), ("data", "4"), ("batch", "4")]);
        let both = build_option_map(&[("tensor", "2"), ("data", "2"), ("batch", "4")]);
        let mut linears = base.clone();
        linears.extend(build_option_map(&[
            ("linears", "fp8"),
            ("scaling", "delayed"),
        ]));
        assert_eq!(
            only_differing_option(&base, &swapped).as_deref(),
            Some("data, tensor")
        );
        assert_eq!(
            only_differing_option(&base, &smaller).as_deref(),
            Some("batch")
        );
        assert_eq!(
            only_differing_option(&base, &linears).as_deref(),
            Some("linears, scaling")
        );
        // A change of both a degree and the batch size changes two options.
        assert_eq!(only_differing_option(&base, &both), None);
        assert_eq!(only_differing_option(&base, &base), None);
    }
}
