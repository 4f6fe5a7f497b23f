//! Writes a new rank's trace.

use super::group_scaling::ScalingEffectOnGroup;
use super::{JobScaler, ShardedBufferKeptSize};
use crate::edit::for_each_attribute;
use chakram_base::setting::SettingKey;
use chakram_trace::format::attr::AttrView;
use chakram_trace::format::encoder::ProtobufMessageBuilder;
use chakram_trace::format::groups::rewrite_group_metadata;
use chakram_trace::format::rewrite::{AttributeSetOrRemoval, RecordEdit};
use chakram_trace::format::roles;
use chakram_trace::format::scan::{self, NodeView};
use chakram_trace::format::split_sizes::{RECEIVE_BYTES, SEND_BYTES};
use chakram_trace::format::wire::{RawRecord, WireCursor, WireValue};
use chakram_trace::format::work_amounts;
use chakram_trace::format::{CollectiveKind, GroupName, Op, TraceError};

/// Writes the trace of one new rank, record by record.
pub(super) struct ScaledRankWriter<'s> {
    pub scaling: &'s JobScaler,
    pub old: u32,
    pub new: u32,
    pub block: u32,
}

/// Attributes to change, each with its new value.
type AttributeEditList<'e> = Vec<(&'e str, AttributeSetOrRemoval<'e>)>;

