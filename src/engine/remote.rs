//! Loads and stores beyond the NPU: the loop's side of the remote memory.
//!
//! Where they share ports with messages, an access announces itself at its port from its beginning until its last
//! chunk has come. Until then no collective can be answered by closed form over that port, and one that was is
//! materialized when the access begins. Chunks come to the port when nothing else is left of an instant.

use super::event::{Class, Event};
use super::{Comm, Engine, Options, Refusal, key};
use crate::collective::Manner;
use crate::ids::{NodeIndex, Npu};
use crate::machine::Machine;
use crate::memory::{Access, MOST_CHUNKS, RemoteAccess, Turn};
use crate::network::{Model, Network, Place};
use crate::report::Observer;
use crate::units::Time;

/// Hint for accesses with too many chunks.
pub(super) const FEWER: &str =
    "give [remote_memory] a larger `chunk`, or take `--network contention-free`";

/// Returns an explanation if an access of `bytes` would use ports shared with messages in more chunks than can be
/// simulated.
pub(super) fn too_many_chunks(machine: &Machine, options: &Options, bytes: u64) -> Option<String> {
    let model = options.network.unwrap_or(machine.network());
    if options.comm != Comm::Model || model == Model::ContentionFree {
        return None;
    }
    let npus = machine.topology().npus();
    let chunks = machine.remote()?.chunks(bytes, npus)?;
    (chunks > MOST_CHUNKS).then(|| {
        format!(
            "it shares ports of the network with messages in {chunks} chunks, which is more than {MOST_CHUNKS}"
        )
    })
}

/// Returns the port that a load or store of `npu` uses.
fn port(npu: Npu, dimension: usize, store: bool) -> Place {
    match store {
        true => Place::sending(npu, dimension),
        false => Place::receiving(npu, dimension),
    }
}

impl<O: Observer + ?Sized, N: Network, M: Manner> Engine<'_, O, N, M> {
    /// Starts a load or store beyond the NPU.
    pub(super) fn reach_out(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let graph = self.instances[instance as usize].graph;
        let access = Access {
            npu: self.plan.instances[instance as usize].npu,
            bytes: graph.bytes(node),
            store: graph.stores(node),
            in_switch: graph.in_switch(node).is_some(),
            token: key(instance, node),
        };
        if let Some(dimension) = self.through {
            let place = port(access.npu, dimension, access.store);
            self.reaching.push(place);
        }
        let remote = self.remote.as_mut();
        let remote = remote.expect("the plan refused machines without");
        if let Some(end) = remote.begin(now, access) {
            self.until(end, instance, node);
        }
    }

    /// Announces the accesses that began, and materializes collectives that had reserved their ports.
    pub(super) fn reach_ports(&mut self, now: Time) {
        let mut reaching = std::mem::take(&mut self.reaching);
        for place in reaching.drain(..) {
            let Some(servers) = self.network.attachments() else {
                continue;
            };
            servers.expect(place);
            if let Some(id) = servers.claimed(place) {
                self.unfold(now, id);
            }
        }
        self.reaching = reaching;
    }

    /// Submits chunks of loads and stores to their ports.
    fn pass_ports(&mut self, now: Time) {
        let Some((remote, dimension)) = self.remote.as_mut().zip(self.through) else {
            return;
        };
        let network = &mut self.network;
        let serve = |turn: Turn| {
            let place = port(turn.npu, dimension, turn.store);
            let Some(servers) = network.attachments() else {
                return now;
            };
            match turn.last {
                // The last chunk ends the announcement at the port.
                true => servers.receive(now, place, turn.span),
                false => servers.serve(now, place, turn.span),
            }
        };
        let ends = &mut self.ends;
        remote.pass(now, serve, |end| ends.push(end));
        self.end_accesses();
    }

    /// Schedules the completions of loads and stores.
    fn end_accesses(&mut self) {
        let mut ends = std::mem::take(&mut self.ends);
        for end in ends.drain(..) {
            let (instance, node) = ((end.token >> 32) as u32, NodeIndex(end.token as u32));
            self.until(end.at, instance, node);
        }
        self.ends = ends;
    }

    /// Shares the links of the remote memory anew, if accesses began or ended at this instant and no event of it is
    /// left. Returns whether it did.
    #[inline]
    pub(super) fn settle_memory(&mut self, now: Time) -> bool {
        let unsettled = self.remote.as_ref().is_some_and(RemoteAccess::is_unsettled);
        if !unsettled || self.agenda.has(now) {
            return false;
        }
        self.pass_ports(now);
        let Some(remote) = &mut self.remote else {
            return false;
        };
        if remote.is_full() {
            let found = "loads and stores have more chunks on their way to ports of the network than fit in memory";
            self.refusal = Some(Refusal::new(found.to_owned(), FEWER));
        }
        // A completion scheduled before carries the number of its settlement, and is ignored once that is superseded.
        if let Some((at, settlement)) = remote.settle(now) {
            let event = Event::new(Class::Memory, 0, settlement);
            self.agenda.push(at, event);
        }
        true
    }

    /// Ends accesses that have streamed, unless a later settlement has replaced `settlement`.
    pub(super) fn memory_event(&mut self, now: Time, settlement: u32) {
        let ends = &mut self.ends;
        if let Some(remote) = &mut self.remote {
            remote.ended(now, settlement, |end| ends.push(end));
        }
        self.end_accesses();
    }
}
