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

/// Sums the time of nodes by name and kind.
#[derive(Debug)]
pub struct Operators<'a> {
    prepared: &'a Prepared<'a>,
    started: Started<'a>,
    /// The number of each instance's graph.
    graphs: Vec<u32>,
    /// Sums of each name of each graph, for the kind that its first node to complete has.
    sums: Vec<Vec<Sum>>,
    /// Sums of names that nodes of another kind have too, by graph, name and kind.
    others: BTreeMap<(u32, u32, u8), Sum>,
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    calls: u64,
    total: Span,
    kind: Kind,
}

impl Sum {
    const fn empty(kind: Kind) -> Self {
        Self {
            calls: 0,
            total: Span::ZERO,
            kind,
        }
    }
}

impl<'a> Operators<'a> {
    /// Watches all instances of `prepared`.
    pub fn new(prepared: &'a Prepared<'a>) -> Self {
        let workload = prepared.workload();
        let graphs = workload.graphs().iter();
        let empty = Sum::empty(Kind::Nothing);
        Self {
            prepared,
            started: Started::new(prepared),
            graphs: workload.instances().iter().map(|i| i.graph.0).collect(),
            sums: graphs
                .map(|graph| vec![empty; graph.names().len()])
                .collect(),
            others: BTreeMap::new(),
        }
    }

    /// The operators, longest first, those of equal time by name and kind.
    pub fn finish(self) -> Vec<Operator> {
        let graphs = self.prepared.workload().graphs();
        let firsts = (0..).zip(&self.sums).flat_map(|(graph, sums)| {
            let named = (0..).zip(sums);
            named.map(move |(name, sum)| (graph, name, *sum))
        });
        let others = self.others.iter();
        let others = others.map(|(&(graph, name, _), sum)| (graph, name, *sum));
        let mut by_name: BTreeMap<(&str, u8), Sum> = BTreeMap::new();
        for (graph, name, sum) in firsts.chain(others).filter(|(.., sum)| sum.calls > 0) {
            let name = graphs[graph as usize].names().get(name);
            let all = by_name
                .entry((name, sum.kind as u8))
                .or_insert(Sum::empty(sum.kind));
            all.calls += sum.calls;
            all.total += sum.total;
        }
        let mut operators: Vec<_> = by_name
            .into_iter()
            .map(|((name, _), sum)| Operator {
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
    fn issued(&mut self, now: Time, instance: u32, node: NodeIndex, kind: Kind) {
        self.started.set(now, instance, node, kind);
    }

    #[inline]
    fn completed(&mut self, now: Time, instance: u32, node: NodeIndex, kind: Kind) {
        if kind == Kind::Nothing {
            return;
        }
        let graph = self.graphs[instance as usize];
        let name = self.started.graph(instance).name_index(node);
        let mut sum = &mut self.sums[graph as usize][name as usize];
        if sum.calls == 0 {
            sum.kind = kind;
        } else if sum.kind != kind {
            let key = (graph, name, kind as u8);
            sum = self.others.entry(key).or_insert(Sum::empty(kind));
        }
        sum.calls += 1;
        sum.total += now.since(self.started.get(instance, node, kind));
    }

    fn collective(&mut self, _: &CollectiveRecord) {}
}
