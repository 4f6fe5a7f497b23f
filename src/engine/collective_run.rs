//! A collective in flight, message by message: every member's program and how far it is.

use super::as_recorded::Waiting;
use super::plan::{GroupPlan, NONE};
use crate::collective::{Seat, Stage, stages};
use crate::ids::{NodeIndex, Npu, Rank};
use crate::network::{Message, Network, Ports, Schedule};
use crate::topology::Topology;
use crate::units::{Span, Time};

/// Bits of a message's order for its sender; there are at most twice 22 stages.
const POSITION_BITS: u32 = Topology::MAX_NPUS.trailing_zeros();

/// One collective of one group, from its first arrival to its last completion.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Index among the plan's groups.
    pub group: u32,
    /// The how-manieth collective of the group.
    pub sequence: u32,
    /// The node of each member, [`NONE`] before it arrives and for absent members.
    pub nodes: Vec<u32>,
    /// When each member arrived.
    pub starts: Vec<Time>,
    /// Present members that have arrived.
    pub arrived: u32,
    /// When the first member arrived.
    pub first: Time,
    /// When the last member arrived.
    pub last: Time,
    /// Members that arrived at this instant.
    pub fresh: Vec<u32>,
    pub stages: Vec<Stage>,
    /// Where it lasts as recorded: when each member's part began, [`Time::END`] before.
    pub begins: Vec<Time>,
    /// When the last of them ends.
    pub over: Time,
    /// The longest recorded duration of a member.
    pub transfer: Span,
    /// Set when the run goes message by message.
    pub progress: Option<Progress>,
}

/// How far each position is.
#[derive(Debug)]
pub(super) struct Progress {
    ports: Ports,
    /// The stage that each position is in; the number of stages when it is done, [`NONE`] before it
    /// arrives.
    stage: Vec<u32>,
    /// The next step of each position in its stage.
    step: Vec<u32>,
    /// Whether a message whose leaving matters, the last of the stage or any paced one, has yet to
    /// leave.
    leaving: Vec<bool>,
    /// Messages received, by position and stage.
    received: Vec<u32>,
    /// Positions that are done.
    pub done: u32,
}

/// What the op of a message in flight needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// A step of a collective.
    Step {
        run: u32,
        from: u32,
        to: u32,
        stage: u32,
    },
    /// A message between two ranks. `sender` is [`NONE`] when it has no trace.
    Send {
        pair: u32,
        sender: u32,
        node: u32,
        ports: Ports,
    },
}

/// Ops of messages in flight, in slots that are used again.
#[derive(Debug, Default)]
pub(super) struct Ops {
    slots: Vec<Op>,
    free: Vec<u32>,
    inserted: u64,
}

impl Ops {
    #[inline]
    pub fn insert(&mut self, op: Op) -> u32 {
        self.inserted += 1;
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = op;
                slot
            }
            None => {
                self.slots.push(op);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// How many ops there have been.
    pub fn inserted(&self) -> u64 {
        self.inserted
    }

    #[inline]
    pub fn get(&self, op: u32) -> Op {
        self.slots[op as usize]
    }

    #[inline]
    pub fn remove(&mut self, op: u32) -> Op {
        self.free.push(op);
        self.slots[op as usize]
    }
}

impl Run {
    /// Makes a used run ready for another collective.
    pub fn reset(&mut self, group: u32, sequence: u32, plan: &GroupPlan) {
        let members = plan.members.len();
        self.group = group;
        self.sequence = sequence;
        self.nodes.clear();
        self.nodes.resize(members, NONE);
        self.starts.clear();
        self.starts.resize(members, Time::ZERO);
        self.arrived = 0;
        self.fresh.clear();
        self.progress = None;
        self.begins.clear();
        (self.over, self.transfer) = (Time::ZERO, Span::ZERO);
        let call = &plan.calls[sequence as usize];
        stages(call.kind, &plan.extent, call.buffer, &mut self.stages);
    }

    /// Member `member` arrives with its node.
    pub fn arrive(&mut self, now: Time, member: u32, node: NodeIndex) {
        if self.arrived == 0 {
            self.first = now;
        }
        self.last = now;
        self.arrived += 1;
        self.nodes[member as usize] = node.0;
        self.starts[member as usize] = now;
        self.fresh.push(member);
    }

    /// The rank with a trace that started last; of several the lowest.
    pub fn last_to_start(&self, plan: &GroupPlan) -> Rank {
        let late = self.starts.iter().zip(&self.nodes).zip(&plan.members);
        let late = late.filter(|((start, node), _)| **start == self.last && **node != NONE);
        let ranks = late.map(|(_, rank)| *rank).min();
        ranks.expect("somebody started last")
    }

