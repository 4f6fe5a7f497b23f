//! Checks the times of messages over links against results computed by hand. Bandwidths are in ps per byte, so 1,000 B
//! at 2 ps/B take 2,000 ps.

use super::*;
use crate::network::test_harness::{
    PendingEvents, create_message, create_topology, cut_through_by_segment,
    simulate_injection_and_delivery_times,
};
use crate::network::{CollectiveLinkReservations, NetworkBackend};
use crate::topology::DimensionShape::{FullyConnected, Mesh, Ring, Switch};
use crate::topology::{LineSendPattern, SwitchingMode, Topology};
use chakram_base::ids::Npu;
use chakram_base::units::Time;

fn simulate_arrival_times(topology: &Topology, messages: &[(u64, u32, u32, u64)]) -> Vec<u64> {
    let ends =
        simulate_injection_and_delivery_times(&mut LinkContentionNetwork::new(topology), messages);
    ends.into_iter().map(|[_, arrived]| arrived).collect()
}

#[test]
fn one_link_carries_one_message_at_a_time() {
    // Both messages of the test need the link from NPU 1 to 2. NPU 1's message uses this link from 0 to 1,000 ps. The
    // other message arrives at 10 ps and uses the link afterwards. The reverse messages share no link.
    for shape in [Ring, Mesh] {
        let t = create_topology(&[(shape, 6, 1, 10)]);
        let both = [(0, 0, 2, 1000), (0, 1, 2, 1000)];
        assert_eq!(simulate_arrival_times(&t, &both), [2010, 1010]);
        let back = [(0, 0, 2, 1000), (0, 2, 0, 1000)];
        assert_eq!(simulate_arrival_times(&t, &back), [1020, 1020]);
    }
}

#[test]
fn a_mesh_goes_straight_where_a_ring_goes_round() {
    // From NPU 0 to 5 the ring has one link, in the shorter direction. On the mesh, the route from NPU 0 to 5 has five
    // links. The link from 2 to 3 is busy until 1,000 ps.
    let messages = [(0, 2, 3, 1000), (0, 0, 5, 1000)];
    assert_eq!(
        simulate_arrival_times(&create_topology(&[(Ring, 6, 1, 10)]), &messages),
        [1010, 1010]
    );
    assert_eq!(
        simulate_arrival_times(&create_topology(&[(Mesh, 6, 1, 10)]), &messages),
        [1010, 2030]
    );
}

#[test]
fn ties_on_a_ring_go_up() {
    // The message from NPU 0 to 2 goes through NPU 1, so it waits for the message that NPU 1 sends up. The message that
    // NPU 3 sends down causes no delay.
    let t = create_topology(&[(Ring, 4, 1, 10)]);
    let up = [(0, 1, 2, 1000), (0, 0, 2, 1000)];
    assert_eq!(simulate_arrival_times(&t, &up), [1010, 2010]);
    let down = [(0, 3, 2, 1000), (0, 0, 2, 1000)];
    assert_eq!(simulate_arrival_times(&t, &down), [1010, 1020]);
}

#[test]
fn who_passes_through_delays_what_an_npu_sends() {
    // At 5 ps no message has reached NPU 1 yet; at 15 ps the message from NPU 0 has reached NPU 1.
    let t = create_topology(&[(Ring, 6, 1, 10)]);
    let found = |at| {
        simulate_injection_and_delivery_times(
            &mut LinkContentionNetwork::new(&t),
            &[(0, 0, 2, 1000), (at, 1, 2, 1000)],
        )
    };
    assert_eq!(found(5), [[1000, 2015], [1005, 1015]]);
    assert_eq!(found(15), [[1000, 1020], [2010, 2020]]);
}

