//! Records of a rank's step: operators with all the ids that PyTorch gives them.
//!
//! Both files of a rank are written from these records, so the files agree. A rank's ids depend only on the order in
//! which operators start and end on its threads.

use super::program::{AutogradRole, GroupAxis, StepProgram};
use super::simulate::{EventRecorder, RuntimeCall, StreamWork};

/// An operator or annotation of the host, or the root of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostRecord {
    /// Index of the operator in the program; [`ROOT`] for a thread's root.
    pub op: u32,
    /// Kineto's thread: 0 is the program's thread, 1 is autograd's thread, and higher numbers are
    /// workers.
    pub thread: u8,
    pub start: u64,
    pub end: u64,
    pub rf: u64,
    pub external: u64,
    pub id: u64,
    pub parent: u64,
    pub fw_parent: u64,
}

/// Value of `op` for the root of a thread.
pub(super) const ROOT: u32 = u32::MAX;

impl HostRecord {
    /// The thread's id in the host file.
    pub(super) fn thread_in_host_file(&self) -> u8 {
        if self.thread == 1 { 2 } else { 1 }
    }
}

/// A runtime call, or its kernel, copy or wait on a stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum RuntimeCallOrGpuRecord {
    Call {
        call: RuntimeCall,
        thread: u8,
        at: u64,
        ns: u64,
        correlation: u64,
        external: u64,
    },
    Device {
        what: StreamWork,
        stream: u32,
        at: u64,
        ns: u64,
        correlation: u64,
        external: u64,
        /// The call's own annotation, if it has one.
        frame: u64,
    },
}

/// A worker's annotation that has not ended yet, and may not have started.
#[derive(Clone, Copy, Debug)]
struct PendingWorkerAnnotation {
    at: u64,
    m: u32,
    thread: u8,
    end: u64,
    /// Record function id of the annotation, assigned when the thread requests the collective. The
    /// annotation gets its id in the host's file when it starts.
    rf: u64,
}

/// The records of the current step.
#[derive(Debug)]
pub(super) struct StepRecords<'p> {
    program: &'p StepProgram,
    /// Records, in order of start time on each thread.
    pub list: Vec<HostRecord>,
    /// Indices into `list`, in order of end time.
    pub done: Vec<u32>,
    pub gpu: Vec<RuntimeCallOrGpuRecord>,
    pub with_gpu: bool,
    /// Ids of tensors, indexed by their slots in the program.
    pub tensors: Vec<u64>,
    pub storages: Vec<u64>,
    stacks: [Vec<u32>; 2],
    thread: u8,
    rooted: [u64; 2],
    next_id: u64,
    next_rf: u64,
    /// For each thread, the next external id and the number of ids left in its block.
    external: [(u64, u64); 6],
    blocks: u64,
    starting: Vec<PendingWorkerAnnotation>,
    ending: Vec<(u64, u32)>,
}

/// Number of external ids in a block; a thread takes a new block when it runs out of ids.
const BLOCK: u64 = 512;

impl<'p> StepRecords<'p> {
    pub(super) fn new(program: &'p StepProgram, with_gpu: bool) -> Self {
        let slots = program.slots.len();
        Self {
            program,
            list: Vec::new(),
            done: Vec::new(),
            gpu: Vec::new(),
            with_gpu,
            tensors: vec![0; slots],
            storages: vec![0; slots],
            stacks: [Vec::new(), Vec::new()],
            thread: 0,
            // The process has id 1, and the program's thread has id 2. The list of groups has id 3 and record
            // function id 1.
            rooted: [2, 0],
            next_id: 4,
            next_rf: 2,
            external: [(0, 0); 6],
            blocks: 0,
            starting: Vec::new(),
            ending: Vec::new(),
        }
    }

    /// Ends the step and all open operators.
    pub(super) fn finish_step(&mut self) {
        self.start_and_end_annotations_until(u64::MAX);
    }

    /// Removes the step's records. Tensors that exist only for one step then get new ids.
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.done.clear();
        self.gpu.clear();
        for (slot, (_, kept)) in self.program.slots.iter().enumerate() {
            if !kept {
                self.tensors[slot] = 0;
                self.storages[slot] = 0;
            }
        }
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn next_external_id(&mut self, thread: u8) -> u64 {
        let (next, left) = &mut self.external[usize::from(thread)];
        if *left == 0 {
            (*next, *left) = (self.blocks * BLOCK + 1, BLOCK);
            self.blocks += 1;
        }
        *next += 1;
        *left -= 1;
        *next - 1
    }

    /// Assigns ids to the tensors of an operator that have no id.
    fn assign_tensor_ids(&mut self, from: u32, count: u16) {
        let (program, from) = (self.program, from as usize);
        for slot in &program.args[from..from + usize::from(count)] {
            let slot = *slot as usize;
            if self.tensors[slot] != 0 {
                continue;
            }
            self.tensors[slot] = self.next_id();
            let root = program.slots[slot].0 as usize;
            if self.storages[root] == 0 {
                self.storages[root] = self.next_id();
            }
            self.storages[slot] = self.storages[root];
        }
    }

    /// Returns the innermost open operator of the thread, or its root.
    fn innermost_open_record_id(&self, thread: u8) -> u64 {
        let stack = &self.stacks[usize::from(thread)];
        match stack.last() {
            Some(top) => self.list[*top as usize].id,
            None => self.rooted[usize::from(thread)],
        }
    }

    fn next_record_function_id(&mut self) -> u64 {
        self.next_rf += 1;
        self.next_rf - 1
    }

