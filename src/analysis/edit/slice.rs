//! Cuts a slice out of a job. The slice contains the nodes that an annotation covers, the nodes of a step, or the nodes
//! in a range of ids.
//!
//! # Nodes that an annotation covers
//!
//! A node *belongs* to the nodes named by its attributes `parent` and `launch`. An annotation covers the nodes with its
//! name, and all nodes that belong to a covered node. Nodes on other threads do not belong to an annotation, but its
//! time window may cover them. A node on another lane that belongs to no other node is covered if it starts within the
//! annotation's window. The window begins with the first covered node on the annotation's own lane, and ends with the
//! next uncovered node there. Nodes that belong to a node covered in this way are covered too.
//!
//! Traces without these attributes, such as traces from Chakra's own converter, express calls as control dependencies.
//! In such a trace, a node belongs to the target of its first control dependency; a device node that has none belongs
//! to the target of its first data dependency.
//!
//! Metadata nodes are always kept, because they declare groups.
//!
//! # Dependencies
//!
//! A dependency on a cut node is replaced by dependencies on the nearest kept nodes on which the cut node depends,
//! directly or through other cut nodes. A new dependency is a data dependency if the path to the kept node consists
//! only of data dependencies; otherwise it is a control dependency. A cut node that needs more than [`MOST_BEHIND`]
//! kept nodes as replacements becomes a *joint*: a node with the same id that does no work and depends on those kept
//! nodes. So the number of dependencies grows only by a constant factor.
//!
//! # Times
//!
//! Times are computed separately for each rank, without waiting for other ranks. A node starts when its delay after the
//! end of its last dependency has passed. A node takes its recorded duration plus its recorded waiting time. For traces
//! that chakram converted, the computed starts equal the captured starts exactly, to the nanosecond. Let `S` be the
//! earliest start of a selected node on any rank. Then a kept node starts at `start'(n) = max(0, start(n) - S)` and
//! gets the delay
//!
//! ```text
//! delay'(n) = start'(n) - max(0, end'(d) over its new dependencies d)
//! ```
//!
//! The delay is not negative, because the new dependencies of `n` had ended before `n` started. Relative starts
//! therefore stay as in the whole job, both within each rank and between ranks.

use chakram_base::units::Span;
use chakram_trace::format::encoder::ProtobufMessageBuilder;
use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::format::rewrite::{AttributeSetOrRemoval, RecordEdit};
use chakram_trace::format::wire::{FrameCursor, RawRecord};
use chakram_trace::format::work_amounts;
use chakram_trace::format::{Op, TraceError};
use chakram_trace::graph::RawTrace;

mod checked_trace;
mod close;
mod matching;
mod select;

pub use close::MOST_BEHIND;
pub use matching::{CommunicationsWithCutPartners, JobCommunication};
pub use select::AnnotationStepOrIdSelector;

use checked_trace::ReplayableTrace;
use close::TraceDependenciesAfterCut;

/// The nodes of one rank that a slice keeps.
#[derive(Debug)]
pub struct KeptNodesOfRank {
    rank: u32,
    /// One entry per node, sorted by id: true if the node is kept.
    kept: Vec<bool>,
    asked: Vec<bool>,
    first: Span,
}

/// Summary of one rank's slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankSliceSummary {
    /// Number of nodes in the whole trace.
    pub of: u64,
    /// Number of kept nodes.
    pub kept: u64,
    /// Number of joints, which do no work and replace cut nodes.
    pub joints: u64,
    /// Number of kept nodes with changed dependencies.
    pub mended: u64,
    /// True if control dependencies form a cycle; the slice then has no control dependencies.
    pub cyclic: bool,
    /// Start of the rank's first requested node, relative to the start of the job's slice.
    pub starts: Span,
    /// End of the rank's last requested node, relative to the start of the job's slice. This excludes time spent
    /// waiting for other ranks.
    pub ends: Span,
}

