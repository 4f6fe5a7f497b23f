//! Divides a thread's time into segments. During each segment, one host interval is innermost.

use super::{HostInterval, JoinedRankCapture, NONE};

/// A period of a thread during which one host interval is innermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnermostIntervalSegment {
    /// Innermost open host interval; [`NONE`] between intervals.
    pub owner: u32,
    /// Start, in ns.
    pub from: i64,
    /// End, in ns.
    pub to: i64,
}

impl JoinedRankCapture {
    /// Divides a thread's time at every start and end of a host interval. The segments leave no gaps between the first
    /// start and the last end.
    pub fn segments_of_thread(&self, thread: u32) -> Vec<InnermostIntervalSegment> {
        let mut segments = Vec::new();
        self.for_each_segment_of_thread(thread, |segment| segments.push(segment));
        segments
    }

    /// Passes the segments of a thread to `take`, in order.
    pub fn for_each_segment_of_thread(
        &self,
        thread: u32,
        take: impl FnMut(InnermostIntervalSegment),
    ) {
        let range = self.threads[thread as usize].items.clone();
        let items = &self.items[range.start as usize..range.end as usize];
        for_each_segment(items, range.start, take);
    }
}

/// Passes the segments of one thread to `take`. `items` are the thread's sorted intervals; the first has
/// the index `first`.
fn for_each_segment(
    items: &[HostInterval],
    first: u32,
    mut take: impl FnMut(InnermostIntervalSegment),
) {
    let mut open: Vec<u32> = Vec::new();
    let Some(mut now) = items.first().map(|item| item.start) else {
        return;
    };
    for (i, item) in items.iter().enumerate() {
        assign_time_to_innermost_intervals(
            &mut take, &mut open, &mut now, items, first, item.start,
        );
        open.push(first + i as u32);
    }
    let last = items.iter().map(|item| item.end).max().unwrap_or(now);
    assign_time_to_innermost_intervals(&mut take, &mut open, &mut now, items, first, last);
}

/// Assigns the time from `now` to `until` to the innermost open host interval, and closes the
/// intervals that end in this period.
fn assign_time_to_innermost_intervals(
    take: &mut impl FnMut(InnermostIntervalSegment),
    open: &mut Vec<u32>,
    now: &mut i64,
    items: &[HostInterval],
    first: u32,
    until: i64,
) {
    let end_of = |item: u32| items[(item - first) as usize].end;
    loop {
        while open.last().is_some_and(|&top| end_of(top) <= *now) {
            open.pop();
        }
        if *now >= until {
            return;
        }
        let owner = open.last().copied();
        let end = owner.map_or(until, |owner| end_of(owner).min(until));
        take(InnermostIntervalSegment {
            owner: owner.unwrap_or(NONE),
            from: *now,
            to: end,
        });
        *now = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_interval_from_start_and_end(start: i64, end: i64) -> HostInterval {
        HostInterval {
            event: 0,
            host: NONE,
            thread: 0,
            parent: NONE,
            start,
            end,
        }
    }

    fn list_owned_segments(items: &[HostInterval]) -> Vec<(u32, i64, i64)> {
        let mut found = Vec::new();
        for_each_segment(items, 0, |s| found.push((s.owner, s.from, s.to)));
        found
    }

    #[test]
    fn every_instant_of_a_thread_belongs_to_one_item() {
        // The host interval 0..10 contains 2..4 and 5..9, and the interval 5..9 contains 6..6. After a gap, 12..13
        // follows.
        let items = [
            host_interval_from_start_and_end(0, 10),
            host_interval_from_start_and_end(2, 4),
            host_interval_from_start_and_end(5, 9),
            host_interval_from_start_and_end(6, 6),
            host_interval_from_start_and_end(12, 13),
        ];
        let found = list_owned_segments(&items);
        let expected = [
            (0, 0, 2),
            (1, 2, 4),
            (0, 4, 5),
            (2, 5, 6),
            (2, 6, 9),
            (0, 9, 10),
            (NONE, 10, 12),
            (4, 12, 13),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn intervals_that_overlap_without_nesting_lose_no_time() {
        // The host intervals 0..5 and 3..8 overlap. The overlap belongs to the later interval, and is
        // counted once.
        let items = [
            host_interval_from_start_and_end(0, 5),
            host_interval_from_start_and_end(3, 8),
        ];
        let found = list_owned_segments(&items);
        assert_eq!(found, [(0, 0, 3), (1, 3, 8)]);
    }
}
