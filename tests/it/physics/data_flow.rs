//! Tests the data that each member has at the end. Programs run on sets instead of bytes, with
//! random delays of messages.
//!
//! A buffer has a part for each member of a line, or for each pair of members in an all-to-all. For each part, a member
//! stores the set of members whose data it has. This test states independently which parts a message should carry; the
//! programs state its size, receiver and time. A message carries its sender's data at the time when it leaves. So data
//! are missing at the end if a message leaves too early or goes to the wrong member. Members begin at random times, and
//! messages take random times, but messages between two members keep their order.

use super::programs::build_binomial_member_tree;
use chakram::extend::{
    CollectiveStage, CollectiveStagePrimitive, MemberLinePosition, SendStepWithConditions,
};
use chakram::machine::CollectiveAlgorithm;
use chakram::units::UnroundedBufferShare;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

const PRIMITIVES: [CollectiveStagePrimitive; 8] = [
    CollectiveStagePrimitive::ReduceScatter,
    CollectiveStagePrimitive::AllGather,
    CollectiveStagePrimitive::AllReduce,
    CollectiveStagePrimitive::AllToAll,
    CollectiveStagePrimitive::Broadcast,
    CollectiveStagePrimitive::Reduce,
    CollectiveStagePrimitive::Gather,
    CollectiveStagePrimitive::Scatter,
];

/// A line and its collective.
#[derive(Clone, Copy, Debug)]
struct LineCollective {
    algorithm: CollectiveAlgorithm,
    primitive: CollectiveStagePrimitive,
    n: usize,
    root: usize,
    mirrored: bool,
    seed: u64,
}

/// Parts, each with the set of members whose data it has.
type ContributingMembersByBufferPart = Vec<(usize, u64)>;

#[derive(Clone, Default)]
struct MemberDataState {
    begun: bool,
    taken: u32,
    credits: u32,
    arrived: u32,
    /// Messages that arrived early: the number of steps that the member must take first, and the
    /// messages' data.
    early: Vec<(u32, ContributingMembersByBufferPart)>,
    /// For each part, the set of members whose data this member has.
    has: Vec<u64>,
}

/// Event at a member: the member may act, or a message arrives.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum MemberActionOrArrival {
    Act,
    Message {
        heard: u32,
        load: ContributingMembersByBufferPart,
    },
}

impl LineCollective {
    fn all_members_set(&self) -> u64 {
        (1 << self.n) - 1
    }

    fn part_count(&self) -> usize {
        match self.primitive {
            CollectiveStagePrimitive::AllToAll => self.n * self.n,
            _ => self.n,
        }
    }

    fn all_to_all_part_index(&self, from: usize, to: usize) -> usize {
        from % self.n * self.n + to % self.n
    }

    /// Returns the parts that the member `index` has at the beginning.
    fn initial_parts_of_member(&self, index: usize) -> Vec<u64> {
        use CollectiveStagePrimitive as P;
        let own = 1 << index;
        let has = |part: usize| match self.primitive {
            P::ReduceScatter | P::Reduce | P::AllReduce => true,
            P::AllGather | P::Gather => part == index,
            P::AllToAll => part / self.n == index,
            P::Broadcast | P::Scatter => index == self.root,
        };
        (0..self.part_count())
            .map(|part| if has(part) { own } else { 0 })
            .collect()
    }

    /// Returns `true` if the member `index` has the data that it should have at the end.
    fn member_has_expected_parts(&self, index: usize, has: &[u64]) -> bool {
        use CollectiveStagePrimitive as P;
        let n = self.n;
        let is_root = index == self.root;
        match self.primitive {
            P::ReduceScatter => has[index] == self.all_members_set(),
            P::AllReduce => has.iter().all(|&set| set == self.all_members_set()),
            P::AllGather => (0..n).all(|part| has[part] == 1 << part),
            P::AllToAll => {
                (0..n).all(|from| has[self.all_to_all_part_index(from, index)] == 1 << from)
            }
            P::Broadcast => has.iter().all(|&set| set == 1 << self.root),
            P::Reduce => !is_root || has.iter().all(|&set| set == self.all_members_set()),
            P::Gather => !is_root || (0..n).all(|part| has[part] == 1 << part),
            P::Scatter => has[index] == 1 << self.root,
        }
    }

    /// Returns the subtree of `index` in a binomial tree, including `index`.
    fn subtree_members(&self, index: usize) -> Vec<usize> {
        let tree = build_binomial_member_tree(self.n as u32);
        let mut found = vec![(index + self.n - self.root) % self.n];
        let mut next = 0;
        while next < found.len() {
            found.extend(tree.children[found[next]].iter().map(|&x| x as usize));
            next += 1;
        }
        found.iter().map(|x| (x + self.root) % self.n).collect()
    }

