//! Rendezvous: messages that their receiver has to request.
//!
//! A receiver that posts a receive sends the sender a small request; the data leaves when the request has arrived and
//! the sender is ready. So data arrives before its receive is posted only where two ranks exchange several sizes
//! under one tag, because requests do not carry a size.

use super::collective_run::InFlightOp;
use super::discipline::CollectiveModel;
use super::event::{Event, EventClass};
use super::plan::NONE;
use super::{Engine, MessageChannel};
use crate::ids::{NodeIndex, Npu};
use crate::network::{NetworkBackend, NetworkMessage};
use crate::report::Observer;
use crate::units::{BufferShare, Time};

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Sends a rendezvous request to every source from which a member now receives.
    pub(super) fn request_messages(&mut self, now: Time, id: u32, cell: u32) {
        let shared = self.shared_stage(id, cell);
        for k in 0.. {
            let run = &self.collectives.runs[id as usize];
            let group = self.collectives.groups[run.group as usize].plan;
            let schedule = self
                .collectives
                .schedules
                .get(run.schedule_at(run.position(cell)));
            let place = run.place(cell, schedule, group, &*self.backend);
            let Some((stage, queue_slot, Some(line))) = place else {
                return;
            };
            let progress = run.progress.as_ref().expect("it has begun");
            let state = progress.cells[cell as usize];
            let source = self
                .backend
                .source(&stage, queue_slot, line, state.taken, k);
            let Some(source) = source else {
                return;
            };
            let position = run.position(cell);
            let phase = &group.extent.phases[self.backend.phase(&stage)];
            let from = phase.position(position, source.from);
            let op = InFlightOp::ChunkRequest {
                run: id,
                from: cell,
                to: cell - position + from,
                stage: shared,
                step: source.step,
            };
            let npus = &group.extent.npus;
            self.send_request(now, op, (npus[position as usize], npus[from as usize]));
        }
    }

    /// Sends a rendezvous request for the message of a posted receive.
    pub(super) fn request_rank_message(
        &mut self,
        now: Time,
        pair: u32,
        instance: u32,
        node: NodeIndex,
    ) {
        let graph = self.flow.instances[instance as usize].graph;
        let of = self.flow.instances[instance as usize].of;
        let peer = of.peers[graph.messages()[graph.message_index(node)].peer as usize];
        let npus = &self.frame_of(instance).plan.npu_of;
        let ends = (npus[of.rank.index()], npus[peer.index()]);
        let (receiver, node) = (instance, node.0);
        self.send_request(
            now,
            InFlightOp::RankRequest {
                pair,
                receiver,
                node,
            },
            ends,
        );
    }

    fn send_request(&mut self, now: Time, op: InFlightOp, ends: (Npu, Npu)) {
        let op = self.messages.ops.insert(op);
        let amount = BufferShare::whole(self.messages.rts_bytes.unwrap_or(0));
        let message = NetworkMessage::plain(op, ends, amount);
        self.put_on_network(now, &message);
    }

    /// Returns the channel that counts the requests of a channel; in insertion order there is one launch.
    fn request_channel(&self, pair: u32) -> usize {
        self.launches.frames[0].plan.request_channels[pair as usize] as usize
    }

    /// Handles the arrival of a member's request: releases the message if it is ready, and remembers the request
    /// otherwise.
    pub(super) fn on_request(&mut self, now: Time, id: u32, to: u32, stage: u16, step: u32) {
        if let Some(op) = self.messages.expected.remove(&(id, to, stage, step)) {
            self.release_send(now, op);
            return;
        }
        let progress = self.collectives.runs[id as usize]
            .progress
            .as_mut()
            .expect("a member waits for it");
        progress.defer(to, stage, step + 1, true);
    }

    /// Handles the arrival of a rank's request: posts its receive, and releases the oldest withheld message if there
    /// is one. Requests do not carry a size, so the oldest of all sizes goes.
    pub(super) fn on_rank_request(&mut self, now: Time, pair: u32, receiver: u32, node: u32) {
        self.match_or_post(now, pair, receiver, node);
        let channel = self.request_channel(pair);
        let channel = &mut self.messages.channels[channel];
        match channel.expected.pop_front() {
            Some(op) => self.release_send(now, op),
            None => channel.asked += 1,
        }
    }

    /// Withholds an issued send until its request has arrived.
    pub(super) fn withhold_send(&mut self, now: Time, pair: u32, message: NetworkMessage) {
        let op = message.op;
        self.messages.withheld_sends.insert(op, message);
        let channel = self.request_channel(pair);
        let MessageChannel {
            asked, expected, ..
        } = &mut self.messages.channels[channel];
        match asked {
            0 => expected.push_back(op),
            _ => {
                *asked -= 1;
                self.agenda
                    .push(now, Event::new(EventClass::Requested, 0, op));
            }
        }
    }

    /// Submits a message that was withheld.
    pub(super) fn release_send(&mut self, now: Time, op: u32) {
        debug_assert_ne!(op, NONE, "ops are slots");
        if let Some(message) = self.messages.withheld_sends.remove(&op) {
            self.put_on_network(now, &message);
        }
    }
}
