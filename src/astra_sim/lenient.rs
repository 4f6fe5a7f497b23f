//! Finds the records of a broken trace that ASTRA-sim silently skips: truncated records, records whose id a later
//! record repeats, and nodes that can never run.

use super::MisleadingValidInputNote;
use chakram_trace::format::TraceError;
use chakram_trace::format::scan::{self, DependencyVisitor};
use chakram_trace::format::wire::FrameCursor;
use std::collections::BTreeMap;

/// Data dependencies of a record, followed by its control dependencies.
#[derive(Debug, Default)]
struct RecordDataAndControlDependencies(Vec<u64>, Vec<u64>);

impl DependencyVisitor for RecordDataAndControlDependencies {
    fn visit_data_dependency(&mut self, id: u64) -> Result<(), TraceError> {
        self.0.push(id);
        Ok(())
    }

    fn visit_control_dependency(&mut self, id: u64) -> Result<(), TraceError> {
        self.1.push(id);
        Ok(())
    }
}

/// Returns the records of `contents` that ASTRA-sim runs. `file` is the trace's name in notes.
///
/// # Errors
///
/// Fails if a record is malformed.
pub(super) fn keep_runnable_records(
    contents: &[u8],
    file: &str,
    notes: &mut Vec<MisleadingValidInputNote>,
) -> Result<Vec<u8>, TraceError> {
    let mut note = |key: String, why: String| {
        notes.push(MisleadingValidInputNote::about_item_without_line(
            file, key, why,
        ))
    };
    let mut frames = FrameCursor::new(contents);
    let mut first = &contents[..0];
    // Each node's record and dependencies, by id.
    let mut nodes: BTreeMap<u64, (&[u8], RecordDataAndControlDependencies)> = BTreeMap::new();
    let mut start = 0;
    loop {
        let record = match frames.next_record() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(error) if start > 0 => {
                note(
                    format!("byte {start}"),
                    format!("the rest of the trace is left out: {error}"),
                );
                break;
            }
            Err(error) => return Err(error),
        };
        let end = record.offset + record.bytes.len();
        let frame = &contents[start..end];
        start = end;
        if first.is_empty() {
            first = frame;
            continue;
        }
        let mut ids = RecordDataAndControlDependencies::default();
        let id = scan::scan_node(record, &mut ids)?.id;
        if nodes.insert(id, (frame, ids)).is_some() {
            let why = "an earlier record with this id is left out".to_owned();
            note(format!("node {id}"), why);
        }
    }
    // A node can run if all its dependencies can run. `waiting` counts each node's remaining dependencies.
    let mut waiting: BTreeMap<u64, usize> = BTreeMap::new();
    let mut followers: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut ready = Vec::new();
    for (&id, (_, RecordDataAndControlDependencies(data, control))) in &nodes {
        // The node reader drops control dependencies on missing nodes with a note, so ignore them here.
        let control = control.iter().filter(|dep| nodes.contains_key(dep));
        let mut left = 0;
        for &dep in data.iter().chain(control) {
            followers.entry(dep).or_default().push(id);
            left += 1;
        }
        waiting.insert(id, left);
        if left == 0 {
            ready.push(id);
        }
    }
    while let Some(id) = ready.pop() {
        for follower in followers.get(&id).into_iter().flatten() {
            let left = waiting.get_mut(follower).expect("followers are nodes");
            *left -= 1;
            if *left == 0 {
                ready.push(*follower);
            }
        }
    }
    let mut kept = first.to_vec();
    for (id, (frame, RecordDataAndControlDependencies(data, _))) in &nodes {
        if waiting[id] == 0 {
            kept.extend_from_slice(frame);
            continue;
        }
        if let Some(gone) = data.iter().find(|dep| !nodes.contains_key(dep)) {
            return Err(TraceError::invalid_node(
                *id,
                format!("the node depends on node {gone}, which does not exist"),
                "capture or convert the trace again; it is incomplete",
            ));
        }
        let why =
            "never runs: the node is on a cycle of dependencies, or depends on one".to_owned();
        note(format!("node {id}"), why);
    }
    Ok(kept)
}
