//! Compares the bytes that operators with sharding degrees reduce and move with a count of single
//! elements.
//!
//! The model is an elementwise operator, the tested operator, and another elementwise operator, each split in every
//! possible way. Members receive every element that they need and do not have exactly once, and reductions follow Table
//! III of PALM.

mod elements;

use super::build_pattern_of_model_and_plan;
use crate::corpus::sample_every_nth;
use chakram::generate::{
    CheckedWorkloadPattern, OperatorAxisShardCounts, OperatorPatternDegrees, Optimizer,
    ParallelismPlan,
};
use chakram::model::{
    ActivationFunction, LayerOperator, LayerRole, Model, ModelLayer, OperatorKind,
    OperatorTensorParallelSplit,
};
use chakram::trace::{CollectiveKind, GroupName, NodeView, Op, Sink, TraceError};
use elements::{ExpectedReceivesAndReductions, TestedOperatorKind, predict_receives_and_reduces};
use std::collections::BTreeMap;

/// The communication of one member.
#[derive(Default)]
struct AllCommunicationOfMember {
    rank: u32,
    groups: BTreeMap<String, Vec<u32>>,
    members: u32,
    /// The received bytes, at 2 bytes per number, by direction and by the operator in the name of
    /// the transfer.
    moved: BTreeMap<String, u64>,
    /// The reductions: name, bytes and members.
    sums: Vec<(String, u64, Vec<u32>)>,
}

impl Sink for AllCommunicationOfMember {
    fn receive_node(&mut self, node: &NodeView<'_>, _: &[u64]) -> Result<(), TraceError> {
        let name = node.name.strip_prefix("mb0/chain/").unwrap_or(node.name);
        let whose = name.rsplit_once('.').map_or(name, |(whose, _)| whose);
        match node.op {
            Op::Collective {
                kind, bytes, group, ..
            } => {
                let who: Vec<u32> = match group {
                    GroupName::World => (0..self.members).collect(),
                    GroupName::Number(number) => self.groups[&number.to_string()].clone(),
                    GroupName::Text(_) => unreachable!(),
                };
                assert!(who.contains(&self.rank));
                let others = who.len() as u64 - 1;
                let got = match kind {
                    CollectiveKind::AllGather => bytes * others,
                    CollectiveKind::AllToAll => {
                        assert_eq!(bytes % who.len() as u64, 0);
                        bytes / who.len() as u64 * others
                    }
                    _ => {
                        self.sums.push((name.to_owned(), bytes, who));
                        return Ok(());
                    }
                };
                *self.moved.entry(whose.to_owned()).or_default() += got;
            }
            Op::Message {
                receive: true,
                bytes,
                ..
            } => *self.moved.entry(whose.to_owned()).or_default() += bytes,
            _ => {}
        }
        Ok(())
    }
}

fn collect_communication(
    job: &CheckedWorkloadPattern,
    members: u32,
) -> Vec<AllCommunicationOfMember> {
    let each = (0..members).map(|rank| {
        let mut seen = AllCommunicationOfMember {
            rank,
            members,
            groups: job.declared_groups(),
            ..AllCommunicationOfMember::default()
        };
        job.emit_nodes(rank, &mut seen).unwrap();
        seen
    });
    each.collect()
}

/// Returns all combinations of degrees whose product is `members`.
fn list_degree_combinations(members: u32, with_k: bool) -> Vec<[u32; 4]> {
    let divides = |n: u32| (1..=n).filter(move |by| n.is_multiple_of(*by));
    let mut all = Vec::new();
    for b in divides(members) {
        for m in divides(members / b) {
            for n in divides(members / b / m) {
                let k = members / b / m / n;
                if with_k || k == 1 {
                    all.push([b, m, n, k]);
                }
            }
        }
    }
    all
}

fn check_cut_communication(kind: TestedOperatorKind, members: u32, cuts: [[u32; 4]; 3]) {
    let size = u64::from(members);
    let plain = |name: &str, rows: u64| {
        let work = OperatorKind::Activation {
            function: ActivationFunction::Relu,
            rows,
            width: size,
            gated: false,
        };
        LayerOperator::new(name, work, OperatorTensorParallelSplit::Replicated)
    };
    let [before, behind] = kind.input_and_output_elementwise_rows(size);
    let mut operators = vec![
        plain("first", before),
        LayerOperator::new(
            "looked",
            kind.to_operator_kind(size),
            OperatorTensorParallelSplit::Replicated,
        ),
        plain("last", behind),
    ];
    if kind == TestedOperatorKind::Table {
        operators.remove(0);
    }
    let model = Model {
        name: "chain".to_owned(),
        source: String::new(),
        sequence: 1,
        layers: vec![ModelLayer::new("chain", LayerRole::Input, operators)],
    };
    let mut plan = ParallelismPlan::new();
    plan.tensor = members;
    (plan.batch, plan.micro_batch) = (size, size);
    plan.optimizer = Optimizer::None;
    for (name, [b, m, n, k]) in ["first", "looked", "last"].into_iter().zip(cuts) {
        if name == "first" && kind == TestedOperatorKind::Table {
            continue;
        }
        plan.operators.push(OperatorPatternDegrees {
            name: name.to_owned(),
            degrees: OperatorAxisShardCounts { b, m, n, k },
        });
    }
    let about = format!("{kind:?} among {members}, {cuts:?}");
    let job = build_pattern_of_model_and_plan(&model, &plan)
        .unwrap_or_else(|why| panic!("{about}: {why}"));
    let all = predict_receives_and_reduces(kind, members, cuts);
    for (member, (seen, expected)) in collect_communication(&job, members)
        .into_iter()
        .zip(all)
        .enumerate()
    {
        let ExpectedReceivesAndReductions { moved, sums } = expected;
        let found: BTreeMap<String, u64> = seen
            .moved
            .into_iter()
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        assert_eq!(found, moved, "{about}, member {member}");
        assert_eq!(seen.sums, sums, "{about}, member {member}");
    }
}

#[test]
fn every_element_is_moved_once_and_summed_where_it_has_to_be() {
    let mut all_cuts = Vec::new();
    for kind in TestedOperatorKind::ALL {
        for members in [4, 6] {
            for first in list_degree_combinations(members, false) {
                if kind == TestedOperatorKind::Table && first[0] != 1 {
                    continue;
                }
                for looked in list_degree_combinations(members, kind.has_products()) {
                    for last in list_degree_combinations(members, false) {
                        all_cuts.push((kind, members, [first, looked, last]));
                    }
                }
            }
        }
    }
    for (kind, members, cuts) in sample_every_nth(5, all_cuts) {
        check_cut_communication(kind, members, cuts);
    }
}
