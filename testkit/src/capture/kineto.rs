//! Writes Kineto's file: first the host's threads, one after another, then the device.

use super::host::autograd_sequence_number_in_step;
use super::meet::RankCommunicationHistoryReplay;
use super::out::{BufferedOutput, number_placeholder_value_in_step};
use super::program::{AutogradRole, StepProgram};
use super::records::{HostRecord, ROOT, StepRecords};
use super::{Device, EPOCH, PID, SimulatedJobCaptureWriter, gpu};
use std::io::{Result, Write};

/// Maximum number of host threads: two threads of the program, and four Gloo workers.
const THREADS: usize = 6;

/// A file under construction.
pub(super) struct KinetoFileWriter<'c, W: Write> {
    pub out: BufferedOutput<W>,
    pub capture: &'c SimulatedJobCaptureWriter,
    pub program: &'c StepProgram,
    pub pid: u64,
    /// Clock offset of the rank, ns.
    pub clock: u64,
    events: u64,
}

impl<W: Write> KinetoFileWriter<'_, W> {
    /// Writes a time of the job, converted to the file's clock and unit.
    pub(super) fn write_time(&mut self, ns: u64) {
        self.out.write_microseconds(self.clock + ns);
    }

    /// Returns the operating system's id of a thread.
    pub(super) fn thread_id(&self, thread: u8) -> u64 {
        // The job creates tensor-parallel groups first, and each group starts its workers when the
        // job creates it.
        let order = [0, 1, 4, 5, 2, 3];
        match thread {
            0 => self.pid,
            other => self.pid + 100_000 + order[usize::from(other)],
        }
    }

    /// Writes the beginning of an event, up to and including its name.
    pub(super) fn open_event(&mut self, category: &str, name: &str) {
        self.out
            .write_str("  {\n    \"ph\": \"X\",\n    \"cat\": \"");
        self.out.write_str(category);
        self.out.write_str("\",\n    \"name\": \"");
        self.out.write_str(name);
    }

    /// Writes the part of an event between its name and its arguments.
    pub(super) fn write_thread_and_times(&mut self, pid: u64, tid: u64, start: u64, ns: u64) {
        self.out.write_str("\",\n    \"pid\": ");
        self.out.write_number(pid);
        self.out.write_str(",\n    \"tid\": ");
        self.out.write_number(tid);
        self.out.write_str(",\n    \"ts\": ");
        self.write_time(start);
        self.out.write_str(",\n    \"dur\": ");
        self.out.write_microseconds(ns);
        self.out.write_str("\n    ,\n    \"args\": {\n      ");
    }

    /// Writes the end of an event.
    pub(super) fn close_event(&mut self) {
        self.out.write_str("\n    }\n  },\n");
    }

    /// Writes one end of a flow arrow.
    pub(super) fn write_flow_arrow_end(
        &mut self,
        category: &str,
        end: bool,
        id: u64,
        pid: u64,
        tid: u64,
        at: u64,
    ) {
        let phase = if end { "f" } else { "s" };
        self.out.write_str("  {\n    \"ph\": \"");
        self.out.write_str(phase);
        self.out.write_str("\",\n    \"id\": ");
        self.out.write_number(id);
        self.out.write_str(",\n    \"pid\": ");
        self.out.write_number(pid);
        self.out.write_str(",\n    \"tid\": ");
        self.out.write_number(tid);
        self.out.write_str(",\n    \"ts\": ");
        self.write_time(at);
        for title in [",\n    \"cat\": \"", "\",\n    \"name\": \""] {
            self.out.write_str(title);
            self.out.write_str(category);
        }
        self.out.write_str("\"\n    ");
        if end {
            self.out.write_str(", \"bp\": \"e\"");
        }
        self.out.write_str("\n  },\n");
    }

    /// Writes the fields of an operator that come from autograd.
    fn write_autograd_fields(&mut self, before: &str, seq: Option<u64>, forward: bool) {
        let Some(seq) = seq else { return };
        self.out.write_str(before);
        self.out.write_str("\"Sequence number\": ");
        self.out.write_number(seq);
        self.out.write_str(", \"Fwd thread id\": ");
        self.out.write_number(u64::from(!forward));
    }

    fn write_operator_or_annotation_event(&mut self, record: &HostRecord, step: u32) {
        let program = self.program;
        let op = &program.ops[record.op as usize];
        let template = &program.templates[op.template as usize];
        let number = number_placeholder_value_in_step(op, step);
        let category = match template.role {
            AutogradRole::Annotation => "user_annotation",
            _ => "cpu_op",
        };
        self.open_event(category, "");
        self.out.write_text_with_number(&template.name, number);
        let tid = self.thread_id(record.thread);
        self.write_thread_and_times(self.pid, tid, record.start, record.end - record.start);
        self.out.write_str("\"External id\": ");
        self.out.write_number(record.external);
        let seq = op
            .seq
            .map(|seq| autograd_sequence_number_in_step(program, seq, step));
        let forward = template.role == AutogradRole::Forward;
        // Events with inputs list their arguments in a different order from events without inputs.
        if template.kineto[0].0.is_empty() {
            self.out.write_str(",\"Record function id\": ");
            self.out.write_number(record.rf);
            self.write_autograd_fields(", ", seq, forward);
        } else {
            self.write_autograd_fields(",", seq, forward);
            self.out.write_str(match seq {
                Some(_) => ", \"Record function id\": ",
                None => ",\"Record function id\": ",
            });
            self.out.write_number(record.rf);
            self.out.write_str(", ");
            self.out.write_text_with_number(&template.kineto, number);
        }
        self.out.write_str(", \"Ev Idx\": ");
        self.out.write_number(self.events);
        self.events += 1;
        self.close_event();
        if op.flow {
            let seq = op.seq.expect("what flows has a number");
            // The backward pass visits nodes in reverse order, so the last forward node comes first.
            let seqs = u64::from(program.seqs);
            let id = u64::from(step) * seqs + seqs - u64::from(seq);
            let end = template.role == AutogradRole::Backward;
            self.write_flow_arrow_end("fwdbwd", end, id, self.pid, tid, record.start);
        }
    }
}

