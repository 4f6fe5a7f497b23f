//! Point-to-point traffic patterns: messages between pairs of ranks.

use super::{
    MOST_NODES, MOST_WORK, PatternOptionError, TraceEmitter, TraceGenerator, check_at_least,
    check_limit, check_rank_count, refused_option_value_error,
};
use chakram_base::random::split_mix;
use chakram_base::units::Span;
use chakram_trace::format::{Op, TraceError};

/// Messages between pairs of ranks, repeated `count` times. The i-th message between two ranks has tag i, so that tags
/// identify messages.
#[derive(Clone, Debug, PartialEq)]
pub struct P2pPattern {
    /// Senders and receivers of each round.
    pub traffic: TrafficPattern,
    /// Number of ranks, at least 2.
    pub ranks: u32,
    /// Number of bytes per message.
    pub bytes: u64,
    /// Number of rounds, up to 2^31 - 1.
    pub count: u32,
}

/// Senders and receivers of each round. A rank that neither sends nor receives has one empty kernel, so that every rank
/// has a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPattern {
    /// Rank 0 sends to the last rank, which replies after it has received the message. The next round begins after the
    /// reply.
    PingPong,
    /// Every rank r sends to r + 1, and the last rank sends to rank 0. In this and all following patterns except
    /// incast, a rank sends and receives at the same time. It begins the next round when both its messages are
    /// complete.
    Ring,
    /// Every rank r sends to r plus this stride, modulo the number of ranks.
    Stride(u32),
    /// Every rank except 0 sends to rank 0. Each sender sends its messages one after another; different senders are
    /// independent.
    Incast,
    /// Ranks 0 and 1 send to each other, then ranks 2 and 3, and so on. If the number of ranks is
    /// odd, the last rank is idle.
    Pairs,
    /// Every rank sends to one other rank. A random permutation drawn with this seed determines the receivers. No rank
    /// sends to itself.
    Random(u64),
}

impl P2pPattern {
    /// Returns one round of `traffic` with `bytes` bytes per message.
    pub fn new(traffic: TrafficPattern, bytes: u64, ranks: u32) -> Self {
        Self {
            traffic,
            ranks,
            bytes,
            count: 1,
        }
    }

    pub(super) fn prepare_generator(self) -> Result<P2pGenerator, PatternOptionError> {
        check_rank_count(self.ranks, 2)?;
        check_at_least("count", self.count, 1)?;
        check_limit("tags", self.count.into(), i32::MAX as u64, "a lower count")?;
        check_limit("bytes of a message", self.bytes.into(), MOST_WORK, "fewer")?;
        let per_round = match self.traffic {
            TrafficPattern::Incast => self.ranks - 1,
            _ => 2,
        };
        let most = u128::from(self.count) * u128::from(per_round);
        check_limit(
            "nodes of a rank",
            most,
            MOST_NODES,
            "a lower count or fewer ranks",
        )?;
        let (mut to, mut from) = (Vec::new(), Vec::new());
        match self.traffic {
            TrafficPattern::Stride(stride) if stride.is_multiple_of(self.ranks) => {
                let expected = format!(
                    "a number that is not a multiple of {}, the number of ranks",
                    self.ranks
                );
                return Err(refused_option_value_error("stride", stride, expected));
            }
            TrafficPattern::Random(seed) => {
                to = shuffle_to_cycle(self.ranks, seed);
                from = vec![0; to.len()];
                for (rank, peer) in (0..).zip(&to) {
                    from[*peer as usize] = rank;
                }
            }
            _ => {}
        }
        Ok(P2pGenerator {
            options: self,
            to,
            from,
        })
    }
}

/// Returns a random permutation of 0..`n` that consists of a single cycle (Sattolo's shuffle). Each
/// swap partner is chosen uniformly, to within 2^-32.
fn shuffle_to_cycle(n: u32, seed: u64) -> Vec<u32> {
    let mut permutation: Vec<u32> = (0..n).collect();
    let mut state = seed;
    for last in (1..permutation.len()).rev() {
        // A multiplication and a shift map the random number to 0..last without a division. `last` is excluded, because
        // otherwise the permutation could have several cycles.
        let other = (u128::from(split_mix(&mut state)) * last as u128) >> 64;
        permutation.swap(last, other as usize);
    }
    permutation
}

/// Generator of messages, with checked options.
#[derive(Debug)]
pub(super) struct P2pGenerator {
    options: P2pPattern,
    /// Receiver of each rank's messages; empty unless the traffic is random.
    to: Vec<u32>,
    from: Vec<u32>,
}

