//! Tests training state in remote memory: loads, stores and their order.

use super::super::super::WorkloadPattern;
use super::super::super::testing::{EmittedNode, check_and_record_every_rank};
use super::super::*;
use super::{list_dependency_names, rejection_message};
use crate::generate::plan::{OffloadGather, OffloadedState};
use chakram_trace::format::TensorClass;

/// Number of replicas.
const N: u64 = 4;

fn build_gpt2_workload_pattern(plan: ParallelismPlan) -> WorkloadPattern {
    let model = Model::load_named("gpt2-small").unwrap();
    WorkloadPattern::from(ModelAndParallelismPlan { model, plan })
}

/// Returns the nodes of rank 1 under a plan with four replicas and ZeRO 3, after `change` has
/// modified the plan.
fn generate_zero3_rank_nodes(change: impl Fn(&mut ParallelismPlan)) -> Vec<EmittedNode> {
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.batch, plan.zero) = (N as u32, N, ZeroStage::Parameters);
    change(&mut plan);
    check_and_record_every_rank(build_gpt2_workload_pattern(plan)).remove(1)
}

/// Returns the bytes of the load, store or collective called `name`.
fn find_node_bytes(nodes: &[EmittedNode], name: &str) -> u64 {
    let node = nodes.iter().find(|node| node.name == name);
    let op = &node.unwrap_or_else(|| panic!("{name} is not there")).op;
    let after = op.split("bytes: ").nth(1).unwrap();
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Number of parameters in a block of GPT-2: 12 h^2 + 13 h, with h = 768.
const BLOCK: u64 = 12 * 768 * 768 + 13 * 768;

/// In both passes, a rank loads its quarter of a block before the block is gathered. It stores its quarter of the
/// gradients after they are reduced. The optimizer loads 2 B of gradient and 12 B of state per parameter, and stores 2
/// B of weight and the state.
#[test]
fn shards_are_loaded_before_gathers_and_stored_after_reductions() {
    let all = generate_zero3_rank_nodes(|plan| plan.offload = OffloadedState::All);
    for pass in ["fwd", "bwd"] {
        let load = format!("mb0/layer3/{pass}/load");
        let gather = format!("mb0/layer3/{pass}/gather");
        assert_eq!(find_node_bytes(&all, &load), 2 * BLOCK / N);
        assert_eq!(find_node_bytes(&all, &gather), 2 * BLOCK / N);
        assert_eq!(list_dependency_names(&all, &gather), [load.as_str()]);
    }
    let stored: Vec<_> = all
        .iter()
        .filter(|node| node.name.ends_with("/gradients/store"))
        .collect();
    for store in &stored {
        let reduced = store.name.replace("/store", "/reduce-scatter");
        assert_eq!(
            find_node_bytes(&all, &store.name) * N,
            find_node_bytes(&all, &reduced)
        );
        assert_eq!(list_dependency_names(&all, &store.name), [reduced.as_str()]);
        assert!(store.op.contains("store: true"), "{}", store.op);
    }
    assert!(stored.len() > 1);
    let parameters = Model::load_named("gpt2-small").unwrap().parameter_count();
    let own = parameters.div_ceil(N);
    assert_eq!(find_node_bytes(&all, "optimizer/load"), 14 * own);
    assert_eq!(find_node_bytes(&all, "optimizer/store"), 14 * own);
    let after = list_dependency_names(&all, "optimizer");
    assert_eq!(after, ["optimizer/load"]);
}

/// ZeRO-Offload keeps only the optimizer state in remote memory: 12 B per parameter.
#[test]
fn an_optimizer_streams_its_state() {
    let own = generate_zero3_rank_nodes(|plan| {
        (plan.zero, plan.offload) = (ZeroStage::Optimizer, OffloadedState::Optimizer);
    });
    let parameters = Model::load_named("gpt2-small").unwrap().parameter_count();
    assert_eq!(
        find_node_bytes(&own, "optimizer/load"),
        12 * parameters.div_ceil(N)
    );
    assert_eq!(
        find_node_bytes(&own, "optimizer/store"),
        12 * parameters.div_ceil(N)
    );
    let mut others = own.iter().filter(|node| node.op.contains("Memory"));
    assert!(others.all(|node| node.name.starts_with("optimizer/")));
}

/// Offloaded state is in remote memory instead of the NPU's memory. GPT-2 small has 16 B of state per parameter: 2 B of
/// weights, 2 B of gradients and 12 B of Adam.
#[test]
fn offloaded_state_is_not_in_the_npu() {
    let parameters = Model::load_named("gpt2-small").unwrap().parameter_count();
    let own = parameters.div_ceil(N);
    let stage = |offload, zero| {
        let mut plan = ParallelismPlan::new();
        (plan.data, plan.batch, plan.zero, plan.offload) = (N as u32, N, zero, offload);
        let model = Model::load_named("gpt2-small").unwrap();
        let summary = ModelAndParallelismPlan { model, plan }
            .summarize_plan()
            .unwrap();
        summary.stages.into_iter().next().unwrap()
    };
    let classes = [
        TensorClass::Weights,
        TensorClass::Gradients,
        TensorClass::Optimizer,
    ];
    for (offload, zero, resident) in [
        (OffloadedState::None, ZeroStage::Parameters, [2, 2, 12]),
        (OffloadedState::Optimizer, ZeroStage::Parameters, [2, 2, 0]),
        (OffloadedState::All, ZeroStage::Parameters, [0, 0, 0]),
    ] {
        let stage = stage(offload, zero);
        let found = classes.map(|class| stage.memory[class as usize]);
        assert_eq!(found, resident.map(|each| each * own), "{offload}");
        let offloaded = (16 - resident.iter().sum::<u64>()) * own;
        assert_eq!(stage.remote, offloaded, "{offload}");
    }
    // Without ZeRO, each replica keeps the state of all parameters in its own memory, and offloads the optimizer state.
    let stage = stage(OffloadedState::Optimizer, ZeroStage::None);
    assert_eq!(stage.remote, 12 * parameters);
}

/// A pool's switches gather while NPUs load, and reduce while they store, so parameters and
/// gradients need no collectives.
#[test]
fn switches_gather_loads_and_reduce_stores() {
    let all = generate_zero3_rank_nodes(|plan| {
        plan.offload = OffloadedState::All;
        plan.offload_gather = OffloadGather::InSwitch;
    });
    let collectives = all.iter().filter(|node| node.op.contains("Collective"));
    assert_eq!(collectives.count(), 0);
    let accesses = all
        .iter()
        .filter(|node| node.op.contains("in_switch: true"));
    let names: Vec<_> = accesses.map(|node| &node.name[..]).collect();
    assert!(names.contains(&"mb0/layer3/fwd/load"), "{names:?}");
    assert!(names.iter().any(|name| name.ends_with("/gradients/store")));
    assert_eq!(find_node_bytes(&all, "mb0/layer3/bwd/load"), 2 * BLOCK / N);
    assert!(list_dependency_names(&all, "mb0/layer3/fwd/norm1").contains(&"mb0/layer3/fwd/load"));
}

#[test]
fn unsupported_offload_options_are_refused() {
    let refused = |change: &dyn Fn(&mut ParallelismPlan), why: &str| {
        let mut plan = ParallelismPlan::new();
        (plan.data, plan.batch) = (4, 4);
        change(&mut plan);
        let found = rejection_message(build_gpt2_workload_pattern(plan));
        assert!(found.contains(why), "{found}");
    };
    refused(
        &|plan| plan.offload = OffloadedState::All,
        "`offload` is all; expected none or optimizer, or zero = 3 beside",
    );
    refused(
        &|plan| plan.offload_gather = OffloadGather::InSwitch,
        "`offload_gather` is in-switch; expected network, or offload = all beside it",
    );
    refused(
        &|plan| {
            (plan.offload, plan.zero) = (OffloadedState::All, ZeroStage::Parameters);
            (plan.offload_gather, plan.tensor) = (OffloadGather::InSwitch, 2);
        },
        "because switches gather for all NPUs",
    );
}
