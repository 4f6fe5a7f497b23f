//! Determines when an operator that calls other operators does its own work.
//!
//! An operator that works itself has one activity for this work, placed among the activities of its child calls. The
//! position depends only on names, never on durations, so two captures of one program have the same activities in the
//! same order.
//!
//! - The work of an operator that launches device work is placed before the first launch.
//! - If nothing ran on a device, an operator whose children only allocate memory or create views is one piece of work
//!   from start to end. Such an operator computes between its child calls. The children's time counts as the
//!   operator's, and the children become zero-length marks before it.
//! - The work of any other operator is placed after its last child call.

use super::super::rank_timeline::{HostIntervalKind, JoinedRankCapture, NONE};
use super::super::view_operators::is_view_operator;

/// Names of helper operators, which allocate or clear memory, or return a view and copy only if necessary.
const ALLOCATORS: &[&str] = &[
    "contiguous",
    "empty",
    "empty_like",
    "empty_strided",
    "fill_",
    "new_empty",
    "new_empty_strided",
    "reshape",
    "resize_",
    "zero_",
    "zeros",
    "zeros_like",
];

/// Tolerance, in ns, for a child that ends after its caller. Profilers round times to 1 us. If the
/// caller is short, the tolerance is a fraction of the caller's length.
const ROUNDING: i64 = 1_000;
const ROUNDED_PART: i64 = 64;

/// Position of a host interval's own work among its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnWorkPositionAmongChildren {
    /// Start and end, in ns, of the time between the children on either side of the position, or of the whole host
    /// interval if `is_whole` is true.
    pub span: (i64, i64),
    /// Number of children before the position.
    pub before: u32,
    /// True if the host interval and its children are one piece of work.
    pub is_whole: bool,
    /// Start, in ns, of the piece of work to which the host interval belongs, or `None`.
    pub part_of: Option<i64>,
    children: u32,
}

/// Returns, for each host interval, the position of its own work among its children.
pub(super) fn find_own_work_position_among_children(
    rank: &JoinedRankCapture,
) -> Vec<OwnWorkPositionAmongChildren> {
    let on_host = rank.devices.is_empty();
    let places = rank.items.iter().map(|item| OwnWorkPositionAmongChildren {
        span: (item.start, item.end),
        before: 0,
        is_whole: false,
        part_of: None,
        children: 0,
    });
    let mut places: Vec<OwnWorkPositionAmongChildren> = places.collect();
    let mut only_helpers = vec![on_host; rank.items.len()];
    let mut launched = vec![false; rank.items.len()];
    // Children come after their parents in the list, so a single pass suffices.
    for (index, item) in rank.items.iter().enumerate() {
        let Some(parent) = rank.items.get(item.parent as usize) else {
            continue;
        };
        let around = item.parent as usize;
        let place = &mut places[around];
        place.children += 1;
        // A child that ends after its caller does not belong to the caller's own work.
        let rounding = ROUNDING.min((parent.end - parent.start) / ROUNDED_PART);
        let crosses = item.end > parent.end.saturating_add(rounding);
        only_helpers[index] &= !crosses;
        if launched[around] {
            continue;
        }
        if crosses || rank.kind_of_host_interval(item) == HostIntervalKind::Runtime {
            place.span.1 = place.span.1.min(item.start).max(place.span.0);
            launched[around] = true;
        } else {
            let from = place.span.0.max(item.end);
            place.span = (from, from.max(parent.end));
            place.before = place.children;
        }
    }
    for (index, item) in rank.items.iter().enumerate().rev() {
        let own = is_view_or_allocation(rank, index) && only_helpers[index];
        if item.parent != NONE && !own {
            only_helpers[item.parent as usize] = false;
        }
    }
    for (index, item) in rank.items.iter().enumerate() {
        let around = places.get(item.parent as usize);
        let part_of = around.and_then(|around| match around.is_whole {
            true => Some(around.span.0),
            false => around.part_of,
        });
        let place = &mut places[index];
        place.part_of = part_of;
        let is_operator = rank.kind_of_host_interval(item) == HostIntervalKind::Operator;
        if part_of.is_none()
            && is_operator
            && place.children > 0
            && only_helpers[index]
            && !is_view_or_allocation(rank, index)
        {
            place.is_whole = true;
            place.span = (item.start, item.end);
            place.before = place.children;
        }
    }
    places
}

fn is_view_or_allocation(rank: &JoinedRankCapture, item: usize) -> bool {
    let item = &rank.items[item];
    let plain = rank.host_interval_name(item).strip_prefix("aten::");
    let helps = |plain| is_view_operator(plain) || ALLOCATORS.binary_search(&plain).is_ok();
    rank.kind_of_host_interval(item) == HostIntervalKind::Operator && plain.is_some_and(helps)
}

/// Returns the host intervals of a thread, sorted by position.
pub(super) fn sort_host_intervals_by_position(
    rank: &JoinedRankCapture,
    items: std::ops::Range<u32>,
    places: &[OwnWorkPositionAmongChildren],
) -> Vec<u32> {
    let mut order = Vec::with_capacity(items.len());
    // Open host intervals, each with the number of children seen so far.
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
    fn allocator_names_are_sorted() {
        assert!(ALLOCATORS.is_sorted());
    }
}
