//! The bus between an NPU and its memory agent: a LogGP model that the system file can enable.
//!
//! An NPU has two buses with two sides each. The outer bus connects the NPU and the agent. The inner bus adjoins the
//! NPU side of the outer bus, and has a gap of 0.0038 ns per byte. A side sends or receives one transfer at a time.
//! With latency L, overhead o, gap g and gap per byte G, a transfer of b bytes leaves a side after offset + (b-1)G. The
//! transfer arrives after another L + o, truncated to whole ns. The offset is normally o. If the side's previous action
//! was a send, the offset is either o or the remainder of the gap g after that send, whichever is larger. After more
//! than eight transfers in a row, a side yields to the other side.
//!
//! A reduction begins on arrival and takes ⌊b/100⌋ · delay + 50 ns. A side runs one reduction at a time. After the
//! reduction, a round-trip transfer crosses the bus in the other direction. Every transfer that begins or ends at the
//! NPU side of the outer bus also crosses the inner bus.

use super::LogGpBusParams;
use chakram_base::units::{Span, Time};
use chakram_hardware::collective::{
    BusEventScheduler, EndpointBusTransfer, TransferCompletionToken,
};
use std::collections::VecDeque;

/// Gap of the inner bus, in ns per byte.
const INNER_GAP: f64 = 0.0038;
/// Number of transfers in a row after which a side yields to the other side.
const FAIR: u32 = 8;

/// Indices of the sides; the two sides of the outer bus come first.
const NPU: usize = 0;
const AGENT: usize = 1;
const INNER_NPU: usize = 2;
const INNER_AGENT: usize = 3;

/// Kinds of events that a side of a bus handles. The number that identifies an event is side · 3 + kind.
const SENT: u32 = 0;
const RECEIVED: u32 = 1;
const REDUCED: u32 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BusSideSendReceiveState {
    #[default]
    Free,
    Sending,
    Receiving,
}

/// How a transfer continues after it has crossed the inner bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepAfterInnerBus {
    /// The bus notifies the caller.
    Tell,
    /// The NPU side of the outer bus sends the transfer.
    Send,
    /// The NPU side of the outer bus reduces the transfer.
    Reduce,
}

/// A transfer. While it crosses the inner bus, it also stores how it continues on the outer bus.
#[derive(Clone, Copy, Debug)]
struct BusTransferWithContinuation {
    bytes: u32,
    /// True if the outer bus must still reduce the transfer. `returns` is true if the transfer must still cross this
    /// bus in the other direction.
    reduces: bool,
    returns: bool,
    token: TransferCompletionToken,
    /// True if a transfer on the inner bus makes a round trip. After it has crossed the inner bus, it continues with
    /// `then`.
    round_trip: bool,
    then: StepAfterInnerBus,
}

#[derive(Clone, Debug, Default)]
struct BusSideStateAndQueues {
    state: BusSideSendReceiveState,
    before: BusSideSendReceiveState,
    last: Time,
    in_a_row: u32,
    sends: VecDeque<BusTransferWithContinuation>,
    receives: VecDeque<BusTransferWithContinuation>,
    reductions: VecDeque<BusTransferWithContinuation>,
    reducing: bool,
}

/// The two buses of one NPU.
#[derive(Clone, Debug)]
pub(super) struct NpuInnerAndOuterBus {
    terms: LogGpBusParams,
    /// Duration of a reduction, in ns per hundred bytes.
    reduction: u64,
    sides: [BusSideStateAndQueues; 4],
}

/// Returns the opposite side of the same bus.
fn opposite_side_of_bus(side: usize) -> usize {
    side ^ 1
}

impl NpuInnerAndOuterBus {
    pub fn new(terms: LogGpBusParams, reduction: u64) -> Self {
        Self {
            terms,
            reduction,
            sides: Default::default(),
        }
    }

    /// Accepts a transfer. When the transfer completes, [`Self::handle_event`] returns its token (the caller's
    /// `ticket`).
    pub fn accept_transfer(
        &mut self,
        now: Time,
        load: EndpointBusTransfer,
        clock: &mut impl BusEventScheduler,
    ) {
        let transfer = BusTransferWithContinuation {
            bytes: load.bytes,
            reduces: load.reduces,
            returns: load.returns,
            token: load.ticket,
            round_trip: false,
            then: StepAfterInnerBus::Tell,
        };
        if load.outward {
            // The transfer first leaves the NPU's memory over the inner bus.
            self.send_over_inner_bus(
                now,
                INNER_AGENT,
                false,
                StepAfterInnerBus::Send,
                transfer,
                clock,
            );
        } else {
            self.queue_transfer_and_start_next(now, AGENT, transfer, clock);
        }
    }

