//! Loads and stores beyond the NPU: the loop's side of the remote memory.
//!
//! If they share ports with messages, an access announces itself at its port from its beginning until its last
//! chunk has come. Until then no collective can be answered by closed form over that port, and one that was is
//! materialized when the access begins. Chunks come to the port when nothing else is left of an instant.

use super::discipline::CollectiveModel;
use super::event::{Event, EventClass};
use super::frames::key;
use super::plan::NONE;
use super::{CommTiming, CompiledReplay, Engine, ReplayOptions, ReplayRefusal};
use crate::ids::{NodeIndex, Npu};
use crate::machine::Machine;
use crate::memory::{
    EdgePorts, MOST_CHUNKS, NetworkAttachment, PortRequest, RemoteMemory, RemoteMemoryAccess,
    RemoteMemoryModel,
};
use crate::network::{EdgeAccess, NetworkBackend, NetworkKind, ServerId};
use crate::report::Observer;
use crate::units::{BufferShare, Time};

/// Hint for accesses with too many chunks.
pub(super) const FEWER: &str =
    "give [remote_memory] a larger `chunk`, or take `--network contention-free`";

/// Returns an explanation if an access of `bytes` would use ports shared with messages in more chunks than can be
/// simulated.
pub(super) fn too_many_chunks(
    machine: &Machine,
    remote: &RemoteMemory,
    options: &ReplayOptions,
    bytes: u64,
) -> Option<String> {
    let model = options.network.unwrap_or(machine.network());
    if options.comm != CommTiming::Model || model == NetworkKind::ContentionFree {
        return None;
    }
    let npus = machine.topology().npus();
    let chunks = remote.chunks(bytes, npus)?;
    (chunks > MOST_CHUNKS).then(|| {
        format!(
            "it shares ports of the network with messages in {chunks} chunks, which is more than {MOST_CHUNKS}"
        )
    })
}

