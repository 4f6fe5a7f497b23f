//! Counts, one by one, the token copies that ranks send each other when tokens choose experts on other ranks.
//!
//! All ranks have the same number of experts, with consecutive indices. The code prefers simplicity to speed: a routing
//! lists the experts of every token, and every count walks over this list.

/// Number of copies by source and destination rank.
pub type TokenCopiesByRankPair = Vec<Vec<u64>>;

/// The experts that each rank's tokens choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenExpertChoices {
    pub ranks: usize,
    pub experts: usize,
    /// Distinct experts that each token chooses, by rank and token.
    pub tokens: Vec<Vec<Vec<usize>>>,
}

/// Result of a routing with a fixed number of slots (token places) per expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotLimitedTokenCopies {
    /// Number of slots sent, including free slots, by source and destination rank.
    pub slots: TokenCopiesByRankPair,
    pub kept: u64,
    pub dropped: u64,
    pub free: u64,
}

/// Copies in an exchange with two levels: between nodes, then within nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwoLevelTokenCopies {
    /// Copies between ranks of the same index within their nodes.
    pub across: TokenCopiesByRankPair,
    /// Copies within a node.
    pub within: TokenCopiesByRankPair,
}

impl TokenExpertChoices {
    /// Creates a routing that covers all choices: on each rank, `times` tokens choose each possible set of `chosen`
    /// experts.
    pub fn from_all_possible_expert_sets(
        ranks: usize,
        experts: usize,
        chosen: usize,
        times: usize,
    ) -> Self {
        let mut choices = Vec::new();
        for set in 0..1_u64 << experts {
            if set.count_ones() as usize == chosen {
                let own: Vec<usize> = (0..experts).filter(|one| set >> one & 1 == 1).collect();
                choices.extend(std::iter::repeat_n(own, times));
            }
        }
        Self {
            ranks,
            experts,
            tokens: vec![choices; ranks],
        }
    }

    /// Creates a random routing: each of a rank's `tokens` tokens draws `chosen` different experts,
    /// with probabilities in proportion to `weights`.
    pub fn drawn(ranks: usize, tokens: usize, weights: &[u32], chosen: usize, seed: u64) -> Self {
        let mut state = seed.wrapping_mul(2).wrapping_add(1);
        let mut draw = |below: u64| {
            // The low bits of this linear congruential generator (with Knuth's MMIX constants) are
            // weak, so use the high bits.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut token = || {
            let mut own: Vec<usize> = Vec::new();
            while own.len() < chosen {
                let open = |one: &usize| !own.contains(one);
                let all: u64 = (0..weights.len())
                    .filter(open)
                    .map(|one| u64::from(weights[one]))
                    .sum();
                let mut at = draw(all);
                let mut candidates = (0..weights.len()).filter(open);
                let drawn = candidates.find(|one| {
                    let weight = u64::from(weights[*one]);
                    let found = at < weight;
                    at = at.saturating_sub(weight);
                    found
                });
                own.extend(drawn);
            }
            own
        };
        let of_rank = |_| (0..tokens).map(|_| token()).collect();
        Self {
            ranks,
            experts: weights.len(),
            tokens: (0..ranks).map(of_rank).collect(),
        }
    }

    fn rank_of(&self, expert: usize) -> usize {
        expert / (self.experts / self.ranks)
    }

    fn count_copies_by_rank_pair(
        &self,
        mut copy: impl FnMut(&mut TokenCopiesByRankPair, usize, &[usize]),
    ) -> TokenCopiesByRankPair {
        let mut copies = vec![vec![0; self.ranks]; self.ranks];
        for (rank, tokens) in self.tokens.iter().enumerate() {
            for token in tokens {
                copy(&mut copies, rank, token);
            }
        }
        copies
    }

