//! Scales a job to more or fewer ranks, by copying ranks along one dimension of a rank grid.
//!
//! The ranks of a job form a grid of named dimensions, outermost first. With `dp=2,tp=4`, rank `r` has the coordinates
//! `(r / 4, r % 4)`. The size of one dimension changes from `D` to `D'`. A new rank has a coordinate `x'` in this
//! dimension; it copies the old rank whose coordinate there is `x' mod D` and whose other coordinates are the same. The
//! new rank is in *block* `x' / D`.
//!
//! | item | becomes |
//! |---|---|
//! | a group with all coordinates along the dimension | one group with all new coordinates, in ascending order |
//! | a group whose members have one coordinate there | the group itself, and a copy with a new name for every further block |
//! | a group with only some of the coordinates | an error, because its larger form is undefined |
//! | all ranks | all new ranks |
//! | a root | the member with the same coordinates, modulo `D'` along the dimension |
//! | the peer of a message, if both ends have the same coordinate along the dimension | the peer's copy in the same block |
//! | a message along the dimension | a message with the same step from the rank's own coordinate, modulo `D'`, if all ranks along the dimension send the same messages; an error otherwise |
//!
//! If a step is half of the ring, both directions are possible; the scaling uses the forward direction. If `D` is 1,
//! a group with one member counts as a group along the dimension, and a larger group counts as a group across it.
//!
//! # Bytes
//!
//! A buffer that every member has in full (such as the gradients in an all-reduce) keeps its size. For sharded buffers,
//! [`ShardedBufferKeptSize`] states which size stays constant: the whole buffer or each member's shard. If a group
//! grows from `m` to `m'` members, the sizes change as follows:
//!
//! | `comm_size` | keep-total | keep-shard |
//! |---|---|---|
//! | all-gather, gather: a member's shard | `m / m'` of it | the same |
//! | reduce-scatter, scatter: the whole | the same | `m' / m` of it |
//! | all-to-all: everything that a member sends | the same | `m' / m` of it |
//!
//! Fractions are rounded up. Kernels keep their work, although kernels that process shards may have less work in the
//! scaled job.

use chakram_base::setting::{EnumeratedSetting, SettingKey};
use chakram_trace::format::encoder::{self, ProtobufMessageBuilder};
use chakram_trace::format::groups::{DeclaredGroups, parse_group_metadata};
use chakram_trace::format::roles::GroupRoles;
use chakram_trace::format::scan::{self};
use chakram_trace::format::wire::FrameCursor;
use chakram_trace::format::{GroupName, Op, TraceError};
use std::collections::BTreeMap;

mod grid;
mod group_scaling;
mod rank_writer;

pub use grid::{RankGridDimensions, ScaledDimension};
use group_scaling::{ScalingEffectOnGroup, TakenGroupNames};
use rank_writer::ScaledRankWriter;

/// The size that scaling keeps constant for a sharded buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardedBufferKeptSize {
    /// Size of the whole buffer. Weights and optimizer states, for example, do not grow with the number of replicas.
    KeepTotal,
    /// Size of each member's shard.
    KeepShard,
}

impl EnumeratedSetting for ShardedBufferKeptSize {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::KeepTotal,
            "keep-total",
            "Total size: weights and optimizer states do not grow with replicas",
        ),
        (Self::KeepShard, "keep-shard", "Size of each member's shard"),
    ];
}

/// How many steps along the dimension lead from the sender to the receiver, and the peer's other coordinates.
type StepsAndOtherPeerCoordinates = (i64, (u32, u32));

/// A message along the dimension: true for a receive; the number of steps from the sender; the peer's other
/// coordinates; the tag; the bytes.
type GridMessageOffsetTagBytes = (bool, i64, (u32, u32), i32, u64);

/// Scales a job along one dimension. Stores the dimension, the rule for sharded buffers, and the job's groups.
#[derive(Debug)]
pub struct JobScaler {
    along: ScaledDimension,
    sharded: ShardedBufferKeptSize,
    /// Groups declared outside the traces.
    declared: DeclaredGroups,
    /// For each rank, the groups declared in its trace.
    own: BTreeMap<u32, DeclaredGroups>,
    names: TakenGroupNames,
    crossings: BTreeMap<u32, Vec<GridMessageOffsetTagBytes>>,
    /// For each rank, true if all of its copies have equal traces.
    alike: BTreeMap<u32, bool>,
    /// True if ranks communicate along the dimension.
    exchanges: bool,
}

impl JobScaler {
    /// Creates the scaling, with the groups that are declared outside the traces.
    pub fn new(
        along: ScaledDimension,
        sharded: ShardedBufferKeptSize,
        declared: DeclaredGroups,
    ) -> Result<Self, TraceError> {
        let mut this = Self {
            along,
            sharded,
            names: TakenGroupNames::default(),
            declared: DeclaredGroups::new(),
            own: BTreeMap::new(),
            crossings: BTreeMap::new(),
            alike: BTreeMap::new(),
            exchanges: false,
        };
        for (name, ranks) in &declared {
            this.scaling_of_group(name, ranks)?;
            this.names.record_taken_name(name);
        }
        this.declared = declared;
        Ok(this)
    }

