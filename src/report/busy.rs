//! Busy time of each rank by type of work: host, kernels, communication, memory, and nodes without work. It is the
//! length of the union of the nodes' intervals, each from issue to completion.
//!
//! The intervals are not stored. For each rank and type of work, the observer stores only the number of nodes in
//! progress and the start of the current busy period. A node therefore costs only a few additions and no memory.

use super::{CollectiveRecord, Observer};
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Span, Time};
use chakram_engine::InstanceId;
use chakram_trace::graph::NodeKind;
use chakram_trace::workload::Workload;

const HOST: usize = 0;
const KERNELS: usize = 1;
const COMMUNICATION: usize = 2;
const MEMORY: usize = 3;
const NOTHING: usize = 4;

/// Busy time of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankBusyTime {
    /// Time at which the rank's last node completed; `None` if not all nodes completed.
    pub finish: Option<Time>,
    /// Time with host work in progress.
    pub host: Span,
    /// Time with a kernel in progress.
    pub kernels: Span,
    /// Time with a collective, send, receive or other communication in progress.
    pub communication: Span,
    /// Time with a load or store in progress.
    pub memory: Span,
    /// Time with a node in progress that does no work but keeps its recorded duration.
    pub nothing: Span,
    /// Time with both a kernel and a communication in progress.
    pub overlap: Span,
}

/// Busy times of one rank so far.
#[derive(Clone, Debug, Default)]
struct RankBusyTracker {
    /// Number of the rank's nodes that have not completed.
    left: usize,
    last: Time,
    /// Number of nodes in progress, by type of work.
    active: [u32; 5],
    since: [Time; 5],
    total: [Span; 5],
    /// Start of the current period with both kernels and communication in progress.
    both_since: Time,
    overlap: Span,
}

/// Sums the busy time of every rank. `F` returns a kernel's type of work.
#[derive(Debug)]
pub struct RankBusyTimeObserver<F> {
    ranks: Vec<RankBusyTracker>,
    counts_as: F,
}

impl<F: Fn(InstanceId, NodeIndex) -> NodeKind> RankBusyTimeObserver<F> {
    /// Creates an observer of all instances of `workload`. `counts_as` returns the type of work for a
    /// [`NodeKind::Compute`] node.
    pub fn new(workload: &Workload, counts_as: F) -> Self {
        let ranks = workload.instances().iter().map(|instance| RankBusyTracker {
            left: workload.graph_of(instance).len(),
            ..RankBusyTracker::default()
        });
        Self {
            ranks: ranks.collect(),
            counts_as,
        }
    }

    /// Returns the busy times, one per instance. Leaves out the current busy period of an unfinished rank.
    pub fn busy_times_of_all_ranks(&self) -> impl ExactSizeIterator<Item = RankBusyTime> {
        self.ranks.iter().map(|rank| RankBusyTime {
            finish: (rank.left == 0).then_some(rank.last),
            host: rank.total[HOST],
            kernels: rank.total[KERNELS],
            communication: rank.total[COMMUNICATION],
            memory: rank.total[MEMORY],
            nothing: rank.total[NOTHING],
            overlap: rank.overlap,
        })
    }

    #[inline]
    fn busy_kind_index(&self, instance: InstanceId, node: NodeIndex, kind: NodeKind) -> usize {
        let kind = match kind {
            NodeKind::Compute => (self.counts_as)(instance, node),
            other => other,
        };
        match kind {
            NodeKind::Nothing => NOTHING,
            NodeKind::Host => HOST,
            NodeKind::Compute => KERNELS,
            NodeKind::Send | NodeKind::Receive | NodeKind::Collective | NodeKind::Communication => {
                COMMUNICATION
            }
            NodeKind::LocalMemory | NodeKind::RemoteMemory => MEMORY,
        }
    }
}

impl RankBusyTracker {
    /// Returns true if kernels and communication are both in progress.
    #[inline]
    fn are_both_busy(&self) -> bool {
        self.active[KERNELS] > 0 && self.active[COMMUNICATION] > 0
    }
}

impl<F: Fn(InstanceId, NodeIndex) -> NodeKind> Observer for RankBusyTimeObserver<F> {
    #[inline]
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        let sort = self.busy_kind_index(instance, node, kind);
        let rank = &mut self.ranks[instance.index()];
        rank.active[sort] += 1;
        if rank.active[sort] == 1 {
            rank.since[sort] = now;
            if (sort == KERNELS || sort == COMMUNICATION) && rank.are_both_busy() {
                rank.both_since = now;
            }
        }
    }

    #[inline]
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        let sort = self.busy_kind_index(instance, node, kind);
        let rank = &mut self.ranks[instance.index()];
        rank.left -= 1;
        rank.last = now;
        if rank.active[sort] == 1 {
            rank.total[sort] += now.since(rank.since[sort]);
            if (sort == KERNELS || sort == COMMUNICATION) && rank.are_both_busy() {
                rank.overlap += now.since(rank.both_since);
            }
        }
        rank.active[sort] -= 1;
    }

    #[inline]
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_that_overlap_or_touch_are_counted_once() {
        // Kernels run in [0, 10] and [15, 18]. Receives run in [4, 12] and [6, 20]. Host work runs in [20, 25] and
        // directly afterwards in [25, 30]. The receives cover [4, 20] = 16 in total. Kernels and receives overlap in
        // [4, 10] and [15, 18].
        let mut busy = RankBusyTimeObserver {
            ranks: vec![RankBusyTracker {
                left: 6,
                ..RankBusyTracker::default()
            }],
            counts_as: |_, _| NodeKind::Compute,
        };
        let events = [
            (0, 0, true, NodeKind::Compute),
            (4, 1, true, NodeKind::Receive),
            (6, 2, true, NodeKind::Receive),
            (10, 0, false, NodeKind::Compute),
            (12, 1, false, NodeKind::Receive),
            (15, 3, true, NodeKind::Compute),
            (18, 3, false, NodeKind::Compute),
            (20, 2, false, NodeKind::Receive),
            (20, 4, true, NodeKind::Host),
            (25, 4, false, NodeKind::Host),
            (25, 5, true, NodeKind::Host),
        ];
        for (at, node, start, kind) in events {
            if start {
                busy.on_issued(Time(at), InstanceId(0), NodeIndex(node), kind)
            } else {
                busy.on_completed(Time(at), InstanceId(0), NodeIndex(node), kind)
            }
        }
        assert_eq!(busy.busy_times_of_all_ranks().next().unwrap().finish, None);
        busy.on_completed(Time(30), InstanceId(0), NodeIndex(5), NodeKind::Host);
        let expected = RankBusyTime {
            finish: Some(Time(30)),
            host: Span(10),
            kernels: Span(13),
            communication: Span(16),
            memory: Span::ZERO,
            nothing: Span::ZERO,
            overlap: Span(9),
        };
        assert_eq!(busy.busy_times_of_all_ranks().next(), Some(expected));
    }

    #[test]
    fn a_kernel_counts_as_busy_in_the_node_kind_it_stands_for() {
        let mut busy = RankBusyTimeObserver {
            ranks: vec![RankBusyTracker {
                left: 1,
                ..RankBusyTracker::default()
            }],
            counts_as: |_, _| NodeKind::RemoteMemory,
        };
        busy.on_issued(Time(2), InstanceId(0), NodeIndex(0), NodeKind::Compute);
        busy.on_completed(Time(9), InstanceId(0), NodeIndex(0), NodeKind::Compute);
        let found = busy.busy_times_of_all_ranks().next().unwrap();
        assert_eq!((found.kernels, found.memory), (Span::ZERO, Span(7)));
    }
}
