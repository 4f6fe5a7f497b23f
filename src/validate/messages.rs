//! A receive for each send, of the same size.

use super::facts::{Facts, Message, NONE};
use super::findings::{Defect, Findings, Site};
use super::kind::Kind;
use super::trace::Trace;

/// A message of a trace: the trace's place among all, and the message's place among its messages.
pub(super) type End = (u32, u32);

/// One half of a message, with its ends.
#[derive(Clone, Copy)]
struct Half {
    source: u32,
    target: u32,
    tag: i32,
    receive: bool,
    end: End,
}

impl Half {
    fn key(&self) -> (u32, u32, i32) {
        (self.source, self.target, self.tag)
    }
}

/// What looks up the halves.
struct Halves<'a>(&'a [(u32, &'a Trace)]);

impl<'a> Halves<'a> {
    fn of(&self, half: &Half) -> (u32, &'a Facts, &'a Message) {
        let (rank, trace) = self.0[half.end.0 as usize];
        (
            rank,
            &trace.facts,
            &trace.facts.messages[half.end.1 as usize],
        )
    }

    fn site(&self, half: &Half) -> Site {
        let (_, facts, message) = self.of(half);
        facts.site(&message.node)
    }

    fn bytes(&self, half: &Half) -> u64 {
        self.of(half).2.node.bytes
    }

    /// The first communication of `rank`, in words.
    fn first(&self, rank: u32) -> String {
        let found = self.0.binary_search_by_key(&rank, |(rank, _)| *rank);
        found.map_or_else(|_| String::new(), |index| self.0[index].1.facts.next(None))
    }

    /// What a rank does after its half, in words.
    fn next(&self, half: &Half) -> String {
        let (rank, facts, message) = self.of(half);
        format!("rank {rank} {}", facts.next(Some(message.node.place)))
    }
}

/// Matches the k-th send from one rank to another with a tag and the k-th such receive. The pairs, sends first.
pub(super) fn check(members: &[(u32, &Trace)], findings: &mut Findings) -> Vec<(End, End)> {
    let mut halves = Vec::new();
    for (index, &(rank, trace)) in (0..).zip(members) {
        for (number, message) in (0..).zip(&trace.facts.messages) {
            let own = message.own != NONE && message.own != rank;
            if own || message.peer == rank {
                let found = match own {
                    true => format!(
                        "its own end is rank {}, but this is the trace of rank {rank}",
                        message.own
                    ),
                    false => format!("rank {rank} sends to itself"),
                };
                let site = trace.facts.site(&message.node);
                findings.push(Defect::new(Kind::WrongRank, site, found).of(rank));
                continue;
            }
            let peer = members.binary_search_by_key(&message.peer, |(rank, _)| *rank);
            let there = peer.is_ok_and(|peer| members[peer].1.facts.whole);
            if !there || !trace.facts.whole {
                continue;
            }
            let (source, target) = match message.receive {
                true => (message.peer, rank),
                false => (rank, message.peer),
            };
            halves.push(Half {
                source,
                target,
                tag: message.tag,
                receive: message.receive,
                end: (index, number),
            });
        }
    }
    // Stable, so halves of one kind stay in program order.
    halves.sort_by_key(|half| (half.key(), half.receive));
    let all = Halves(members);
    let mut pairs = Vec::with_capacity(halves.len() / 2);
    for same in halves.chunk_by(|a, b| a.key() == b.key()) {
        let (sends, receives) = same.split_at(same.partition_point(|half| !half.receive));
        let both = sends.iter().zip(receives);
        match both.clone().find(|(s, r)| all.bytes(s) != all.bytes(r)) {
            Some((send, receive)) => {
                findings.push(sizes(&all, send, receive, sends));
            }
            None if sends.len() != receives.len() => {
                findings.push(unmatched(&all, sends, receives));
            }
            None => pairs.extend(both.map(|(s, r)| (s.end, r.end))),
        }
    }
    pairs
}

/// A send and a receive that differ.
fn sizes(all: &Halves<'_>, send: &Half, receive: &Half, sends: &[Half]) -> Defect {
    let k = sends.iter().position(|half| half.end == send.end);
    let found = format!(
        "message {} (counted from 0) from rank {} to rank {} with tag {}: it sends {} bytes, but {} of rank {} \
         expects {}; next: {}; {}",
        k.unwrap_or(0),
        send.source,
        send.target,
        send.tag,
        all.bytes(send),
        all.site(receive),
        receive.target,
        all.bytes(receive),
        all.next(send),
        all.next(receive),
    );
    Defect {
        against: Some((receive.target, all.site(receive))),
        ..Defect::new(Kind::MessageSize, all.site(send), found).of(send.source)
    }
}

/// The first half without a partner; there are more of one kind than of the other.
fn unmatched(all: &Halves<'_>, sends: &[Half], receives: &[Half]) -> Defect {
    let (more, fewer) = match sends.len() > receives.len() {
        true => (sends, receives),
        false => (receives, sends),
    };
    let k = fewer.len();
    let half = &more[k];
    let (rank, _, message) = all.of(half);
    let (what, other) = match half.receive {
        true => ("receive", "send"),
        false => ("send", "receive"),
    };
    let far = message.peer;
    let last = fewer.last();
    let there = match last {
        Some(last) => format!(
            "the last of them is {}; next: {}",
            all.site(last),
            all.next(last)
        ),
        None => format!("rank {far} begins with {}", all.first(far)),
    };
    let found = format!(
        "{what} {k} (counted from 0) of {} bytes from rank {} to rank {} with tag {} has no partner: rank {far} has \
         only {k} such {other}s; {there}; {}",
        message.node.bytes,
        half.source,
        half.target,
        half.tag,
        all.next(half),
    );
    Defect {
        against: last.map(|last| (far, all.site(last))),
        ..Defect::new(Kind::Unmatched, all.site(half), found).of(rank)
    }
}
