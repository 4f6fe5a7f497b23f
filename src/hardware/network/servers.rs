//! Resources that carry one message at a time, in the order of arrival: ports and links.
//!
//! A server is busy until a given time. Messages are reported in order of arrival, so this time is all that it stores
//! about its queue.

use crate::topology::{MemoryAtNpuOrFabric, Topology};
use chakram_base::ids::{EndpointId, Npu};
use chakram_base::units::{Span, Time};

/// Owner value of a server that is not reserved.
const NONE: u32 = u32::MAX;

/// Indices of the two servers of a port: egress and ingress.
pub(super) const OUT: usize = 0;
pub(super) const IN: usize = 1;
/// Maximum number of servers that an NPU has along a dimension.
const SIDES: usize = 4;

/// Identifies a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueingServerId {
    /// Index of the server's dimension; for a memory's link, the number of dimensions.
    pub dimension: usize,
    /// Index among the NPU's servers along `dimension`.
    pub side: usize,
    /// NPU that owns the server, or index of the memory.
    pub npu: Npu,
}

/// State of one server of the network.
#[derive(Clone, Copy, Debug)]
struct QueueingServerState {
    /// Time until which the server is busy with the messages that have arrived.
    free: Time,
    /// Total time for which the server has been busy.
    busy: Span,
    /// Number of messages in flight that have yet to use the server.
    coming: u32,
    claim: u32,
}

const IDLE: QueueingServerState = QueueingServerState {
    free: Time::ZERO,
    busy: Span::ZERO,
    coming: 0,
    claim: NONE,
};

impl QueueingServerId {
    /// If `from` or `to` is a memory, returns the server that connects it to the network: its own link, or the port of
    /// the NPU at the other end. Returns `None` if both ends are NPUs.
    pub fn of_memory_at_either_end(
        topology: &Topology,
        (from, to): (EndpointId, EndpointId),
    ) -> Option<Self> {
        let (memory, npu, side) = match topology.memory_at(from) {
            Some(_) => (from, to, IN),
            None => (to, from, OUT),
        };
        let number = memory.0.wrapping_sub(topology.npu_count());
        Some(match topology.memory_at(memory)?.site {
            MemoryAtNpuOrFabric::Fabric(dimension) => Self {
                dimension,
                side,
                npu: Npu(npu.0),
            },
            // Loads and stores share one server, because the memory's rate covers both.
            MemoryAtNpuOrFabric::Npu(_) => Self {
                dimension: topology.dimensions().len(),
                side: OUT,
                npu: Npu(number),
            },
        })
    }
}

/// All servers of a machine's network. Along each dimension, state exists only up to the highest NPU used so far.
#[derive(Debug)]
pub struct QueueingServerTable {
    /// Servers by dimension and side, then by NPU; the last rows are links of memories.
    rows: Vec<Vec<QueueingServerState>>,
    /// Number of claimed servers.
    claimed: u32,
}

impl QueueingServerTable {
    /// Creates a table of idle servers.
    pub(super) fn new(dimensions: usize) -> Self {
        Self {
            rows: vec![Vec::new(); SIDES * (dimensions + 1)],
            claimed: 0,
        }
    }

    #[inline]
    fn server_mut(&mut self, place: QueueingServerId) -> &mut QueueingServerState {
        let row = &mut self.rows[SIDES * place.dimension + place.side];
        let index = place.npu.index();
        // State grows only to the highest NPU used, so small jobs on large machines need little memory.
        if index >= row.len() {
            row.resize(index + 1, IDLE);
        }
        &mut row[index]
    }

    #[inline]
    fn get(&self, place: QueueingServerId) -> QueueingServerState {
        let row = &self.rows[SIDES * place.dimension + place.side];
        row.get(place.npu.index()).copied().unwrap_or(IDLE)
    }

    /// Announces a message that will arrive later.
    #[inline]
    pub fn expect_message(&mut self, place: QueueingServerId) {
        self.server_mut(place).coming += 1;
    }

