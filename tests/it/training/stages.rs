//! Tests stages with chosen layers and ranks.

use super::{
    RankNodeSums, build_pattern_of_model_and_plan, build_product_chain_model, replay_training_job,
};
use chakram::generate::{ModelAndParallelismPlan, ParallelismPlan};
use chakram::machine::Machine;
use std::collections::BTreeSet;

/// Six blocks, each a product of 10 x 10, are between two norms, and are divided unevenly among the three stages of
/// each of two replicas.
const PLAN: &str = r#"
data = 2
pipeline = 3
batch = 6
[[stage]]
layers = "0-1"
ranks = [4, 0]
[[stage]]
layers = "2"
ranks = [1, 5]
[[stage]]
layers = "3-7"
ranks = [2, 3]
"#;

/// Stages have 1, 1 and 4 products, and a norm of 10 at both ends. For each of three micro-batches, a product takes 2 x
/// 10 x 10 FLOPs, and twice as many in the backward pass.
#[test]
fn uneven_stages_have_what_they_were_dealt() {
    let plan = ParallelismPlan::parse(PLAN, "plan.toml").unwrap();
    let model = build_product_chain_model(6, 10);
    let training = ModelAndParallelismPlan {
        model: model.clone(),
        plan: plan.clone(),
    };
    let summary = training.summarize_plan().unwrap();
    let stages: Vec<_> = summary
        .stages
        .iter()
        .map(|stage| (stage.parameters, stage.flops, &stage.layers[0]))
        .collect();
    let names = |first: &str, last: &str| [first.to_owned(), last.to_owned()];
    assert_eq!(
        stages,
        [
            (110, 3 * 600, &names("in", "layer0")),
            (100, 3 * 600, &names("layer1", "layer1")),
            (410, 4 * 3 * 600, &names("layer2", "out")),
        ]
    );
    // The FLOPs are those of the whole model, for both replicas.
    assert_eq!(summary.flops, 2 * 6 * 3 * 600);

    // In each replica, messages go forward to the next stage and backward to the previous one: 10 numbers of 2 B for
    // each of three micro-batches, with separate tags.
    let job = build_pattern_of_model_and_plan(&model, &plan).unwrap();
    let (mut tags, mut pairs) = (BTreeSet::new(), Vec::new());
    let ranks: Vec<_> = (0..6)
        .map(|rank| RankNodeSums::sum_nodes_of_rank(&job, rank))
        .collect();
    for (key, [sent, _]) in ranks.iter().flat_map(|sums| &sums.messages) {
        if sent.is_empty() {
            continue;
        }
        assert_eq!(sent, &[20], "{key:?}");
        let (from, to, _) = *key;
        let received = &ranks[to as usize].messages[key][1];
        assert_eq!(received, &[20], "{key:?}");
        assert!(tags.insert(*key));
        pairs.push((from, to));
    }
    pairs.sort_unstable();
    let replicas = [[4, 1, 2], [0, 5, 3]];
    let mut expected = Vec::new();
    for [first, second, third] in replicas {
        for (from, to) in [
            (first, second),
            (second, third),
            (third, second),
            (second, first),
        ] {
            expected.extend([(from, to); 3]);
        }
    }
    expected.sort_unstable();
    assert_eq!(pairs, expected);
    // A stage's FLOPs are on the ranks chosen for it.
    for (stage, blocks) in [1, 1, 4].into_iter().enumerate() {
        for replica in replicas {
            let sums = &ranks[replica[stage] as usize];
            assert_eq!(sums.flops, blocks * 3 * 600);
        }
    }
    // Replicas of a stage reduce among themselves.
    let groups: BTreeSet<_> = job.declared_groups().into_values().collect();
    let expected: BTreeSet<_> = [vec![4, 0], vec![1, 5], vec![2, 3]].into();
    assert_eq!(groups, expected);
    let counts = (0..6).map(|rank| job.node_count(rank));
    let machine = Machine::load_preset("dgx-a100").unwrap();
    assert_eq!(
        replay_training_job(&job, &machine).nodes,
        counts.sum::<u64>()
    );
}

/// With chunks a stage has several ranges: stage 0 has parts 0 and 2 of 0 to 3, and part 1's product is between them.
#[test]
fn chunks_of_uneven_stages_get_their_stated_layer_ranges() {
    let text = r#"
pipeline = 2
schedule = "interleaved"
chunks = 2
batch = 2
[[stage]]
layers = ["0-1", "3-5"]
[[stage]]
layers = ["2", "6-7"]
"#;
    let plan = ParallelismPlan::parse(text, "plan.toml").unwrap();
    let model = build_product_chain_model(6, 10);
    let job = build_pattern_of_model_and_plan(&model, &plan).unwrap();
    let flops = [0, 1].map(|rank| RankNodeSums::sum_nodes_of_rank(&job, rank).flops);
    // The stages have 1 + 3 and 1 + 1 products, and there are two micro-batches.
    assert_eq!(flops, [4 * 2 * 600, 2 * 2 * 600]);
    // There are three boundaries, and messages cross them in both directions.
    let sent = |rank| {
        let messages = RankNodeSums::sum_nodes_of_rank(&job, rank).messages;
        let sent = messages.values().filter(|[sent, _]| !sent.is_empty());
        sent.count()
    };
    // Stage 0 sends two activations and one gradient; stage 1 sends one activation and two gradients.
    assert_eq!([sent(0), sent(1)], [2 * 3, 2 * 3]);
}