impl P2pGenerator {
    /// Returns the rank to which `rank` sends, and the rank from which it receives. If it is idle, both are `rank`
    /// itself. This is not used for incast, where rank 0 has several senders.
    fn destination_and_source_of(&self, rank: u32) -> (u32, u32) {
        let ranks = self.options.ranks;
        let shifted = |by: u32| {
            let (rank, ranks) = (u64::from(rank), u64::from(ranks));
            let by = u64::from(by) % ranks;
            let (to, from) = ((rank + by) % ranks, (rank + ranks - by) % ranks);
            (to as u32, from as u32)
        };
        let both = |peer| (peer, peer);
        match self.options.traffic {
            TrafficPattern::PingPong if rank == 0 => both(ranks - 1),
            TrafficPattern::PingPong if rank == ranks - 1 => both(0),
            TrafficPattern::PingPong | TrafficPattern::Incast => both(rank),
            TrafficPattern::Ring => shifted(1),
            TrafficPattern::Stride(stride) => shifted(stride),
            TrafficPattern::Pairs => {
                both(Some(rank ^ 1).filter(|peer| *peer < ranks).unwrap_or(rank))
            }
            TrafficPattern::Random(_) => (self.to[rank as usize], self.from[rank as usize]),
        }
    }

    fn emit_send_or_receive(
        &self,
        rank: u32,
        receive: bool,
        peer: u32,
        round: u32,
        data: &[u64],
        out: &mut TraceEmitter<'_>,
    ) -> Result<u64, TraceError> {
        if receive {
            out.set_name(format_args!("round{round}/receive-from-{peer}"))
        } else {
            out.set_name(format_args!("round{round}/send-to-{peer}"))
        }
        let op = Op::Message {
            receive,
            peer,
            tag: round as i32,
            bytes: self.options.bytes,
            own: Some(rank),
            host: false,
        };
        out.emit_node(op, None, Span::ZERO, data)
    }

    fn emit_incast(&self, rank: u32, out: &mut TraceEmitter<'_>) -> Result<(), TraceError> {
        let senders = match rank {
            0 => 1..self.options.ranks,
            _ => rank..rank + 1,
        };
        // Each round has one node per sender, so a sender's previous message is `senders` nodes earlier.
        let back = u64::from(senders.end - senders.start);
        for round in 0..self.options.count {
            for sender in senders.clone() {
                let peer = if rank == 0 { sender } else { 0 };
                let before = (out.last + 1).checked_sub(back).filter(|id| *id != 0);
                self.emit_send_or_receive(rank, rank == 0, peer, round, before.as_slice(), out)?;
            }
        }
        Ok(())
    }
}

