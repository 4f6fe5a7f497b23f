//! Checks the times of messages through ports against results computed by hand. Bandwidths are in ps per byte, so 1,000
//! B at 2 ps/B take 2,000 ps.

use super::*;
use crate::network::test_harness::{
    PendingEvents, create_message, create_topology, cut_through_by_segment,
    simulate_injection_and_delivery_times,
};
use crate::network::{CollectiveLinkReservations, NetworkBackend};
use crate::topology::DimensionShape::{FullyConnected, Ring, Switch};
use crate::topology::SwitchingMode;
use chakram_base::ids::Npu;
use chakram_base::units::{Span, Time, UnroundedBufferShare};

#[test]
fn all_that_leaves_takes_turns_and_all_that_enters_too() {
    let t = create_topology(&[(Switch, 4, 2, 50)]);
    // The message 0 → 1 occupies the egress until 2,000 ps and arrives 100 ps later. The message 0 → 2 occupies the
    // egress until 4,000 ps, and its first byte arrives at 2,100 ps. The message 3 → 2 arrived at 150 ps and occupies
    // the ingress until 2,150 ps, so the message 0 → 2 occupies the ingress until 4,150 ps.
    let messages = [(0, 0, 1, 1000), (0, 0, 2, 1000), (50, 3, 2, 1000)];
    let found =
        simulate_injection_and_delivery_times(&mut PortContentionNetwork::new(&t), &messages);
    assert_eq!(found, [[2000, 2100], [4000, 4150], [2050, 2150]]);
}

#[test]
fn dimensions_have_ports_of_their_own() {
    // One message goes from NPU 0 to 1 along the first dimension, and the other from NPU 0 to 4 along the second
    // dimension, so they share no port.
    let t = create_topology(&[(Ring, 4, 2, 50), (Switch, 2, 4, 10)]);
    let found = simulate_injection_and_delivery_times(
        &mut PortContentionNetwork::new(&t),
        &[(0, 0, 1, 1000), (0, 0, 4, 1000)],
    );
    assert_eq!(found, [[2000, 2050], [4000, 4020]]);
}

/// Inner links take 1 ps/B, and outer links take 4 ps/B. Messages from NPUs 0 and 1 to NPU (1, 1) and beyond leave one
/// after another through the port of NPU 1 = (1, 0), in 4,000 ps each.
#[test]
fn messages_passing_through_an_npu_queue_at_its_port() {
    let t = create_topology(&[(Switch, 2, 1, 0), (Switch, 2, 4, 10)]);
    let found = simulate_injection_and_delivery_times(
        &mut PortContentionNetwork::new(&t),
        &[(0, 1, 3, 1000), (0, 0, 3, 1000), (0, 0, 2, 1000)],
    );
    assert_eq!(found, [[4000, 4020], [4000, 8020], [4000, 4020]]);
}

#[test]
fn slowest_link_at_the_ends_or_between_sets_the_message_rate() {
    // Links take 2, 8 and 1 ps/B. The message of 1,000 B leaves in 8,000 ps. With a latency of 5 + 5 + 2 x 5 ps, it
    // arrives at 8,020 ps.
    let t = create_topology(&[
        (Ring, 2, 2, 5),
        (FullyConnected, 2, 8, 5),
        (Switch, 2, 1, 5),
    ]);
    let found = simulate_injection_and_delivery_times(
        &mut PortContentionNetwork::new(&t),
        &[(0, 0, 7, 1000)],
    );
    assert_eq!(found, [[8000, 8020]]);
    // The route from NPU 2 = (0, 1, 0) crosses no slow dimension, so the message takes 2,000 + 5 + 2 x 5 ps. Both
    // messages leave along the last dimension through the port of NPU 3 = (1, 1, 0). The message from NPU 2 has ended
    // long before the other message reaches this port.
    let fast = [(0, 0, 7, 1000), (0, 2, 7, 1000)];
    assert_eq!(
        simulate_injection_and_delivery_times(&mut PortContentionNetwork::new(&t), &fast),
        [[8000, 8020], [2000, 2015]]
    );
    // The message from NPU 3 at 7,000 ps occupies the port until 8,000 ps. The first message reaches the port at 7,010
    // ps, waits, and occupies the port until 9,000 ps.
    let late = [(0, 0, 7, 1000), (7000, 3, 7, 1000)];
    assert_eq!(
        simulate_injection_and_delivery_times(&mut PortContentionNetwork::new(&t), &late),
        [[8000, 9010], [8000, 8010]]
    );
}

