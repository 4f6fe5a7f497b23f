//! A rank's clock runs the program in order and reports the times of events.
//!
//! A clock stops when it needs the end of a meeting (collective or message) that is still unknown, and can continue
//! later. It never reports an event twice.

use super::cost::{
    BETWEEN, HEAD, LAUNCH, QUEUE, REACH, RUNTIME, STREAM_GAP, TAIL, WAKE, WORKER_GAP,
    hash_to_random_number,
};
use super::program::{GroupAxis, StepProgram, ThreadInstruction};

/// Gives a rank's clock access to the meetings with other ranks (collectives and messages) that it waits for.
pub(super) trait CommunicationAccess {
    /// Records that this rank starts its part of the meeting `m` in `step`.
    fn record_own_meeting_start(&mut self, step: u32, m: u32, start: u64);
    /// Returns the end of the meeting `m` on this rank; `None` if the end is still unknown.
    fn meeting_end(&self, step: u32, m: u32) -> Option<u64>;
    /// Records that a thread or stream of this rank waits for the collective or message `m` during
    /// `from..until`.
    fn record_wait(
        &mut self,
        step: u32,
        m: u32,
        by: CommunicationWaiterKind,
        from: u64,
        until: u64,
    );
}

/// The thread or stream that waits for a collective or message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommunicationWaiterKind {
    /// The thread that requested the meeting.
    Host,
    /// The compute stream.
    Stream,
}

/// A call of the device's runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuntimeCall {
    Launch,
    LaunchCollective,
    Copy,
    RecordEvent,
    WaitEvent,
    Synchronize,
}

/// Work on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamWork {
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

/// Receives the events of a rank. Times are in ns of the job's clock.
pub(super) trait EventRecorder {
    fn enter_operator(&mut self, _op: u32, _at: u64) {}
    fn exit_operator(&mut self, _at: u64) {}
    fn record_thread_start(&mut self, _thread: u8) {}
    /// Receives a meeting `m`: a collective that Gloo executes on the thread of `worker`, or a
    /// message on the requesting thread.
    fn record_meeting(&mut self, _m: u32, _worker: Option<u8>, _start: u64, _end: u64) {}
    fn record_call(&mut self, _call: RuntimeCall, _at: u64, _ns: u64, _correlation: u64) {}
    fn record_device_work(
        &mut self,
        _what: StreamWork,
        _stream: u32,
        _at: u64,
        _ns: u64,
        _correlation: u64,
    ) {
    }
}

/// Id of the compute stream for CUDA and in Kineto.
pub(super) const COMPUTE: u32 = 7;

/// Returns the stream of the groups along an axis.
pub(super) fn stream_of_axis(axis: GroupAxis) -> u32 {
    match axis {
        GroupAxis::Data => 20,
        _ => 24,
    }
}

/// A Gloo worker, or a stream for collectives. A worker becomes free at a known time, or when its
/// current meeting (collective or message) has ended.
#[derive(Clone, Copy, Debug, Default)]
struct WorkerOrStreamFreeTime {
    free: u64,
    within: Option<u32>,
}

/// Speed of a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankPace {
    pub seed: u64,
    pub rank: u32,
    /// Factor that scales all durations, in thousandths.
    pub straggle: u32,
    /// Largest random addition to a duration, in thousandths of the duration.
    pub skew: u32,
}

/// State of a rank during the job.
#[derive(Clone, Debug)]
pub(super) struct SimulatedRankState {
    pace: RankPace,
    draws: u64,
    now: u64,
    step: u32,
    next: usize,
    /// Gloo's workers, by axis.
    workers: [[WorkerOrStreamFreeTime; 2]; 2],
    comm: [WorkerOrStreamFreeTime; 2],
    compute_free: u64,
    correlation: u64,
    /// For each meeting of the step, the correlation id of the call that recorded an event after the meeting's kernel.
    recorded: Vec<u64>,
}

fn index_of_axis(axis: GroupAxis) -> usize {
    match axis {
        GroupAxis::Data => 0,
        GroupAxis::Tensor | GroupAxis::Pair => 1,
    }
}