    /// How long its members waited for the last to start, and for whom.
    pub fn waiting(&self, plan: &GroupPlan) -> Waiting {
        let present = self.nodes.iter().zip(&self.starts);
        let present = present.filter(|(n, _)| **n != NONE);
        let waited = present.map(|(_, start)| self.last.since(*start)).sum();
        let late = (self.first < self.last).then(|| (self.last_to_start(plan), waited));
        (waited, late)
    }

    /// Begins to go message by message. Every member has a port in each of the group's `phases`.
    pub fn begin(&mut self, phases: u32, network: &mut impl Network) {
        let members = self.nodes.len();
        self.progress = Some(Progress {
            ports: network.open(members as u32 * phases),
            stage: vec![NONE; members],
            step: vec![0; members],
            leaving: vec![false; members],
            received: vec![0; members * self.stages.len()],
            done: 0,
        });
    }

    /// The ports, once nobody needs them any more.
    pub fn take_ports(&mut self) -> Option<Ports> {
        self.progress.take().map(|progress| progress.ports)
    }
}

impl Progress {
    /// The member at `position` starts its program.
    pub fn start(&mut self, position: u32) {
        debug_assert_eq!(self.stage[position as usize], NONE, "a member starts once");
        self.stage[position as usize] = 0;
    }

    /// A message of `stage` has reached `position`. Returns whether the member waits in that stage.
    pub fn receive(&mut self, position: u32, stage: u32, stages: usize) -> bool {
        self.received[position as usize * stages + stage as usize] += 1;
        self.stage[position as usize] == stage
    }

    /// The message that was waited for has left `position`.
    pub fn left(&mut self, position: u32) {
        self.leaving[position as usize] = false;
    }
}

/// Where a run's messages go.
pub(super) struct Wires<'a, N, A> {
    pub network: &'a mut N,
    pub agenda: &'a mut A,
    pub ops: &'a mut Ops,
    pub topology: &'a Topology,
}

impl Run {
    /// Has the member at `position` do all that it can do `now`. Returns whether that ended its part.
    pub fn advance<N: Network, A: Schedule>(
        &mut self,
        id: u32,
        now: Time,
        position: u32,
        plan: &GroupPlan,
        wires: &mut Wires<'_, N, A>,
    ) -> bool {
        let Some(progress) = &mut self.progress else {
            return false;
        };
        let p = position as usize;
        let root = plan.calls[self.sequence as usize].root;
        while let Some(stage) = self.stages.get(progress.stage[p] as usize) {
            let number = progress.stage[p];
            if let Some(seat) = Seat::new(&plan.extent, stage, position, root) {
                let phase = &plan.extent.phases[stage.phase];
                let (algorithm, common) = plan.phases[stage.phase];
                let first_port = stage.phase as u32 * plan.extent.size();
                let received = progress.received[p * self.stages.len() + number as usize];
                let mut next = algorithm.step(stage, seat, progress.step[p]);
                // Where a member may send to all others at once, the next message waits until the
                // port is free, so that a group of n holds n messages and not n².
                let paced = !algorithm.has_sole_senders();
                while let Some(step) = next.filter(|step| step.after <= received) {
                    if paced && progress.leaving[p] {
                        break;
                    }
                    progress.step[p] += 1;
                    next = algorithm.step(stage, seat, progress.step[p]);
                    let to = phase.position(position, step.to);
                    let (a, b): (Npu, Npu) = (plan.extent.npus[p], plan.extent.npus[to as usize]);
                    let path = common.or_else(|| wires.topology.path(a, b));
                    let op = wires.ops.insert(Op::Step {
                        run: id,
                        from: position,
                        to,
                        stage: number,
                    });
                    progress.leaving[p] = paced || next.is_none();
                    wires.network.submit(
                        now,
                        &Message {
                            op,
                            from: progress.ports.port(first_port + position),
                            to: progress.ports.port(first_port + to),
                            path: path.expect("members of a line sit on different NPUs"),
                            amount: step.amount,
                            tell_injected: progress.leaving[p],
                            sole_sender: algorithm.has_sole_senders(),
                            order: number << POSITION_BITS | position,
                        },
                        wires.agenda,
                    );
                }
                let waits = next.is_some()
                    || progress.leaving[p]
                    || received < algorithm.receives(stage, seat);
                if waits {
                    return false;
                }
            }
            progress.stage[p] += 1;
            progress.step[p] = 0;
        }
        progress.done += 1;
        true
    }
}