/// Returns the port that a load or store of `npu` uses.
fn port(npu: Npu, dimension: usize, store: bool) -> ServerId {
    if store {
        ServerId::sending(npu, dimension)
    } else {
        ServerId::receiving(npu, dimension)
    }
}

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Starts a load or store beyond the NPU.
    pub(super) fn start_remote_access(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let graph = self.flow.instances[instance as usize].graph;
        let access = RemoteMemoryAccess {
            npu: self.flow.instances[instance as usize].npu,
            bytes: graph.bytes(node),
            store: graph.stores(node),
            in_switch: graph.in_switch(node).is_some(),
            token: key(instance, node),
        };
        let memory = match graph.remote_memory(node) {
            None => 0,
            Some(slot) => {
                let shared = self.flow.instances[instance as usize].shared;
                shared.memories[slot as usize] + 1
            }
        };
        if let Some((memory, ports)) = self.memory.edge.filter(|_| memory == 0) {
            let port = self.edge_port(access.npu, ports);
            let at_port = EdgeAccess {
                npu: access.npu,
                port,
                at: ports.core(port),
                store: access.store,
                amount: BufferShare::whole(access.bytes),
                bandwidth: memory.bandwidth,
                latency: memory.latency,
            };
            self.materialize_on_way(now, at_port.ends());
            let end = self.network.access(now, &at_port);
            self.end_access(end, instance, node);
            return;
        }
        let remote = self.memory.remotes[memory as usize].as_mut();
        let remote = remote.expect("the plan refused machines without");
        if let Some(dimension) = remote.attached_dimension {
            let place = port(access.npu, dimension, access.store);
            self.memory.approached_ports.push(place);
        }
        if let Some(end) = remote.model.begin(now, access) {
            self.end_access(end, instance, node);
        }
    }

    /// Schedules the completion of a load or store.
    fn end_access(&mut self, end: Time, instance: u32, node: NodeIndex) {
        if self.tile_groups.exist() {
            self.announce(end, instance, node);
        } else {
            self.complete_at(end, instance, node);
        }
    }

    /// Returns the port that `npu` uses, which is looked for once.
    fn edge_port(&mut self, npu: Npu, ports: &EdgePorts) -> u32 {
        let known = &mut self.memory.edge_port_of;
        if npu.index() >= known.len() {
            known.resize(npu.index() + 1, NONE);
        }
        let port = &mut known[npu.index()];
        if *port == NONE {
            let nearest = ports.nearest(npu, self.settings.topology);
            *port = nearest.expect("the plan refused cores that reach none");
        }
        *port
    }

    /// Announces the accesses that began, and materializes collectives that had reserved their ports.
    pub(super) fn announce_accesses(&mut self, now: Time) {
        let mut reaching = std::mem::take(&mut self.memory.approached_ports);
        for place in reaching.drain(..) {
            let Some(servers) = self.network.attachments() else {
                continue;
            };
            servers.expect(place);
            if let Some(id) = servers.claimed(place) {
                self.materialize(now, id);
            }
        }
        self.memory.approached_ports = reaching;
    }

    /// Submits chunks of loads and stores of a memory to their ports.
    fn submit_chunks(&mut self, now: Time, memory: usize) {
        let Some(remote) = &mut self.memory.remotes[memory] else {
            return;
        };
        let Some(dimension) = remote.attached_dimension else {
            return;
        };
        let network = &mut self.network;
        let serve = |request: PortRequest| {
            let place = port(request.npu, dimension, request.store);
            let Some(servers) = network.attachments() else {
                return now;
            };
            if request.last {
                // The last chunk ends the announcement at the port.
                servers.receive(now, place, request.span)
            } else {
                servers.serve(now, place, request.span)
            }
        };
        let ends = &mut self.memory.ends;
        remote.model.pass(now, serve, |end| ends.push(end));
        self.end_accesses();
    }

    /// Schedules the completions of loads and stores.
    fn end_accesses(&mut self) {
        let mut ends = std::mem::take(&mut self.memory.ends);
        for end in ends.drain(..) {
            let (instance, node) = ((end.token >> 32) as u32, NodeIndex(end.token as u32));
            self.end_access(end.at, instance, node);
        }
        self.memory.ends = ends;
    }

    /// Shares the links of remote memories anew, if accesses began or ended at this instant and no event of it is
    /// left. Returns whether it did.
    #[inline]
    pub(super) fn settle_memory(&mut self, now: Time) -> bool {
        let mut settled = false;
        for memory in 0..self.memory.remotes.len() {
            let remote = self.memory.remotes[memory].as_ref();
            let unsettled = remote.is_some_and(|remote| remote.model.is_unsettled());
            // What one of them ended at this instant may concern the next, which is then settled after it.
            if unsettled && !self.agenda.has(now) {
                self.settle_one_memory(now, memory);
                settled = true;
            }
        }
        settled
    }

    fn settle_one_memory(&mut self, now: Time, memory: usize) {
        self.submit_chunks(now, memory);
        let Some(remote) = &mut self.memory.remotes[memory] else {
            return;
        };
        if remote.model.is_full() {
            let found = "loads and stores have more chunks on their way to ports of the network than fit in memory";
            self.instant.refusal = Some(ReplayRefusal::new(found.to_owned(), FEWER));
        }
        // A completion scheduled before carries the number of its settlement, and is ignored once that is superseded.
        if let Some((at, settlement)) = remote.model.settle(now) {
            let event = Event::new(EventClass::Memory, memory as u32, settlement);
            self.agenda.push(at, event);
        }
    }

    /// Ends accesses of a memory that have streamed, unless a later settlement has replaced `settlement`.
    pub(super) fn memory_event(&mut self, now: Time, memory: u32, settlement: u32) {
        let ends = &mut self.memory.ends;
        if let Some(remote) = &mut self.memory.remotes[memory as usize] {
            (remote.model).handle_settlement(now, settlement, |end| ends.push(end));
        }
        self.end_accesses();
    }
}

/// State of a memory beyond NPUs in a run.
#[derive(Debug)]
pub(super) struct RemoteState {
    model: RemoteMemoryModel,
    /// Dimension of the network whose ports loads and stores share with messages, if any.
    attached_dimension: Option<usize>,
}

impl RemoteState {
    /// Creates the idle memories of the machine of `prepared`: the one without a name, if there is one, and the others.
    pub(super) fn all<N: NetworkBackend>(
        prepared: &CompiledReplay<'_>,
        network: &mut N,
    ) -> Vec<Option<Self>> {
        let machine = prepared.machine;
        // Ports are shared only where the network models contention and carries the messages.
        let shared = prepared.comm == CommTiming::Model && network.attachments().is_some();
        let state = |memory: &RemoteMemory| {
            let own = prepared.extensions.memory.as_ref();
            if let Some(model) = own.and_then(|design| design.remote()) {
                let model = RemoteMemoryModel::of_model(memory, model);
                return Self {
                    model,
                    attached_dimension: None,
                };
            }
            let through = memory.through.as_ref().filter(|_| shared);
            Self {
                model: RemoteMemoryModel::new(memory, machine.topology().npus(), shared),
                attached_dimension: through.map(NetworkAttachment::dimension),
            }
        };
        let named = machine.named_memories().iter();
        let named = named.map(|named| Some(state(&named.memory)));
        std::iter::once(machine.remote().map(state))
            .chain(named)
            .collect()
    }
}
