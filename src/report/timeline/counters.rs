//! Counters of a rank: bytes sent per second, and number of nodes that wait for a lane.
//!
//! The sending rate is the sum of the average rates of all messages and collectives now in transfer. A message
//! contributes its bytes. A collective contributes the fewest bytes that must cross its members' busiest port. This is
//! `factor x buffer`, as for bus bandwidth. A node waits if it is ready and its lane is occupied.

use super::events::{TimelineCounterQuantity, TimelineEncoder};
use super::selection::TimelineSelection;
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::units::Time;
use std::collections::BTreeSet;

/// Encoder that draws counters, and the time range to draw.
type CounterEncoderAndRange<'t> = (&'t mut dyn TimelineEncoder, &'t TimelineSelection);

/// A rank's nodes that wait for a lane.
#[derive(Clone, Debug, Default)]
struct RankNodesWaitingForLane {
    nodes: BTreeSet<NodeIndex>,
    /// Time when the number of waiting nodes last changed.
    at: Time,
    /// Number of waiting nodes before `at`.
    before: u64,
    drawn: u64,
}

/// All counters of a timeline, with the state of each instance.
#[derive(Debug)]
pub(super) struct WaitingAndSendingCounters {
    waiting: Vec<RankNodesWaitingForLane>,
    /// For each rank instance, when its sending rate changes, and by how many bytes per second.
    sending: Vec<Vec<(Time, i128)>>,
}

impl WaitingAndSendingCounters {
    pub fn new(instances: usize) -> Self {
        Self {
            waiting: vec![RankNodesWaitingForLane::default(); instances],
            sending: vec![Vec::new(); instances],
        }
    }

    /// Adds a transfer: an instance sends `bytes` between the two times.
    pub fn add_sending_rate_interval(
        &mut self,
        instance: usize,
        bytes: f64,
        (from, to): (Time, Time),
    ) {
        let seconds = to.since(from).as_seconds();
        if seconds > 0.0 && bytes > 0.0 {
            let rate = (bytes / seconds).round() as i128;
            self.sending[instance].extend([(from, rate), (to, -rate)]);
        }
    }

    /// Adds a node that starts to wait. If `now` is later than the last change, first draws the number that has been
    /// waiting since then.
    pub fn add_waiting_node(
        &mut self,
        (instance, rank): (usize, u32),
        now: Time,
        node: NodeIndex,
        to: CounterEncoderAndRange<'_>,
    ) {
        let waiting = &mut self.waiting[instance];
        waiting.advance_to_time(now, rank, to);
        waiting.nodes.insert(node);
    }

    /// Removes a node that is now issued, if it was waiting.
    pub fn remove_issued_node(
        &mut self,
        (instance, rank): (usize, u32),
        now: Time,
        node: NodeIndex,
        to: CounterEncoderAndRange<'_>,
    ) {
        let waiting = &mut self.waiting[instance];
        if waiting.nodes.contains(&node) {
            waiting.advance_to_time(now, rank, to);
            waiting.nodes.remove(&node);
        }
    }

    /// Draws all pending values; `ranks` contains the rank of each instance.
    pub fn draw_remaining_counters(
        mut self,
        ranks: &[u32],
        encoder: &mut dyn TimelineEncoder,
        selection: &TimelineSelection,
    ) {
        for (waiting, rank) in self.waiting.iter_mut().zip(ranks) {
            waiting.draw_waiting_count(*rank, (&mut *encoder, selection));
        }
        for (changes, rank) in self.sending.iter_mut().zip(ranks) {
            if !selection.has_rank(Rank(*rank)) {
                continue;
            }
            changes.sort_unstable();
            let (mut rate, mut drawn) = (0_i128, 0_i128);
            for instant in
                changes.chunk_by(|a, b| a.0.max(selection.from) == b.0.max(selection.from))
            {
                let at = instant[0].0.max(selection.from);
                rate += instant.iter().map(|(_, by)| by).sum::<i128>();
                if at <= selection.to && rate != drawn {
                    drawn = rate;
                    let rate = u64::try_from(rate).unwrap_or(u64::MAX);
                    encoder.draw_counter(*rank, TimelineCounterQuantity::Sending, at, rate);
                }
            }
        }
    }
}

impl RankNodesWaitingForLane {
    /// If `now` is later than the last change, draws the number of nodes that have been waiting since then.
    fn advance_to_time(&mut self, now: Time, rank: u32, to: CounterEncoderAndRange<'_>) {
        if now > self.at {
            self.draw_waiting_count(rank, to);
            self.at = now;
        }
    }

    /// Draws the number of nodes that wait at the end of the last instant, if it differs from the number last drawn.
    fn draw_waiting_count(&mut self, rank: u32, (encoder, selection): CounterEncoderAndRange<'_>) {
        let now = self.nodes.len() as u64;
        let (at, before) = (self.at, std::mem::replace(&mut self.before, now));
        if !selection.has_rank(Rank(rank)) || at < selection.from || at > selection.to {
            return;
        }
        if self.drawn != before && at > selection.from {
            encoder.draw_counter(
                rank,
                TimelineCounterQuantity::Waiting,
                selection.from,
                before,
            );
            self.drawn = before;
        }
        if self.drawn != now {
            encoder.draw_counter(rank, TimelineCounterQuantity::Waiting, at, now);
            self.drawn = now;
        }
    }
}
