//! Simulates one stage of a collective with several chunks, message by message, at the ports of the members. Used for
//! algorithms without a closed form.
//!
//! The simulation is a [flow shop](super::flow_shop) whose servers are the ports of a line's members instead of phases.
//! All members start together and nothing else is in flight. A port sends one message at a time and receives one at a
//! time, first come, first served, as on the contention-free network. A member works on up to `places` chunks at the
//! same time and sends one message of each chunk at a time. When a member's part in a chunk ends, the member starts the
//! next chunk.

use super::line_cost::LineMessageCosts;
use super::{CollectiveAlgorithm, CollectiveStage, MemberLinePosition};
use chakram_base::units::{Span, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A message in the program of a member.
#[derive(Clone, Copy, Debug)]
struct MemberProgramMessage {
    to: u32,
    /// Number of this chunk's messages that the member must have received before it sends this message.
    after: u32,
    /// The sender's output port and the receiver's input port.
    ports: [u32; 2],
    first_byte: Span,
    serialization: Span,
}

/// Messages that a member sends for one chunk.
#[derive(Clone, Debug, Default)]
struct MemberMessageProgram {
    sends: Vec<MemberProgramMessage>,
    receives: u32,
}

/// The message programs of a line's members, and the simulation of these programs.
#[derive(Clone, Debug)]
pub(super) struct StageMessagePrograms {
    /// Programs for each kind of chunk and each member. Members have two kinds of programs if chunks alternate between
    /// two trees.
    programs: Vec<MemberMessageProgram>,
    members: u32,
    ports: usize,
}

/// State of a chunk at a member.
#[derive(Clone, Copy, Debug, Default)]
struct MemberChunkState {
    begun: bool,
    leaving: bool,
    ended: bool,
    taken: u32,
    received: u32,
}

/// Kinds of events, in the order in which the network handles events of the same instant: a message has left, the first
/// byte of a message is at the receiver's port, a message has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StageMessageEventKind {
    Left,
    FirstByte,
    Arrived,
}

/// An entry of the event queue: (event, sender, chunk, index of the message).
type StageChunkMessageEvent = (StageMessageEventKind, u32, u32, u32);

impl StageMessagePrograms {
    /// Builds the programs of `algorithm` for one chunk's messages in `stage`, with the line's first member as the
    /// root.
    pub fn new(
        line: &LineMessageCosts<'_>,
        algorithm: CollectiveAlgorithm,
        stage: &CollectiveStage,
    ) -> Self {
        let size = line.member_count();
        let kinds: &[bool] = match algorithm {
            CollectiveAlgorithm::DoubleBinaryTree => &[false, true],
            _ => &[false],
        };
        let mut programs = Vec::with_capacity(kinds.len() * size as usize);
        for &mirrored in kinds {
            let stage = CollectiveStage { mirrored, ..*stage };
            for index in 0..size {
                let at = MemberLinePosition {
                    size,
                    index,
                    root: 0,
                    position: index,
                };
                let steps = (0..).map_while(|i| algorithm.nth_send(&stage, at, i));
                let sends = steps.map(|step| {
                    let (path, ports) = line.path_and_ports(index, step.to);
                    MemberProgramMessage {
                        to: step.to,
                        after: step.after,
                        ports,
                        first_byte: path.time_of_first_byte(step.amount),
                        serialization: path.bandwidth.serialization_time(step.amount),
                    }
                });
                programs.push(MemberMessageProgram {
                    sends: sends.collect(),
                    receives: algorithm.receive_count(&stage, at),
                });
            }
        }
        let all = programs.iter().flat_map(|program| &program.sends);
        let ports = all.flat_map(|send| send.ports).max();
        Self {
            programs,
            members: size,
            ports: ports.map_or(0, |port| port as usize + 1),
        }
    }

    /// Returns the number of messages that all members send for one chunk.
    pub fn messages_per_chunk(&self) -> u64 {
        let first = &self.programs[..self.members as usize];
        first.iter().map(|program| program.sends.len() as u64).sum()
    }

    fn program_of_chunk(&self, chunk: u32, member: u32) -> &MemberMessageProgram {
        let kinds = self.programs.len() as u32 / self.members;
        &self.programs[(chunk % kinds * self.members + member) as usize]
    }