#[test]
fn devices_between_ports_take_their_time() {
    // Three links of 2 ps/B and 50 ps take 150 + 2,000 ps. Cut-through adds two segments of 100 B, and
    // store-and-forward adds two whole messages.
    let t = create_topology(&[(Ring, 6, 2, 50)]);
    for (switching, end) in [
        (SwitchingMode::IDEAL, 2150),
        (cut_through_by_segment(100), 2550),
        (SwitchingMode::StoreAndForward, 6150),
    ] {
        let t = t.clone().with_switching(switching);
        assert_eq!(
            simulate_injection_and_delivery_times(
                &mut PortContentionNetwork::new(&t),
                &[(0, 0, 3, 1000)]
            ),
            [[2000, end]]
        );
    }
}

/// Messages of 1,000 and 3,000 B from NPUs 1 and 2 reach NPU 0 at the same instant. The message from NPU 1 enters
/// first, regardless of the op numbers.
#[test]
fn simultaneous_messages_enter_by_sender_number() {
    let t = create_topology(&[(Switch, 4, 1, 50)]);
    let [one, two] = [(0, 1, 0, 1000), (0, 2, 0, 3000)];
    assert_eq!(
        simulate_injection_and_delivery_times(&mut PortContentionNetwork::new(&t), &[one, two]),
        [[1000, 1100], [3000, 4100]]
    );
    assert_eq!(
        simulate_injection_and_delivery_times(&mut PortContentionNetwork::new(&t), &[two, one]),
        [[3000, 4100], [1000, 1100]]
    );
}

#[test]
fn a_port_is_idle_when_nothing_is_there_or_to_come() {
    let t = create_topology(&[(Switch, 4, 1, 50)]);
    let mut network = PortContentionNetwork::new(&t);
    let mut pending = PendingEvents::default();
    network.submit_message(Time::ZERO, &create_message(0, 1, 2, 1000), &mut pending);
    let idle = |network: &PortContentionNetwork<'_>, at| {
        [0, 1, 2].map(|npu| network.are_npu_links_idle(Time(at), Npu(npu), 0))
    };
    // The message occupies the egress until 1,000 ps, and the ingress from 100 to 1,100 ps. The ingress is not idle
    // before 100 ps either, because it expects the message.
    assert_eq!(idle(&network, 0), [true, false, false]);
    pending.run_until_and_record_ends(&mut network, Time(100), &mut [[0; 2]]);
    assert_eq!(idle(&network, 999), [true, false, false]);
    assert_eq!(idle(&network, 1000), [true, true, false]);
    assert_eq!(idle(&network, 1100), [true; 3]);
}

#[test]
fn lowest_reservation_is_found_at_sender_or_receiver_port() {
    let t = create_topology(&[(Switch, 4, 1, 50), (Switch, 2, 1, 50)]);
    let mut network = PortContentionNetwork::new(&t);
    network.reserve_or_release_npu_links(Npu(1), 0, Some(7));
    network.reserve_or_release_npu_links(Npu(2), 0, Some(5));
    let claimed = |network: &PortContentionNetwork<'_>, a, b| {
        network.lowest_owner_of_disturbed_reservations(Time::ZERO, (Npu(a).into(), Npu(b).into()))
    };
    assert_eq!(claimed(&network, 1, 3), Some(7));
    assert_eq!(claimed(&network, 1, 2), Some(5));
    assert_eq!(claimed(&network, 0, 3), None);
    // The claim of NPU 5 = (1, 1) is along the second dimension. The route to NPU 6 = (2, 1) goes from 1 to 2 along the
    // first dimension.
    assert_eq!(
        (claimed(&network, 5, 1), claimed(&network, 1, 6)),
        (None, Some(5))
    );
    network.reserve_or_release_npu_links(Npu(1), 0, None);
    network.reserve_or_release_npu_links(Npu(2), 0, None);
    assert_eq!(claimed(&network, 1, 2), None);
}

#[test]
fn uncontended_time_is_latency_plus_serialization() {
    let t = create_topology(&[(Ring, 4, 2, 50), (Switch, 2, 4, 10)]);
    let network = PortContentionNetwork::new(&t);
    // The uncontended time is 50 + 20 + 4,000 ps. A message to the same NPU has no uncontended time.
    let alone =
        |b| network.uncontended_time((Npu(0), Npu(b)), UnroundedBufferShare::from_bytes(1000));
    assert_eq!((alone(5), alone(0)), (Some(Span(4070)), None));
}
