//! Compares matches with hand-computed results, and with a search over all pairs.

use super::collectives::CollectiveDifference;
use super::*;
use crate::format::CollectiveKind;
use proptest::prelude::*;

/// Builds the halves on ranks 0 to 2 from (peer, true for a receive, tag), in program order.
fn build_message_halves(ranks: &[Vec<(u32, bool, i32)>]) -> Vec<MessageHalf> {
    let ranks = (0..).zip(ranks);
    let half = |rank, i, &(peer, receive, tag): &(u32, bool, i32)| {
        MessageHalf::new(rank, peer, receive, tag, (), (rank, i))
    };
    let all = ranks.flat_map(|(rank, list)| {
        let list = (0..).zip(list);
        list.map(move |(i, one)| half(rank, i, one))
    });
    all.collect()
}

#[test]
fn sends_meet_receives_in_order_and_what_is_left_is_alone() {
    // Rank 0 sends to rank 1 twice with tag 5 and once with tag 6. Rank 1 receives tag 5 once, between two other
    // receives.
    let sends = vec![(1, false, 5), (1, false, 6), (1, false, 5)];
    let receives = vec![(0, true, 6), (0, true, 5)];
    let mut halves = build_message_halves(&[sends, receives]);
    let found: Vec<_> = match_messages_by_channel(&mut halves).collect();
    let pairs: Vec<_> = found
        .iter()
        .map(|of| of.matched_pairs().collect::<Vec<_>>())
        .collect();
    assert_eq!(pairs, [[((0, 0), (1, 1))], [((0, 1), (1, 0))]]);
    let [five, six] = &found[..] else {
        panic!("two tags")
    };
    let (alone, there) = five.unmatched_and_all_opposite_halves();
    assert_eq!((alone[0].at, there.len()), ((0, 2), 1));
    assert!(six.unmatched_and_all_opposite_halves().0.is_empty());
    // If all sizes are equal, the first mismatch is the number of messages. Otherwise it is the first message with
    // different sizes.
    let count = five.find_disagreement(|_| 8).expect("one is alone");
    assert!(matches!(count, MessageDisagreement::Count { k: 1, half, .. } if half.at == (0, 2)));
    assert_eq!(six.find_disagreement(|_| 8), None);
    let size = five.find_disagreement(|(rank, _)| u64::from(rank));
    assert!(matches!(size, Some(MessageDisagreement::Size { k: 0, .. })));
    let named = |half: &MessageHalf| format!("rank {}", half.own_and_other_rank().0);
    assert_eq!(
        count.describe_disagreement(named, |_| 8),
        "rank 0 has no partner: this is send 1 (counted from 0) to rank 1 with tag 5 and 8 bytes, but \
         rank 1 has only 1 such receives"
    );
}

proptest! {
    /// On one channel, a send and a receive must match if and only if the number of sends before the send equals the
    /// number of receives before the receive. Every half must either be in exactly one pair or be unmatched.
    #[test]
    fn sends_match_receives_with_equal_preceding_counts(
        ranks in prop::collection::vec(prop::collection::vec((0_u32..3, any::<bool>(), 0_i32..2), 0..9), 3)
    ) {
        let all = build_message_halves(&ranks);
        let before = |half: &MessageHalf| {
            let same = |other: &&MessageHalf| other.channel == half.channel
                && other.receive == half.receive && other.at < half.at;
            all.iter().filter(same).count()
        };
        let mut expected = Vec::new();
        for send in all.iter().filter(|half| !half.receive) {
            let receives = all.iter().filter(|half| half.receive && half.channel == send.channel);
            let partner = receives.filter(|half| before(half) == before(send));
            expected.extend(partner.map(|half| (send.at, half.at)));
        }
        let mut sorted = all.clone();
        let (mut pairs, mut alone) = (Vec::new(), 0);
        for found in match_messages_by_channel(&mut sorted) {
            pairs.extend(found.matched_pairs());
            alone += found.unmatched_and_all_opposite_halves().0.len();
        }
        prop_assert_eq!(2 * pairs.len() + alone, all.len());
        pairs.sort_unstable();
        prop_assert_eq!(pairs, expected);
    }
}

#[test]
fn members_disagree_where_one_first_differs() {
    use CollectiveKind::{AllReduce, Barrier, Broadcast};
    let call = |kind, bytes, root| CollectiveSignature { kind, bytes, root };
    // Ranks 0 to 3 make these calls in one group; rank 1 shares the trace of rank 0.
    let said = [
        vec![call(AllReduce, 8, None), call(Broadcast, 4, Some(0))],
        vec![],
        vec![call(AllReduce, 8, None), call(Broadcast, 4, Some(1))],
        vec![call(AllReduce, 9, None), call(Barrier, 0, None)],
    ];
    let calls_of = said.clone().map(|calls| {
        let numbers = 0..calls.len() as u32;
        TraceCallsByGroupSlot::new(1, numbers.map(|call| (0, call)))
    });
    let member = |rank: u32, of: usize| calls_of[of].calls_of_member(rank, [0]);
    let signature = |(rank, call): RankAndCommIndex| said[rank as usize][call as usize];
    let [first, alike, root, size] = [member(0, 0), member(1, 0), member(2, 2), member(3, 3)];
    assert_eq!(find_disagreement(&first, [&alike], signature), None);
    let found = |others: &[&MemberCalls<'_>]| {
        let found = find_disagreement(&first, others.iter().copied(), signature);
        found.map(|found| (found.k, found.difference, found.other))
    };
    assert_eq!(found(&[&root]), Some((1, CollectiveDifference::Root, 2)));
    // The result is the earlier collective, no matter which member disagrees.
    assert_eq!(
        found(&[&root, &size]),
        Some((0, CollectiveDifference::Size, 3))
    );
    let silent = calls_of[1].calls_of_member(1, []);
    assert_eq!(found(&[&silent]), Some((0, CollectiveDifference::Count, 1)));
}

#[test]
fn calls_by_several_slots_are_in_program_order() {
    let slots = [0, 1, 0, 2, 1];
    let calls = TraceCallsByGroupSlot::new(3, slots.into_iter().zip(0..));
    let of = |slots: &[u32]| {
        calls
            .calls_of_member(0, slots.iter().copied())
            .calls
            .into_owned()
    };
    assert_eq!(of(&[0]), [0, 2]);
    assert_eq!(of(&[1, 0]), [0, 1, 2, 4]);
    assert_eq!(of(&[]), [0; 0]);
}
