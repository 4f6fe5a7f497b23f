//! Begins, submits and ends loads from and stores to remote memory for the loop.
//!
//! A memory on the network is one of its endpoints. Accesses over the network are submitted before the messages of the
//! same instant. If a collective's analytical answer reserves a link on an access's route, the engine first
//! materializes the collective. If the memory has ports, the network serves the whole access, and either returns the
//! access's end immediately or sends a notice later. An access to any other memory consists of chunks, which arrive at
//! the NPU's port when no other event of the instant is left. The port keeps a record of the access until the last
//! chunk has arrived, so that no collective that uses this port is answered analytically.

use super::{Fabric, InFlightMessageContext};
use crate::dataflow::unpack_instance_and_node;
use crate::effects::Effects;
use crate::event::{EventClass, PackedEvent};
use crate::ids::InstanceNode;
use crate::plan::NONE;
use crate::{CommunicationDurationSource, CompiledReplay, ReplayOptions, ReplayRefusal};
use chakram_base::ids::{EndpointId, Npu};
use chakram_base::setting::SettingKey;
use chakram_base::units::{Time, UnroundedBufferShare};
use chakram_hardware::machine::Machine;
use chakram_hardware::memory::{
    ChunkArrivalAtNpuPort, MOST_CHUNKS, MemoryAttachment, NpusWithMemoryPorts, RemoteMemory,
    RemoteMemoryAccess, RemoteMemorySimulation,
};
use chakram_hardware::network::{
    MemoryLoadStoreTransfer, NetworkBackend, NetworkModelKind, QueueingServerId,
};
use chakram_hardware::topology::Topology;

/// Returns the problem and a hint if an access of `bytes` has too many chunks for the port simulation.
pub fn find_too_many_chunks_fault(
    machine: &Machine,
    remote: &RemoteMemory,
    options: &ReplayOptions,
    bytes: u64,
) -> Option<(String, String)> {
    let model = options.network.unwrap_or(machine.network_model());
    if options.comm != CommunicationDurationSource::Model
        || model == NetworkModelKind::ContentionFree
    {
        return None;
    }
    let chunks = remote.chunk_count(bytes, machine.topology().npu_count())?;
    (chunks > MOST_CHUNKS).then(|| {
        let found = format!(
            "the access shares ports of the network in {chunks} chunks, expected at most {MOST_CHUNKS}"
        );
        (found, suggest_fewer_chunks())
    })
}

/// Returns the hint for an access with too many chunks.
fn suggest_fewer_chunks() -> String {
    format!(
        "give [remote_memory] a larger `chunk`, or take `{:#} contention-free`",
        SettingKey::Network
    )
}

/// A load or store that sends bytes over the network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkMemoryAccess {
    pub ends: (EndpointId, EndpointId),
    access: RemoteMemoryAccess,
    /// True if the network serves the access as a whole. False if chunks follow later.
    whole: bool,
}

/// Returns the source and target endpoints of an access by `npu`.
fn access_endpoints(npu: Npu, memory: EndpointId, store: bool) -> (EndpointId, EndpointId) {
    if store {
        (npu.into(), memory)
    } else {
        (memory, npu.into())
    }
}

/// Records the end of the load or store that `token` identifies.
fn schedule_access_end(effects: &mut Effects, at: Time, token: u64) {
    let InstanceNode { instance, node } = unpack_instance_and_node(token);
    effects.schedule_announced_end(at, instance, node);
}

