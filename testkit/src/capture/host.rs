//! Writes the file of PyTorch's `ExecutionTraceObserver`.

use super::meet::RankCommunicationHistoryReplay;
use super::out::{BufferedOutput, number_placeholder_value_in_step, tensor_slots_of_operator};
use super::program::{AutogradRole, StepProgram};
use super::records::{HostRecord, ROOT, StepRecords};
use super::simulate::SimulatedRankState;
use super::{PID, SimulatedJobCaptureWriter};
use std::io::{Result, Write};

/// Autograd's first sequence number in the first captured step.
pub(super) const FIRST_SEQ: u64 = 540;

const BETWEEN: &str = ",\n      {\n";
const NONE: &str = "\"inputs\": {\"values\": [], \"shapes\": [], \"types\": [], \"strides\": []},\n        \
                    \"outputs\": {\"values\": [], \"shapes\": [], \"types\": [], \"strides\": []},\n";
const NO_SCHEMA: &str = ",{\"name\": \"op_schema\", \"type\": \"string\", \"value\": \"\"}\
                         ,{\"name\": \"kernel_backend\", \"type\": \"string\", \"value\": \"\"}\
                         ,{\"name\": \"kernel_file\", \"type\": \"string\", \"value\": \"\"}\
                         ,{\"name\": \"tensor_range\", \"type\": \"string\", \"value\": \"\"}";

/// Writes the file of `rank`.
pub(super) fn write_host_file(
    capture: &SimulatedJobCaptureWriter,
    rank: u32,
    sink: impl Write,
) -> Result<()> {
    let program = capture.program_with_group_and_device_names(rank);
    let history = &capture.outcome.histories[rank as usize];
    let mut records = StepRecords::new(&program, false);
    let mut clock = capture.create_simulated_rank_clock(rank);
    let mut out = BufferedOutput::new(sink);
    let start = 872_359;
    out.write_str("{\n  \"schema\": \"1.1.1-chakra.0.0.4\", \"pid\": ");
    out.write_number(PID + u64::from(rank));
    out.write_str(", \"time\": \"2026-11-20 10:32:10\", \"start_ts\": ");
    out.write_number(start);
    out.write_str(",\n  \"nodes\": [\n      {\n");
    write_thread_root_node(&mut out, "thread", 2, 1, 1);
    out.write_str(BETWEEN);
    write_groups(&mut out, capture, rank);
    for step in 0..capture.options.steps {
        assert!(clock.run_until_step_end_or_unknown_meeting(
            &program,
            &mut RankCommunicationHistoryReplay(history),
            &mut records
        ));
        records.finish_step();
        for record in &records.done {
            out.write_str(BETWEEN);
            let record = &records.list[*record as usize];
            match record.op {
                ROOT => write_thread_root_node(
                    &mut out,
                    "thread",
                    record.id,
                    1,
                    record.thread_in_host_file(),
                ),
                _ => write_node(&mut out, &program, &records, record, step),
            }
            out.flush_full_chunk()?;
        }
        records.clear();
    }
    out.write_str(BETWEEN);
    write_thread_root_node(&mut out, "process", 1, 1, 0);
    out.write_str("\n  ],\n  \"finish_ts\": ");
    out.write_number(start + SimulatedRankState::current_time(&clock) / 1_000_000);
    out.write_str("\n}");
    out.flush_rest()
}

fn write_node_id_and_name_start(out: &mut BufferedOutput<impl Write>, id: u64) {
    out.write_str("        \"id\": ");
    out.write_number(id);
    out.write_str(", \"name\": \"");
}

fn write_parent_id(out: &mut BufferedOutput<impl Write>, parent: u64) {
    out.write_str("\", \"ctrl_deps\": ");
    out.write_number(parent);
    out.write_str(",\n        ");
}

/// Writes the attributes that all nodes have, up to and including the schema.
fn write_attributes(
    out: &mut BufferedOutput<impl Write>,
    rf: u64,
    fw_parent: u64,
    seq: Option<u64>,
    rest: [u8; 3],
) {
    out.write_str("        \"attrs\": [{\"name\": \"rf_id\", \"type\": \"uint64\", \"value\": ");
    out.write_number(rf);
    out.write_str("},{\"name\": \"fw_parent\", \"type\": \"uint64\", \"value\": ");
    out.write_number(fw_parent);
    out.write_str("},{\"name\": \"seq_id\", \"type\": \"int64\", \"value\": ");
    match seq {
        Some(seq) => out.write_number(seq),
        None => out.write_str("-1"),
    }
    let [scope, tid, fw_tid] = rest;
    out.write_str("},{\"name\": \"scope\", \"type\": \"uint64\", \"value\": ");
    out.write_number(scope.into());
    out.write_str("},{\"name\": \"tid\", \"type\": \"uint64\", \"value\": ");
    out.write_number(tid.into());
    out.write_str("},{\"name\": \"fw_tid\", \"type\": \"uint64\", \"value\": ");
    out.write_number(fw_tid.into());
    out.write_str("}");
}

