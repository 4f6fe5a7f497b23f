//! Messages in the loop: sends, receives, and what the network says of them and of the steps of
//! collectives.

use super::agenda::{Class, Event};
use super::collective_run::Op;
use super::plan::NONE;
use super::{Comm, Engine, Pair};
use crate::graph::Kind;
use crate::ids::{NodeIndex, Rank};
use crate::network::{Message, Network, NetworkEvent, Notice};
use crate::report::Observer;
use crate::units::{Amount, Time};

impl<O: Observer> Engine<'_, O> {
    /// Hands a message between two ranks to the network.
    pub(super) fn transfer(
        &mut self,
        now: Time,
        from: Rank,
        to: Rank,
        bytes: u64,
        pair: u32,
        sender: Option<(u32, NodeIndex)>,
    ) {
        let (a, b) = (self.plan.npu_of[from.index()], self.plan.npu_of[to.index()]);
        let path = self.topology.path(a, b);
        let ports = self.network.open(2);
        let (sender, node) = sender.map_or((NONE, 0), |(i, n)| (i, n.0));
        let op = self.ops.insert(Op::Send {
            pair,
            sender,
            node,
            ports,
        });
        self.network.submit(
            now,
            &Message {
                op,
                from: ports.port(0),
                to: ports.port(1),
                path: path.expect("ranks sit on different NPUs and send to others"),
                amount: Amount::whole(bytes),
                tell_injected: sender != NONE,
                sole_sender: true,
                order: 0,
            },
            &mut self.agenda,
        );
    }

    pub(super) fn post_receive(&mut self, now: Time, instance: u32, node: NodeIndex) {
        self.observer.issued(now, instance, node, Kind::Receive);
        let graph = self.instances[instance as usize].graph;
        let index = graph.message_index(node);
        let pair = self.plan.instances[instance as usize].pairs[index];
        if self.comm != Comm::Model {
            self.start_receive(now, instance, node, pair);
            return;
        }
        if pair != NONE {
            let state = &mut self.pairs[pair as usize];
            state.posted = node.0 + 1;
            state.waiter = instance;
            if state.delivered {
                self.agenda
                    .push(now, Event::new(Class::Node, instance, node.0));
            }
            return;
        }
        // The sender has no trace: it sends when its receiver is ready, as a mirror would.
        let of = &self.workload.instances()[instance as usize];
        let peer = of.peers[graph.messages()[index].peer as usize];
        let pair = self.pairs.len() as u32;
        self.pairs.push(Pair {
            delivered: false,
            posted: node.0 + 1,
            waiter: instance,
        });
        self.transfer(now, peer, of.rank, graph.bytes(node), pair, None);
    }

    pub(super) fn network_event(&mut self, now: Time, event: NetworkEvent) {
        let (agenda, notices) = (&mut self.agenda, &mut self.notices);
        self.network.handle(now, event, agenda, notices);
        while let Some(notice) = self.notices.pop() {
            match notice {
                Notice::Injected(op) => match self.ops.get(op) {
                    Op::Send { sender, node, .. } => {
                        self.agenda.push(now, Event::new(Class::Node, sender, node));
                    }
                    Op::Step { run, from, .. } => {
                        if let Some(progress) = &mut self.runs[run as usize].progress {
                            progress.left(from);
                        }
                        self.advance(now, run, from);
                    }
                },
                Notice::Delivered(op) => match self.ops.remove(op) {
                    Op::Send { pair, ports, .. } => {
                        self.network.close(ports);
                        if pair != NONE {
                            let state = &mut self.pairs[pair as usize];
                            state.delivered = true;
                            if let Some(node) = state.posted.checked_sub(1) {
                                let event = Event::new(Class::Node, state.waiter, node);
                                self.agenda.push(now, event);
                            }
                        }
                    }
                    Op::Step { run, to, stage, .. } => {
                        let of = &mut self.runs[run as usize];
                        let stages = of.stages.len();
                        let progress = of.progress.as_mut().expect("its messages are in flight");
                        if progress.receive(to, stage, stages) {
                            self.advance(now, run, to);
                        }
                    }
                },
            }
        }
    }
}
