//! Tests, for every node, what `--without` does for each effect: exactly the named nodes are removed, and none are
//! added.

use super::{RankNodeSums, build_gpt_model, build_pattern_of_model_and_plan, replay_training_job};
use chakram::generate::{
    AblationEffect, AttentionKernel, CheckedWorkloadPattern, ParallelismPlan, RecomputePolicy,
};
use chakram::machine::Machine;
use chakram::trace::{GroupName, NodeView, Op, Sink, TraceError, TrainingPhase};
use chakram::workload::DeclaredGroups;

/// A node's name and operation, and the properties that decide whether it is removed.
#[derive(Clone, Debug)]
struct NodeWithRemovalProperties {
    name: String,
    op: String,
    phase: Option<TrainingPhase>,
    message: bool,
    /// The number of FLOPs of a kernel.
    flops: Option<u64>,
    /// The number of bytes of a kernel, a collective or a message.
    bytes: u64,
    /// The members of a collective.
    members: Vec<u32>,
    /// The data dependencies.
    data: Vec<u64>,
}

struct RankNodesWithRemovalProperties<'g> {
    groups: &'g DeclaredGroups,
    all: Vec<NodeWithRemovalProperties>,
}

impl Sink for RankNodesWithRemovalProperties<'_> {
    fn receive_node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        let (mut flops, mut bytes, mut members, mut message) = (None, 0, Vec::new(), false);
        match node.op {
            Op::Compute {
                flops: some,
                bytes: moved,
                ..
            } => (flops, bytes) = (Some(some), moved),
            Op::Collective {
                bytes: size, group, ..
            } => {
                let GroupName::Number(number) = group else {
                    panic!("{}: a group of all ranks", node.name)
                };
                (bytes, members) = (size, self.groups[&number.to_string()].clone());
            }
            Op::Message { bytes: size, .. } => (bytes, message) = (size, true),
            _ => {}
        }
        self.all.push(NodeWithRemovalProperties {
            name: node.name.to_owned(),
            op: format!("{:?}", node.op),
            phase: node.labels.phase,
            message,
            flops,
            bytes,
            members,
            data: data.to_vec(),
        });
        Ok(())
    }
}

fn list_nodes_with_removal_properties(
    job: &CheckedWorkloadPattern,
    rank: u32,
) -> Vec<NodeWithRemovalProperties> {
    let groups = job.declared_groups();
    let mut nodes = RankNodesWithRemovalProperties {
        groups: &groups,
        all: Vec::new(),
    };
    job.emit_nodes(rank, &mut nodes).unwrap();
    nodes.all
}

/// Returns a plan of two micro-batches of one sample through four blocks on two stages, each of 2
/// replicas of 2 members. The rank is `t + 2 d + 4 p`.
fn make_two_stage_plan() -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.tensor, plan.pipeline) = (2, 2, 2);
    plan.batch = 4;
    plan.attention = AttentionKernel::Unfused;
    plan.recompute = RecomputePolicy::Full;
    plan.clip = true;
    plan.scatter_gather = true;
    plan
}

/// The removed parts of a rank: the number of nodes, the FLOPs and the bytes of kernels, and the
/// bytes of collectives.
type RemovedWorkAmounts = (usize, u64, u64, u64);

fn sum_removed_work<'n>(
    nodes: impl Iterator<Item = &'n NodeWithRemovalProperties>,
) -> RemovedWorkAmounts {
    nodes.fold(RemovedWorkAmounts::default(), |sum, node| {
        let flops = node.flops.unwrap_or(0);
        let [kernel, moved] = match node.flops {
            Some(_) => [node.bytes, 0],
            None => [0, node.bytes],
        };
        (sum.0 + 1, sum.1 + flops, sum.2 + kernel, sum.3 + moved)
    })
}