    /// Returns how many tokens on all ranks choose each expert.
    pub fn tokens_of_experts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.experts];
        for expert in self.tokens.iter().flatten().flatten() {
            counts[*expert] += 1;
        }
        counts
    }

    /// Counts one copy of a token for each of its chosen experts.
    pub fn count_copies_per_chosen_expert(&self) -> TokenCopiesByRankPair {
        self.count_copies_by_rank_pair(|copies, from, token| {
            for expert in token {
                copies[from][self.rank_of(*expert)] += 1;
            }
        })
    }

    /// Counts one copy of a token for each rank that has at least one of its experts.
    pub fn count_one_copy_per_rank_with_experts(&self) -> TokenCopiesByRankPair {
        self.count_copies_by_rank_pair(|copies, from, token| {
            for (to, copies) in copies[from].iter_mut().enumerate() {
                *copies += u64::from(token.iter().any(|expert| self.rank_of(*expert) == to));
            }
        })
    }

    /// Counts one copy of every token to every rank.
    pub fn copies_for_all(&self) -> TokenCopiesByRankPair {
        self.count_copies_by_rank_pair(|copies, from, _| {
            copies[from].iter_mut().for_each(|one| *one += 1)
        })
    }

    /// Counts copies in an exchange with two levels. A node has `size` ranks. A token first goes once to each node that
    /// has one of its experts. There it goes to the rank with the sender's index within the node, which sends one copy
    /// to each rank of the node that has one of the token's experts.
    pub fn copies_in_two_level_exchange(&self, size: usize) -> TwoLevelTokenCopies {
        let mut within = vec![vec![0; self.ranks]; self.ranks];
        let across = self.count_copies_by_rank_pair(|copies, from, token| {
            for node in 0..self.ranks / size {
                let gate = node * size + from % size;
                let mut is_needed = false;
                for (to, copies) in within[gate].iter_mut().enumerate() {
                    let is_local = to / size == node;
                    if is_local && token.iter().any(|expert| self.rank_of(*expert) == to) {
                        is_needed = true;
                        *copies += 1;
                    }
                }
                copies[from][gate] += u64::from(is_needed);
            }
        });
        TwoLevelTokenCopies { across, within }
    }

    /// Counts copies if each rank has `slots` slots (token places) per expert. Tokens fill the
    /// slots in order, and tokens without a slot are dropped. Free slots are sent too.
    pub fn copies_kept_dropped_and_free_in_slots(&self, slots: u64) -> SlotLimitedTokenCopies {
        let [mut kept, mut dropped, mut free] = [0; 3];
        let mut sent = vec![vec![0; self.ranks]; self.ranks];
        for (from, tokens) in self.tokens.iter().enumerate() {
            let mut used = vec![0; self.experts];
            for expert in tokens.iter().flatten() {
                match used[*expert] < slots {
                    true => {
                        used[*expert] += 1;
                        kept += 1;
                    }
                    false => dropped += 1,
                }
            }
            for (expert, used) in used.into_iter().enumerate() {
                free += slots - used;
                sent[from][self.rank_of(expert)] += slots;
            }
        }
        SlotLimitedTokenCopies {
            slots: sent,
            kept,
            dropped,
            free,
        }
    }
}

/// Returns the largest number of copies that a rank receives.
pub fn most_copies_received(copies: &TokenCopiesByRankPair) -> u64 {
    let received = (0..copies.len()).map(|to| copies.iter().map(|from| from[to]).sum());
    received.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of two ranks has two experts and two tokens. One token chooses experts 0 and 3, the
    /// other chooses experts 2 and 3.
    #[test]
    fn token_copies_match_counts_by_hand() {
        let own = vec![vec![0, 3], vec![2, 3]];
        let routing = TokenExpertChoices {
            ranks: 2,
            experts: 4,
            tokens: vec![own.clone(), own],
        };
        assert_eq!(routing.tokens_of_experts(), [2, 0, 2, 4]);
        assert_eq!(routing.count_copies_per_chosen_expert(), [[1, 3], [1, 3]]);
        assert_eq!(
            routing.count_one_copy_per_rank_with_experts(),
            [[1, 2], [1, 2]]
        );
        assert_eq!(routing.copies_for_all(), [[2, 2], [2, 2]]);
        assert_eq!(
            most_copies_received(&routing.count_copies_per_chosen_expert()),
            6
        );
        // With one rank per node, the first level is an exchange between ranks, and the second level stays within a
        // rank.
        let two = routing.copies_in_two_level_exchange(1);
        assert_eq!(two.across, routing.count_one_copy_per_rank_with_experts());
        assert_eq!(two.within, [[2, 0], [0, 4]]);
        // On a single node, a rank keeps its tokens in the first level, and sends them to the ranks
        // of their experts in the second level.
        let two = routing.copies_in_two_level_exchange(2);
        assert_eq!(two.across, [[2, 0], [0, 2]]);
        assert_eq!(two.within, routing.count_one_copy_per_rank_with_experts());
        // With one slot per expert, each rank drops one of its two tokens for expert 3, and the
        // slot of expert 1 stays free.
        let limited = routing.copies_kept_dropped_and_free_in_slots(1);
        assert_eq!(limited.slots, [[2, 2], [2, 2]]);
        assert_eq!((limited.kept, limited.dropped, limited.free), (6, 2, 2));
    }

    #[test]
    fn each_token_chooses_different_experts() {
        for routing in [
            TokenExpertChoices::from_all_possible_expert_sets(2, 6, 3, 2),
            TokenExpertChoices::drawn(2, 40, &[9, 1, 1, 4, 1, 2], 3, 5),
        ] {
            assert_eq!(routing.tokens[0].len(), 40);
            for token in routing.tokens.iter().flatten() {
                let mut own = token.clone();
                own.sort_unstable();
                own.dedup();
                assert_eq!(own.len(), 3);
                assert!(own.iter().all(|expert| *expert < 6));
            }
        }
        let counts = TokenExpertChoices::drawn(1, 400, &[100, 1, 1, 1], 1, 1).tokens_of_experts();
        assert!(counts[0] > 350, "{counts:?}");
    }
}
