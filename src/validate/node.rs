//! Data that validation keeps of nodes: next to nothing for most, which are plain work.

use super::kind::Kind;
use crate::graph::Outline;
use crate::graph::outline::{Item, Keep};
use crate::trace::Op;
use crate::trace::scan::NodeView;
use crate::units::Span;

/// Outline of a trace for validation.
pub(super) type Nodes<'a> = Outline<'a, Notable<'a>>;

/// One of its nodes.
pub(super) type Entry<'a> = Item<'a, Brief>;

/// Data kept of each node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brief {
    pub id: u64,
    pub role: Role,
}

/// Role of a node in validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Does nothing.
    Nothing,
    /// Does nothing, and declares groups; an index into [`Notable::declared`].
    Declares(u32),
    /// Plain work: kernels, host operators, loads and stores that are independent of other ranks.
    Work,
    /// Kernel without duration, FLOPs and bytes.
    NoWork,
    /// Host operator without a duration.
    NoDuration,
    /// Collective; an index into [`Notable::parts`].
    Call(u32),
    /// One half of a message; an index into [`Notable::parts`].
    Message(u32),
    /// Load that switches gather, or store that they reduce; an index into [`Notable::parts`].
    Access(u32),
}

impl Role {
    /// Returns whether the node does anything.
    pub fn is_active(self) -> bool {
        !matches!(self, Self::Nothing | Self::Declares(_))
    }

    /// Returns the defect that a node of this role has by itself, with the text of what was found.
    #[inline]
    pub fn defect(self) -> Option<(Kind, &'static str)> {
        match self {
            Self::NoWork => Some((
                Kind::NoWork,
                "neither its duration nor its FLOPs or bytes are known",
            )),
            Self::NoDuration => Some((Kind::NoDuration, "its duration is not known, or zero")),
            _ => None,
        }
    }
}

/// Data kept of the few nodes that are more than plain work.
#[derive(Debug, Default)]
pub(super) struct Notable<'a> {
    /// Names and operations of nodes that other ranks must agree with.
    pub parts: Vec<(&'a str, Op<'a>)>,
    /// Texts of groups that metadata nodes declare.
    pub declared: Vec<&'a str>,
}

impl<'a> Notable<'a> {
    fn part(&mut self, view: &NodeView<'a>) -> u32 {
        self.parts.push((view.name, view.op));
        (self.parts.len() - 1) as u32
    }

    #[inline(always)]
    fn role(&mut self, view: &NodeView<'a>) -> Role {
        match (view.op, view.recorded, view.groups) {
            (Op::Nothing, _, None) => Role::Nothing,
            (Op::Nothing, _, Some(text)) => {
                self.declared.push(text);
                Role::Declares((self.declared.len() - 1) as u32)
            }
            (Op::Host, Span::ZERO, _) => Role::NoDuration,
            (
                Op::Compute {
                    flops: 0, bytes: 0, ..
                },
                Span::ZERO,
                _,
            ) => Role::NoWork,
            (Op::Collective { .. }, ..) => Role::Call(self.part(view)),
            (Op::Message { .. }, ..) => Role::Message(self.part(view)),
            (
                Op::Memory {
                    in_switch: true, ..
                },
                ..,
            ) => Role::Access(self.part(view)),
            (Op::Host | Op::Compute { .. } | Op::Memory { .. }, ..) => Role::Work,
        }
    }
}

impl<'a> Keep<'a> for Notable<'a> {
    type Kept = Brief;

    #[inline(always)]
    fn keep(&mut self, view: &NodeView<'a>) -> Brief {
        Brief {
            id: view.id,
            role: self.role(view),
        }
    }

    #[inline]
    fn id(kept: &Brief) -> u64 {
        kept.id
    }
}
