//! Turns: in which order the collectives of a group take their lanes.
//!
//! Members of a group must start its collectives in one order, or two of them could each hold a lane
//! that the other's partner needs. The order is not the program's, because a collective that is late
//! in program order may be ready first and should then overlap what is still being computed. It is
//! the order in which any member is first ready, decided once for all members: later, each of them
//! takes its turns in that order.

use super::plan::{GroupPlan, NONE};

/// One group's turns and its collectives in flight.
#[derive(Debug)]
pub(super) struct Turns {
    /// For each collective: its turn, or [`NONE`] while nobody was ready for it.
    turn_of: Vec<u32>,
    /// For each collective: its run, or [`NONE`].
    pub run_of: Vec<u32>,
    /// Turns given out.
    given: u32,
    /// The next turn of each member.
    next: Vec<u32>,
    /// Members that are ready for a later turn: (member, turn, node).
    parked: Vec<(u32, u32, u32)>,
}

impl Turns {
    pub fn new(plan: &GroupPlan) -> Self {
        Self {
            turn_of: vec![NONE; plan.calls.len()],
            run_of: vec![NONE; plan.calls.len()],
            given: 0,
            next: vec![0; plan.members.len()],
            parked: Vec::new(),
        }
    }

    /// Member `member` is ready for collective `sequence` with `node`. Returns whether it is its
    /// turn; if not, the node waits here until [`Self::next_parked`] gives it back.
    #[inline]
    pub fn ready(&mut self, member: u32, sequence: u32, node: u32) -> bool {
        let turn = &mut self.turn_of[sequence as usize];
        if *turn == NONE {
            *turn = self.given;
            self.given += 1;
        }
        let turn = *turn;
        if self.next[member as usize] == turn {
            self.next[member as usize] += 1;
            true
        } else {
            self.parked.push((member, turn, node));
            false
        }
    }

    /// A parked node of `member` whose turn has come.
    #[inline]
    pub fn next_parked(&mut self, member: u32) -> Option<u32> {
        if self.parked.is_empty() {
            return None;
        }
        let turn = self.next[member as usize];
        let found = self
            .parked
            .iter()
            .position(|&(m, t, _)| (m, t) == (member, turn))?;
        self.next[member as usize] += 1;
        Some(self.parked.swap_remove(found).2)
    }

    /// The collective whose turn `member` must take before that of `sequence`, if it waits for one.
    pub fn blocked_by(&self, member: u32, sequence: u32) -> Option<u32> {
        let next = self.next[member as usize];
        let turn = self.turn_of[sequence as usize];
        if turn == NONE || turn <= next {
            return None;
        }
        let first = self.turn_of.iter().position(|&t| t == next);
        first.map(|sequence| sequence as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_is_ready_sets_the_order_for_all() {
        let mut turns = Turns {
            turn_of: vec![NONE; 2],
            run_of: vec![NONE; 2],
            given: 0,
            next: vec![0; 2],
            parked: Vec::new(),
        };
        // Member 0 is ready for collective 1 first, so it comes first for member 1 too.
        assert!(turns.ready(0, 1, 70));
        assert!(!turns.ready(1, 0, 80));
        assert_eq!(turns.next_parked(1), None);
        assert_eq!(turns.blocked_by(1, 0), Some(1));
        assert!(turns.ready(1, 1, 81));
        assert_eq!(turns.next_parked(1), Some(80));
        assert_eq!(turns.next_parked(1), None);
        assert!(turns.ready(0, 0, 71));
    }
}
