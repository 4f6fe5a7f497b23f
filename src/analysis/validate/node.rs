//! Per-node data that validation stores. Most nodes are plain work, and need almost no such data.

use super::kind::DefectKind;
use chakram_base::units::Span;
use chakram_trace::format::Op;
use chakram_trace::format::scan::NodeView;
use chakram_trace::graph::RawTrace;
use chakram_trace::graph::raw_trace::{KeptNodeContentSelector, RawTraceNode};

/// A trace reduced to the data that validation needs.
pub(super) type TraceReducedForValidation<'a> =
    RawTrace<'a, CommunicationAndMetadataNodeContents<'a>>;

/// A node reduced to the data that validation needs.
pub(super) type NodeReducedForValidation<'a> = RawTraceNode<'a, NodeIdAndValidationRole>;

/// Data stored for every node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeIdAndValidationRole {
    pub id: u64,
    pub role: NodeValidationRole,
}

/// Role of a node in the validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeValidationRole {
    /// An empty node.
    Nothing,
    /// An empty node that declares groups; index into [`CommunicationAndMetadataNodeContents::declared`].
    Declares(u32),
    /// Plain work: kernels, host operators, loads and stores that do not depend on other ranks.
    Work,
    /// A kernel that has neither a duration nor FLOPs nor bytes.
    NoWork,
    /// A host operator without a duration.
    NoDuration,
    /// A collective; index into [`CommunicationAndMetadataNodeContents::parts`].
    Call(u32),
    /// A send or receive; index into [`CommunicationAndMetadataNodeContents::parts`].
    Message(u32),
    /// A load whose data switches gather, or a store whose data switches reduce; index into
    /// [`CommunicationAndMetadataNodeContents::parts`].
    Access(u32),
}

impl NodeValidationRole {
    /// Returns true if the node does any work.
    pub fn is_doing_work(self) -> bool {
        !matches!(self, Self::Nothing | Self::Declares(_))
    }

    /// Returns the defect that this role implies for a node, with its description; `None` if the role is no defect.
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

/// Data that is stored only for the few nodes that are not plain work.
#[derive(Debug, Default)]
pub(super) struct CommunicationAndMetadataNodeContents<'a> {
    /// Names and operations of nodes, on which the ranks must agree.
    pub parts: Vec<(&'a str, Op<'a>)>,
    /// Group declarations of metadata nodes, as text.
    pub declared: Vec<&'a str>,
}

impl<'a> CommunicationAndMetadataNodeContents<'a> {
    fn store_communication_name_and_op(&mut self, view: &NodeView<'a>) -> u32 {
        self.parts.push((view.name, view.op));
        (self.parts.len() - 1) as u32
    }

    #[inline(always)]
    fn classify_node_role(&mut self, view: &NodeView<'a>) -> NodeValidationRole {
        match (view.op, view.recorded, view.groups) {
            (Op::NoOp, _, None) => NodeValidationRole::Nothing,
            (Op::NoOp, _, Some(text)) => {
                self.declared.push(text);
                NodeValidationRole::Declares((self.declared.len() - 1) as u32)
            }
            (Op::Host | Op::Communication { .. }, Span::ZERO, _) => NodeValidationRole::NoDuration,
            (
                Op::Compute {
                    flops: 0, bytes: 0, ..
                },
                Span::ZERO,
                _,
            ) => NodeValidationRole::NoWork,
            (Op::Collective { .. }, ..) => {
                NodeValidationRole::Call(self.store_communication_name_and_op(view))
            }
            (Op::Message { .. }, ..) => {
                NodeValidationRole::Message(self.store_communication_name_and_op(view))
            }
            (
                Op::Memory {
                    in_switch: true, ..
                },
                ..,
            ) => NodeValidationRole::Access(self.store_communication_name_and_op(view)),
            (Op::Host | Op::Compute { .. } | Op::Communication { .. } | Op::Memory { .. }, ..) => {
                NodeValidationRole::Work
            }
        }
    }
}

impl<'a> KeptNodeContentSelector<'a> for CommunicationAndMetadataNodeContents<'a> {
    type Kept = NodeIdAndValidationRole;

    #[inline(always)]
    fn select_node_data_to_keep(&mut self, view: &NodeView<'a>) -> NodeIdAndValidationRole {
        NodeIdAndValidationRole {
            id: view.id,
            role: self.classify_node_role(view),
        }
    }

    #[inline]
    fn node_id(kept: &NodeIdAndValidationRole) -> u64 {
        kept.id
    }
}
