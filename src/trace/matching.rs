//! Matches collectives and messages: finds the nodes of different ranks that form one operation, and mismatches between
//! ranks.
//!
//! Operations are matched by their order. In a group, one member's k-th collective matches every other member's k-th
//! collective. For each sender, receiver and tag, the k-th send matches the k-th receive. Callers pass the operations
//! of each rank in program order. The matcher returns matches, or typed disagreements that callers convert into error
//! messages.
//!
//! The matcher keeps its data in sorted flat arrays, so no result depends on the iteration order of a hash table.

mod collectives;
mod messages;
mod outlines;

pub use collectives::{
    CollectiveSignature, MemberCalls, TraceCallsByGroupSlot, find_disagreement,
    find_first_differing_entries,
};
pub use messages::{MessageChannel, MessageDisagreement, MessageHalf, match_messages_by_channel};
pub use outlines::{CommChannel, CommMatches, RankCommNode, RankComms};

/// Refers to a communication by the rank's index among the matched ranks and the communication's index within this
/// rank.
pub type RankAndCommIndex = (u32, u32);

#[cfg(test)]
mod tests;
