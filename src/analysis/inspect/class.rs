//! Node types, as shown in tables.

use chakram_trace::format::{CollectiveKind, Op};
use std::fmt;

/// Type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InspectedNodeType {
    /// Work on the host.
    Host,
    /// A kernel.
    Compute,
    /// A load from memory.
    Load,
    /// A store to memory.
    Store,
    /// The send of a message.
    Send,
    /// The receive of a message.
    Receive,
    /// A member's part in a collective of this kind.
    Collective(CollectiveKind),
    /// Communication whose operation or partners are unknown.
    Communication,
    /// Metadata, or an empty node; both take no time.
    Metadata,
    /// A record that cannot be decoded.
    Unreadable,
}

/// All types except collectives, with their names.
const PLAIN: [(InspectedNodeType, &str); 9] = [
    (InspectedNodeType::Host, "host"),
    (InspectedNodeType::Compute, "compute"),
    (InspectedNodeType::Load, "load"),
    (InspectedNodeType::Store, "store"),
    (InspectedNodeType::Send, "send"),
    (InspectedNodeType::Receive, "receive"),
    (InspectedNodeType::Communication, "communication"),
    (InspectedNodeType::Metadata, "metadata"),
    (InspectedNodeType::Unreadable, "unreadable"),
];

impl InspectedNodeType {
    /// Returns the type of a node that could be decoded.
    pub fn of_op(op: &Op<'_>) -> Self {
        match *op {
            Op::NoOp => Self::Metadata,
            Op::Host => Self::Host,
            Op::Compute { .. } => Self::Compute,
            Op::Memory { store: false, .. } => Self::Load,
            Op::Memory { store: true, .. } => Self::Store,
            Op::Message { receive: false, .. } => Self::Send,
            Op::Message { receive: true, .. } => Self::Receive,
            Op::Collective { kind, .. } => Self::Collective(kind),
            Op::Communication { .. } => Self::Communication,
        }
    }

    /// Returns true if nodes of this type communicate and may therefore wait for other ranks.
    pub fn is_communication(self) -> bool {
        matches!(self, Self::Send | Self::Receive | Self::Collective(_))
    }

    /// Returns true if nodes of this type have a duration.
    pub fn takes_time(self) -> bool {
        !matches!(self, Self::Metadata | Self::Unreadable)
    }

    /// Returns the types with this name. `collective` names all types of collectives. Returns an empty list if the name
    /// is unknown.
    pub fn find_classes_by_name(name: &str) -> Vec<Self> {
        if let Some((class, _)) = PLAIN.iter().find(|(_, known)| *known == name) {
            return vec![*class];
        }
        let kinds = CollectiveKind::ALL.iter();
        kinds
            .filter(|(_, known, _)| *known == name || name == "collective")
            .map(|(kind, ..)| Self::Collective(*kind))
            .collect()
    }

    /// Lists all names that [`Self::find_classes_by_name`] accepts.
    pub fn list_names() -> String {
        let plain = PLAIN.iter().map(|(_, name)| *name);
        let kinds = CollectiveKind::ALL.iter().map(|(_, name, _)| *name);
        let all: Vec<_> = plain.chain(["collective"]).chain(kinds).collect();
        all.join(", ")
    }
}

impl fmt::Display for InspectedNodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collective(kind) => kind.fmt(f),
            plain => {
                let row = PLAIN.iter().find(|(class, _)| class == plain);
                f.pad(row.map_or("", |(_, name)| name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (class, name) in PLAIN {
            assert_eq!(
                (
                    InspectedNodeType::find_classes_by_name(name),
                    class.to_string()
                ),
                (vec![class], name.to_owned())
            );
        }
        let kind = InspectedNodeType::Collective(CollectiveKind::AllToAll);
        assert_eq!(
            InspectedNodeType::find_classes_by_name(&kind.to_string()),
            [kind]
        );
        assert_eq!(
            InspectedNodeType::find_classes_by_name("collective").len(),
            9
        );
        assert!(InspectedNodeType::find_classes_by_name("kernel").is_empty());
        assert!(InspectedNodeType::list_names().contains("unreadable, collective, all-reduce"));
    }
}