#[test]
fn a_switch_has_a_link_up_and_a_link_down() {
    // Three NPUs send to one NPU. The link from the switch to this NPU carries the messages one after another, in the
    // order of their senders. Messages in the other direction use a different link.
    let t = create_topology(&[(Switch, 4, 1, 10)]);
    let incast = [
        (0, 3, 0, 1000),
        (0, 1, 0, 1000),
        (0, 2, 0, 1000),
        (0, 0, 1, 1000),
    ];
    assert_eq!(
        simulate_arrival_times(&t, &incast),
        [3020, 1020, 2020, 1020]
    );
}

#[test]
fn fully_connected_npus_share_one_port_to_send_and_one_to_receive() {
    // Fully connected NPUs have the latency of one link. Messages from one NPU to three NPUs also follow one another.
    let t = create_topology(&[(FullyConnected, 4, 1, 10)]);
    let incast = [
        (0, 3, 0, 1000),
        (0, 1, 0, 1000),
        (0, 2, 0, 1000),
        (0, 0, 1, 1000),
    ];
    assert_eq!(
        simulate_arrival_times(&t, &incast),
        [3010, 1010, 2010, 1010]
    );
    let scatter = [(0, 0, 3, 1000), (0, 0, 1, 1000), (0, 0, 2, 1000)];
    assert_eq!(simulate_arrival_times(&t, &scatter), [1010, 2010, 3010]);
}

#[test]
fn routes_share_inner_and_outer_links() {
    // The network has two rings of 4 NPUs, joined by switches. The route from NPU 0 = (0, 0) to NPU 6 = (2, 1) passes
    // NPUs 0, 1 and 2, and then goes up from 2 to 6.
    let t = create_topology(&[(Ring, 4, 1, 10), (Switch, 2, 1, 10)]);
    let long = (0, 0, 6, 1000);
    assert_eq!(simulate_arrival_times(&t, &[long]), [1040]);
    // If a message 1 → 2 is first, the inner link is free at 1,000 ps, and the message from NPU 0 has waited since 10
    // ps.
    assert_eq!(
        simulate_arrival_times(&t, &[(0, 1, 2, 1000), long]),
        [1010, 2030]
    );
    // If a message 2 → 6 is first, the outer link is free at 1,000 ps, and the message from NPU 0 reaches this link at
    // 20 ps.
    assert_eq!(
        simulate_arrival_times(&t, &[(0, 2, 6, 1000), long]),
        [1020, 2020]
    );
    // The link 5 → 6 is on the other ring, so nothing waits.
    assert_eq!(
        simulate_arrival_times(&t, &[(0, 5, 6, 1000), long]),
        [1010, 1040]
    );
}

#[test]
fn message_from_a_fast_link_queues_at_a_busy_slow_link() {
    // Inner links take 1 ps/B, and outer links take 4 ps/B. The message 0 → 3 = (1, 1) reaches NPU 1 at 10 ps, but the
    // link from 1 to 3 is busy until 4,000 ps.
    let t = create_topology(&[(Ring, 2, 1, 10), (Ring, 2, 4, 10)]);
    assert_eq!(simulate_arrival_times(&t, &[(0, 0, 3, 1000)]), [4020]);
    assert_eq!(
        simulate_arrival_times(&t, &[(0, 1, 3, 1000), (0, 0, 3, 1000)]),
        [4010, 8010]
    );
}

#[test]
fn message_from_a_slow_link_occupies_a_fast_link_only_for_its_own_time() {
    // Inner links take 4 ps/B, and outer links take 1 ps/B. The whole message has reached NPU 1 at 4,010 ps, so it
    // occupies the second link from 3,010 to 4,010 ps.
    let t = create_topology(&[(Ring, 2, 4, 10), (Ring, 2, 1, 10)]);
    let slow = (0, 0, 3, 1000);
    assert_eq!(simulate_arrival_times(&t, &[slow]), [4020]);
    // Until 3,010 ps, the link can carry another message, such as one that begins at 10 ps. If another message began at
    // 3,005 ps, the link would not be free in time.
    assert_eq!(
        simulate_arrival_times(&t, &[slow, (10, 1, 3, 1000)]),
        [4020, 1020]
    );
    assert_eq!(
        simulate_arrival_times(&t, &[slow, (3005, 1, 3, 1000)]),
        [5015, 4015]
    );
    assert_eq!(
        simulate_arrival_times(&t, &[slow, (3015, 1, 3, 1000)]),
        [4020, 5020]
    );
}

