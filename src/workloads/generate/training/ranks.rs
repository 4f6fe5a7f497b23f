//! Generates the nodes of a lowered plan. Also finds classes of ranks with equal nodes, and counts
//! nodes.

use super::TrainingGenerator;
use super::emit::RankEmitter;
use crate::generate::plan::{
    CorePlacement, ParallelGroupKind, RankPeakOwnAndRemoteBytes, TensorDataStageCoordinates,
};
use crate::generate::schedule::PassOrOverlappingPair;
use crate::generate::{TraceEmitter, TraceGenerator};
use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::format::roles::GroupRoles;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::work_amounts::JobSamplesAndModelFlops;
use chakram_trace::format::write::Sink;
use chakram_trace::format::{GroupName, TraceError};
use chakram_trace::graph::RankBindingsOfGraphSlots;
use std::sync::OnceLock;

impl TrainingGenerator {
    /// Returns the maximum number of bytes in use at once on a rank of `stage`, if nodes run in id order.
    pub(super) fn peak_bytes(&self, stage: u32) -> RankPeakOwnAndRemoteBytes {
        let members = (0..self.plan.tensor_degree_of_stage(stage)).filter(|&tensor| {
            let place = TensorDataStageCoordinates {
                tensor,
                data: 0,
                stage,
            };
            self.representative_rank_of(place).tensor == tensor
        });
        let peaks = members.map(|tensor| {
            let mut meter = PeakMemorySink::default();
            let place = TensorDataStageCoordinates {
                tensor,
                data: 0,
                stage,
            };
            let rank = self.placement.rank_at(place);
            let walked = self.emit_nodes(rank, &mut TraceEmitter::without_names(&mut meter));
            walked.expect("a meter takes every node");
            meter.peak
        });
        peaks.max_by_key(|peak| peak.bytes).unwrap_or_default()
    }

    /// Returns the coordinates of the rank that represents the rank at `place`; the nodes of the two ranks differ only
    /// in peers and groups. In general, one rank represents all ranks of a stage. With adapters, adapter ranks and
    /// other ranks have different representatives. If a tensor group's members exchange messages, each member
    /// represents itself.
    fn representative_rank_of(
        &self,
        place: TensorDataStageCoordinates,
    ) -> TensorDataStageCoordinates {
        TensorDataStageCoordinates {
            tensor: if self.slots > 0 {
                place.tensor
            } else {
                u32::from(!self.exchanges_messages_with_other_stages(place))
            },
            data: 0,
            stage: place.stage,
        }
    }

    /// Returns where the node count of the representative at `like` stands in the list of node counts. Without adapters
    /// and without messages in tensor groups, member 0 represents every member, so each stage has one entry.
    fn node_count_index_of_representative(&self, like: TensorDataStageCoordinates) -> usize {
        (like.tensor * self.plan.pipeline + like.stage) as usize
    }
}

/// Node counts of ranks with identical nodes, computed on first use.
#[derive(Debug, Default)]
pub(super) struct CachedExactAndMinimumNodeCounts {
    /// The exact count, which takes long to compute because all nodes must be generated.
    all: OnceLock<u64>,
    /// A lower bound: the sum of the programs' lengths, without messages, reductions, loads and stores.
    least: OnceLock<u64>,
}

/// A sink that adds up allocations and frees, and records the maximum in use.
#[derive(Default)]
struct PeakMemorySink {
    peak: RankPeakOwnAndRemoteBytes,
    nodes: u64,
}

impl Sink for PeakMemorySink {
    fn receive_node(&mut self, node: &NodeView<'_>, _: &[u64]) -> Result<(), TraceError> {
        self.nodes += 1;
        self.peak.add_node(node);
        Ok(())
    }
}

