//! Where an operator that calls others does its own work.
//!
//! Its activity stands at one place among those of the operators that it calls. The place follows from their names, never
//! from how long anything took: two captures of one program have the same activities in the same order. On a CPU operators
//! prepare views and memory, compute, and shape the result; so the place is behind the last call that is no view, or behind
//! the last view where nothing else is called. Operators that launch work for a device do their own before the launch.

use super::super::rank_timeline::{HostIntervalKind, NONE, RankTimeline};

/// Operators that only look at memory in another way.
const VIEWS: &[&str] = &[
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "as_strided",
    "as_strided_",
    "detach",
    "expand",
    "expand_as",
    "narrow",
    "permute",
    "reshape",
    "resize_",
    "select",
    "slice",
    "squeeze",
    "t",
    "transpose",
    "unsqueeze",
    "view",
    "view_as",
];

/// Operators that allocate memory behind what they compute, with the number of calls before that.
const EARLIER: &[(&str, u32)] = &[("mkldnn_convolution", 1), ("native_batch_norm", 5)];

/// Ends of a call and of its caller that lie so close are equal, ns: profilers round to a microsecond. Of short callers a
/// part of their length.
const ROUNDING: i64 = 1_000;
const ROUNDED_PART: i64 = 64;

/// Place of an item among its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnPlace {
    /// Time between the children around it, ns.
    pub span: (i64, i64),
    /// Number of children before it.
    pub before: u32,
    /// Whether later children no longer move it.
    fixed: bool,
    /// Whether a child before it is no view.
    worked: bool,
    /// Number of children.
    children: u32,
}

/// Returns the place of each item.
pub(super) fn find(rank: &RankTimeline) -> Vec<OwnPlace> {
    let mut places: Vec<OwnPlace> = Vec::with_capacity(rank.items.len());
    for (index, item) in (0..).zip(&rank.items) {
        places.push(OwnPlace {
            span: (item.start, item.end),
            before: 0,
            fixed: false,
            worked: false,
            children: 0,
        });
        if item.parent == NONE || item.parent >= index {
            continue;
        }
        let parent = &rank.items[item.parent as usize];
        let place = &mut places[item.parent as usize];
        place.children += 1;
        if place.fixed {
            continue;
        }
        let name = rank.item_name(item);
        let name = name.strip_prefix("aten::").unwrap_or(name);
        // A call that goes on when its caller has ended is none of its own.
        let rounding = ROUNDING.min((parent.end - parent.start) / ROUNDED_PART);
        let crosses = item.end > parent.end.saturating_add(rounding);
        let launches = rank.role(item) == HostIntervalKind::Runtime;
        let view = VIEWS.binary_search(&name).is_ok();
        let of = rank.item_name(parent);
        let of = of.strip_prefix("aten::").unwrap_or(of);
        let earlier = EARLIER.iter().find(|(name, _)| *name == of);
        if launches || crosses || earlier.is_some_and(|&(_, n)| place.before == n) {
            place.span.1 = place.span.1.min(item.start).max(place.span.0);
            place.fixed = true;
        } else if view && place.worked {
            // It shapes the result, unless something else is called later.
            place.span.1 = place.span.1.min(item.start).max(place.span.0);
        } else {
            let from = place.span.0.max(item.end);
            place.span = (from, from.max(parent.end));
            place.before = place.children;
            place.worked |= !view;
        }
    }
    places
}

/// Returns the items of a thread in the order of their places.
pub(super) fn order(
    rank: &RankTimeline,
    items: std::ops::Range<u32>,
    places: &[OwnPlace],
) -> Vec<u32> {
    let mut order = Vec::with_capacity(items.len());
    // Open items, with the number of their children so far.
    let mut open: Vec<(u32, u32)> = Vec::new();
    let close = |(item, seen): (u32, u32), order: &mut Vec<u32>| {
        if seen <= places[item as usize].before {
            order.push(item);
        }
    };
    for item in items {
        let parent = rank.items[item as usize].parent;
        while let Some(&top) = open.last()
            && top.0 != parent
        {
            close(top, &mut order);
            open.pop();
        }
        if let Some((top, seen)) = open.last_mut() {
            if *seen == places[*top as usize].before {
                order.push(*top);
            }
            *seen += 1;
        }
        open.push((item, 0));
    }
    while let Some(top) = open.pop() {
        close(top, &mut order);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_in_order() {
        assert!(VIEWS.is_sorted());
    }
}
