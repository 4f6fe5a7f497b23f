//! Events of a timeline, independent of the file format.

use chakram_base::units::Time;

/// Identifies a track: the rank, and the track's number within the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TrackId {
    pub rank: u32,
    pub lane: u32,
}

/// One end of an arrow. Both ends of an arrow have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrowEnd {
    From(u32),
    To(u32),
}

/// Facts about a node in addition to the node's name and times.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeFacts<'f> {
    /// Id in the trace.
    pub node: u64,
    /// Name in the trace, if the slice has a different name.
    pub name: Option<&'f str>,
    /// Floating-point operations of a kernel.
    pub flops: Option<u64>,
    /// Bytes that the node moves, sends or reduces.
    pub bytes: Option<u64>,
    pub group: Option<&'f str>,
    pub algorithm: Option<String>,
}

/// A node that ran.
#[derive(Clone, Debug)]
pub(super) struct TimelineSlice<'s> {
    pub name: &'s str,
    pub category: &'static str,
    pub start: Time,
    pub end: Time,
    pub facts: NodeFacts<'s>,
    pub arrow: Option<ArrowEnd>,
    /// Id of the arrow from the call that launched the node, if an arrow is drawn.
    pub launch: Option<u64>,
    /// Ids of the arrows to the nodes that this node launched.
    pub launched: Vec<u64>,
}

/// A quantity shown by a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimelineCounter {
    /// Bytes per second that a rank sends.
    Sending,
    /// Nodes that are ready but whose lane is occupied.
    Waiting,
}

impl TimelineCounter {
    /// Returns the name of the counter, with its unit.
    pub fn display_name(self) -> &'static str {
        match self {
            Self::Sending => "sending, bytes/s",
            Self::Waiting => "waiting nodes",
        }
    }
}

/// Writes events in one format. The caller passes the slices of a track sorted by time. The caller begins a path before
/// the slices under that path, and ends the path after these slices.
pub(super) trait TimelineEncoder {
    /// Names a rank.
    fn name_rank(&mut self, rank: u32, name: &str);
    /// Names a track of a rank and sets its position among the other tracks of the rank.
    fn name_track(&mut self, track: TrackId, name: &str, order: u32);
    /// Returns whether an interval is long enough for a slice at the format's resolution.
    fn is_visible(&self, start: Time, end: Time) -> bool;
    /// Draws a node as a slice, or as an instant if the node is too short.
    fn draw_slice(&mut self, track: TrackId, slice: &TimelineSlice<'_>);
    /// Begins a slice that will enclose other slices.
    fn begin_slice(&mut self, track: TrackId, name: &str, at: Time);
    /// Ends the innermost open slice.
    fn end_slice(&mut self, track: TrackId, name: &str, at: Time);
    /// Marks an instant of a rank.
    fn draw_marker(&mut self, rank: u32, name: &str, at: Time);
    /// Draws the bytes allocated by a rank from `at` on, by class.
    fn draw_memory(&mut self, rank: u32, at: Time, held: &[(&'static str, u64)]);
    /// Draws the value of a counter of a rank from `at` on.
    fn draw_counter(&mut self, rank: u32, counter: TimelineCounter, at: Time, value: u64);
}
