//! The rank grid of a job. Converts the peers and groups of the model, a captured rank, to those of the new rank.

use super::{CapturedRank, PipelineStagePosition, build_missing_stage_error};
use chakram_trace::format::TraceError;
use std::collections::{BTreeMap, BTreeSet};

/// A dimension of the grid: the distance between neighbouring ranks, and the number of coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DimensionStrideAndSize {
    stride: u32,
    size: u32,
}

impl DimensionStrideAndSize {
    fn coordinate_of(self, rank: u32) -> u32 {
        rank / self.stride % self.size
    }
}

/// A grid of ranks, innermost dimension first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StridedRankGrid {
    dimensions: Vec<DimensionStrideAndSize>,
    /// Index of the stage dimension, if there is one.
    stages: Option<usize>,
    replicas: Option<usize>,
}

/// Returns the distance between adjacent members and the number of members; `None` if the members are not evenly
/// spaced.
pub(super) fn find_stride_and_count_of_members(members: &[u32]) -> Option<(u32, u32)> {
    let (first, second) = (members.first()?, members.get(1)?);
    let stride = second.checked_sub(*first).filter(|stride| *stride > 0)?;
    let even = members
        .windows(2)
        .all(|pair| pair[0].checked_add(stride) == Some(pair[1]));
    even.then_some((stride, members.len() as u32))
}

impl StridedRankGrid {
    /// Derives the grid of `world` ranks from the messages and reductions of captured ranks.
    pub(super) fn derive_grid_from_captured_ranks(
        captured: &[CapturedRank],
        world: u32,
    ) -> Result<Self, TraceError> {
        let unknown = |why: &str| {
            crate::edit::what_if::refuse_edit(
                format!("the roles of the job's ranks are unknown: {why}"),
                "capture all ranks, or generate the job",
            )
        };
        let mut known: BTreeMap<u32, (Option<u32>, bool)> = BTreeMap::new();
        let mut shared: Option<BTreeSet<(u32, u32)>> = None;
        for one in captured {
            shared = Some(match shared {
                None => one.reductions.clone(),
                Some(shared) => shared.intersection(&one.reductions).copied().collect(),
            });
        }
        // Replicas form the largest group. Smaller groups may serve another purpose: for example, stages may share an
        // embedding.
        let largest = shared
            .unwrap_or_default()
            .into_iter()
            .max_by_key(|&(_, size)| size);
        // If only the first and last stage reduce gradients, they share weights, and the ranks are not replicas. So
        // reject the job only if all ranks reduce gradients.
        if largest.is_none() && captured.iter().all(|one| !one.reductions.is_empty()) {
            return Err(unknown(
                "ranks reduce gradients in groups of different shapes",
            ));
        }
        if let Some((stride, size)) = largest {
            known.insert(stride, (Some(size), false));
        }
        let mut step = None;
        for one in captured {
            let Some(next) = one.next else { continue };
            let own = next - one.rank;
            if *step.get_or_insert(own) != own {
                return Err(unknown(
                    "messages to the next stage go to ranks at different distances",
                ));
            }
        }
        let is_far = |one: &CapturedRank| {
            let mut peers = one.peers.iter();
            peers.any(|peer| Some(peer.abs_diff(one.rank)) != step)
        };
        if step.is_some() && captured.iter().any(is_far) {
            return Err(unknown(
                "messages skip stages, as in schedules with several chunks per stage",
            ));
        }
        let last = captured
            .iter()
            .find(|one| one.place == PipelineStagePosition::Last);
        if step.is_none() && last.is_some() {
            return Err(build_missing_stage_error(PipelineStagePosition::First));
        }
        if let Some(stride) = step
            && known.insert(stride, (None, true)).is_some()
        {
            return Err(unknown(
                "stages and replicas have the same distance between ranks",
            ));
        }
        let next_strides: Vec<u32> = known.keys().copied().skip(1).chain([world]).collect();
        let mut this = Self {
            dimensions: Vec::new(),
            stages: None,
            replicas: None,
        };
        let mut inner = 1;
        let uneven = || unknown("stages and replicas do not form a grid of ranks");
        for ((stride, (size, is_stages)), outer) in known.into_iter().zip(next_strides) {
            if !stride.is_multiple_of(inner) {
                return Err(uneven());
            }
            if stride > inner {
                let size = stride / inner;
                this.dimensions.push(DimensionStrideAndSize {
                    stride: inner,
                    size,
                });
            }
            let size = match (size, last) {
                (Some(size), _) => size,
                (None, Some(last)) => last.rank / stride % (outer / stride).max(1) + 1,
                (None, None) => return Err(build_missing_stage_error(PipelineStagePosition::Last)),
            };
            let index = this.dimensions.len();
            if is_stages {
                this.stages = Some(index);
            } else {
                this.replicas = Some(index);
            }
            this.dimensions
                .push(DimensionStrideAndSize { stride, size });
            inner = stride.checked_mul(size).ok_or_else(uneven)?;
        }
        if !world.is_multiple_of(inner) {
            return Err(uneven());
        }
        if world > inner {
            let size = world / inner;
            this.dimensions.push(DimensionStrideAndSize {
                stride: inner,
                size,
            });
        }
        for one in captured {
            if this.stage_kind_of_rank(one.rank) != one.place {
                return Err(unknown(&format!(
                    "rank {} is of the {} stage by its index among {world} ranks, but communicates like the {} stage",
                    one.rank,
                    this.stage_kind_of_rank(one.rank).name_of_place(),
                    one.place.name_of_place()
                )));
            }
        }
        Ok(this)
    }

