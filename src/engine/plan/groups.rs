//! Works out which members take part in each communicator (group slot), and where the machine places them.

use super::{
    BoundGroupSlot, CoordinatesInSomeDimensions, NONE, PlacedCommunicationGroup, ReplayPlan,
};
use crate::RequiredCollectiveBackendTraits;
use crate::ids::ReplayGroupId;
use chakram_base::ids::{GroupId, MemberIndex, Npu, Rank};
use chakram_hardware::collective::CollectiveMemberNpus;
use chakram_hardware::machine::Machine;
use chakram_trace::workload::Workload;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

impl ReplayPlan {
    /// For each communicator (group slot) of each instance, finds the group on the machine.
    pub(super) fn bind_groups<M: RequiredCollectiveBackendTraits>(
        &mut self,
        workload: &Workload,
        machine: &Machine,
        backend: &M,
    ) {
        let mut known: BTreeMap<(GroupId, CoordinatesInSomeDimensions), ReplayGroupId> =
            BTreeMap::new();
        // Members of each group, partitioned by their coordinates in a mask's excluded dimensions.
        let mut parted: BTreeMap<
            (GroupId, Vec<usize>),
            BTreeMap<CoordinatesInSomeDimensions, Vec<Rank>>,
        > = BTreeMap::new();
        // If a mask excludes no member, use the whole group instead of creating a second one.
        let mut whole: BTreeMap<GroupId, ReplayGroupId> = BTreeMap::new();
        for (i, instance) in workload.instances().iter().enumerate() {
            let graph = workload.graph_of(instance);
            let npu = self.instances[i].npu;
            let slots = graph.group_slots().iter().zip(&instance.groups);
            for (slot_index, (slot, &id)) in slots.enumerate() {
                // If only some dimensions take part, members that differ from this rank in any other dimension are
                // excluded.
                let dimensions = machine.topology().dimensions();
                let out: Vec<usize> = match slot.dimensions {
                    None => Vec::new(),
                    Some(mask) => (0..dimensions.len())
                        // A mask has 32 bits, so higher dimensions never take part.
                        .filter(|&d| d >= 32 || mask >> d & 1 == 0)
                        // In a dimension of size 1, all members have the same coordinate, so the dimension does not
                        // partition them.
                        .filter(|&d| dimensions[d].size > 1)
                        .collect(),
                };
                let place = |npu| -> CoordinatesInSomeDimensions {
                    let at = |&d: &usize| (d, machine.topology().coordinate_of(npu, d));
                    out.iter().map(at).collect()
                };
                let own = place(npu);
                let group = *known.entry((id, own.clone())).or_insert_with(|| {
                    let group = &workload.groups()[id.index()];
                    let all = &group.members;
                    let parts = parted.entry((id, out.clone())).or_insert_with(|| {
                        let mut parts: BTreeMap<CoordinatesInSomeDimensions, Vec<Rank>> =
                            BTreeMap::new();
                        for rank in all {
                            let place = place(self.npu_of[rank.index()]);
                            parts.entry(place).or_default().push(*rank);
                        }
                        parts
                    });
                    let members = parts.remove(&own).expect("this rank is one of them");
                    let new = ReplayGroupId(self.groups.len() as u32);
                    let everyone = members.len() == all.len();
                    if everyone && *whole.entry(id).or_insert(new) != new {
                        return whole[&id];
                    }
                    let dimensions = slot.dimensions.filter(|_| !everyone);
                    let name = group.name.clone();
                    let plan = self.place_group_members_on_npus(
                        id, name, dimensions, members, machine, backend,
                    );
                    self.groups.push(plan);
                    new
                });
                let mixed = &self.shared[self.instances[i].shared as usize].mixed;
                self.groups[group.index()].launches_together |= mixed[slot_index];
                let members = &self.groups[group.index()].members;
                // Members are usually sorted, so first try the faster binary search.
                let member = members
                    .binary_search(&instance.rank)
                    .ok()
                    .or_else(|| members.iter().position(|&m| m == instance.rank));
                self.instances[i].slots.push(BoundGroupSlot {
                    group,
                    member: MemberIndex(member.map_or(NONE, |m| m as u32)),
                });
            }
        }
    }

    fn place_group_members_on_npus<M: RequiredCollectiveBackendTraits>(
        &self,
        id: GroupId,
        name: Option<String>,
        dimensions: Option<u32>,
        members: Vec<Rank>,
        machine: &Machine,
        backend: &M,
    ) -> PlacedCommunicationGroup {
        let npus: Vec<Npu> = members.iter().map(|m| self.npu_of[m.index()]).collect();
        let named = name.is_some();
        let party = CollectiveMemberNpus { npus: &npus, named };
        let extent = backend.place_group(party, machine.topology());
        let paths = extent.phases.iter();
        let paths =
            paths.map(|phase| backend.common_paths_of_phase(&extent, phase, machine.topology()));
        let dimensions_of = machine.topology().dimensions();
        // Members of rings and meshes have a port for each side.
        let wired = |d: usize| dimensions_of.get(d).is_some_and(|of| !of.shape.has_ports());
        let sides = if extent.regular {
            let mut phases = extent.phases.iter();
            1 + u32::from(phases.any(|phase| wired(phase.dimension)))
        } else {
            // A message on an irregular group's single line may cross any dimension, so members have ports in each
            // dimension.
            2 * dimensions_of.len() as u32
        };
        PlacedCommunicationGroup {
            id,
            name,
            dimensions,
            present: members
                .iter()
                .filter(|m| self.instance_of[m.index()] != NONE)
                .count() as u32,
            paths: paths.collect(),
            sides,
            extent,
            members,
            calls: Arc::default(),
            splits: BTreeMap::new(),
            launches_together: false,
            represents: Vec::new(),
            unequal: OnceLock::new(),
        }
    }
}
