//! Compares the bytes of token exchanges with a simulation that routes single tokens.

use super::{RankNodeSums, build_experts_model, build_pattern_of_model_and_plan};
use chakram::generate::{
    ContextExchange, ExpertCapacityFactor, ExpertExchangeForm, ExpertRoutingBalance,
    ParallelismPlan,
};
use chakram::trace::{CollectiveKind, Dtype};
use testkit::expert_routing::{TokenCopiesByRankPair, TokenExpertChoices, most_copies_received};

/// The columns of a token, each a number of 2 B.
const H: u64 = 128;
/// The number of experts; the next constant is how many experts a token has, which gives 28 choices.
const E: usize = 8;
const K: usize = 2;

/// The degrees of a plan, and how many ranks share the tokens of one sequence.
#[derive(Clone, Copy, Debug)]
struct PlanDegrees {
    data: u32,
    tensor: u32,
    context: u32,
    expert: u32,
    expert_tensor: u32,
}

const DEGREES: [PlanDegrees; 6] = [
    make_plan_degrees(2, 1, 1, 2, 1),
    make_plan_degrees(4, 1, 1, 4, 1),
    make_plan_degrees(4, 1, 1, 2, 1),
    make_plan_degrees(2, 2, 1, 4, 1),
    make_plan_degrees(1, 2, 2, 2, 2),
    make_plan_degrees(2, 2, 2, 8, 1),
];

const fn make_plan_degrees(
    data: u32,
    tensor: u32,
    context: u32,
    expert: u32,
    expert_tensor: u32,
) -> PlanDegrees {
    PlanDegrees {
        data,
        tensor,
        context,
        expert,
        expert_tensor,
    }
}

/// Returns a plan whose ranks have `tokens` tokens each, and the exchanges of one layer on rank 0
/// as (name, kind, bytes).
fn list_expert_exchanges(
    of: PlanDegrees,
    tokens: usize,
    change: impl Fn(&mut ParallelismPlan),
) -> Vec<(String, CollectiveKind, u64)> {
    let shards = u64::from(of.tensor * of.context);
    let model = build_experts_model(tokens as u64 * shards, E as u64, K as u64);
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.tensor, plan.context) = (of.data, of.tensor, of.context);
    (plan.expert, plan.expert_tensor) = (of.expert, Some(of.expert_tensor));
    plan.sequence_parallel = of.tensor > 1;
    if of.context > 1 {
        plan.context_exchange = ContextExchange::AllToAll;
    }
    plan.batch = of.data.into();
    change(&mut plan);
    let job = build_pattern_of_model_and_plan(&model, &plan).unwrap();
    let ranks = (0..job.rank_count()).map(|rank| {
        let all = RankNodeSums::sum_nodes_of_rank(&job, rank)
            .collectives
            .into_iter();
        let own = all.filter(|(name, ..)| name.contains("/layer1/") && name.contains("experts."));
        // Sums and gathers among the members of a tensor group belong to products.
        own.filter(|(name, ..)| name.contains("dispatch.") || name.contains("combine."))
            .collect()
    });
    let mut ranks: Vec<Vec<_>> = ranks.collect();
    ranks.dedup();
    assert_eq!(ranks.len(), 1, "all ranks exchange the same bytes");
    ranks.remove(0)
}

/// Asserts that four all-to-alls send as many copies as `copies` states, with `sizes` bytes per copy to and from the
/// experts.
fn assert_all_to_alls(
    found: &[(String, CollectiveKind, u64)],
    copies: &TokenCopiesByRankPair,
    sizes: [u64; 2],
    about: &str,
) {
    let names: Vec<&str> = found.iter().map(|(name, ..)| &name[..]).collect();
    assert_eq!(
        names,
        [
            "mb0/layer1/fwd/experts.dispatch.all-to-all",
            "mb0/layer1/fwd/experts.combine.all-to-all",
            "mb0/layer1/bwd/experts.combine.all-to-all",
            "mb0/layer1/bwd/experts.dispatch.all-to-all",
        ],
        "{about}"
    );
    let ranks = copies.len() as u64;
    for ((_, kind, bytes), size) in found.iter().zip([sizes[0], sizes[1], sizes[0], sizes[1]]) {
        assert_eq!(*kind, CollectiveKind::AllToAll);
        // The buffer of an all-to-all has an equal part for each member.
        for one in copies.iter().flatten() {
            assert_eq!(*bytes, ranks * one * size, "{about}: {copies:?}");
        }
    }
}

