//! Loads and stores beyond the NPU: the loop's side of the remote memory.
//!
//! A memory at the network is an endpoint of it. Accesses that cross the network are submitted with the messages of their
//! instant, before them: no collective answered by closed form holds links on their way any longer, those that did are
//! materialized. Ports are served by the network, which says when an access ends, or later that it has. Of other memory chunks come to the port of
//! the NPU when nothing else is left of an instant; until the last has come the access is announced there, so that no
//! collective is answered by closed form over that port.

use super::collective_run::InFlightOp;
use super::discipline::CollectiveModel;
use super::event::{Event, EventClass};
use super::frames::{key, node_of};
use super::plan::NONE;
use super::{CommTiming, CompiledReplay, Engine, Fabric, ReplayOptions, ReplayRefusal};
use crate::ids::{EndpointId, NodeIndex, Npu};
use crate::machine::Machine;
use crate::memory::{
    MOST_CHUNKS, MemoryAttachment, MemoryPorts, PortRequest, RemoteMemory, RemoteMemoryAccess,
    RemoteMemoryModel,
};
use crate::network::{MemoryTransfer, NetworkBackend, NetworkKind, ServerId};
use crate::report::Observer;
use crate::topology::Topology;
use crate::units::{BufferShare, Time};

/// Returns what is wrong with an access of `bytes`, and what to try, if the network cannot carry it: in more chunks than can be
/// simulated.
pub(super) fn fault(
    machine: &Machine,
    remote: &RemoteMemory,
    options: &ReplayOptions,
    bytes: u64,
) -> Option<(String, &'static str)> {
    let model = options.network.unwrap_or(machine.network());
    if options.comm != CommTiming::Model || model == NetworkKind::ContentionFree {
        return None;
    }
    let chunks = remote.chunks(bytes, machine.topology().npus())?;
    (chunks > MOST_CHUNKS).then(|| {
        let found = format!(
            "it shares ports of the network with messages in {chunks} chunks, which is more than {MOST_CHUNKS}"
        );
        (found, FEWER)
    })
}

/// Hint for accesses with too many chunks.
const FEWER: &str = "give [remote_memory] a larger `chunk`, or take `--network contention-free`";

/// A load or store whose bytes cross the network.
#[derive(Clone, Copy, Debug)]
pub(super) struct ApproachingAccess {
    ends: (EndpointId, EndpointId),
    access: RemoteMemoryAccess,
    /// True if the network serves it; false if chunks of it follow.
    whole: bool,
}

/// Returns where the bytes of an access of `npu` come from and go to.
fn ends(npu: Npu, memory: EndpointId, store: bool) -> (EndpointId, EndpointId) {
    if store {
        (npu.into(), memory)
    } else {
        (memory, npu.into())
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
        let remote = self.fabric.memories[memory as usize].as_mut();
        let remote = remote.expect("the plan refused machines without");
        let endpoint = remote.endpoint(access.npu, self.settings.topology);
        let (end, whole) = match &mut remote.service {
            MemoryService::Ports { .. } => (None, true),
            MemoryService::Model(model) => (model.begin(now, access), false),
        };
        if let Some(endpoint) = endpoint {
            self.effects.accesses.push(ApproachingAccess {
                ends: ends(access.npu, endpoint, access.store),
                access,
                whole,
            });
        }
        if let Some(end) = end {
            self.end_access(end, access.token);
        }
    }

    /// Schedules the completion of the load or store with this token.
    pub(super) fn end_access(&mut self, end: Time, token: u64) {
        let (instance, node) = node_of(token);
        if self.tile_groups.exist() {
            self.announce(end, instance, node);
        } else {
            self.complete_at(end, instance, node);
        }
    }

    /// Submits the accesses that cross the network, once no closed form reserves links on their way.
    pub(super) fn submit_accesses(&mut self, now: Time) {
        let mut approaching = std::mem::take(&mut self.effects.accesses);
        for access in &approaching {
            while let Some(id) = self.reservation(now, access.ends) {
                self.materialize(now, id);
            }
        }
        let topology = self.settings.topology;
        for ApproachingAccess {
            ends,
            access,
            whole,
        } in approaching.drain(..)
        {
            let amount = BufferShare::whole(access.bytes);
            if let Some(traffic) = &mut self.messages.traffic {
                traffic.count(ends, amount);
            }
            if whole {
                let (instance, node) = node_of(access.token);
                let op = InFlightOp::Access {
                    instance,
                    node: node.0,
                };
                let op = self.messages.ops.reserve(op);
                let path = topology.path_between(ends);
                let transfer = MemoryTransfer {
                    op,
                    ends,
                    path: path.expect("a port has a link of its own"),
                    amount,
                };
                if N::SHARED {
                    self.messages.ops.mark_submitted(op);
                }
                let network = &mut self.fabric.network;
                if let Some(end) = network.access(now, &transfer, &mut self.agenda) {
                    self.messages.ops.remove(op);
                    self.end_access(end, access.token);
                }
            } else if let Some(place) = ServerId::of_memory(topology, ends)
                && let Some(servers) = self.fabric.network.attachments()
            {
                servers.expect(place);
            }
        }
        self.effects.accesses = approaching;
    }

    /// Submits chunks of loads and stores of a memory to their ports.
    fn submit_chunks(&mut self, now: Time, memory: usize) {
        let Some(RemoteState {
            service: MemoryService::Model(model),
            first: Some(endpoint),
        }) = &mut self.fabric.memories[memory]
        else {
            return;
        };
        let (network, topology) = (&mut self.fabric.network, self.settings.topology);
        let serve = |request: PortRequest| {
            let ends = ends(request.npu, *endpoint, request.store);
            let place = ServerId::of_memory(topology, ends);
            let Some((place, servers)) = place.zip(network.attachments()) else {
                return now;
            };
            if request.last {
                // The last chunk ends the announcement at the port.
                servers.receive(now, place, request.span)
            } else {
                servers.serve(now, place, request.span)
            }
        };
        let ends = &mut self.fabric.ends;
        model.pass(now, serve, |end| ends.push(end));
        self.end_accesses();
    }

    /// Schedules the completions of loads and stores.
    fn end_accesses(&mut self) {
        let mut ends = std::mem::take(&mut self.fabric.ends);
        for end in ends.drain(..) {
            self.end_access(end.at, end.token);
        }
        self.fabric.ends = ends;
    }

    /// Shares the links of remote memories anew, if accesses began or ended at this instant and no event of it is
    /// left. Returns whether it did.
    #[inline]
    pub(super) fn settle_memory(&mut self, now: Time) -> bool {
        let mut settled = false;
        for memory in 0..self.fabric.memories.len() {
            let model = self.fabric.model(memory);
            let unsettled = model.is_some_and(|model| model.is_unsettled());
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
        let Some(model) = self.fabric.model(memory) else {
            return;
        };
        if model.is_full() {
            let found = "loads and stores have more chunks on their way to ports of the network than fit in memory";
            self.instant.refusal = Some(ReplayRefusal::new(found.to_owned(), FEWER));
        }
        // A completion scheduled before carries the number of its settlement, and is ignored once that is superseded.
        if let Some((at, settlement)) = model.settle(now) {
            let event = Event::new(EventClass::Memory, memory as u32, settlement);
            self.agenda.push(at, event);
        }
    }

    /// Ends accesses of a memory that have streamed, unless a later settlement has replaced `settlement`.
    pub(super) fn memory_event(&mut self, now: Time, memory: u32, settlement: u32) {
        let mut ends = std::mem::take(&mut self.fabric.ends);
        if let Some(model) = self.fabric.model(memory as usize) {
            model.handle_settlement(now, settlement, |end| ends.push(end));
        }
        self.fabric.ends = ends;
        self.end_accesses();
    }
}

impl<N> Fabric<'_, N> {
    /// The model that serves a memory, if one does.
    #[inline]
    fn model(&mut self, memory: usize) -> Option<&mut RemoteMemoryModel> {
        match &mut self.memories[memory].as_mut()?.service {
            MemoryService::Model(model) => Some(model),
            MemoryService::Ports { .. } => None,
        }
    }
}