/// Writes the file of `rank`.
pub(super) fn write_kineto_file(
    capture: &SimulatedJobCaptureWriter,
    rank: u32,
    sink: impl Write,
) -> Result<()> {
    let program = &capture.program_with_group_and_device_names(rank);
    let mut file = KinetoFileWriter {
        out: BufferedOutput::new(sink),
        capture,
        program,
        pid: PID + u64::from(rank),
        clock: EPOCH.saturating_add_signed(capture.clock_offset_ns(rank)),
        events: 0,
    };
    gpu::write_file_head_and_thread_names(&mut file, rank);
    let cuda = capture.options.device == Device::Cuda;
    let mut workers: [Vec<(HostRecord, u32)>; THREADS] = Default::default();
    // Run the rank once for every thread that has many records, so that only a few records are in
    // memory at a time.
    for pass in 0..1 + 2 * u8::from(cuda) {
        let mut records = StepRecords::new(program, pass == 2);
        let mut clock = capture.create_simulated_rank_clock(rank);
        let mut again = RankCommunicationHistoryReplay(&capture.outcome.histories[rank as usize]);
        for step in 0..capture.options.steps {
            assert!(clock.run_until_step_end_or_unknown_meeting(program, &mut again, &mut records));
            records.finish_step();
            if pass == 2 {
                gpu::write_gpu_step(&mut file, &records, rank, step)?;
                records.clear();
                continue;
            }
            for record in records.list.iter().filter(|record| record.op != ROOT) {
                if record.thread == pass {
                    file.write_operator_or_annotation_event(record, step);
                    file.out.flush_full_chunk()?;
                } else if pass == 0 && record.thread > 1 {
                    workers[usize::from(record.thread)].push((*record, step));
                }
            }
            records.clear();
        }
        if pass == 0 {
            for (record, step) in workers.iter().flatten() {
                file.write_operator_or_annotation_event(record, *step);
                file.out.flush_full_chunk()?;
            }
        }
    }
    let last = capture.outcome.tallies[rank as usize].last;
    gpu::write_last_events_and_file_end(&mut file, rank, last);
    file.out.flush_rest()
}
