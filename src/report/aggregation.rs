//! Results of rank aggregation, which simulates one rank for a group of ranks that behave identically. It reports three
//! facts: the number of groups, how many of them stayed together to the end, and the first difference between ranks of
//! a group.

use super::Observer;
use super::summary::format_thousands;
use crate::CollectiveRecord;
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Span, Time};
use chakram_engine::InstanceId;
use chakram_engine::{CompiledReplay, EventAndTileGroupCounts};
use chakram_trace::graph::NodeKind;
use serde::{Deserialize, Serialize};

/// Results of rank aggregation, if the replay had to detect groups of identically behaving ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct IdenticalRankMergeCounts {
    /// Number of groups of identically behaving ranks at the start of the replay.
    pub groups: u32,
    /// Number of ranks in such groups at the start of the replay.
    pub ranks: u32,
    /// Number of groups that behaved identically until the end. One rank was simulated for each such group.
    pub together: u32,
    /// How often ranks rejoined their group after they had reached the same state again.
    #[serde(default)]
    pub rejoined: u64,
    /// Number of events that the event loop processed.
    pub events: u64,
    /// First difference between ranks of a group; `None` if no group was split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<RankGroupDivergencePoint>,
}

/// An operation that only some ranks of a group had completed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct RankGroupDivergencePoint {
    /// Time of the group's split, relative to the start of the replay.
    #[serde(rename = "at_ps")]
    pub at: Span,
    /// Name of the operation.
    pub node: String,
    /// Lowest rank that had completed the operation at this time.
    pub ahead: u32,
    /// Lowest rank that had not completed the operation at this time.
    pub behind: u32,
}

/// Keeps the counts that the event loop reports at the end of a replay.
#[derive(Clone, Debug, Default)]
pub(super) struct EventLoopCountObserver(Option<EventAndTileGroupCounts>);

impl Observer for EventLoopCountObserver {
    fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
    fn on_event_loop_statistics(&mut self, counts: &EventAndTileGroupCounts) {
        self.0 = Some(counts.clone());
    }
}

impl EventLoopCountObserver {
    /// Returns the results of rank aggregation for the replay of `prepared`; `None` if the replay did not detect
    /// groups.
    pub(super) fn summarize_rank_aggregation(
        self,
        prepared: &CompiledReplay<'_>,
    ) -> Option<IdenticalRankMergeCounts> {
        let counts = self.0.filter(|_| prepared.uses_tile_groups())?;
        Some(IdenticalRankMergeCounts {
            groups: counts.groups,
            ranks: counts.ranks,
            together: counts.together,
            rejoined: counts.rejoined,
            events: counts.events,
            split: counts.split.map(|split| RankGroupDivergencePoint {
                at: split.at.since(Time::ZERO),
                node: split.node,
                ahead: split.ahead.0,
                behind: split.behind.0,
            }),
        })
    }
}

impl IdenticalRankMergeCounts {
    /// Returns the lines about rank aggregation for the text report.
    pub(super) fn describe_in_lines(&self) -> Vec<String> {
        let [groups, ranks, together] =
            [self.groups, self.ranks, self.together].map(|n| format_thousands(n.into()));
        let events = format_thousands(self.events);
        let mut lines = vec![format!(
            "{ranks} ranks in {groups} groups; in {together} one rank ran for all to the end; {events} events"
        )];
        if let Some(split) = &self.split {
            let RankGroupDivergencePoint {
                at,
                node,
                ahead,
                behind,
            } = split;
            lines.push(format!(
                "others were told apart, the first at {at}: rank {ahead} came to `{node}` before rank {behind}; joined again {} times",
                format_thousands(self.rejoined)
            ));
        }
        lines
    }
}
