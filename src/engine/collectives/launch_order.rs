//! Launch order: the order in which a group's collectives take their lanes.
//!
//! Members of a group must start its collectives in the same order. Otherwise two collectives could each occupy a lane
//! that the other collective needs. The first collective in program order is launched as soon as any member is ready
//! for it. A later collective may be launched before the first, so that it overlaps with computation, but only when
//! every member is ready for the later one. Otherwise, an unready member might first need the earlier collective to
//! complete. A launched collective therefore never waits for an unlaunched one, and a workload that runs in program
//! order never deadlocks here.
//!
//! If a group's collectives share a lane with other nodes, the group *gathers*: it launches a collective only when
//! every member is ready for it. All members then queue for their lanes together, so the collectives of such groups
//! have the same order on all lanes. A collective that occupies a lane never waits for one queued after it.

use crate::ids::RunIndex;
use crate::plan::{NONE, PlacedCommunicationGroup};
use chakram_base::ids::MemberIndex;
use chakram_base::units::Time;
use std::collections::BTreeMap;

/// Launch order of a group's collectives, and the run of each collective in flight.
#[derive(Debug)]
pub(super) struct GroupCollectiveLaunchOrder {
    /// Place of each collective in the launch order, or [`NONE`] before the launch.
    place_of: Vec<u32>,
    /// Launched collectives, in launch order.
    order: Vec<u32>,
    /// For each collective, the number of present members that are not ready for it.
    unready: Vec<u32>,
    /// Index of the state (run) of each collective in flight.
    pub run_of: Vec<Option<RunIndex>>,
    /// Number of members that have a trace (present members).
    present: u32,
    /// True if collectives are launched only when every member is ready.
    gathers: bool,
    /// Index, in program order, of the first collective that is not launched.
    first: u32,
    /// For each member, the place of its next collective in the launch order.
    next: Vec<u32>,
    /// Nodes of ready members that wait for their turn, with the time when they became ready. The key is (member,
    /// collective).
    parked: BTreeMap<(MemberIndex, u32), (u32, Time)>,
    /// Members of a group that gathers that waited for the last member and have not arrived yet.
    gathered: BTreeMap<(MemberIndex, u32), GatheredMemberTimes>,
    /// Members whose next collective may now start, in descending order.
    due: Vec<MemberIndex>,
}

/// When a member became ready for a collective, and when its group launched the collective.
#[derive(Clone, Copy, Debug)]
struct GatheredMemberTimes {
    ready: Time,
    launched: Time,
}

impl GroupCollectiveLaunchOrder {
    pub fn new(plan: &PlacedCommunicationGroup) -> Self {
        let (calls, members) = (plan.calls.len(), plan.members.len());
        Self::for_group(calls, members, plan.present, plan.launches_together)
    }

    fn for_group(calls: usize, members: usize, present: u32, gathers: bool) -> Self {
        Self {
            place_of: vec![NONE; calls],
            order: Vec::new(),
            unready: vec![present; calls],
            run_of: vec![None; calls],
            present,
            gathers,
            first: 0,
            next: vec![0; members],
            parked: BTreeMap::new(),
            gathered: BTreeMap::new(),
            due: Vec::new(),
        }
    }

    /// Resets the launch order for a further launch of the group.
    pub fn reset_for_group(&mut self, plan: &PlacedCommunicationGroup) {
        let calls = plan.calls.len();
        self.place_of.fill(NONE);
        self.order.clear();
        self.unready.fill(plan.present);
        self.run_of.clear();
        self.run_of.resize(calls, None);
        self.first = 0;
        self.next.fill(0);
        self.parked.clear();
        self.gathered.clear();
        self.due.clear();
    }

    /// Returns the index of the next collective that `member` issues, for matching in issue order.
    #[inline]
    pub fn take_next_call_index_of_member(&mut self, member: MemberIndex) -> u32 {
        let next = &mut self.next[member.index()];
        let sequence = *next;
        *next += 1;
        if sequence as usize >= self.run_of.len() {
            self.run_of.push(None);
        }
        sequence
    }

    /// Adds an entry for the collective `sequence` if it is new. Members that ignore the launch order need an entry
    /// too.
    #[inline]
    pub fn add_collective_entry_if_new(&mut self, sequence: u32) -> u32 {
        if sequence as usize >= self.run_of.len() {
            self.run_of.resize(sequence as usize + 1, None);
        }
        sequence
    }

    /// Marks `node` of `member` as ready for collective `sequence`. Returns true if the member may start the
    /// collective. Otherwise parks the node until [`Self::take_startable_parked_node`] returns it.
    #[inline]
    pub fn mark_ready_or_park_node(
        &mut self,
        now: Time,
        member: MemberIndex,
        sequence: u32,
        node: u32,
    ) -> bool {
        let unready = &mut self.unready[sequence as usize];
        *unready -= 1;
        let everyone = *unready == 0;
        // The first collective in program order cannot depend on a later one, so a single ready member is enough.
        let first = sequence == self.first && !self.gathers;
        if self.place_of[sequence as usize] == NONE && (everyone || first) {
            self.launch_collective_and_next_in_order(sequence);
        }
        if self.place_of[sequence as usize] == self.next[member.index()] {
            self.next[member.index()] += 1;
            self.due.push(member);
            return true;
        }
        self.parked.insert((member, sequence), (node, now));
        false
    }

