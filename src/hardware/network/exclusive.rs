//! Exclusive network: a transfer occupies all links of its route from its start to its end.
//!
//! A transfer submitted at t over links l that are free at f_l starts at max(t, max f_l). The transfer ends after its
//! uncontended time ([`PathLatencyAndRates::time_message`](crate::topology::PathLatencyAndRates::time_message)): hops
//! × latency + bytes ÷ bandwidth, or, with store-and-forward, (latency + bytes ÷ bandwidth) × hops. Until the
//! transfer ends, no link of its route carries another transfer, and later transfers wait. The transfer times are Eq. 2
//! and 3 of Fang et al., "PALM: A Efficient Performance Simulator for Tiled Accelerators with Large-scale Model
//! Training", whose links are exclusive resources. A send completes together with its transfer, because the transfer
//! occupies the links until then.
//!
//! Loads and stores of memories attached to the network also occupy the memory (PALM's Eq. 4 and 5): the memory's link
//! counts as one more link of the route.
//!
//! Transfers occupy links in the order of submission. A link's state is therefore only the time until which it is busy,
//! and a transfer needs only one event. A waiting transfer occupies no link, so transfers cannot deadlock. No closed
//! form of a collective is proven exact for this model. Collectives are therefore simulated step by step, or reuse the
//! result of an earlier simulation on idle links ([`RehearsableLinks`]).

use super::contended::PortsOrLinksOnRoute;
use super::contended::route::iter_servers_between;
use super::rehearsed_links::{
    LinkClaimsUntilLastTransfer, LinkRehearsalWithSetAsideTraffic, RehearsableLinks,
    RehearsedCollectiveUseOfLink,
};
use super::servers::{QueueingServerId, QueueingServerTable};
use super::{
    CollectiveLinkReservations, EventScheduler, LinkAndPortBusyTimes, MemoryLoadStoreTransfer,
    MessageProgressNotice, NetworkBackend, NetworkEvent, NetworkMessage,
};
use crate::topology::{LineSendPattern, Topology};
use chakram_base::ids::{EndpointId, Npu};
use chakram_base::units::{Span, Time, UnroundedBufferShare};

/// The model's state: the time until which each link is busy.
#[derive(Debug)]
pub struct OneTransferPerLinkNetwork<'a> {
    topology: &'a Topology,
    links: QueueingServerTable,
    /// Links of the current transfer, kept to reuse the list's allocation.
    way: Vec<QueueingServerId>,
    claims: LinkClaimsUntilLastTransfer,
    rehearsal: Option<LinkRehearsalWithSetAsideTraffic>,
    /// Links on which other transfers follow a retracted (undone) operation, each with the time until which it is busy.
    displaced: Vec<(QueueingServerId, Time)>,
}

impl<'a> OneTransferPerLinkNetwork<'a> {
    /// Creates the network with idle links.
    pub fn new(topology: &'a Topology) -> Self {
        Self {
            topology,
            links: QueueingServerTable::new(topology.dimensions().len()),
            way: Vec::new(),
            claims: LinkClaimsUntilLastTransfer::default(),
            rehearsal: None,
            displaced: Vec::new(),
        }
    }

    /// Occupies all links between `ends` for `span`, starting at `now` or later. Returns the time at which the
    /// occupation starts.
    #[inline]
    fn occupy_links(&mut self, now: Time, ends: (EndpointId, EndpointId), span: Span) -> Time {
        self.way.clear();
        let mut start = now;
        for hop in iter_servers_between(PortsOrLinksOnRoute::Links, ends, self.topology) {
            start = start.max(self.links.busy_until(hop.place));
            self.way.push(hop.place);
        }
        for &place in &self.way {
            self.links.occupy_for_span_from_begin(place, start, span);
        }
        if let Some(rehearsal) = &mut self.rehearsal {
            rehearsal.record_transfer(now, &self.way, span);
        }
        start
    }
}

impl OneTransferPerLinkNetwork<'_> {
    /// Returns true if the links in `uses` are idle and unreserved.
    fn are_links_idle_and_unreserved(
        &self,
        now: Time,
        uses: &[RehearsedCollectiveUseOfLink],
    ) -> bool {
        let is_idle = |link: &RehearsedCollectiveUseOfLink| {
            self.links.is_server_idle_and_unreserved(now, link.place)
                && self
                    .claims
                    .owner_that_will_still_transfer(now, link.place)
                    .is_none()
        };
        uses.iter().all(is_idle)
    }
}