#[test]
fn fast_middle_link_is_occupied_late_and_only_for_its_own_time() {
    // Links take 4, 1 and 2 ps/B. The last link needs 2,000 ps from 2,020 ps on, so the message crosses the middle link
    // from 2,010 ps on.
    let t = create_topology(&[(Ring, 2, 4, 10), (Ring, 2, 1, 10), (Ring, 2, 2, 10)]);
    assert_eq!(simulate_arrival_times(&t, &[(0, 0, 7, 1000)]), [4030]);
    // A message 1 → 3 at 2,005 ps occupies the middle link until 3,005 ps and arrives at 3,015 ps. At 3,005 ps, the
    // other message begins on the middle link. The head of the other message reaches NPU 3 at 3,015 ps and the tail at
    // 4,020 ps. The other message occupies the last link until 5,015 ps.
    assert_eq!(
        simulate_arrival_times(&t, &[(0, 0, 7, 1000), (2005, 1, 3, 1000)]),
        [5025, 3015]
    );
    // If the message 1 → 3 begins at 2,015 ps, the other message already has its place in the middle link's queue, from
    // 2,010 to 3,010 ps.
    assert_eq!(
        simulate_arrival_times(&t, &[(0, 0, 7, 1000), (2015, 1, 3, 1000)]),
        [4030, 4020]
    );
}

#[test]
fn devices_wait_for_a_segment_or_for_all() {
    let t = create_topology(&[(Ring, 8, 1, 10)]);
    for (switching, alone, first, second) in [
        // The route has three links. The message to NPU 3 follows a message that begins at NPU 2 at time 0, so it takes
        // 1,000 + 1,000 + 10 ps.
        (SwitchingMode::IDEAL, 1030, 1010, 2010),
        // Devices wait for two segments of 100 B, which take 200 ps more.
        (cut_through_by_segment(100), 1230, 1010, 2010),
        (cut_through_by_segment(1000), 3030, 1010, 3030),
        (SwitchingMode::StoreAndForward, 3030, 1010, 3030),
    ] {
        let t = t.clone().with_switching(switching);
        assert_eq!(simulate_arrival_times(&t, &[(0, 0, 3, 1000)]), [alone]);
        assert_eq!(
            simulate_arrival_times(&t, &[(0, 2, 3, 1000), (0, 0, 3, 1000)]),
            [first, second]
        );
    }
    // The wire between two fully connected NPUs is one link, so no device waits for a segment.
    let t = create_topology(&[(FullyConnected, 3, 1, 10), (Switch, 2, 1, 10)])
        .with_switching(cut_through_by_segment(100));
    assert_eq!(simulate_arrival_times(&t, &[(0, 0, 1, 1000)]), [1010]);
    // With a switch after the wire, the message waits for two segments: before the link to the switch and before the
    // link from the switch.
    assert_eq!(simulate_arrival_times(&t, &[(0, 0, 4, 1000)]), [1230]);
}

#[test]
fn gathered_segments_go_on_so_that_the_last_one_leaves_on_arrival() {
    // The message passes links of 4 and then 1 ps/B, in segments of 100 B. The last segment arrives at 4,010 ps, and
    // the 9 segments before it take 900 ps, so the message continues from 3,110 to 4,110 ps.
    let t = create_topology(&[(Ring, 2, 4, 10), (Ring, 2, 1, 10)])
        .with_switching(cut_through_by_segment(100));
    assert_eq!(simulate_arrival_times(&t, &[(0, 0, 3, 1000)]), [4120]);
    assert_eq!(
        simulate_arrival_times(&t, &[(0, 0, 3, 1000), (3105, 1, 3, 1000)]),
        [5115, 4115]
    );
    assert_eq!(
        simulate_arrival_times(&t, &[(0, 0, 3, 1000), (3115, 1, 3, 1000)]),
        [4120, 5120]
    );
}

