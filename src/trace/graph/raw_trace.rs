//! Lenient reader that keeps a trace together with all its errors.
//!
//! A [`Graph`](super::Graph) can be replayed, and its reader stops at the first error. A raw trace is for inspection
//! instead: it contains every recoverable node, the dependencies exactly as stated, and a list of the unreadable parts.
//! It borrows names and records from the file's contents, and takes 16 bytes for each dependency. Each node takes 40
//! bytes plus the data that the reader [keeps](KeptNodeContentSelector). By default, the reader keeps nearly everything
//! (about 200 bytes).

use super::{Csr, NodeIdMap, huge_pages};
use crate::format::scan::{self, NodeView, TraceMetadata};
use crate::format::wire::{FrameCursor, RawRecord};
use crate::format::{NodeMemoryChanges, TraceError};
use std::ops::Range;

mod view;

pub use view::CompactRawNodeView;

/// A dependency, as a node states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredecessorIdIndexAndKind {
    /// Id of the predecessor.
    pub id: u64,
    /// Index of the predecessor in [`RawTrace::nodes`] (the first node with this id), or
    /// [`PredecessorIdIndexAndKind::MISSING`] if there is none.
    pub node: u32,
    /// True for a control dependency (order only), false for a data dependency.
    pub control: bool,
}

impl PredecessorIdIndexAndKind {
    /// Stands for the index of a missing node.
    pub const MISSING: u32 = u32::MAX;

    /// Returns the index of the predecessor, or `None` if it is missing.
    #[inline]
    pub fn target(&self) -> Option<u32> {
        (self.node != Self::MISSING).then_some(self.node)
    }
}

/// Selects which data of each node a raw trace keeps. Keeping less data makes reading faster, because a large trace
/// exceeds the CPU's caches.
pub trait KeptNodeContentSelector<'a>: Default {
    /// The data kept for each node.
    type Kept: Copy;

    /// Returns the data to keep for a node; `view` is the node's decoded record. If the record is invalid, `view`
    /// contains the recovered part: an [`Op::NoOp`](crate::format::Op::NoOp) with the id, name and dependencies.
    fn select_node_data_to_keep(&mut self, view: &NodeView<'a>) -> Self::Kept;

    /// Returns the node's id from the kept data.
    fn node_id(kept: &Self::Kept) -> u64;
}

/// Keeps nearly all fields of each record, as a [`CompactRawNodeView`].
#[derive(Debug, Default)]
pub struct FullRecordRetention;

impl<'a> KeptNodeContentSelector<'a> for FullRecordRetention {
    type Kept = CompactRawNodeView<'a>;

    #[inline]
    fn select_node_data_to_keep(&mut self, view: &NodeView<'a>) -> CompactRawNodeView<'a> {
        CompactRawNodeView::from(view)
    }

    #[inline]
    fn node_id(view: &CompactRawNodeView<'a>) -> u64 {
        view.id
    }
}

/// The data kept for a node, and the record from which it was read.
#[derive(Clone, Copy, Debug)]
pub struct RawTraceNode<'a, V = CompactRawNodeView<'a>> {
    /// The data kept from the record.
    pub view: V,
    /// The undecoded record.
    pub record: RawRecord<'a>,
    /// Range in which [`RawTrace`]'s list contains the node's dependencies.
    deps: (u32, u32),
}

/// A record or dependency that is unreadable or invalid.
#[derive(Debug)]
pub struct ReadFault {
    /// Index of the node in [`RawTrace::nodes`], if the reader kept a node.
    pub node: Option<u32>,
    /// The error, with its location in the file.
    pub error: TraceError,
}

/// The trace of one rank, valid or not. Nodes are sorted by id, and nodes with equal ids keep the file's order.
#[derive(Debug)]
pub struct RawTrace<'a, K: KeptNodeContentSelector<'a> = FullRecordRetention> {
    /// Metadata record.
    pub metadata: TraceMetadata,
    /// Nodes of the trace.
    pub nodes: Vec<RawTraceNode<'a, K::Kept>>,
    /// State that the retention keeps once for all nodes.
    pub retained: K,
    /// Errors, in file order.
    pub faults: Vec<ReadFault>,
    /// Memory changes of nodes, in ascending order of indices in `nodes`.
    pub memory: Vec<(u32, NodeMemoryChanges)>,
    deps: Vec<PredecessorIdIndexAndKind>,
    index_of: NodeIdMap,
    unsorted: bool,
}

/// Lower bound for the average record size in bytes, which holds for nearly all files.
const USUAL_RECORD: usize = 64;

/// Builds the fault for a run of zero bytes, which a file system may leave at the end of a file if its writer died. A
/// single zero byte is a valid empty record: a node with default values. Several in a row are damage, which is reported
/// as one fault instead of one per byte.
#[cold]
fn zero_bytes_fault(record: RawRecord<'_>) -> ReadFault {
    let found = "found zero bytes (a second empty record in a row), expected a node";
    let error = TraceError::malformed_at(record.offset, found);
    ReadFault {
        node: None,
        error: error.in_record(record.number, record.offset),
    }
}

/// Collects the dependencies of a record.
struct OneRecordDependencyCollector<'d>(&'d mut Vec<PredecessorIdIndexAndKind>);