    /// Handles an event that this bus scheduled. Returns the token (the caller's `ticket`) of a completed
    /// transfer. The caller must handle the completion before calling [`Self::resume_after_event`].
    pub fn handle_event(
        &mut self,
        now: Time,
        event: u32,
        clock: &mut impl BusEventScheduler,
    ) -> Option<TransferCompletionToken> {
        let side = (event / 3) as usize;
        let ended = match event % 3 {
            SENT => {
                let state = &mut self.sides[side];
                (state.last, state.before) = (now, state.state);
                state.state = BusSideSendReceiveState::Free;
                state.in_a_row += 1;
                None
            }
            RECEIVED => self.finish_reception(now, side, clock),
            _ => self.finish_reduction(now, side, clock),
        };
        if ended.is_none() {
            self.start_pending_work_after_event(now, event, clock);
        }
        ended
    }

    /// Continues after an event that completed a transfer. The caller must have handled the completion.
    pub fn resume_after_event(
        &mut self,
        now: Time,
        event: u32,
        clock: &mut impl BusEventScheduler,
    ) {
        // When a transfer has crossed the inner bus, a side of the outer bus may be able to send.
        if event / 3 >= INNER_NPU as u32 {
            self.start_next_transfer(now, NPU, clock);
        }
        self.start_pending_work_after_event(now, event, clock);
    }

    fn start_pending_work_after_event(
        &mut self,
        now: Time,
        event: u32,
        clock: &mut impl BusEventScheduler,
    ) {
        let side = (event / 3) as usize;
        if event % 3 == REDUCED {
            self.begin_next_reduction_if_idle(now, side, clock);
        }
        self.start_next_transfer(now, side, clock);
    }

    /// Sends a transfer over the inner bus from `side`.
    fn send_over_inner_bus(
        &mut self,
        now: Time,
        side: usize,
        round_trip: bool,
        then: StepAfterInnerBus,
        transfer: BusTransferWithContinuation,
        clock: &mut impl BusEventScheduler,
    ) {
        let transfer = BusTransferWithContinuation {
            round_trip,
            then,
            ..transfer
        };
        self.queue_transfer_and_start_next(now, side, transfer, clock);
    }

    fn queue_transfer_and_start_next(
        &mut self,
        now: Time,
        side: usize,
        transfer: BusTransferWithContinuation,
        clock: &mut impl BusEventScheduler,
    ) {
        self.sides[side].sends.push_back(transfer);
        self.start_next_transfer(now, side, clock);
    }

    /// Starts the next transfer of a free side, unless this side yields to the other side.
    fn start_next_transfer(&mut self, now: Time, side: usize, clock: &mut impl BusEventScheduler) {
        let (state, other) = (&self.sides[side], &self.sides[opposite_side_of_bus(side)]);
        if state.state != BusSideSendReceiveState::Free || state.sends.is_empty() {
            return;
        }
        if state.in_a_row > FAIR && !other.sends.is_empty() && other.in_a_row <= FAIR {
            // A busy side starts its next transfer when it becomes free, so start one here only if the side is free.
            if other.state == BusSideSendReceiveState::Free {
                self.start_next_transfer(now, opposite_side_of_bus(side), clock);
            }
            return;
        }
        self.send_next_transfer_from_side(now, side, clock);
    }

    fn send_next_transfer_from_side(
        &mut self,
        now: Time,
        side: usize,
        clock: &mut impl BusEventScheduler,
    ) {
        let LogGpBusParams {
            latency,
            overhead,
            gap,
            gap_per_byte,
        } = self.terms;
        let gap_per_byte = if side < INNER_NPU {
            gap_per_byte
        } else {
            INNER_GAP
        };
        let state = &mut self.sides[side];
        let idle = now.since(state.last).0 / 1000;
        let offset = match state.before {
            // The gap applies only between two sends from the same side. After a side has received a transfer, only the
            // overhead applies.
            BusSideSendReceiveState::Sending if overhead + idle <= gap => gap - idle,
            _ => overhead,
        };
        let transfer = state.sends.pop_front().expect("there is something to send");
        state.state = BusSideSendReceiveState::Sending;
        let other = &mut self.sides[opposite_side_of_bus(side)];
        other.receives.push_back(transfer);
        other.before = other.state;
        other.state = BusSideSendReceiveState::Receiving;
        other.in_a_row = 0;
        // In LogGP, the first byte leaves after the overhead.
        let bytes = f64::from(transfer.bytes) - 1.0;
        let leaves = offset as f64 + gap_per_byte * bytes;
        let arrives = offset as f64 + bytes * gap_per_byte + latency as f64 + overhead as f64;
        let mut after = |ns: f64, side: usize, what: u32| {
            clock.schedule_bus_event(now + Span::from_ns(ns as u64), side as u32 * 3 + what);
        };
        // Schedule the arrival before the departure, so that the arrival comes first if both are at the same instant.
        after(arrives, opposite_side_of_bus(side), RECEIVED);
        after(leaves, side, SENT);
    }

