//! Algorithms as state machines: a machine receives events and returns actions.

pub mod credits;
pub mod custom;
pub mod halving;
pub mod tree;

use super::OracleSimulator;
use super::agenda::{DelayedCall, StreamBusPacket};
use super::post::{ArrivalHandler, UnnumberedMessageKey};

/// Event for an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmEvent {
    /// The phase starts.
    Start,
    /// A message has arrived.
    Received,
    /// A packet has crossed the bus, and has been reduced if necessary.
    Ready,
    /// A node of a custom algorithm has ended.
    Ended(u64),
}

/// What an algorithm does next.
#[derive(Clone, Copy, Debug)]
pub enum AlgorithmAction {
    /// Moves data over the bus.
    Move(MemoryMove),
    Send {
        dst: usize,
        bytes: u64,
    },
    Receive {
        src: usize,
        bytes: u64,
    },
    /// Sends a message for a node of a custom algorithm, with the tag in the node's trace.
    SendNode {
        node: u64,
        dst: usize,
        bytes: u64,
        tag: u64,
    },
    ReceiveNode {
        node: u64,
        src: usize,
        bytes: u64,
        tag: u64,
    },
    ComputeNode {
        node: u64,
        ns: u64,
    },
    /// The phase has ended.
    Over,
}

/// A transfer between NPU and memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryMove {
    pub bytes: u64,
    pub reduce: bool,
    /// `true` for a move to memory, `false` for a move from memory.
    pub to_memory: bool,
    /// `true` if the data returns to its origin; only the shared bus supports this.
    pub send_back: bool,
    /// `true` if the move takes a constant 10 ns.
    pub fast: bool,
}

/// The members of a logical ring, and the index of this NPU among them.
#[derive(Clone, Debug)]
pub struct RingMembersAndOwnIndex {
    pub ids: Vec<usize>,
    pub me: usize,
    /// `true` for a declared group; `false` for all NPUs of a dimension.
    pub group: bool,
}

impl RingMembersAndOwnIndex {
    pub fn of_group(members: &[usize], npu: usize) -> Self {
        let me = members.iter().position(|&m| m == npu).unwrap_or(0);
        Self {
            ids: members.to_vec(),
            me,
            group: true,
        }
    }

    /// Returns the ring of the `n` NPUs whose coordinates differ from those of `npu` only in the dimension with this
    /// stride.
    pub fn from_npu_along_dimension_stride(npu: usize, n: usize, stride: usize) -> Self {
        let me = npu / stride % n;
        let first = npu - me * stride;
        Self {
            ids: (0..n).map(|i| first + i * stride).collect(),
            me,
            group: false,
        }
    }

    /// Returns the index that is `steps` positions away from `index`.
    pub fn ring_index_after_steps(&self, index: usize, steps: usize, clockwise: bool) -> usize {
        let n = self.ids.len();
        let steps = steps % n;
        (index + if clockwise { steps } else { n - steps }) % n
    }
}

/// The algorithm of a phase.
#[derive(Debug)]
pub enum RunningAlgorithm {
    Credits(credits::RingDirectOrHalvingAlgorithm),
    MemberMessageTree(tree::TreeAlgorithm),
    Custom(custom::OneMemberCustomAlgorithmRun),
}

impl RunningAlgorithm {
    /// Returns the chunk's size after the phase.
    pub fn chunk_size_after_phase(&self) -> u64 {
        match self {
            Self::Credits(credits) => credits.final_size,
            Self::MemberMessageTree(tree) => tree.bytes,
            Self::Custom(_) => 0,
        }
    }

    fn actions_after_event(&mut self, input: AlgorithmEvent) -> Vec<AlgorithmAction> {
        match self {
            Self::Credits(credits) => credits.actions_after_event(input),
            Self::MemberMessageTree(tree) => tree.actions_after_event(input),
            Self::Custom(custom) => custom.actions_after_event(input),
        }
    }
}

impl OracleSimulator<'_> {
    /// Passes an event to a stream's algorithm, and executes the algorithm's actions in order.
    pub fn pass_event_to_stream_algorithm(&mut self, stream: usize, input: AlgorithmEvent) {
        let Some(phase) = self.streams[stream].current.as_mut() else {
            return;
        };
        let acts = phase.algo.actions_after_event(input);
        let (npu, tag) = (self.streams[stream].npu, self.streams[stream].tag);
        let on = |tag, src, dst, bytes| UnnumberedMessageKey {
            tag,
            src,
            dst,
            bytes,
        };
        for act in acts {
            match act {
                AlgorithmAction::Move(how) => self.move_data_to_or_from_memory(npu, stream, how),
                AlgorithmAction::Send { dst, bytes } => {
                    self.send_message_after_any_rendezvous(
                        on(tag, npu, dst, bytes),
                        ArrivalHandler::Nothing,
                    );
                }
                AlgorithmAction::Receive { src, bytes } => {
                    self.post_receive(on(tag, src, npu, bytes), ArrivalHandler::Stream(stream));
                }
                AlgorithmAction::SendNode {
                    node,
                    dst,
                    bytes,
                    tag,
                } => {
                    let then = ArrivalHandler::CustomEnds { stream, node };
                    self.send_message_after_any_rendezvous(on(tag, npu, dst, bytes), then);
                }
                AlgorithmAction::ReceiveNode {
                    node,
                    src,
                    bytes,
                    tag,
                } => {
                    let then = ArrivalHandler::CustomEnds { stream, node };
                    self.post_receive(on(tag, src, npu, bytes), then);
                }
                AlgorithmAction::ComputeNode { node, ns } => {
                    let call = DelayedCall::CustomEnds { stream, node };
                    self.agenda.add_delay(npu, ns, call);
                }
                AlgorithmAction::Over => self.proceed_to_next_phase(stream),
            }
        }
    }

    /// Moves data between NPU and memory. As in ASTRA-sim 2.x, a move without the shared bus has a
    /// constant delay (10 ns in groups).
    fn move_data_to_or_from_memory(&mut self, npu: usize, stream: usize, how: MemoryMove) {
        let packet = StreamBusPacket {
            stream,
            bytes: how.bytes,
            reduce: how.reduce,
        };
        if how.fast {
            self.agenda.add_delay(npu, 10, DelayedCall::Packet(packet));
        } else if self.config.system.bus.is_some() {
            self.move_packet_over_bus(npu, packet, how);
        } else {
            let ns = self.config.endpoint_delay_ns();
            self.agenda.add_delay(npu, ns, DelayedCall::Packet(packet));
        }
    }

    /// Continues after a packet has crossed the bus: reduces it if necessary, then marks it as ready.
    ///
    /// As in ASTRA-sim 2.x, a reduction takes two reads and a write, 3 · trunc(bytes / bandwidth).
    pub fn reduce_packet_or_mark_ready(&mut self, packet: StreamBusPacket) {
        if packet.reduce {
            let bw = self.config.system.local_mem_bw * 1e9;
            let ns = packet.bytes as f64 / bw * 1e9;
            let ns = if ns.is_finite() { 3 * (ns as u64) } else { 0 };
            let npu = self.streams[packet.stream].npu;
            let done = StreamBusPacket {
                reduce: false,
                ..packet
            };
            self.agenda.add_delay(npu, ns, DelayedCall::Packet(done));
        } else {
            self.pass_event_to_stream_algorithm(packet.stream, AlgorithmEvent::Ready);
        }
    }
}
