//! Matches messages: the k-th send on a channel (sender, receiver, tag) matches the k-th receive on the same channel.

use super::RankAndCommIndex;

/// Identifies a channel. Messages on one channel are matched by their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageChannel<S = ()> {
    /// The rank that sends.
    pub source: u32,
    /// The rank that receives.
    pub target: u32,
    /// Tag of the messages.
    pub tag: i32,
    /// Distinguishes channels whose ends and tags are equal, for example by their communicators.
    pub scope: S,
}

/// One half of a message: a send or a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHalf<S = ()> {
    /// Channel of the message.
    pub channel: MessageChannel<S>,
    /// True for a receive, false for a send.
    pub receive: bool,
    /// The node that sends or receives.
    pub at: RankAndCommIndex,
}

impl<S> MessageHalf<S> {
    /// Creates a send or receive of rank `own`; the other half is on rank `peer`.
    pub fn new(
        own: u32,
        peer: u32,
        receive: bool,
        tag: i32,
        scope: S,
        at: RankAndCommIndex,
    ) -> Self {
        let (source, target) = if receive { (peer, own) } else { (own, peer) };
        let channel = MessageChannel {
            source,
            target,
            tag,
            scope,
        };
        Self {
            channel,
            receive,
            at,
        }
    }

    /// Returns the rank of this half, and the rank at the other end.
    pub fn own_and_other_rank(&self) -> (u32, u32) {
        let MessageChannel { source, target, .. } = self.channel;
        if self.receive {
            (target, source)
        } else {
            (source, target)
        }
    }
}

/// All sends and receives of one channel.
#[derive(Clone, Copy, Debug)]
pub struct ChannelMessages<'h, S = ()> {
    /// Channel of the sends and receives.
    pub channel: MessageChannel<S>,
    /// The sends, in program order.
    pub sends: &'h [MessageHalf<S>],
    /// The receives, in program order.
    pub receives: &'h [MessageHalf<S>],
}

/// How the sends and receives of a channel disagree. Messages are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageDisagreement<S = ()> {
    /// The two halves of message `k` have different sizes.
    Size {
        /// Index of the message on the channel, counting from 0.
        k: usize,
        /// The sending half.
        send: MessageHalf<S>,
        /// The receiving half.
        receive: MessageHalf<S>,
    },
    /// One rank has more than `k` halves, but the other has only `k`.
    Count {
        /// Index of the first half that has no counterpart, counting from 0.
        k: usize,
        /// The half that has no counterpart.
        half: MessageHalf<S>,
        /// The last half on this channel that belongs to the rank with fewer halves.
        last: Option<MessageHalf<S>>,
    },
}

/// Matches sends and receives; each rank's entries in `halves` must be in program order. Returns the channels in
/// ascending order.
pub fn match_messages_by_channel<S: Copy + Ord>(
    halves: &mut [MessageHalf<S>],
) -> impl Iterator<Item = ChannelMessages<'_, S>> {
    // The sort is stable, so sends stay in program order, and so do receives.
    halves.sort_by_key(|half| (half.channel, half.receive));
    let same = |a: &MessageHalf<S>, b: &MessageHalf<S>| a.channel == b.channel;
    halves.chunk_by(same).map(|all| {
        let (sends, receives) = all.split_at(all.partition_point(|half| !half.receive));
        let channel = all[0].channel;
        ChannelMessages {
            channel,
            sends,
            receives,
        }
    })
}

impl<'h, S: Copy> ChannelMessages<'h, S> {
    /// Iterates over the matched pairs, as (send, receive).
    pub fn matched_pairs(
        &self,
    ) -> impl Iterator<Item = (RankAndCommIndex, RankAndCommIndex)> + use<'h, S> {
        let pairs = self.sends.iter().zip(self.receives);
        pairs.map(|(send, receive)| (send.at, receive.at))
    }

    /// Returns the halves without a counterpart, and all halves of the other rank.
    pub fn unmatched_and_all_opposite_halves(
        &self,
    ) -> (&'h [MessageHalf<S>], &'h [MessageHalf<S>]) {
        let (more, fewer) = if self.sends.len() > self.receives.len() {
            (self.sends, self.receives)
        } else {
            (self.receives, self.sends)
        };
        (&more[fewer.len()..], fewer)
    }

    /// Returns the first mismatch between the two ranks, or `None`. `bytes` returns the size stated by a send or
    /// receive.
    pub fn find_disagreement(
        &self,
        bytes: impl Fn(RankAndCommIndex) -> u64,
    ) -> Option<MessageDisagreement<S>> {
        let pairs = self.sends.iter().zip(self.receives).enumerate();
        let mut differ = pairs.filter(|(_, (send, receive))| bytes(send.at) != bytes(receive.at));
        if let Some((k, (&send, &receive))) = differ.next() {
            return Some(MessageDisagreement::Size { k, send, receive });
        }
        let (alone, fewer) = self.unmatched_and_all_opposite_halves();
        Some(MessageDisagreement::Count {
            k: fewer.len(),
            half: *alone.first()?,
            last: fewer.last().copied(),
        })
    }
}

impl<S> MessageDisagreement<S> {
    /// Formats the mismatch for error messages. `named` returns a half's name, and `bytes` returns its size.
    pub fn describe_disagreement(
        &self,
        named: impl Fn(&MessageHalf<S>) -> String,
        bytes: impl Fn(RankAndCommIndex) -> u64,
    ) -> String {
        match self {
            Self::Size { k, send, receive } => format!(
                "{} sends {} bytes, but {} expects {} (message {k} from rank {} to rank {} with tag {}, \
                 counted from 0)",
                named(send),
                bytes(send.at),
                named(receive),
                bytes(receive.at),
                send.channel.source,
                send.channel.target,
                send.channel.tag
            ),
            Self::Count { k, half, .. } => {
                let (what, end, other) = if half.receive {
                    ("receive", "from", "send")
                } else {
                    ("send", "to", "receive")
                };
                let far = half.own_and_other_rank().1;
                format!(
                    "{} has no partner: this is {what} {k} (counted from 0) {end} rank {far} with \
                     tag {} and {} bytes, but rank {far} has only {k} such {other}s",
                    named(half),
                    half.channel.tag,
                    bytes(half.at),
                )
            }
        }
    }
}