    pub(super) fn stage_of(&self, rank: u32) -> u32 {
        self.stages
            .map_or(0, |at| self.dimensions[at].coordinate_of(rank))
    }

    pub(super) fn stage_count(&self) -> u32 {
        self.stages.map_or(1, |at| self.dimensions[at].size)
    }

    pub(super) fn stage_kind_of_rank(&self, rank: u32) -> PipelineStagePosition {
        PipelineStagePosition::from_stage(self.stage_of(rank), self.stage_count())
    }

    /// Returns the grid with `stages` stages instead of its own number; `None` if the grid has no stage dimension, or
    /// if there would be too many ranks.
    pub(super) fn grid_with_stage_count(&self, stages: u32) -> Option<Self> {
        let at = self.stages?;
        let mut dimensions = self.dimensions.clone();
        dimensions[at].size = stages;
        let mut stride = 1_u32;
        for dimension in &mut dimensions {
            dimension.stride = stride;
            stride = stride.checked_mul(dimension.size)?;
        }
        Some(Self {
            dimensions,
            stages: self.stages,
            replicas: self.replicas,
        })
    }

    pub(super) fn rank_count(&self) -> u32 {
        self.dimensions.iter().map(|one| one.size).product()
    }

    /// Returns the rank in stage `stage` of this grid whose other coordinates are those of `rank` in the grid `other`.
    pub(super) fn rank_at_stage_and_other_coordinates(
        &self,
        stage: u32,
        other: &Self,
        rank: u32,
    ) -> u32 {
        let dimensions = self.dimensions.iter().zip(&other.dimensions).enumerate();
        let offsets = dimensions.map(|(at, (own, of_other))| {
            let x = match self.stages == Some(at) {
                true => stage,
                false => of_other.coordinate_of(rank),
            };
            x * own.stride
        });
        offsets.sum()
    }

    /// Returns true if two ranks have equal coordinates in all dimensions except stage and replica.
    pub(super) fn differ_only_in_stage_or_replica(&self, a: u32, b: u32) -> bool {
        self.dimensions.iter().enumerate().all(|(at, dimension)| {
            [self.stages, self.replicas].contains(&Some(at))
                || dimension.coordinate_of(a) == dimension.coordinate_of(b)
        })
    }

    /// Returns the rank in the grid `target` that is as far from `to` as `peer` is from `from` in this grid; `None` if
    /// that rank would be outside the pipeline.
    pub(super) fn peer_at_same_offset_in_grid(
        &self,
        peer: u32,
        from: u32,
        to: u32,
        target: &Self,
    ) -> Option<u32> {
        let mut moved = 0;
        let dimensions = self.dimensions.iter().zip(&target.dimensions);
        for (at, (dimension, new)) in dimensions.enumerate() {
            let [peer, from] = [peer, from].map(|rank| i64::from(dimension.coordinate_of(rank)));
            let size = i64::from(new.size);
            let x = i64::from(new.coordinate_of(to)) + peer - from;
            let x = match self.stages == Some(at) {
                true => Some(x).filter(|x| (0..size).contains(x))?,
                false => x.rem_euclid(size),
            };
            moved += x as u32 * new.stride;
        }
        Some(moved)
    }