impl OneRecordDependencyCollector<'_> {
    fn push(&mut self, id: u64, control: bool) {
        self.0.push(PredecessorIdIndexAndKind {
            id,
            node: PredecessorIdIndexAndKind::MISSING,
            control,
        });
    }
}

impl scan::DependencyVisitor for OneRecordDependencyCollector<'_> {
    fn visit_data_dependency(&mut self, id: u64) -> Result<(), TraceError> {
        self.push(id, false);
        Ok(())
    }

    fn visit_control_dependency(&mut self, id: u64) -> Result<(), TraceError> {
        self.push(id, true);
        Ok(())
    }
}

impl<'a> RawTrace<'a> {
    /// Reads the decompressed contents of a trace file. Adds errors to [`faults`](Self::faults). A truncated file
    /// yields the nodes before the break.
    pub fn read_trace(contents: &'a [u8]) -> Self {
        Self::read_trace_keeping_selected_data(contents)
    }
}

impl<'a, K: KeptNodeContentSelector<'a>> RawTrace<'a, K> {
    /// Maximum number of nodes or dependencies, because indices have 32 bits.
    const MOST: usize = (u32::MAX - 1) as usize;

    /// Reads a trace like [`RawTrace::read_trace`], but keeps the data that `K` selects.
    pub fn read_trace_keeping_selected_data(contents: &'a [u8]) -> Self {
        let mut raw = Self {
            metadata: TraceMetadata::default(),
            nodes: huge_pages::huge_page_vec(contents.len() / USUAL_RECORD),
            retained: K::default(),
            faults: Vec::new(),
            memory: Vec::new(),
            deps: huge_pages::huge_page_vec(contents.len() / USUAL_RECORD),
            // A node with an id takes at least 3 bytes, so ids are below this limit if they are dense.
            index_of: NodeIdMap::new((contents.len() as u64 / 3).max(1024)),
            unsorted: false,
        };
        let mut frames = FrameCursor::new(contents);
        let mut after_empty = false;
        loop {
            let record = match frames.next_record() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(error) => {
                    raw.faults.push(ReadFault { node: None, error });
                    break;
                }
            };
            if record.number == 0 {
                match scan::read_metadata(record) {
                    Ok(metadata) => raw.metadata = metadata,
                    Err(error) => raw.faults.push(ReadFault { node: None, error }),
                }
            } else if after_empty && record.bytes.is_empty() {
                raw.faults.push(zero_bytes_fault(record));
                break;
            } else if !raw.add_node(record) {
                break;
            }
            after_empty = record.number > 0 && record.bytes.is_empty();
        }
        if contents.is_empty() {
            let error = TraceError::malformed_at(0, "the file is empty");
            raw.faults.push(ReadFault { node: None, error });
        }
        raw.sort_nodes_and_resolve_dependencies();
        raw
    }

    /// Adds the node in `record`. Returns false if the trace is full.
    fn add_node(&mut self, record: RawRecord<'a>) -> bool {
        let from = self.deps.len();
        // Each dependency takes at least one byte of its record, so a record has at most as many dependencies as bytes.
        if self.nodes.len() >= Self::MOST || from + record.bytes.len() >= Self::MOST {
            let error = TraceError::malformed_at(
                record.offset,
                "more nodes or dependencies than 32-bit indices can address",
            );
            self.faults.push(ReadFault { node: None, error });
            return false;
        }
        let index = self.nodes.len() as u32;
        let view = match scan::scan_node(record, &mut OneRecordDependencyCollector(&mut self.deps))
        {
            Ok(view) => {
                if !view.memory.is_none() {
                    self.memory.push((index, view.memory));
                }
                self.retained.select_node_data_to_keep(&view)
            }
            Err(error) => {
                // The failed scan may have pushed dependencies, and the recovery below pushes them again.
                self.deps.truncate(from);
                self.faults.push(ReadFault {
                    node: Some(index),
                    error,
                });
                let view = scan::recover_partial_node(
                    record,
                    &mut OneRecordDependencyCollector(&mut self.deps),
                );
                self.retained.select_node_data_to_keep(&view)
            }
        };
        // Look up the id while the node is in the cache: a second pass over all nodes would take 10 % longer.
        let id = K::node_id(&view);
        let last = self.nodes.last().map_or(0, |last| K::node_id(&last.view));
        self.unsorted |= id < last;
        self.index_of.insert_if_absent(id, index);
        self.nodes.push(RawTraceNode {
            view,
            record,
            deps: (from as u32, self.deps.len() as u32),
        });
        true
    }

    /// Sorts the nodes by id, and resolves the predecessors of dependencies.
    fn sort_nodes_and_resolve_dependencies(&mut self) {
        if self.unsorted {
            let mut place: Vec<u32> = self.range_of_all_node_indices().collect();
            place.sort_by_key(|&i| K::node_id(&self.nodes[i as usize].view));
            self.nodes = place.iter().map(|&i| self.nodes[i as usize]).collect();
            let mut new = vec![0_u32; place.len()];
            for (to, &from) in place.iter().enumerate() {
                new[from as usize] = to as u32;
            }
            for node in self.faults.iter_mut().filter_map(|f| f.node.as_mut()) {
                *node = new[*node as usize];
            }
            for (node, _) in &mut self.memory {
                *node = new[*node as usize];
            }
            self.memory.sort_by_key(|(node, _)| *node);
            self.index_of.replace_node_indices(&new);
        }
        for dep in &mut self.deps {
            dep.node = self
                .index_of
                .get(dep.id)
                .unwrap_or(PredecessorIdIndexAndKind::MISSING);
        }
    }

    /// Replaces each fault's error by the error that `told` returns. `told` adds the file or, for converted contents,
    /// the location in the original file.
    pub fn map_fault_errors(&mut self, told: impl Fn(TraceError) -> TraceError) {
        for fault in std::mem::take(&mut self.faults) {
            self.faults.push(ReadFault {
                error: told(fault.error),
                ..fault
            });
        }
    }

    /// Returns the index of the first node with this id.
    pub fn find_node(&self, id: u64) -> Option<u32> {
        self.index_of.get(id)
    }

    /// Returns node `i`'s dependencies, as its record states them.
    #[inline]
    pub fn dependencies_of(&self, i: u32) -> &[PredecessorIdIndexAndKind] {
        let (from, to) = self.nodes[i as usize].deps;
        &self.deps[from as usize..to as usize]
    }

    /// Returns the number of dependencies.
    pub fn total_dependency_count(&self) -> usize {
        self.deps.len()
    }

    /// Returns each node's successors in ascending order. A dependency is included only if its predecessor exists and
    /// `holds(successor, dependency)` is true.
    pub fn build_successors(
        &self,
        mut holds: impl FnMut(u32, &PredecessorIdIndexAndKind) -> bool,
    ) -> Csr {
        let all = 0..self.nodes.len() as u32;
        Csr::new(self.nodes.len(), |each| {
            for node in all.clone() {
                for dep in self.dependencies_of(node) {
                    if dep.node != PredecessorIdIndexAndKind::MISSING && holds(node, dep) {
                        each(dep.node, node);
                    }
                }
            }
        })
    }

    /// Returns the indices of all nodes.
    pub fn range_of_all_node_indices(&self) -> Range<u32> {
        0..self.nodes.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::proto::{GlobalMetadata, Node};
    use prost::Message;

    fn encode_trace(nodes: &[Node]) -> Vec<u8> {
        let mut file = GlobalMetadata::default().encode_length_delimited_to_vec();
        for node in nodes {
            file.extend(node.encode_length_delimited_to_vec());
        }
        file
    }

    fn build_kernel_node_with_dependencies(id: u64, data: &[u64], control: &[u64]) -> Node {
        Node {
            id,
            name: format!("n{id}"),
            r#type: 4,
            data_deps: data.to_vec(),
            ctrl_deps: control.to_vec(),
            ..Node::default()
        }
    }

    #[test]
    fn raw_trace_keeps_later_missing_and_own_dependencies() {
        // The nodes are not in order of ids. One refers to a later node, one to a missing node, and one to itself.
        let contents = encode_trace(&[
            build_kernel_node_with_dependencies(7, &[9, 3], &[]),
            build_kernel_node_with_dependencies(3, &[3], &[100]),
            build_kernel_node_with_dependencies(9, &[], &[3]),
        ]);
        let raw = RawTrace::read_trace(&contents);
        assert!(raw.faults.is_empty());
        let ids: Vec<u64> = raw.nodes.iter().map(|n| n.view.id).collect();
        assert_eq!(ids, [3, 7, 9]);
        let deps = |i: u32| -> Vec<(u64, Option<u32>, bool)> {
            let deps = raw.dependencies_of(i).iter();
            deps.map(|d| (d.id, d.target(), d.control)).collect()
        };
        assert_eq!(deps(0), [(100, None, true), (3, Some(0), false)]);
        assert_eq!(deps(1), [(9, Some(2), false), (3, Some(0), false)]);
        assert_eq!(deps(2), [(3, Some(0), true)]);
        let rows = raw.build_successors(|node, dep| dep.node != node);
        assert_eq!(
            (rows.row(0), rows.row(1), rows.row(2)),
            (&[1, 2][..], &[][..], &[1][..])
        );
        assert_eq!(raw.find_node(9), Some(2));
        assert_eq!(raw.find_node(4), None);
    }

    #[test]
    fn a_trace_ends_with_a_fault_at_its_second_consecutive_empty_record() {
        // A node with default values is an empty record. Reading stops at the second of two consecutive empty records.
        let mut contents = encode_trace(&[
            build_kernel_node_with_dependencies(1, &[], &[]),
            Node::default(),
        ]);
        assert_eq!(RawTrace::read_trace(&contents).nodes.len(), 2);
        contents.extend([0; 1000]);
        let raw = RawTrace::read_trace(&contents);
        assert_eq!((raw.nodes.len(), raw.faults.len()), (2, 1));
        let told = raw.faults[0].error.to_string();
        assert!(
            told.contains("record 3") && told.contains("zero bytes"),
            "{told}"
        );
    }

    #[test]
    fn unreadable_records_are_reported_and_the_rest_is_kept() {
        // The file contains a send without a peer and a second node 5, and is then truncated.
        let send = Node {
            r#type: 5,
            ..build_kernel_node_with_dependencies(5, &[1], &[])
        };
        let mut contents = encode_trace(&[
            build_kernel_node_with_dependencies(1, &[], &[]),
            send,
            build_kernel_node_with_dependencies(5, &[1], &[]),
        ]);
        contents.extend([9, 8]);
        let raw = RawTrace::read_trace(&contents);
        let ids: Vec<u64> = raw.nodes.iter().map(|n| n.view.id).collect();
        assert_eq!(ids, [1, 5, 5]);
        assert_eq!(raw.dependencies_of(1).len(), 1);
        assert_eq!(raw.find_node(5), Some(1));
        let faults: Vec<_> = raw.faults.iter().map(|f| f.node).collect();
        assert_eq!(faults, [Some(1), None]);
        let told = raw.faults[0].error.to_string();
        assert!(
            told.contains("record 2") && told.contains("comm_dst"),
            "{told}"
        );
        let told = raw.faults[1].error.to_string();
        assert!(
            told.contains("record 4") && told.contains("truncated"),
            "{told}"
        );
    }
}
