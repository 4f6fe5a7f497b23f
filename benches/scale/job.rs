//! Defines a job for this benchmark only, shaped like a training step of a large language model: transformer layers
//! with tensor, pipeline and data parallelism under 1F1B.

use chakram::ids::Rank;
use chakram::trace::{CollectiveKind, GroupName, NodeView, Op, Sink};
use chakram::units::{Span, Time};
use chakram::workload::{
    DeclaredGroups, EnforcedDependencyKinds, Graph, GraphBuilder, MissingRankPolicy,
    RankBindingsOfGraphSlots, Workload, WorkloadBuilder,
};

/// The size of the job. Neighbouring ranks form a tensor group. Tensor groups are ordered by stage,
/// then by replica.
#[derive(Clone, Copy)]
pub struct ParallelTrainingJobSize {
    pub tensor: u32,
    pub stages: u32,
    pub replicas: u32,
    pub micro_batches: u32,
    /// The number of layers per stage.
    pub layers: u32,
    /// `true` if norms and residuals are also sharded, which doubles the number of collectives and
    /// halves their size.
    pub sequence: bool,
}

impl ParallelTrainingJobSize {
    pub fn ranks(self) -> u32 {
        self.tensor * self.stages * self.replicas
    }

    fn rank_at_coordinates(self, tensor: u32, stage: u32, replica: u32) -> u32 {
        tensor + self.tensor * (stage + self.stages * replica)
    }

    fn tensor_group_name(self, stage: u32, replica: u32) -> String {
        format!("tp{}", stage + self.stages * replica)
    }

    fn data_group_name(self, tensor: u32, stage: u32) -> String {
        format!("dp{}", tensor + self.tensor * stage)
    }

    fn declare_tensor_and_data_groups(self) -> DeclaredGroups {
        let mut groups = DeclaredGroups::new();
        for stage in 0..self.stages {
            for replica in 0..self.replicas {
                let members = (0..self.tensor).map(|t| self.rank_at_coordinates(t, stage, replica));
                groups.insert(self.tensor_group_name(stage, replica), members.collect());
            }
            for tensor in 0..self.tensor {
                let members =
                    (0..self.replicas).map(|r| self.rank_at_coordinates(tensor, stage, r));
                groups.insert(self.data_group_name(tensor, stage), members.collect());
            }
        }
        groups
    }

    /// Returns the workload of all ranks. Each stage has one graph, and each rank has its own peers and
    /// groups.
    pub fn workload(self) -> Workload {
        let mut builder = WorkloadBuilder::default();
        builder.declare_groups(self.declare_tensor_and_data_groups());
        let stages = (0..self.stages)
            .map(|stage| builder.add_or_reuse_equal_graph(self.build_stage_graph(stage)));
        let stages: Vec<_> = stages.collect();
        for rank in 0..self.ranks() {
            let tensor = rank % self.tensor;
            let stage = rank / self.tensor % self.stages;
            let replica = rank / self.tensor / self.stages;
            // The last stage receives first. All other stages send activations before they receive gradients. The
            // stages in the middle receive activations before they send any.
            let before = (stage > 0).then(|| self.rank_at_coordinates(tensor, stage - 1, replica));
            let after = (stage + 1 < self.stages)
                .then(|| self.rank_at_coordinates(tensor, stage + 1, replica));
            let binding = RankBindingsOfGraphSlots {
                peers: before.into_iter().chain(after).collect(),
                groups: vec![
                    Some(self.tensor_group_name(stage, replica)),
                    Some(self.data_group_name(tensor, stage)),
                ],
                ..RankBindingsOfGraphSlots::default()
            };
            builder
                .add_rank(Rank(rank), stages[stage as usize], binding, Time::ZERO)
                .expect("each rank once");
        }
        builder
            .finish_workload(None, MissingRankPolicy::Refuse)
            .expect("every rank is there")
    }

    /// Builds the trace of the first rank of `stage`.
    fn build_stage_graph(self, stage: u32) -> Graph {
        let rank = self.rank_at_coordinates(0, stage, 0);
        let mut out = ChainedGraphBuilder {
            builder: GraphBuilder::new(rank, EnforcedDependencyKinds::Both, 1 << 20),
            last: 0,
            name: String::new(),
        };
        let first = (stage > 0).then(|| self.rank_at_coordinates(0, stage - 1, 0));
        let next = (stage + 1 < self.stages).then(|| self.rank_at_coordinates(0, stage + 1, 0));
        let group = self.tensor_group_name(stage, 0);
        let warm = (self.stages - 1 - stage).min(self.micro_batches);
        let mut done = 0;
        for forward in 0..self.micro_batches + warm {
            if forward < self.micro_batches {
                self.append_forward_pass(&mut out, forward, rank, (first, next), &group);
            }
            if forward >= warm {
                self.append_backward_pass(&mut out, done, rank, (first, next), &group);
                done += 1;
            }
        }
        let group = self.data_group_name(0, stage);
        let last = out.last;
        for layer in 0..self.layers {
            let kind = CollectiveKind::AllReduce;
            out.add_collective_after(kind, 450_000_000, &group, last, format!("grads.{layer}"));
        }
        out.builder.finish_graph().expect("it is sound").0
    }

