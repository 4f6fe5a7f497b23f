//! A network model: a hub that forwards messages one at a time.

use chakram::extend::{
    EventScheduler, LineSendPattern, MessageProgressNotice, NetworkBackend, NetworkEvent,
    NetworkMessage,
};
use chakram::units::{Bandwidth, Span, Time};

/// A hub that messages cross one after another, in the order in which they were sent.
#[derive(Debug)]
pub struct HubNetwork {
    rate: Bandwidth,
    latency: Span,
    /// Time at which the last message has crossed the hub.
    free: Time,
}

impl HubNetwork {
    /// Creates a hub with the given rate and latency. A message arrives one latency after it has
    /// crossed the hub.
    pub fn new(rate: Bandwidth, latency: Span) -> Self {
        Self {
            rate,
            latency,
            free: Time::ZERO,
        }
    }
}

impl NetworkBackend for HubNetwork {
    const NAME: &'static str = "hub";
    const SHARED: bool = true;

    fn submit_message(
        &mut self,
        now: Time,
        message: &NetworkMessage,
        agenda: &mut impl EventScheduler,
    ) {
        self.free = now.max(self.free) + self.rate.serialization_time(message.amount);
        if message.tell_injected {
            agenda.schedule_event(self.free, NetworkEvent::Injected(message.op));
        }
        let arrives = self.free + self.latency;
        agenda.schedule_event(arrives, NetworkEvent::Delivered(message.op));
    }

    /// Any two messages delay each other, so the engine must simulate all messages of a collective.
    fn is_send_pattern_conflict_free(&self, _: usize, _: u32, _: LineSendPattern) -> bool {
        false
    }

    fn handle_event(
        &mut self,
        _: Time,
        event: NetworkEvent,
        _: &mut impl EventScheduler,
        notices: &mut Vec<MessageProgressNotice>,
    ) {
        match event {
            NetworkEvent::Injected(op) => notices.push(MessageProgressNotice::Injected(op)),
            NetworkEvent::Delivered(op) => notices.push(MessageProgressNotice::Delivered(op)),
            _ => unreachable!("nothing else is scheduled"),
        }
    }
}