/// State of a memory beyond NPUs in a run.
#[derive(Debug)]
pub(super) struct RemoteState<'a> {
    service: MemoryService<'a>,
    /// First of its endpoints, if accesses cross the network and may meet messages there, or are counted.
    first: Option<EndpointId>,
}

/// Server of the accesses of a memory.
#[derive(Debug)]
enum MemoryService<'a> {
    /// The network.
    Ports {
        ports: &'a MemoryPorts,
        /// By NPU, the port that it uses, [`NONE`] until it is known.
        nearest: Vec<u32>,
    },
    /// A model.
    Model(RemoteMemoryModel),
}

impl<'a> RemoteState<'a> {
    /// Creates the idle memories of the machine of `prepared`: the one without a name, if there is one, and the others.
    pub(super) fn all<N: NetworkBackend>(
        prepared: &CompiledReplay<'a>,
        network: &mut N,
    ) -> Vec<Option<Self>> {
        let machine = prepared.machine;
        let own = prepared.extensions.memory.as_ref();
        // Ports are shared only where the network models contention and carries the messages.
        let shared = prepared.comm == CommTiming::Model && network.attachments().is_some();
        let state = |(memory, first): (Option<&'a RemoteMemory>, EndpointId)| {
            let memory = memory?;
            if let Some(model) = own.and_then(|design| design.remote()) {
                let model = RemoteMemoryModel::of_model(memory, model);
                return Some(Self {
                    service: MemoryService::Model(model),
                    first: None,
                });
            }
            if let MemoryAttachment::Ports(ports) = &memory.attachment {
                let nearest = Vec::new();
                return Some(Self {
                    service: MemoryService::Ports { ports, nearest },
                    first: Some(first),
                });
            }
            let model = RemoteMemoryModel::new(memory, machine.topology().npus(), shared);
            Some(Self {
                service: MemoryService::Model(model),
                first: (shared || prepared.links)
                    .then_some(first)
                    .filter(|_| memory.through.is_some()),
            })
        };
        machine.memories().map(state).collect()
    }

    /// Returns the endpoint of which `npu` loads and to which it stores. A port is looked for once.
    fn endpoint(&mut self, npu: Npu, topology: &Topology) -> Option<EndpointId> {
        let first = self.first?;
        let MemoryService::Ports { ports, nearest } = &mut self.service else {
            return Some(first);
        };
        if npu.index() >= nearest.len() {
            nearest.resize(npu.index() + 1, NONE);
        }
        let port = &mut nearest[npu.index()];
        if *port == NONE {
            let found = ports.nearest(npu, topology);
            *port = found.expect("the plan refused NPUs that reach none");
        }
        Some(EndpointId(first.0 + *port))
    }
}
