//! The data that a raw trace keeps from a node's record.

use crate::format::Op;
use crate::format::scan::NodeView;
use chakram_base::units::Span;

/// A compact [`NodeView`] that omits rare fields, because raw traces keep millions of views.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactRawNodeView<'a> {
    /// Id of the node in the file.
    pub id: u64,
    /// Name of the node.
    pub name: &'a str,
    /// Operation of the node.
    pub op: Op<'a>,
    /// Stream or thread, if the trace names one.
    pub lane: Option<i64>,
    /// Duration of the node in the recorded run.
    pub recorded: Span,
    /// The schema's duration field, in whole microseconds.
    pub micros: u64,
    /// Host time (launch overhead) before the node is ready.
    pub delay: Span,
    /// Recorded time that a communication node waited for its peers.
    pub wait: Span,
    /// True if the node did not wait for its peers.
    pub eager: bool,
    /// Recorded start in microseconds, or zero if the file does not state it.
    pub start_micros: u64,
    /// JSON text that declares the process groups, if this is the metadata node that declares them.
    pub groups: Option<&'a str>,
}

impl CompactRawNodeView<'_> {
    /// Returns the node's total recorded duration, including its wait for other ranks.
    pub fn recorded_duration_with_wait(&self) -> Span {
        match self.op {
            Op::NoOp => Span::ZERO,
            Op::Message { .. } | Op::Collective { .. } => self.recorded + self.wait,
            Op::Host | Op::Compute { .. } | Op::Communication { .. } | Op::Memory { .. } => {
                self.recorded
            }
        }
    }
}

impl<'a> From<&NodeView<'a>> for CompactRawNodeView<'a> {
    #[inline]
    fn from(node: &NodeView<'a>) -> Self {
        Self {
            id: node.id,
            name: node.name,
            op: node.op,
            lane: node.lane,
            recorded: node.recorded,
            micros: node.micros,
            delay: node.delay,
            wait: node.wait,
            eager: node.eager,
            start_micros: node.start_micros,
            groups: node.groups,
        }
    }
}
