//! The critical path of the run that was recorded: the chain of nodes, each of which set the next one free,
//! that ends with the last node.
//!
//! It is the longest path through dependencies and the turns that nodes took on their lanes, so its parts sum
//! to the time that the run took. Where the ranks' times count from one start, a node that waited for another
//! rank hands over to that rank: a collective began when the last member came, and a message when both ends
//! were there. So the path goes on from the one that came last, at the moment when it did.

use super::class::NodeClass;
use super::path_input::PathInput;
use chakram_base::units::{Span, Time};
use chakram_trace::matching::{CommMatches, CommStep};
use std::collections::BTreeMap;

/// A part of the path: a node, and the time before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSegment {
    /// The place of its rank among the tracks.
    pub track: u32,
    /// The node's index.
    pub node: u32,
    /// Beginning of this part.
    pub from: Time,
    /// From what set it free until it started.
    pub delay: Span,
    /// Time that it then waited for another rank, where the path stays with it meanwhile.
    pub wait: Span,
    /// The rest: how long it worked, or its data were under way.
    pub work: Span,
}

/// The critical path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CriticalPath {
    /// Its parts, the first first. Each begins where the one before it ends.
    pub pieces: Vec<PathSegment>,
    /// Number of times that it goes on from one rank to another.
    pub changes: u32,
}

impl CriticalPath {
    /// The sum of all parts.
    pub fn length(&self) -> Span {
        self.pieces
            .iter()
            .map(|piece| piece.delay + piece.wait + piece.work)
            .sum()
    }
}

/// The track and node of the last rank to come to what `step` of a track takes part in, if it came after `start`
/// and before `end`.
fn last(
    matches: &CommMatches<'_>,
    tracks: &[PathInput],
    (track, step): (u32, &CommStep),
    (start, end): (Time, Time),
) -> Option<(u32, u32)> {
    let met = matches.with(track, step);
    let nodes = met.map(|(t, s)| (t, tracks[t as usize].comms.steps[s as usize].node));
    let came = |&(t, n): &(u32, u32)| tracks[t as usize].start[n as usize];
    let others = nodes.filter(|&(t, _)| t != track);
    let late = others.filter(|other| came(other) > start && came(other) < end);
    // Of several, the lowest rank.
    late.max_by_key(|other| (came(other), std::cmp::Reverse(other.0)))
}

/// The critical path through `tracks`, up to the node that ends last; `None` if no node runs. Ranks are
/// `joined` if their times count from one start.
pub fn critical_path(tracks: &[PathInput], joined: bool) -> Option<CriticalPath> {
    let matches = joined.then(|| CommMatches::new(tracks.iter().map(|track| &track.comms)));
    let ends = tracks.iter().zip(0..).filter_map(|(track, i)| {
        let node = track.last?;
        Some((track.end[node as usize], std::cmp::Reverse(i), node))
    });
    let (mut end, std::cmp::Reverse(mut at), mut node) = ends.max()?;
    let mut path = CriticalPath::default();
    // Each node knows its cause, so the path is followed back; a search for the longest one would look at all edges.
    loop {
        let track = &tracks[at as usize];
        let start = track.start[node as usize];
        let waited = track.comm(node).filter(|(_, wait)| *wait > Span::ZERO);
        if let (Some(matches), Some((step, _))) = (&matches, waited)
            && let Some((other, met)) = last(matches, tracks, (at, step), (start, end))
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
            // The path gets shorter with every change, so it ends.
            (at, node, end) = (other, met, came);
            continue;
        }
        let cause = track.cause(node);
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

/// Time of a path by what it is spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathTime {
    /// Parts of the path.
    pub pieces: u64,
    /// Time before they started.
    pub delay: Span,
    /// Time that they waited for other ranks.
    pub wait: Span,
    /// The rest.
    pub work: Span,
}

impl PathTime {
    fn add(&mut self, piece: &PathSegment) {
        self.pieces += 1;
        self.delay += piece.delay;
        self.wait += piece.wait;
        self.work += piece.work;
    }

    /// All of it.
    pub fn all(&self) -> Span {
        self.delay + self.wait + self.work
    }
}

/// Returns the time spent by `key`, most first.
pub fn spent_by<K: Ord>(
    path: &CriticalPath,
    key: impl Fn(&PathSegment) -> K,
) -> Vec<(K, PathTime)> {
    let mut by: BTreeMap<K, PathTime> = BTreeMap::new();
    for piece in &path.pieces {
        by.entry(key(piece)).or_default().add(piece);
    }
    let mut rows: Vec<_> = by.into_iter().collect();
    rows.sort_by_key(|(_, spent)| std::cmp::Reverse(spent.all()));
    rows
}

impl PathSegment {
    /// The kind of its node.
    pub fn class(&self, tracks: &[PathInput]) -> NodeClass {
        tracks[self.track as usize].classes[self.node as usize]
    }

    /// The id of its node.
    pub fn id(&self, tracks: &[PathInput]) -> u64 {
        tracks[self.track as usize].ids[self.node as usize]
    }

    /// Returns its length.
    pub fn length(&self) -> Span {
        self.delay + self.wait + self.work
    }
}

#[cfg(test)]
mod tests;
