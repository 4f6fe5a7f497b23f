//! How accesses that meet share the links of a pool.
//!
//! Bytes of an access are a stream that holds all servers on its way at once. At each moment the rates
//! of the streams are *max-min fair*: all rise together until a server is full, which fixes the rates of
//! those that pass it, and the others rise on. So nobody could have more without another having less who has
//! no more. Rates change when an access begins or ends, and hold in between.
//!
//! Bytes go in chunks, and a chunk crosses one stage after another: the first chunk is behind all
//! stages later than a stream would be. That is the *fill* of the pipeline. With `t[s]` the time of one chunk in
//! stage `s` among those who were under way when the access began,
//!
//! ```text
//! end = begin + latency + (the stream's time) + sum of t[s] - max of t[s]
//! ```
//!
//! For n equal accesses that begin together on an idle pool, the stream takes stages x max t[s], where
//! stages = chunks per access. This is the pipeline of the ASTRA-sim 2.0 paper (section IV-D, Fig. 7):
//! sum of t[s] + (stages - 1) x max t[s]. `stages` need not be whole: the last chunk carries
//! what is left, and its stream takes its exact share of time; only the fill is that of a whole chunk.
//! An access of less than one chunk is a chunk of its own size: it takes the sum of t[s].
//!
//! The stream's time and the fill are each rounded once, to the nearest picosecond. Accesses that begin at
//! one instant are alike, whatever order they come in, but for the last bits of sums; the order of the calls
//! decides those.

use super::Access;
use super::layout::{Layout, Leg};
use crate::units::{Span, Time};

/// Rates that differ by less are one: sums in another order may differ in their last bits, and what is
/// alike is to be fixed together.
const ALIKE: f64 = 1.0 + 1e-9;

/// The end of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The caller's own number.
    pub token: u64,
    /// When its last byte is there; not before now.
    pub at: Time,
}

/// An access under way.
#[derive(Clone, Copy, Debug)]
struct Stream {
    access: Access,
    /// Bytes left at `since`.
    left: f64,
    since: Time,
    /// Bytes per second from `since` on; zero before the first settlement.
    rate: f64,
    /// When it has passed at this rate.
    passed: Time,
    /// What is added when it has passed; known from the first settlement on.
    fill: Option<Span>,
    /// Whether the rate of the settlement in the making is fixed.
    fixed: bool,
}

/// The accesses under way in one layout.
#[derive(Debug)]
pub(super) struct Sharing {
    layout: Layout,
    latency: Span,
    streams: Vec<Stream>,
    unsettled: bool,
    settlement: u32,
    servers: Vec<Server>,
    /// The time of a chunk in each stage, while a fill is worked out.
    stages: Vec<f64>,
}

/// A server in the course of a settlement.
#[derive(Clone, Copy, Debug, Default)]
struct Server {
    /// Weights of all streams.
    load: f64,
    /// Weights of the streams whose rate is not fixed, and how many these are.
    open: f64,
    count: u32,
    /// Bytes per second that the fixed ones take.
    taken: f64,
    /// The rate at which it would be full.
    full: f64,
}

impl Sharing {
    pub fn new(layout: Layout, latency: Span) -> Self {
        Self {
            servers: vec![Server::default(); layout.rates().len()],
            stages: vec![0.0; layout.stages()],
            layout,
            latency,
            streams: Vec::new(),
            unsettled: false,
            settlement: 0,
        }
    }

    pub fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    pub fn begin(&mut self, now: Time, access: Access) {
        self.streams.push(Stream {
            access,
            left: access.bytes as f64,
            since: now,
            rate: 0.0,
            passed: Time::END,
            fill: None,
            fixed: false,
        });
        self.unsettled = true;
    }

    pub fn ended(&mut self, now: Time, settlement: u32, mut take: impl FnMut(End)) {
        if settlement != self.settlement {
            return;
        }
        let latency = self.latency;
        self.streams.retain(|stream| {
            let over = stream.passed <= now;
            if over {
                take(End {
                    token: stream.access.token,
                    at: now + latency + stream.fill.unwrap_or(Span::ZERO),
                });
            }
            !over
        });
        self.unsettled = true;
    }