    /// Returns the group of rank `to` in the grid `target` that corresponds to the group `members` of rank `from`;
    /// `None` if there is no corresponding group.
    pub(super) fn corresponding_members(
        &self,
        members: &[u32],
        from: u32,
        to: u32,
        target: &Self,
    ) -> Option<Vec<u32>> {
        let mut moved = vec![0; members.len()];
        let dimensions = self.dimensions.iter().zip(&target.dimensions);
        for (at, (dimension, target)) in dimensions.enumerate() {
            let xs: BTreeSet<u32> = members
                .iter()
                .map(|&rank| dimension.coordinate_of(rank))
                .collect();
            let (old, new) = (dimension.coordinate_of(from), target.coordinate_of(to));
            let all: Vec<u32> = xs.iter().copied().collect();
            let is_restaged = self.stages == Some(at) && dimension.size != target.size;
            let (first, last) = (0, dimension.size - 1);
            let block = |x: u32| -> Option<u32> {
                let (stride, count) = find_stride_and_count_of_members(&all)?;
                let length = stride.checked_mul(count)?;
                let is_aligned = x / length == old / length && x % stride == old % stride;
                let moved = new / length * length + x / stride % count * stride + new % stride;
                (is_aligned && moved < dimension.size).then_some(moved)
            };
            for (rank, &member) in moved.iter_mut().zip(members) {
                let x = dimension.coordinate_of(member);
                let x = match all[..] {
                    [_] => new,
                    // A group that spans several stages must consist of the first and last stage, which share weights.
                    _ if is_restaged => match x {
                        _ if all != [first, last] => return None,
                        0 => 0,
                        _ => target.size - 1,
                    },
                    _ if xs.contains(&new) => x,
                    _ => block(x)?,
                };
                *rank += x * target.stride;
            }
        }
        moved.contains(&to).then_some(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_4_stage_2_replica_4_shard_grid() -> StridedRankGrid {
        // The grid has 4 stages, 2 replicas and 4 shards, so rank = 8 stage + 4 replica + shard.
        StridedRankGrid {
            dimensions: [(1, 4), (4, 2), (8, 4)]
                .map(|(stride, size)| DimensionStrideAndSize { stride, size })
                .to_vec(),
            stages: Some(2),
            replicas: Some(1),
        }
    }

    #[test]
    fn groups_and_peers_move_with_their_rank() {
        let grid = build_4_stage_2_replica_4_shard_grid();
        // The replicas of shard 1 in stage 1 are ranks 9 and 13, and the replicas of shard 2 in stage 3 are ranks 26
        // and 30.
        assert_eq!(
            grid.corresponding_members(&[9, 13], 9, 26, &grid),
            Some(vec![26, 30])
        );
        // The result keeps the order of the original group's members.
        assert_eq!(
            grid.corresponding_members(&[1, 0, 2, 3], 1, 31, &grid),
            Some(vec![29, 28, 30, 31])
        );
        // Each group contains half of the shards: 0 and 1, or 2 and 3.
        assert_eq!(
            grid.corresponding_members(&[0, 1], 0, 7, &grid),
            Some(vec![6, 7])
        );
        // The group contains the first and the last stage, so a middle stage has no such group.
        assert_eq!(
            grid.corresponding_members(&[0, 24], 0, 6, &grid),
            Some(vec![6, 30])
        );
        assert_eq!(grid.corresponding_members(&[0, 24], 0, 8, &grid), None);
        assert_eq!(grid.peer_at_same_offset_in_grid(8, 0, 6, &grid), Some(14));
        assert_eq!(grid.peer_at_same_offset_in_grid(16, 8, 24, &grid), None);
        // Shard 3 sends to shard 0, because shards form a ring.
        assert_eq!(grid.peer_at_same_offset_in_grid(1, 0, 3, &grid), Some(0));
    }

    /// With six stages instead of four, rank = 8 stage + 4 replica + shard still holds; the last stage begins at rank
    /// 40.
    #[test]
    fn more_stages_keep_the_other_coordinates() {
        let (grid, more) = (
            build_4_stage_2_replica_4_shard_grid(),
            build_4_stage_2_replica_4_shard_grid()
                .grid_with_stage_count(6)
                .unwrap(),
        );
        assert_eq!((more.rank_count(), more.stage_of(47)), (48, 5));
        // Rank 47 is shard 3 of replica 1 in the last stage, as rank 31 is with four stages.
        assert_eq!(grid.rank_at_stage_and_other_coordinates(3, &more, 47), 31);
        assert_eq!(
            grid.peer_at_same_offset_in_grid(23, 31, 47, &more),
            Some(39)
        );
        assert_eq!(grid.peer_at_same_offset_in_grid(16, 8, 40, &more), None);
        assert_eq!(
            grid.corresponding_members(&[27, 31], 31, 47, &more),
            Some(vec![43, 47])
        );
        // The first and the last stage form a group, because they share weights.
        assert_eq!(
            grid.corresponding_members(&[0, 24], 0, 6, &more),
            Some(vec![6, 46])
        );
        // A group of all stages would need more members, so there is no corresponding group.
        assert_eq!(
            grid.corresponding_members(&[0, 8, 16, 24], 0, 0, &more),
            None
        );
    }
}
