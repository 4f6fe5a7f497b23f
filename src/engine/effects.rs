//! Effects: what events cause at their own instant, in typed lists that the loop drains in the order of the contract.
//!
//! Handlers of a round append, and carry nothing out that depends on what other events of the instant do. Later events go to
//! the agenda, and observers are told at once. Under [`InsertionOrder`](crate::collective::InsertionOrder) lists are drained
//! within the event that filled them.

use super::messages::PendingSend;
use super::remote_memory::ApproachingAccess;

/// See the module. Lists are in the order in which they are drained when a round is over; arrivals only once no event is left
/// at the instant.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Lanes that were freed, as instance and lane. They take the nodes that queue for them, by rank and lane.
    pub freed: Vec<(u32, u32)>,
    /// Nodes that became ready, as instance and node in one word. They are posted by rank and id.
    pub ready: Vec<u64>,
    /// Instances that ended. Their feeds are told, and may launch.
    pub ended: Vec<u32>,
    /// Loads and stores over the network. They are submitted in the order of their lanes.
    pub accesses: Vec<ApproachingAccess>,
    /// Messages. They are submitted by content.
    pub sends: Vec<PendingSend>,
    /// Runs of collectives with members that arrived. They are settled.
    pub arrivals: Vec<u32>,
}
