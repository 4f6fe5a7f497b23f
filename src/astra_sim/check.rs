//! Rejects collectives that ASTRA-sim cannot run. It does so before the replay, with an error that states the reason.

use super::collectives::AstraCollectiveBackend;
use super::program::halving_doubling;
use super::{AllReduceDecomposition, AstraAlgorithm};
use chakram_trace::format::CollectiveKind;

/// Maximum number of chunks in flight on all NPUs together.
const MOST_CHUNKS: u64 = 1 << 26;

/// Maximum number of members of a ring. An all-to-all around a ring of n members sends n(n-1)/2 messages, which must
/// stay below 2^32.
const MOST_ROUND: u32 = 92_681;

/// Describes the problem in one sentence, with advice to the user.
pub(super) type CollectiveProblemAndAdvice = (String, &'static str);

impl AstraCollectiveBackend {
    /// Checks that a collective of `bytes` among `members` can run along the dimensions that a mask selects; `None`
    /// stands for all NPUs, without a named group.
    pub(super) fn check_collective(
        &self,
        kind: CollectiveKind,
        bytes: u64,
        members: Option<u32>,
        dimensions: Option<u32>,
        node: u64,
    ) -> Result<(), CollectiveProblemAndAdvice> {
        if let Some(number) = self.custom_algorithm_index(kind, node) {
            return self.check_custom_algorithm_covers_members(
                number,
                members.unwrap_or(self.npu_count()),
            );
        }
        let key = match kind {
            CollectiveKind::AllReduce => "all-reduce-implementation",
            CollectiveKind::AllGather => "all-gather-implementation",
            CollectiveKind::ReduceScatter => "reduce-scatter-implementation",
            CollectiveKind::AllToAll => "all-to-all-implementation",
            other => {
                return Err((
                    format!("{other} is not supported, and the original aborts on it"),
                    "replay the traces with `chakram replay`, which supports all collectives",
                ));
            }
        };
        let alone = members == Some(1);
        let list = self.implementations_of_collective_kind(kind);
        if list.is_empty() && !alone {
            return Err((
                format!("the system file has no key `{key}`"),
                "a list of implementations, one for each dimension, such as [\"ring\"]",
            ));
        }
        let (chunk, count) = self.chunk_size_and_count(kind, bytes);
        if chunk.bytes == 0 && kind == CollectiveKind::AllGather && !alone {
            return Err((
                format!(
                    "an all-gather of {bytes} bytes has chunks of 0 bytes, and the original never ends"
                ),
                "fewer `preferred-dataset-splits` than bytes, or a larger all-gather",
            ));
        }
        if self.has_buses() && chunk.to_bytes() > i32::MAX as u64 {
            let chunk = chunk.to_bytes();
            return Err((
                format!("chunks of {chunk} bytes, but a shared bus counts bytes in 31 bits"),
                "more `preferred-dataset-splits`, or \"model-shared-bus\": 0",
            ));
        }
        // Groups may run collectives at the same time, so the bound applies to all groups together.
        let lines = u64::from(self.npu_count());
        if u64::from(count) * lines > MOST_CHUNKS {
            return Err((
                format!("{count} chunks on {lines} NPUs do not fit in memory"),
                "fewer `preferred-dataset-splits`",
            ));
        }
        let whole = members.is_none_or(|members| members == self.npu_count());
        if !whole && self.named_groups_have_phase_per_dimension() {
            // If an algorithm cannot run the collective, a ring replaces it.
            return self.check_algorithm_runs_collective(
                AstraAlgorithm::Ring,
                kind,
                members.unwrap_or(0),
                false,
            );
        }
        if !whole {
            return match list {
                [only] if only.algorithm == AstraAlgorithm::DoubleBinaryTree => Err((
                    "doubleBinaryTree in a group without all NPUs, which the original wrongly runs \
                     as a ring"
                        .to_owned(),
                    "ring, direct or halvingDoubling",
                )),
                [only] => self.check_algorithm_runs_collective(only.algorithm, kind, members.unwrap_or(0), false),
                _ => Ok(()),
            };
        }
        for (level, implementation) in list.iter().enumerate() {
            if implementation.one {
                if dimensions.is_some() {
                    return Err((
                        format!(
                            "`involved_dim` selects some dimensions, but {implementation} uses all NPUs"
                        ),
                        "remove `involved_dim`, or name an implementation for each dimension",
                    ));
                }
                return self.check_algorithm_runs_collective(
                    implementation.algorithm,
                    kind,
                    self.npu_count(),
                    false,
                );
            }
            let several = list.len() > 1;
            self.check_algorithm_runs_collective(
                implementation.algorithm,
                kind,
                self.dimension_size(level),
                several,
            )?;
        }
        Ok(())
    }

    fn check_custom_algorithm_covers_members(
        &self,
        number: u16,
        members: u32,
    ) -> Result<(), CollectiveProblemAndAdvice> {
        let algorithm = self.custom_algorithm_by_index(number);
        if algorithm.position_count() < members {
            return Err((
                format!(
                    "the custom algorithm has files for {} positions, but the group has {members} members",
                    algorithm.position_count()
                ),
                "one file PREFIX.P.et for each position P from 0",
            ));
        }
        if let Some((from, to)) = algorithm.find_unpaired_peers(members) {
            return Err((
                format!(
                    "in the custom algorithm, the sends from position {from} to position {to} do \
                     not match the receives by tag and size"
                ),
                "a receive for each send, with the same tag and size",
            ));
        }
        match algorithm.find_peer_outside_group(members) {
            Some(peer) => Err((
                format!(
                    "the custom algorithm names peer {peer}, but the group has {members} members"
                ),
                "an algorithm for as many positions as the group has members",
            )),
            None => Ok(()),
        }
    }

    /// Returns the dimensions that the node's mask `mask` selects for a collective. The collective divides all NPUs
    /// into parts along these dimensions. Returns `None` if the mask has no effect. A custom algorithm has no
    /// dimensions, and a `one…` algorithm uses all NPUs if the mask includes its entry in the list. The second value
    /// returned is false if the mask includes no entry of the list; ASTRA-sim then skips the collective.
    pub(super) fn masked_dimensions_and_whether_to_run(
        &self,
        kind: CollectiveKind,
        mask: u32,
        node: u64,
    ) -> (Option<u32>, bool) {
        if self.custom_algorithm_index(kind, node).is_some() {
            return (None, true);
        }
        let one = self
            .implementations_of_collective_kind(kind)
            .iter()
            .position(|entry| entry.one);
        match one {
            Some(0) => (None, mask & 1 == 1),
            // The mask covers all earlier entries of the list, so all NPUs take part.
            Some(place) if place < 31 && mask.trailing_ones() as usize > place => (None, true),
            _ => (Some(mask), true),
        }
    }

    fn check_algorithm_runs_collective(
        &self,
        algorithm: AstraAlgorithm,
        kind: CollectiveKind,
        members: u32,
        several: bool,
    ) -> Result<(), CollectiveProblemAndAdvice> {
        let name = match algorithm {
            AstraAlgorithm::HalvingDoubling => "halvingDoubling",
            AstraAlgorithm::DoubleBinaryTree => "doubleBinaryTree",
            AstraAlgorithm::Ring if kind == CollectiveKind::AllToAll && members > MOST_ROUND => {
                return Err((
                    format!(
                        "an all-to-all round a ring of {members} members has more than 2^32 messages"
                    ),
                    "direct, which sends one message to each other member",
                ));
            }
            AstraAlgorithm::Ring | AstraAlgorithm::Direct { .. } => return Ok(()),
        };
        if self.is_algorithm_supported(algorithm, kind, members, several) {
            return Ok(());
        }
        if !members.is_power_of_two() {
            let what = match kind {
                CollectiveKind::AllGather => "which cannot form pairs at every distance",
                _ => "which is not a power of two",
            };
            return Err((
                format!("{name} among {members} members, {what}: the original stops"),
                "ring or direct, which take any number of members",
            ));
        }
        let tree = algorithm == AstraAlgorithm::DoubleBinaryTree;
        let can = match kind {
            CollectiveKind::AllReduce => true,
            CollectiveKind::AllToAll => false,
            _ => !tree,
        };
        if !can {
            return Err((
                format!("{name} has no {kind}, and the original stops"),
                "ring or direct, which have all kinds",
            ));
        }
        Err((
            format!("localBWAware needs reduce-scatter and all-gather, which {name} does not have"),
            "\"collective-optimization\": \"baseline\", or ring, direct or halvingDoubling",
        ))
    }

    /// Returns true if an algorithm can run a collective among `members`. `several` is true if the collective has
    /// more than one dimension.
    pub(super) fn is_algorithm_supported(
        &self,
        algorithm: AstraAlgorithm,
        kind: CollectiveKind,
        members: u32,
        several: bool,
    ) -> bool {
        let scatters =
            several && self.all_reduce_decomposition() == AllReduceDecomposition::LocalBwAware;
        match algorithm {
            AstraAlgorithm::Ring | AstraAlgorithm::Direct { .. } => true,
            AstraAlgorithm::HalvingDoubling => match kind {
                CollectiveKind::AllToAll => false,
                CollectiveKind::AllGather => halving_doubling::can_pair_at_each_distance(members),
                _ => members.is_power_of_two(),
            },
            AstraAlgorithm::DoubleBinaryTree => {
                members.is_power_of_two() && kind == CollectiveKind::AllReduce && !scatters
            }
        }
    }
}