    /// Returns the scaled dimension, which maps each new rank to the rank that it copies.
    pub fn scaled_dimension(&self) -> &ScaledDimension {
        &self.along
    }

    /// Returns true if ranks communicate along the dimension. If not, the copies run independently of each other.
    pub fn exchanges_along(&self) -> bool {
        self.exchanges
    }

    /// Returns how a declared group scales; `None` for the group of all ranks, which has no name or an empty list of
    /// members.
    fn scaling_of_group(
        &self,
        name: &str,
        ranks: &[u32],
    ) -> Result<Option<ScalingEffectOnGroup>, TraceError> {
        if ranks.is_empty() || GroupName::from_text(name) == GroupName::World {
            Ok(None)
        } else {
            ScalingEffectOnGroup::for_members(&self.along, name, ranks).map(Some)
        }
    }

    /// Reads the groups and the communication in the trace of `rank`.
    ///
    /// Fails if a replay would reject the trace, or if a group does not fit the grid.
    pub fn scan_rank(&mut self, rank: u32, contents: &[u8]) -> Result<(), TraceError> {
        let mut own = DeclaredGroups::new();
        let mut records = Vec::new();
        let mut frames = FrameCursor::new(contents);
        while let Some(record) = frames.next_record()? {
            if record.number == 0 {
                continue;
            }
            let view = scan::scan_node(record, &mut scan::DependencySkippingVisitor)?;
            if let Some(values) = view.groups {
                own.extend(parse_group_metadata(view.id, values)?);
            }
            if matches!(view.op, Op::Collective { .. } | Op::Message { .. }) {
                records.push((record, view));
            }
        }
        let mut alike = true;
        for (name, ranks) in &own {
            alike &= !matches!(
                self.scaling_of_group(name, ranks)?,
                Some(ScalingEffectOnGroup::Copied)
            );
            self.names.record_taken_name(name);
        }
        self.own.insert(rank, own);
        // Sort by id, because replays match messages in id order, not in file order.
        records.sort_by_key(|(_, view)| view.id);
        let mut crossings = Vec::new();
        for (record, view) in records {
            let at = |e: TraceError| e.in_record(record.number, record.offset);
            match view.op {
                Op::Collective { group, .. } => {
                    let (_, shape) = self
                        .group_members_and_scaling_of_node(rank, view.id, group)
                        .map_err(at)?;
                    // A group's copies get new names, so the copies of a rank run different collectives.
                    alike &= shape != Some(ScalingEffectOnGroup::Copied);
                    self.exchanges |= shape != Some(ScalingEffectOnGroup::Copied);
                }
                Op::Message {
                    receive,
                    peer,
                    tag,
                    bytes,
                    ..
                } => {
                    // Messages name their peers by rank, so the copies of a rank have different messages.
                    alike = false;
                    if let Some((step, others)) = self
                        .grid_offset_of_message_peer(rank, view.id, receive, peer)
                        .map_err(at)?
                    {
                        self.exchanges = true;
                        crossings.push((receive, step, others, tag, bytes));
                    }
                }
                _ => {}
            }
        }
        self.crossings.insert(rank, crossings);
        self.alike.insert(rank, alike);
        Ok(())
    }

    /// Returns the members of the group that a node of `rank` uses (an empty list means all ranks), and how the
    /// group scales.
    fn group_members_and_scaling_of_node(
        &self,
        rank: u32,
        node: u64,
        group: GroupName<'_>,
    ) -> Result<(&[u32], Option<ScalingEffectOnGroup>), TraceError> {
        let Some(name) = group.to_text() else {
            return Ok((&[], None));
        };
        let own = self.own.get(&rank).and_then(|own| own.get(&name));
        match self.declared.get(&name).or(own) {
            Some(ranks) => Ok((ranks, self.scaling_of_group(&name, ranks)?)),
            None => Err(TraceError::invalid_node(
                node,
                format!(
                    "the node's group `{}` is not declared",
                    chakram_trace::format::escape_and_shorten_name(&name)
                ),
                format!("pass the groups with {} FILE", SettingKey::Groups),
            )),
        }
    }

    /// Returns how many steps along the dimension lead from a message's sender to its receiver, and the peer's other
    /// coordinates. Returns `None` if sender and receiver have the same coordinate along the dimension.
    fn grid_offset_of_message_peer(
        &self,
        rank: u32,
        node: u64,
        receive: bool,
        peer: u32,
    ) -> Result<Option<StepsAndOtherPeerCoordinates>, TraceError> {
        if peer >= self.along.original_rank_count() {
            return Err(TraceError::invalid_node(
                node,
                format!(
                    "the node's peer is rank {peer}, but the grid has {}",
                    self.along.original_rank_count()
                ),
                format!("give a {} of all ranks of the job", SettingKey::Grid),
            ));
        }
        let (own, far) = (
            self.along.coordinates_of_original_rank(rank),
            self.along.coordinates_of_original_rank(peer),
        );
        if own.x == far.x {
            return Ok(None);
        }
        let (from, to) = if receive {
            (far.x, own.x)
        } else {
            (own.x, far.x)
        };
        let size = i64::from(self.along.original_size());
        // Count steps in the shorter direction around the ring. If both directions are equally
        // long, count forward.
        let forward = (i64::from(to) - i64::from(from)).rem_euclid(size);
        let step = if forward * 2 > size {
            forward - size
        } else {
            forward
        };
        Ok(Some((step, (far.outer, far.inner))))
    }

