//! Load of experts: the number of tokens that each expert receives, and the number that the rank with the most tokens
//! receives.
//!
//! Each of T tokens is sent to k of E experts. With balanced routing, each expert receives T k / E copies. With skewed
//! routing, the experts are shuffled with a seed, and expert i in this order receives a share proportional to (i +
//! 1)^-a. An expert receives each token at most once, so it receives at most T copies; the excess goes to other
//! experts. Experts are assigned in order to N ranks, E / N to each.
//!
//! With R redundant experts, copies of experts are added one by one. Each is a copy of the expert that has the most
//! tokens per copy at that point. The E + R copies are then assigned to ranks, (E + R) / N to each. In order of falling
//! load, each copy goes to the least loaded rank with a free place. This is the global policy of DeepSeek's
//! expert-parallel load balancer (EPLB). The tokens of an expert are divided evenly among its copies.
//!
//! All ranks with experts wait for the fullest rank, so generated traces give every rank the load of the fullest rank.
//! This predicts the same step time as if each rank had its own load, but it overestimates the exchanges and the memory
//! of the other ranks.

use chakram_base::random::split_mix;
use std::fmt;
use std::str::FromStr;

/// Distribution of tokens over experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertRoutingBalance {
    /// All experts receive the same number of tokens.
    Balanced,
    /// The experts' shares of the tokens follow a power law.
    Skewed {
        /// Exponent a of the power law, above 0.
        power: f64,
        /// Seed that shuffles the experts.
        seed: u64,
    },
}

impl ExpertRoutingBalance {
    /// Syntax of a balance, for error messages.
    pub(super) const FORM: &'static str = "balanced, or skewed:POWER or skewed:POWER:SEED with a power above 0 and at most 10, such as skewed:1.2:7";
}

impl fmt::Display for ExpertRoutingBalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Balanced => f.write_str("balanced"),
            Self::Skewed { power, seed: 0 } => write!(f, "skewed:{power}"),
            Self::Skewed { power, seed } => write!(f, "skewed:{power}:{seed}"),
        }
    }
}

impl FromStr for ExpertRoutingBalance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected {}", Self::FORM);
        if text == "balanced" {
            return Ok(Self::Balanced);
        }
        let rest = text.strip_prefix("skewed:").ok_or_else(wrong)?;
        let (power, seed) = match rest.split_once(':') {
            Some((power, seed)) => (power, seed.parse().map_err(|_| wrong())?),
            None => (rest, 0),
        };
        let power: f64 = power.parse().map_err(|_| wrong())?;
        if power > 0.0 && power <= 10.0 {
            Ok(Self::Skewed { power, seed })
        } else {
            Err(wrong())
        }
    }
}

/// An expert's capacity, divided by the mean number of tokens per expert, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertCapacityFactor(u32);

impl ExpertCapacityFactor {
    /// Largest valid factor.
    pub(super) const MOST: f64 = 1000.0;

    /// Rounds `factor`, which must be above 0, to thousandths.
    pub(super) fn from_fraction_rounded_to_thousandths(factor: f64) -> Self {
        Self(((factor * 1000.0 + 0.5) as u32).max(1))
    }
}

impl fmt::Display for ExpertCapacityFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 1000.0)
    }
}

impl FromStr for ExpertCapacityFactor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let factor = text.parse().ok();
        let factor = factor.filter(|factor: &f64| *factor > 0.0 && *factor <= Self::MOST);
        let wrong = || format!("expected a number above 0 and at most {}", Self::MOST);
        factor
            .map(Self::from_fraction_rounded_to_thousandths)
            .ok_or_else(wrong)
    }
}

/// Returns each expert's share of all token copies, if each token is sent to `chosen` of `experts`
/// experts.
fn expert_token_shares(
    balance: ExpertRoutingBalance,
    counts: &[u32],
    experts: u64,
    chosen: u64,
) -> Vec<f64> {
    let number = usize::try_from(experts).unwrap_or(usize::MAX);
    let mut weights: Vec<f64> = match balance {
        _ if !counts.is_empty() => counts.iter().map(|count| f64::from(*count)).collect(),
        ExpertRoutingBalance::Balanced => vec![1.0; number],
        ExpertRoutingBalance::Skewed { power, seed } => {
            let mut weights: Vec<f64> = (1..=experts)
                .map(|place| libm::pow(place as f64, -power))
                .collect();
            // Shuffle uniformly (Fisher and Yates).
            let mut state = seed;
            for last in (1..number).rev() {
                let other = split_mix(&mut state) % (last as u64 + 1);
                weights.swap(last, other as usize);
            }
            weights
        }
    };
    let all: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= all);
    // Measured counts are used as they are, without the limit below.
    if !counts.is_empty() {
        return weights;
    }
    // An expert receives each token at most once, so its share is at most 1 / chosen. Each round fixes at
    // least one expert at this limit, so the loop ends.
    let most = 1.0 / chosen.max(1) as f64;
    for _ in 0..number {
        let over: f64 = weights.iter().map(|part| (part - most).max(0.0)).sum();
        let below: f64 = weights.iter().filter(|part| **part < most).sum();
        if over <= 1e-12 || below <= 0.0 {
            break;
        }
        for part in &mut weights {
            *part = if *part >= most {
                most
            } else {
                *part * (1.0 + over / below)
            };
        }
    }
    weights
}