    /// Launches `sequence`. Launches a collective. Then launches each collective that becomes the first in program
    /// order and has a ready member.
    fn launch_collective_and_next_in_order(&mut self, sequence: u32) {
        self.place_of[sequence as usize] = self.order.len() as u32;
        self.order.push(sequence);
        while let Some(place) = self.place_of.get_mut(self.first as usize) {
            if *place == NONE {
                if self.gathers || self.unready[self.first as usize] == self.present {
                    break;
                }
                *place = self.order.len() as u32;
                self.order.push(self.first);
            }
            self.first += 1;
        }
        if !self.parked.is_empty() {
            // Sort in descending order, because `take_startable_parked_node` pops from the end.
            self.due
                .extend((0..self.next.len() as u32).rev().map(MemberIndex));
        }
    }

    /// Removes a parked node that may start now, and returns its member and the node. Returns `None` if no parked node
    /// may start.
    #[inline]
    pub fn take_startable_parked_node(&mut self, now: Time) -> Option<(MemberIndex, u32)> {
        if self.parked.is_empty() {
            self.due.clear();
            return None;
        }
        while let Some(&member) = self.due.last() {
            let next = &mut self.next[member.index()];
            let sequence = self.order.get(*next as usize);
            let taken =
                sequence.and_then(|&s| Some(((member, s), self.parked.remove(&(member, s))?)));
            if let Some((key, (node, ready))) = taken {
                *next += 1;
                if self.gathers && node != NONE {
                    let launched = now;
                    let times = GatheredMemberTimes { ready, launched };
                    self.gathered.insert(key, times);
                }
                return Some((member, node));
            }
            self.due.pop();
        }
        None
    }

    /// Returns since when a member that takes its lane at `now` has waited for the last member. `lane_freed` is the
    /// time at which the lane's previous node completed. Returns `now` if the member did not wait, or if it also had to
    /// wait for its lane after the last member was ready.
    #[inline]
    pub fn take_start_of_wait(
        &mut self,
        now: Time,
        member: MemberIndex,
        sequence: u32,
        lane_freed: Time,
    ) -> Time {
        if self.gathered.is_empty() {
            return now;
        }
        match self.gathered.remove(&(member, sequence)) {
            Some(times) if times.launched == now => times.ready.max(lane_freed),
            _ => now,
        }
    }

    /// Returns the collective that `member` must start before the collective `sequence`. Returns `None` if the member
    /// may start `sequence` now.
    pub fn collective_that_member_must_start_before(
        &self,
        member: MemberIndex,
        sequence: u32,
    ) -> Option<u32> {
        let next = self.next[member.index()];
        let place = self.place_of[sequence as usize];
        if place < next || (place == NONE && self.gathers) {
            return None;
        }
        // A member that has started all launched collectives needs the first collective that is not launched.
        let before = self.order.get(next as usize).copied().unwrap_or(self.first);
        (before != sequence).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_collective_in_program_order_starts_once_a_member_is_ready() {
        let mut order = GroupCollectiveLaunchOrder::for_group(2, 2, 2, false);
        // Member 0 is ready for collective 1, but member 1 may need collective 0 first.
        assert!(!order.mark_ready_or_park_node(Time(5), MemberIndex(0), 1, 70));
        assert_eq!(
            (
                order.take_startable_parked_node(Time(9)),
                order.collective_that_member_must_start_before(MemberIndex(0), 1)
            ),
            (None, Some(0))
        );
        // Member 1 does need collective 0 first, so the two collectives run in program order.
        assert!(order.mark_ready_or_park_node(Time(5), MemberIndex(1), 0, 80));
        assert_eq!(order.take_startable_parked_node(Time(9)), None);
        assert!(order.mark_ready_or_park_node(Time(5), MemberIndex(0), 0, 71));
        assert_eq!(
            order.take_startable_parked_node(Time(9)),
            Some((MemberIndex(0), 70))
        );
        assert!(order.mark_ready_or_park_node(Time(5), MemberIndex(1), 1, 81));
    }

    #[test]
    fn a_collective_for_which_all_members_are_ready_starts_first() {
        let mut order = GroupCollectiveLaunchOrder::for_group(2, 2, 2, false);
        assert!(!order.mark_ready_or_park_node(Time(5), MemberIndex(0), 1, 70));
        assert!(order.mark_ready_or_park_node(Time(5), MemberIndex(1), 1, 81));
        assert_eq!(
            order.take_startable_parked_node(Time(9)),
            Some((MemberIndex(0), 70))
        );
        assert!(order.mark_ready_or_park_node(Time(5), MemberIndex(1), 0, 80));
        assert!(order.mark_ready_or_park_node(Time(5), MemberIndex(0), 0, 71));
        assert_eq!(
            order.collective_that_member_must_start_before(MemberIndex(0), 0),
            None
        );
    }

    #[test]
    fn a_group_that_gathers_lets_all_members_go_at_once() {
        let mut order = GroupCollectiveLaunchOrder::for_group(2, 3, 3, true);
        assert!(!order.mark_ready_or_park_node(Time(5), MemberIndex(0), 0, 70));
        assert!(!order.mark_ready_or_park_node(Time(5), MemberIndex(2), 0, 90));
        assert_eq!(
            (
                order.take_startable_parked_node(Time(9)),
                order.collective_that_member_must_start_before(MemberIndex(0), 0)
            ),
            (None, None)
        );
        assert!(order.mark_ready_or_park_node(Time(5), MemberIndex(1), 0, 80));
        assert_eq!(
            order.take_startable_parked_node(Time(9)),
            Some((MemberIndex(0), 70))
        );
        assert_eq!(
            order.take_startable_parked_node(Time(9)),
            Some((MemberIndex(2), 90))
        );
        assert_eq!(order.take_startable_parked_node(Time(9)), None);
    }
}