    /// Checks that all ranks along the scaled dimension send the same messages along it.
    pub fn check_ranks_send_equal_messages(&self) -> Result<(), TraceError> {
        for (&rank, crossings) in &self.crossings {
            let place = self.along.coordinates_of_original_rank(rank);
            // Compare each rank with the first rank along the dimension.
            let first = self.along.original_rank_at(0, place);
            let expected = self.crossings.get(&first);
            if expected.is_some_and(|expected| expected != crossings) {
                return Err(refuse_scaling(
                    format!(
                        "ranks {first} and {rank} send different messages along `{}`, so the \
                         messages of further ranks are unknown",
                        self.along.dimension_name()
                    ),
                    "scale along a dimension that no messages cross, or that messages cross in a ring",
                ));
            }
        }
        Ok(())
    }

    /// Returns true if all copies of `rank` have equal traces.
    pub fn has_copies_with_equal_traces(&self, rank: u32) -> bool {
        self.alike.get(&rank).copied().unwrap_or(false)
    }

    /// Returns the scaled form of the groups that are declared outside the traces.
    pub fn scale_declared_groups(&self) -> DeclaredGroups {
        let mut groups = DeclaredGroups::new();
        for (name, ranks) in &self.declared {
            let shape = self.scaling_of_group(name, ranks).ok().flatten();
            for block in 0..self.along.count_original_sized_blocks() {
                if let Some((name, ranks)) = self.scale_group_in_block(name, ranks, shape, block) {
                    groups.insert(name, ranks);
                }
            }
        }
        groups
    }

    /// Returns `roles` plus the roles of the copied groups: a copy in another block has the same role as the original.
    pub fn add_roles_of_copied_groups(&self, roles: &GroupRoles) -> GroupRoles {
        let mut scaled = roles.clone();
        for (name, ranks) in &self.declared {
            let shape = self.scaling_of_group(name, ranks).ok().flatten();
            for block in 1..self.along.count_original_sized_blocks() {
                if let (Some(ScalingEffectOnGroup::Copied), Some(role)) =
                    (shape, roles.role_of_group(name))
                    && let Ok(number) = self.names.name_of_group_copy(name, block).parse()
                {
                    scaled.add_role(number, role);
                }
            }
        }
        scaled
    }

    /// Returns the name and members of a group in `block`; `None` if `block` does not contain all members.
    fn scale_group_in_block(
        &self,
        name: &str,
        ranks: &[u32],
        shape: Option<ScalingEffectOnGroup>,
        block: u32,
    ) -> Option<(String, Vec<u32>)> {
        match shape {
            None => {
                let all = 0..self.along.scaled_rank_count();
                // An empty list means all ranks, in the scaled job as well.
                let ranks = if ranks.is_empty() {
                    Vec::new()
                } else {
                    all.collect()
                };
                Some((name.to_owned(), ranks))
            }
            Some(ScalingEffectOnGroup::Grows) => {
                Some((name.to_owned(), self.along.scale_members(ranks)))
            }
            Some(ScalingEffectOnGroup::Copied) => {
                // The last block may be incomplete, so omit any group that has a missing member.
                let ranks: Option<Vec<u32>> = ranks
                    .iter()
                    .map(|&rank| {
                        self.along
                            .new_rank_in_block(self.along.coordinates_of_original_rank(rank), block)
                    })
                    .collect();
                Some((self.names.name_of_group_copy(name, block), ranks?))
            }
        }
    }

    /// Writes the trace of the new rank `rank`; `contents` is the trace of the rank that it copies.
    pub fn build_trace_of_new_rank(
        &self,
        rank: u32,
        contents: &[u8],
    ) -> Result<Vec<u8>, TraceError> {
        let (old, block) = self.along.source_rank_and_block(rank);
        let mut out = Vec::with_capacity(contents.len());
        let mut message = ProtobufMessageBuilder::default();
        let mut frames = FrameCursor::new(contents);
        let writing = ScaledRankWriter {
            scaling: self,
            old,
            new: rank,
            block,
        };
        while let Some(record) = frames.next_record()? {
            message.clear();
            let made = match record.number {
                0 => writing
                    .write_metadata_without_own_rank(record, &mut message)
                    .map(|()| true),
                _ => writing.write_node_if_changed(record, &mut message),
            };
            if made.map_err(|e| e.in_record(record.number, record.offset))? {
                message.append_frame_to(&mut out)
            } else {
                encoder::append_frame(&mut out, record.bytes)
            }
        }
        Ok(out)
    }
}

fn refuse_scaling(found: String, hint: &str) -> TraceError {
    TraceError::invalid_at(
        chakram_trace::format::TraceErrorLocation::default(),
        found,
        hint,
    )
}

#[cfg(test)]
mod tests;
