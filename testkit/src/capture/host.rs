//! Writes the file of PyTorch's `ExecutionTraceObserver`.

use super::meet::Again;
use super::out::{Out, number, slots};
use super::program::{Program, Role};
use super::records::{ROOT, Record, Records};
use super::simulate::Clock;
use super::{Capture, PID};
use std::io::{Result, Write};

/// Autograd's first sequence number in the first recorded step.
pub(super) const FIRST_SEQ: u64 = 540;

const BETWEEN: &str = ",\n      {\n";
const NONE: &str = "\"inputs\": {\"values\": [], \"shapes\": [], \"types\": [], \"strides\": []},\n        \
                    \"outputs\": {\"values\": [], \"shapes\": [], \"types\": [], \"strides\": []},\n";
const NO_SCHEMA: &str = ",{\"name\": \"op_schema\", \"type\": \"string\", \"value\": \"\"}\
                         ,{\"name\": \"kernel_backend\", \"type\": \"string\", \"value\": \"\"}\
                         ,{\"name\": \"kernel_file\", \"type\": \"string\", \"value\": \"\"}\
                         ,{\"name\": \"tensor_range\", \"type\": \"string\", \"value\": \"\"}";

/// Writes the file of `rank`.
pub(super) fn write(capture: &Capture, rank: u32, sink: impl Write) -> Result<()> {
    let program = capture.program(rank);
    let history = &capture.outcome.histories[rank as usize];
    let mut records = Records::new(&program, false);
    let mut clock = capture.clock(rank);
    let mut out = Out::new(sink);
    let start = 872_359;
    out.str("{\n  \"schema\": \"1.1.1-chakra.0.0.4\", \"pid\": ");
    out.number(PID + u64::from(rank));
    out.str(", \"time\": \"2026-11-20 10:32:10\", \"start_ts\": ");
    out.number(start);
    out.str(",\n  \"nodes\": [\n      {\n");
    thread(&mut out, "thread", 2, 1, 1);
    out.str(BETWEEN);
    groups(&mut out, capture, rank);
    for step in 0..capture.options.steps {
        assert!(clock.run(&program, &mut Again(history), &mut records));
        records.finish();
        for record in &records.done {
            out.str(BETWEEN);
            let record = &records.list[*record as usize];
            match record.op {
                ROOT => thread(&mut out, "thread", record.id, 1, record.host_thread()),
                _ => node(&mut out, &program, &records, record, step),
            }
            out.pass()?;
        }
        records.clear();
    }
    out.str(BETWEEN);
    thread(&mut out, "process", 1, 1, 0);
    out.str("\n  ],\n  \"finish_ts\": ");
    out.number(start + Clock::now(&clock) / 1_000_000);
    out.str("\n}");
    out.finish()
}

fn head(out: &mut Out<impl Write>, id: u64) {
    out.str("        \"id\": ");
    out.number(id);
    out.str(", \"name\": \"");
}

fn parent(out: &mut Out<impl Write>, parent: u64) {
    out.str("\", \"ctrl_deps\": ");
    out.number(parent);
    out.str(",\n        ");
}

/// Writes the attributes that all nodes have, up to and including the schema.
fn attrs(out: &mut Out<impl Write>, rf: u64, fw_parent: u64, seq: Option<u64>, rest: [u8; 3]) {
    out.str("        \"attrs\": [{\"name\": \"rf_id\", \"type\": \"uint64\", \"value\": ");
    out.number(rf);
    out.str("},{\"name\": \"fw_parent\", \"type\": \"uint64\", \"value\": ");
    out.number(fw_parent);
    out.str("},{\"name\": \"seq_id\", \"type\": \"int64\", \"value\": ");
    match seq {
        Some(seq) => out.number(seq),
        None => out.str("-1"),
    }
    let [scope, tid, fw_tid] = rest;
    out.str("},{\"name\": \"scope\", \"type\": \"uint64\", \"value\": ");
    out.number(scope.into());
    out.str("},{\"name\": \"tid\", \"type\": \"uint64\", \"value\": ");
    out.number(tid.into());
    out.str("},{\"name\": \"fw_tid\", \"type\": \"uint64\", \"value\": ");
    out.number(fw_tid.into());
    out.str("}");
}

/// Writes the root node of a thread or of the process.
fn thread(out: &mut Out<impl Write>, what: &str, id: u64, above: u64, tid: u8) {
    head(out, id);
    out.str("[pytorch|profiler|execution_trace|");
    out.str(what);
    out.str("]");
    parent(out, above);
    out.str(NONE);
    attrs(out, 0, 0, None, [7, tid, 0]);
    out.str(NO_SCHEMA);
    out.str("]\n      }");
}

/// Writes the list of process groups.
fn groups(out: &mut Out<impl Write>, capture: &Capture, rank: u32) {
    head(out, 3);
    out.str("## process_group:init ##");
    parent(out, 2);
    out.str("\"inputs\": {\"values\": [\"[");
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
            capture.options.device.backends(),
            group.ranks.len(),
            capture.layout.groups.len(),
        );
        out.str(&text);
    }
    out.str("]\"], \"shapes\": [[]], \"types\": [\"String\"], \"strides\": [[]]},\n        ");
    out.str("\"outputs\": {\"values\": [], \"shapes\": [], \"types\": [], \"strides\": []},\n");
    attrs(out, 1, 0, None, [7, 1, 0]);
    out.str(NO_SCHEMA);
    out.str("]\n      }");
}

fn node(
    out: &mut Out<impl Write>,
    program: &Program,
    records: &Records<'_>,
    record: &Record,
    step: u32,
) {
    let op = &program.ops[record.op as usize];
    let template = &program.templates[op.template as usize];
    let number = number(op, step);
    head(out, record.id);
    out.numbered(&template.name, number);
    parent(out, record.parent);
    let ids = [&records.tensors[..], &records.storages];
    out.filled(&template.host, slots(program, op), ids, number);
    out.str(",\n");
    let scope = match template.role {
        Role::Annotation => 7,
        Role::Backward => 1,
        _ => 0,
    };
    let seq = (template.role != Role::Evaluate)
        .then_some(op.seq)
        .flatten();
    let seq = seq.map(|seq| sequence(program, seq, step));
    let fw_tid = u8::from(template.role == Role::Backward);
    attrs(
        out,
        record.rf,
        record.fw_parent,
        seq,
        [scope, record.host_thread(), fw_tid],
    );
    out.numbered(&template.attrs, number);
    out.str("]\n      }");
}

/// Returns the sequence number of an autograd node.
pub(super) fn sequence(program: &Program, seq: u32, step: u32) -> u64 {
    FIRST_SEQ + u64::from(step) * u64::from(program.seqs) + u64::from(seq)
}
