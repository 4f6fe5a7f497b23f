//! Events of a joined capture, reduced to the facts that are needed once intervals contain the times.

use super::kineto::{EventCategory, KinetoEvent};

/// An event without its times and without the ids that were used to place it.
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
    /// Converts `events` to this smaller form and frees the rest of their memory.
    pub fn all(events: Vec<KinetoEvent>) -> Vec<Self> {
        // Collected in place: two of these fit where one event was.
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