impl RehearsableLinks for OneTransferPerLinkNetwork<'_> {
    fn set_aside_traffic_and_begin_rehearsal(&mut self) {
        let none = QueueingServerTable::new(self.topology.dimensions().len());
        let links = std::mem::replace(&mut self.links, none);
        self.rehearsal = Some(LinkRehearsalWithSetAsideTraffic::new(links));
    }

    fn end_rehearsal_and_take_link_uses(
        &mut self,
        start: Time,
    ) -> Option<Vec<RehearsedCollectiveUseOfLink>> {
        let (links, uses) = self
            .rehearsal
            .take()?
            .end_rehearsal_and_return_link_use(start, &self.links);
        self.links = links;
        uses
    }

    fn repeat_uses_if_links_idle(
        &mut self,
        now: Time,
        uses: &[RehearsedCollectiveUseOfLink],
        claim: u32,
    ) -> bool {
        if !self.are_links_idle_and_unreserved(now, uses) {
            return false;
        }
        for link in uses {
            self.links
                .record_busy_span_until_end(link.place, now + link.free, link.busy);
            self.claims.set_owner(link.place, claim, now + link.last);
        }
        true
    }

    fn reserve_links_if_all_idle(
        &mut self,
        now: Time,
        uses: &[RehearsedCollectiveUseOfLink],
        claim: u32,
    ) -> bool {
        if !self.are_links_idle_and_unreserved(now, uses) {
            return false;
        }
        for link in uses {
            self.claims.set_owner(link.place, claim, Time::END);
        }
        true
    }

    fn release_reserved_links(&mut self, uses: &[RehearsedCollectiveUseOfLink], claim: u32) {
        for link in uses {
            self.claims.end_claim_of_owner(link.place, claim);
        }
    }

    fn retract_uses(&mut self, start: Time, uses: &[RehearsedCollectiveUseOfLink], claim: u32) {
        for link in uses {
            let free = self.links.busy_until(link.place);
            if free > start + link.free {
                self.displaced.push((link.place, free));
            }
            self.links.revert_work(link.place, start, link.busy);
            self.claims.end_claim_of_owner(link.place, claim);
        }
    }

    fn put_back_retracted_transfers(&mut self) {
        for (place, free) in self.displaced.drain(..) {
            self.links
                .record_busy_span_until_end(place, free, Span::ZERO);
        }
    }
}

impl NetworkBackend for OneTransferPerLinkNetwork<'_> {
    const NAME: &'static str = "exclusive";
    const SHARED: bool = true;

    #[inline]
    fn submit_message(
        &mut self,
        now: Time,
        message: &NetworkMessage,
        agenda: &mut impl EventScheduler,
    ) {
        let path = message.path_in(self.topology);
        let span = path.time_message(message.amount);
        let (a, b) = message.ends;
        let end = self.occupy_links(now, (a.into(), b.into()), span) + span;
        if message.tell_injected {
            agenda.schedule_event(end, NetworkEvent::Injected(message.op));
        }
        agenda.schedule_event(end, NetworkEvent::Delivered(message.op));
    }

    fn serve_access(
        &mut self,
        now: Time,
        transfer: &MemoryLoadStoreTransfer,
        _: &mut impl EventScheduler,
    ) -> Option<Time> {
        let span = transfer.path.time_message(transfer.amount);
        Some(self.occupy_links(now, transfer.ends, span) + span)
    }

    fn uncontended_time(&self, (a, b): (Npu, Npu), amount: UnroundedBufferShare) -> Option<Span> {
        Some(self.topology.path_between_npus(a, b)?.time_message(amount))
    }

    fn link_and_memory_port_busy_times(&self) -> Option<LinkAndPortBusyTimes> {
        LinkAndPortBusyTimes::collect_busy_times_on_tiles(self.topology, &self.links)
    }

    fn is_send_pattern_conflict_free(&self, _: usize, _: u32, _: LineSendPattern) -> bool {
        false
    }

    fn reservable_links_mut(&mut self) -> Option<&mut dyn CollectiveLinkReservations> {
        Some(self)
    }

    fn links_if_rehearsable(&mut self) -> Option<&mut dyn RehearsableLinks> {
        Some(self)
    }

    fn npu_port_servers_for_other_traffic(&mut self) -> Option<&mut QueueingServerTable> {
        Some(&mut self.links)
    }

    #[inline]
    fn handle_event(
        &mut self,
        _: Time,
        event: NetworkEvent,
        _: &mut impl EventScheduler,
        notices: &mut Vec<MessageProgressNotice>,
    ) {
        match event {
            NetworkEvent::Injected(op) => notices.push(MessageProgressNotice::Injected(op)),
            NetworkEvent::Delivered(op) => notices.push(MessageProgressNotice::Delivered(op)),
            NetworkEvent::FirstByte { .. }
            | NetworkEvent::Hop { .. }
            | NetworkEvent::LinkFree(_) => {
                unreachable!("a transfer has one event, its end")
            }
        }
    }
}

/// In this network, only collectives that reuse the times of a rehearsal (an earlier simulation on idle links) reserve
/// links. Each link is reserved separately, not by NPU and dimension.
impl CollectiveLinkReservations for OneTransferPerLinkNetwork<'_> {
    fn are_npu_links_idle(&self, _: Time, _: Npu, _: usize) -> bool {
        false
    }

    fn reserve_or_release_npu_links(&mut self, _: Npu, _: usize, _: Option<u32>) {}

    fn lowest_owner_of_disturbed_reservations(
        &self,
        now: Time,
        ends: (EndpointId, EndpointId),
    ) -> Option<u32> {
        let hops = iter_servers_between(PortsOrLinksOnRoute::Links, ends, self.topology);
        hops.filter_map(|hop| self.claims.owner_that_will_still_transfer(now, hop.place))
            .min()
    }
}
