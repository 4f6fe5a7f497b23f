//! What validation keeps of the nodes of a trace: next to nothing of most of them, which are work like any other.

use super::kind::Kind;
use crate::graph::Outline;
use crate::graph::outline::{Item, Keep};
use crate::trace::Op;
use crate::trace::scan::NodeView;
use crate::units::Span;

/// The nodes of a trace.
pub(super) type Nodes<'a> = Outline<'a, Notable<'a>>;

/// One of them.
pub(super) type Entry<'a> = Item<'a, Brief>;

/// What is kept of each node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brief {
    pub id: u64,
    pub role: Role,
}

/// What a node is to validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It does nothing.
    Nothing,
    /// It does nothing, and declares these groups; a place in [`Notable::declared`].
    Declares(u32),
    /// Kernels, host operators, loads and stores that nobody else has to agree with.
    Work,
    /// A kernel of which neither the duration nor FLOPs or bytes are known.
    NoWork,
    /// A host operator that takes no time.
    NoDuration,
    /// A collective; a place in [`Notable::parts`].
    Call(u32),
    /// One half of a message; a place in [`Notable::parts`].
    Message(u32),
    /// A load that switches gather, or a store that they reduce; a place in [`Notable::parts`].
    Access(u32),
}

impl Role {
    /// Whether the node does anything.
    pub fn is_active(self) -> bool {
        !matches!(self, Self::Nothing | Self::Declares(_))
    }

    /// The defect that a node of this role has by itself, with what was found.
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

/// What is kept of the few that are more than work.
#[derive(Debug, Default)]
pub(super) struct Notable<'a> {
    /// Name and operation of what other ranks have to agree with.
    pub parts: Vec<(&'a str, Op<'a>)>,
    /// Groups as metadata nodes declare them.
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