/// If tokens choose all combinations of experts equally often, every rank sends equally many copies to each rank.
#[test]
fn balanced_all_to_alls_have_the_bytes_of_the_copies_of_tokens() {
    for of in DEGREES {
        let routing =
            TokenExpertChoices::from_all_possible_expert_sets(of.expert as usize, E, K, 1);
        let tokens = routing.tokens[0].len();
        let about = format!("{of:?}");
        let found = list_expert_exchanges(of, tokens, |_| ());
        assert_all_to_alls(
            &found,
            &routing.count_copies_per_chosen_expert(),
            [2 * H, 2 * H],
            &about,
        );
        // Numbers of 1 B have one scale of 4 B for every 128 numbers.
        let found = list_expert_exchanges(of, tokens, |plan| {
            plan.expert_exchange_dtype = Some(Dtype::Fp8);
        });
        let to_experts = H + 4 * H / 128;
        let sizes = [to_experts, 2 * H];
        assert_all_to_alls(
            &found,
            &routing.count_copies_per_chosen_expert(),
            sizes,
            &about,
        );
        if of.expert_tensor < of.tensor {
            continue;
        }
        let found = list_expert_exchanges(of, tokens, |plan| {
            plan.expert_exchange = ExpertExchangeForm::Ranks;
        });
        assert_all_to_alls(
            &found,
            &routing.count_one_copy_per_rank_with_experts(),
            [2 * H, 2 * H],
            &about,
        );
        let found = list_expert_exchanges(of, tokens, |plan| {
            plan.expert_exchange = ExpertExchangeForm::AllGather;
        });
        let copies = routing.copies_for_all();
        let [gather, scatter] = [CollectiveKind::AllGather, CollectiveKind::ReduceScatter];
        let sent: u64 = copies[0].iter().sum();
        // An all-gather's size is that of one member's part, and a reduce-scatter's is that of all parts.
        let found: Vec<_> = found
            .iter()
            .map(|(_, kind, bytes)| (*kind, *bytes))
            .collect();
        let [one, all] = [2 * H * copies[0][0], 2 * H * sent];
        let expected = [(gather, one), (scatter, all), (gather, one), (scatter, all)];
        assert_eq!(found, expected, "{about}");
    }
}

/// With measured or skewed token counts, every rank is assumed to have as many copies as the fullest rank.
#[test]
fn skewed_exchanges_have_the_bytes_of_the_fullest_rank() {
    for (of, seed) in DEGREES.into_iter().zip(1..) {
        let weights = [9, 1, 4, 2, 1, 1, 3, 2];
        let routing = TokenExpertChoices::drawn(of.expert as usize, 56, &weights, K, seed);
        // Other groups of ranks have tokens with the same experts.
        let found = list_expert_exchanges(of, 56, |plan| {
            plan.expert_counts = routing.tokens_of_experts();
        });
        let fullest = most_copies_received(&routing.count_copies_per_chosen_expert());
        assert!(fullest > 56 * K as u64, "{of:?}: {fullest}");
        for (name, _, bytes) in &found {
            assert_eq!(*bytes, 2 * H * fullest, "{of:?}: {name}");
        }
        if of.expert_tensor < of.tensor {
            continue;
        }
        // A rank receives a token only once, even if it has several of the token's experts. The plan assumes that this
        // happens as often as with balanced experts.
        let found = list_expert_exchanges(of, 56, |plan| {
            plan.expert_counts = routing.tokens_of_experts();
            plan.expert_exchange = ExpertExchangeForm::Ranks;
        });
        let fullest = most_copies_received(&routing.count_one_copy_per_rank_with_experts());
        let ratio = found[0].2 as f64 / (2 * H * fullest) as f64;
        assert!((0.85..1.2).contains(&ratio), "{of:?}: {ratio}");
    }
    // With one expert on each of 8 ranks, and a power so high that most tokens choose the same two experts, these two
    // receive nearly all tokens.
    let steep = "skewed:8".parse::<ExpertRoutingBalance>().unwrap();
    let found = list_expert_exchanges(DEGREES[5], 56, |plan| plan.routing = steep);
    let weights = [100_000, 100_000, 1, 1, 1, 1, 1, 1];
    let routing = TokenExpertChoices::drawn(8, 56, &weights, K, 1);
    let fullest = most_copies_received(&routing.count_copies_per_chosen_expert());
    assert_eq!((fullest, found[0].2), (8 * 56, 2 * H * 8 * 56));
}

