//! Helpers for tests of all patterns.

use super::*;
use chakram_trace::format::write::TraceWriter;
use chakram_trace::format::{CollectiveKind, Dtype, GroupName, NodeMemoryChanges};
use std::collections::BTreeMap;

/// A node as a sink received it, with `op` in `Debug` format.
#[derive(Debug, PartialEq)]
pub(super) struct EmittedNode {
    pub name: String,
    pub op: String,
    /// FLOPs, bytes and number format, if the node is a compute node.
    pub kernel: Option<(u64, u64, Option<Dtype>)>,
    pub lane: Option<i64>,
    pub recorded: Span,
    pub data: Vec<u64>,
    pub memory: NodeMemoryChanges,
}

/// A sink that records one rank's nodes. It also records the bytes that all ranks send and receive, by (source,
/// destination, tag).
#[derive(Default)]
struct RankNodeAndMessageRecorder {
    rank: u32,
    seen: Vec<EmittedNode>,
    messages: BTreeMap<(u32, u32, i32), [Vec<u64>; 2]>,
}

impl Sink for RankNodeAndMessageRecorder {
    fn receive_node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        self.seen.push(EmittedNode {
            name: node.name.to_owned(),
            op: format!("{:?}", node.op),
            kernel: match node.op {
                Op::Compute {
                    flops,
                    bytes,
                    dtype,
                } => Some((flops, bytes, dtype)),
                _ => None,
            },
            lane: node.lane,
            recorded: node.recorded,
            data: data.to_vec(),
            memory: node.memory,
        });
        assert_eq!(node.id, self.seen.len() as u64, "ids count from 1");
        assert!(data.iter().all(|id| (1..node.id).contains(id)), "{node:?}");
        assert_eq!(node.recorded.0 % 1000, 0, "{node:?}");
        if let Op::Message {
            receive,
            peer,
            tag,
            bytes,
            own,
            ..
        } = node.op
        {
            assert_eq!(own, Some(self.rank));
            let key = if receive {
                (peer, self.rank, tag)
            } else {
                (self.rank, peer, tag)
            };
            let ends = self.messages.entry(key).or_default();
            ends[usize::from(receive)].push(bytes);
        }
        Ok(())
    }
}

fn write_rank_trace(job: &CheckedWorkloadPattern, rank: u32) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    job.emit_nodes(rank, &mut writer).unwrap();
    writer.into_unflushed_sink()
}

/// Returns the nodes of every rank, after checks that every pattern must pass. Ids ascend from 1 without gaps, and
/// dependencies have lower ids. Node counts equal the announced counts. Ranks of one class, and repeated runs, produce
/// the same bytes. Ranks of one shape produce the same graph, with the announced slots (peers and group names). Every
/// message is sent once and received once.
pub(super) fn check_and_record_every_rank(
    pattern: impl Into<WorkloadPattern>,
) -> Vec<Vec<EmittedNode>> {
    let pattern = pattern.into();
    pattern.validate_options().unwrap();
    let (job, again) = (
        CheckedWorkloadPattern::new(pattern.clone()).unwrap(),
        CheckedWorkloadPattern::new(pattern).unwrap(),
    );
    let mut recorder = RankNodeAndMessageRecorder::default();
    let mut ranks = Vec::new();
    for rank in 0..job.rank_count() {
        recorder.rank = rank;
        job.emit_nodes(rank, &mut recorder).unwrap();
        ranks.push(std::mem::take(&mut recorder.seen));
        assert_eq!(job.node_count(rank), ranks[rank as usize].len() as u64);
        assert_ne!(job.node_count(rank), 0);
        let least = job.0.min_node_count(rank);
        assert!((1..=job.node_count(rank)).contains(&least), "{least}");
        let bytes = write_rank_trace(&job, rank);
        assert_eq!(bytes, write_rank_trace(&again, rank));
        let class = job.representative_of_identical_ranks(rank);
        assert_eq!(
            job.representative_of_identical_ranks(class),
            class,
            "a class stands for itself"
        );
        assert_eq!(
            bytes,
            write_rank_trace(&job, class),
            "rank {rank} is like rank {class}"
        );
    }
    assert_ranks_match_shape_representatives(&job);
    for (key, [sent, received]) in &recorder.messages {
        assert_eq!((sent.len(), sent), (1, received), "{key:?}");
    }
    ranks
}

