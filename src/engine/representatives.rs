//! Jobs of copies: ranks that stand for others, where all copies of a job must do the same at the same time.
//!
//! A copy is a set of ranks that exchange messages among themselves alone, such as one pipeline of a job of replicas. On a
//! network without contention, a copy learns of the others in collectives only. If copies have the same graphs, and lie
//! alike on the machine, each arrives when the others do, and one copy says when all end.

use crate::graph::{Graph, NodeKind};
use crate::ids::{Npu, Rank};
use crate::machine::Machine;
use crate::network::NetworkKind;
use crate::topology::Topology;
use crate::workload::{RankInstance, Workload};

/// Place of a rank: its copy, and its place in it.
type CopyPlace = (u32, u32);

/// Returns the part of `workload` that the ranks of the first of `copies` carry out, if that copy stands for all on
/// `machine`: members of the others arrive with those of the first. `None` if there is one copy, or copies may differ.
///
/// `copies` are disjoint, of one length, and hold every rank. A run of the part ends when one of the whole does if all its
/// collectives were answered [by closed form](super::ReplayOutcome::closed), which is the same for all members.
pub fn representatives(
    workload: &Workload,
    machine: &Machine,
    copies: &[Vec<u32>],
) -> Option<Workload> {
    let [first, others @ ..] = copies else {
        return None;
    };
    let remote = |graph: &Graph| {
        let mut nodes = graph.nodes();
        nodes.any(|node| graph.kind(node) == NodeKind::RemoteMemory)
    };
    if others.is_empty()
        || machine.network() != NetworkKind::ContentionFree
        || workload.graphs().iter().any(remote)
    {
        return None;
    }
    let mut places: Vec<Option<CopyPlace>> = vec![None; workload.ranks() as usize];
    for (copy, ranks) in copies.iter().enumerate() {
        if ranks.len() != first.len() {
            return None;
        }
        for (at, &rank) in ranks.iter().enumerate() {
            *places.get_mut(rank as usize)? = Some((copy as u32, at as u32));
        }
    }
    let places: Vec<CopyPlace> = places.into_iter().collect::<Option<_>>()?;
    let instances = workload.instances();
    if instances.len() != places.len() {
        return None;
    }
    let comparison = CopyComparison {
        workload,
        machine,
        places: &places,
    };
    let alike = first.iter().enumerate().all(|(at, &rank)| {
        let own = &instances[rank as usize];
        comparison.stands_for_members(own)
            && others.iter().all(|other| {
                let other = &instances[other[at] as usize];
                comparison.are_alike(own, other)
            })
    });
    alike.then(|| workload.mirrored(|rank| places[rank.index()].0 == 0))
}

struct CopyComparison<'a> {
    workload: &'a Workload,
    machine: &'a Machine,
    places: &'a [CopyPlace],
}

impl CopyComparison<'_> {
    /// Whether each member of the groups of `instance`, which is of the first copy, has the place of one in that copy.
    fn stands_for_members(&self, instance: &RankInstance) -> bool {
        instance.groups.iter().all(|group| {
            let members = &self.workload.groups()[group.index()].members;
            let places = members.iter().map(|member| self.places[member.index()]);
            let mut present: Vec<u32> = places
                .clone()
                .filter(|place| place.0 == 0)
                .map(|place| place.1)
                .collect();
            present.sort_unstable();
            places
                .map(|place| place.1)
                .all(|at| present.binary_search(&at).is_ok())
        })
    }

    /// Whether two ranks at one place of two copies execute one graph, on NPUs of one class, with groups and peers that
    /// lie alike.
    fn are_alike(&self, a: &RankInstance, b: &RankInstance) -> bool {
        let class = |of: &RankInstance| self.machine.class(Npu(of.rank.0));
        let groups = || {
            let mut pairs = a.groups.iter().zip(&b.groups);
            pairs.all(|(a, b)| {
                let [a, b] = [a, b].map(|group| &self.workload.groups()[group.index()].members);
                a == b || self.lie_alike(a, b)
            })
        };
        let peers = || {
            let mut pairs = a.peers.iter().zip(&b.peers);
            pairs.all(|(&to_a, &to_b)| {
                let [of_a, of_b] = [to_a, to_b].map(|peer| self.places[peer.index()]);
                let [own_a, own_b] = [a.rank, b.rank].map(|rank| self.places[rank.index()]);
                // A message stays in its copy.
                of_a.0 == own_a.0
                    && of_b.0 == own_b.0
                    && of_a.1 == of_b.1
                    && self.lie_alike(&[a.rank, to_a], &[b.rank, to_b])
            })
        };
        a.graph == b.graph
            && a.release == b.release
            && class(a) == class(b)
            && (a.groups.len(), a.peers.len()) == (b.groups.len(), b.peers.len())
            && groups()
            && peers()
    }

    /// Whether two lists of ranks lie alike in every dimension of the machine.
    fn lie_alike(&self, a: &[Rank], b: &[Rank]) -> bool {
        let topology = self.machine.topology();
        let along = |d: usize| layout(topology, a, d) == layout(topology, b, d);
        a.len() == b.len() && (0..topology.dimensions().len()).all(along)
    }
}

/// Places of `ranks` along dimension `d`: where NPUs hang on one fabric, which of them share a place, by the first that
/// is there; where they are wired to neighbours, the distance from the first.
fn layout(topology: &Topology, ranks: &[Rank], d: usize) -> Vec<i64> {
    let coordinates: Vec<u32> = ranks
        .iter()
        .map(|rank| topology.coordinate(Npu(rank.0), d))
        .collect();
    let of = &topology.dimensions()[d];
    if !of.shape.has_ports() {
        let start = coordinates.first().copied().unwrap_or(0);
        let offsets = coordinates.iter().map(|&c| i64::from(c) - i64::from(start));
        return offsets.collect();
    }
    let mut seen: Vec<Option<i64>> = vec![None; of.size as usize];
    let labels = coordinates.iter().zip(0_i64..);
    labels
        .map(|(&c, i)| *seen[c as usize].get_or_insert(i))
        .collect()
}
