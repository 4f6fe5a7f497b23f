//! The k-th send from one rank to another with a tag, and the k-th such receive.

use super::CommRef;

/// Sends and receives that order alone tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageChannel<S = ()> {
    /// The rank that sends.
    pub source: u32,
    /// The rank that receives.
    pub target: u32,
    /// The tag.
    pub tag: i32,
    /// Separates the messages between these ends further, as communicators do.
    pub scope: S,
}

/// A send or a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHalf<S = ()> {
    /// Channel of both halves.
    pub channel: MessageChannel<S>,
    /// True for a receive.
    pub receive: bool,
    /// The node that it is.
    pub at: CommRef,
}

impl<S> MessageHalf<S> {
    /// Returns the half that rank `own` has in a message from or to `peer`.
    pub fn new(own: u32, peer: u32, receive: bool, tag: i32, scope: S, at: CommRef) -> Self {
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

    /// Returns the rank whose half it is, and the rank at the other end.
    pub fn ends(&self) -> (u32, u32) {
        let MessageChannel { source, target, .. } = self.channel;
        if self.receive {
            (target, source)
        } else {
            (source, target)
        }
    }
}

/// The sends and the receives of one channel.
#[derive(Clone, Copy, Debug)]
pub struct ChannelMatches<'h, S = ()> {
    /// The channel.
    pub channel: MessageChannel<S>,
    /// The sends, in program order.
    pub sends: &'h [MessageHalf<S>],
    /// The receives, in program order.
    pub receives: &'h [MessageHalf<S>],
}

/// Two ranks that disagree on the messages of a channel. Messages are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageDisagreement<S = ()> {
    /// Message `k` has another size where it is received.
    Size {
        /// The number of the message.
        k: usize,
        /// The half that sends.
        send: MessageHalf<S>,
        /// The half that receives.
        receive: MessageHalf<S>,
    },
    /// The other rank has only `k` halves for those of this one.
    Count {
        /// The number of the first half without its other.
        k: usize,
        /// That half.
        half: MessageHalf<S>,
        /// The other rank's last.
        last: Option<MessageHalf<S>>,
    },
}

/// Matches `halves`, of which those of one rank are in program order. Channels come in ascending order.
pub fn match_messages<S: Copy + Ord>(
    halves: &mut [MessageHalf<S>],
) -> impl Iterator<Item = ChannelMatches<'_, S>> {
    // Stable, so halves of one kind stay in program order.
    halves.sort_by_key(|half| (half.channel, half.receive));
    let same = |a: &MessageHalf<S>, b: &MessageHalf<S>| a.channel == b.channel;
    halves.chunk_by(same).map(|all| {
        let (sends, receives) = all.split_at(all.partition_point(|half| !half.receive));
        let channel = all[0].channel;
        ChannelMatches {
            channel,
            sends,
            receives,
        }
    })
}

impl<'h, S: Copy> ChannelMatches<'h, S> {
    /// Returns the sends and receives that match.
    pub fn pairs(&self) -> impl Iterator<Item = (CommRef, CommRef)> + use<'h, S> {
        let pairs = self.sends.iter().zip(self.receives);
        pairs.map(|(send, receive)| (send.at, receive.at))
    }

    /// Returns the halves without their other ones, and all that the other rank has.
    pub fn alone(&self) -> (&'h [MessageHalf<S>], &'h [MessageHalf<S>]) {
        let (more, fewer) = if self.sends.len() > self.receives.len() {
            (self.sends, self.receives)
        } else {
            (self.receives, self.sends)
        };
        (&more[fewer.len()..], fewer)
    }

    /// Returns the first message on which the two ranks disagree, whose halves move `bytes`.
    pub fn disagreement(&self, bytes: impl Fn(CommRef) -> u64) -> Option<MessageDisagreement<S>> {
        let pairs = self.sends.iter().zip(self.receives).enumerate();
        let mut differ = pairs.filter(|(_, (send, receive))| bytes(send.at) != bytes(receive.at));
        if let Some((k, (&send, &receive))) = differ.next() {
            return Some(MessageDisagreement::Size { k, send, receive });
        }
        let (alone, fewer) = self.alone();
        Some(MessageDisagreement::Count {
            k: fewer.len(),
            half: *alone.first()?,
            last: fewer.last().copied(),
        })
    }
}

impl<S> MessageDisagreement<S> {
    /// Says it in words, in which halves are `named` and move `bytes`.
    pub fn text(
        &self,
        named: impl Fn(&MessageHalf<S>) -> String,
        bytes: impl Fn(CommRef) -> u64,
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
                let far = half.ends().1;
                format!(
                    "{} has no partner: it is {what} {k} (counted from 0) {end} rank {far} with tag {} and {} \
                     bytes, and rank {far} has only {k} such {other}s",
                    named(half),
                    half.channel.tag,
                    bytes(half.at),
                )
            }
        }
    }
}