    /// Returns the parts that message `i` from `index` to `to` should carry.
    fn parts_of_message(&self, index: usize, to: usize, i: usize) -> Vec<usize> {
        use CollectiveAlgorithm as A;
        use CollectiveStagePrimitive as P;
        let n = self.n;
        let back = |k: usize| (index + 2 * n - k) % n;
        // Returns the members whose lowest `bits` bits equal the lowest bits of `with`.
        let agree = |with: usize, bits: usize| -> Vec<usize> {
            (0..n)
                .filter(|p| (p ^ with) & ((1 << bits) - 1) == 0)
                .collect()
        };
        let bits = n.trailing_zeros() as usize;
        match (self.algorithm, self.primitive) {
            // Part p starts at the member after its owner, and goes around the ring to the owner.
            (A::Ring, P::ReduceScatter) => vec![back(i + 1)],
            (A::Ring, P::AllGather | P::Gather) => vec![back(i)],
            (A::Ring, P::Broadcast | P::Reduce) => vec![i],
            (A::Ring, P::Scatter) => vec![(self.root + n - 1 - i) % n],
            (A::Ring, P::AllToAll) => {
                // For distance n-1, the member first sends its own part, and then forwards the parts of n-2 other
                // members. Distance n-2 follows, and so on.
                let (mut k, mut hop) = (n - 1, i);
                while hop >= k {
                    (k, hop) = (k - 1, hop - k);
                }
                vec![self.all_to_all_part_index(back(hop), back(hop) + k)]
            }
            (A::HalvingDoubling | A::RecursiveDoubling, P::ReduceScatter) => agree(to, i + 1),
            (A::HalvingDoubling | A::RecursiveDoubling, P::AllGather) => agree(index, bits - i),
            (A::HalvingDoubling | A::RecursiveDoubling, P::Gather) => self.subtree_members(index),
            (A::HalvingDoubling | A::RecursiveDoubling, P::Scatter) => self.subtree_members(to),
            (_, P::Broadcast | P::Reduce | P::AllReduce) => (0..n).collect(),
            (_, P::ReduceScatter | P::Scatter) => vec![to],
            (_, P::AllGather | P::Gather) => vec![index],
            (_, P::AllToAll) => vec![self.all_to_all_part_index(index, to)],
        }
    }

    /// Returns the parts that message `i` of `index` carries. A part that is reduced elsewhere
    /// leaves its sender.
    fn take_parts_for_message(
        &self,
        index: usize,
        i: u32,
        step: &SendStepWithConditions,
        has: &mut [u64],
    ) -> ContributingMembersByBufferPart {
        let parts = self.parts_of_message(index, step.to as usize, i as usize);
        let shares = parts.len() as u64 * BYTES * step.amount.parts;
        assert_eq!(step.amount.bytes * self.n as u64, shares, "{self:?}: size");
        let away = matches!(
            self.primitive,
            CollectiveStagePrimitive::ReduceScatter | CollectiveStagePrimitive::Reduce
        );
        let take = |part: usize| {
            assert_ne!(has[part], 0, "{self:?}: {index} has nothing of {part}");
            match away {
                true => (part, std::mem::take(&mut has[part])),
                false => (part, has[part]),
            }
        };
        parts.into_iter().map(take).collect()
    }

    /// Adds a message's data to the receiver's.
    fn add_message_parts_to_receiver(
        &self,
        load: ContributingMembersByBufferPart,
        has: &mut [u64],
    ) {
        for (part, set) in load {
            match has[part] & set {
                0 => has[part] |= set,
                // The whole buffer comes back down a tree.
                _ => {
                    let back = self.primitive == CollectiveStagePrimitive::AllReduce
                        && set == self.all_members_set();
                    assert!(back && has[part] != set, "{self:?}: {part} counted twice");
                    has[part] = set;
                }
            }
        }
    }

    fn line_position_of_member(&self, index: usize) -> MemberLinePosition {
        MemberLinePosition {
            size: self.n as u32,
            index: index as u32,
            root: self.root as u32,
            position: index as u32,
        }
    }

