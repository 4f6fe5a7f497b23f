//! Loads and stores of memories attached to the network. An access joins the queues of all links on its route at the
//! same time, including the memory's link.
//!
//! The first byte reaches server i of the route at h_i. Server i is free from free_i on, so it serves the access from
//! b_i = max(h_i, free_i) on, for s_i. The first byte reaches the next server at h_{i+1} = b_i + γ_i + α_i, and the
//! access ends at
//!
//! max_i (b_i + s_i + Σ_{j ≥ i} α_j + Σ_{j > i} γ_j),
//!
//! when the last byte has passed the server that delays it most. Without other traffic, an access takes Σα + Σγ + max
//! δ, like a message. If several links are between two servers, α and γ are totals over these links. If the next server
//! is the far end of the same link, the first byte does not wait for γ there.

use super::route::{iter_servers_between, link_rate_and_latency_after_server};
use super::{ContendedNetwork, ContendedPortOrLinkSelector, MemoryLoadStoreTransfer, Time};
use chakram_base::units::Span;

pub(super) fn serve_access<D: ContendedPortOrLinkSelector>(
    network: &mut ContendedNetwork<'_, D>,
    now: Time,
    transfer: &MemoryLoadStoreTransfer,
) -> Time {
    let topology = network.topology;
    let rest = topology
        .switching_mode()
        .remainder_after_first_segment(transfer.amount);
    let (mut head, mut end) = (now, now);
    for hop in iter_servers_between(D::REACH, transfer.ends, topology) {
        let (bandwidth, latency) = link_rate_and_latency_after_server(hop.place, topology);
        let span = bandwidth.serialization_time(transfer.amount);
        // Devices wait for the first segment. The segment is empty with ideal cut-through, and the whole message with
        // store-and-forward.
        let segment = Span(span.0 - bandwidth.serialization_time(rest).0);
        let waits = |links: u32| segment.times(links.into());
        let between = latency.times(hop.links.into()) + waits(hop.links.saturating_sub(1));
        let begin = head.max(network.servers.busy_until(hop.place));
        network
            .servers
            .occupy_for_span_from_begin(hop.place, begin, span);
        head = begin + between + waits(hop.last.into());
        // A wait before the link delays all later bytes as much as the first.
        end = (end + between + waits(hop.links.min(1))).max(begin + span + between);
    }
    end
}