/// Returns the number of token copies on the fullest of `ranks` ranks, as a multiple of the mean. If `capacity` is
/// given, returns the capacity factor. `redundant` is the number of redundant experts.
pub(in crate::generate) fn fullest_rank_load_ratio(
    balance: ExpertRoutingBalance,
    counts: &[u32],
    capacity: Option<ExpertCapacityFactor>,
    redundant: u64,
    [experts, chosen, ranks]: [u64; 3],
) -> f64 {
    if let Some(ExpertCapacityFactor(thousandths)) = capacity {
        // With a capacity, unused slots are padded, so all ranks process the same number of rows.
        return f64::from(thousandths) / 1000.0;
    }
    let shares = expert_token_shares(balance, counts, experts, chosen);
    if redundant > 0 {
        let ranks_in_use = usize::try_from(ranks).unwrap_or(1).max(1);
        let loads = rank_shares_with_balanced_copies(&shares, redundant, ranks_in_use);
        return loads.into_iter().fold(0.0, f64::max) * ranks as f64;
    }
    let each = shares.len() / usize::try_from(ranks).unwrap_or(1).max(1);
    let of_ranks = shares.chunks(each.max(1)).map(|own| own.iter().sum());
    let fullest = of_ranks.fold(0.0, |most: f64, own| most.max(own));
    fullest * ranks as f64
}

/// Adds `redundant` copies to the experts with these `shares` of the tokens, and assigns all copies
/// to ranks. Returns each rank's share of the tokens.
fn rank_shares_with_balanced_copies(shares: &[f64], redundant: u64, ranks: usize) -> Vec<f64> {
    let mut copies = vec![1_u32; shares.len()];
    let load = |expert: usize, copies: &[u32]| shares[expert] / f64::from(copies[expert]);
    for _ in 0..redundant {
        // Among equal experts, the first one is chosen, so that the result does not depend on rounding.
        let fullest = (0..shares.len()).reduce(|most, expert| {
            match load(expert, &copies) > load(most, &copies) {
                true => expert,
                false => most,
            }
        });
        copies[fullest.unwrap_or(0)] += 1;
    }
    let each = |expert: usize| vec![load(expert, &copies); copies[expert] as usize];
    let mut loads: Vec<f64> = (0..shares.len()).flat_map(each).collect();
    loads.sort_by(|a, b| b.total_cmp(a));
    let places = loads.len().div_ceil(ranks);
    let mut of_ranks = vec![(0.0_f64, 0); ranks];
    for load in loads {
        let free = of_ranks.iter_mut().filter(|(_, used)| *used < places);
        if let Some(rank) = free.min_by(|a, b| a.0.total_cmp(&b.0)) {
            rank.0 += load;
            rank.1 += 1;
        }
    }
    of_ranks.into_iter().map(|(load, _)| load).collect()
}

/// Returns the mean number of ranks to which a token is sent: N (1 - C(E - E / N, k) / C(E, k)), if each token
/// uniformly chooses k (`chosen`) of E experts, which are divided among N ranks.
///
/// With grouped routing, a token uniformly chooses `chosen_groups` of `groups` groups, and then its experts from these
/// groups. If the number of groups and the number of ranks are such that neither divides the other, groups are ignored,
/// and the result is too large.
pub(in crate::generate) fn mean_ranks_per_token(
    [experts, chosen, ranks]: [u64; 3],
    [groups, chosen_groups]: [u64; 2],
) -> f64 {
    let ranks = ranks.max(1);
    // Probability that a token that chooses among `open` experts chooses none of `own` of them.
    let miss_probability = |open: u64, own: u64| {
        (0..chosen).fold(1.0, |none: f64, drawn| {
            let left = open.saturating_sub(drawn);
            let others = open.saturating_sub(own).saturating_sub(drawn);
            none * (others as f64 / left.max(1) as f64)
        })
    };
    let is_limited = groups > 1 && chosen_groups > 0 && chosen_groups < groups;
    let open = experts / groups.max(1) * chosen_groups;
    if is_limited && ranks.is_multiple_of(groups) {
        // All experts of a rank are in one group.
        let share = chosen_groups as f64 / groups as f64;
        return ranks as f64 * share * (1.0 - miss_probability(open, experts / ranks));
    }
    if is_limited && groups.is_multiple_of(ranks) {
        // A rank has whole groups, and a token chooses some of them.
        let own = groups / ranks;
        let all = count_combinations(groups, chosen_groups);
        let hit = (0..=own.min(chosen_groups)).map(|some| {
            let part = count_combinations(own, some)
                * count_combinations(groups - own, chosen_groups - some)
                / all;
            part * (1.0 - miss_probability(open, some * (experts / groups)))
        });
        return ranks as f64 * hit.sum::<f64>();
    }
    ranks as f64 * (1.0 - miss_probability(experts, experts / ranks))
}

