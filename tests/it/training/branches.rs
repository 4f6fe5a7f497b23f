//! Tests a layer's independent operators, run in order and concurrently.

use super::time::{F, IDEAL, SIDE};
use super::{build_pattern_of_model_and_plan, replay_training_job};
use chakram::generate::{
    AblationEffect, BranchOrder, CheckedWorkloadPattern, Optimizer, ParallelismPlan,
    RecomputePolicy,
};
use chakram::machine::Machine;
use chakram::model::{Model, ModelWithDefinitionProperties};
use chakram::trace::{NodeView, Op, Sink, TraceError};
use std::collections::BTreeMap;

/// Returns a model of `count` blocks with `on` products of 1 x 1000 x 1000 on the branch and one
/// product on the bypass.
fn build_branch_and_bypass_model(count: u32, on: u32) -> Model {
    let product = |name: &str, more: &str| {
        format!("{{ op = \"linear\", name = \"{name}\", outputs = {SIDE}, bias = false{more} }}")
    };
    let mut operators: Vec<String> = (0..on).map(|i| product(&format!("on{i}"), "")).collect();
    operators.push(product("around", ", around = true"));
    operators.push("{ op = \"residual\" }".to_owned());
    let text = format!(
        "name = \"branches\"\nsource = \"none\"\nkind = \"layers\"\ninput = {{ columns = {SIDE} }}\n\
         [[layer]]\nname = \"block\"\nrole = \"block\"\nrepeat = {count}\noperators = [{}]\n",
        operators.join(", ")
    );
    ModelWithDefinitionProperties::parse(&text, "branches.toml", None)
        .unwrap()
        .model
}

fn make_branch_plan(branches: BranchOrder) -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    (plan.optimizer, plan.branches) = (Optimizer::None, branches);
    plan
}

/// With n products on the branch, a block takes the time of n + 1 products in order, and of max(n, 1) concurrently. The
/// backward pass takes twice as long. In the first block, whose input needs no gradient, the first product of each
/// branch takes one. Full recomputation adds another forward pass. On one lane branches run in order again.
#[test]
fn branches_take_the_longest_of_them_or_their_sum() {
    let many = Machine::parse(IDEAL, "ideal").unwrap();
    let one = Machine::parse(&IDEAL.replace("\nlanes = 32", "\nlanes = 1"), "one").unwrap();
    for (count, on) in [(1, 1), (2, 1), (3, 3), (2, 4)] {
        for (recompute, again) in [(RecomputePolicy::None, 0), (RecomputePolicy::Full, 1)] {
            let step = |branches, machine: &Machine| {
                let mut plan = make_branch_plan(branches);
                plan.recompute = recompute;
                plan.without.add_effect(AblationEffect::MemoryBound);
                replay_training_job(
                    &build_pattern_of_model_and_plan(
                        &build_branch_and_bypass_model(count, on),
                        &plan,
                    )
                    .unwrap(),
                    machine,
                )
                .makespan
                .0
            };
            let (count, on) = (u64::from(count), u64::from(on));
            let in_order = count * (on + 1) * (1 + again + 2) - 2;
            let parallel = count * on * (1 + again + 2) - 1;
            assert_eq!(
                step(BranchOrder::InOrder, &many),
                in_order * F,
                "{count} {on}"
            );
            assert_eq!(
                step(BranchOrder::Parallel, &many),
                parallel * F,
                "{count} {on}"
            );
            assert_eq!(
                step(BranchOrder::Parallel, &one),
                in_order * F,
                "{count} {on}"
            );
        }
    }
}

/// The names and the work of nodes, and for each the names of all its direct and indirect
/// dependencies.
#[derive(Default)]
struct NodeAncestry {
    work: Vec<String>,
    names: Vec<String>,
    before: Vec<Vec<usize>>,
}

impl Sink for NodeAncestry {
    fn receive_node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        self.work.push(format!("{} {:?}", node.name, node.op));
        self.names.push(node.name.to_owned());
        let mut before: Vec<usize> = data.iter().map(|id| *id as usize - 1).collect();
        before.extend(
            before
                .clone()
                .iter()
                .flat_map(|&one| self.before[one].clone()),
        );
        before.sort_unstable();
        before.dedup();
        self.before.push(before);
        if let Op::Compute { .. } = node.op {
            assert!(node.lane.is_some(), "{}", node.name);
        }
        Ok(())
    }
}

impl NodeAncestry {
    fn from_first_rank_of_job(job: &CheckedWorkloadPattern) -> Self {
        let mut all = Self::default();
        job.emit_nodes(0, &mut all).unwrap();
        all
    }

    /// Returns, for each node, the names of its dependencies.
    fn dependency_names_by_node_name(&self) -> BTreeMap<&str, Vec<&str>> {
        let names = |before: &Vec<usize>| before.iter().map(|&i| &*self.names[i]).collect();
        let each = self.names.iter().zip(&self.before);
        each.map(|(name, before)| (&**name, names(before)))
            .collect()
    }
}

/// With concurrent branches the same nodes do the same work. Each depends only on nodes on which it also depends in
/// order, and real dependencies remain. A block of ResNet has a convolution that bypasses two others, DLRM has tables
/// parallel to a perceptron, and GPT has two tables.
#[test]
fn concurrent_branches_do_the_same_work_with_fewer_dependencies() {
    for (model, apart, after) in [
        (
            "resnet-18",
            ("fwd/shortcut.conv", "fwd/conv2"),
            ("fwd/residual", "fwd/shortcut.conv"),
        ),
        (
            "dlrm",
            ("fwd/table3", "fwd/bottom1"),
            ("fwd/interaction", "fwd/table3"),
        ),
        (
            "gpt2-small",
            ("fwd/tokens", "fwd/positions"),
            ("fwd/mlp.down", "fwd/attention.qkv"),
        ),
    ] {
        let model = Model::load_named(model).unwrap();
        let of = |branches| {
            build_pattern_of_model_and_plan(&model, &make_branch_plan(branches)).unwrap()
        };
        let [in_order, parallel] = [BranchOrder::InOrder, BranchOrder::Parallel].map(of);
        let [in_order, parallel] =
            [in_order, parallel].map(|job| NodeAncestry::from_first_rank_of_job(&job));
        let sorted = |all: &NodeAncestry| {
            let mut work = all.work.clone();
            work.sort_unstable();
            work
        };
        assert_eq!(sorted(&in_order), sorted(&parallel));
        let [loose, strict] =
            [&parallel, &in_order].map(NodeAncestry::dependency_names_by_node_name);
        for (name, before) in &loose {
            let strict = &strict[name];
            assert!(before.iter().all(|one| strict.contains(one)), "{name}");
        }
        let waits = |all: &BTreeMap<&str, Vec<&str>>, [one, other]: [&str; 2]| {
            let mut layers = all.keys().filter_map(|name| name.strip_suffix(one));
            let other_of = |layer: &str| format!("{layer}{other}");
            let layer = layers.find(|layer| all.contains_key(&*other_of(layer)));
            let layer = layer.unwrap_or_else(|| panic!("no layer has {one} and {other}"));
            let name = &*format!("{layer}{one}");
            all[name].contains(&&*format!("{layer}{other}"))
        };
        assert!(waits(&loose, [after.0, after.1]));
        let (one, other) = apart;
        let either = |all| waits(all, [one, other]) || waits(all, [other, one]);
        assert!(either(&strict) && !either(&loose), "{one}");
    }
}
