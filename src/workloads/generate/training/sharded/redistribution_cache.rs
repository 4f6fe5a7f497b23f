//! Cache of redistributions and of the groups that execute them. It saves time, because nearly all members and layers
//! need the same redistributions.

use super::ShardedLayerLowerer;
use crate::generate::plan::ParallelGroupKind;
use crate::generate::sharding::{
    EqualSizedMemberGroups, MemberNumberDigit, Redistribution, SampleRowColumnSharding,
    plan_redistribution, reduce_scatter_groups,
};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A redistribution, and the groups that execute it.
pub(super) enum RedistributionWithGroups {
    Nothing,
    /// All-gather within groups of members. Before it, each member holds the fraction `1 / of` of the whole result.
    Gather {
        family: ParallelGroupKind,
        of: u64,
    },
    /// All-to-all within groups of members. Each member sends the fraction `1 / share` of the whole result.
    Exchange {
        family: ParallelGroupKind,
        share: u64,
    },
    /// Messages of each member, in fragments of the result; the whole result has `of` fragments.
    Messages {
        hops: Vec<Vec<MessageEnd>>,
        of: u64,
    },
}

/// One end of a message: its sender or its receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageEnd {
    pub receive: bool,
    pub peer: u32,
    pub pieces: u64,
}

/// Redistributions, reduce-scatters and sums found by earlier calls.
#[derive(Default)]
pub(super) struct RedistributionCache {
    moves:
        BTreeMap<(SampleRowColumnSharding, SampleRowColumnSharding), Rc<RedistributionWithGroups>>,
    scatters: BTreeMap<
        (
            SampleRowColumnSharding,
            MemberNumberDigit,
            SampleRowColumnSharding,
        ),
        Option<ParallelGroupKind>,
    >,
    sums: BTreeMap<MemberNumberDigit, ParallelGroupKind>,
}

impl ShardedLayerLowerer {
    /// Returns the groups that sum over `digit`.
    pub(super) fn find_sum_groups(&mut self, digit: MemberNumberDigit) -> ParallelGroupKind {
        if let Some(family) = self.known.sums.get(&digit) {
            return *family;
        }
        let family = self.group_kind_of_partition(
            &EqualSizedMemberGroups::from_members_differing_in_digits(
                &[digit],
                self.member_count(),
            ),
        );
        self.known.sums.insert(digit, family);
        family
    }

    /// Returns the groups for a reduce-scatter that sums over `over` and leaves the result in the layout `need`, or
    /// `None` if there is no such reduce-scatter.
    pub(super) fn find_reduce_scatter_groups(
        &mut self,
        from: &SampleRowColumnSharding,
        over: MemberNumberDigit,
        need: &SampleRowColumnSharding,
    ) -> Option<ParallelGroupKind> {
        let key = (*from, over, *need);
        if let Some(family) = self.known.scatters.get(&key) {
            return *family;
        }
        let among = reduce_scatter_groups(from, &[over], need, self.member_count());
        let family = among.map(|among| self.group_kind_of_partition(&among));
        self.known.scatters.insert(key, family);
        family
    }

    /// Returns the redistribution from the layout `from` to the layout `need`.
    pub(super) fn find_redistribution(
        &mut self,
        from: &SampleRowColumnSharding,
        need: &SampleRowColumnSharding,
    ) -> Rc<RedistributionWithGroups> {
        let key = (*from, *need);
        if let Some(carried) = self.known.moves.get(&key) {
            return Rc::clone(carried);
        }
        let members = self.member_count();
        let carried = match plan_redistribution(from, need, members) {
            Redistribution::Nothing => RedistributionWithGroups::Nothing,
            Redistribution::AllGather { among, share } => RedistributionWithGroups::Gather {
                family: self.group_kind_of_partition(&among),
                of: share.saturating_mul(among.group_size().into()),
            },
            Redistribution::AllToAll { among, share } => RedistributionWithGroups::Exchange {
                family: self.group_kind_of_partition(&among),
                share,
            },
            Redistribution::Messages { messages, of } => {
                let mut hops = vec![Vec::new(); members as usize];
                for message in messages {
                    for (member, receive, peer) in [
                        (message.from, false, message.to),
                        (message.to, true, message.from),
                    ] {
                        let pieces = message.pieces;
                        hops[member as usize].push(MessageEnd {
                            receive,
                            peer,
                            pieces,
                        });
                    }
                }
                RedistributionWithGroups::Messages { hops, of }
            }
        };
        let carried = Rc::new(carried);
        self.known.moves.insert(key, Rc::clone(&carried));
        carried
    }
}
