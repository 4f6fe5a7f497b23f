//! Events of a timeline, whatever the format of its file.

use chakram_base::units::Time;

/// A track: the rank that it belongs to, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TrackId {
    pub rank: u32,
    pub lane: u32,
}

/// End of an arrow, by the number that a send and its receive share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrowEnd {
    From(u32),
    To(u32),
}

/// Facts about a node, beside its name and times.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeFacts<'f> {
    /// Id in the trace.
    pub node: u64,
    /// Name in the trace, where the slice has another.
    pub name: Option<&'f str>,
    /// Floating-point operations of a kernel.
    pub flops: Option<u64>,
    /// Bytes that it moves, sends or reduces.
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
    /// Number of the arrow from the call that launched it, if one is drawn.
    pub launch: Option<u64>,
    /// Numbers of the arrows to what it launched.
    pub launched: Vec<u64>,
}

/// A quantity that a counter shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimelineCounter {
    /// Bytes per second that a rank sends.
    Sending,
    /// Nodes that are ready, and whose lane another node holds.
    Waiting,
}

impl TimelineCounter {
    /// Its name, with its unit.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sending => "sending, bytes/s",
            Self::Waiting => "waiting nodes",
        }
    }
}

/// Writes events in one format. Slices of a track come in the order of their times, so that a path is begun before the
/// slices under it and ended after them.
pub(super) trait TimelineEncoder {
    /// Names a rank.
    fn rank(&mut self, rank: u32, name: &str);
    /// Names a track of a rank, and says where it stands among the others.
    fn track(&mut self, track: TrackId, name: &str, order: u32);
    /// Whether an interval is long enough to be a slice at the resolution of the format.
    fn is_visible(&self, start: Time, end: Time) -> bool;
    /// Draws a node; one that is too short to be a slice as an instant.
    fn slice(&mut self, track: TrackId, slice: &TimelineSlice<'_>);
    /// Begins a slice under which others will stand.
    fn begin(&mut self, track: TrackId, name: &str, at: Time);
    /// Ends the last slice that was begun and has not ended.
    fn end(&mut self, track: TrackId, name: &str, at: Time);
    /// Draws a moment.
    fn marker(&mut self, rank: u32, name: &str, at: Time);
    /// Draws the bytes that a rank holds from `at` on, by class.
    fn memory(&mut self, rank: u32, at: Time, held: &[(&'static str, u64)]);
    /// Draws the value of a counter of a rank from `at` on.
    fn counter(&mut self, rank: u32, counter: TimelineCounter, at: Time, value: u64);
}
