//! One rank's clock. It runs the program in order, and reports the times of events.
//!
//! If a clock needs the end of a meeting that is still unknown, it stops, and can continue later. It never
//! reports an event twice.

use super::cost::{
    BETWEEN, HEAD, LAUNCH, QUEUE, REACH, RUNTIME, STREAM_GAP, TAIL, WAKE, WORKER_GAP, draw,
};
use super::program::{Axis, Instr, Program};

/// What a clock needs to know about meetings with other ranks.
pub(super) trait Meetings {
    /// Records that this rank starts its part of the meeting `m` in `step`.
    fn arrive(&mut self, step: u32, m: u32, start: u64);
    /// Returns the end of the meeting on this rank; `None` if it is still unknown.
    fn end(&self, step: u32, m: u32) -> Option<u64>;
    /// Records that a thread or stream of this rank waits for the meeting.
    fn waited(&mut self, step: u32, m: u32, by: Waiter, from: u64, until: u64);
}

/// Kind of waiter for a meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// The thread that requested the meeting.
    Host,
    /// The compute stream.
    Stream,
}

/// A call of the device's runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Launch,
    LaunchCollective,
    Copy,
    RecordEvent,
    WaitEvent,
    Synchronize,
}

/// Work on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Device {
    Kernel(u32),
    Collective(u32),
    /// A stream waits for the event that the call with this correlation id recorded.
    WaitEvent {
        recorded: u64,
        by: u32,
        on: u32,
    },
    Synchronize,
}

/// Receives events. Times are in ns of the job's clock.
pub(super) trait Recorder {
    fn enter(&mut self, _op: u32, _at: u64) {}
    fn exit(&mut self, _at: u64) {}
    fn thread(&mut self, _thread: u8) {}
    /// Receives a meeting `m` that Gloo executes on the thread of `worker`, or, if it is a message, on the
    /// requesting thread.
    fn meet(&mut self, _m: u32, _worker: Option<u8>, _start: u64, _end: u64) {}
    fn call(&mut self, _call: Call, _at: u64, _ns: u64, _correlation: u64) {}
    fn device(&mut self, _what: Device, _stream: u32, _at: u64, _ns: u64, _correlation: u64) {}
}

/// Id of the compute stream for CUDA and in Kineto.
pub(super) const COMPUTE: u32 = 7;

/// Returns the stream of the groups along an axis.
pub(super) fn stream(axis: Axis) -> u32 {
    match axis {
        Axis::Data => 20,
        _ => 24,
    }
}

/// A Gloo worker or a stream. It is free from a time on, or after its current meeting has ended.
#[derive(Clone, Copy, Debug, Default)]
struct Worker {
    free: u64,
    within: Option<u32>,
}

/// Speed of a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub seed: u64,
    pub rank: u32,
    /// Factor of all durations, in thousandths.
    pub straggle: u32,
    /// Largest random addition to durations, in thousandths.
    pub skew: u32,
}

/// State of a rank during the job.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    pace: Pace,
    draws: u64,
    now: u64,
    step: u32,
    next: usize,
    /// Workers by axis.
    workers: [[Worker; 2]; 2],
    comm: [Worker; 2],
    compute_free: u64,
    correlation: u64,
    /// For each meeting of the step, the call that recorded the end of the meeting's kernel.
    recorded: Vec<u64>,
}

fn of(axis: Axis) -> usize {
    match axis {
        Axis::Data => 0,
        Axis::Tensor | Axis::Pair => 1,
    }
}

impl Clock {
    pub(super) fn new(pace: Pace, now: u64) -> Self {
        Self {
            pace,
            draws: 0,
            now,
            step: 0,
            next: 0,
            workers: Default::default(),
            comm: Default::default(),
            compute_free: 0,
            correlation: 1000,
            recorded: Vec::new(),
        }
    }