    /// Returns a lower bound on the time of `chunks` chunks: how long the busiest port works.
    pub fn busiest_port_time(&self, chunks: u32) -> Span {
        let kinds = self.programs.len() as u32 / self.members;
        let mut work = vec![[Span::ZERO; 2]; self.ports];
        for kind in 0..kinds {
            let count = (chunks + kinds - 1 - kind) / kinds;
            for member in 0..self.members {
                for send in &self.program_of_chunk(kind, member).sends {
                    for (side, port) in send.ports.into_iter().enumerate() {
                        work[port as usize][side] += send.serialization.times(count.into());
                    }
                }
            }
        }
        work.into_iter().flatten().max().unwrap_or(Span::ZERO)
    }

    /// Returns the time until all members have ended `chunks` chunks, if each member works on at most `places` chunks
    /// at once.
    pub fn simulate_end(&self, chunks: u32, places: u32) -> Span {
        let members = self.members as usize;
        let mut run = StageFlowSimulation {
            flow: self,
            chunks,
            places,
            cells: vec![MemberChunkState::default(); members * chunks as usize],
            free: vec![[Time::ZERO; 2]; self.ports],
            next: vec![0; members],
            running: vec![0; members],
            events: BinaryHeap::new(),
            sends: Vec::new(),
            changed: Vec::new(),
        };
        run.run().since(Time::ZERO)
    }
}

struct StageFlowSimulation<'a> {
    flow: &'a StageMessagePrograms,
    chunks: u32,
    places: u32,
    /// State of each chunk at each member.
    cells: Vec<MemberChunkState>,
    /// Times at which each member's output and input ports become free.
    free: Vec<[Time; 2]>,
    /// For each member, the next chunk to begin.
    next: Vec<u32>,
    running: Vec<u32>,
    events: BinaryHeap<Reverse<(Time, StageChunkMessageEvent)>>,
    /// Messages that leave at this instant, as (member, chunk, index).
    sends: Vec<(u32, u32, u32)>,
    /// Pairs (member, chunk) that may be able to continue.
    changed: Vec<(u32, u32)>,
}

