//! Communications of an NPU that are under way, and the one that its time is charged to.
//!
//! A communication waits until all of its partners have begun, and transfers from then on. An instant is charged to the
//! transfer that started first, and while nothing transfers to the wait that started first.

use chakram_trace::graph::Graph;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Label of a communication that is over, and index of one that has not started.
const OVER: u32 = u32::MAX;

/// Progress of the communication that an instant is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommProgress {
    /// All partners have begun.
    Transfers,
    /// A partner has not begun.
    Waits,
    /// The same, where that is another stage of a pipeline.
    WaitsForStage,
}

/// A communication that has started.
#[derive(Clone, Copy, Debug)]
struct OpenComm {
    /// Index of what is charged, [`OVER`] when it is no more under way.
    label: u32,
    progress: CommProgress,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct OpenComms {
    /// In the order they started; the first is under way.
    open: VecDeque<OpenComm>,
    /// Number of communications that were over before the first of `open` started.
    over: u32,
    /// By number, those that transfer, some of which may be over.
    transferring: BinaryHeap<Reverse<u32>>,
    /// Of each communication of the graph, by [`Graph::communication_index`]: its number among those that started, [`OVER`] before.
    place: Box<[u32]>,
}

impl OpenComms {
    /// Nothing of `graph` has started.
    pub fn new(graph: &Graph) -> Self {
        Self {
            place: vec![OVER; graph.communication_count()].into(),
            ..Self::default()
        }
    }

    /// The communication at `place` starts, and waits; its time is charged to `label`.
    #[inline]
    pub fn start(&mut self, place: usize, label: u32, for_stage: bool) {
        self.place[place] = self.over + self.open.len() as u32;
        let progress = match for_stage {
            true => CommProgress::WaitsForStage,
            false => CommProgress::Waits,
        };
        self.open.push_back(OpenComm { label, progress });
    }

    /// The communication at `place`, which has started, and its number.
    #[inline]
    fn open(&mut self, place: usize) -> Option<(u32, &mut OpenComm)> {
        let number = self.place[place];
        let index = number.checked_sub(self.over)?;
        Some((number, self.open.get_mut(index as usize)?))
    }

    /// All partners of the communication at `place` have begun.
    #[inline]
    pub fn begin(&mut self, place: usize) {
        if let Some((number, open)) = self.open(place)
            && open.label != OVER
            && open.progress != CommProgress::Transfers
        {
            open.progress = CommProgress::Transfers;
            self.transferring.push(Reverse(number));
        }
    }

    /// The communication at `place` is over.
    #[inline]
    pub fn end(&mut self, place: usize) {
        if let Some((_, open)) = self.open(place) {
            open.label = OVER;
        }
        while self.open.front().is_some_and(|open| open.label == OVER) {
            self.open.pop_front();
            self.over += 1;
        }
    }

    /// The label and progress of the communication that is charged, if one is under way.
    #[inline]
    pub fn charged(&mut self) -> Option<(usize, CommProgress)> {
        let first = self.open.front()?;
        while let Some(&Reverse(number)) = self.transferring.peek() {
            let index = number.checked_sub(self.over);
            let open = index.and_then(|index| self.open.get(index as usize));
            if let Some(open) = open.filter(|open| open.label != OVER) {
                return Some((open.label as usize, open.progress));
            }
            self.transferring.pop();
        }
        // Nothing transfers, so the first waits.
        Some((first.label as usize, first.progress))
    }
}
