//! Events of a timeline, independent of the file format.

use chakram_base::units::Time;

/// A track: its rank, and its number within the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RankTrackId {
    pub rank: u32,
    pub lane: u32,
}

/// One end of an arrow. Both ends have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrowEnd {
    From(u32),
    To(u32),
}

/// Facts about a node, besides its name and times.
#[derive(Clone, Debug, Default)]
pub(super) struct TimelineNodeDetails<'f> {
    /// Node's id in the trace.
    pub node: u64,
    /// Node's name in the trace, if it differs from the slice's name.
    pub name: Option<&'f str>,
    /// FLOPs of a kernel.
    pub flops: Option<u64>,
    /// Bytes that the node moves, sends or reduces.
    pub bytes: Option<u64>,
    pub group: Option<&'f str>,
    pub algorithm: Option<String>,
}

/// A node to be drawn.
#[derive(Clone, Debug)]
pub(super) struct TimelineSlice<'s> {
    pub name: &'s str,
    pub category: &'static str,
    pub start: Time,
    pub end: Time,
    pub facts: TimelineNodeDetails<'s>,
    pub arrow: Option<ArrowEnd>,
    /// Id of the arrow to the node from the call that launched it; `None` if no arrow is drawn.
    pub launch: Option<u64>,
    /// Ids of the arrows from the node to the nodes that it launched.
    pub launched: Vec<u64>,
}

/// A quantity that a counter shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimelineCounterQuantity {
    /// Bytes that a rank sends per second.
    Sending,
    /// Number of nodes that are ready while their lane is occupied.
    Waiting,
}

impl TimelineCounterQuantity {
    /// Returns the name of the counter, with its unit.
    pub fn display_name(self) -> &'static str {
        match self {
            Self::Sending => "sending, bytes/s",
            Self::Waiting => "waiting nodes",
        }
    }
}

/// Writes timeline events in one file format. The caller must draw each track's slices in order of time. It must begin
/// a path before the slices below it, and end the path after them.
pub(super) trait TimelineEncoder {
    /// Sets the name of a rank's process.
    fn name_rank(&mut self, rank: u32, name: &str);
    /// Sets the name of a track, and its position among the tracks of its rank.
    fn name_track(&mut self, track: RankTrackId, name: &str, order: u32);
    /// Returns true if an interval is long enough to be a slice at the format's resolution.
    fn is_long_enough_for_slice(&self, start: Time, end: Time) -> bool;
    /// Draws a node as a slice. A node that is too short is drawn as an instant.
    fn draw_slice_or_instant(&mut self, track: RankTrackId, slice: &TimelineSlice<'_>);
    /// Begins a slice that will enclose other slices.
    fn begin_slice(&mut self, track: RankTrackId, name: &str, at: Time);
    /// Ends the innermost open slice.
    fn end_slice(&mut self, track: RankTrackId, name: &str, at: Time);
    /// Marks a time on a rank.
    fn draw_marker(&mut self, rank: u32, name: &str, at: Time);
    /// Draws the bytes that a rank has allocated from time `at`, by class.
    fn draw_memory(&mut self, rank: u32, at: Time, held: &[(&'static str, u64)]);
    /// Draws the value that a rank's counter has from time `at`.
    fn draw_counter(&mut self, rank: u32, counter: TimelineCounterQuantity, at: Time, value: u64);
}