    fn finish_reception(
        &mut self,
        now: Time,
        side: usize,
        clock: &mut impl BusEventScheduler,
    ) -> Option<TransferCompletionToken> {
        let state = &mut self.sides[side];
        (state.last, state.before) = (now, state.state);
        // If other arrivals are queued, their transfers are on their way to this side, so it stays busy.
        if state.receives.len() < 2 {
            state.state = BusSideSendReceiveState::Free;
        }
        let mut transfer = state.receives.pop_front()?;
        match side {
            NPU if transfer.reduces => {
                transfer.reduces = false;
                self.send_over_inner_bus(
                    now,
                    INNER_NPU,
                    true,
                    StepAfterInnerBus::Reduce,
                    transfer,
                    clock,
                );
            }
            NPU if transfer.returns => {
                transfer.returns = false;
                self.send_over_inner_bus(
                    now,
                    INNER_NPU,
                    true,
                    StepAfterInnerBus::Send,
                    transfer,
                    clock,
                );
            }
            NPU => self.send_over_inner_bus(
                now,
                INNER_NPU,
                false,
                StepAfterInnerBus::Tell,
                transfer,
                clock,
            ),
            AGENT if transfer.reduces => {
                transfer.reduces = false;
                state.reductions.push_back(transfer);
                self.begin_next_reduction_if_idle(now, side, clock);
            }
            AGENT if transfer.returns => {
                transfer.returns = false;
                state.sends.push_back(transfer);
            }
            AGENT => return Some(transfer.token),
            _ if transfer.round_trip => {
                transfer.round_trip = false;
                state.sends.push_back(transfer);
            }
            _ => return self.continue_after_inner_bus(now, transfer, clock),
        }
        None
    }

    /// Continues a transfer after it has crossed the inner bus.
    fn continue_after_inner_bus(
        &mut self,
        now: Time,
        transfer: BusTransferWithContinuation,
        clock: &mut impl BusEventScheduler,
    ) -> Option<TransferCompletionToken> {
        match transfer.then {
            StepAfterInnerBus::Tell => return Some(transfer.token),
            StepAfterInnerBus::Send => self.sides[NPU].sends.push_back(transfer),
            StepAfterInnerBus::Reduce => {
                self.sides[NPU].reductions.push_back(transfer);
                self.begin_next_reduction_if_idle(now, NPU, clock);
            }
        }
        self.start_next_transfer(now, NPU, clock);
        None
    }

    /// Begins a side's next reduction if none is in progress.
    fn begin_next_reduction_if_idle(
        &mut self,
        now: Time,
        side: usize,
        clock: &mut impl BusEventScheduler,
    ) {
        let state = &mut self.sides[side];
        if let Some(transfer) = state.reductions.front()
            && !state.reducing
        {
            state.reducing = true;
            let ns = u64::from(transfer.bytes / 100) * self.reduction + 50;
            clock.schedule_bus_event(now + Span::from_ns(ns), side as u32 * 3 + REDUCED);
        }
    }

    fn finish_reduction(
        &mut self,
        now: Time,
        side: usize,
        clock: &mut impl BusEventScheduler,
    ) -> Option<TransferCompletionToken> {
        let state = &mut self.sides[side];
        state.reducing = false;
        let mut transfer = state.reductions.pop_front()?;
        let returns = std::mem::take(&mut transfer.returns);
        match (side, returns) {
            (NPU, true) => self.send_over_inner_bus(
                now,
                INNER_NPU,
                true,
                StepAfterInnerBus::Send,
                transfer,
                clock,
            ),
            (NPU, false) => self.send_over_inner_bus(
                now,
                INNER_NPU,
                false,
                StepAfterInnerBus::Tell,
                transfer,
                clock,
            ),
            (_, true) => state.sends.push_back(transfer),
            (_, false) => return Some(transfer.token),
        }
        None
    }
}
