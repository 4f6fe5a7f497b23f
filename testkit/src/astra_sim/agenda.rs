//! Events in one list, by time; events of the same tick are in order of insertion.
//!
//! ASTRA-sim 2.x: an NPU groups its delays by the tick at which they end. Each tick has one event, at the position of
//! the first registered delay. The calls of a tick run in the order of their registration. A call that is added to
//! the tick while they run also runs in that tick.

use super::network::Transfer;
use super::post::Handler;
use std::collections::{BTreeMap, VecDeque};

/// An event of the list.
#[derive(Debug)]
pub enum Event {
    /// The delays of an NPU that end now.
    Calls(usize),
    /// A message reaches the next device on its path.
    Arrival(Transfer),
    /// A link has sent the whole message.
    LinkFree(usize, usize),
    /// A message had arrived before its receive was posted.
    Received(Handler),
}

/// What an NPU does at the end of a delay.
#[derive(Clone, Debug)]
pub enum Call {
    /// A node of the workload ends.
    NodeEnds(u64),
    /// A chunk of a broadcast ends. A broadcast only takes time and sends no messages.
    BroadcastEnds(u64),
    /// A packet has crossed the bus, and may need a reduction.
    Packet(Packet),
    /// A compute node of a custom algorithm ends.
    CustomEnds { stream: usize, node: u64 },
    /// The memory server takes the next request.
    MemoryNext(usize),
    /// A delay on a side of the shared bus ends.
    Bus(usize, super::bus::Signal),
}

/// A packet: a stream's data on its way between network and memory.
#[derive(Clone, Debug)]
pub struct Packet {
    pub stream: usize,
    pub bytes: u64,
    pub reduce: bool,
}

/// The list of events and delays.
#[derive(Debug, Default)]
pub struct Agenda {
    pub now: u64,
    events: BTreeMap<u64, VecDeque<Event>>,
    calls: BTreeMap<(usize, u64), VecDeque<Call>>,
}

impl Agenda {
    /// Adds an event `after` ns from now, after all other events of that tick.
    pub fn event(&mut self, after: u64, event: Event) {
        let at = self.now.saturating_add(after);
        self.events.entry(at).or_default().push_back(event);
    }

    /// Adds a delay of an NPU.
    pub fn delay(&mut self, npu: usize, after: u64, call: Call) {
        let at = self.now.saturating_add(after);
        if !self.calls.contains_key(&(npu, at)) {
            self.event(after, Event::Calls(npu));
        }
        self.calls.entry((npu, at)).or_default().push_back(call);
    }

    /// Removes the next event, and advances the time to it.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            let mut first = self.events.first_entry()?;
            if let Some(event) = first.get_mut().pop_front() {
                self.now = *first.key();
                return Some(event);
            }
            first.remove();
        }
    }

    /// Takes the next call of an NPU whose delay ends now.
    pub fn next_call(&mut self, npu: usize) -> Option<Call> {
        let call = self.calls.get_mut(&(npu, self.now))?.pop_front();
        if call.is_none() {
            self.calls.remove(&(npu, self.now));
        }
        call
    }
}