impl StageFlowSimulation<'_> {
    fn run(&mut self) -> Time {
        for member in 0..self.flow.members {
            self.admit_chunks(member);
        }
        let mut now = Time::ZERO;
        loop {
            while let Some((member, chunk)) = self.changed.pop() {
                self.take_next_credited_chunk_step(member, chunk);
            }
            if self.events.peek().is_none_or(|next| next.0.0 > now) {
                self.submit_messages(now);
            }
            let Some(Reverse((at, (event, member, chunk, number)))) = self.events.pop() else {
                return now;
            };
            now = at;
            let send = self.flow.program_of_chunk(chunk, member).sends[number as usize];
            match event {
                StageMessageEventKind::Left => {
                    self.member_chunk_mut(member, chunk).leaving = false;
                    self.changed.push((member, chunk));
                }
                StageMessageEventKind::FirstByte => {
                    let free = &mut self.free[send.ports[1] as usize][1];
                    *free = now.max(*free) + send.serialization;
                    let arrived = (StageMessageEventKind::Arrived, member, chunk, number);
                    self.events.push(Reverse((*free, arrived)));
                }
                StageMessageEventKind::Arrived => {
                    self.member_chunk_mut(send.to, chunk).received += 1;
                    self.changed.push((send.to, chunk));
                }
            }
        }
    }

    fn member_chunk_mut(&mut self, member: u32, chunk: u32) -> &mut MemberChunkState {
        &mut self.cells[(member * self.chunks + chunk) as usize]
    }

    /// Begins chunks at a member until its places are full.
    fn admit_chunks(&mut self, member: u32) {
        let of = member as usize;
        while self.running[of] < self.places && self.next[of] < self.chunks {
            let chunk = self.next[of];
            self.next[of] += 1;
            self.running[of] += 1;
            self.member_chunk_mut(member, chunk).begun = true;
            self.changed.push((member, chunk));
        }
    }

    /// Takes a chunk's next step at a member if the chunk has enough credits, or ends the chunk after the last step.
    fn take_next_credited_chunk_step(&mut self, member: u32, chunk: u32) {
        let program = self.flow.program_of_chunk(chunk, member);
        let cell = self.member_chunk_mut(member, chunk);
        if !cell.begun || cell.ended || cell.leaving {
            return;
        }
        let number = cell.taken;
        match program.sends.get(number as usize) {
            Some(send) if send.after <= cell.received => {
                cell.taken += 1;
                cell.leaving = true;
                self.sends.push((member, chunk, number));
            }
            None if cell.received >= program.receives => {
                cell.ended = true;
                self.running[member as usize] -= 1;
                self.admit_chunks(member);
            }
            _ => {}
        }
    }

    /// Submits the messages of an instant, sorted by member and chunk.
    fn submit_messages(&mut self, now: Time) {
        self.sends.sort_unstable();
        for (member, chunk, number) in self.sends.drain(..) {
            let send = &self.flow.program_of_chunk(chunk, member).sends[number as usize];
            let free = &mut self.free[send.ports[0] as usize][0];
            let begin = now.max(*free);
            *free = begin + send.serialization;
            let left = (StageMessageEventKind::Left, member, chunk, number);
            let first = (StageMessageEventKind::FirstByte, member, chunk, number);
            self.events.push(Reverse((*free, left)));
            self.events.push(Reverse((begin + send.first_byte, first)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::CollectiveStagePrimitive;
    use super::*;
    use crate::group::GroupPhasesAndMemberPositions;
    use crate::topology::{DimensionShape, Topology, TopologyDimension};
    use chakram_base::ids::Npu;
    use chakram_base::units::{Bandwidth, UnroundedBufferShare};

    /// Returns the time, in nanoseconds, at which the stage ends on a switch with ports of 1 GB/s and links of 50 ns.
    /// Each message crosses two links, so its latency is 100 ns. Sending 1,000 B takes 1,000 ns.
    fn simulate_stage_end(
        size: u32,
        algorithm: CollectiveAlgorithm,
        primitive: CollectiveStagePrimitive,
        (chunks, places): (u32, u32),
    ) -> u64 {
        let topology = Topology::new(vec![TopologyDimension {
            name: String::new(),
            shape: DimensionShape::Switch,
            size,
            bandwidth: Bandwidth::new(1e9).unwrap(),
            latency: Span::from_ns(50),
        }])
        .unwrap();
        let npus: Vec<_> = (0..size).map(Npu).collect();
        let extent = GroupPhasesAndMemberPositions::new(&npus, &topology);
        let line = LineMessageCosts::new(&extent, &extent.phases[0], &topology);
        let stage = CollectiveStage {
            phase: 0,
            primitive,
            buffer: UnroundedBufferShare::from_bytes(1000),
            mirrored: false,
            bidirectional: false,
        };
        let flow = StageMessagePrograms::new(&line, algorithm, &stage);
        assert!(flow.busiest_port_time(chunks) <= flow.simulate_end(chunks, places));
        flow.simulate_end(chunks, places).0 / 1000
    }

    #[test]
    fn one_chunk_of_a_tree_stage_takes_the_time_of_the_tree_formula() {
        use CollectiveStagePrimitive::{AllReduce, Broadcast, Reduce};
        let tree = CollectiveAlgorithm::MemberMessageTree;
        // Three levels take 3 x 100 + 5 x 1,000 ns in one direction.
        assert_eq!(simulate_stage_end(8, tree, Reduce, (1, 1)), 5_300);
        assert_eq!(simulate_stage_end(8, tree, Broadcast, (1, 1)), 5_300);
        assert_eq!(simulate_stage_end(8, tree, AllReduce, (1, 1)), 10_600);
    }

    #[test]
    fn chunks_follow_at_the_pace_of_the_busiest_port() {
        use CollectiveStagePrimitive::{AllReduce, Broadcast};
        // Each chunk goes from member 1 to member 0 and back, so each member sends one message per chunk. The fifth
        // chunk has therefore arrived at the top after 5,100 ns, and returns to member 1 after another 1,100 ns.
        assert_eq!(
            simulate_stage_end(2, CollectiveAlgorithm::MemberMessageTree, AllReduce, (5, 5)),
            6_200
        );
        // With one chunk at a time, each chunk starts after the previous one has ended.
        assert_eq!(
            simulate_stage_end(2, CollectiveAlgorithm::MemberMessageTree, AllReduce, (5, 1)),
            5 * 2_200
        );
        // Among four members, the root's child has two children and sends two messages per chunk:
        // 1,100 + 2 x 4 x 1,000 + 100 ns.
        assert_eq!(
            simulate_stage_end(4, CollectiveAlgorithm::MemberMessageTree, Broadcast, (4, 4)),
            9_200
        );
    }
}