impl SimulatedRankState {
    pub(super) fn new(pace: RankPace, now: u64) -> Self {
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
    pub(super) fn current_time(&self) -> u64 {
        self.now
    }

    fn stretch_duration(&mut self, ns: u64) -> u64 {
        let RankPace {
            seed,
            rank,
            straggle,
            skew,
        } = self.pace;
        let mut ns = ns.saturating_mul(u64::from(straggle)) / 1000;
        if skew > 0 {
            let more =
                hash_to_random_number([seed, rank.into(), self.draws]) % (u64::from(skew) + 1);
            self.draws += 1;
            ns += (u128::from(ns) * u128::from(more) / 1000) as u64;
        }
        ns
    }

    /// Advances the thread by `ns`, scaled by the rank's pace. Returns the start and the scaled
    /// duration.
    fn spend_time(&mut self, ns: u64) -> (u64, u64) {
        let (at, ns) = (self.now, self.stretch_duration(ns));
        self.now += ns;
        (at, ns)
    }

    fn make_runtime_call(
        &mut self,
        call: RuntimeCall,
        ns: u64,
        out: &mut impl EventRecorder,
    ) -> u64 {
        let (at, ns) = self.spend_time(ns);
        self.correlation += 1;
        out.record_call(call, at, ns, self.correlation);
        self.now += BETWEEN;
        self.correlation
    }

    /// Runs until the step ends, or until an instruction needs the end of a meeting (collective or message) that is
    /// still unknown. Returns `true` if the step has ended.
    pub(super) fn run_until_step_end_or_unknown_meeting(
        &mut self,
        program: &StepProgram,
        meetings: &mut impl CommunicationAccess,
        out: &mut impl EventRecorder,
    ) -> bool {
        while let Some(instr) = program.instrs.get(self.next) {
            if !self.run_instruction(program, *instr, meetings, out) {
                return false;
            }
            self.next += 1;
        }
        // Each step numbers its meetings anew, so the ends of all meetings must be known before the
        // step ends.
        let open = self.workers.iter_mut().flatten().chain(&mut self.comm);
        for worker in open {
            if !update_worker_free_time(worker, self.step, meetings) {
                return false;
            }
        }
        self.next = 0;
        self.step += 1;
        true
    }

    /// Executes `instr`. Returns `false`, and changes nothing, if `instr` needs the end of a meeting that is still
    /// unknown.
    fn run_instruction(
        &mut self,
        program: &StepProgram,
        instr: ThreadInstruction,
        meetings: &mut impl CommunicationAccess,
        out: &mut impl EventRecorder,
    ) -> bool {
        match instr {
            ThreadInstruction::Enter(op) => {
                out.enter_operator(op, self.now);
                self.spend_time(HEAD);
            }
            ThreadInstruction::Exit => {
                self.spend_time(TAIL);
                out.exit_operator(self.now);
                self.now += BETWEEN;
            }
            ThreadInstruction::Busy(ns) => {
                self.spend_time(ns);
            }
            ThreadInstruction::Thread(thread) => out.record_thread_start(thread),
            ThreadInstruction::Issue(m) => {
                let meet = &program.meets[m as usize];
                let (start, worker) = match meet.axis {
                    GroupAxis::Pair => (self.now, None),
                    axis => {
                        let workers = &mut self.workers[index_of_axis(axis)];
                        for worker in &mut *workers {
                            if !update_worker_free_time(worker, self.step, meetings) {
                                return false;
                            }
                        }
                        let which = usize::from(workers[1].free < workers[0].free);
                        let start = (self.now + QUEUE).max(workers[which].free);
                        workers[which].within = Some(m);
                        (start, Some((2 * index_of_axis(axis) + which) as u8))
                    }
                };
                meetings.record_own_meeting_start(self.step, m, start);
                let end = meetings.meeting_end(self.step, m).unwrap_or(start);
                out.record_meeting(m, worker, start, end);
            }
            ThreadInstruction::Block(m) => {
                let Some(end) = meetings.meeting_end(self.step, m) else {
                    return false;
                };
                if end > self.now {
                    let until = end + WAKE;
                    meetings.record_wait(
                        self.step,
                        m,
                        CommunicationWaiterKind::Host,
                        self.now,
                        until,
                    );
                    self.now = until;
                }
            }
            ThreadInstruction::Launch(kernel) => {
                let known = &program.kernels[kernel as usize];
                let call = known
                    .copy
                    .map_or(RuntimeCall::Launch, |_| RuntimeCall::Copy);
                let id = self.make_runtime_call(call, LAUNCH, out);
                let start = (self.now - BETWEEN + REACH).max(self.compute_free);
                let ns = self.stretch_duration(known.ns);
                out.record_device_work(StreamWork::Kernel(kernel), COMPUTE, start, ns, id);
                self.compute_free = start + ns + STREAM_GAP;
            }
            ThreadInstruction::Collective(m) => {
                let axis = program.meets[m as usize].axis;
                if !update_worker_free_time(
                    &mut self.comm[index_of_axis(axis)],
                    self.step,
                    meetings,
                ) {
                    return false;
                }
                self.launch_collective(m, axis, meetings, out);
            }
            ThreadInstruction::StreamWait(m) => {
                let Some(end) = meetings.meeting_end(self.step, m) else {
                    return false;
                };
                let axis = program.meets[m as usize].axis;
                self.make_stream_wait_for_event(
                    self.recorded[m as usize],
                    stream_of_axis(axis),
                    COMPUTE,
                    out,
                );
                if end > self.compute_free {
                    let until = end + STREAM_GAP;
                    let from = self.compute_free;
                    meetings.record_wait(
                        self.step,
                        m,
                        CommunicationWaiterKind::Stream,
                        from,
                        until,
                    );
                    self.compute_free = until;
                }
            }
            ThreadInstruction::Synchronize => {
                let (at, ns) = self.spend_time(RUNTIME);
                let until = (at + ns).max(self.compute_free);
                self.correlation += 1;
                let id = self.correlation;
                out.record_call(RuntimeCall::Synchronize, at, until - at, id);
                out.record_device_work(StreamWork::Synchronize, COMPUTE, at, until - at, id);
                self.now = until + BETWEEN;
            }
        }
        true
    }

    /// Launches the kernel of a collective. As with NCCL, the kernel starts after the current work
    /// of the compute stream.
    fn launch_collective(
        &mut self,
        m: u32,
        axis: GroupAxis,
        meetings: &mut impl CommunicationAccess,
        out: &mut impl EventRecorder,
    ) {
        let ready = self.compute_free;
        let id = self.make_runtime_call(RuntimeCall::RecordEvent, RUNTIME, out);
        self.make_stream_wait_for_event(id, COMPUTE, stream_of_axis(axis), out);
        let id = self.make_runtime_call(RuntimeCall::LaunchCollective, LAUNCH, out);
        let comm = &mut self.comm[index_of_axis(axis)];
        let start = (self.now - BETWEEN + REACH).max(comm.free).max(ready);
        comm.within = Some(m);
        meetings.record_own_meeting_start(self.step, m, start);
        let ns = meetings.meeting_end(self.step, m).unwrap_or(start) - start;
        out.record_device_work(
            StreamWork::Collective(m),
            stream_of_axis(axis),
            start,
            ns,
            id,
        );
        let record = self.make_runtime_call(RuntimeCall::RecordEvent, RUNTIME, out);
        let recorded = &mut self.recorded;
        recorded.resize(recorded.len().max(m as usize + 1), 0);
        recorded[m as usize] = record;
    }

    fn make_stream_wait_for_event(
        &mut self,
        recorded: u64,
        on: u32,
        by: u32,
        out: &mut impl EventRecorder,
    ) {
        let at = self.now;
        let id = self.make_runtime_call(RuntimeCall::WaitEvent, RUNTIME, out);
        let ns = self.now - BETWEEN - at;
        out.record_device_work(StreamWork::WaitEvent { recorded, by, on }, by, at, ns, id);
    }
}

/// Updates the time at which a worker or stream becomes free. Returns `true` if this time is known.
fn update_worker_free_time(
    worker: &mut WorkerOrStreamFreeTime,
    step: u32,
    meetings: &impl CommunicationAccess,
) -> bool {
    if let Some(m) = worker.within {
        let Some(end) = meetings.meeting_end(step, m) else {
            return false;
        };
        *worker = WorkerOrStreamFreeTime {
            free: end + WORKER_GAP,
            within: None,
        };
    }
    true
}
