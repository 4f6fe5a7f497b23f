//! All-to-alls whose members exchange unequal parts.
//!
//! M(s, t) is the number of bytes that member s has for member t. In a group of one phase, s sends the M(s, t) bytes
//! directly to t. In a group of several phases, data passes through the phases, innermost first, as in an all-to-all of
//! equal parts. Before phase d, the member at position p has data from every sender s whose position differs from p
//! only in earlier phases. This data is for every receiver t whose position equals p in the earlier phases. In phase d,
//! the member passes the data for index q to the member with that index:
//!
//!   bytes(d, p → q) = Σ M(s, t) over s with s_j = p_j for j ≥ d, and t with t_j = p_j for j < d and t_d = q.
//!
//! The direct and pairwise algorithms visit partners in their usual order. Members neither send nor await empty
//! messages, as in the process groups of NCCL and gloo ("torch/csrc/cuda/nccl.cpp", `all2all_single_unequal_split`). If
//! a member receives nothing in a round of pairwise, the round ends immediately for this member. Members end at
//! different times, so there is no closed form.

use super::{
    CollectiveAlgorithm, CollectiveStage, MemberLinePosition, SendStepWithConditions, pairwise,
};
use crate::group::GroupPhasesAndMemberPositions;
use chakram_base::ids::Position;

/// For each phase of a group, the bytes that each member sends to every other member of its line. Members of a line
/// differ only in their index in the phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairBytesByPhase {
    phases: Vec<OnePhasePairBytesMatrix>,
    /// Size of an all-to-all with equal parts that keeps every member as busy as this group's busiest member
    /// ([`PairBytesByPhase::equivalent_equal_parts_bytes`]).
    equivalent: u64,
}

/// Bytes that members exchange in one phase. Index p · size + q contains the bytes from position p to index q of p's
/// line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OnePhasePairBytesMatrix {
    size: u32,
    stride: u32,
    bytes: Vec<u64>,
    /// True if at least one pair exchanges nothing.
    gaps: bool,
}

impl PairBytesByPhase {
    /// Computes the bytes that the members of `extent` exchange in each phase. The member at position s has `bytes[s *
    /// n + t]` bytes for the member at position t. Returns `None` if every member has `equal` bytes for every other
    /// member.
    pub fn new(extent: &GroupPhasesAndMemberPositions, bytes: &[u64], equal: u64) -> Option<Self> {
        let n = extent.member_count();
        let mut pairs = bytes.iter().enumerate();
        // A member's data for itself is never sent.
        let sent = |&(place, _): &(usize, &u64)| place as u32 / n != place as u32 % n;
        if pairs.all(|pair| !sent(&pair) || *pair.1 == equal) {
            return None;
        }
        let of = |s: u32, t: u32| u128::from(bytes[(s * n + t) as usize]);
        let others = |p: u32| (0..n).filter(move |&other| other != p);
        let most = (0..n).map(|p| {
            let out: u128 = others(p).map(|t| of(p, t)).sum();
            out.max(others(p).map(|s| of(s, p)).sum())
        });
        let most = most.max().unwrap_or(0);
        let equivalent = (most * u128::from(n)).div_ceil(u128::from(n - 1));
        // `held` is the bytes that the member at position p must still pass on for each member t.
        let mut held = bytes.to_vec();
        let phases = extent.phases.iter().map(|phase| {
            let mut sizes = vec![0_u64; (n * phase.size) as usize];
            let mut next = vec![0_u64; held.len()];
            for p in 0..n {
                for t in 0..n {
                    let amount = held[(p * n + t) as usize];
                    let to = phase.member_index_in_dimension(Position(t));
                    let size = &mut sizes[(p * phase.size + to) as usize];
                    *size = size.saturating_add(amount);
                    let there = &mut next
                        [(phase.position_with_index_in_line(Position(p), to).0 * n + t) as usize];
                    *there = there.saturating_add(amount);
                }
            }
            held = std::mem::take(&mut next);
            let gaps = (0..n).any(|p| {
                (0..phase.size).any(|q| {
                    q != phase.member_index_in_dimension(Position(p))
                        && sizes[(p * phase.size + q) as usize] == 0
                })
            });
            OnePhasePairBytesMatrix {
                size: phase.size,
                stride: phase.stride,
                bytes: sizes,
                gaps,
            }
        });
        Some(Self {
            phases: phases.collect(),
            equivalent: u64::try_from(equivalent).unwrap_or(u64::MAX),
        })
    }

    /// Returns the size, in bytes, of an all-to-all with equal parts that keeps every member as busy as this group's
    /// busiest member. The result is n ÷ (n − 1) times the busiest member's bytes, because each member keeps one part.
    pub fn equivalent_equal_parts_bytes(&self) -> u64 {
        self.equivalent
    }

