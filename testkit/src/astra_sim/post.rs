//! Matches sends with receives of equal (tag, source, destination, bytes), in the order in which they are issued.
//!
//! As in ASTRA-sim 2.x, when a message arrives, the sender's handler runs first. Then the
//! receiver's handler runs, if the receive is already posted. If a receive is posted after the
//! message's arrival, an event in the same tick completes the receive.

use super::OracleSimulator;
use super::agenda::AgendaEvent;
use std::collections::BTreeMap;

/// Identity of a message, including its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NumberedMessageKey {
    pub tag: u64,
    pub src: usize,
    pub dst: usize,
    pub bytes: u64,
    pub number: u64,
}

/// What to do when a message arrives.
#[derive(Clone, Debug)]
pub enum ArrivalHandler {
    /// No action.
    Nothing,
    /// A stream receives the message.
    Stream(usize),
    /// A node of an NPU's workload ends.
    NodeEnds { npu: usize, node: u64 },
    /// A node of a custom algorithm ends.
    CustomEnds { stream: usize, node: u64 },
    /// The receiver is ready, so the sender may send the data.
    DataMayLeave(UnnumberedMessageKey, Box<ArrivalHandler>),
    /// The sender knows that the receiver is ready, so post the receive.
    PostReceive(UnnumberedMessageKey, Box<ArrivalHandler>),
}

/// Identity of a message without its index; the index distinguishes messages with the same envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnnumberedMessageKey {
    pub tag: u64,
    pub src: usize,
    pub dst: usize,
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct SendReceivePair {
    send: Option<ArrivalHandler>,
    receive: Option<ArrivalHandler>,
    arrived: bool,
}

/// Messages in flight, and posted receives.
#[derive(Debug, Default)]
pub struct MessageMatching {
    /// Numbers of sends and of receives so far, by envelope.
    counts: BTreeMap<UnnumberedMessageKey, (u64, u64)>,
    meetings: BTreeMap<NumberedMessageKey, SendReceivePair>,
    /// Number of messages sent over the network.
    pub messages: u64,
}

/// Number of tags that are reserved for nodes; the same number is reserved for collectives.
const RANGE: u64 = 500_000_000;
/// Size in bytes of the message that signals that a receiver is ready.
const HANDSHAKE: u64 = 8192;

/// Converts the tag of a send or receive in a trace to a tag on the network.
pub fn encode_trace_message_tag(tag: u64) -> u64 {
    tag % RANGE
}

/// Returns the tag on the network for a collective's stream.
pub fn encode_collective_tag(id: u64) -> u64 {
    RANGE + id % RANGE
}

/// Returns the message that signals that the receiver of `message` is ready.
fn handshake_message_for(message: UnnumberedMessageKey) -> UnnumberedMessageKey {
    UnnumberedMessageKey {
        tag: message.tag + 2 * RANGE,
        src: message.dst,
        dst: message.src,
        bytes: HANDSHAKE,
    }
}

fn number_message(message: UnnumberedMessageKey, number: u64) -> NumberedMessageKey {
    NumberedMessageKey {
        tag: message.tag,
        src: message.src,
        dst: message.dst,
        bytes: message.bytes,
        number,
    }
}

impl OracleSimulator<'_> {
    /// Sends a message. With rendezvous, the message leaves only when the receiver is ready.
    pub fn send_message_after_any_rendezvous(
        &mut self,
        message: UnnumberedMessageKey,
        handler: ArrivalHandler,
    ) {
        if self.config.rendezvous {
            let then = ArrivalHandler::DataMayLeave(message, Box::new(handler));
            self.receive_message_now(handshake_message_for(message), then);
        } else {
            self.send_message_now(message, handler);
        }
    }

    /// Posts a receive. With rendezvous, the receiver first signals that it is ready.
    pub fn post_receive(&mut self, message: UnnumberedMessageKey, handler: ArrivalHandler) {
        if self.config.rendezvous {
            let then = ArrivalHandler::PostReceive(message, Box::new(handler));
            self.send_message_now(handshake_message_for(message), then);
        } else {
            self.receive_message_now(message, handler);
        }
    }

    fn send_message_now(&mut self, message: UnnumberedMessageKey, handler: ArrivalHandler) {
        let count = self.post.counts.entry(message).or_default();
        let key = number_message(message, count.0);
        count.0 += 1;
        self.post.meetings.entry(key).or_default().send = Some(handler);
        self.post.messages += 1;
        self.network.send_message(key, &mut self.agenda);
    }

    fn receive_message_now(&mut self, message: UnnumberedMessageKey, handler: ArrivalHandler) {
        let count = self.post.counts.entry(message).or_default();
        let key = number_message(message, count.1);
        count.1 += 1;
        let meeting = self.post.meetings.entry(key).or_default();
        if meeting.arrived {
            self.post.meetings.remove(&key);
            self.agenda.add_event(0, AgendaEvent::Received(handler));
        } else {
            meeting.receive = Some(handler);
        }
    }

    /// Handles a message that has arrived at its destination.
    pub fn on_arrived(&mut self, key: NumberedMessageKey) {
        let meeting = self.post.meetings.entry(key).or_default();
        let send = meeting.send.take();
        let receive = meeting.receive.take();
        if receive.is_some() {
            self.run_handler(send.unwrap_or(ArrivalHandler::Nothing));
            self.run_handler(receive.unwrap_or(ArrivalHandler::Nothing));
            self.post.meetings.remove(&key);
        } else {
            // The handler may post other receives, but this message's receive already has its
            // index.
            self.run_handler(send.unwrap_or(ArrivalHandler::Nothing));
            self.post.meetings.entry(key).or_default().arrived = true;
        }
    }

    /// Executes the action of a handler.
    pub fn run_handler(&mut self, handler: ArrivalHandler) {
        use super::algorithm::AlgorithmEvent;
        match handler {
            ArrivalHandler::Nothing => {}
            ArrivalHandler::Stream(stream) => {
                self.pass_event_to_stream_algorithm(stream, AlgorithmEvent::Received)
            }
            ArrivalHandler::NodeEnds { npu, node } => self.handle_node_end(npu, node),
            ArrivalHandler::CustomEnds { stream, node } => {
                self.pass_event_to_stream_algorithm(stream, AlgorithmEvent::Ended(node))
            }
            ArrivalHandler::DataMayLeave(message, then) => self.send_message_now(message, *then),
            ArrivalHandler::PostReceive(message, then) => self.receive_message_now(message, *then),
        }
    }
}
