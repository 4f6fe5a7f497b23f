//! Traces in a short notation, with one line per node.

use chakram::trace::{CollectiveKind, Dtype, GroupName, KernelShape, NodeMemoryChanges, Op};

/// A node of a trace. The node's id is its position in the trace, from 1.
#[derive(Clone, Debug)]
pub struct TestTraceNode {
    /// The node's name; without it, `n` and the id.
    pub name: Option<&'static str>,
    pub op: Op<'static>,
    pub shape: Option<KernelShape>,
    pub lane: Option<i64>,
    pub ns: u64,
    pub delay_ns: u64,
    pub wait_ns: u64,
    pub eager: bool,
    pub memory: NodeMemoryChanges,
    /// Bytes to each member and from each member, for an all-to-all of unequal parts.
    pub splits: [String; 2],
    pub after: Vec<u64>,
}

pub fn build_node(op: Op<'static>) -> TestTraceNode {
    TestTraceNode {
        name: None,
        op,
        shape: None,
        lane: None,
        ns: 0,
        delay_ns: 0,
        wait_ns: 0,
        eager: false,
        memory: NodeMemoryChanges::default(),
        splits: Default::default(),
        after: Vec::new(),
    }
}

/// Returns a kernel with a recorded duration of `ns`.
pub fn build_kernel(ns: u64) -> TestTraceNode {
    let op = Op::Compute {
        flops: 0,
        bytes: 0,
        dtype: None,
    };
    TestTraceNode {
        ns,
        ..build_node(op)
    }
}

/// Returns a kernel in BF16 with this shape.
pub fn build_shaped_kernel(shape: KernelShape, flops: u64, bytes: u64) -> TestTraceNode {
    let op = Op::Compute {
        flops,
        bytes,
        dtype: Some(Dtype::Bf16),
    };
    TestTraceNode {
        shape: Some(shape),
        ..build_node(op)
    }
}

fn build_message(receive: bool, peer: u32, bytes: u64) -> TestTraceNode {
    build_node(Op::Message {
        receive,
        peer,
        tag: 0,
        bytes,
        own: None,
        host: false,
    })
}

pub fn build_send(peer: u32, bytes: u64) -> TestTraceNode {
    build_message(false, peer, bytes)
}

pub fn build_receive(peer: u32, bytes: u64) -> TestTraceNode {
    build_message(true, peer, bytes)
}

/// Returns a collective of all ranks; if it has a root, this is rank 0.
pub fn build_collective(kind: CollectiveKind, bytes: u64) -> TestTraceNode {
    build_node(Op::Collective {
        kind,
        bytes,
        group: GroupName::World,
        root: kind.has_root().then_some(0),
        dimensions: None,
        host: false,
    })
}

impl TestTraceNode {
    pub fn named(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }

    pub fn after(mut self, ids: &[u64]) -> Self {
        self.after = ids.to_vec();
        self
    }

    pub fn on_lane(mut self, lane: i64) -> Self {
        self.lane = Some(lane);
        self
    }

    /// Sets the recorded duration.
    pub fn lasts(mut self, ns: u64) -> Self {
        self.ns = ns;
        self
    }

    /// Sets the delay from the end of the node's dependencies until it is ready.
    pub fn delayed(mut self, ns: u64) -> Self {
        self.delay_ns = ns;
        self
    }

    /// Sets the recorded wait for peers.
    pub fn waited(mut self, ns: u64) -> Self {
        self.wait_ns = ns;
        self
    }

    pub fn with_eager_flag(mut self) -> Self {
        self.eager = true;
        self
    }

    pub fn tag(mut self, number: i32) -> Self {
        if let Op::Message { tag, .. } = &mut self.op {
            *tag = number;
        }
        self
    }

    pub fn group(mut self, name: &'static str) -> Self {
        if let Op::Collective { group, .. } = &mut self.op {
            *group = GroupName::Text(name);
        }
        self
    }

    pub fn with_collective_root(mut self, rank: u32) -> Self {
        if let Op::Collective { root, .. } = &mut self.op {
            *root = Some(rank);
        }
        self
    }

    pub fn with_collective_dimensions(mut self, mask: u32) -> Self {
        if let Op::Collective { dimensions, .. } = &mut self.op {
            *dimensions = Some(mask);
        }
        self
    }
}
