//! Computes the times of undisturbed collectives without a replay.

use super::Machine;
use crate::collective::{find_fastest_time_protocol, find_measured_time_collective};
use crate::group::GroupPhasesAndMemberPositions;
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::ids::Npu;
use chakram_base::units::Span;

impl Machine {
    /// Returns the time of a collective with a buffer of `bytes` among the first `members` NPUs, from measured curves
    /// or the library's protocols. Returns `None` if the machine has neither for this kind, or if its first dimension
    /// has fewer than `members` NPUs.
    pub fn measured_collective(
        &self,
        kind: CollectiveKind,
        bytes: u64,
        members: u32,
    ) -> Option<Span> {
        let topology = self.topology();
        if members > topology.dimensions().first()?.size {
            return None;
        }
        let npus: Vec<Npu> = (0..members).map(Npu).collect();
        let extent = GroupPhasesAndMemberPositions::new(&npus, topology);
        let (of, lie) = ((kind, bytes), (&extent, topology));
        find_measured_time_collective(self.collective_curves(), of, lie)
            .or_else(|| find_fastest_time_protocol(self.collective_protocols(), of, lie))
    }
}