/// Compares all ranks' nodes without `effect` with the complete list of nodes, minus those that `goes` selects, in
/// order. Returns what was removed from the first rank of each stage.
fn check_only_selected_nodes_are_removed(
    effect: AblationEffect,
    goes: impl Fn(u32, &NodeWithRemovalProperties) -> bool,
) -> [RemovedWorkAmounts; 2] {
    let mut less = make_two_stage_plan();
    less.without.add_effect(effect);
    let [whole, less] = [make_two_stage_plan(), less]
        .map(|plan| build_pattern_of_model_and_plan(&build_gpt_model(), &plan).unwrap());
    for rank in 0..8 {
        let all = list_nodes_with_removal_properties(&whole, rank);
        let stay = all.iter().filter(|node| !goes(rank, node));
        let expected: Vec<_> = stay.map(|node| (&node.name, &node.op)).collect();
        let found = list_nodes_with_removal_properties(&less, rank);
        let found: Vec<_> = found.iter().map(|node| (&node.name, &node.op)).collect();
        assert_eq!(found, expected, "{effect}, rank {rank}");
        assert_eq!(
            RankNodeSums::sum_nodes_of_rank(&less, rank).used[3..],
            [0, 0],
            "{effect}"
        );
    }
    let machine = Machine::load_preset("dgx-a100").unwrap();
    let counts = (0..8).map(|rank| less.node_count(rank));
    assert_eq!(
        replay_training_job(&less, &machine).nodes,
        counts.sum::<u64>()
    );
    [0, 4].map(|rank| {
        sum_removed_work(
            list_nodes_with_removal_properties(&whole, rank)
                .iter()
                .filter(|node| goes(rank, node)),
        )
    })
}

/// The head multiplies 8 rows of 16 columns by 16 of the 32 words, three times: 3 x 2 x 8 x 16 x 16 FLOPs for each of
/// two micro-batches. Each micro-batch has three products and two kernels of the loss, three all-reduces of the loss,
/// of 4 B per row, and one of the input's gradient, 8 x 16 numbers of 2 B. The products move 2 (8 x 16 + 16 x 16 + 8 x
/// 16) = 1024 B twice, and 256 B more once, because they add to an existing gradient. The loss moves (2 + 36) and (2 +
/// 12) times 8 x 16.
#[test]
fn removing_logits_also_removes_their_loss_and_all_reduces() {
    let [first, last] = check_only_selected_nodes_are_removed(AblationEffect::Logits, |_, node| {
        node.name.contains("/logits") || node.name.contains("/loss")
    });
    assert_eq!(first, RemovedWorkAmounts::default());
    let kernels = 2 * 1024 + (1024 + 16 * 16 * 2) + (38 + 14) * 128;
    let expected = (2 * 9, 2 * 12_288, 2 * kernels, 2 * (3 * 32 + 256));
    assert_eq!(last, expected);
}

/// A micro-batch has two all-reduces per block in the forward pass, in recomputation and in the backward pass: 12 for
/// two blocks, of 8 x 16 x 2 B. The first stage has one all-reduce after the embedding. The last stage has one before
/// the logits and three of 4 B per row in the loss. Each stage gathers its input from the other stage, a half of 256 B.
#[test]
fn without_tensor_communication_no_tensor_group_collectives_remain() {
    let [first, last] =
        check_only_selected_nodes_are_removed(AblationEffect::TensorCommunication, |rank, node| {
            node.members == [rank & !1, rank | 1]
        });
    assert_eq!(first, (2 * 14, 0, 0, 2 * (13 * 256 + 128)));
    assert_eq!(last, (2 * 17, 0, 0, 2 * (13 * 256 + 3 * 32 + 128)));
}

