//! Links that fail while messages are on them; the parent module defines which bytes are lost.

use super::{DepartedMessage, FairSharingNetwork, TransferWithUnsentBytes};
use crate::network::{
    EventScheduler, LinkFailureEffectOnMessages, LinkFailureHandler, ReroutedUnsentAndResentBytes,
};
use crate::topology::link_graph::LinkGraph;
use chakram_base::ids::{EndpointId, OpIndex};
use chakram_base::units::{Span, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

impl FairSharingNetwork<'_> {
    /// Returns true if the due arrival event must be ignored because a part of its message is sent again and arrives
    /// later.
    pub(super) fn take_superseded_arrival(&mut self, now: Time, op: OpIndex) -> bool {
        let Some(count) = self.overtaken.get_mut(&(now, op)) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            self.overtaken.remove(&(now, op));
        }
        true
    }

    /// Returns the bytes of a message that are on the links `failed` at `now`, or `None` if its route uses no failed
    /// link. The stream's bytes must be settled up to `now`, or up to the time at which the last byte left.
    fn find_lost_bytes(
        &self,
        stream: &TransferWithUnsentBytes,
        now: Time,
        failed: &[u32],
    ) -> Option<f64> {
        let way = stream.occupied_links();
        let is_on = way.iter().any(|(link, _)| failed.contains(link));
        is_on.then(|| {
            // Latency from the sender to each vertex of the route, over the slowest path.
            let mut reached: BTreeMap<u32, Span> = BTreeMap::new();
            let mut lost = 0.0;
            for &(number, part) in way {
                let link = &self.links[number as usize];
                let before = reached.get(&link.from).copied().unwrap_or(Span::ZERO);
                let behind = before + link.latency;
                let slowest = reached.entry(link.to).or_insert(behind);
                *slowest = (*slowest).max(behind);
                if failed.contains(&number) {
                    let end = now.0.saturating_sub(before.0).min(stream.settled.0);
                    let begin = now.0.saturating_sub(behind.0).max(stream.begun.0);
                    let sent_for = Span(end.saturating_sub(begin));
                    lost += part * stream.rate * sent_for.as_seconds();
                }
            }
            lost.min(stream.size - stream.left)
        })
    }

    /// Sends the unsent bytes of a message, and its `lost` bytes, over another route.
    fn reroute_unsent_and_lost_bytes(
        &mut self,
        mut stream: TransferWithUnsentBytes,
        lost: f64,
        effect: &mut LinkFailureEffectOnMessages,
    ) {
        let unsent = stream.left;
        effect.resent += lost;
        effect.moved.push(ReroutedUnsentAndResentBytes {
            ends: stream.ends,
            unsent,
            again: lost,
        });
        let Some(route) = self.find_route(stream.ends) else {
            effect.cut_off += 1;
            self.cut_off.insert(stream.ends);
            return;
        };
        stream.active = (0, route.links.len() as u32);
        (stream.route, stream.latency) = (route.links, route.latency);
        stream.left = unsent + lost;
        (stream.rate, stream.leaves) = (0.0, Time::END);
        self.add_stream_and_defer_rates(stream);
    }
}

