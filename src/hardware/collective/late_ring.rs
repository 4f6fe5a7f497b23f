//! Rings whose members begin at different times, on a network without contention.
//!
//! Let s be the time for which a message of S/n bytes occupies a port, and α the time until its first byte arrives.
//! Member i begins at b(i). Its k-th message leaves once the member has received message k−1 and its port is free. The
//! message arrives once the receiver's port has received the previous message:
//!
//! - o(i, k) = max(r(i, k−1), o(i, k−1) + s), with r(i, −1) = b(i)
//! - d(i, k) = max(o(i, k) + α, d(i, k−1)) + s
//! - r(i+1, k) = max(d(i, k), b(i+1))
//!
//! A member ends the stage once it has received its last message and its own last message has left: max(r(i, n−2), o(i,
//! n−2) + s). A member of an all-reduce then begins the all-gather over the same ports. This recurrence gives the same
//! times as a simulation of every message, at a fraction of the cost.

use super::{CollectiveAlgorithm, CollectiveStagePrimitive, StageWithAlgorithm};
use crate::group::{GroupPhasesAndMemberPositions, PathsToNextAndAnyMember};
use chakram_base::ids::Position;
use chakram_base::units::Span;

/// Times of one member, relative to the collective's start.
#[derive(Clone, Copy, Debug, Default)]
struct OneRingMemberStageTimes {
    /// Time at which the member begins the stage.
    begins: Span,
    /// Time by which the member has received all messages that its next message depends on.
    ready: Span,
    /// Time at which the last message to the next member leaves the member's port.
    sent: Span,
    /// Time at which the next member's port has received the last message from this member.
    received: Span,
}

/// Returns the time at which each position ends, or `None` if the stages are not rings in one phase. `begins` is the
/// time at which each position's member begins.
pub(super) fn find_late_ring_member_ends(
    stages: &[StageWithAlgorithm],
    extent: &GroupPhasesAndMemberPositions,
    paths: &[PathsToNextAndAnyMember],
    begins: &[Span],
) -> Option<Vec<Span>> {
    let first = stages.first()?.stage.phase;
    let is_ring = |assignment: &StageWithAlgorithm| {
        let stage = &assignment.stage;
        assignment.algorithm == CollectiveAlgorithm::Ring
            && (assignment.script, assignment.splits, stage.phase) == (None, None, first)
            && !stage.bidirectional
            && matches!(
                stage.primitive,
                CollectiveStagePrimitive::ReduceScatter | CollectiveStagePrimitive::AllGather
            )
    };
    if !stages.iter().all(is_ring) {
        return None;
    }
    let (phase, path) = (&extent.phases[first], paths[first].next?);
    let mut ends = begins.to_vec();
    let mut line = Vec::new();
    let positions = (0..begins.len() as u32).map(Position);
    for head in positions.filter(|position| phase.member_index_in_dimension(*position) == 0) {
        let member = |index| phase.position_with_index_in_line(head, index).index();
        line.clear();
        line.extend((0..phase.size).map(|index| OneRingMemberStageTimes {
            begins: begins[member(index)],
            ..OneRingMemberStageTimes::default()
        }));
        for assignment in stages {
            let message = assignment
                .stage
                .one_of_n_equal_parts_per_direction(phase.size);
            let occupied = path.bandwidth.serialization_time(message);
            run_ring_stage_to_member_ends(&mut line, path.time_of_first_byte(message), occupied);
        }
        for (index, times) in (0..).zip(&line) {
            ends[member(index)] = times.begins;
        }
    }
    Some(ends)
}

/// Runs one stage along a ring. Afterwards, `begins` contains the time at which each member ends the stage.
fn run_ring_stage_to_member_ends(
    line: &mut [OneRingMemberStageTimes],
    first_byte: Span,
    occupied: Span,
) {
    for member in &mut *line {
        member.ready = member.begins;
    }
    for _ in 1..line.len() {
        let mut delivered = Span::ZERO;
        for member in &mut *line {
            let leaves = member.ready.max(member.sent);
            member.sent = leaves + occupied;
            member.received = (leaves + first_byte).max(member.received) + occupied;
            // The message that the previous member sends in this round makes the member ready for the next round.
            member.ready = delivered.max(member.begins);
            delivered = member.received;
        }
        line[0].ready = delivered.max(line[0].begins);
    }
    for member in line {
        member.begins = member.ready.max(member.sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There are three members; a message occupies a port for 10, and its first byte takes 3. Members 0 and 1 begin at
    /// 0, and member 2 at 100.
    #[test]
    fn members_after_a_late_member_wait_for_its_first_message() {
        let begins = [0, 0, 100].map(Span);
        let mut line = begins.map(|begins| OneRingMemberStageTimes {
            begins,
            ..OneRingMemberStageTimes::default()
        });
        run_ring_stage_to_member_ends(&mut line, Span(3), Span(10));
        // Round 1: 0 sends to 1 until 13, 1 to 2 until 13, and 2 to 0 from 100 until 113. Round 2: 0 sends from 113 and
        // 1 receives at 126; 1 sends at 13 and 2 receives at 26, but begins at 100; 2 has a message at 100, sends when
        // its port is free at 110, and 0 receives at 123.
        let ends = line.map(|times| times.begins.0);
        assert_eq!(ends, [123, 126, 120]);
    }

    /// If all members begin together, every member ends after (n − 1)(α + s).
    #[test]
    fn members_that_begin_together_take_the_closed_form() {
        for n in 2..9 {
            let mut line = vec![OneRingMemberStageTimes::default(); n];
            run_ring_stage_to_member_ends(&mut line, Span(7), Span(11));
            assert!(
                line.iter()
                    .all(|times| times.begins == Span(18).times(n as u64 - 1))
            );
        }
    }
}