/// In each block a member has 4 x 16 parameters in norms, 24 x 16 + 24 of qkv, 8 x 16 + 16 of out,
/// 32 x 16 + 32 and 32 x 16 + 16: 1688. The first stage also has 16 x 16 words and 8 x 16
/// positions, and the last stage has 2 x 16 in a norm and a copy of the words. Gradients have 2 B
/// and one bucket, and the gradients of words are also reduced between the first and the last
/// stage.
#[test]
fn data_communication_nodes_go_without_that_effect() {
    let [first, last] =
        check_only_selected_nodes_are_removed(AblationEffect::DataCommunication, |rank, node| {
            let ends = [rank & !4, rank | 4];
            node.members == [rank & !2, rank | 2] || node.members == ends
        });
    let blocks = 2 * 1688;
    assert_eq!(first, (2, 0, 0, 2 * (blocks + 256 + 128) + 512));
    assert_eq!(last, (2, 0, 0, 2 * (blocks + 32 + 256) + 512));
}

/// The parameters are the same, and Adam in mixed precision moves 2 + 2 + 24 B for each.
#[test]
fn the_optimizer_is_one_node() {
    let [first, last] =
        check_only_selected_nodes_are_removed(AblationEffect::Optimizer, |_, node| {
            node.name == "optimizer"
        });
    assert_eq!(first, (1, 0, 28 * (2 * 1688 + 384), 0));
    assert_eq!(last, (1, 0, 28 * (2 * 1688 + 288), 0));
}

/// In the forward pass a block has 13 kernels and two all-reduces of 256 B, 2 x 8 (24 x 16 + 8 x
/// 16 + 2 x 32 x 16) FLOPs for matrices, and 2 x 2 x 8 x 8 x 2 x 4 for two heads: 26,624. There are
/// two blocks and two micro-batches.
#[test]
fn leaving_out_recomputation_removes_only_recomputed_nodes() {
    let both = check_only_selected_nodes_are_removed(AblationEffect::Recompute, |_, node| {
        node.phase == Some(TrainingPhase::Recompute)
    });
    for (nodes, flops, _, sums) in both {
        assert_eq!((nodes, flops, sums), (4 * 15, 4 * 26_624, 4 * 512));
    }
    // The result equals the result without recomputation, including memory.
    let [mut less, mut none] = [make_two_stage_plan(), make_two_stage_plan()];
    less.without.add_effect(AblationEffect::Recompute);
    none.recompute = RecomputePolicy::None;
    let [less, none] = [less, none]
        .map(|plan| build_pattern_of_model_and_plan(&build_gpt_model(), &plan).unwrap());
    for rank in 0..8 {
        assert_eq!(
            RankNodeSums::sum_nodes_of_rank(&less, rank).peak,
            RankNodeSums::sum_nodes_of_rank(&none, rank).peak
        );
    }
}

/// These bytes move in a block, with 8 x 16 = 128 numbers in norms and residuals, 8 x 32 in the
/// activation, 8 x 8 x 2 scores, and 2 B per number. The forward pass has two norms of 4 B per
/// number, two residuals of 7, an activation of 4, softmax of 4 and dropout of 5: 4992.
/// Recomputation has the same bytes. The backward pass has 6, 11, 6, 6 and 5: 7296. Another
/// residual is before the blocks. The words, the loss and the optimizer stay, although they have no
/// FLOPs either.
#[test]
fn leaving_out_memory_bound_removes_kernels_that_only_move_bytes() {
    let words = [
        "norm",
        "residual",
        "activation",
        "softmax",
        "dropout",
        "sum",
    ];
    let both = check_only_selected_nodes_are_removed(AblationEffect::MemoryBound, |_, node| {
        let table = node.name.contains("embedding/") && !node.name.ends_with("/sum");
        let named = words.iter().any(|word| node.name.contains(word));
        node.flops == Some(0) && named && !table && !node.name.contains("loss")
    });
    let forward = 2 * 4 * 128 + 2 * 7 * 128 + 4 * 256 + 4 * 128 + 5 * 128;
    let backward = 2 * 6 * 128 + 2 * 11 * 128 + 6 * 256 + 6 * 128 + 5 * 128;
    assert_eq!((forward, backward), (4992, 7296));
    let blocks = 2 * (2 * forward + backward);
    // The final norm belongs to the head.
    let ends = [7 * 128 + 11 * 128, 4 * 128 + 6 * 128];
    for (gone, end) in both.into_iter().zip(ends) {
        assert_eq!(gone, (2 * (2 * 21 + 2), 0, 2 * (blocks + end), 0));
    }
}