    pub fn settle(&mut self, now: Time) -> Option<(Time, u32)> {
        self.unsettled = false;
        self.settlement = self.settlement.wrapping_add(1);
        self.count();
        self.fill();
        let mut open = self.streams.len();
        while open > 0 {
            open -= self.fix(now);
        }
        let next = self.streams.iter().map(|stream| stream.passed).min();
        next.map(|at| (at, self.settlement))
    }

    /// Counts who passes which server; no rate is fixed.
    fn count(&mut self) {
        self.servers.fill(Server::default());
        for stream in &mut self.streams {
            stream.fixed = false;
            for leg in self.layout.way(stream.access.npu) {
                let server = &mut self.servers[leg.server as usize];
                server.load += weight(leg, &stream.access);
                server.count += 1;
            }
        }
        for server in &mut self.servers {
            server.open = server.load;
        }
    }

    /// The fills of accesses that begin.
    fn fill(&mut self) {
        for stream in &mut self.streams {
            if stream.fill.is_some() {
                continue;
            }
            let piece = self.layout.piece.min(stream.access.bytes as f64);
            self.stages.fill(0.0);
            for leg in self.layout.way(stream.access.npu) {
                let load = self.servers[leg.server as usize].load;
                let time = piece * load / self.layout.rates()[leg.server as usize];
                let stage = &mut self.stages[leg.stage as usize];
                *stage = stage.max(time);
            }
            let longest = self.stages.iter().copied().fold(0.0, f64::max);
            let all: f64 = self.stages.iter().sum();
            stream.fill = Some(Span::from_seconds(all - longest));
        }
    }

    /// Raises the rates that are not fixed until servers are full, and fixes those of the streams that
    /// pass them; how many.
    fn fix(&mut self, now: Time) -> usize {
        let mut lowest = f64::INFINITY;
        for (server, rate) in self.servers.iter_mut().zip(self.layout.rates()) {
            if server.count > 0 {
                server.full = (rate - server.taken) / server.open;
                lowest = lowest.min(server.full);
            }
        }
        let mut fixed = 0;
        for stream in &mut self.streams {
            let mut way = self.layout.way(stream.access.npu);
            let full = |leg: Leg| self.servers[leg.server as usize].full <= lowest * ALIKE;
            if stream.fixed || !way.any(full) {
                continue;
            }
            stream.fixed = true;
            fixed += 1;
            stream.go_on(now, lowest);
            for leg in self.layout.way(stream.access.npu) {
                let weight = weight(leg, &stream.access);
                let server = &mut self.servers[leg.server as usize];
                server.taken += weight * lowest;
                server.open -= weight;
                server.count -= 1;
            }
        }
        fixed
    }
}

impl Stream {
    /// Streams on at `rate`.
    fn go_on(&mut self, now: Time, rate: f64) {
        if rate == self.rate {
            return;
        }
        let gone = self.rate * now.since(self.since).seconds();
        self.left = (self.left - gone).max(0.0);
        (self.since, self.rate) = (now, rate);
        self.passed = now + Span::from_seconds(self.left / rate);
    }
}

/// How many bytes the server of `leg` carries for each byte of `access`.
fn weight(leg: Leg, access: &Access) -> f64 {
    match access.in_switch {
        true => leg.in_switch,
        false => leg.weight,
    }
}

/// What the tests of all designs share.
#[cfg(test)]
pub(super) mod testing {
    use super::super::{Attachment, RemoteAccess, RemoteMemory};
    use super::*;
    use crate::ids::Npu;
    use crate::units::{Bandwidth, Bytes};

    /// A pool of memories of `gb` GB/s each, without latency.
    pub(in super::super) fn pool(attachment: Attachment, gb: f64) -> RemoteMemory {
        RemoteMemory {
            attachment,
            bandwidth: Bandwidth::new(gb * 1e9).unwrap(),
            latency: Span::ZERO,
            capacity: Bytes(1 << 40),
            whole_ns: false,
        }
    }

