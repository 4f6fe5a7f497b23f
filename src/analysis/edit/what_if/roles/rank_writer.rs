//! Writes the trace of an uncaptured rank by changing the trace of a captured rank, the *model*.

use super::grid::StridedRankGrid;
use super::group_table::CapturedAndAddedGroupNames;
use crate::edit::for_each_attribute;
use chakram_trace::format::attr::AttrView;
use chakram_trace::format::encoder::ProtobufMessageBuilder;
use chakram_trace::format::groups::rewrite_group_metadata;
use chakram_trace::format::rewrite::{AttributeSetOrRemoval, RecordEdit};
use chakram_trace::format::scan;
use chakram_trace::format::split_sizes::{RECEIVE_BYTES, SEND_BYTES};
use chakram_trace::format::wire::{FrameCursor, RawRecord, WireCursor, WireValue};
use chakram_trace::format::{Op, TraceError, escape_and_shorten_name, roles, work_amounts};

/// Returns true if a metadata record contains the number of ranks.
fn states_rank_count(record: RawRecord<'_>) -> Result<bool, TraceError> {
    let mut fields = WireCursor::new(record.bytes, record.offset);
    while !fields.is_empty() {
        if let (2, WireValue::Bytes(message, at)) = fields.read_field()?
            && AttrView::scan_attribute(message, at)?.name == scan::WORLD_SIZE.as_bytes()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns how message tags differ between neighbouring stages: first for messages down the pipeline, then for messages
/// up the pipeline. A difference is 0 if it is unknown or if all stages use the same tags.
pub(super) fn tag_differences_between_stages(
    grid: &StridedRankGrid,
    rank: u32,
    contents: &[u8],
) -> Result<[i64; 2], TraceError> {
    // Smallest message tag in each direction (down or up the pipeline), for messages to and from the previous stage and
    // the next stage.
    let mut least: [[Option<i64>; 2]; 2] = [[None; 2]; 2];
    let own = grid.stage_of(rank);
    let mut frames = FrameCursor::new(contents);
    while let Some(record) = frames.next_record()? {
        if record.number == 0 {
            continue;
        }
        let view = scan::scan_node(record, &mut scan::DependencySkippingVisitor)?;
        if let Op::Message {
            receive, peer, tag, ..
        } = view.op
            && grid.stage_of(peer) != own
        {
            let behind = grid.stage_of(peer) > own;
            let known = &mut least[usize::from(behind == receive)][usize::from(behind)];
            *known = Some(known.map_or(i64::from(tag), |least| least.min(i64::from(tag))));
        }
    }
    Ok(least.map(|[before, behind]| match (before, behind) {
        (Some(before), Some(behind)) => behind - before,
        _ => 0,
    }))
}

/// Writes an absent rank's trace.
pub(super) struct AbsentRankWriter<'w, 'g> {
    pub(super) grid: &'w StridedRankGrid,
    /// Grid of the new job.
    pub(super) target: &'w StridedRankGrid,
    pub(super) table: &'w mut CapturedAndAddedGroupNames<'g>,
    /// Index of the captured rank that provides the trace to copy.
    pub(super) model: usize,
    pub(super) from: u32,
    pub(super) to: u32,
    /// Differences of message tags between neighbouring stages, from [`tag_differences_between_stages`].
    pub(super) tag_steps: [i64; 2],
}

impl AbsentRankWriter<'_, '_> {
    pub(super) fn write_trace(&mut self, contents: &[u8]) -> Result<Vec<u8>, TraceError> {
        let stages =
            i64::from(self.target.stage_of(self.to)) - i64::from(self.grid.stage_of(self.from));
        let mut out = Vec::with_capacity(contents.len());
        let mut message = ProtobufMessageBuilder::default();
        let mut frames = FrameCursor::new(contents);
        while let Some(record) = frames.next_record()? {
            if record.number == 0 {
                let ranks = self.target.rank_count();
                let mut sets = vec![("rank", AttributeSetOrRemoval::Remove)];
                if ranks != self.grid.rank_count() {
                    // Remove the amounts of work, because a job with more ranks may do more work. Remove the roles,
                    // because new groups have none.
                    sets.push((work_amounts::ATTRIBUTE, AttributeSetOrRemoval::Remove));
                    sets.push((roles::ATTRIBUTE, AttributeSetOrRemoval::Remove));
                    if states_rank_count(record)? {
                        sets.push((scan::WORLD_SIZE, AttributeSetOrRemoval::Count(ranks.into())));
                    }
                }
                let edit = RecordEdit {
                    attributes: &sets,
                    ..RecordEdit::default()
                };
                edit.append_edited_record(record, &mut message, &mut out)?;
                continue;
            }
            let view = scan::scan_node(record, &mut scan::DependencySkippingVisitor)?;
            let values = match view.groups {
                None => None,
                Some(values) => Some(rewrite_group_metadata(view.id, values, |name, members| {
                    self.table
                        .find_group_of_corresponding_rank(
                            [self.grid, self.target],
                            name,
                            members,
                            self.from,
                            self.to,
                        )
                        .map(Some)
                })?),
            };
            let mut new_name = String::new();
            let mut sets: Vec<(&str, AttributeSetOrRemoval<'_>)> = Vec::new();
            match view.op {
                Op::Collective { group, root, .. } => {
                    sets.push((SEND_BYTES, AttributeSetOrRemoval::Remove));
                    sets.push((RECEIVE_BYTES, AttributeSetOrRemoval::Remove));
                    let (mut old_members, mut members) = (Vec::new(), Vec::new());
                    if let Some(name) = group.to_text() {
                        let Some((known, is_group_kind_declared)) = self
                            .table
                            .group_members_with_declared_flag(self.model, &name)
                        else {
                            return Err(crate::edit::what_if::refuse_edit(
                                format!(
                                    "group `{}` is not declared",
                                    escape_and_shorten_name(&name)
                                ),
                                "pass the groups of the job",
                            ));
                        };
                        let (moved_name, moved) = self.table.find_group_of_corresponding_rank(
                            [self.grid, self.target],
                            &name,
                            &known,
                            self.from,
                            self.to,
                        )?;
                        if is_group_kind_declared && !self.table.declared.contains_key(&moved_name)
                        {
                            self.table
                                .declared
                                .insert(moved_name.clone(), moved.clone());
                        }
                        if moved_name != name {
                            new_name = moved_name;
                        }
                        (old_members, members) = (known, moved);
                    }
                    if !new_name.is_empty() {
                        sets.push(("pg_name", AttributeSetOrRemoval::Text(&new_name)));
                        sets.push(("comm_group", AttributeSetOrRemoval::Text(&new_name)));
                    }
                    if let Some(root) = root {
                        let place = old_members.iter().position(|&member| member == root);
                        let moved = place
                            .and_then(|place| members.get(place).copied())
                            .unwrap_or(root);
                        sets.push(("comm_root", AttributeSetOrRemoval::Count(moved.into())));
                    }
                }
                Op::Message {
                    receive, peer, tag, ..
                } => {
                    let behind = self.grid.stage_of(peer) > self.grid.stage_of(self.from);
                    let tag =
                        i64::from(tag) + stages * self.tag_steps[usize::from(behind == receive)];
                    if let Some(tag) = u64::try_from(tag).ok().filter(|_| stages != 0) {
                        sets.push(("comm_tag", AttributeSetOrRemoval::Count(tag)));
                    }
                    let Some(moved) = self.grid.peer_at_same_offset_in_grid(
                        peer,
                        self.from,
                        self.to,
                        self.target,
                    ) else {
                        return Err(crate::edit::what_if::refuse_edit(
                            format!(
                                "rank {} would exchange messages beyond the ends of the pipeline if it copied those of rank {} with rank {peer}",
                                self.to, self.from
                            ),
                            "capture a rank of each stage",
                        ));
                    };
                    let (far, near) = if receive {
                        ("comm_src", "comm_dst")
                    } else {
                        ("comm_dst", "comm_src")
                    };
                    sets.push((far, AttributeSetOrRemoval::Count(moved.into())));
                    sets.push((near, AttributeSetOrRemoval::Count(self.to.into())));
                }
                _ => {}
            }
            if stages != 0 {
                sets.push((
                    "stage",
                    AttributeSetOrRemoval::Count(self.target.stage_of(self.to).into()),
                ));
            }
            // Only change attributes that the node has; add none.
            let mut there = Vec::new();
            if !sets.is_empty() {
                for_each_attribute(record, |attr: &AttrView<'_>| {
                    if let Some(set) = sets.iter().find(|(name, _)| name.as_bytes() == attr.name)
                        && attr.is_set()
                        && !there.contains(set)
                    {
                        there.push(*set);
                    }
                    Ok(())
                })?;
            }
            let edit = RecordEdit {
                values: values.as_deref(),
                attributes: &there,
                ..RecordEdit::default()
            };
            edit.append_edited_record(record, &mut message, &mut out)?;
        }
        Ok(out)
    }
}
