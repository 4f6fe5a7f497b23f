//! Loads and stores at memory ports: a port and the links of the way, joined at once.
//!
//! With the servers i of the way in order, the port among them, the first byte reaches server i at h_i and is served
//! from b_i = max(h_i, free_i) on, for s_i. The next has it at h_{i+1} = b_i + γ_i + α_i, and the access ends at
//!
//! max_i (b_i + s_i + Σ_{j ≥ i} α_j + Σ_{j > i} γ_j),
//!
//! when the last byte has passed the server that holds it up most. Alone that is Σα + Σγ + max δ, as of messages.

use super::route::link;
use super::{ContendedNetwork, ContentionModel, EdgeAccess, RouteCursor, Time};
use crate::units::{Bandwidth, Span};

pub(super) fn serve<D: ContentionModel>(
    network: &mut ContendedNetwork<'_, D>,
    now: Time,
    access: &EdgeAccess,
) -> Time {
    let topology = network.topology;
    let port = access.port as usize;
    if port >= network.memory_ports.len() {
        network
            .memory_ports
            .resize(port + 1, (Time::ZERO, Span::ZERO));
    }
    let rest = topology.switching().rest(access.amount);
    let whole = |bandwidth: Bandwidth| bandwidth.serialization(access.amount);
    // Nothing of a message is waited for with ideal cut-through, and all of it with store-and-forward.
    let first = |bandwidth: Bandwidth| Span(whole(bandwidth).0 - bandwidth.serialization(rest).0);
    let (mut head, mut end) = (now, now);
    let mut pass = |free: Time, bandwidth: Bandwidth, latency: Span| {
        let begin = head.max(free);
        let (span, ahead) = (whole(bandwidth), first(bandwidth) + latency);
        // Later messages are later by as much as this server adds for the first byte.
        end = (end + ahead).max(begin + span + latency);
        head = begin + ahead;
        (begin, span)
    };
    let memory = |pass: &mut dyn FnMut(Time, Bandwidth, Span) -> (Time, Span),
                  ports: &mut [(Time, Span)]| {
        let (free, busy) = ports[port];
        let (begin, span) = pass(free, access.bandwidth, access.latency);
        ports[port] = (begin + span, busy + span);
    };
    if !access.store {
        memory(&mut pass, &mut network.memory_ports);
    }
    let mut route = RouteCursor::new(D::REACH, access.ends(), topology);
    while let Some(hop) = route.next(topology) {
        let (bandwidth, latency) = link(hop.place, topology);
        let latency = latency.times(hop.links.into());
        let (begin, span) = pass(network.servers.free(hop.place), bandwidth, latency);
        network.servers.hold(hop.place, begin, span);
    }
    if access.store {
        memory(&mut pass, &mut network.memory_ports);
    }
    end
}
