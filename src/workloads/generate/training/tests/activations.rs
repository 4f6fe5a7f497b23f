//! Tests activations in remote memory, and parameters that stay gathered.

use super::super::super::testing::{EmittedNode, check_and_record_every_rank};
use super::super::*;
use super::list_dependency_names;

fn build_gpt2_training(change: impl Fn(&mut ParallelismPlan)) -> ModelAndParallelismPlan {
    let model = Model::load_named("gpt2-small").unwrap();
    let mut plan = ParallelismPlan::new();
    change(&mut plan);
    ModelAndParallelismPlan { model, plan }
}

fn generate_first_rank_nodes(training: ModelAndParallelismPlan) -> Vec<EmittedNode> {
    check_and_record_every_rank(training).swap_remove(0)
}

/// With 12 blocks and one micro-batch, each block stores its saved activations after its forward kernels, and loads
/// them while the block after it runs backward.
#[test]
fn blocks_store_what_they_save_and_load_it_one_block_ahead() {
    let stage = |offload| {
        let training = build_gpt2_training(|plan| plan.offload_activations = offload);
        training.summarize_plan().unwrap().stages.swap_remove(0)
    };
    let [stays, leaves] = [false, true].map(stage);
    assert_eq!(
        leaves.remote,
        stays.stored.1 - bytes_saved_outside_blocks(&stays)
    );
    // At the peak, during the loss, only the last block's activations are in the NPU's memory.
    let freed = stays.memory[chakram_trace::format::TensorClass::Activations as usize]
        - leaves.memory[chakram_trace::format::TensorClass::Activations as usize];
    assert_eq!(freed, leaves.remote / 12 * 11);
    let all =
        generate_first_rank_nodes(build_gpt2_training(|plan| plan.offload_activations = true));
    let load = "mb0/layer3/bwd/activations/load";
    let before = list_dependency_names(&all, load);
    assert!(before.contains(&"mb0/layer3/fwd/activations/store"));
    assert!(
        before.iter().all(|name| !name.contains("layer4/bwd")),
        "{before:?}"
    );
    let mut uses = all
        .iter()
        .filter(|node| node.name.starts_with("mb0/layer3/bwd/") && node.name != load);
    let first = &uses.next().unwrap().name;
    assert!(
        list_dependency_names(&all, first).contains(&load),
        "{first}"
    );
}

/// Bytes that layers outside blocks save; they stay in the NPU's memory.
fn bytes_saved_outside_blocks(stage: &PerRankStageTotals) -> u64 {
    let model = Model::load_named("gpt2-small").unwrap();
    let layers = model
        .layers
        .iter()
        .filter(|layer| layer.role == LayerRole::Block);
    let blocks: u64 = layers.map(|layer| layer.saved_bytes(2, true)).sum();
    stage.stored.1 - blocks
}

/// If the parameters of 4 of 12 blocks are resharded, the backward pass gathers only those blocks and the layers
/// outside blocks.
#[test]
fn parameters_of_later_blocks_stay_gathered() {
    let gathers = |blocks| {
        let all = generate_first_rank_nodes(build_gpt2_training(|plan| {
            (plan.data, plan.batch, plan.zero) = (2, 2, ZeroStage::Parameters);
            plan.reshard_blocks = blocks;
        }));
        let own = all.iter().map(|node| &node.name[..]);
        let own = own.filter(|name| name.ends_with("/bwd/gather") && name.contains("/layer"));
        own.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(gathers(None).len(), 12);
    let expected = ["layer3", "layer2", "layer1", "layer0"];
    let expected = expected.map(|layer| format!("mb0/{layer}/bwd/gather"));
    assert_eq!(gathers(Some(4)), expected);
    let peak = |blocks| {
        let training = build_gpt2_training(|plan| {
            (plan.data, plan.batch, plan.zero) = (2, 2, ZeroStage::Parameters);
            plan.reshard_blocks = blocks;
        });
        training.summarize_plan().unwrap().stages[0].peak
    };
    assert!(peak(Some(4)) > peak(None));
}