/// Number of ways in which `some` of `all` items can be chosen.
fn count_combinations(all: u64, some: u64) -> f64 {
    (0..some).fold(1.0, |ways, drawn| {
        ways * all.saturating_sub(drawn) as f64 / (drawn + 1) as f64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the same mean as `mean_ranks_per_token`, but enumerates every choice of k of E experts.
    fn mean_ranks_per_token_by_enumeration([experts, chosen, ranks]: [u64; 3]) -> f64 {
        let (mut all, mut touched) = (0_u64, 0_u64);
        for set in 0..1_u64 << experts {
            if u64::from(set.count_ones()) != chosen {
                continue;
            }
            let own = experts / ranks;
            let has = |rank: &u64| (0..own).any(|at| set >> (rank * own + at) & 1 == 1);
            all += 1;
            touched += (0..ranks).filter(has).count() as u64;
        }
        touched as f64 / all as f64
    }

    #[test]
    fn mean_ranks_per_token_match_enumeration_of_choices() {
        for of in [
            [8, 2, 2],
            [8, 2, 4],
            [8, 2, 8],
            [12, 4, 3],
            [16, 8, 4],
            [6, 6, 2],
            [6, 1, 3],
        ] {
            let (found, expected) = (
                mean_ranks_per_token(of, [0, 0]),
                mean_ranks_per_token_by_enumeration(of),
            );
            assert!(
                (found - expected).abs() < 1e-12,
                "{of:?}: {found} {expected}"
            );
        }
        // The counts are for E = 256 and k = 8 on 2 to 64 ranks, as in DeepSeek-V3.
        let counts = [1.99, 3.61, 5.30, 6.52, 7.27, 7.68];
        for (ranks, expected) in [2, 4, 8, 16, 32, 64].into_iter().zip(counts) {
            let found = mean_ranks_per_token([256, 8, ranks], [1, 1]);
            assert!((found - expected).abs() < 0.006, "{ranks}: {found}");
        }
    }

    /// Returns the average number of ranks by enumerating every choice of groups, and of experts in these groups.
    fn mean_ranks_by_grouped_enumeration(
        [experts, chosen, ranks]: [u64; 3],
        [groups, some]: [u64; 2],
    ) -> f64 {
        let (mut all, mut touched) = (0_u64, 0_u64);
        for open in 0..1_u64 << groups {
            if u64::from(open.count_ones()) != some {
                continue;
            }
            for set in 0..1_u64 << experts {
                let group_of = |expert: u64| expert / (experts / groups);
                let own = || (0..experts).filter(|expert| set >> expert & 1 == 1);
                let is_open = own().all(|expert| open >> group_of(expert) & 1 == 1);
                if !is_open || own().count() as u64 != chosen {
                    continue;
                }
                let has = |rank: &u64| own().any(|expert| expert / (experts / ranks) == *rank);
                all += 1;
                touched += (0..ranks).filter(has).count() as u64;
            }
        }
        touched as f64 / all as f64
    }

    #[test]
    fn groups_limit_the_ranks_of_a_token() {
        for (of, groups) in [
            ([8, 2, 4], [4, 2]),
            ([8, 2, 8], [4, 2]),
            ([8, 2, 2], [4, 2]),
            ([12, 3, 2], [6, 3]),
            ([12, 3, 6], [3, 1]),
            ([8, 2, 4], [4, 4]),
            ([8, 3, 1], [4, 2]),
        ] {
            let found = mean_ranks_per_token(of, groups);
            let expected = mean_ranks_by_grouped_enumeration(of, groups);
            assert!(
                (found - expected).abs() < 1e-12,
                "{of:?} {groups:?}: {found} {expected}"
            );
        }
        // DeepSeek-V3 chooses from 4 of 8 groups: 4 (1 - C(96, 8) / C(128, 8)) of 8 nodes.
        let nodes = mean_ranks_per_token([256, 8, 8], [8, 4]);
        assert!((nodes - 3.63).abs() < 0.01, "{nodes}");
    }

    #[test]
    fn fullest_rank_load_follows_counts_or_a_skewed_draw() {
        let skewed = |power| ExpertRoutingBalance::Skewed { power, seed: 3 };
        let factor =
            |balance, counts: &[u32], of| fullest_rank_load_ratio(balance, counts, None, 0, of);
        assert_eq!(factor(ExpertRoutingBalance::Balanced, &[], [8, 2, 4]), 1.0);
        // With counts 10, 30, 0 and 0 of four experts on two ranks, the first rank has all 40
        // copies, twice the mean.
        assert_eq!(
            factor(ExpertRoutingBalance::Balanced, &[10, 30, 0, 0], [4, 1, 2]),
            2.0
        );
        assert_eq!(
            factor(ExpertRoutingBalance::Balanced, &[10, 0, 30, 0], [4, 1, 2]),
            1.5
        );
        // A single rank has all copies, so its load is the mean. With more ranks, the ratio of the fullest rank to the
        // mean grows.
        let of = |ranks| factor(skewed(1.2), &[], [64, 6, ranks]);
        let factors = [1, 2, 4, 8, 16, 32, 64].map(of);
        assert!((factors[0] - 1.0).abs() < 1e-9);
        assert!(factors.is_sorted_by(|a, b| a < b), "{factors:?}");
        // With one expert per rank, the fullest rank receives each token at most once, so its load
        // is at most E / k times the mean.
        assert!(factors[6] <= 64.0 / 6.0 + 1e-6);
        assert!((of(64) - factors[6]).abs() < 1e-12);
        // Another seed gives another order of experts.
        let other = ExpertRoutingBalance::Skewed {
            power: 1.2,
            seed: 4,
        };
        assert_ne!(
            factor(other, &[], [64, 6, 8]),
            factor(skewed(1.2), &[], [64, 6, 8])
        );
        let padded = Some(ExpertCapacityFactor::from_fraction_rounded_to_thousandths(
            1.25,
        ));
        assert_eq!(
            fullest_rank_load_ratio(skewed(2.0), &[], padded, 0, [8, 2, 4]),
            1.25
        );
    }

    #[test]
    fn routing_balance_words_are_parsed_and_printed() {
        for text in ["balanced", "skewed:1.2", "skewed:0.5:7"] {
            assert_eq!(
                text.parse::<ExpertRoutingBalance>().unwrap().to_string(),
                text
            );
        }
        for text in [
            "",
            "skewed",
            "skewed:",
            "skewed:-1",
            "skewed:0",
            "skewed:1:x",
            "skewed:11",
            "even",
        ] {
            assert!(text.parse::<ExpertRoutingBalance>().is_err(), "{text}");
        }
        for text in ["0", "-1", "x", "1001", "NaN"] {
            assert!(text.parse::<ExpertCapacityFactor>().is_err(), "{text}");
        }
        assert_eq!(
            "1.25".parse::<ExpertCapacityFactor>().unwrap().to_string(),
            "1.25"
        );
    }

    /// Four experts have 12, 4, 2 and 2 of 20 tokens, on two ranks. Two copies are added: the first expert has 12, then
    /// 6, then 4 tokens per copy. Two ranks with three places each share copies with 4, 4, 4, 4, 2 and 2 tokens. Both
    /// get 4 + 4 + 2 tokens, which is the mean. Without the added copies, the first rank has 16 tokens, 1.6 times the
    /// mean.
    #[test]
    fn redundant_experts_share_the_tokens_of_full_experts() {
        let load = |redundant| {
            let counts = [12, 4, 2, 2];
            fullest_rank_load_ratio(
                ExpertRoutingBalance::Balanced,
                &counts,
                None,
                redundant,
                [4, 1, 2],
            )
        };
        assert!((load(0) - 1.6).abs() < 1e-12);
        assert!((load(2) - 1.0).abs() < 1e-12);
        let ranks = rank_shares_with_balanced_copies(&[0.6, 0.2, 0.1, 0.1], 2, 2);
        assert!(
            ranks.iter().all(|part| (part - 0.5).abs() < 1e-12),
            "{ranks:?}"
        );
        // A power law distributes tokens over 256 experts on 32 ranks. Each rank has nine copies, as in DeepSeek-V3's
        // deployment.
        let skewed = ExpertRoutingBalance::Skewed {
            power: 0.5,
            seed: 3,
        };
        let load = |redundant| fullest_rank_load_ratio(skewed, &[], None, redundant, [256, 8, 32]);
        assert!(load(0) > 1.5, "{}", load(0));
        assert!(load(32) < 1.05, "{}", load(32));
    }
}