#[test]
fn empty_messages_keep_their_place_in_the_queue() {
    let t = create_topology(&[(Switch, 3, 1, 10)]);
    assert_eq!(simulate_arrival_times(&t, &[(0, 0, 1, 0)]), [20]);
    assert_eq!(
        simulate_arrival_times(&t, &[(0, 0, 2, 1000), (0, 0, 1, 0)]),
        [1020, 1020]
    );
}

#[test]
fn lines_whose_messages_pass_no_npu_are_conflict_free() {
    let t = create_topology(&[
        (Ring, 4, 1, 0),
        (Mesh, 4, 1, 0),
        (Mesh, 2, 1, 0),
        (Switch, 4, 1, 0),
    ]);
    let network = LinkContentionNetwork::new(&t);
    let apart = |d, members, neighbours| {
        let pattern = match neighbours {
            true => LineSendPattern::Neighbours,
            false => LineSendPattern::Any,
        };
        network.is_send_pattern_conflict_free(d, members, pattern)
    };
    for d in [0, 1] {
        assert!(apart(d, 4, true) && !apart(d, 4, false) && !apart(d, 3, true));
    }
    assert!(apart(2, 2, false) && apart(3, 3, false));
}

#[test]
fn a_link_is_idle_when_nothing_is_there_or_to_come() {
    let t = create_topology(&[(Ring, 6, 1, 10)]);
    let mut network = LinkContentionNetwork::new(&t);
    let mut pending = PendingEvents::default();
    network.submit_message(Time::ZERO, &create_message(0, 0, 2, 1000), &mut pending);
    let idle = |network: &LinkContentionNetwork<'_>, at| {
        [5, 0, 1, 2, 3].map(|npu| network.are_npu_links_idle(Time(at), Npu(npu), 0))
    };
    // Link 0 → 1 is busy until 1,000 ps. The message has not reached link 1 → 2 yet, which it will use from 10 to 1,010
    // ps.
    assert_eq!(idle(&network, 0), [true, false, false, false, true]);
    pending.run_until_and_record_ends(&mut network, Time(10), &mut [[0; 2]]);
    assert_eq!(idle(&network, 999), [true, false, false, false, true]);
    assert_eq!(idle(&network, 1000), [true, true, false, false, true]);
    assert_eq!(idle(&network, 1010), [true; 5]);
}

#[test]
fn lowest_reservation_is_found_on_any_link_of_the_route() {
    let t = create_topology(&[(Ring, 6, 1, 10), (Switch, 2, 1, 10)]);
    let mut network = LinkContentionNetwork::new(&t);
    network.reserve_or_release_npu_links(Npu(2), 0, Some(7));
    network.reserve_or_release_npu_links(Npu(3), 1, Some(3));
    let claimed = |network: &LinkContentionNetwork<'_>, a, b| {
        network.lowest_owner_of_disturbed_reservations(Time::ZERO, (Npu(a).into(), Npu(b).into()))
    };
    // The claim applies to links 1 → 2, 2 → 3, 3 → 2 and 2 → 1.
    assert_eq!(claimed(&network, 0, 3), Some(7));
    assert_eq!(
        (claimed(&network, 0, 1), claimed(&network, 3, 4)),
        (None, None)
    );
    // The route from NPU 3 along the second dimension has one claim. On a route over both dimensions, the lower of two
    // claims is returned.
    assert_eq!(
        (claimed(&network, 3, 9), claimed(&network, 1, 9)),
        (Some(3), Some(3))
    );
    network.reserve_or_release_npu_links(Npu(3), 1, None);
    assert_eq!(
        (claimed(&network, 3, 9), claimed(&network, 1, 9)),
        (None, Some(7))
    );
    network.reserve_or_release_npu_links(Npu(2), 0, None);
    assert_eq!(
        (claimed(&network, 0, 9), claimed(&network, 1, 2)),
        (None, None)
    );
}
