//! Writes Kineto's file: first the threads, one after another, then the device.

use super::host::sequence;
use super::meet::Again;
use super::out::{Out, number};
use super::program::{Program, Role};
use super::records::{ROOT, Record, Records};
use super::{Capture, Device, EPOCH, PID, gpu};
use std::io::{Result, Write};

/// Maximum number of host threads: two threads of the program, and four workers.
const THREADS: usize = 6;

/// A file under construction.
pub(super) struct File<'c, W: Write> {
    pub out: Out<W>,
    pub capture: &'c Capture,
    pub program: &'c Program,
    pub pid: u64,
    /// Clock offset of the rank, ns.
    pub clock: u64,
    events: u64,
}

impl<W: Write> File<'_, W> {
    /// Writes a time of the job in the file's clock and unit.
    pub(super) fn at(&mut self, ns: u64) {
        self.out.us(self.clock + ns);
    }

    /// Returns the operating system's id of a thread.
    pub(super) fn tid(&self, thread: u8) -> u64 {
        // The job creates tensor-parallel groups first, and a group starts its workers when it is created.
        let order = [0, 1, 4, 5, 2, 3];
        match thread {
            0 => self.pid,
            other => self.pid + 100_000 + order[usize::from(other)],
        }
    }

    /// Writes the beginning of an event, up to and including its name.
    pub(super) fn open(&mut self, category: &str, name: &str) {
        self.out.str("  {\n    \"ph\": \"X\",\n    \"cat\": \"");
        self.out.str(category);
        self.out.str("\",\n    \"name\": \"");
        self.out.str(name);
    }

    /// Writes the part of an event from its name to its arguments.
    pub(super) fn place(&mut self, pid: u64, tid: u64, start: u64, ns: u64) {
        self.out.str("\",\n    \"pid\": ");
        self.out.number(pid);
        self.out.str(",\n    \"tid\": ");
        self.out.number(tid);
        self.out.str(",\n    \"ts\": ");
        self.at(start);
        self.out.str(",\n    \"dur\": ");
        self.out.us(ns);
        self.out.str("\n    ,\n    \"args\": {\n      ");
    }

    /// Writes the end of an event.
    pub(super) fn close(&mut self) {
        self.out.str("\n    }\n  },\n");
    }

    /// Writes one end of a flow arrow.
    pub(super) fn flow(&mut self, category: &str, end: bool, id: u64, pid: u64, tid: u64, at: u64) {
        let phase = if end { "f" } else { "s" };
        self.out.str("  {\n    \"ph\": \"");
        self.out.str(phase);
        self.out.str("\",\n    \"id\": ");
        self.out.number(id);
        self.out.str(",\n    \"pid\": ");
        self.out.number(pid);
        self.out.str(",\n    \"tid\": ");
        self.out.number(tid);
        self.out.str(",\n    \"ts\": ");
        self.at(at);
        for title in [",\n    \"cat\": \"", "\",\n    \"name\": \""] {
            self.out.str(title);
            self.out.str(category);
        }
        self.out.str("\"\n    ");
        if end {
            self.out.str(", \"bp\": \"e\"");
        }
        self.out.str("\n  },\n");
    }

    /// Writes an operator's fields from autograd.
    fn sequence(&mut self, before: &str, seq: Option<u64>, forward: bool) {
        let Some(seq) = seq else { return };
        self.out.str(before);
        self.out.str("\"Sequence number\": ");
        self.out.number(seq);
        self.out.str(", \"Fwd thread id\": ");
        self.out.number(u64::from(!forward));
    }

    fn record(&mut self, record: &Record, step: u32) {
        let program = self.program;
        let op = &program.ops[record.op as usize];
        let template = &program.templates[op.template as usize];
        let number = number(op, step);
        let category = match template.role {
            Role::Annotation => "user_annotation",
            _ => "cpu_op",
        };
        self.open(category, "");
        self.out.numbered(&template.name, number);
        let tid = self.tid(record.thread);
        self.place(self.pid, tid, record.start, record.end - record.start);
        self.out.str("\"External id\": ");
        self.out.number(record.external);
        let seq = op.seq.map(|seq| sequence(program, seq, step));
        let forward = template.role == Role::Forward;
        // Events with inputs and events without have a different order of arguments.
        if template.kineto[0].0.is_empty() {
            self.out.str(",\"Record function id\": ");
            self.out.number(record.rf);
            self.sequence(", ", seq, forward);
        } else {
            self.sequence(",", seq, forward);
            self.out.str(match seq {
                Some(_) => ", \"Record function id\": ",
                None => ",\"Record function id\": ",
            });
            self.out.number(record.rf);
            self.out.str(", ");
            self.out.numbered(&template.kineto, number);
        }
        self.out.str(", \"Ev Idx\": ");
        self.out.number(self.events);
        self.events += 1;
        self.close();
        if op.flow {
            let seq = op.seq.expect("what flows has a number");
            // The backward pass visits nodes in reverse order, so the last forward node comes first.
            let seqs = u64::from(program.seqs);
            let id = u64::from(step) * seqs + seqs - u64::from(seq);
            let end = template.role == Role::Backward;
            self.flow("fwdbwd", end, id, self.pid, tid, record.start);
        }
    }
}

/// Writes the file of `rank`.
pub(super) fn write(capture: &Capture, rank: u32, sink: impl Write) -> Result<()> {
    let program = &capture.program(rank);
    let mut file = File {
        out: Out::new(sink),
        capture,
        program,
        pid: PID + u64::from(rank),
        clock: EPOCH.saturating_add_signed(capture.offset(rank)),
        events: 0,
    };
    gpu::head(&mut file, rank);
    let cuda = capture.options.device == Device::Cuda;
    let mut workers: [Vec<(Record, u32)>; THREADS] = Default::default();
    // Repeat the run for every thread with many records, so that only a few records are in memory.
    for pass in 0..1 + 2 * u8::from(cuda) {
        let mut records = Records::new(program, pass == 2);
        let mut clock = capture.clock(rank);
        let mut again = Again(&capture.outcome.histories[rank as usize]);
        for step in 0..capture.options.steps {
            assert!(clock.run(program, &mut again, &mut records));
            records.finish();
            if pass == 2 {
                gpu::step(&mut file, &records, rank, step)?;
                records.clear();
                continue;
            }
            for record in records.list.iter().filter(|record| record.op != ROOT) {
                if record.thread == pass {
                    file.record(record, step);
                    file.out.pass()?;
                } else if pass == 0 && record.thread > 1 {
                    workers[usize::from(record.thread)].push((*record, step));
                }
            }
            records.clear();
        }
        if pass == 0 {
            for (record, step) in workers.iter().flatten() {
                file.record(record, *step);
                file.out.pass()?;
            }
        }
    }
    let last = capture.outcome.tallies[rank as usize].last;
    gpu::tail(&mut file, rank, last);
    file.out.finish()
}
