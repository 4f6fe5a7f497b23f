//! Communications in progress on an NPU, one of which is charged with the NPU's time.
//!
//! A communication waits until all partners have begun; then it transfers. An instant is charged to the transfer
//! that started first, or, if no communication transfers, to the wait that started first.

use chakram_trace::graph::Graph;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Sentinel for the label of a communication that has ended, and for the number of a communication that has not
/// started.
const OVER: u32 = u32::MAX;

/// Progress of the communication to which an instant is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommProgress {
    /// The communication transfers: all partners have begun.
    Transfers,
    /// The communication waits: a partner has not begun.
    Waits,
    /// The communication waits for a partner in another pipeline stage.
    WaitsForStage,
}

/// A communication that has started.
#[derive(Clone, Copy, Debug)]
struct OpenComm {
    /// Index of the sum that receives the communication's time, or [`OVER`] after the communication has ended.
    label: u32,
    progress: CommProgress,
}

/// Communications in progress on one NPU (see the module's documentation).
#[derive(Clone, Debug, Default)]
pub struct OpenComms {
    /// Started communications in order of start; the first one has not ended.
    open: VecDeque<OpenComm>,
    /// Number of ended communications that were removed from the front of `open`.
    over: u32,
    /// Numbers of communications that have begun to transfer. The heap may contain communications that have ended.
    transferring: BinaryHeap<Reverse<u32>>,
    /// For each [`Graph::communication_index`], the number of the communication in order of start; [`OVER`] before it
    /// starts.
    place: Box<[u32]>,
}

impl OpenComms {
    /// Creates the state before any communication of `graph` has started.
    pub fn new(graph: &Graph) -> Self {
        Self {
            place: vec![OVER; graph.communication_count()].into(),
            ..Self::default()
        }
    }

    /// Starts the communication at `place`, which then waits; its time is charged to `label`.
    #[inline]
    pub fn start_comm(&mut self, place: usize, label: u32, for_stage: bool) {
        self.place[place] = self.over + self.open.len() as u32;
        let progress = match for_stage {
            true => CommProgress::WaitsForStage,
            false => CommProgress::Waits,
        };
        self.open.push_back(OpenComm { label, progress });
    }

    /// Returns the started communication at `place`, and its number in order of start.
    #[inline]
    fn open_comm_at(&mut self, place: usize) -> Option<(u32, &mut OpenComm)> {
        let number = self.place[place];
        let index = number.checked_sub(self.over)?;
        Some((number, self.open.get_mut(index as usize)?))
    }

    /// Records that all partners of the communication at `place` have begun.
    #[inline]
    pub fn begin_transfer(&mut self, place: usize) {
        if let Some((number, open)) = self.open_comm_at(place)
            && open.label != OVER
            && open.progress != CommProgress::Transfers
        {
            open.progress = CommProgress::Transfers;
            self.transferring.push(Reverse(number));
        }
    }

    /// Ends the communication at `place`.
    #[inline]
    pub fn end_comm(&mut self, place: usize) {
        if let Some((_, open)) = self.open_comm_at(place) {
            open.label = OVER;
        }
        while self.open.front().is_some_and(|open| open.label == OVER) {
            self.open.pop_front();
            self.over += 1;
        }
    }

    /// Returns the label and progress of the communication that is charged now, or `None` if no communication is in
    /// progress.
    #[inline]
    pub fn charged_comm(&mut self) -> Option<(usize, CommProgress)> {
        let first = self.open.front()?;
        while let Some(&Reverse(number)) = self.transferring.peek() {
            let index = number.checked_sub(self.over);
            let open = index.and_then(|index| self.open.get(index as usize));
            if let Some(open) = open.filter(|open| open.label != OVER) {
                return Some((open.label as usize, open.progress));
            }
            self.transferring.pop();
        }
        // No communication transfers, so the first wait is charged.
        Some((first.label as usize, first.progress))
    }
}