/// All expert slots are sent, whether or not tokens use them.
#[test]
fn exchanges_with_a_capacity_have_the_bytes_of_all_slots() {
    for of in DEGREES {
        for halves in [1, 2, 3, 4] {
            // A rank has 56 tokens with 2 copies each, which gives 14 for each of 8 experts.
            let slots = 14 * halves / 2;
            let routing =
                TokenExpertChoices::drawn(of.expert as usize, 56, &[3, 1, 2, 1, 1, 1, 1, 1], K, 9);
            let limited = routing.copies_kept_dropped_and_free_in_slots(slots);
            let all = of.expert as u64;
            assert_eq!(limited.kept + limited.dropped, all * 56 * K as u64);
            assert_eq!(limited.kept + limited.free, all * E as u64 * slots);
            assert!(limited.dropped > 0 || halves == 4);
            let found = list_expert_exchanges(of, 56, |plan| {
                let factor = (halves as f64 / 2.0).to_string();
                plan.capacity_factor = Some(factor.parse::<ExpertCapacityFactor>().unwrap());
            });
            let about = format!("{of:?}, {slots} slots");
            assert_all_to_alls(&found, &limited.slots, [2 * H, 2 * H], &about);
        }
    }
}

/// A token is sent once to each node that has one of its experts, and from there once to each rank that has one.
#[test]
fn two_level_exchanges_send_tokens_once_per_node_then_once_per_rank() {
    for (of, size) in [
        (make_plan_degrees(4, 1, 1, 4, 1), 2),
        (make_plan_degrees(8, 1, 1, 8, 1), 2),
        (make_plan_degrees(8, 1, 1, 8, 1), 4),
        (make_plan_degrees(2, 2, 2, 4, 2), 2),
    ] {
        let routing =
            TokenExpertChoices::from_all_possible_expert_sets(of.expert as usize, E, K, 1);
        let copies = routing.copies_in_two_level_exchange(size);
        let found = list_expert_exchanges(of, 28, |plan| {
            plan.expert_exchange = ExpertExchangeForm::Nodes;
            plan.expert_node = Some(size as u32);
        });
        let names: Vec<&str> = found
            .iter()
            .map(|(name, ..)| &name["mb0/layer1/".len()..])
            .collect();
        let [forward, backward] = ["fwd/experts", "bwd/experts"];
        let level = |pass: &str, at: &str, nodes: bool| {
            format!(
                "{pass}.{at}{}.all-to-all",
                if nodes { ".nodes" } else { "" }
            )
        };
        assert_eq!(
            names,
            [
                level(forward, "dispatch", true),
                level(forward, "dispatch", false),
                level(forward, "combine", false),
                level(forward, "combine", true),
                level(backward, "combine", true),
                level(backward, "combine", false),
                level(backward, "dispatch", false),
                level(backward, "dispatch", true),
            ]
        );
        for (name, kind, bytes) in &found {
            assert_eq!(*kind, CollectiveKind::AllToAll);
            let (copies, members) = match name.contains(".nodes.") {
                true => (&copies.across, of.expert as usize / size),
                false => (&copies.within, size),
            };
            // Each rank exchanges with the ranks of the same index on other nodes, or with the other ranks of its node.
            for one in copies.iter().flatten().filter(|one| **one > 0) {
                assert_eq!(*bytes, members as u64 * one * 2 * H, "{of:?}: {name}");
            }
            for row in copies {
                assert_eq!(row.iter().filter(|one| **one > 0).count(), members);
            }
        }
    }
}
