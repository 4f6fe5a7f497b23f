//! Selects workloads that cover as many features as possible within a time budget.

use std::collections::{BTreeMap, BTreeSet};

/// A workload, its features, and the expected time of its check.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadWithExpectedCheckTime {
    /// Name of the workload in the archive.
    pub name: String,
    /// Features that the workload covers, for example `operator aten::mm`, `group data`,
    /// `size 2^14 bytes`, `schema .et` and `machine dgx-h100`.
    pub features: BTreeSet<String>,
    /// Expected duration of the check, in milliseconds.
    pub millis: u64,
}

/// The workloads that a check within a time budget includes, and those that it omits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadsWithinTimeBudget {
    /// Names of the selected workloads, in order of selection.
    pub chosen: Vec<String>,
    /// Names of workloads that were not selected.
    pub left_out: Vec<String>,
    /// Features that no selected workload covers.
    pub uncovered: BTreeSet<String>,
}

/// Selects workloads whose checks together take at most `millis` milliseconds. First, repeatedly adds the workload that
/// covers the most new features per millisecond. Then, while time is left, adds workloads with the rarest features.
pub fn select_workloads_within_budget(
    workloads: &[WorkloadWithExpectedCheckTime],
    millis: u64,
) -> WorkloadsWithinTimeBudget {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for feature in workloads.iter().flat_map(|workload| &workload.features) {
        *counts.entry(feature).or_default() += 1;
    }
    let mut covered: BTreeSet<&str> = BTreeSet::new();
    let mut left: Vec<&WorkloadWithExpectedCheckTime> = workloads.iter().collect();
    let mut rest = millis;
    let mut choice = WorkloadsWithinTimeBudget::default();
    loop {
        // Compare new features per millisecond first, then rarity per millisecond. A feature's rarity is 1000 divided
        // by the number of workloads that have it.
        let gain = |workload: &WorkloadWithExpectedCheckTime| {
            let new = workload
                .features
                .iter()
                .filter(|f| !covered.contains(&f[..]))
                .count() as u128;
            let rare: u128 = workload
                .features
                .iter()
                .map(|f| u128::from(1000 / counts[&f[..]]))
                .sum();
            let cost = u128::from(workload.millis.max(1));
            ((new << 40) / cost, (rare << 20) / cost)
        };
        let affordable = left
            .iter()
            .enumerate()
            .filter(|(_, workload)| workload.millis <= rest);
        let best = affordable.max_by_key(|(at, workload)| (gain(workload), std::cmp::Reverse(*at)));
        let Some(at) = best.map(|(at, _)| at) else {
            break;
        };
        let workload = left.remove(at);
        rest -= workload.millis;
        covered.extend(workload.features.iter().map(String::as_str));
        choice.chosen.push(workload.name.clone());
    }
    let missing = left.iter().flat_map(|workload| &workload.features);
    choice.uncovered = missing
        .filter(|f| !covered.contains(&f[..]))
        .cloned()
        .collect();
    choice.left_out = left.iter().map(|workload| workload.name.clone()).collect();
    choice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_workload_with_features_and_time(
        name: &str,
        features: &[&str],
        millis: u64,
    ) -> WorkloadWithExpectedCheckTime {
        WorkloadWithExpectedCheckTime {
            name: name.to_owned(),
            features: features.iter().map(|f| (*f).to_owned()).collect(),
            millis,
        }
    }

    #[test]
    fn what_covers_most_for_its_time_is_chosen_first() {
        let all = [
            build_workload_with_features_and_time("a", &["mm"], 10),
            build_workload_with_features_and_time("b", &["mm", "conv"], 10),
            build_workload_with_features_and_time("c", &["mm", "conv", "moe"], 100),
            build_workload_with_features_and_time("d", &["fft"], 10),
        ];
        // First, b covers two features in 10 ms. Then only d covers new features in the remaining
        // 15 ms.
        let choice = select_workloads_within_budget(&all, 25);
        assert_eq!(choice.chosen, ["b", "d"]);
        assert_eq!(choice.left_out, ["a", "c"]);
        assert_eq!(choice.uncovered, BTreeSet::from(["moe".to_owned()]));
        let whole = select_workloads_within_budget(&all, 1000);
        assert_eq!((whole.chosen.len(), whole.uncovered.len()), (4, 0));
        assert!(select_workloads_within_budget(&all, 5).chosen.is_empty());
    }
}
