//! Simulates transfers in chunks that cross several servers one after another. Each server serves its arrivals in
//! order; ports also serve messages. All times are whole ps.
//!
//! All accesses of the job are equal and begin at time zero, so all chunks take the same time in a
//! stage. The pool sends chunks at the rate of its slowest stage, so chunks start at constant
//! intervals.

/// Messages and accesses of a test. All times are in ps.
#[derive(Clone, Debug)]
pub struct PortTestMessagesAndAccesses {
    pub npus: usize,
    /// Latency of the link between an NPU and its fabric.
    pub latency: u64,
    /// `true` if a message crosses its last link before it occupies the receiver's port.
    pub last_link_first: bool,
    pub accesses: Vec<NpuLoadOrStore>,
    pub messages: Vec<PortMessage>,
    pub pool_latency: u64,
    /// Time that a chunk takes in each stage of the pool; `port` is a chunk's time in a port.
    pub stages: Vec<u64>,
    pub port: u64,
    /// Time between the starts of successive chunks.
    pub apart: u64,
    pub chunks: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct NpuLoadOrStore {
    pub npu: usize,
    pub store: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct PortMessage {
    pub at: u64,
    pub from: usize,
    pub to: usize,
    /// Time that the message takes in a port.
    pub takes: u64,
}

/// The arrival of a message or chunk at a server. Arrivals are sorted by time, then messages before chunks, then by
/// sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MessageOrChunkArrival {
    at: u64,
    chunk: bool,
    number: usize,
    /// Index of the message or chunk.
    index: u64,
    takes: u64,
}

/// Returns the times at which a server begins to serve each of its arrivals, in order.
fn service_start_times(comers: &mut [MessageOrChunkArrival]) -> Vec<u64> {
    comers.sort();
    let mut free = 0;
    let mut begins = Vec::new();
    for comer in comers {
        let begin = free.max(comer.at);
        free = begin + comer.takes;
        begins.push(begin);
    }
    begins
}

/// Replaces the arrival times `at` of successive chunks with the times at which the chunks leave these stages.
fn pass_chunks_through_stages(stages: &[u64], at: &mut [u64]) {
    for stage in stages {
        let mut free = 0;
        for at in &mut *at {
            free = free.max(*at) + stage;
            *at = free;
        }
    }
}

/// Returns the end times of all accesses and of all messages, in ps.
pub fn access_and_message_end_times(job: &PortTestMessagesAndAccesses) -> (Vec<u64>, Vec<u64>) {
    let set_out = |_| (0..job.chunks).map(|k| k * job.apart).collect::<Vec<_>>();
    let mut chunks: Vec<Vec<u64>> = job.accesses.iter().map(set_out).collect();
    let mut arrivals = vec![0; job.messages.len()];
    for store in [true, false] {
        for npu in 0..job.npus {
            let mut comers = Vec::new();
            for (number, message) in job.messages.iter().enumerate() {
                let (port, at, sender) = match store {
                    true => (message.from, message.at, number),
                    false => (message.to, arrivals[number], message.from),
                };
                if port == npu {
                    let (index, takes) = (number as u64, message.takes);
                    comers.push(MessageOrChunkArrival {
                        at,
                        chunk: false,
                        number: sender,
                        index,
                        takes,
                    });
                }
            }
            for (number, access) in job.accesses.iter().enumerate() {
                if (access.npu, access.store) != (npu, store) {
                    continue;
                }
                if !store {
                    pass_chunks_through_stages(&job.stages, &mut chunks[number]);
                    let before = job.pool_latency + job.latency;
                    chunks[number].iter_mut().for_each(|at| *at += before);
                }
                for (index, &at) in (0..).zip(&chunks[number]) {
                    comers.push(MessageOrChunkArrival {
                        at,
                        chunk: true,
                        number,
                        index,
                        takes: job.port,
                    });
                }
            }
            let begins = service_start_times(&mut comers);
            for (comer, begin) in comers.iter().zip(begins) {
                let index = comer.index as usize;
                match (comer.chunk, store) {
                    (true, _) => chunks[comer.number][index] = begin + comer.takes,
                    // The first byte crosses two links at a switch, and the second link may come after the server.
                    (false, true) => {
                        let links = 1 + u64::from(job.last_link_first);
                        arrivals[index] = begin + links * job.latency;
                    }
                    (false, false) => {
                        let links = 1 - u64::from(job.last_link_first);
                        arrivals[index] = begin + comer.takes + links * job.latency;
                    }
                }
            }
        }
    }
    let mut ends = Vec::new();
    for (access, chunks) in job.accesses.iter().zip(&mut chunks) {
        let mut behind = 0;
        if access.store {
            pass_chunks_through_stages(&job.stages, chunks);
            behind = job.pool_latency + job.latency;
        }
        ends.push(*chunks.last().unwrap() + behind);
    }
    (ends, arrivals)
}
