//! Messages that move fragments between members.

use super::{LayoutChange, Redistribution, ShardMessage};
use std::ops::Range;

impl LayoutChange<'_> {
    /// Returns messages that send each member the elements that it needs and does not have. Each element comes from the
    /// nearest member that has it.
    pub(super) fn messages_from_nearest_holders(&self) -> Redistribution {
        let mut by_cell: Vec<(u64, u32)> = (0..self.members)
            .map(|member| {
                (
                    self.from
                        .shard_number_from_indices(self.from.shard_indices(member)),
                    member,
                )
            })
            .collect();
        by_cell.sort_unstable();
        // Each shard is on the same number of members, so the members with one shard form a slice of the sorted list.
        let copies = self.members as usize / self.from.shard_count() as usize;
        let mut messages = Vec::new();
        for to in 0..self.members {
            let own = self.from.shard_indices(to);
            let part = self.to.shard_indices(to);
            let [samples, rows, columns] =
                [0, 1, 2].map(|axis| self.source_shards_overlapping_target(axis, part[axis]));
            for sample in samples {
                for row in rows.clone() {
                    for column in columns.clone() {
                        let cell = [sample, row, column];
                        if cell == own {
                            continue;
                        }
                        let first = self.from.shard_number_from_indices(cell) as usize * copies;
                        messages.push(ShardMessage {
                            from: nearest_holder(&by_cell[first..][..copies], to),
                            to,
                            pieces: (0..3)
                                .map(|axis| self.count_fragments_in_both_shards(axis, cell, part))
                                .product(),
                        });
                    }
                }
            }
        }
        messages.sort_unstable();
        let of = self.fragment_count();
        Redistribution::Messages { messages, of }
    }

    /// Returns the shards of `from` along `axis` that overlap shard `part` of `to`.
    fn source_shards_overlapping_target(&self, axis: usize, part: u64) -> Range<u64> {
        let cuts = &self.axes[axis];
        part * cuts.from / cuts.to..((part + 1) * cuts.from).div_ceil(cuts.to)
    }

    /// Number of fragments along `axis` that belong to both shards.
    fn count_fragments_in_both_shards(&self, axis: usize, from: [u64; 3], to: [u64; 3]) -> u64 {
        let cuts = &self.axes[axis];
        let [one, other] = [(from[axis], cuts.from), (to[axis], cuts.to)].map(|(part, parts)| {
            let width = cuts.fragment_count() / parts;
            part * width..(part + 1) * width
        });
        one.end.min(other.end) - one.start.max(other.start)
    }
}

/// Returns the entry of `holders` (in ascending order) that is nearest to `member`. If two are equally near, returns
/// the lower one.
fn nearest_holder(holders: &[(u64, u32)], member: u32) -> u32 {
    let above = holders.partition_point(|&(_, holder)| holder < member);
    let (below, above) = (&holders[..above], &holders[above..]);
    match (below.last(), above.first()) {
        (Some(&(_, below)), Some(&(_, above))) if above - member < member - below => above,
        (Some(&(_, one)), _) | (None, Some(&(_, one))) => one,
        (None, None) => member,
    }
}
