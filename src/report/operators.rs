//! Which operators take longest: time from issue to completion, summed by name.

use super::started::Started;
use super::{CollectiveRecord, Observer};
use crate::engine::Prepared;
use crate::graph::Kind;
use crate::ids::NodeIndex;
use crate::units::{Span, Time};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// All nodes of one name and kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// The name.
    pub name: String,
    /// What its nodes do.
    pub kind: Kind,
    /// How many there are.
    pub calls: u64,
    /// Their time together; nodes that overlap count each in full.
    pub total: Span,
}

/// Sums the time of nodes by name. Keeps 8 bytes per node while the replay runs.
#[derive(Debug)]
pub struct Operators<'a> {
    prepared: &'a Prepared<'a>,
    started: Started,
    /// Sums of each name of each graph.
    sums: Vec<Vec<Sum>>,
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    calls: u64,
    total: Span,
    kind: Kind,
}

impl<'a> Operators<'a> {
    /// Watches all instances of `prepared`.
    pub fn new(prepared: &'a Prepared<'a>) -> Self {
        let empty = Sum {
            calls: 0,
            total: Span::ZERO,
            kind: Kind::Nothing,
        };
        let graphs = prepared.workload().graphs().iter();
        Self {
            prepared,
            started: Started::new(prepared),
            sums: graphs
                .map(|graph| vec![empty; graph.names().len()])
                .collect(),
        }
    }

    /// The operators, longest first, those of equal time by name.
    pub fn finish(self) -> Vec<Operator> {
        let mut by_name: BTreeMap<&str, Sum> = BTreeMap::new();
        for (graph, sums) in self.prepared.workload().graphs().iter().zip(&self.sums) {
            for (name, sum) in sums.iter().enumerate().filter(|(_, sum)| sum.calls > 0) {
                let entry = by_name.entry(graph.names().get(name as u32));
                let all = entry.or_insert(Sum {
                    calls: 0,
                    total: Span::ZERO,
                    kind: sum.kind,
                });
                all.calls += sum.calls;
                all.total += sum.total;
            }
        }
        let mut operators: Vec<_> = by_name
            .into_iter()
            .map(|(name, sum)| Operator {
                name: name.to_owned(),
                kind: sum.kind,
                calls: sum.calls,
                total: sum.total,
            })
            .collect();
        // Stable, so equal times stay in order of names.
        operators.sort_by_key(|operator| Reverse(operator.total));
        operators
    }
}

impl Observer for Operators<'_> {
    #[inline]
    fn issued(&mut self, now: Time, instance: u32, node: NodeIndex, _: Kind) {
        self.started.set(now, instance, node);
    }

    #[inline]
    fn completed(&mut self, now: Time, instance: u32, node: NodeIndex, kind: Kind) {
        if kind == Kind::Nothing {
            return;
        }
        let workload = self.prepared.workload();
        let of = &workload.instances()[instance as usize];
        let name = workload.graph(of).name_index(node);
        let sum = &mut self.sums[of.graph.index()][name as usize];
        sum.calls += 1;
        sum.kind = kind;
        sum.total += now.since(self.started.get(instance, node));
    }

    fn collective(&mut self, _: &CollectiveRecord) {}
}
