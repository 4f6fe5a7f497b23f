//! Discipline: what depends on the order of events at an instant, in one trait with two implementations.
//!
//! The loop, the agenda, the graphs, lanes, chunks, observers and the diagnosis are the same for both.

use super::Engine;
use crate::Observer;
use chakram_base::units::Time;
use chakram_hardware::collective::{EndpointModel, IssueDiscipline};
use chakram_hardware::network::NetworkBackend;
use std::ops::ControlFlow;

/// All that the engine needs of a way of carrying out collectives.
pub trait CollectiveModel: EndpointModel + IssueDiscipline<Order: Discipline> {}

impl<M: EndpointModel + IssueDiscipline<Order: Discipline>> CollectiveModel for M {}

/// Order of the events of an instant, and what follows from it: matching, how lanes are taken, and when a send is
/// complete. Implemented by [`ContentOrder`](chakram_hardware::collective::ContentOrder), chakram's own, and
/// [`InsertionOrder`](chakram_hardware::collective::InsertionOrder), ASTRA-sim's.
pub trait Discipline: Sized {
    /// True if all consequences of an event are carried out within it, so that the order of events at an instant
    /// matters; false if they are collected, and settled when no event of the instant is left.
    const AT_ONCE: bool;

    /// True if every send is complete when its message has arrived, those of algorithms of collectives included; false if
    /// theirs when its last byte has left, and others as the machine says
    /// ([`SendCompletion`](chakram_hardware::network::SendCompletion)).
    const SENDS_END_ON_ARRIVAL: bool;

    /// True if collectives and messages are matched in the order in which they are issued, false if before the run,
    /// from program order.
    const MATCHES_AS_ISSUED: bool;

    /// True if an operation's messages leave and enter through ports of its own.
    const OPENS_PORTS: bool;

    /// Takes the events of the next instant, `now`, and handles them.
    fn round<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    );

    /// Carries out what comes after the events of a round. Breaks where the run cannot go on.
    fn end_round<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    ) -> ControlFlow<()>;

    /// Carries out what components left to be done after what was handled: the ends of nodes.
    fn follow_up<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    );

    /// Returns whether a lane that was freed is offered to others; `waiting` says whether its queue has nodes.
    fn offers_lane(waiting: bool) -> bool;
}
