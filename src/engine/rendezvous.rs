//! Turns: in which order the collectives of a group take their lanes.
//!
//! Members of a group must start its collectives in one order, or two of them could each hold a lane
//! that the other's partner needs. The first in program order has its turn as soon as any member is
//! ready for it. One behind it may go first, to overlap what is still being computed, but only when
//! every member is ready for it: on a member that is not, it may depend on the one that it would
//! overtake. So a turn that is given never waits for one that is not, and what runs in program order
//! is never stuck here.

use super::plan::{GroupPlan, NONE};

/// One group's turns and its collectives in flight.
#[derive(Debug)]
pub(super) struct Turns {
    /// For each collective: its turn, or [`NONE`] while it has none.
    turn_of: Vec<u32>,
    /// For each collective: present members that are not ready for it.
    unready: Vec<u32>,
    /// For each collective: its run, or [`NONE`].
    pub run_of: Vec<u32>,
    /// Present members.
    present: u32,
    /// The first collective in program order that has no turn.
    first: u32,
    /// Turns given out.
    given: u32,
    /// The next turn of each member.
    next: Vec<u32>,
    /// Members that are ready and whose turn has not come: (member, collective, node).
    parked: Vec<(u32, u32, u32)>,
    /// Whether a turn was given or taken since nobody parked was found due.
    moved: bool,
}

impl Turns {
    pub fn new(plan: &GroupPlan) -> Self {
        Self::of(plan.calls.len(), plan.members.len(), plan.present)
    }

    fn of(calls: usize, members: usize, present: u32) -> Self {
        Self {
            turn_of: vec![NONE; calls],
            unready: vec![present; calls],
            run_of: vec![NONE; calls],
            present,
            first: 0,
            given: 0,
            next: vec![0; members],
            parked: Vec::new(),
            moved: false,
        }
    }

    /// Member `member` is ready for collective `sequence` with `node`. Returns whether it is its
    /// turn; if not, the node waits here until [`Self::next_parked`] gives it back.
    #[inline]
    pub fn ready(&mut self, member: u32, sequence: u32, node: u32) -> bool {
        let unready = &mut self.unready[sequence as usize];
        *unready -= 1;
        let everyone = *unready == 0;
        if self.turn_of[sequence as usize] == NONE && (everyone || sequence == self.first) {
            self.give(sequence);
        }
        if self.is_turn(member, sequence) {
            self.next[member as usize] += 1;
            self.moved = true;
            return true;
        }
        self.parked.push((member, sequence, node));
        false
    }

    /// Gives `sequence` its turn, and then those that became the first and that somebody waits for.
    fn give(&mut self, sequence: u32) {
        self.turn_of[sequence as usize] = self.given;
        self.given += 1;
        self.moved = true;
        while let Some(turn) = self.turn_of.get_mut(self.first as usize) {
            if *turn == NONE {
                if self.unready[self.first as usize] == self.present {
                    return;
                }
                *turn = self.given;
                self.given += 1;
            }
            self.first += 1;
        }
    }

    fn is_turn(&self, member: u32, sequence: u32) -> bool {
        self.turn_of[sequence as usize] == self.next[member as usize]
    }

    /// A parked node whose turn has come, with its member.
    #[inline]
    pub fn next_parked(&mut self) -> Option<(u32, u32)> {
        if !self.moved || self.parked.is_empty() {
            return None;
        }
        let due = |&(member, sequence, _): &(u32, u32, u32)| self.is_turn(member, sequence);
        let found = self.parked.iter().position(due);
        self.moved = found.is_some();
        let found = found?;
        let (member, _, node) = self.parked.swap_remove(found);
        self.next[member as usize] += 1;
        Some((member, node))
    }

    /// The collective that `member`, which is ready for `sequence`, must take before it, if there
    /// is one.
    pub fn blocked_by(&self, member: u32, sequence: u32) -> Option<u32> {
        let next = self.next[member as usize];
        let turn = self.turn_of[sequence as usize];
        if turn < next {
            return None;
        }
        let taken = self.turn_of.iter().position(|&t| t == next);
        let before = taken.map_or(self.first, |sequence| sequence as u32);
        (before != sequence).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_in_program_order_goes_when_anyone_is_ready() {
        let mut turns = Turns::of(2, 2, 2);
        // Member 0 is ready for collective 1, but member 1 may need collective 0 before.
        assert!(!turns.ready(0, 1, 70));
        assert_eq!(
            (turns.next_parked(), turns.blocked_by(0, 1)),
            (None, Some(0))
        );
        // It does; then both go in program order.
        assert!(turns.ready(1, 0, 80));
        assert_eq!(turns.next_parked(), None);
        assert!(turns.ready(0, 0, 71));
        assert_eq!(turns.next_parked(), Some((0, 70)));
        assert!(turns.ready(1, 1, 81));
    }

    #[test]
    fn one_that_all_are_ready_for_goes_first() {
        let mut turns = Turns::of(2, 2, 2);
        assert!(!turns.ready(0, 1, 70));
        assert!(turns.ready(1, 1, 81));
        assert_eq!(turns.next_parked(), Some((0, 70)));
        assert!(turns.ready(1, 0, 80));
        assert!(turns.ready(0, 0, 71));
        assert_eq!(turns.blocked_by(0, 0), None);
    }
}
