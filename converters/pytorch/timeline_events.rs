//! Events of a joined capture, without the facts that only joining needs.

use super::kineto::{EventCategory, KinetoEvent};

/// An event without its times, which intervals contain, and without the ids that only joining needs.
#[derive(Clone, Copy, Debug)]
pub struct TimelineEventWithoutTimes {
    /// Record function id, which is also in the host trace; 0 if there is none.
    pub rf_id: u64,
    /// Correlation id, which a launch shares with its kernel; 0 if there is none.
    pub correlation: u64,
    /// Index of the event's name in the Kineto trace's string table.
    pub name: u32,
    /// Index of the event's details in the Kineto trace; [`NONE`](super::NONE) if there are none.
    pub details: u32,
    /// Category of the event.
    pub category: EventCategory,
}

impl TimelineEventWithoutTimes {
    /// Converts `events` to this smaller form, and frees memory that is no longer needed.
    pub fn convert_all(events: Vec<KinetoEvent>) -> Vec<Self> {
        // `collect` reuses the memory of `events`, because two small events fit into one original event.
        let mut kept: Vec<Self> = events.into_iter().map(Self::from_event).collect();
        kept.shrink_to_fit();
        kept
    }

    fn from_event(event: KinetoEvent) -> Self {
        Self {
            rf_id: event.rf_id,
            correlation: event.correlation,
            name: event.name,
            details: event.details,
            category: event.category,
        }
    }
}