/// Writes the root node of a thread or of the process.
fn write_thread_root_node(
    out: &mut BufferedOutput<impl Write>,
    what: &str,
    id: u64,
    above: u64,
    tid: u8,
) {
    write_node_id_and_name_start(out, id);
    out.write_str("[pytorch|profiler|execution_trace|");
    out.write_str(what);
    out.write_str("]");
    write_parent_id(out, above);
    out.write_str(NONE);
    write_attributes(out, 0, 0, None, [7, tid, 0]);
    out.write_str(NO_SCHEMA);
    out.write_str("]\n      }");
}

/// Writes the list of process groups.
fn write_groups(
    out: &mut BufferedOutput<impl Write>,
    capture: &SimulatedJobCaptureWriter,
    rank: u32,
) {
    write_node_id_and_name_start(out, 3);
    out.write_str("## process_group:init ##");
    write_parent_id(out, 2);
    out.write_str("\"inputs\": {\"values\": [\"[");
    for (i, group) in capture.layout.groups_of(rank).enumerate() {
        let ranks = match i {
            0 => "[]".to_owned(),
            _ => format!("{:?}", group.ranks),
        };
        let text = format!(
            "{}{{\\\"pg_name\\\": \\\"{}\\\", \\\"pg_desc\\\": \\\"{}\\\", \
             \\\"backend_config\\\": \\\"{}\\\", \\\"ranks\\\": {ranks}, \
             \\\"group_size\\\": {}, \\\"group_count\\\": {}}}",
            if i == 0 { "" } else { ", " },
            group.name,
            group.description,
            capture.options.device.list_backends(),
            group.ranks.len(),
            capture.layout.groups.len(),
        );
        out.write_str(&text);
    }
    out.write_str("]\"], \"shapes\": [[]], \"types\": [\"String\"], \"strides\": [[]]},\n        ");
    out.write_str(
        "\"outputs\": {\"values\": [], \"shapes\": [], \"types\": [], \"strides\": []},\n",
    );
    write_attributes(out, 1, 0, None, [7, 1, 0]);
    out.write_str(NO_SCHEMA);
    out.write_str("]\n      }");
}

fn write_node(
    out: &mut BufferedOutput<impl Write>,
    program: &StepProgram,
    records: &StepRecords<'_>,
    record: &HostRecord,
    step: u32,
) {
    let op = &program.ops[record.op as usize];
    let template = &program.templates[op.template as usize];
    let number = number_placeholder_value_in_step(op, step);
    write_node_id_and_name_start(out, record.id);
    out.write_text_with_number(&template.name, number);
    write_parent_id(out, record.parent);
    let ids = [&records.tensors[..], &records.storages];
    out.write_text_with_tensor_ids(
        &template.host,
        tensor_slots_of_operator(program, op),
        ids,
        number,
    );
    out.write_str(",\n");
    let scope = match template.role {
        AutogradRole::Annotation => 7,
        AutogradRole::Backward => 1,
        _ => 0,
    };
    let seq = (template.role != AutogradRole::Evaluate)
        .then_some(op.seq)
        .flatten();
    let seq = seq.map(|seq| autograd_sequence_number_in_step(program, seq, step));
    let fw_tid = u8::from(template.role == AutogradRole::Backward);
    write_attributes(
        out,
        record.rf,
        record.fw_parent,
        seq,
        [scope, record.thread_in_host_file(), fw_tid],
    );
    out.write_text_with_number(&template.attrs, number);
    out.write_str("]\n      }");
}

/// Returns the sequence number of autograd's node `seq` in `step`.
pub(super) fn autograd_sequence_number_in_step(program: &StepProgram, seq: u32, step: u32) -> u64 {
    FIRST_SEQ + u64::from(step) * u64::from(program.seqs) + u64::from(seq)
}