impl ScaledRankWriter<'_> {
    /// Writes the metadata record with the new number of ranks. Removes the rank's own number, so that ranks with equal
    /// traces can share a file.
    pub fn write_metadata_without_own_rank(
        &self,
        record: RawRecord<'_>,
        out: &mut ProtobufMessageBuilder,
    ) -> Result<(), TraceError> {
        let ranks = AttributeSetOrRemoval::Count(u64::from(self.scaling.along.scaled_rank_count()));
        // Roles refer to groups by number, and copied groups get new numbers, so remove the roles.
        let mut sets: AttributeEditList<'_> = vec![
            ("rank", AttributeSetOrRemoval::Remove),
            (roles::ATTRIBUTE, AttributeSetOrRemoval::Remove),
            // With a different number of ranks, the job may do a different amount of work, so remove the recorded
            // amounts.
            (work_amounts::ATTRIBUTE, AttributeSetOrRemoval::Remove),
        ];
        let mut fields = WireCursor::new(record.bytes, record.offset);
        while !fields.is_empty() {
            if let (2, WireValue::Bytes(message, at)) = fields.read_field()?
                && AttrView::scan_attribute(message, at)?.name == b"world_size"
            {
                sets.push(("world_size", ranks));
                break;
            }
        }
        let edit = RecordEdit {
            attributes: &sets,
            ..RecordEdit::default()
        };
        edit.write_edited(record, out)
    }

    /// Writes the node if it changes. Returns true if the node was written.
    pub fn write_node_if_changed(
        &self,
        record: RawRecord<'_>,
        out: &mut ProtobufMessageBuilder,
    ) -> Result<bool, TraceError> {
        let view = scan::scan_node(record, &mut scan::DependencySkippingVisitor)?;
        let values = match view.groups {
            None => None,
            Some(values) => Some(rewrite_group_metadata(view.id, values, |name, ranks| {
                let shape = self.scaling.scaling_of_group(name, ranks)?;
                Ok(self
                    .scaling
                    .scale_group_in_block(name, ranks, shape, self.block))
            })?),
        };
        let mut name = String::new();
        let sets = match view.op {
            Op::Collective { .. } => self.list_collective_attribute_edits(&view, &mut name)?,
            Op::Message { .. } => self.edit_message(&view)?,
            _ => AttributeEditList::new(),
        };
        // Only change attributes that the node has; add none.
        let mut there = AttributeEditList::new();
        if !sets.is_empty() {
            let mut scales = Vec::new();
            for_each_attribute(record, |attr| {
                let found = sets.iter().find(|(name, _)| name.as_bytes() == attr.name);
                if let Some(&(name, set)) = found
                    && attr.is_set()
                    && !there.iter().any(|(known, _)| *known == name)
                {
                    there.push((name, set));
                }
                for side in ["in_bytes", "out_bytes"] {
                    if attr.name == side.as_bytes() {
                        scales.push((side, attr.as_count()?));
                    }
                }
                Ok(())
            })?;
            if let Op::Collective { kind, group, .. } = view.op {
                for (side, bytes) in scales {
                    let scaled = self.scale_collective_buffer_bytes(
                        &view,
                        kind,
                        group,
                        side == "in_bytes",
                        bytes,
                    )?;
                    there.retain(|(name, _)| *name != side);
                    there.push((side, AttributeSetOrRemoval::Count(scaled)));
                }
            }
        }
        let edit = RecordEdit {
            values: values.as_deref(),
            attributes: &there,
            ..RecordEdit::default()
        };
        if edit.is_empty() {
            return Ok(false);
        }
        edit.write_edited(record, out)?;
        Ok(true)
    }

    /// Returns how many members a group has in the old and in the new job.
    fn old_and_new_group_sizes(
        &self,
        view: &NodeView<'_>,
        group: GroupName<'_>,
    ) -> Result<(u64, u64), TraceError> {
        let along = &self.scaling.along;
        let (ranks, shape) = self
            .scaling
            .group_members_and_scaling_of_node(self.old, view.id, group)?;
        Ok(match shape {
            None => (
                along.original_rank_count().into(),
                along.scaled_rank_count().into(),
            ),
            Some(ScalingEffectOnGroup::Copied) => (ranks.len() as u64, ranks.len() as u64),
            Some(ScalingEffectOnGroup::Grows) => {
                let lines = ranks.len() as u64 / u64::from(along.original_size());
                (
                    ranks.len() as u64,
                    lines * u64::from(along.scaled_dimension_size()),
                )
            }
        })
    }

    fn list_collective_attribute_edits<'e>(
        &self,
        view: &NodeView<'_>,
        name: &'e mut String,
    ) -> Result<AttributeEditList<'e>, TraceError> {
        let Op::Collective {
            kind,
            bytes,
            group,
            root,
            ..
        } = view.op
        else {
            return Ok(AttributeEditList::new());
        };
        let along = &self.scaling.along;
        let (old, new) = self.old_and_new_group_sizes(view, group)?;
        let shape = self
            .scaling
            .group_members_and_scaling_of_node(self.old, view.id, group)?
            .1;
        let mut sets = AttributeEditList::new();
        let size = self.scale_collective_bytes(view.id, kind, bytes, old, new)?;
        if size != bytes || old != new {
            sets.push(("comm_size", AttributeSetOrRemoval::Count(size)));
        }
        if old != new {
            // Remove the lists of sizes, because the sizes exchanged with new members are unknown.
            sets.push((SEND_BYTES, AttributeSetOrRemoval::Remove));
            sets.push((RECEIVE_BYTES, AttributeSetOrRemoval::Remove));
        }
        if let Some(root) = root {
            if root >= along.original_rank_count() {
                return Err(TraceError::invalid_node(
                    view.id,
                    format!(
                        "the collective's root is rank {root}, but the grid has {}",
                        along.original_rank_count()
                    ),
                    format!("give a {} of all ranks of the job", SettingKey::Grid),
                ));
            }
            let place = along.coordinates_of_original_rank(root);
            let moved = match shape {
                Some(ScalingEffectOnGroup::Copied) => along.new_rank_in_block(place, self.block),
                _ => Some(along.new_rank_at(place.x % along.scaled_dimension_size(), place)),
            };
            sets.push((
                "comm_root",
                AttributeSetOrRemoval::Count(u64::from(moved.unwrap_or(root))),
            ));
        }
        if let (Some(ScalingEffectOnGroup::Copied), 1.., Some(old)) =
            (shape, self.block, group.to_text())
        {
            *name = self.scaling.names.name_of_group_copy(&old, self.block);
            sets.push(("pg_name", AttributeSetOrRemoval::Text(name)));
            // Tools name the group in one of two attributes; set only the one that the node has.
            sets.push(("comm_group", AttributeSetOrRemoval::Text(name)));
        }
        Ok(sets)
    }

    fn edit_message<'e>(&self, view: &NodeView<'_>) -> Result<AttributeEditList<'e>, TraceError> {
        let Op::Message { receive, peer, .. } = view.op else {
            return Ok(AttributeEditList::new());
        };
        let along = &self.scaling.along;
        let own = along.coordinates_of_new_rank(self.new);
        let far = along.coordinates_of_original_rank(peer);
        let moved = match self
            .scaling
            .grid_offset_of_message_peer(self.old, view.id, receive, peer)?
        {
            None => along.new_rank_at(own.x, far),
            Some((step, _)) => {
                // Steps are counted from the sender, so a receiver's step to its peer has the opposite sign.
                let step = if receive { -step } else { step };
                let size = i64::from(along.scaled_dimension_size());
                let x = (i64::from(own.x) + step).rem_euclid(size) as u32;
                along.new_rank_at(x, far)
            }
        };
        if moved == self.new {
            return Err(TraceError::invalid_node(
                view.id,
                format!(
                    "rank {moved} would send a message to itself along `{}`",
                    along.dimension_name()
                ),
                "scale to a larger size",
            ));
        }
        let (far, near) = if receive {
            ("comm_src", "comm_dst")
        } else {
            ("comm_dst", "comm_src")
        };
        Ok(vec![
            (far, AttributeSetOrRemoval::Count(moved.into())),
            (near, AttributeSetOrRemoval::Count(self.new.into())),
        ])
    }

    /// Returns the value of `comm_size` for a group that grows or shrinks from `old` to `new` members.
    fn scale_collective_bytes(
        &self,
        node: u64,
        kind: CollectiveKind,
        bytes: u64,
        old: u64,
        new: u64,
    ) -> Result<u64, TraceError> {
        use CollectiveKind as K;
        match (self.scaling.sharded, kind) {
            (ShardedBufferKeptSize::KeepTotal, K::AllGather | K::Gather) => {
                scale_rounding_up(node, bytes, old, new)
            }
            (ShardedBufferKeptSize::KeepShard, K::ReduceScatter | K::Scatter | K::AllToAll) => {
                scale_rounding_up(node, bytes, new, old)
            }
            _ => Ok(bytes),
        }
    }

    /// Returns the bytes that a call receives or sends in the scaled job.
    fn scale_collective_buffer_bytes(
        &self,
        view: &NodeView<'_>,
        kind: CollectiveKind,
        group: GroupName<'_>,
        input: bool,
        bytes: u64,
    ) -> Result<u64, TraceError> {
        use CollectiveKind as K;
        let (old, new) = self.old_and_new_group_sizes(view, group)?;
        let gathers = matches!(kind, K::AllGather | K::Gather);
        let scatters = matches!(kind, K::ReduceScatter | K::Scatter);
        let part = gathers && input || scatters && !input;
        let whole = gathers && !input || scatters && input || kind == K::AllToAll;
        match self.scaling.sharded {
            ShardedBufferKeptSize::KeepTotal if part => scale_rounding_up(view.id, bytes, old, new),
            ShardedBufferKeptSize::KeepShard if whole => {
                scale_rounding_up(view.id, bytes, new, old)
            }
            _ => Ok(bytes),
        }
    }
}

/// Returns `bytes * over / under`, rounded up.
fn scale_rounding_up(node: u64, bytes: u64, over: u64, under: u64) -> Result<u64, TraceError> {
    let scaled = (u128::from(bytes) * u128::from(over)).div_ceil(u128::from(under.max(1)));
    let scaled = u64::try_from(scaled).ok().filter(|&n| n <= i64::MAX as u64);
    scaled.ok_or_else(|| {
        TraceError::invalid_node(
            node,
            format!("the node's {bytes} bytes times {over}/{under} are more than 2^63"),
            format!(
                "scale to fewer ranks, or with {} keep-total",
                SettingKey::Sharded
            ),
        )
    })
}