    /// Serves a message that was announced with [`Self::expect_message`] and arrives `now` (see
    /// [`Self::serve_message_and_return_begin`]).
    #[inline]
    pub fn serve_expected_message_and_return_begin(
        &mut self,
        now: Time,
        place: QueueingServerId,
        span: Span,
    ) -> Time {
        self.server_mut(place).coming -= 1;
        self.serve_message_and_return_begin(now, place, span)
    }

    /// Serves a message that arrives `now` and occupies the server for `span`. Returns the time at which the service
    /// begins.
    #[inline]
    pub fn serve_message_and_return_begin(
        &mut self,
        now: Time,
        place: QueueingServerId,
        span: Span,
    ) -> Time {
        let server = self.server_mut(place);
        let begin = now.max(server.free);
        server.free = begin + span;
        server.busy += span;
        begin
    }

    /// Returns the time until which a server is busy with messages that have arrived.
    #[inline]
    pub(super) fn busy_until(&self, place: QueueingServerId) -> Time {
        self.get(place).free
    }

    /// Occupies a server for `span`, starting at `begin`.
    #[inline]
    pub(super) fn occupy_for_span_from_begin(
        &mut self,
        place: QueueingServerId,
        begin: Time,
        span: Span,
    ) {
        let server = self.server_mut(place);
        server.free = begin + span;
        server.busy += span;
    }

    /// Returns the total time for which a server has been busy.
    pub(super) fn busy_time_of(&self, place: QueueingServerId) -> Span {
        self.get(place).busy
    }

    /// Records that a server is busy for `span` with work that ends at `end`.
    pub(super) fn record_busy_span_until_end(
        &mut self,
        place: QueueingServerId,
        end: Time,
        span: Span,
    ) {
        let server = self.server_mut(place);
        server.free = end;
        server.busy += span;
    }

    /// Undoes [`Self::record_busy_span_until_end`], so that the server is idle from `begin` on.
    pub(super) fn revert_work(&mut self, place: QueueingServerId, begin: Time, span: Span) {
        let server = self.server_mut(place);
        server.free = begin;
        server.busy = server.busy - span;
    }

    /// Returns the servers that were ever busy, with their busy times.
    pub(super) fn iter_busy_servers(&self) -> impl Iterator<Item = (QueueingServerId, Span)> + '_ {
        let rows = self.rows.iter().enumerate();
        rows.flat_map(|(row, servers)| {
            let (dimension, side) = (row / SIDES, row % SIDES);
            let servers = (0..).map(Npu).zip(servers);
            servers.filter_map(move |(npu, server)| {
                let place = QueueingServerId {
                    dimension,
                    side,
                    npu,
                };
                (server.busy > Span::ZERO).then_some((place, server.busy))
            })
        })
    }

    /// Returns true if a server is free at `now` and not reserved, and no message in flight will pass it.
    pub(super) fn is_server_idle_and_unreserved(&self, now: Time, place: QueueingServerId) -> bool {
        let server = self.get(place);
        server.coming == 0 && server.free <= now && server.claim == NONE
    }

    /// Reserves a server for the owner `claim`, or clears the reservation if `claim` is `None`.
    pub(super) fn set_reservation_owner_of_server(
        &mut self,
        place: QueueingServerId,
        claim: Option<u32>,
    ) {
        let server = self.server_mut(place);
        let before = std::mem::replace(&mut server.claim, claim.unwrap_or(NONE));
        // Because of this count, messages can skip the reservation check when nothing is reserved.
        self.claimed -= u32::from(before != NONE);
        self.claimed += u32::from(claim.is_some());
    }

    /// Returns true if any server is reserved.
    pub(super) fn has_reserved_server(&self) -> bool {
        self.claimed > 0
    }

    /// Returns the owner of a server's reservation, or `None`.
    pub fn reservation_owner_of_server(&self, place: QueueingServerId) -> Option<u32> {
        Some(self.get(place).claim).filter(|&claim| claim != NONE)
    }
}
