//! Moves chunks from phase to phase through an NPU's queues.
//!
//! As in ASTRA-sim 2.x, a queue lists the running phases first, and then the waiting phases. A new phase is inserted
//! after all running phases and after waiting phases of the same or a higher priority. The capacity limits the number
//! of running phases.

use super::OracleSimulator;
use super::algorithm::AlgorithmEvent;

/// A queue of streams; the streams at its front are running.
#[derive(Debug, Default)]
pub struct StreamQueue {
    list: Vec<usize>,
    running: u64,
}

impl OracleSimulator<'_> {
    /// Ends a stream's current phase if there is one, and starts its next phase if there is one.
    pub fn proceed_to_next_phase(&mut self, stream: usize) {
        let npu = self.streams[stream].npu;
        let old = self.streams[stream].current.take().map(|phase| phase.queue);
        let last = self.streams[stream].phases.is_empty();
        if last {
            // The workload must continue before the stream leaves its queue.
            self.end_node_after_last_chunk(stream);
        }
        if let Some(old) = old {
            self.npus[npu].queues[old].list.retain(|&s| s != stream);
        }
        let next = self.streams[stream].phases.pop_front();
        let new = next.as_ref().map(|phase| phase.queue);
        self.streams[stream].current = next;
        self.streams[stream].started = false;
        if let Some(new) = new {
            self.insert_stream_by_priority(npu, new, stream);
        }
        if let Some(old) = old {
            self.npus[npu].queues[old].running -= 1;
            self.start_waiting_phases_of_queue(npu, old);
        }
        if let Some(new) = new {
            self.start_waiting_phases_of_queue(npu, new);
        }
    }

    fn end_node_after_last_chunk(&mut self, stream: usize) {
        let stream = &self.streams[stream];
        let npu = stream.npu;
        let dataset = &mut self.datasets[stream.dataset];
        dataset.left -= 1;
        if dataset.left == 0 {
            let node = dataset.node;
            self.handle_node_end(npu, node);
        }
    }

    fn insert_stream_by_priority(&mut self, npu: usize, queue: usize, stream: usize) {
        let streams = &self.streams;
        let list = &mut self.npus[npu].queues[queue].list;
        let priority = streams[stream].priority;
        let passes = |&other: &usize| {
            let other = &streams[other];
            other.started || other.priority >= priority
        };
        let place = list
            .iter()
            .position(|other| !passes(other))
            .unwrap_or(list.len());
        list.insert(place, stream);
    }

    /// Starts waiting phases until the queue is full; the capacity is ceil(active chunks / queues).
    fn start_waiting_phases_of_queue(&mut self, npu: usize, queue: usize) {
        let per_dim = self.config.queues_per_dim as u64;
        let capacity = self.config.system.active_chunks.div_ceil(per_dim);
        loop {
            let this = &mut self.npus[npu].queues[queue];
            if this.running >= capacity {
                return;
            }
            let Some(&stream) = this.list.get(this.running as usize) else {
                return;
            };
            self.streams[stream].started = true;
            self.pass_event_to_stream_algorithm(stream, AlgorithmEvent::Start);
            self.npus[npu].queues[queue].running += 1;
        }
    }
}