    /// Starts an operator. `threads` are Kineto's thread and the host thread whose stack contains the operator.
    fn begin_operator(
        &mut self,
        op: u32,
        threads: (u8, u8),
        (start, end): (u64, u64),
        rf: u64,
    ) -> u32 {
        let (thread, on) = threads;
        let parent = self.innermost_open_record_id(on);
        let id = self.next_id();
        let known = self.program.ops[op as usize];
        self.assign_tensor_ids(known.args, known.inputs);
        let role = self.program.templates[known.template as usize].role;
        let fw_parent = match (role, on) {
            (AutogradRole::Backward, 0) => parent,
            (AutogradRole::Backward, _) => self.innermost_open_record_id(0),
            _ => 0,
        };
        let external = self.next_external_id(thread);
        self.list.push(HostRecord {
            op,
            thread,
            start,
            end,
            rf,
            external,
            id,
            parent,
            fw_parent,
        });
        (self.list.len() - 1) as u32
    }

    /// Starts and ends the workers' annotations that are due by the time `at`.
    fn start_and_end_annotations_until(&mut self, at: u64) {
        loop {
            let start = self.starting.iter().enumerate().min_by_key(|(_, p)| p.at);
            let end = self.ending.iter().enumerate().min_by_key(|(_, e)| e.0);
            let start = start.map(|(i, p)| (p.at, i)).filter(|s| s.0 <= at);
            let end = end.map(|(i, e)| (e.0, i)).filter(|e| e.0 <= at);
            match (start, end) {
                (Some(start), end) if end.is_none_or(|end| start.0 <= end.0) => {
                    let pending = self.starting.remove(start.1);
                    let PendingWorkerAnnotation { at, m, end, .. } = pending;
                    let op = self.program.meets[m as usize].op;
                    let record =
                        self.begin_operator(op, (pending.thread, 0), (at, end), pending.rf);
                    self.ending.push((end, record));
                }
                (_, Some(end)) => {
                    let (_, record) = self.ending.remove(end.1);
                    self.done.push(record);
                }
                _ => return,
            }
        }
    }
}

impl EventRecorder for StepRecords<'_> {
    fn enter_operator(&mut self, op: u32, at: u64) {
        self.start_and_end_annotations_until(at);
        let thread = usize::from(self.thread);
        if self.rooted[thread] == 0 {
            let id = self.next_id();
            self.rooted[thread] = id;
            self.done.push(self.list.len() as u32);
            self.list.push(HostRecord {
                op: ROOT,
                thread: self.thread,
                start: at,
                end: at,
                rf: 0,
                external: 0,
                id,
                parent: 1,
                fw_parent: 0,
            });
        }
        let rf = self.next_record_function_id();
        let record = self.begin_operator(op, (self.thread, self.thread), (at, at), rf);
        self.stacks[thread].push(record);
    }

    fn exit_operator(&mut self, at: u64) {
        self.start_and_end_annotations_until(at);
        let record = self.stacks[usize::from(self.thread)].pop();
        let record = record.expect("what ends has begun");
        self.list[record as usize].end = at;
        let op = self.program.ops[self.list[record as usize].op as usize];
        self.assign_tensor_ids(op.args + u32::from(op.inputs), op.outputs);
        self.done.push(record);
    }

    fn record_thread_start(&mut self, thread: u8) {
        self.thread = thread;
    }

    fn record_meeting(&mut self, m: u32, worker: Option<u8>, start: u64, end: u64) {
        let thread = worker.map_or(self.thread, |worker| worker + 2);
        debug_assert!(worker.is_some() || self.program.meets[m as usize].axis == GroupAxis::Pair);
        let rf = self.next_record_function_id();
        self.starting.push(PendingWorkerAnnotation {
            rf,
            at: start,
            m,
            thread,
            end,
        });
        if worker.is_none() {
            self.start_and_end_annotations_until(start);
        }
    }

    fn record_call(&mut self, call: RuntimeCall, at: u64, ns: u64, correlation: u64) {
        if self.with_gpu {
            let external = self.external_id_of_innermost_open_record(None);
            self.gpu.push(RuntimeCallOrGpuRecord::Call {
                call,
                thread: self.thread,
                at,
                ns,
                correlation,
                external,
            });
        }
    }

    fn record_device_work(
        &mut self,
        what: StreamWork,
        stream: u32,
        at: u64,
        ns: u64,
        correlation: u64,
    ) {
        if self.with_gpu {
            let (external, frame) = (
                self.external_id_of_innermost_open_record(None),
                self.external_id_of_innermost_open_record(Some(AutogradRole::Annotation)),
            );
            self.gpu.push(RuntimeCallOrGpuRecord::Device {
                what,
                stream,
                at,
                ns,
                correlation,
                external,
                frame,
            });
        }
    }
}

impl StepRecords<'_> {
    /// Returns the external id of the innermost open record of the requested kind; 0 if there is none. If `role` is
    /// given, the record is an annotation; otherwise it is an operator that is not an annotation.
    fn external_id_of_innermost_open_record(&self, role: Option<AutogradRole>) -> u64 {
        let stack = &self.stacks[usize::from(self.thread)];
        let found = stack
            .iter()
            .rev()
            .map(|i| &self.list[*i as usize])
            .find(|record| {
                let op = self.program.ops[record.op as usize];
                let is =
                    self.program.templates[op.template as usize].role == AutogradRole::Annotation;
                is == role.is_some()
            });
        found.map_or(0, |record| record.external)
    }
}
