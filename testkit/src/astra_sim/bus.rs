//! A LogGP model of the shared bus between an NPU and its memory agent.
//!
//! As in ASTRA-sim 2.x, a bus has two sides, of which only one sends to the other at a time. A transfer takes offset +
//! (bytes − 1)·G + L + o. The offset is o, or the rest of the gap g since the side's last transfer if that rest is
//! longer. After more than eight transfers in a row, the other side goes first. The NPU's side has a second bus with G
//! = 0.0038: transfers cross it before this side sends and after it receives. Reductions take ⌊bytes /
//! 100⌋·delay + 50, one at a time.

use super::OracleSimulator;
use super::agenda::{DelayedCall, StreamBusPacket};
use super::algorithm::MemoryMove;
use std::collections::VecDeque;

/// Indices of sides: the two sides of the shared bus, then the two sides of the second bus inside
/// the NPU.
const NPU: usize = 0;
const MEMORY: usize = 1;
const INNER_NPU: usize = 2;
const INNER_MEMORY: usize = 3;
/// Number of transfers in a row before the other side takes its turn.
const FAIR: u64 = 8;
/// Time per byte on the second bus, ns.
const INNER_GAP: f64 = 0.0038;

/// A delay on the given side of a bus ends.
#[derive(Clone, Copy, Debug)]
pub enum EndedSendReceiveOrReduction {
    Sent(usize),
    Received(usize),
    Reduced(usize),
}

/// A requested transfer.
#[derive(Clone, Debug)]
struct BusRequest {
    /// Number of bytes, in 32 bits as in ASTRA-sim.
    bytes: i32,
    reduce: bool,
    send_back: bool,
    then: BusFollowUp,
}

/// What happens after a transfer.
#[derive(Clone, Debug)]
enum BusFollowUp {
    Packet(StreamBusPacket),
    /// The transfer has crossed the second bus, and continues on the NPU's side of the shared bus.
    Outer(ActionAfterSecondBus, Box<BusRequest>),
}

#[derive(Clone, Copy, Debug)]
enum ActionAfterSecondBus {
    Send,
    Reduce,
    Retire,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SharedBusSideState {
    #[default]
    Free,
    Sending,
    Receiving,
}

/// State of one side of a bus.
#[derive(Debug, Default)]
pub struct SharedBusSide {
    state: SharedBusSideState,
    before: SharedBusSideState,
    last: u64,
    in_a_row: u64,
    reducing: bool,
    sends: VecDeque<BusRequest>,
    receives: VecDeque<BusRequest>,
    reductions: VecDeque<BusRequest>,
}

impl OracleSimulator<'_> {
    /// Moves a packet over the bus.
    pub fn move_packet_over_bus(&mut self, npu: usize, packet: StreamBusPacket, how: MemoryMove) {
        let request = BusRequest {
            bytes: packet.bytes as i32,
            reduce: packet.reduce,
            send_back: how.send_back,
            then: BusFollowUp::Packet(packet),
        };
        if how.to_memory {
            self.move_over_second_bus(
                npu,
                INNER_MEMORY,
                ActionAfterSecondBus::Send,
                request,
                false,
            );
        } else {
            self.queue_bus_request(npu, MEMORY, request);
        }
    }

    fn bus_side_mut(&mut self, npu: usize, side: usize) -> &mut SharedBusSide {
        &mut self.npus[npu].sides[side]
    }

    /// Moves the data of a request over the second bus, and also back if `back` is true.
    fn move_over_second_bus(
        &mut self,
        npu: usize,
        from: usize,
        stage: ActionAfterSecondBus,
        what: BusRequest,
        back: bool,
    ) {
        let request = BusRequest {
            bytes: what.bytes,
            reduce: false,
            send_back: back,
            then: BusFollowUp::Outer(stage, Box::new(what)),
        };
        self.queue_bus_request(npu, from, request);
    }

    fn queue_bus_request(&mut self, npu: usize, side: usize, request: BusRequest) {
        self.bus_side_mut(npu, side).sends.push_back(request);
        self.send_next_bus_transfer_if_fair(npu, side);
    }

    /// Sends the next waiting transfer if the side is free and it is its turn.
    fn send_next_bus_transfer_if_fair(&mut self, npu: usize, side: usize) {
        let this = &self.npus[npu].sides[side];
        if this.state != SharedBusSideState::Free || this.sends.is_empty() {
            return;
        }
        let partner = &self.npus[npu].sides[side ^ 1];
        if this.in_a_row > FAIR && !partner.sends.is_empty() && partner.in_a_row <= FAIR {
            if partner.state == SharedBusSideState::Free {
                self.send_next_bus_transfer_if_fair(npu, side ^ 1);
            }
            return;
        }
        self.start_next_bus_transfer(npu, side);
    }

