//! Matches communication among raw traces. Modules use this to inspect or rewrite traces without a replay.

use super::{MessageChannel, MessageHalf, RankAndCommIndex};
use crate::format::{GroupName, Op};
use crate::graph::{DistinctKeyInterner, RawTrace};

/// A channel on which operations of several ranks match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommChannel {
    /// Collectives of one group. The fields are its name (`None` for the group of all ranks) and its members (empty if
    /// they are not declared).
    Group(Option<String>, Vec<u32>),
    /// Messages of one channel (sender, receiver and tag).
    Messages(MessageChannel),
}

impl CommChannel {
    fn of_group<'m>(group: GroupName<'_>, declared: impl Fn(&str) -> Option<&'m Vec<u32>>) -> Self {
        let name = group.to_text();
        let members = name
            .as_ref()
            .and_then(|name| declared(name))
            .cloned()
            .unwrap_or_default();
        Self::Group(name, members)
    }
}

/// A communication node of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankCommNode {
    /// The node's index in the raw trace.
    pub node: u32,
    /// Index of the channel among the rank's channels.
    pub channel: u32,
    /// Number of earlier calls, sends or receives on the same channel.
    pub k: u32,
}

/// The communication nodes of one rank.
#[derive(Clone, Debug, Default)]
pub struct RankComms {
    channels: Vec<CommChannel>,
    /// Communication nodes in program order.
    pub steps: Vec<RankCommNode>,
}

impl RankComms {
    /// Collects the communication nodes of `rank`. `order` lists nodes in program order; `declared` returns the members
    /// of a group.
    pub fn new<'m>(
        raw: &RawTrace<'_>,
        rank: u32,
        order: impl IntoIterator<Item = u32>,
        declared: impl Fn(&str) -> Option<&'m Vec<u32>>,
    ) -> Self {
        let mut channels = DistinctKeyInterner::default();
        // With this table, a group's members are copied and hashed only once per name.
        let mut names = DistinctKeyInterner::default();
        let mut of_name = Vec::new();
        let mut counts: Vec<[u32; 2]> = Vec::new();
        let mut steps = Vec::new();
        for node in order {
            let (channel, receive) = match raw.nodes[node as usize].view.op {
                Op::Collective { group, .. } => {
                    let name = names.intern_key(group) as usize;
                    if name == of_name.len() {
                        of_name.push(channels.intern_key(CommChannel::of_group(group, &declared)));
                    }
                    (of_name[name], false)
                }
                Op::Message {
                    receive, peer, tag, ..
                } => {
                    let half = MessageHalf::new(rank, peer, receive, tag, (), (0, node));
                    let channel = CommChannel::Messages(half.channel);
                    (channels.intern_key(channel), receive)
                }
                _ => continue,
            };
            if channel as usize == counts.len() {
                counts.push([0; 2]);
            }
            let count = &mut counts[channel as usize][usize::from(receive)];
            let k = *count;
            *count += 1;
            steps.push(RankCommNode { node, channel, k });
        }
        let channels = channels.into_keys();
        Self { channels, steps }
    }
}

/// The matches between communication nodes of several ranks.
#[derive(Clone, Debug)]
pub struct CommMatches<'r> {
    channels: Vec<&'r CommChannel>,
    /// For each rank, the global indices of its channels.
    numbers: Vec<Vec<u32>>,
    /// The steps of all ranks in ascending order: (channel, index on the channel), and a reference to the step.
    met: Vec<((u32, u32), RankAndCommIndex)>,
}

impl<'r> CommMatches<'r> {
    /// Matches the communication of `ranks`.
    pub fn new(ranks: impl Iterator<Item = &'r RankComms> + Clone) -> Self {
        let all = ranks.clone().flat_map(|rank| &rank.channels);
        let mut channels: Vec<&CommChannel> = all.collect();
        channels.sort_unstable();
        channels.dedup();
        let number = |channel| channels.partition_point(|&known| known < channel) as u32;
        let mut numbers = Vec::new();
        let mut met = Vec::new();
        for (index, rank) in (0..).zip(ranks) {
            let own: Vec<u32> = rank.channels.iter().map(number).collect();
            let steps = (0..).zip(&rank.steps);
            met.extend(steps.map(|(i, step)| ((own[step.channel as usize], step.k), (index, i))));
            numbers.push(own);
        }
        met.sort_unstable();
        Self {
            channels,
            numbers,
            met,
        }
    }

    /// Iterates over the steps that match a rank's step, and over this step itself, in ascending order of ranks.
    pub fn matching_comm_nodes(
        &self,
        rank: u32,
        step: &RankCommNode,
    ) -> impl Iterator<Item = RankAndCommIndex> + '_ {
        let number = self.numbers[rank as usize][step.channel as usize];
        let key = (number, step.k);
        let from = self.met.partition_point(|(other, _)| *other < key);
        let met = self.met[from..].iter();
        met.take_while(move |(other, _)| *other == key)
            .map(|&(_, step)| step)
    }

    /// Iterates over all matches. Each match is a channel, an index on the channel, and the steps in ascending order of
    /// ranks.
    pub fn iter_matches_with_channel_and_steps(
        &self,
    ) -> impl Iterator<
        Item = (
            &'r CommChannel,
            u32,
            impl Iterator<Item = RankAndCommIndex> + Clone + '_,
        ),
    > {
        let matches = self.met.chunk_by(|(a, _), (b, _)| a == b);
        matches.map(|met| {
            let (channel, k) = met[0].0;
            (
                self.channels[channel as usize],
                k,
                met.iter().map(|&(_, step)| step),
            )
        })
    }
}