    /// Returns the algorithm that handles unequal parts, given the `algorithm` for equal parts. Returns `algorithm`
    /// itself if it sends each part directly from its sender to its receiver, and `direct` otherwise.
    pub fn algorithm_for_unequal_parts(algorithm: CollectiveAlgorithm) -> CollectiveAlgorithm {
        match algorithm {
            CollectiveAlgorithm::Pairwise => algorithm,
            _ => CollectiveAlgorithm::Direct,
        }
    }

    /// Returns the `i`-th message of the member at `line`, or `None` after the last.
    pub fn nth_send(
        &self,
        (algorithm, stage): (CollectiveAlgorithm, &CollectiveStage),
        line: MemberLinePosition,
        i: u32,
    ) -> Option<SendStepWithConditions> {
        let sizes = &self.phases[stage.phase];
        let amount = |to| {
            stage
                .buffer
                .same_fraction_of_other_buffer(sizes.bytes_between(line, line.index, to))
        };
        if !sizes.gaps {
            let step = algorithm.nth_send(stage, line, i)?;
            return Some(SendStepWithConditions {
                amount: amount(step.to),
                ..step
            });
        }
        // Returns the member to which a member sends in a round, even if there is nothing to send.
        let target = |index, round| {
            let line = MemberLinePosition { index, ..line };
            algorithm.nth_send(stage, line, round).map(|step| step.to)
        };
        let exchanged = |from, to| sizes.bytes_between(line, from, to) > 0;
        let mut rounds = 0..line.size - 1;
        let sent =
            |&round: &u32| target(line.index, round).is_some_and(|to| exchanged(line.index, to));
        let round = rounds.by_ref().filter(sent).nth(i as usize)?;
        let step = algorithm.nth_send(stage, line, round)?;
        if algorithm != CollectiveAlgorithm::Pairwise {
            return Some(SendStepWithConditions {
                amount: amount(step.to),
                ..step
            });
        }
        // Empty messages are not sent, so only rounds with data count as received messages and as steps of the
        // receiver.
        let received = |&round: &u32| {
            exchanged(
                pairwise::sending_member_after_rounds(line, round),
                line.index,
            )
        };
        let taken = |&round: &u32| target(step.to, round).is_some_and(|to| exchanged(step.to, to));
        Some(SendStepWithConditions {
            amount: amount(step.to),
            after: (0..round).filter(received).count() as u32,
            recv_posted: (0..=round).filter(taken).count() as u32,
            ..step
        })
    }

    /// Returns the number of messages that the member at `line` receives.
    pub fn receive_count(&self, stage: &CollectiveStage, line: MemberLinePosition) -> u32 {
        let sizes = &self.phases[stage.phase];
        let senders = (0..line.size).filter(|&from| from != line.index);
        senders
            .filter(|&from| sizes.bytes_between(line, from, line.index) > 0)
            .count() as u32
    }
}

