//! Events of a joined capture: what is asked about them once intervals have their times.

use super::kineto::{EventCategory, EventDetails, KinetoEvent};
use super::rank_timeline::{HostInterval, HostIntervalKind, RankTimeline};

/// An event without its times and without the ids that placed it.
#[derive(Clone, Copy, Debug)]
pub struct TimelineEvent {
    /// Record function id, which joins it to the host trace; 0 if there is none.
    pub rf_id: u64,
    /// Correlation id, which a launch shares with its kernel; 0 if there is none.
    pub correlation: u64,
    /// Index of its name in the texts of the Kineto trace.
    pub name: u32,
    /// Index of its details in the Kineto trace; [`NONE`](super::NONE) if it has none.
    pub details: u32,
    /// Category.
    pub category: EventCategory,
}

impl TimelineEvent {
    /// Returns `events` in as little memory as they take from now on.
    pub fn all(events: Vec<KinetoEvent>) -> Vec<Self> {
        // Collected in place, as two of these fit where one of those was.
        let mut kept: Vec<Self> = events.into_iter().map(Self::of).collect();
        kept.shrink_to_fit();
        kept
    }

    fn of(event: KinetoEvent) -> Self {
        Self {
            rf_id: event.rf_id,
            correlation: event.correlation,
            name: event.name,
            details: event.details,
            category: event.category,
        }
    }
}

impl HostIntervalKind {
    /// Returns the role of a host event.
    pub(super) fn of(category: EventCategory) -> Self {
        match category {
            EventCategory::CpuOp => Self::Operator,
            EventCategory::Runtime => Self::Runtime,
            _ => Self::Annotation,
        }
    }
}

impl RankTimeline {
    /// Hands back memory that only reading and joining the files needed.
    pub fn shrink(&mut self) {
        self.host.texts.freeze();
        self.kineto.texts.freeze();
        self.host.nodes.shrink_to_fit();
        self.host.records.shrink_to_fit();
        self.host.storages.shrink_to_fit();
        self.devices.shrink_to_fit();
    }

    /// Returns the role of an item.
    pub fn role(&self, item: &HostInterval) -> HostIntervalKind {
        HostIntervalKind::of(self.events[item.event as usize].category)
    }

    /// Returns the name of an event, as Kineto writes it.
    pub fn name(&self, event: u32) -> &str {
        self.kineto.texts.get(self.events[event as usize].name)
    }

    /// Returns the details of an event.
    pub fn details(&self, event: &TimelineEvent) -> &EventDetails {
        self.kineto.details_at(event.details)
    }

    /// Returns the arguments of an event, where they are kept.
    pub fn args_of(&self, event: &TimelineEvent) -> Option<&[(String, String)]> {
        self.kineto.args_at(event.details)
    }
}