    fn start_next_bus_transfer(&mut self, npu: usize, side: usize) {
        let Some(bus) = self.config.system.bus else {
            return;
        };
        let gap = if side < INNER_NPU {
            bus.gap_per_byte
        } else {
            INNER_GAP
        };
        let now = self.agenda.now;
        let this = self.bus_side_mut(npu, side);
        let idle = now - this.last;
        let offset = if this.before == SharedBusSideState::Sending && bus.o + idle <= bus.g {
            bus.g - idle
        } else {
            bus.o
        };
        let Some(request) = this.sends.pop_front() else {
            return;
        };
        this.state = SharedBusSideState::Sending;
        let bytes = f64::from(request.bytes - 1);
        let partner = self.bus_side_mut(npu, side ^ 1);
        partner.receives.push_back(request);
        partner.before = partner.state;
        partner.state = SharedBusSideState::Receiving;
        partner.in_a_row = 0;
        let there = offset as f64 + bytes * gap + bus.l as f64 + bus.o as f64;
        let sent = offset as f64 + gap * bytes;
        let received = DelayedCall::Bus(npu, EndedSendReceiveOrReduction::Received(side ^ 1));
        self.agenda.add_delay(npu, there as u64, received);
        self.agenda.add_delay(
            npu,
            sent as u64,
            DelayedCall::Bus(npu, EndedSendReceiveOrReduction::Sent(side)),
        );
    }

    /// Continues a transfer at the end of a bus delay.
    pub fn handle_bus_delay_end(&mut self, npu: usize, signal: EndedSendReceiveOrReduction) {
        let now = self.agenda.now;
        let (EndedSendReceiveOrReduction::Sent(side)
        | EndedSendReceiveOrReduction::Received(side)
        | EndedSendReceiveOrReduction::Reduced(side)) = signal;
        let this = self.bus_side_mut(npu, side);
        match signal {
            EndedSendReceiveOrReduction::Sent(_) => {
                this.last = now;
                this.before = this.state;
                this.state = SharedBusSideState::Free;
                this.in_a_row += 1;
            }
            EndedSendReceiveOrReduction::Received(_) => {
                this.last = now;
                this.before = this.state;
                if this.receives.len() < 2 {
                    this.state = SharedBusSideState::Free;
                }
                if let Some(mut request) = this.receives.pop_front() {
                    if request.reduce {
                        request.reduce = false;
                        self.queue_reduction(npu, side, request);
                        self.start_next_reduction(npu, side);
                    } else {
                        self.send_back_or_finish_bus_request(npu, side, request);
                    }
                }
            }
            EndedSendReceiveOrReduction::Reduced(_) => {
                this.reducing = false;
                if let Some(request) = this.reductions.pop_front() {
                    self.send_back_or_finish_bus_request(npu, side, request);
                }
                self.start_next_reduction(npu, side);
            }
        }
        self.send_next_bus_transfer_if_fair(npu, side);
    }

    fn queue_reduction(&mut self, npu: usize, side: usize, request: BusRequest) {
        if side == NPU {
            self.move_over_second_bus(npu, INNER_NPU, ActionAfterSecondBus::Reduce, request, true);
        } else {
            self.bus_side_mut(npu, side).reductions.push_back(request);
        }
    }

    fn send_back_or_finish_bus_request(
        &mut self,
        npu: usize,
        side: usize,
        mut request: BusRequest,
    ) {
        if request.send_back {
            request.send_back = false;
            if side == NPU {
                self.move_over_second_bus(
                    npu,
                    INNER_NPU,
                    ActionAfterSecondBus::Send,
                    request,
                    true,
                );
            } else {
                self.bus_side_mut(npu, side).sends.push_back(request);
            }
        } else if side == NPU {
            self.move_over_second_bus(npu, INNER_NPU, ActionAfterSecondBus::Retire, request, false);
        } else {
            self.run_bus_request_follow_up(npu, request);
        }
    }

    fn start_next_reduction(&mut self, npu: usize, side: usize) {
        let delay = self.config.system.reduction_delay;
        let this = self.bus_side_mut(npu, side);
        if this.reducing {
            return;
        }
        if let Some(request) = this.reductions.front() {
            let ns = request.bytes as u64 / 100 * delay + 50;
            this.reducing = true;
            let call = DelayedCall::Bus(npu, EndedSendReceiveOrReduction::Reduced(side));
            self.agenda.add_delay(npu, ns, call);
        }
    }

    fn run_bus_request_follow_up(&mut self, npu: usize, request: BusRequest) {
        match request.then {
            BusFollowUp::Packet(packet) => self.reduce_packet_or_mark_ready(packet),
            BusFollowUp::Outer(stage, what) => {
                match stage {
                    ActionAfterSecondBus::Send => {
                        self.bus_side_mut(npu, NPU).sends.push_back(*what)
                    }
                    ActionAfterSecondBus::Reduce => {
                        self.bus_side_mut(npu, NPU).reductions.push_back(*what);
                        self.start_next_reduction(npu, NPU);
                    }
                    ActionAfterSecondBus::Retire => self.run_bus_request_follow_up(npu, *what),
                }
                self.send_next_bus_transfer_if_fair(npu, NPU);
            }
        }
    }
}
