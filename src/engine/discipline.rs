//! Discipline: what depends on the order of events at an instant, in one trait with two implementations.
//!
//! The loop, the agenda, the graphs, lanes, chunks, observers and the diagnosis are the same for both.

use super::Engine;
use super::messages::SendOrderKey;
use crate::collective::{EndpointModel, IssueDiscipline};
use crate::ids::NodeIndex;
use crate::network::{NetworkBackend, NetworkMessage};
use crate::report::Observer;
use crate::units::Time;
use std::ops::ControlFlow;

/// All that the engine needs of a way of carrying out collectives.
pub trait CollectiveModel: EndpointModel + IssueDiscipline<Order: Discipline> {}

impl<M: EndpointModel + IssueDiscipline<Order: Discipline>> CollectiveModel for M {}

/// Order of the events of an instant, and what follows from it: matching, how lanes are taken, and when a send is
/// complete. Implemented by [`ContentOrder`](crate::collective::ContentOrder), chakram's own, and
/// [`InsertionOrder`](crate::collective::InsertionOrder), ASTRA-sim's.
pub trait Discipline: Sized {
    /// True if all consequences of an event are carried out within it, so that the order of events at an instant
    /// matters; false if they are collected, and settled when no event of the instant is left.
    const AT_ONCE: bool;

    /// True if a send is complete when its message has arrived, false if when its last byte has left.
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

    /// Completes a node `now`.
    fn end_node<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
        node: (u32, NodeIndex),
    );

    /// Schedules the completion of a node that holds its lane until `end`.
    fn end_at<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        end: Time,
        node: (u32, NodeIndex),
    );

    /// Notes that a node of `instance` is complete, before its lane is freed.
    fn node_ended<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        instance: u32,
    );

    /// Returns whether a lane that was freed is offered to others; `waiting` says whether its queue has nodes.
    fn offers_lane(waiting: bool) -> bool;

    /// Submits a message, at once or with the others of its instant, by their keys.
    fn submit<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
        key: SendOrderKey,
        message: NetworkMessage,
    );

    /// Posts a receive; `pair` is its match, or its channel.
    fn post_receive<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
        node: (u32, NodeIndex),
        pair: u32,
    );

    /// Handles the arrival of a message that `sender` sent.
    fn message_arrived<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
        pair: u32,
        sender: (u32, NodeIndex),
    );

    /// Has a member, of a group and with an index there, take part in its collective's run.
    fn join<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
        node: (u32, NodeIndex),
        member: (u32, u32),
        run: u32,
    );
}