impl<N: NetworkBackend> Fabric<'_, N> {
    /// Begins a load from a memory or a store to it. If the end is already known, records the end in `effects`.
    pub fn begin_access(
        &mut self,
        now: Time,
        memory: u32,
        access: RemoteMemoryAccess,
        effects: &mut Effects,
    ) {
        let remote = self.memories[memory as usize].as_mut();
        let remote = remote.expect("the plan refused machines without");
        let endpoint = remote.endpoint_of_npu(access.npu, self.topology);
        let (known, whole) = match &mut remote.service {
            NetworkPortsOrMemoryModel::Ports { .. } => (None, true),
            NetworkPortsOrMemoryModel::Model(model) => (model.begin_access(now, access), false),
        };
        if let Some(endpoint) = endpoint {
            effects.accesses.push(NetworkMemoryAccess {
                ends: access_endpoints(access.npu, endpoint, access.store),
                access,
                whole,
            });
        }
        if let Some(at) = known {
            schedule_access_end(effects, at, access.token);
        }
    }

    /// Submits the accesses that cross the network. The caller must first withdraw all analytical answers that reserve
    /// their links.
    pub fn submit_accesses_over_network(&mut self, now: Time, effects: &mut Effects) {
        let topology = self.topology;
        let mut approaching = std::mem::take(&mut effects.accesses);
        for NetworkMemoryAccess {
            ends,
            access,
            whole,
        } in approaching.drain(..)
        {
            let amount = UnroundedBufferShare::from_bytes(access.bytes);
            if let Some(traffic) = &mut self.traffic {
                traffic.count_transfer(ends, amount);
            }
            if whole {
                let InstanceNode { instance, node } = unpack_instance_and_node(access.token);
                let op = InFlightMessageContext::Access { instance, node };
                let op = self.ops.insert_uncounted_op(op);
                let path = topology.path_between(ends);
                let transfer = MemoryLoadStoreTransfer {
                    op,
                    ends,
                    path: path.expect("a port has a link of its own"),
                    amount,
                };
                if N::SHARED {
                    self.ops.assign_submission_number(op);
                }
                if let Some(at) = self
                    .network
                    .serve_access(now, &transfer, &mut effects.agenda)
                {
                    self.ops.remove(op);
                    schedule_access_end(effects, at, access.token);
                }
            } else if let Some(place) = QueueingServerId::of_memory_at_either_end(topology, ends)
                && let Some(servers) = self.network.npu_port_servers_for_other_traffic()
            {
                servers.expect_message(place);
            }
        }
        effects.accesses = approaching;
    }

    /// Submits the chunks of loads and stores of one memory to the NPUs' ports.
    fn submit_memory_chunks_to_ports(&mut self, now: Time, memory: usize, effects: &mut Effects) {
        let Some(RemoteMemoryState {
            service: NetworkPortsOrMemoryModel::Model(model),
            first: Some(endpoint),
        }) = &mut self.memories[memory]
        else {
            return;
        };
        let (network, topology) = (&mut self.network, self.topology);
        let serve = |request: ChunkArrivalAtNpuPort| {
            let ends = access_endpoints(request.npu, *endpoint, request.store);
            let place = QueueingServerId::of_memory_at_either_end(topology, ends);
            let Some((place, servers)) = place.zip(network.npu_port_servers_for_other_traffic())
            else {
                return now;
            };
            if request.last {
                // The port discards its record of an access after the last chunk.
                servers.serve_expected_message_and_return_begin(now, place, request.span)
            } else {
                servers.serve_message_and_return_begin(now, place, request.span)
            }
        };
        model.serve_due_chunks(now, serve, |of| {
            schedule_access_end(effects, of.at, of.token)
        });
    }

    /// Returns the first memory, starting at index `first`, whose bandwidth must be redistributed because accesses
    /// began or ended.
    #[inline]
    pub fn find_next_unsettled_memory(&mut self, first: usize) -> Option<usize> {
        (first..self.memories.len()).find(|&memory| {
            let model = self.memory_model_mut(memory);
            model.is_some_and(|model| model.is_unsettled())
        })
    }

    /// Distributes the bandwidth of a memory's links among the current accesses.
    pub fn redistribute_memory_bandwidth(
        &mut self,
        now: Time,
        memory: usize,
        effects: &mut Effects,
    ) {
        self.submit_memory_chunks_to_ports(now, memory, effects);
        let Some(model) = self.memory_model_mut(memory) else {
            return;
        };
        if model.has_too_many_chunks_in_flight() {
            let found = "loads and stores have more chunks in flight to ports of the network than fit in memory";
            effects.refusal = Some(ReplayRefusal::new(found.to_owned(), suggest_fewer_chunks()));
        }
        // The event carries a number that changes whenever the rates are recomputed. Events with an older number are
        // ignored.
        if let Some((at, settlement)) = model.settle_rates(now) {
            let event = PackedEvent::new(EventClass::Memory, memory as u32, settlement);
            effects.agenda.push(at, event);
        }
    }

    /// Ends the accesses of a memory that have transferred all their bytes. Does nothing if rates were recomputed after
    /// the event with number `settlement` was scheduled.
    pub fn end_completed_memory_accesses(
        &mut self,
        now: Time,
        memory: u32,
        settlement: u32,
        effects: &mut Effects,
    ) {
        if let Some(model) = self.memory_model_mut(memory as usize) {
            model.deliver_ends_of_finished_accesses(now, settlement, |of| {
                schedule_access_end(effects, of.at, of.token)
            });
        }
    }

    /// Returns the model that serves a memory, or `None` if the network serves the memory.
    #[inline]
    fn memory_model_mut(&mut self, memory: usize) -> Option<&mut RemoteMemorySimulation> {
        match &mut self.memories[memory].as_mut()?.service {
            NetworkPortsOrMemoryModel::Model(model) => Some(model),
            NetworkPortsOrMemoryModel::Ports { .. } => None,
        }
    }
}