impl KeptNodesOfRank {
    /// Selects the nodes of `rank` to keep, and adds the rank's communication to `matches`. `groups` contains the
    /// groups that are declared outside the traces.
    ///
    /// Fails if the trace cannot be replayed, or if no node is selected.
    pub fn select_nodes_and_collect_communication(
        contents: &[u8],
        rank: u32,
        cut: &AnnotationStepOrIdSelector,
        groups: &DeclaredGroups,
        matches: &mut JobCommunication,
    ) -> Result<Self, TraceError> {
        let trace = ReplayableTrace::read_trace(contents)?;
        let asked = select::select_target_nodes(&trace, cut)?;
        let mut kept = asked.clone();
        for i in trace.raw.range_of_all_node_indices() {
            let item = &trace.raw.nodes[i as usize];
            // Keep metadata nodes, because they declare the groups that kept nodes use.
            kept[i as usize] |= item.view.op == Op::NoOp && is_metadata(item.record)?;
        }
        matches.add_rank(&trace, rank, &kept, groups)?;
        let starts = trace
            .raw
            .range_of_all_node_indices()
            .filter(|&i| asked[i as usize]);
        let first = starts.map(|i| trace.starts[i as usize]).min();
        Ok(Self {
            rank,
            kept,
            asked,
            first: first.unwrap_or(Span::ZERO),
        })
    }

    /// Returns the start of the first requested node.
    pub fn earliest_start(&self) -> Span {
        self.first
    }

    /// Also cuts communication nodes whose partners were cut on other ranks.
    pub fn cut_unmatched_communication(&mut self, unmatched: &CommunicationsWithCutPartners) {
        for &node in unmatched.unmatched_nodes_kept_by(self.rank) {
            self.kept[node as usize] = false;
            self.asked[node as usize] = false;
        }
    }

    /// Writes the slice of `contents`, which must be the trace used for the selection. `start` is the start of the
    /// job's slice.
    ///
    /// Fails if `contents` is a different trace.
    pub fn encode_slice_of_trace(
        &self,
        contents: &[u8],
        start: Span,
    ) -> Result<(Vec<u8>, RankSliceSummary), TraceError> {
        let trace = ReplayableTrace::read_trace(contents)?;
        if trace.raw.nodes.len() != self.kept.len() {
            return Err(TraceError::malformed_at(
                0,
                "the file changed while it was being read",
            ));
        }
        let closed = TraceDependenciesAfterCut::new(&trace, &self.kept);
        let written = SliceWriter {
            trace: &trace,
            part: self,
            closed: &closed,
            start,
        };
        written.encode_sliced_records(contents)
    }
}

fn is_metadata(record: RawRecord<'_>) -> Result<bool, TraceError> {
    Ok(super::node_type(record)? == super::METADATA)
}

struct SliceWriter<'w> {
    trace: &'w ReplayableTrace<'w>,
    part: &'w KeptNodesOfRank,
    closed: &'w TraceDependenciesAfterCut,
    start: Span,
}

