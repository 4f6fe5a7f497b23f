//! Results of rank aggregation, which simulates one rank for a group of ranks that behave identically. The results
//! show the number of groups, and for how long the ranks of a group behaved identically.

use super::Observer;
use super::summary::format_thousands;
use crate::CollectiveRecord;
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Span, Time};
use chakram_engine::InstanceId;
use chakram_engine::{CompiledReplay, LoopCounts};
use chakram_trace::graph::NodeKind;
use serde::{Deserialize, Serialize};

/// Results of rank aggregation, for a replay whose options ask for the detection of groups of ranks that behave
/// identically.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct RankAggregation {
    /// Number of groups of identically behaving ranks at the start of the replay.
    pub groups: u32,
    /// Number of ranks in such groups at the start of the replay.
    pub ranks: u32,
    /// Number of groups that were simulated by one rank until the end of the replay.
    pub together: u32,
    /// Number of times that ranks of a split group reached the same state again, after which one rank was simulated
    /// for all of them.
    #[serde(default)]
    pub rejoined: u64,
    /// Number of events in the replay.
    pub events: u64,
    /// First difference between ranks of a group; `None` if no group was split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<RankDifference>,
}

/// An operation that the ranks of a group did not end at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct RankDifference {
    /// Time of the difference.
    #[serde(rename = "at_ps")]
    pub at: Span,
    /// Name of the operation.
    pub node: String,
    /// Lowest rank that had ended the operation.
    pub ahead: u32,
    /// Lowest rank that had not ended the operation.
    pub behind: u32,
}

/// Receives the counts that the event loop reports at the end of a replay.
#[derive(Clone, Debug, Default)]
pub(super) struct LoopObserver(Option<LoopCounts>);

impl Observer for LoopObserver {
    fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
    fn on_loop_counted(&mut self, counts: &LoopCounts) {
        self.0 = Some(counts.clone());
    }
}

impl LoopObserver {
    /// Returns the results for the groups of ranks of `prepared`, if the replay detected groups.
    pub(super) fn summarize_aggregation(
        self,
        prepared: &CompiledReplay<'_>,
    ) -> Option<RankAggregation> {
        let counts = self.0.filter(|_| prepared.aggregates_tiles())?;
        Some(RankAggregation {
            groups: counts.groups,
            ranks: counts.ranks,
            together: counts.together,
            rejoined: counts.rejoined,
            events: counts.events,
            split: counts.split.map(|split| RankDifference {
                at: split.at.since(Time::ZERO),
                node: split.node,
                ahead: split.ahead.0,
                behind: split.behind.0,
            }),
        })
    }
}

impl RankAggregation {
    /// Returns the lines about aggregation for the report's text.
    pub(super) fn describe_lines(&self) -> Vec<String> {
        let [groups, ranks, together] =
            [self.groups, self.ranks, self.together].map(|n| format_thousands(n.into()));
        let events = format_thousands(self.events);
        let mut lines = vec![format!(
            "{ranks} ranks in {groups} groups; in {together} one rank ran for all to the end; {events} events"
        )];
        if let Some(split) = &self.split {
            let RankDifference {
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