impl OnePhasePairBytesMatrix {
    /// Returns the number of bytes that member `from` of a line sends to member `to`; both are indices in the line.
    #[inline]
    fn bytes_between(&self, line: MemberLinePosition, from: u32, to: u32) -> u64 {
        let first = line.position - line.index * self.stride;
        self.bytes[((first + from * self.stride) * self.size + to) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::super::CollectiveStagePrimitive;
    use super::*;
    use crate::topology::{DimensionShape, Topology, TopologyDimension};
    use chakram_base::ids::{Npu, Position};
    use chakram_base::units::{Bandwidth, Span, UnroundedBufferShare};

    fn build_switch_group(sizes: &[u32]) -> GroupPhasesAndMemberPositions {
        let dimensions = sizes.iter().map(|&size| TopologyDimension {
            name: String::new(),
            shape: DimensionShape::Switch,
            size,
            bandwidth: Bandwidth::new(1e9).unwrap(),
            latency: Span::ZERO,
        });
        let topology = Topology::new(dimensions.collect()).unwrap();
        let npus: Vec<_> = (0..topology.npu_count()).map(Npu).collect();
        GroupPhasesAndMemberPositions::new(&npus, &topology)
    }

    fn build_all_to_all_stage_of_phase(phase: usize) -> CollectiveStage {
        CollectiveStage {
            phase,
            primitive: CollectiveStagePrimitive::AllToAll,
            buffer: UnroundedBufferShare::from_bytes(1000),
            mirrored: false,
            bidirectional: false,
        }
    }

    /// Returns all messages of a phase as (from, to, bytes, credits required).
    fn list_phase_messages(
        sizes: &PairBytesByPhase,
        extent: &GroupPhasesAndMemberPositions,
        algorithm: CollectiveAlgorithm,
        phase: usize,
    ) -> Vec<(u32, u32, u64, u32)> {
        let stage = build_all_to_all_stage_of_phase(phase);
        let mut all = Vec::new();
        for position in 0..extent.member_count() {
            let line =
                MemberLinePosition::new(extent, &stage, Position(position), Position(0)).unwrap();
            let steps = (0..).map_while(|i| sizes.nth_send((algorithm, &stage), line, i));
            let of = &extent.phases[phase];
            all.extend(steps.map(|s| {
                (
                    position,
                    of.position_with_index_in_line(Position(position), s.to).0,
                    s.amount.to_bytes(),
                    s.after,
                )
            }));
        }
        all
    }

    #[test]
    fn equal_parts_need_no_sizes() {
        let extent = build_switch_group(&[3]);
        // The bytes that members keep for themselves are ignored.
        assert_eq!(
            PairBytesByPhase::new(&extent, &[0, 5, 5, 5, 7, 5, 5, 5, 9], 5),
            None
        );
        assert!(PairBytesByPhase::new(&extent, &[0, 5, 5, 5, 7, 5, 5, 4, 9], 5).is_some());
    }

    #[test]
    fn members_send_what_each_pair_exchanges_and_nothing_for_nothing() {
        let extent = build_switch_group(&[3]);
        let sizes = PairBytesByPhase::new(&extent, &[9, 1, 2, 0, 9, 3, 4, 0, 9], 5).unwrap();
        // With direct, a member sends to the next index first.
        let direct = [(0, 1, 1, 0), (0, 2, 2, 0), (1, 2, 3, 0), (2, 0, 4, 0)];
        assert_eq!(
            list_phase_messages(&sizes, &extent, CollectiveAlgorithm::Direct, 0),
            direct
        );
        // In round 1, members receive from the previous index: 0 from 2, 1 from 0, 2 from 1. In round 2, members
        // receive from the next index. Member 0 sends its second message after the message from member 2 has arrived;
        // members 1 and 2 send only in round 1.
        let pairwise = [(0, 1, 1, 0), (0, 2, 2, 1), (1, 2, 3, 0), (2, 0, 4, 0)];
        assert_eq!(
            list_phase_messages(&sizes, &extent, CollectiveAlgorithm::Pairwise, 0),
            pairwise
        );
        let receives = |position| {
            let line = MemberLinePosition::new(
                &extent,
                &build_all_to_all_stage_of_phase(0),
                Position(position),
                Position(0),
            )
            .unwrap();
            sizes.receive_count(&build_all_to_all_stage_of_phase(0), line)
        };
        assert_eq!([0, 1, 2].map(receives), [1, 1, 2]);
        // Member 0 sends 3 bytes and receives 4, member 1 sends 3 and receives 1, and member 2 sends 4 and receives 5.
        // The equivalent size is 5 · 3 / 2, rounded up.
        assert_eq!(sizes.equivalent_equal_parts_bytes(), 8);
    }

    #[test]
    fn a_round_without_a_message_is_over_at_once() {
        // In round k (1, 2 or 3), each of the 4 members exchanges with the member whose index is its own XOR k. Only
        // two pairs exchange data: 0 with 3, and 0 with 1.
        let extent = build_switch_group(&[4]);
        let mut bytes = vec![0; 16];
        (bytes[3], bytes[12], bytes[4]) = (7, 8, 6);
        let sizes = PairBytesByPhase::new(&extent, &bytes, 5).unwrap();
        // Member 0 receives from member 1 in round 1, and sends in round 3.
        let expected = [(0, 3, 7, 1), (1, 0, 6, 0), (3, 0, 8, 0)];
        assert_eq!(
            list_phase_messages(&sizes, &extent, CollectiveAlgorithm::Pairwise, 0),
            expected
        );
    }

    #[test]
    fn data_travel_along_one_phase_after_another() {
        // The group has 2 × 2 members, and position p is x + 2y. Member s has 10^t · (s + 1) bytes for member t, so the
        // digits of a sum identify the receivers and the senders.
        let extent = build_switch_group(&[2, 2]);
        let bytes = (0..4).flat_map(|s| (0..4).map(move |t| 10_u64.pow(t) * (s + 1)));
        let sizes = PairBytesByPhase::new(&extent, &bytes.collect::<Vec<_>>(), 5).unwrap();
        // Along x, member 0 passes on its data for x = 1, which is the data for members 1 and 3: 1,010 bytes.
        let inner = [
            (0, 1, 1010),
            (1, 0, 2 * 101),
            (2, 3, 3 * 1010),
            (3, 2, 4 * 101),
        ];
        // Before phase y, member 0 has the data that members 0 and 1 send to members 0 and 2. It passes on the data for
        // member 2: (1 + 2) · 100 bytes.
        let outer = [(0, 2, 300), (1, 3, 3000), (2, 0, 7), (3, 1, 70)];
        for (phase, expected) in [inner, outer].into_iter().enumerate() {
            let found = list_phase_messages(&sizes, &extent, CollectiveAlgorithm::Direct, phase);
            let found: Vec<_> = found
                .iter()
                .map(|&(from, to, bytes, _)| (from, to, bytes))
                .collect();
            assert_eq!(found, expected, "phase {phase}");
        }
    }
}