impl SliceWriter<'_> {
    fn encode_sliced_records(
        &self,
        contents: &[u8],
    ) -> Result<(Vec<u8>, RankSliceSummary), TraceError> {
        let raw = &self.trace.raw;
        let (delays, mut sliced) = self.compute_kept_node_delays();
        let mut out = Vec::new();
        let mut record = ProtobufMessageBuilder::default();
        if let Some(first) = FrameCursor::new(contents).next_record()? {
            let ends = AttributeSetOrRemoval::Count(sliced.ends.0 / 1000);
            let ends = raw.metadata.captured.map(|_| ("captured_ns", ends));
            // Remove the amounts of work, because it is unknown how much is in the slice.
            let amounts = raw.metadata.amounts;
            let amounts = amounts.map(|_| (work_amounts::ATTRIBUTE, AttributeSetOrRemoval::Remove));
            let attributes: Vec<_> = ends.into_iter().chain(amounts).collect();
            let edit = RecordEdit {
                attributes: &attributes,
                ..RecordEdit::default()
            };
            edit.append_edited_record(first, &mut record, &mut out)?;
        }
        // Indices of nodes in file order.
        let mut place: Vec<u32> = raw.range_of_all_node_indices().collect();
        place.sort_unstable_by_key(|&i| raw.nodes[i as usize].record.number);
        let (mut control, mut data) = (Vec::new(), Vec::new());
        for i in place {
            let joint = self.closed.is_kept_as_joint(i);
            if !self.part.kept[i as usize] && !joint {
                continue;
            }
            let item = &raw.nodes[i as usize];
            let changed = self.closed.new_dependencies_if_changed(i);
            control.clear();
            data.clear();
            for &(on, order) in changed.unwrap_or(&[]) {
                let list = if order { &mut control } else { &mut data };
                list.push(raw.nodes[on as usize].view.id);
            }
            record.clear();
            if joint {
                sliced.joints += 1;
                record.append_varint(1, item.view.id);
                record.append_bytes(2, b"joint");
                record.append_packed(4, &control);
                record.append_packed(5, &data);
                record.append_frame_to(&mut out);
                continue;
            }
            sliced.kept += 1;
            sliced.mended += u64::from(changed.is_some());
            let delay = delays[i as usize];
            let attributes = [(
                "delay_ns",
                match delay {
                    Span::ZERO => AttributeSetOrRemoval::Remove,
                    delay => AttributeSetOrRemoval::Count(delay.0 / 1000),
                },
            )];
            let edit = RecordEdit {
                control: changed.map(|_| &control[..]),
                data: changed.map(|_| &data[..]),
                attributes: if delay == item.view.delay {
                    &[]
                } else {
                    &attributes
                },
                ..RecordEdit::default()
            };
            edit.append_edited_record(item.record, &mut record, &mut out)?;
        }
        Ok((out, sliced))
    }

    /// Returns the delay of each kept node, and a summary with the rank's start and end. Joints have no delay; a joint
    /// ends when its last dependency ends.
    fn compute_kept_node_delays(&self) -> (Vec<Span>, RankSliceSummary) {
        let raw: &RawTrace<'_> = &self.trace.raw;
        let mut delays = vec![Span::ZERO; raw.nodes.len()];
        let mut ends = vec![Span::ZERO; raw.nodes.len()];
        let mut sliced = RankSliceSummary {
            of: raw.nodes.len() as u64,
            cyclic: self.trace.cyclic,
            starts: Span::MAX,
            ..RankSliceSummary::default()
        };
        for &i in &self.trace.order {
            let (kept, joint) = (self.part.kept[i as usize], self.closed.is_kept_as_joint(i));
            if !kept && !joint {
                continue;
            }
            let waited = match self.closed.new_dependencies_if_changed(i) {
                Some(deps) => {
                    let deps = deps.iter().map(|&(on, _)| ends[on as usize]);
                    deps.max()
                }
                None => {
                    let deps = self
                        .trace
                        .enforced_dependencies(i)
                        .map(|on| ends[on.node as usize]);
                    deps.max()
                }
            };
            let waited = waited.unwrap_or(Span::ZERO);
            if joint {
                ends[i as usize] = waited;
                continue;
            }
            // Saturate, because kept metadata nodes may start before the slice.
            let from = Span(self.trace.starts[i as usize].0.saturating_sub(self.start.0));
            let end = from + raw.nodes[i as usize].view.recorded_duration_with_wait();
            delays[i as usize] = Span(from.0.saturating_sub(waited.0));
            ends[i as usize] = end;
            if self.part.asked[i as usize] {
                sliced.starts = sliced.starts.min(from);
                sliced.ends = sliced.ends.max(end);
            }
        }
        sliced.starts = sliced.starts.min(sliced.ends);
        (delays, sliced)
    }
}

#[cfg(test)]
mod tests;