/// Checks every rank's own graph and slots (peers and group names). They must equal the graph and slots derived from
/// the representative of the rank's shape.
pub(super) fn assert_ranks_match_shape_representatives(job: &CheckedWorkloadPattern) {
    for rank in 0..job.rank_count() {
        let shape = job.representative_of_same_shape_ranks(rank);
        assert_eq!(
            job.representative_of_same_shape_ranks(shape),
            shape,
            "a shape stands for itself"
        );
        assert_eq!(
            job.representative_of_same_shape_ranks(job.representative_of_identical_ranks(rank)),
            shape,
            "rank {rank} has the shape of its class"
        );
        let (own, slots) = job.build_graph_and_slot_bindings(rank, &|_| ()).unwrap();
        let (shared, first) = job.build_graph_and_slot_bindings(shape, &|_| ()).unwrap();
        assert!(own == shared, "rank {rank} has the shape of rank {shape}");
        assert_eq!(
            job.0.bind_peers_and_groups_to_slots(rank, &first),
            slots,
            "slots of rank {rank}"
        );
    }
}

/// Returns the error message with which `pattern` is rejected.
pub(super) fn rejection_message(pattern: impl Into<WorkloadPattern>) -> String {
    pattern.into().validate_options().unwrap_err().to_string()
}

/// A test pattern that generates ranks in pairs. Each pair reduces some bytes, and sends some bytes
/// to the next pair; the last pair reduces a different number of bytes.
#[derive(Debug)]
struct TestPatternOfChainedRankPairs {
    pairs: u32,
    /// Deliberate error in the announced slots (peers and group names), which the checks must find.
    wrong: u32,
}

impl TraceGenerator for TestPatternOfChainedRankPairs {
    fn rank_count(&self) -> u32 {
        self.pairs * 2
    }

    fn declared_groups(&self) -> DeclaredGroups {
        let pair = |p| (format!("pair{p}"), vec![p * 2, p * 2 + 1]);
        (0..self.pairs).map(pair).collect()
    }

    fn shape_class_of_rank(&self, rank: u32) -> u32 {
        rank
    }

    fn graph_class_of_rank(&self, rank: u32) -> u32 {
        if rank / 2 + 1 == self.pairs { rank } else { 0 }
    }

    fn bind_peers_and_groups_to_slots(
        &self,
        rank: u32,
        first: &RankBindingsOfGraphSlots,
    ) -> RankBindingsOfGraphSlots {
        let ranks = self.rank_count();
        RankBindingsOfGraphSlots {
            peers: vec![(rank + 2 + self.wrong) % ranks, (rank + ranks - 2) % ranks],
            groups: vec![None, Some(format!("pair{}", rank / 2))],
            ..first.clone()
        }
    }

    fn node_count_of_rank(&self, _: u32) -> u64 {
        4
    }

    fn emit_nodes(&self, rank: u32, out: &mut TraceEmitter<'_>) -> Result<(), TraceError> {
        let last = rank / 2 + 1 == self.pairs;
        let name = format!("pair{}", rank / 2);
        let groups = [
            (GroupName::World, 8),
            (GroupName::Text(&name), if last { 16 } else { 32 }),
        ];
        for (group, bytes) in groups {
            let op = Op::Collective {
                kind: CollectiveKind::AllReduce,
                bytes,
                group,
                root: None,
                dimensions: None,
                host: false,
            };
            out.emit_node(op, None, Span::ZERO, &[])?;
        }
        let ranks = self.rank_count();
        for (receive, peer) in [(false, rank + 2), (true, rank + ranks - 2)] {
            let op = Op::Message {
                receive,
                peer: peer % ranks,
                tag: 0,
                bytes: 1,
                own: Some(rank),
                host: false,
            };
            out.emit_node(op, None, Span::ZERO, &[])?;
        }
        Ok(())
    }
}

#[test]
fn ranks_of_one_shape_share_a_graph_and_keep_their_peers_and_groups() {
    let job = CheckedWorkloadPattern(Box::new(TestPatternOfChainedRankPairs {
        pairs: 3,
        wrong: 0,
    }));
    assert_ranks_match_shape_representatives(&job);
    let workload = job.build_workload().unwrap();
    // Ranks 0 to 3 share a shape. Ranks 4 and 5 have shapes of their own, although their graphs are equal.
    let graphs = workload.instances().iter().map(|i| i.graph.0);
    assert_eq!(graphs.collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1]);
    let three = &workload.instances()[3];
    assert_eq!(three.peers, [Rank(5), Rank(1)]);
    let members = three
        .groups
        .iter()
        .map(|id| &workload.groups()[id.index()].members[..]);
    let world = [0, 1, 2, 3, 4, 5].map(Rank);
    assert_eq!(
        members.collect::<Vec<_>>(),
        [&world[..], &[Rank(2), Rank(3)]]
    );
}

#[test]
#[should_panic(expected = "slots of rank 0")]
fn slot_bindings_that_mismatch_nodes_are_detected() {
    assert_ranks_match_shape_representatives(&CheckedWorkloadPattern(Box::new(
        TestPatternOfChainedRankPairs { pairs: 3, wrong: 1 },
    )));
}
