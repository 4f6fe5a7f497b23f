//! The critical path of the recorded run: the chain of nodes that ends with the run's last node, each released by the
//! previous one.
//!
//! The critical path is the longest path through the graph of dependencies and lane order. The parts of the path
//! therefore sum to the time of the run. If all ranks measure time from a common origin, the path crosses ranks: if a
//! node waited for another rank, the path continues there. A collective began when its last member had arrived; a
//! message began when both its sender and its receiver had arrived. The path continues on the rank that arrived last,
//! at the time of its arrival.

use super::class::InspectedNodeType;
use super::path_input::RankTimesForCriticalPath;
use chakram_base::units::{Span, Time};
use chakram_trace::matching::{CommMatches, RankCommNode};
use std::collections::BTreeMap;

/// A part of the path: a node, and the time before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSegment {
    /// Index of the node's rank among the tracks (one track per rank).
    pub track: u32,
    /// Index of the node among the nodes of the track.
    pub node: u32,
    /// Start time of this part.
    pub from: Time,
    /// Time from the end of the releasing node to the start of this node.
    pub delay: Span,
    /// Time that the node then waited for another rank. Zero if the path instead continues on that rank.
    pub wait: Span,
    /// Time of the node's work or transfer, without waiting.
    pub work: Span,
}

/// The critical path of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CriticalPath {
    /// Parts of the path, in order of time. Each part begins when the previous part ends.
    pub pieces: Vec<PathSegment>,
    /// How often the path changes to another rank.
    pub changes: u32,
}

impl CriticalPath {
    /// Returns the total time of all parts.
    pub fn total_time(&self) -> Span {
        self.pieces
            .iter()
            .map(|piece| piece.delay + piece.wait + piece.work)
            .sum()
    }
}

/// Finds the rank that arrived last at the collective or message to which `step`, a node of the track, belongs. Returns
/// the track and node of this rank. Returns `None` unless it arrived after `start` and before `end`.
fn find_last_arrival(
    matches: &CommMatches<'_>,
    tracks: &[RankTimesForCriticalPath],
    (track, step): (u32, &RankCommNode),
    (start, end): (Time, Time),
) -> Option<(u32, u32)> {
    let met = matches.matching_comm_nodes(track, step);
    let nodes = met.map(|(t, s)| (t, tracks[t as usize].comms.steps[s as usize].node));
    let came = |&(t, n): &(u32, u32)| tracks[t as usize].start[n as usize];
    let others = nodes.filter(|&(t, _)| t != track);
    let late = others.filter(|other| came(other) > start && came(other) < end);
    // If several ranks arrived last, choose the lowest.
    late.max_by_key(|other| (came(other), std::cmp::Reverse(other.0)))
}

/// Returns the critical path through `tracks`, up to the node that ends last; `None` if no node runs. If `joined` is
/// true, all ranks measure time from one origin, so the path may change ranks.
pub fn critical_path(tracks: &[RankTimesForCriticalPath], joined: bool) -> Option<CriticalPath> {
    let matches = joined.then(|| CommMatches::new(tracks.iter().map(|track| &track.comms)));
    let ends = tracks.iter().zip(0..).filter_map(|(track, i)| {
        let node = track.last?;
        Some((track.end[node as usize], std::cmp::Reverse(i), node))
    });
    let (mut end, std::cmp::Reverse(mut at), mut node) = ends.max()?;
    let mut path = CriticalPath::default();
    // Follow the path backwards from cause to cause, because each node has one known cause. A search for the longest
    // path would visit all edges.
    loop {
        let track = &tracks[at as usize];
        let start = track.start[node as usize];
        let waited = track
            .communication_and_wait_of_node(node)
            .filter(|(_, wait)| *wait > Span::ZERO);
        if let (Some(matches), Some((step, _))) = (&matches, waited)
            && let Some((other, met)) = find_last_arrival(matches, tracks, (at, step), (start, end))
        {
            let came = tracks[other as usize].start[met as usize];
            path.pieces.push(PathSegment {
                track: at,
                node,
                from: came,
                delay: Span::ZERO,
                wait: Span::ZERO,
                work: end.since(came),
            });
            path.changes += 1;
            // Each change of rank goes back in time, so the loop ends.
            (at, node, end) = (other, met, came);
            continue;
        }
        let cause = track.find_releasing_node(node);
        let from = cause.map_or(Time::ZERO, |cause| track.end[cause as usize]);
        let length = end.since(start);
        let wait = waited.map_or(Span::ZERO, |(_, wait)| wait.min(length));
        path.pieces.push(PathSegment {
            track: at,
            node,
            from,
            delay: start.since(from),
            wait,
            work: length - wait,
        });
        match cause {
            Some(cause) => (node, end) = (cause, from),
            None => break,
        }
    }
    path.pieces.reverse();
    Some(path)
}

/// Time of several parts of a path, split by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathDelayWaitWorkTotals {
    /// Number of these parts.
    pub pieces: u64,
    /// Time before these parts' nodes started.
    pub delay: Span,
    /// Time that the nodes waited for other ranks.
    pub wait: Span,
    /// The rest of these parts' time: work and transfers.
    pub work: Span,
}

impl PathDelayWaitWorkTotals {
    fn add_segment(&mut self, piece: &PathSegment) {
        self.pieces += 1;
        self.delay += piece.delay;
        self.wait += piece.wait;
        self.work += piece.work;
    }

    /// Returns the sum of delay, waiting and work.
    pub fn total_time(&self) -> Span {
        self.delay + self.wait + self.work
    }
}

/// Sums the times of a path's parts by `key`; returns the sums, largest first.
pub fn sum_path_time_by_key<K: Ord>(
    path: &CriticalPath,
    key: impl Fn(&PathSegment) -> K,
) -> Vec<(K, PathDelayWaitWorkTotals)> {
    let mut by: BTreeMap<K, PathDelayWaitWorkTotals> = BTreeMap::new();
    for piece in &path.pieces {
        by.entry(key(piece)).or_default().add_segment(piece);
    }
    let mut rows: Vec<_> = by.into_iter().collect();
    rows.sort_by_key(|(_, spent)| std::cmp::Reverse(spent.total_time()));
    rows
}

impl PathSegment {
    /// Returns the type of the part's node.
    pub fn class_of_node(&self, tracks: &[RankTimesForCriticalPath]) -> InspectedNodeType {
        tracks[self.track as usize].classes[self.node as usize]
    }

    /// Returns the id of the part's node in the trace.
    pub fn id_of_node(&self, tracks: &[RankTimesForCriticalPath]) -> u64 {
        tracks[self.track as usize].ids[self.node as usize]
    }

    /// Returns the duration of this part.
    pub fn duration(&self) -> Span {
        self.delay + self.wait + self.work
    }
}

#[cfg(test)]
mod tests;