/// State of a remote memory in a run.
#[derive(Debug)]
pub(super) struct RemoteMemoryState<'a> {
    service: NetworkPortsOrMemoryModel<'a>,
    /// First endpoint of the memory if accesses cross the network, otherwise `None`. Accesses on the network may
    /// contend with messages and be counted as traffic.
    first: Option<EndpointId>,
}

/// Server of a memory's accesses: the network or a memory model.
#[derive(Debug)]
enum NetworkPortsOrMemoryModel<'a> {
    /// The network serves accesses at memory ports.
    Ports {
        ports: &'a NpusWithMemoryPorts,
        /// Index of the port that each NPU uses, or [`NONE`] before the NPU's first access.
        nearest: Vec<u32>,
    },
    /// A memory model outside the network serves the accesses.
    Model(RemoteMemorySimulation),
}

impl<'a> RemoteMemoryState<'a> {
    /// Creates idle memories for the machine of `prepared`: the unnamed memory, if any, and then the named memories.
    pub(super) fn create_remote_memories<N: NetworkBackend>(
        prepared: &CompiledReplay<'a>,
        network: &mut N,
    ) -> Vec<Option<Self>> {
        let machine = prepared.machine;
        let own = prepared.extensions.memory.as_ref();
        // Ports are shared only if the network models contention and carries the messages.
        let shared = prepared.comm == CommunicationDurationSource::Model
            && network.npu_port_servers_for_other_traffic().is_some();
        let state = |(memory, first): (Option<&'a RemoteMemory>, EndpointId)| {
            let memory = memory?;
            if let Some(model) = own.and_then(|design| design.create_remote_memory()) {
                let model = RemoteMemorySimulation::with_user_model(memory, model);
                return Some(Self {
                    service: NetworkPortsOrMemoryModel::Model(model),
                    first: None,
                });
            }
            if let MemoryAttachment::Ports(ports) = &memory.attachment {
                let nearest = Vec::new();
                return Some(Self {
                    service: NetworkPortsOrMemoryModel::Ports { ports, nearest },
                    first: Some(first),
                });
            }
            let model = RemoteMemorySimulation::new(memory, machine.topology().npu_count(), shared);
            Some(Self {
                service: NetworkPortsOrMemoryModel::Model(model),
                first: (shared || prepared.links)
                    .then_some(first)
                    .filter(|_| memory.through.is_some()),
            })
        };
        machine
            .remote_memories_with_first_endpoints()
            .map(state)
            .collect()
    }

    /// Returns the endpoint that loads and stores of `npu` use. Search for each NPU's nearest port only once.
    fn endpoint_of_npu(&mut self, npu: Npu, topology: &Topology) -> Option<EndpointId> {
        let first = self.first?;
        let NetworkPortsOrMemoryModel::Ports { ports, nearest } = &mut self.service else {
            return Some(first);
        };
        if npu.index() >= nearest.len() {
            nearest.resize(npu.index() + 1, NONE);
        }
        let port = &mut nearest[npu.index()];
        if *port == NONE {
            let found = ports.nearest_port(npu, topology);
            *port = found.expect("the plan refused NPUs that reach none");
        }
        Some(EndpointId(first.0 + *port))
    }
}
