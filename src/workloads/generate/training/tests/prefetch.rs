//! Tests when the passes of ZeRO-3 gather the parameters of later layers.

use super::super::super::testing::{EmittedNode, check_and_record_every_rank};
use super::super::*;
use super::{build_gpt2_pattern, list_dependency_names};
use crate::generate::plan::BackwardPrefetch;

/// Returns the nodes of a rank that trains GPT-2 on four replicas. Each layer is a gradient bucket of its own, as in
/// FSDP.
fn record_first_gpt2_rank_nodes(backward_prefetch: BackwardPrefetch) -> Vec<EmittedNode> {
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.batch, plan.zero) = (4, 4, ZeroStage::Parameters);
    (plan.backward_prefetch, plan.bucket) = (backward_prefetch, 1);
    check_and_record_every_rank(build_gpt2_pattern(plan)).swap_remove(0)
}

fn position_of_node(nodes: &[EmittedNode], name: &str) -> usize {
    let place = nodes.iter().position(|node| node.name == name);
    place.unwrap_or_else(|| panic!("{name} is not there"))
}

/// Returns the place of the last node of the backward pass through block `layer` of GPT-2, without collectives.
fn last_backward_kernel_position(nodes: &[EmittedNode], layer: u32) -> usize {
    let prefix = format!("mb0/layer{layer}/bwd/");
    let is_kernel =
        |node: &EmittedNode| node.name.starts_with(&prefix) && node.op.starts_with("Compute");
    nodes.iter().rposition(is_kernel).unwrap()
}

#[test]
fn gathers_before_the_current_layer_wait_for_the_layer_before_it() {
    let nodes = record_first_gpt2_rank_nodes(BackwardPrefetch::Pre);
    // The pass goes from block 11 to block 0. Block 4 is gathered before block 5 runs, so after block 6.
    let gather = position_of_node(&nodes, "mb0/layer4/bwd/gather");
    assert!(gather < last_backward_kernel_position(&nodes, 5));
    let last = &nodes[last_backward_kernel_position(&nodes, 6)].name;
    assert!(list_dependency_names(&nodes, "mb0/layer4/bwd/gather").contains(&last.as_str()));
}

#[test]
fn gathers_after_the_current_layer_follow_its_reductions() {
    let nodes = record_first_gpt2_rank_nodes(BackwardPrefetch::Post);
    let gather = position_of_node(&nodes, "mb0/layer4/bwd/gather");
    let last = last_backward_kernel_position(&nodes, 5);
    assert!(gather > last);
    assert!(
        list_dependency_names(&nodes, "mb0/layer4/bwd/gather").contains(&nodes[last].name.as_str())
    );
    // The communicator runs collectives in the order of their nodes.
    let is_reduction = |node: &EmittedNode| {
        node.name.starts_with("mb0/layer5/") && node.name.ends_with("/gradients/reduce-scatter")
    };
    let reduction = nodes.iter().rposition(is_reduction).unwrap();
    assert!(last < reduction && reduction < gather);
    assert_eq!(nodes[reduction].lane, nodes[gather].lane);
}

#[test]
fn forward_gathers_do_not_depend_on_backward_prefetch() {
    let forward = |backward_prefetch| -> Vec<(String, Vec<String>)> {
        let nodes = record_first_gpt2_rank_nodes(backward_prefetch);
        let gathers = nodes
            .iter()
            .filter(|node| node.name.ends_with("/fwd/gather"));
        let names: Vec<String> = gathers.map(|node| node.name.clone()).collect();
        let sources = names.iter().map(|name| {
            list_dependency_names(&nodes, name)
                .iter()
                .map(|&of| of.to_owned())
                .collect()
        });
        names.iter().cloned().zip(sources).collect()
    };
    let before = forward(BackwardPrefetch::Pre);
    assert_eq!(before, forward(BackwardPrefetch::Post));
    assert_eq!(before.len(), 14, "embedding, twelve blocks and head");
}