impl LinkFailureHandler for FairSharingNetwork<'_> {
    fn fail_links(
        &mut self,
        now: Time,
        failed: &[u32],
        agenda: &mut dyn EventScheduler,
    ) -> LinkFailureEffectOnMessages {
        self.remove_departures(now, agenda);
        let mut hit: Vec<(TransferWithUnsentBytes, f64)> = Vec::new();
        let mut streams: Vec<TransferWithUnsentBytes> = self.streams.drain(..).flatten().collect();
        streams.sort_unstable_by_key(|stream| stream.sequence);
        self.free_slots.clear();
        self.entering.clear();
        for mut stream in streams {
            stream.settle_bytes(now);
            match self.find_lost_bytes(&stream, now, failed) {
                Some(lost) => hit.push((stream, lost)),
                None => self.add_stream_and_defer_rates(stream),
            }
        }
        self.rates.mark_rates_outdated();
        for (op, message) in self.departed.take().unwrap_or_default() {
            let lost = self.find_lost_bytes(&message.stream, now, failed);
            let Some(lost) = lost.filter(|lost| *lost > 0.0) else {
                self.departed.get_or_insert_default().insert(op, message);
                continue;
            };
            let DepartedMessage { stream, arrives } = message;
            *self.overtaken.entry((arrives, op)).or_default() += 1;
            let again = TransferWithUnsentBytes {
                tells: false,
                left: 0.0,
                settled: now,
                ..stream
            };
            hit.push((again, lost));
        }
        self.departed.get_or_insert_default();
        self.graph = Arc::new(self.graph.without_links(failed));
        self.routes.clear();
        let mut effect = LinkFailureEffectOnMessages::default();
        for (stream, lost) in hit {
            self.reroute_unsent_and_lost_bytes(stream, lost, &mut effect);
        }
        self.schedule_rate_update(now, agenda);
        effect
    }

    fn graph_of_links_in_service(&self) -> &Arc<LinkGraph> {
        &self.graph
    }

    fn unreachable_pairs(&self) -> Vec<(EndpointId, EndpointId)> {
        self.cut_off.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::NetworkBackend;
    use crate::network::test_harness::{PendingEvents, create_message, create_topology};
    use crate::topology::{DimensionShape, Topology};
    use proptest::prelude::*;

    const US: u64 = 1_000_000;

    /// Returns the arrival time of a message that NPU 0 begins to send to NPU 1 at time 0, if the link between them
    /// fails at `at`. The arrival is 0 if the message never arrives.
    fn simulate_link_failure(
        topology: &Topology,
        bytes: u64,
        at: u64,
    ) -> (u64, LinkFailureEffectOnMessages) {
        let mut network = FairSharingNetwork::new(topology).unwrap();
        network.enable_link_failures();
        let links = network.graph.links_between_named_ends("0-1").unwrap();
        let (mut pending, mut ends) = (PendingEvents::default(), [[0; 2]]);
        network.submit_message(Time(0), &create_message(0, 0, 1, bytes), &mut pending);
        pending.run_until_and_record_ends(&mut network, Time(at - 1), &mut ends);
        let effect = network.fail_links(Time(at), &links, &mut pending);
        pending.run_until_and_record_ends(&mut network, Time::END, &mut ends);
        let cut_off = vec![(EndpointId(0), EndpointId(1))];
        let never = ends[0][1] == 0;
        assert_eq!(
            network.unreachable_pairs(),
            if never { cut_off } else { Vec::new() }
        );
        assert_eq!(effect.cut_off, u64::from(never));
        (ends[0][1], effect)
    }

    /// The test has a ring of four NPUs at 2,000 ps per byte and 1 us per link, so 1,000 B take 2 us to leave and 1 us
    /// to reach the neighbour.
    #[test]
    fn bytes_on_a_link_that_fails_are_sent_again_the_other_way() {
        let ring = create_topology(&[(DimensionShape::Ring, 4, 2000, US)]);
        let of = |at: u64| {
            let (arrives, effect) = simulate_link_failure(&ring, 1000, at);
            (arrives, effect.moved.len(), effect.resent.round() as u64)
        };
        // After 0.5 us, no byte has arrived, and all 250 B that left are on the link. The remaining bytes and the lost
        // bytes leave in 2 us from 0.5 us on, and then take 3 us over three links.
        assert_eq!(of(US / 2), (11 * US / 2, 1, 250));
        // After 1.5 us, 750 B have left, and the 500 B of the last 1 us are on the link. The remaining 250 B and these
        // 500 B take 1.5 us.
        assert_eq!(of(3 * US / 2), (6 * US, 1, 500));
        // After 2.5 us, all bytes have left, and the bytes of the last 0.5 us are on the link.
        assert_eq!(of(5 * US / 2), (6 * US, 1, 250));
        // After 3 us, all bytes have arrived, so the failure has no effect.
        assert_eq!(of(3 * US), (3 * US, 0, 0));
    }

    /// On a grid of 2 x 2, the message takes a detour of three links of 1 us, along the other dimension first. A line
    /// of two has no other route.
    #[test]
    fn a_cut_leg_goes_around_over_other_dimensions() {
        let line = [(DimensionShape::Mesh, 2, 2000, US)];
        let grid = create_topology(&[line[0], line[0]]);
        assert_eq!(simulate_link_failure(&grid, 1000, US / 2).0, 11 * US / 2);
        assert_eq!(
            simulate_link_failure(&create_topology(&line), 1000, US / 2).0,
            0
        );
    }

    proptest! {
        /// Compares the lost bytes with a byte-by-byte count. Each byte leaves 2,000 ps after the previous byte, and is
        /// then on the link for 1 us.
        #[test]
        fn lost_bytes_are_those_on_the_link(bytes in 1_u64..2000, at in 1..5 * US) {
            let ring = create_topology(&[(DimensionShape::Ring, 4, 2000, US)]);
            let (mut lost, mut unsent) = (0, 0);
            for byte in 0..bytes {
                let left = (byte + 1) * 2000;
                if left > at {
                    unsent += 1;
                } else if left + US > at {
                    lost += 1;
                }
            }
            let expected = match lost + unsent {
                0 => 2000 * bytes + US,
                again => at + 2000 * again + 3 * US,
            };
            let (arrives, effect) = simulate_link_failure(&ring, bytes, at);
            // Allow a difference of two bytes, because the bytes that are just leaving or arriving count partly.
            prop_assert!(arrives.abs_diff(expected) <= 4001, "{arrives}, expected {expected}");
            prop_assert!((effect.resent - f64::from(lost as u32)).abs() <= 1.001);
        }
    }
}