    fn append_forward_pass(
        self,
        out: &mut ChainedGraphBuilder,
        batch: u32,
        rank: u32,
        (from, to): (Option<u32>, Option<u32>),
        group: &str,
    ) {
        if let Some(peer) = from {
            out.append_send_or_receive(true, peer, rank, batch * 2);
        }
        for layer in 0..self.layers {
            for (name, us) in [("norm", 20), ("qkv", 300), ("scores", 80), ("softmax", 60)] {
                out.append_kernel(us, format!("fwd.{layer}.{name}"));
            }
            for (name, us) in [("context", 80), ("out", 100)] {
                out.append_kernel(us, format!("fwd.{layer}.{name}"));
            }
            self.add_tensor_group_collective(out, group, format!("fwd.{layer}.attention"));
            for (name, us) in [("residual", 20), ("norm2", 20), ("up", 400)] {
                out.append_kernel(us, format!("fwd.{layer}.{name}"));
            }
            for (name, us) in [("gelu", 40), ("down", 400)] {
                out.append_kernel(us, format!("fwd.{layer}.{name}"));
            }
            self.add_tensor_group_collective(out, group, format!("fwd.{layer}.mlp"));
            out.append_kernel(20, format!("fwd.{layer}.residual2"));
        }
        if let Some(peer) = to {
            out.append_send_or_receive(false, peer, rank, batch * 2);
        }
    }

    fn append_backward_pass(
        self,
        out: &mut ChainedGraphBuilder,
        batch: u32,
        rank: u32,
        (to, from): (Option<u32>, Option<u32>),
        group: &str,
    ) {
        if let Some(peer) = from {
            out.append_send_or_receive(true, peer, rank, batch * 2 + 1);
        }
        for layer in (0..self.layers).rev() {
            for part in ["mlp", "attention"] {
                for step in 0..11 {
                    out.append_kernel(150 + step, format!("bwd.{layer}.{part}.{step}"));
                }
                self.add_tensor_group_collective(out, group, format!("bwd.{layer}.{part}"));
            }
        }
        if let Some(peer) = to {
            out.append_send_or_receive(false, peer, rank, batch * 2 + 1);
        }
    }

    /// Adds the tensor group's collective after one half of a layer.
    fn add_tensor_group_collective(self, out: &mut ChainedGraphBuilder, group: &str, name: String) {
        let bytes = 2048 * 12_288 * 2;
        let last = out.last;
        if !self.sequence {
            return out.add_collective_after(CollectiveKind::AllReduce, bytes, group, last, name);
        }
        let kind = CollectiveKind::ReduceScatter;
        out.add_collective_after(kind, bytes, group, last, format!("{name}.scatter"));
        let (kind, last) = (CollectiveKind::AllGather, out.last);
        let shard = bytes / u64::from(self.tensor);
        out.add_collective_after(kind, shard, group, last, format!("{name}.gather"));
    }
}

/// Assigns ids to nodes; by default, each node depends on the previous node.
struct ChainedGraphBuilder {
    builder: GraphBuilder,
    last: u64,
    name: String,
}

impl ChainedGraphBuilder {
    fn add_node_after(&mut self, op: Op<'_>, after: u64, recorded: Span) {
        self.last += 1;
        let node = NodeView {
            recorded,
            ..NodeView::new(self.last, &self.name, op)
        };
        let after = Some(after).filter(|id| *id > 0);
        let added = self.builder.receive_node(&node, after.as_slice());
        added.expect("the graph takes it");
    }

    fn append_kernel(&mut self, us: u64, name: String) {
        self.name = name;
        let op = Op::Compute {
            flops: 1_000_000,
            bytes: 1_000_000,
            dtype: None,
        };
        self.add_node_after(op, self.last, Span(us * 1_000_000));
    }

    fn append_send_or_receive(&mut self, receive: bool, peer: u32, own: u32, tag: u32) {
        self.name = if receive { "receive" } else { "send" }.to_owned();
        let op = Op::Message {
            receive,
            peer,
            tag: tag as i32,
            bytes: 2048 * 12_288 * 2 / 8,
            own: Some(own),
            host: false,
        };
        self.add_node_after(op, self.last, Span::ZERO);
    }

    fn add_collective_after(
        &mut self,
        kind: CollectiveKind,
        bytes: u64,
        group: &str,
        after: u64,
        name: String,
    ) {
        self.name = name;
        let op = Op::Collective {
            kind,
            bytes,
            group: GroupName::Text(group),
            root: None,
            dimensions: None,
            host: false,
        };
        self.add_node_after(op, after, Span::ZERO);
    }
}
