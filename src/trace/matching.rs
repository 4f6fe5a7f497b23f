//! Matching of collectives and messages: which nodes of different ranks are one operation, and where ranks disagree.
//!
//! Order decides. The k-th collective of a group on one member and the k-th on every other are one, and so are the
//! k-th send from one rank to another with a tag and the k-th such receive. Callers pass the operations of each rank
//! in program order and get matches or typed disagreements, which each says in words of its own.
//!
//! Everything is sorted flat arrays, so nothing depends on the order in which a table is walked.

mod collectives;
mod messages;
mod outlines;

pub use collectives::{
    CollectiveSignature, MemberCalls, SlotCalls, disagreement, first_difference,
};
pub use messages::{MessageChannel, MessageDisagreement, MessageHalf, match_messages};
pub use outlines::{CommChannel, CommMatches, CommStep, RankComms};

/// A communication of a rank: the place of the rank among those that are matched, and of the communication among
/// the rank's.
pub type CommRef = (u32, u32);

#[cfg(test)]
mod tests;
