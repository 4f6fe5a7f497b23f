//! What an outline keeps of a node's record.

use crate::trace::Op;
use crate::trace::scan::NodeView;
use crate::units::Span;

/// A [`NodeView`] without what few nodes have: outlines keep millions of these.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View<'a> {
    /// The id in the file.
    pub id: u64,
    /// The name.
    pub name: &'a str,
    /// What it does.
    pub op: Op<'a>,
    /// The stream or thread that the trace names, if it does.
    pub lane: Option<i64>,
    /// How long it took where it was recorded.
    pub recorded: Span,
    /// The same in whole microseconds, where the schema has it.
    pub micros: u64,
    /// Time of the host in front of it.
    pub delay: Span,
    /// How long a communication node waited for its peers where it was recorded.
    pub wait: Span,
    /// Whether it waited for none of its peers.
    pub eager: bool,
    /// When it started where it was recorded, in microseconds; zero when the file does not say.
    pub start_micros: u64,
    /// The JSON text of its process groups, when it is the metadata node that declares them.
    pub groups: Option<&'a str>,
}

impl View<'_> {
    /// Returns how long the node took where it was recorded, what it waited for other ranks included.
    pub fn lasted(&self) -> Span {
        match self.op {
            Op::Nothing => Span::ZERO,
            Op::Message { .. } | Op::Collective { .. } => self.recorded + self.wait,
            Op::Host | Op::Compute { .. } | Op::Memory { .. } => self.recorded,
        }
    }
}

impl<'a> From<&NodeView<'a>> for View<'a> {
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
