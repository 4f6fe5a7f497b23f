//! Keeps events in one list, sorted by time. Events of the same tick (ns) stay in insertion order.
//!
//! As in ASTRA-sim 2.x, an NPU has one group of delays for each tick in which delays end. Each group has one event, at
//! the position of its first registered delay. The calls of a tick run in registration order. If a call adds another
//! call to the same tick, the added call still runs in that tick.

use super::network::TransitMessage;
use super::post::ArrivalHandler;
use std::collections::{BTreeMap, VecDeque};

/// An event of the list.
#[derive(Debug)]
pub enum AgendaEvent {
    /// The delays of an NPU that end now.
    Calls(usize),
    /// A message reaches the next device on its path.
    Arrival(TransitMessage),
    /// A link has sent the whole message.
    LinkFree(usize, usize),
    /// A receive that was posted after its message had arrived completes now.
    Received(ArrivalHandler),
}

/// What an NPU does at the end of a delay.
#[derive(Clone, Debug)]
pub enum DelayedCall {
    /// A node of the workload ends.
    NodeEnds(u64),
    /// A chunk of a broadcast ends; such a chunk only takes time and sends no messages.
    BroadcastEnds(u64),
    /// A packet has crossed the bus, and may need a reduction.
    Packet(StreamBusPacket),
    /// A compute node of a custom algorithm ends.
    CustomEnds { stream: usize, node: u64 },
    /// The memory server takes the next request.
    MemoryNext(usize),
    /// A delay on a side of the shared bus ends.
    Bus(usize, super::bus::EndedSendReceiveOrReduction),
}

/// A packet: data of a stream on the way between network and memory.
#[derive(Clone, Debug)]
pub struct StreamBusPacket {
    pub stream: usize,
    pub bytes: u64,
    pub reduce: bool,
}

/// The list of pending events and delays.
#[derive(Debug, Default)]
pub struct EventAgenda {
    pub now: u64,
    events: BTreeMap<u64, VecDeque<AgendaEvent>>,
    calls: BTreeMap<(usize, u64), VecDeque<DelayedCall>>,
}

impl EventAgenda {
    /// Adds an event `after` ns from now; it runs after all other events of that tick.
    pub fn add_event(&mut self, after: u64, event: AgendaEvent) {
        let at = self.now.saturating_add(after);
        self.events.entry(at).or_default().push_back(event);
    }

    /// Adds a delay of `after` ns on an NPU; `call` runs at its end.
    pub fn add_delay(&mut self, npu: usize, after: u64, call: DelayedCall) {
        let at = self.now.saturating_add(after);
        if !self.calls.contains_key(&(npu, at)) {
            self.add_event(after, AgendaEvent::Calls(npu));
        }
        self.calls.entry((npu, at)).or_default().push_back(call);
    }

    /// Removes the next event, and advances the time to it.
    pub fn take_next_event(&mut self) -> Option<AgendaEvent> {
        loop {
            let mut first = self.events.first_entry()?;
            if let Some(event) = first.get_mut().pop_front() {
                self.now = *first.key();
                return Some(event);
            }
            first.remove();
        }
    }

    /// Removes the next call that is due now on an NPU.
    pub fn take_due_call(&mut self, npu: usize) -> Option<DelayedCall> {
        let call = self.calls.get_mut(&(npu, self.now))?.pop_front();
        if call.is_none() {
            self.calls.remove(&(npu, self.now));
        }
        call
    }
}
