//! Tests damaged traces: edits never panic, and a trace that can be replayed before an edit can be replayed after it.

use super::rig::{case_path, read_job_traces};
use crate::harness::edit;
use proptest::prelude::*;
use std::sync::LazyLock;

static TRACES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(read_first_records_of_real_traces);

/// Returns the first complete records of real traces.
fn read_first_records_of_real_traces() -> Vec<Vec<u8>> {
    let mut found: Vec<Vec<u8>> = Vec::new();
    for name in ["ddp-resnet18", "data-parallel-8", "deadlock-2", "hiermem"] {
        for trace in read_job_traces(&case_path(name)) {
            let mut frames = chakram::internals::FrameCursor::new(&trace);
            let mut end = 0;
            for _ in 0..60 {
                if let Some(record) = frames.next_record().unwrap() {
                    end = record.offset + record.bytes.len();
                }
            }
            found.push(trace[..end].to_vec());
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn damaged_traces_are_edited_or_refused(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        let mut trace = TRACES[which.index(TRACES.len())].clone();
        for (at, byte) in changes {
            let at = at.index(trace.len());
            trace[at] = byte;
        }
        if let Some(cut) = cut {
            trace.truncate(cut.index(trace.len()));
        }
        edit::check_slicing_and_anonymising_bytes(&trace);
    }
}