impl TraceGenerator for TrainingGenerator {
    fn suggest_smaller(&self) -> &'static str {
        "fewer steps or micro-batches"
    }

    fn rank_count(&self) -> u32 {
        self.placement.rank_count()
    }

    fn declared_groups(&self) -> DeclaredGroups {
        self.placement.all_declared_groups()
    }

    fn group_roles(&self) -> GroupRoles {
        self.map_group_numbers_to_kinds()
    }

    fn work_amounts(&self) -> Option<JobSamplesAndModelFlops> {
        Some(self.samples_tokens_and_model_flops())
    }

    fn shape_class_of_rank(&self, rank: u32) -> u32 {
        rank
    }

    fn core_of(&self, rank: u32) -> Option<[u32; 2]> {
        match &self.plan.tiles {
            // If `ranks` is empty, rank r has position r.
            CorePlacement::Cores(cores) => cores.get(rank as usize).copied(),
            _ => None,
        }
    }

    fn graph_class_of_rank(&self, rank: u32) -> u32 {
        self.placement
            .rank_at(self.representative_rank_of(self.placement.coordinates_of_rank(rank)))
    }

    fn find_independent_copies(&self) -> Vec<Vec<u32>> {
        // Stages have different numbers of members, so only whole replicas do equal work.
        if self.plan.has_uneven_tensor_degrees() {
            let of = |data| TensorDataStageCoordinates {
                tensor: 0,
                data,
                stage: 0,
            };
            let replicas = (0..self.plan.weight_replicas_per_stage()).map(of);
            let replica = |place| {
                self.placement
                    .members_of_group(ParallelGroupKind::Model, place)
            };
            return replicas.map(replica).collect();
        }
        // If members of a tensor group exchange messages, each independent copy of the job is one replica. If ranks of
        // a context group exchange messages, each independent copy consists of all replicas in one context group.
        let members = match (self.slots > 0, self.ring_slots > 0) {
            (_, true) => self.plan.tensor * self.plan.context,
            (true, false) => self.plan.tensor,
            (false, false) => 1,
        };
        let mut pipelines = self.ranks_by_pipeline();
        pipelines.sort_by_key(|ranks| {
            let place = self.placement.coordinates_of_rank(ranks[0]);
            (place.data, place.tensor)
        });
        let replicas = pipelines.chunks(members as usize);
        replicas.map(<[Vec<u32>]>::concat).collect()
    }

    fn bind_peers_and_groups_to_slots(
        &self,
        rank: u32,
        first: &RankBindingsOfGraphSlots,
    ) -> RankBindingsOfGraphSlots {
        let own = self.placement.coordinates_of_rank(rank);
        let model = self
            .placement
            .coordinates_of_rank(self.graph_class_of_rank(rank));
        let peer = |peer: &u32| {
            // The peer is either another member on the same stage, or the member with the same index on another stage.
            let peer = self.placement.coordinates_of_rank(*peer);
            let tensor = if self.slots > 0 {
                peer.tensor
            } else {
                own.tensor / self.count_members_sharing_adapter(own.stage)
                    * self.count_members_sharing_adapter(peer.stage)
            };
            let stage = peer.stage;
            // In a ring, every rank is as far from its peer as the representative is from its own; the representative
            // is the first rank of its ring.
            let members = self.plan.context;
            let index = (own.data % members + peer.data) % members;
            let data = own.data - own.data % members + index;
            self.placement.rank_at(TensorDataStageCoordinates {
                tensor,
                data,
                stage,
            })
        };
        let group = |name: &Option<String>| {
            let families = self.placement.iter_group_kinds();
            let named = |family| match self.placement.group_name(family, model) {
                GroupName::Number(number) => Some(number.to_string()),
                _ => None,
            };
            let mut found = families.filter(|family| named(*family) == *name);
            let family = name.as_ref().and_then(|_| found.next())?;
            match self.placement.group_name(family, own) {
                GroupName::Number(number) => Some(number.to_string()),
                _ => None,
            }
        };
        RankBindingsOfGraphSlots {
            peers: first.peers.iter().map(peer).collect(),
            groups: first.groups.iter().map(group).collect(),
            declared: first.declared.clone(),
            core: None,
        }
    }

    fn node_count_of_rank(&self, rank: u32) -> u64 {
        let like = self.representative_rank_of(self.placement.coordinates_of_rank(rank));
        *self.counts[self.node_count_index_of_representative(like)]
            .all
            .get_or_init(|| {
                // Use a sink that ignores names, because formatting them would take most of the time.
                let mut meter = PeakMemorySink::default();
                let walked =
                    RankEmitter::new(self, rank, &mut TraceEmitter::without_names(&mut meter))
                        .emit_all_steps();
                walked.expect("a meter takes every node");
                meter.nodes
            })
    }

    fn min_node_count(&self, rank: u32) -> u64 {
        let like = self.representative_rank_of(self.placement.coordinates_of_rank(rank));
        *self.counts[self.node_count_index_of_representative(like)]
            .least
            .get_or_init(|| {
                let passes = self
                    .ordered_passes_of_stage(like.stage)
                    .flat_map(PassOrOverlappingPair::iter_passes);
                let nodes = passes.map(|pass| {
                    let part = self.part_of_chunk(like.stage, pass.chunk);
                    let layers = self.layers_of_part(part);
                    let items = layers.map(|layer| {
                        let program = self
                            .lowered_layer(layer)
                            .program_for_member(pass.kind, like.tensor);
                        program.items.len() as u64
                    });
                    items.sum::<u64>()
                });
                // Count one node that allocates the resident state. A rank without work has only this node.
                1 + nodes.sum::<u64>() * u64::from(self.plan.steps)
            })
    }

    fn emit_nodes(&self, rank: u32, out: &mut TraceEmitter<'_>) -> Result<(), TraceError> {
        RankEmitter::new(self, rank, out).emit_all_steps()
    }
}