    /// Returns the thread's current time in ns.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    fn stretched(&mut self, ns: u64) -> u64 {
        let Pace {
            seed,
            rank,
            straggle,
            skew,
        } = self.pace;
        let mut ns = ns.saturating_mul(u64::from(straggle)) / 1000;
        if skew > 0 {
            let more = draw([seed, rank.into(), self.draws]) % (u64::from(skew) + 1);
            self.draws += 1;
            ns += (u128::from(ns) * u128::from(more) / 1000) as u64;
        }
        ns
    }

    /// Advances the thread by `ns`, scaled by the rank's speed. Returns the start and the scaled duration.
    fn spend(&mut self, ns: u64) -> (u64, u64) {
        let (at, ns) = (self.now, self.stretched(ns));
        self.now += ns;
        (at, ns)
    }

    fn call(&mut self, call: Call, ns: u64, out: &mut impl Recorder) -> u64 {
        let (at, ns) = self.spend(ns);
        self.correlation += 1;
        out.call(call, at, ns, self.correlation);
        self.now += BETWEEN;
        self.correlation
    }

    /// Runs to the end of the step, or to the first instruction that needs an unknown end of a meeting.
    /// Returns `true` if the step has ended.
    pub(super) fn run(
        &mut self,
        program: &Program,
        meetings: &mut impl Meetings,
        out: &mut impl Recorder,
    ) -> bool {
        while let Some(instr) = program.instrs.get(self.next) {
            if !self.one(program, *instr, meetings, out) {
                return false;
            }
            self.next += 1;
        }
        // Meetings are numbered per step, so resolve all references to this step's meetings before it ends.
        let open = self.workers.iter_mut().flatten().chain(&mut self.comm);
        for worker in open {
            if !settle(worker, self.step, meetings) {
                return false;
            }
        }
        self.next = 0;
        self.step += 1;
        true
    }

    /// Executes `instr`. Does nothing if `instr` needs an unknown end of a meeting.
    fn one(
        &mut self,
        program: &Program,
        instr: Instr,
        meetings: &mut impl Meetings,
        out: &mut impl Recorder,
    ) -> bool {
        match instr {
            Instr::Enter(op) => {
                out.enter(op, self.now);
                self.spend(HEAD);
            }
            Instr::Exit => {
                self.spend(TAIL);
                out.exit(self.now);
                self.now += BETWEEN;
            }
            Instr::Busy(ns) => {
                self.spend(ns);
            }
            Instr::Thread(thread) => out.thread(thread),
            Instr::Issue(m) => {
                let meet = &program.meets[m as usize];
                let (start, worker) = match meet.axis {
                    Axis::Pair => (self.now, None),
                    axis => {
                        let workers = &mut self.workers[of(axis)];
                        for worker in &mut *workers {
                            if !settle(worker, self.step, meetings) {
                                return false;
                            }
                        }
                        let which = usize::from(workers[1].free < workers[0].free);
                        let start = (self.now + QUEUE).max(workers[which].free);
                        workers[which].within = Some(m);
                        (start, Some((2 * of(axis) + which) as u8))
                    }
                };
                meetings.arrive(self.step, m, start);
                let end = meetings.end(self.step, m).unwrap_or(start);
                out.meet(m, worker, start, end);
            }
            Instr::Block(m) => {
                let Some(end) = meetings.end(self.step, m) else {
                    return false;
                };
                if end > self.now {
                    let until = end + WAKE;
                    meetings.waited(self.step, m, Waiter::Host, self.now, until);
                    self.now = until;
                }
            }
            Instr::Launch(kernel) => {
                let known = &program.kernels[kernel as usize];
                let call = known.copy.map_or(Call::Launch, |_| Call::Copy);
                let id = self.call(call, LAUNCH, out);
                let start = (self.now - BETWEEN + REACH).max(self.compute_free);
                let ns = self.stretched(known.ns);
                out.device(Device::Kernel(kernel), COMPUTE, start, ns, id);
                self.compute_free = start + ns + STREAM_GAP;
            }
            Instr::Collective(m) => {
                let axis = program.meets[m as usize].axis;
                if !settle(&mut self.comm[of(axis)], self.step, meetings) {
                    return false;
                }
                self.collective(m, axis, meetings, out);
            }
            Instr::StreamWait(m) => {
                let Some(end) = meetings.end(self.step, m) else {
                    return false;
                };
                let axis = program.meets[m as usize].axis;
                self.wait_event(self.recorded[m as usize], stream(axis), COMPUTE, out);
                if end > self.compute_free {
                    let until = end + STREAM_GAP;
                    let from = self.compute_free;
                    meetings.waited(self.step, m, Waiter::Stream, from, until);
                    self.compute_free = until;
                }
            }
            Instr::Synchronize => {
                let (at, ns) = self.spend(RUNTIME);
                let until = (at + ns).max(self.compute_free);
                self.correlation += 1;
                let id = self.correlation;
                out.call(Call::Synchronize, at, until - at, id);
                out.device(Device::Synchronize, COMPUTE, at, until - at, id);
                self.now = until + BETWEEN;
            }
        }
        true
    }

    /// Launches a meeting's kernel. Like NCCL, starts it after the compute stream's current work.
    fn collective(
        &mut self,
        m: u32,
        axis: Axis,
        meetings: &mut impl Meetings,
        out: &mut impl Recorder,
    ) {
        let ready = self.compute_free;
        let id = self.call(Call::RecordEvent, RUNTIME, out);
        self.wait_event(id, COMPUTE, stream(axis), out);
        let id = self.call(Call::LaunchCollective, LAUNCH, out);
        let comm = &mut self.comm[of(axis)];
        let start = (self.now - BETWEEN + REACH).max(comm.free).max(ready);
        comm.within = Some(m);
        meetings.arrive(self.step, m, start);
        let ns = meetings.end(self.step, m).unwrap_or(start) - start;
        out.device(Device::Collective(m), stream(axis), start, ns, id);
        let record = self.call(Call::RecordEvent, RUNTIME, out);
        let recorded = &mut self.recorded;
        recorded.resize(recorded.len().max(m as usize + 1), 0);
        recorded[m as usize] = record;
    }

    fn wait_event(&mut self, recorded: u64, on: u32, by: u32, out: &mut impl Recorder) {
        let at = self.now;
        let id = self.call(Call::WaitEvent, RUNTIME, out);
        let ns = self.now - BETWEEN - at;
        out.device(Device::WaitEvent { recorded, by, on }, by, at, ns, id);
    }
}

/// Updates the time from which a worker or stream is free. Returns `true` if this time is known.
fn settle(worker: &mut Worker, step: u32, meetings: &impl Meetings) -> bool {
    if let Some(m) = worker.within {
        let Some(end) = meetings.end(step, m) else {
            return false;
        };
        *worker = Worker {
            free: end + WORKER_GAP,
            within: None,
        };
    }
    true
}
