//! Which node of one trace is which of the other.
//!
//! From strong evidence to weak: nodes with the same surroundings, all the way; with the same all the
//! way up, or down; with the same nearby; neighbours of pairs; what an alignment in program order
//! leaves side by side; and at last what has the same neighbours and is something else. Nothing is looked
//! for twice, and no step is more than linear but for sorting, so traces that have nothing in common take
//! no longer.
//!
//! Large traces that are nearly one are mostly paired by their ids first, which takes one look at each node.

use super::alike::unique;
use super::classes::Classes;
use super::side::{Side, Way};
use super::{align, alone, flood, labels, same_ids};

/// Each node's partner in the other trace.
#[derive(Clone, Debug)]
pub struct Pairs {
    partner: [Vec<u32>; 2],
    free: usize,
}

/// In place of a partner.
const NOBODY: u32 = u32::MAX;

/// A label for each node of both traces.
pub(super) type Labels = [Vec<u64>; 2];

impl Pairs {
    pub(super) fn new(counts: [usize; 2]) -> Self {
        Self {
            partner: counts.map(|count| vec![NOBODY; count]),
            free: counts[0].min(counts[1]),
        }
    }

    /// The partner of a node of the first trace (0) or the second (1).
    #[inline]
    pub fn of(&self, which: usize, node: u32) -> Option<u32> {
        let partner = self.partner[which][node as usize];
        (partner != NOBODY).then_some(partner)
    }

    /// The nodes of a trace that have no partner, ascending.
    pub fn free(&self, which: usize) -> impl Iterator<Item = u32> + '_ {
        let partners = self.partner[which].iter().enumerate();
        partners.filter_map(|(node, &partner)| (partner == NOBODY).then_some(node as u32))
    }

    /// How many nodes a trace has.
    pub(super) fn count(&self, which: usize) -> u32 {
        self.partner[which].len() as u32
    }

    pub(super) fn set(&mut self, first: u32, second: u32) {
        debug_assert!(self.of(0, first).is_none() && self.of(1, second).is_none());
        self.partner[0][first as usize] = second;
        self.partner[1][second as usize] = first;
        self.free -= 1;
    }

    /// Whether no further pair is possible.
    pub(super) fn complete(&self) -> bool {
        self.free == 0
    }
}

/// From so many nodes in each trace on, both are worked on at the same time.
pub(super) const MANY: usize = 1 << 14;

/// Both results; worked on at the same time if there is `much` to do.
pub(super) fn at_once<T: Send>(
    much: bool,
    first: impl FnOnce() -> T,
    second: impl FnOnce() -> T + Send,
) -> [T; 2] {
    if !much {
        return [first(), second()];
    }
    std::thread::scope(|scope| {
        let second = scope.spawn(second);
        let first = first();
        let second = second.join();
        [
            first,
            second.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        ]
    })
}

/// `work` for both traces, at the same time where there are many nodes.
pub(super) fn both<T: Send>(sides: &[Side<'_>; 2], work: impl Fn(&Side<'_>) -> T + Sync) -> [T; 2] {
    let [a, b] = sides;
    let many = a.len().min(b.len()) >= MANY;
    at_once(many, || work(a), || work(b))
}

/// Finds pairs. In traces of at least `many` nodes that are nearly one, ids say who is who.
pub(super) fn find(sides: &[Side<'_>; 2], many: usize) -> Pairs {
    let mut pairs = Pairs::new([sides[0].len(), sides[1].len()]);
    if sides[0].len().min(sides[1].len()) >= many && same_ids::pair(sides, &mut pairs) {
        by_neighbours(sides, &mut pairs);
    }
    far(sides, &mut pairs, Base::Key, labels::whole);
    for base in [Base::Content, Base::Key, Base::Kind] {
        by_surroundings(sides, &mut pairs, base);
    }
    if !pairs.complete() {
        unique(
            &mut pairs,
            &both(sides, |side| labels::of_all(side.outline, labels::name)),
        );
    }
    by_neighbours(sides, &mut pairs);
    pairs
}

/// A label that a side holds of each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// All that it says.
    Content,
    /// Name, type, lane, partners.
    Key,
    /// Name and type.
    Kind,
}

impl Base {
    pub fn of<'s>(self, side: &'s Side<'_>) -> &'s [u64] {
        match self {
            Self::Content => side.content(),
            Self::Key => side.key(),
            Self::Kind => side.kind(),
        }
    }
}

/// Pairs nodes whose surroundings are the same, far or near. What says all the same goes first: it can tell a
/// node from a new one before it that does the same.
fn by_surroundings(sides: &[Side<'_>; 2], pairs: &mut Pairs, base: Base) {
    far(sides, pairs, base, |side, base| {
        labels::along(side, base, Way::Before)
    });
    far(sides, pairs, base, |side, base| {
        labels::along(side, base, Way::After)
    });
    for steps in [3, 1, 0] {
        if !pairs.complete() {
            let labels = both(sides, |side| labels::around(side, base.of(side), steps));
            unique(pairs, &labels);
        }
    }
}

/// Pairs nodes that have the same `label`; of several, those that finer labels leave together.
fn far(
    sides: &[Side<'_>; 2],
    pairs: &mut Pairs,
    base: Base,
    label: fn(&Side<'_>, &[u64]) -> Vec<u64>,
) {
    if pairs.complete() {
        return;
    }
    let labels = both(sides, |side| label(side, base.of(side)));
    let Some(mut classes) = Classes::new(sides, pairs, &labels) else {
        return;
    };
    let finer: [fn(&Side<'_>) -> Vec<u64>; 6] = [
        |side| labels::whole(side, side.content()),
        |side| labels::along(side, side.content(), Way::Before),
        |side| labels::along(side, side.content(), Way::After),
        |side| labels::around(side, side.content(), 1),
        |side| labels::around(side, side.key(), 2),
        |side| side.content().to_vec(),
    ];
    for finer in finer {
        if classes.is_tied() {
            classes.split(&both(sides, finer));
        }
    }
    classes.pair_in_order();
}

/// Pairs neighbours of pairs, and what stands between pairs in program order.
fn by_neighbours(sides: &[Side<'_>; 2], pairs: &mut Pairs) {
    use flood::{Among, flood};
    const ROUNDS: usize = 3;
    for _ in 0..ROUNDS {
        if pairs.complete() {
            return;
        }
        let before = pairs.free;
        flood(sides, pairs, Base::Key, Among::One);
        align::align(sides, pairs);
        flood(sides, pairs, Base::Content, Among::Several);
        flood(sides, pairs, Base::Key, Among::Several);
        flood(sides, pairs, Base::Kind, Among::Several);
        alone::alone(sides, pairs);
        if pairs.free == before {
            return;
        }
    }
}