impl TraceGenerator for P2pGenerator {
    fn suggest_smaller(&self) -> &'static str {
        "a lower count"
    }

    fn rank_count(&self) -> u32 {
        self.options.ranks
    }

    fn shape_class_of_rank(&self, rank: u32) -> u32 {
        match self.options.traffic {
            TrafficPattern::PingPong if rank != 0 && rank != self.options.ranks - 1 => 1,
            _ => rank,
        }
    }

    fn node_count_of_rank(&self, rank: u32) -> u64 {
        let count = u64::from(self.options.count);
        match self.options.traffic {
            TrafficPattern::Incast if rank == 0 => count * u64::from(self.options.ranks - 1),
            TrafficPattern::Incast => count,
            _ if self.destination_and_source_of(rank).0 == rank => 1,
            _ => count * 2,
        }
    }

    fn emit_nodes(&self, rank: u32, out: &mut TraceEmitter<'_>) -> Result<(), TraceError> {
        let (to, from) = match self.options.traffic {
            TrafficPattern::Incast => return self.emit_incast(rank, out),
            _ => self.destination_and_source_of(rank),
        };
        if to == rank {
            return out.emit_placeholder_for_idle_rank();
        }
        // In ping-pong, the second message of a round waits for the first; otherwise, the messages of a round are
        // independent.
        let in_turn = self.options.traffic == TrafficPattern::PingPong;
        let mut halves = [(false, to), (true, from)];
        if in_turn && rank != 0 {
            halves.reverse();
        }
        let [(receives, peer), (then_receives, then_peer)] = halves;
        let mut ids = [0; 2];
        for round in 0..self.options.count {
            let before = match round {
                0 => &[],
                _ if in_turn => &ids[1..],
                _ => &ids[..],
            };
            let first = [self.emit_send_or_receive(rank, receives, peer, round, before, out)?];
            let before = if in_turn { &first } else { before };
            let second =
                self.emit_send_or_receive(rank, then_receives, then_peer, round, before, out)?;
            ids = [first[0], second];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{EmittedNode, check_and_record_every_rank, rejection_message};
    use super::super::{CheckedWorkloadPattern, WorkloadPattern};
    use super::*;

    fn generate_p2p_nodes_of_all_ranks(
        traffic: TrafficPattern,
        ranks: u32,
        count: u32,
    ) -> Vec<Vec<EmittedNode>> {
        let mut options = P2pPattern::new(traffic, 1000, ranks);
        options.count = count;
        check_and_record_every_rank(WorkloadPattern::P2p(options))
    }

    fn list_node_names(nodes: &[EmittedNode]) -> Vec<&str> {
        nodes.iter().map(|node| &node.name[..]).collect()
    }

    fn list_dependency_ids(nodes: &[EmittedNode]) -> Vec<&[u64]> {
        nodes.iter().map(|node| &node.data[..]).collect()
    }

    #[test]
    fn every_traffic_balances_for_every_number_of_ranks() {
        for ranks in 2..10 {
            for traffic in [
                TrafficPattern::PingPong,
                TrafficPattern::Ring,
                TrafficPattern::Stride(ranks + 1),
                TrafficPattern::Stride(u32::MAX - u32::MAX % ranks - 1),
                TrafficPattern::Incast,
                TrafficPattern::Pairs,
                TrafficPattern::Random(ranks.into()),
            ] {
                generate_p2p_nodes_of_all_ranks(traffic, ranks, 3);
            }
        }
    }

    #[test]
    fn a_ping_is_answered_when_it_has_come() {
        let ranks = generate_p2p_nodes_of_all_ranks(TrafficPattern::PingPong, 4, 2);
        let ping = [
            "round0/send-to-3",
            "round0/receive-from-3",
            "round1/send-to-3",
        ];
        assert_eq!(list_node_names(&ranks[0])[..3], ping);
        assert_eq!(list_dependency_ids(&ranks[0]), [&[][..], &[1], &[2], &[3]]);
        assert_eq!(
            list_node_names(&ranks[3])[..2],
            ["round0/receive-from-0", "round0/send-to-0"]
        );
        assert_eq!(
            (list_node_names(&ranks[1]), list_node_names(&ranks[2])),
            (vec!["idle"], vec!["idle"])
        );
        let job = CheckedWorkloadPattern::new(WorkloadPattern::P2p(P2pPattern::new(
            TrafficPattern::PingPong,
            1,
            4,
        )))
        .unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(|rank| job.representative_of_identical_ranks(rank)),
            [0, 1, 1, 3]
        );
    }

    #[test]
    fn a_round_of_a_ring_waits_for_both_halves_of_the_last() {
        let ranks = generate_p2p_nodes_of_all_ranks(TrafficPattern::Ring, 5, 2);
        assert_eq!(
            list_node_names(&ranks[0])[..2],
            ["round0/send-to-1", "round0/receive-from-4"]
        );
        assert_eq!(
            list_dependency_ids(&ranks[0]),
            [&[][..], &[], &[1, 2], &[1, 2]]
        );
        // Modulo 5, rank 4 sends to 4 + 2 = 6 = 1 and receives from 4 - 2 = 2.
        let ranks = generate_p2p_nodes_of_all_ranks(TrafficPattern::Stride(2), 5, 1);
        assert_eq!(
            list_node_names(&ranks[4]),
            ["round0/send-to-1", "round0/receive-from-2"]
        );
    }

    #[test]
    fn senders_of_an_incast_do_not_wait_for_each_other() {
        let ranks = generate_p2p_nodes_of_all_ranks(TrafficPattern::Incast, 4, 2);
        // Three senders send for two rounds. Each receive waits for the previous receive from the same sender, 3 nodes
        // back.
        assert_eq!(
            list_dependency_ids(&ranks[0]),
            [&[][..], &[], &[], &[1], &[2], &[3]]
        );
        assert_eq!(list_node_names(&ranks[0])[4], "round1/receive-from-2");
        assert_eq!(list_dependency_ids(&ranks[2]), [&[][..], &[1]]);
    }

    #[test]
    fn unpaired_rank_is_idle() {
        let ranks = generate_p2p_nodes_of_all_ranks(TrafficPattern::Pairs, 5, 1);
        assert_eq!(
            list_node_names(&ranks[3]),
            ["round0/send-to-2", "round0/receive-from-2"]
        );
        assert_eq!(list_node_names(&ranks[4]), ["idle"]);
    }

    #[test]
    fn random_permutations_are_one_cycle_and_follow_the_seed() {
        for seed in 0..20 {
            let permutation = shuffle_to_cycle(100, seed);
            // All 100 ranks are in a single cycle, so a walk first returns to its start after 100 steps.
            let mut at = 0;
            let steps = (1..).find(|_| {
                at = permutation[at as usize];
                at == 0
            });
            assert_eq!(steps, Some(100));
        }
        assert_ne!(shuffle_to_cycle(100, 1), shuffle_to_cycle(100, 2));
    }

    #[test]
    fn options_that_make_no_sense_say_why() {
        let why = |traffic, ranks, count| {
            let mut options = P2pPattern::new(traffic, 1, ranks);
            options.count = count;
            rejection_message(WorkloadPattern::P2p(options))
        };
        let text = why(TrafficPattern::Stride(8), 4, 1);
        assert_eq!(
            text,
            "`stride` is 8; expected a number that is not a multiple of 4, the number of ranks"
        );
        assert!(why(TrafficPattern::Ring, 1, 1).contains("`ranks` is 1; expected 2 or more"));
        assert!(why(TrafficPattern::Ring, 2, 0).contains("`count` is 0"));
        assert!(why(TrafficPattern::Ring, 2, 1 << 31).contains("tags would be 2147483648"));
        // 2^20 rounds of 2^12 messages are 2^32 messages, which is more than the limit.
        assert!(why(TrafficPattern::Incast, 4097, 1 << 20).contains("4294967296"));
    }
}