    /// Runs the collective, and checks every member's data.
    fn run_and_check_members(&self) {
        let stage = CollectiveStage {
            phase: 0,
            primitive: self.primitive,
            buffer: UnroundedBufferShare::from_bytes(BYTES),
            mirrored: self.mirrored,
            bidirectional: false,
        };
        let mut dice = Dice(self.seed);
        let mut members: Vec<MemberDataState> = (0..self.n)
            .map(|index| MemberDataState {
                has: self.initial_parts_of_member(index),
                ..MemberDataState::default()
            })
            .collect();
        // Events are ordered by time, then by order of creation.
        let mut events = BinaryHeap::new();
        let mut made = 0_u64;
        let mut plan =
            |events: &mut BinaryHeap<_>, at: u64, to: usize, event: MemberActionOrArrival| {
                made += 1;
                events.push(Reverse((at, made, to, event)));
            };
        for index in 0..self.n {
            plan(&mut events, dice.delay(), index, MemberActionOrArrival::Act);
        }
        let mut last = BTreeMap::new();
        while let Some(Reverse((now, _, index, event))) = events.pop() {
            let member = &mut members[index];
            match event {
                MemberActionOrArrival::Act => member.begun = true,
                MemberActionOrArrival::Message { heard, load } => member.early.push((heard, load)),
            }
            if !member.begun {
                continue;
            }
            loop {
                let taken = member.taken;
                let ready = |(heard, _): &(u32, ContributingMembersByBufferPart)| *heard <= taken;
                while let Some(found) = member.early.iter().position(ready) {
                    let (_, load) = member.early.remove(found);
                    self.add_message_parts_to_receiver(load, &mut member.has);
                    (member.credits, member.arrived) = (member.credits + 1, member.arrived + 1);
                }
                let step =
                    self.algorithm
                        .nth_send(&stage, self.line_position_of_member(index), taken);
                let Some(step) = step else {
                    break;
                };
                if step.after > member.credits || step.arrived > member.arrived {
                    break;
                }
                member.taken += 1;
                let load = self.take_parts_for_message(index, taken, &step, &mut member.has);
                let to = step.to as usize;
                let arrives = last.entry((index, to)).or_insert(0);
                *arrives = (now + dice.delay()).max(*arrives);
                let heard = step.recv_posted;
                plan(
                    &mut events,
                    *arrives,
                    to,
                    MemberActionOrArrival::Message { heard, load },
                );
                // Sometimes a member pauses before it continues.
                let pause = dice.delay();
                if pause > 100 {
                    plan(&mut events, now + pause, index, MemberActionOrArrival::Act);
                    break;
                }
            }
        }
        for (index, member) in members.iter().enumerate() {
            let seat = self.line_position_of_member(index);
            let expected = self.algorithm.receive_count(&stage, seat);
            let rest = self.algorithm.nth_send(&stage, seat, member.taken);
            assert_eq!(
                (member.credits, rest),
                (expected, None),
                "{self:?}: {index}"
            );
            assert!(
                self.member_has_expected_parts(index, &member.has),
                "{self:?}: {index}"
            );
        }
    }
}

/// Most group sizes do not divide this buffer size.
const BYTES: u64 = 1_000_003;

/// Random numbers by xorshift.
struct Dice(u64);

impl Dice {
    /// Returns a delay that is mostly short, and sometimes longer than whole rounds.
    fn delay(&mut self) -> u64 {
        for (left, by) in [(true, 13), (false, 7), (true, 17)] {
            self.0 ^= if left { self.0 << by } else { self.0 >> by };
        }
        match self.0 >> 33 & 7 {
            0..5 => self.0 % 10,
            5 | 6 => self.0 % 1000,
            _ => self.0 % 10_000,
        }
    }
}

fn check_line_collectives(algorithm: CollectiveAlgorithm, sizes: std::ops::RangeInclusive<usize>) {
    for primitive in PRIMITIVES {
        for n in sizes.clone() {
            if !algorithm.supports_primitive(primitive, n as u32) {
                continue;
            }
            for seed in 1..=3_u64 {
                LineCollective {
                    algorithm,
                    primitive,
                    n,
                    root: match primitive.has_root() {
                        true => n * (seed as usize - 1) / 3,
                        false => 0,
                    },
                    mirrored: seed == 2,
                    seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n as u64,
                }
                .run_and_check_members();
            }
        }
    }
}

#[test]
fn every_member_ends_with_what_the_primitive_promises() {
    for (algorithm, _) in CollectiveAlgorithm::ALL {
        check_line_collectives(algorithm, 2..=33);
    }
}

#[test]
fn substitute_algorithms_support_every_primitive() {
    for (algorithm, _) in CollectiveAlgorithm::ALL {
        for primitive in PRIMITIVES {
            for n in 2..=33 {
                let used = algorithm.resolve_unsupported_algorithm(primitive, n);
                assert!(
                    used.supports_primitive(primitive, n),
                    "{algorithm} {primitive:?} {n}"
                );
                assert_eq!(
                    used == algorithm,
                    algorithm.supports_primitive(primitive, n)
                );
            }
        }
    }
}