    /// When accesses end that begin as `begins` says: (when in picoseconds, NPU).
    fn run(
        memory: &RemoteMemory,
        npus: u32,
        begins: &[(u64, u32)],
        (bytes, in_switch): (u64, bool),
    ) -> Vec<u64> {
        let mut remote = RemoteAccess::new(memory, npus);
        let mut ends = vec![0; begins.len()];
        let mut next = 0;
        let mut due: Option<(Time, u32)> = None;
        loop {
            let begin = begins.get(next).map(|&(at, _)| Time(at));
            let end = due.map(|(at, _)| at);
            let Some(now) = [begin, end].into_iter().flatten().min() else {
                return ends;
            };
            if let Some((_, settlement)) = due.filter(|&(at, _)| at == now) {
                remote.ended(now, settlement, |end| ends[end.token as usize] = end.at.0);
            }
            while let Some(&(at, npu)) = begins.get(next)
                && Time(at) == now
            {
                let access = Access {
                    npu: Npu(npu),
                    bytes,
                    in_switch,
                    token: next as u64,
                };
                assert_eq!(remote.begin(now, access), None);
                next += 1;
            }
            assert!(remote.is_unsettled());
            due = remote.settle(now);
            assert!(!remote.is_unsettled());
        }
    }

    /// When accesses of these NPUs end that begin together.
    pub(in super::super) fn each(
        memory: &RemoteMemory,
        npus: u32,
        who: &[u32],
        bytes: u64,
    ) -> Vec<u64> {
        let begins: Vec<_> = who.iter().map(|&npu| (0, npu)).collect();
        run(memory, npus, &begins, (bytes, false))
    }

    /// When accesses of all NPUs end that begin together: all at once.
    pub(in super::super) fn together(
        memory: &RemoteMemory,
        npus: u32,
        bytes: u64,
        in_switch: bool,
    ) -> u64 {
        let begins: Vec<_> = (0..npus).map(|npu| (0, npu)).collect();
        let ends = run(memory, npus, &begins, (bytes, in_switch));
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        ends[0]
    }

    /// When an access of NPU 0 ends that is alone.
    pub(in super::super) fn alone(memory: &RemoteMemory, npus: u32, bytes: u64) -> u64 {
        each(memory, npus, &[0], bytes)[0]
    }

    /// When an access of NPU 0 and one of NPU 1, which begins `later` picoseconds later, end.
    pub(in super::super) fn late(
        memory: &RemoteMemory,
        npus: u32,
        bytes: u64,
        later: u64,
    ) -> Vec<u64> {
        run(memory, npus, &[(0, 0), (later, 1)], (bytes, false))
    }

    #[test]
    fn latency_comes_on_top_and_nothing_takes_no_time() {
        let rate = |gb: f64| Bandwidth::new(gb * 1e9).unwrap();
        let design = super::super::Switch {
            groups: 1,
            npu_bandwidth: rate(1.0),
            levels: Vec::new(),
            chunk: Bytes(1000),
        };
        let mut memory = pool(Attachment::Switch(design), 10.0);
        memory.latency = Span::from_ns(700);
        // 1,000 B at 1 GB/s = 1 us, a piece of 1,000 B at 10 GB/s = 0.1 us, and 0.7 us.
        assert_eq!(alone(&memory, 1, 1000), 1_800_000);
        assert_eq!(alone(&memory, 1, 0), 700_000);
    }

    #[test]
    fn what_one_leaves_another_takes() {
        // Two switches with 3 and 1 of 4 NPUs busy, each with a link of 6 GB/s; memories give 10 GB/s.
        // Equal shares of the memories would be 2.5 GB/s each; the three have 2 GB/s behind their link,
        // which leaves 4 GB/s: 12 kB take 6 us and 3 us. No chunk worth mentioning.
        let rate = |gb: f64| Bandwidth::new(gb * 1e9).unwrap();
        let level = super::super::Level {
            fan_in: 3,
            bandwidth: rate(6.0),
        };
        let design = super::super::Switch {
            groups: 1,
            npu_bandwidth: rate(1e9),
            levels: vec![level],
            chunk: Bytes(6),
        };
        let memory = pool(Attachment::Switch(design), 10.0);
        // A piece of 1 B: 0.4 ns of the memories, 0.5 ns of the three's link, 0.17 ns of the one's link.
        let ends = each(&memory, 6, &[0, 1, 2, 3], 12_000);
        assert_eq!(ends, [6_000_400, 6_000_400, 6_000_400, 3_000_167]);
    }
}
