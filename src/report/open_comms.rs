//! Communications in progress on an NPU. Selects the one that the current time is charged to.
//!
//! A communication first waits until all partners have begun, then it transfers. Time is charged to the earliest
//! transfer. If nothing transfers, it is charged to the earliest wait.

use chakram_trace::graph::Graph;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Marks the label of a communication that has ended, and the number of a communication that has not started.
const OVER: u32 = u32::MAX;

/// ProgressDisplay of the communication that time is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargedCommunicationProgress {
    /// All partners have begun, so the communication transfers.
    Transfers,
    /// A partner has not begun, so the communication waits.
    Waits,
    /// Like `Waits`, but the partner is in another pipeline stage.
    WaitsForStage,
}

/// A communication that has started, and may have ended.
#[derive(Clone, Copy, Debug)]
struct CommunicationTimeSumIndexAndProgress {
    /// Index of the sum that gets the communication's time, or [`OVER`] after the communication has ended.
    label: u32,
    progress: ChargedCommunicationProgress,
    /// True if the communication waits for other members and its node is not issued yet.
    unissued: bool,
}

/// The communications in progress on an NPU.
#[derive(Clone, Debug, Default)]
pub struct NpuCommunicationsInProgress {
    /// Communications in order of start, from the first one that has not ended.
    open: VecDeque<CommunicationTimeSumIndexAndProgress>,
    /// Number of ended communications that were removed from the front of `open`.
    over: u32,
    /// Numbers of the communications that have begun to transfer. Ended communications are removed only when they reach
    /// the top of the heap.
    transferring: BinaryHeap<Reverse<u32>>,
    /// For each [`Graph::communication_index`]: the communication's number in order of start, or [`OVER`] before the
    /// communication starts.
    place: Box<[u32]>,
}

impl NpuCommunicationsInProgress {
    /// Creates the state before the first communication of `graph` starts.
    pub fn new(graph: &Graph) -> Self {
        Self {
            place: vec![OVER; graph.communication_count()].into(),
            ..Self::default()
        }
    }

    /// Starts the communication at index `place`. It waits at first, and its time is charged to `label`.
    #[inline]
    pub fn start_comm(&mut self, place: usize, label: u32, for_stage: bool) {
        self.place[place] = self.over + self.open.len() as u32;
        let progress = match for_stage {
            true => ChargedCommunicationProgress::WaitsForStage,
            false => ChargedCommunicationProgress::Waits,
        };
        self.open.push_back(CommunicationTimeSumIndexAndProgress {
            label,
            progress,
            unissued: false,
        });
    }

    /// Returns true if the communication at index `place` is in progress.
    pub fn is_in_progress(&mut self, place: usize) -> bool {
        self.find_open_comm_and_number(place)
            .is_some_and(|(_, open)| open.label != OVER)
    }

    /// Records that the node of the communication at index `place`, which has just started, is not issued yet.
    pub fn mark_unissued(&mut self, place: usize) {
        if let Some((_, open)) = self.find_open_comm_and_number(place) {
            open.unissued = true;
        }
    }

    /// Records that the communication at index `place` is issued. Returns true if it had already started, because it
    /// waited for other members.
    #[inline]
    pub fn issue_if_waiting(&mut self, place: usize) -> bool {
        match self.find_open_comm_and_number(place) {
            Some((_, open)) if open.label != OVER => std::mem::take(&mut open.unissued),
            _ => false,
        }
    }

    /// Returns the communication at index `place`, and its number in order of start; `None` if the communication was
    /// removed or has not started.
    #[inline]
    fn find_open_comm_and_number(
        &mut self,
        place: usize,
    ) -> Option<(u32, &mut CommunicationTimeSumIndexAndProgress)> {
        let number = self.place[place];
        let index = number.checked_sub(self.over)?;
        Some((number, self.open.get_mut(index as usize)?))
    }

    /// Records that all partners of the communication at index `place` have begun.
    #[inline]
    pub fn begin_transfer(&mut self, place: usize) {
        if let Some((number, open)) = self.find_open_comm_and_number(place)
            && open.label != OVER
            && open.progress != ChargedCommunicationProgress::Transfers
        {
            open.progress = ChargedCommunicationProgress::Transfers;
            self.transferring.push(Reverse(number));
        }
    }

    /// Ends the communication at index `place`.
    #[inline]
    pub fn end_comm(&mut self, place: usize) {
        if let Some((_, open)) = self.find_open_comm_and_number(place) {
            open.label = OVER;
        }
        while self.open.front().is_some_and(|open| open.label == OVER) {
            self.open.pop_front();
            self.over += 1;
        }
    }

    /// Returns the label and progress of the communication that time is now charged to; `None` if none is in progress.
    #[inline]
    pub fn charged_comm(&mut self) -> Option<(usize, ChargedCommunicationProgress)> {
        let first = self.open.front()?;
        while let Some(&Reverse(number)) = self.transferring.peek() {
            let index = number.checked_sub(self.over);
            let open = index.and_then(|index| self.open.get(index as usize));
            if let Some(open) = open.filter(|open| open.label != OVER) {
                return Some((open.label as usize, open.progress));
            }
            self.transferring.pop();
        }
        // No communication transfers, so the earliest wait is charged.
        Some((first.label as usize, first.progress))
    }
}
