//! Loads and stores of memories at the network: the links of the way, the memory's among them, joined at once.
//!
//! With the servers i of the way in order, the first byte reaches server i at h_i and is served from b_i = max(h_i, free_i)
//! on, for s_i. The next has it at h_{i+1} = b_i + γ_i + α_i, and the access ends at
//!
//! max_i (b_i + s_i + Σ_{j ≥ i} α_j + Σ_{j > i} γ_j),
//!
//! when the last byte has passed the server that holds it up most. Alone that is Σα + Σγ + max δ, as of messages. With
//! several links between two servers, α is that of all, and so is γ; where the next server is the far end of the same link,
//! the first byte leaves the γ of that link to it.

use super::route::{link, route};
use super::{ContendedNetwork, ContentionModel, MemoryTransfer, Time};
use chakram_base::units::Span;

pub(super) fn serve<D: ContentionModel>(
    network: &mut ContendedNetwork<'_, D>,
    now: Time,
    transfer: &MemoryTransfer,
) -> Time {
    let topology = network.topology;
    let rest = topology.switching().rest(transfer.amount);
    let (mut head, mut end) = (now, now);
    for hop in route(D::REACH, transfer.ends, topology) {
        let (bandwidth, latency) = link(hop.place, topology);
        let span = bandwidth.serialization(transfer.amount);
        // Nothing of a message is waited for with ideal cut-through, and all of it with store-and-forward.
        let segment = Span(span.0 - bandwidth.serialization(rest).0);
        let waits = |links: u32| segment.times(links.into());
        let between = latency.times(hop.links.into()) + waits(hop.links.saturating_sub(1));
        let begin = head.max(network.servers.free(hop.place));
        network.servers.hold(hop.place, begin, span);
        head = begin + between + waits(hop.last.into());
        // Later bytes are later by as much as this link adds for the first one.
        end = (end + between + waits(hop.links.min(1))).max(begin + span + between);
    }
    end
}
