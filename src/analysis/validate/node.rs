//! Data that validation keeps of nodes; most nodes are plain work and need almost no data.

use super::kind::DefectKind;
use chakram_base::units::Span;
use chakram_trace::format::Op;
use chakram_trace::format::scan::NodeView;
use chakram_trace::graph::RawTrace;
use chakram_trace::graph::raw_trace::{NodeRetention, RawTraceNode};

/// A trace, reduced to the data that validation needs.
pub(super) type ValidatedNodes<'a> = RawTrace<'a, NotableNodes<'a>>;

/// A node, reduced to the data that validation needs.
pub(super) type ValidatedNode<'a> = RawTraceNode<'a, NodeOutline>;

/// Data kept of every node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeOutline {
    pub id: u64,
    pub role: ValidationRole,
}

/// Role of a node in validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValidationRole {
    /// Empty node.
    Nothing,
    /// Empty node that declares groups, as an index into [`NotableNodes::declared`].
    Declares(u32),
    /// Plain work: kernels, host operators, loads and stores that are independent of other ranks.
    Work,
    /// Kernel without duration, FLOPs and bytes.
    NoWork,
    /// Host operator without a duration.
    NoDuration,
    /// Collective, as an index into [`NotableNodes::parts`].
    Call(u32),
    /// One side of a message, as an index into [`NotableNodes::parts`].
    Message(u32),
    /// Load that switches gather, or store that switches reduce, as an index into [`NotableNodes::parts`].
    Access(u32),
}

impl ValidationRole {
    /// Returns whether the node does any work.
    pub fn is_active(self) -> bool {
        !matches!(self, Self::Nothing | Self::Declares(_))
    }

    /// Returns the defect that this role implies, with its description.
    #[inline]
    pub fn implied_defect(self) -> Option<(DefectKind, &'static str)> {
        match self {
            Self::NoWork => Some((
                DefectKind::NoWork,
                "the node's duration, FLOPs and bytes are unknown",
            )),
            Self::NoDuration => Some((
                DefectKind::NoDuration,
                "the node's duration is unknown or zero",
            )),
            _ => None,
        }
    }
}

/// Data kept of the few nodes that are not plain work.
#[derive(Debug, Default)]
pub(super) struct NotableNodes<'a> {
    /// Names and operations of nodes that must agree with other ranks.
    pub parts: Vec<(&'a str, Op<'a>)>,
    /// Group declarations of metadata nodes, as text.
    pub declared: Vec<&'a str>,
}

impl<'a> NotableNodes<'a> {
    fn part_of_node(&mut self, view: &NodeView<'a>) -> u32 {
        self.parts.push((view.name, view.op));
        (self.parts.len() - 1) as u32
    }

    #[inline(always)]
    fn role_of_node(&mut self, view: &NodeView<'a>) -> ValidationRole {
        match (view.op, view.recorded, view.groups) {
            (Op::NoOp, _, None) => ValidationRole::Nothing,
            (Op::NoOp, _, Some(text)) => {
                self.declared.push(text);
                ValidationRole::Declares((self.declared.len() - 1) as u32)
            }
            (Op::Host | Op::Communication { .. }, Span::ZERO, _) => ValidationRole::NoDuration,
            (
                Op::Compute {
                    flops: 0, bytes: 0, ..
                },
                Span::ZERO,
                _,
            ) => ValidationRole::NoWork,
            (Op::Collective { .. }, ..) => ValidationRole::Call(self.part_of_node(view)),
            (Op::Message { .. }, ..) => ValidationRole::Message(self.part_of_node(view)),
            (
                Op::Memory {
                    in_switch: true, ..
                },
                ..,
            ) => ValidationRole::Access(self.part_of_node(view)),
            (Op::Host | Op::Compute { .. } | Op::Communication { .. } | Op::Memory { .. }, ..) => {
                ValidationRole::Work
            }
        }
    }
}

impl<'a> NodeRetention<'a> for NotableNodes<'a> {
    type Kept = NodeOutline;

    #[inline(always)]
    fn retain_view(&mut self, view: &NodeView<'a>) -> NodeOutline {
        NodeOutline {
            id: view.id,
            role: self.role_of_node(view),
        }
    }

    #[inline]
    fn node_id(kept: &NodeOutline) -> u64 {
        kept.id
    }
}
