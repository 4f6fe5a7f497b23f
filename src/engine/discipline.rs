//! Event-order disciplines: a trait with every rule about the order of events at an instant, and its two
//! implementations.
//!
//! Both implementations share the loop, the agenda, the graphs, lanes, chunks, observers and the diagnosis.

use super::Engine;
use crate::Observer;
use chakram_base::units::Time;
use chakram_hardware::collective::{CollectiveEndpointModel, CollectiveMatchingRules};
use chakram_hardware::network::NetworkBackend;
use std::ops::ControlFlow;

/// All traits that the engine requires a collective backend to implement.
pub trait RequiredCollectiveBackendTraits:
    CollectiveEndpointModel + CollectiveMatchingRules<Order: EventOrderDiscipline>
{
}

impl<M: CollectiveEndpointModel + CollectiveMatchingRules<Order: EventOrderDiscipline>>
    RequiredCollectiveBackendTraits for M
{
}

/// Defines the order of events at an instant, and the rules that depend on this order: how nodes are matched, how lanes
/// are given out, and when sends complete. Implemented by
/// [`SortEventsByContentMarker`](chakram_hardware::collective::SortEventsByContentMarker), chakram's own order, and by
/// [`SortEventsByInsertionMarker`](chakram_hardware::collective::SortEventsByInsertionMarker), ASTRA-sim's order.
pub trait EventOrderDiscipline: Sized {
    /// True if the loop carries out all consequences of an event before the next event, so that results depend on the
    /// order of events at an instant. False if the loop collects consequences, and settles them when no event of the
    /// instant is left.
    const AT_ONCE: bool;

    /// True if every send completes when its message has arrived, even in collectives. False if sends of collectives
    /// complete when their last byte has left, and other sends complete as the machine states
    /// ([`SendCompletionRule`](chakram_hardware::network::SendCompletionRule)).
    const SENDS_END_ON_ARRIVAL: bool;

    /// True if collectives and messages are matched in the order of issue. False if they are matched before the run, in
    /// program order.
    const MATCHES_AS_ISSUED: bool;

    /// True if each operation opens its own ports for its messages.
    const OPENS_PORTS: bool;

    /// Takes the events of the next instant, `now`, and handles them.
    fn handle_events_of_next_instant<
        O: Observer + ?Sized,
        N: NetworkBackend,
        M: RequiredCollectiveBackendTraits<Order = Self>,
    >(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    );

    /// Does the work after a round's events. Returns `Break` if the replay cannot continue.
    fn finish_round_after_events<
        O: Observer + ?Sized,
        N: NetworkBackend,
        M: RequiredCollectiveBackendTraits<Order = Self>,
    >(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    ) -> ControlFlow<()>;

    /// Does the follow-up work that components appended, such as ending nodes.
    fn do_follow_up_work<
        O: Observer + ?Sized,
        N: NetworkBackend,
        M: RequiredCollectiveBackendTraits<Order = Self>,
    >(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    );

    /// Returns true if a freed lane is offered to other nodes. `waiting` is true if nodes queue for the lane.
    fn offers_freed_lane_to_others(waiting: bool) -> bool;
}