/// No node is removed, but no node waits for received data either. Gathers of parts of these data depend on the stage's
/// earlier work.
#[test]
fn stages_wait_for_nobody_without_a_bubble() {
    let both = check_only_selected_nodes_are_removed(AblationEffect::Bubble, |_, _| false);
    assert_eq!(both, [(0, 0, 0, 0); 2]);
    let mut less = make_two_stage_plan();
    less.without.add_effect(AblationEffect::Bubble);
    let [whole, less] = [make_two_stage_plan(), less]
        .map(|plan| build_pattern_of_model_and_plan(&build_gpt_model(), &plan).unwrap());
    for rank in 0..8 {
        let waited = |job: &CheckedWorkloadPattern| {
            let all = list_nodes_with_removal_properties(job, rank);
            let of = |id: &u64| all[*id as usize - 1].name.ends_with("/receive");
            let waits = all.iter().filter(|node| node.data.iter().any(of));
            waits.map(|node| node.name.clone()).collect::<Vec<_>>()
        };
        // In each of two micro-batches, one node waits for received data: the gather.
        let gathers = waited(&whole);
        assert!(gathers.iter().all(|name| name.ends_with("/gather")));
        assert_eq!((gathers.len(), waited(&less).len()), (2, 0), "rank {rank}");
        // The chain continues after the gather.
        let all = list_nodes_with_removal_properties(&less, rank);
        let of = |id: &u64| all[*id as usize - 1].name.ends_with("/gather");
        assert_eq!(
            all.iter().filter(|node| node.data.iter().any(of)).count(),
            2
        );
    }
}

/// A host that waits for received data does not wait for data that no node uses, so stages never wait.
#[test]
fn hosts_wait_for_nobody_without_a_bubble() {
    let makespan = |more: &[&str]| {
        let words = "generate gpt2-small --pipeline 4 --batch 16 --micro-batch 4 --machine dgx-h100 --format json";
        let words: Vec<&str> = words.split(' ').chain(more.iter().copied()).collect();
        let output = crate::commands::run_chakram(&words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report["makespan_ps"].as_f64().expect("a time")
    };
    let [whole, less] = [makespan(&[]), makespan(&["--without", "bubble"])];
    // With four equal stages and four micro-batches, the bubble would be 3 / 7 of the step. But the last stage also has
    // the output layer, and the optimizer runs after all passes.
    let part = 1.0 - less / whole;
    assert!((0.1..3.0 / 7.0).contains(&part), "{part}");
}

/// Messages and their dependencies stay, but have 0 bytes.
#[test]
fn leaving_out_pipeline_communication_empties_its_messages() {
    let mut less = make_two_stage_plan();
    less.without
        .add_effect(AblationEffect::PipelineCommunication);
    let [whole, less] = [make_two_stage_plan(), less]
        .map(|plan| build_pattern_of_model_and_plan(&build_gpt_model(), &plan).unwrap());
    for rank in 0..8 {
        let (all, found) = (
            list_nodes_with_removal_properties(&whole, rank),
            list_nodes_with_removal_properties(&less, rank),
        );
        assert_eq!(all.len(), found.len());
        for (all, found) in all.iter().zip(&found) {
            assert_eq!(all.name, found.name);
            if all.message || all.name.ends_with("/gather") {
                assert_eq!((all.bytes, found.bytes), (128, 0), "{}", all.name);
            } else {
                assert_eq!(all.op, found.op);
            }
        }
    }
}
