//! Whose calls belong together: the k-th collective of a group on each of its members, and the sends
//! with their receives.

use super::calls::{Act, Calls};
use super::members::Group;
use super::rank::Rank;
use crate::trace::CollectiveKind;
use std::collections::BTreeMap;

/// One call of one rank: (index of the rank, index of the call).
pub type At = (u32, u32);

/// A collective with the calls of its members that have captures.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// Which.
    pub kind: CollectiveKind,
    /// The group.
    pub group: u32,
    /// How many of the group's collectives came before.
    pub sequence: u32,
    /// The call of each member, in the group's order.
    pub members: Vec<At>,
    /// The member that is root, among `members`; if it has one and that has a capture.
    pub root: Option<u32>,
    /// `comm_size`: the largest of any member.
    pub bytes: u64,
    /// Whether members' sizes differ.
    pub uneven: bool,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The send.
    pub send: At,
    /// The receive.
    pub receive: At,
}

/// Everything that met.
#[derive(Debug, Default)]
pub struct Meetings {
    /// Collectives by group and sequence.
    pub collectives: Vec<Meeting>,
    /// Messages by their ends.
    pub messages: Vec<Message>,
    /// Calls without the others', by reason.
    pub alone: Vec<(At, &'static str)>,
}

/// Two ranks that disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement(pub String);

/// Matches the calls of all ranks, which are in order. The group of every call is set.
pub fn matching(
    ranks: &[Rank],
    calls: &[Calls],
    groups: &[Group],
) -> Result<Meetings, Disagreement> {
    let mut meetings = Meetings::default();
    for (index, group) in groups.iter().enumerate() {
        let present: Vec<u32> = (group.ranks.iter())
            .filter_map(|rank| ranks.binary_search_by_key(rank, |r| r.rank).ok())
            .map(|at| at as u32)
            .collect();
        collectives(ranks, calls, group, index as u32, &present, &mut meetings)?;
    }
    messages(ranks, calls, groups, &mut meetings);
    Ok(meetings)
}

fn collectives(
    ranks: &[Rank],
    calls: &[Calls],
    group: &Group,
    index: u32,
    present: &[u32],
    meetings: &mut Meetings,
) -> Result<(), Disagreement> {
    let own: Vec<Vec<At>> = present
        .iter()
        .map(|&rank| calls_of(calls, rank, index))
        .collect();
    let Some(least) = own.iter().map(Vec::len).min() else {
        return Ok(());
    };
    let kind = |at: At| match calls[at.0 as usize].list[at.1 as usize].act {
        Act::Collective(kind) => kind,
        _ => unreachable!("messages are not among them"),
    };
    // Windows that open or close at different calls: the same calls at the end, or at the start.
    let first = |list: &Vec<At>| list.len() - least;
    let fits = |skip: &dyn Fn(&Vec<At>) -> usize| {
        (0..least).all(|k| {
            own.iter()
                .all(|list| kind(list[skip(list) + k]) == kind(own[0][skip(&own[0]) + k]))
        })
    };
    let equal = own.iter().all(|list| list.len() == least);
    let skip: &dyn Fn(&Vec<At>) -> usize = match () {
        () if equal || fits(&|_| 0) => &|_| 0,
        () if fits(&first) => &first,
        () => &|_| 0,
    };
    for list in &own {
        let from = skip(list);
        let outside = list[..from].iter().chain(&list[from + least..]);
        meetings
            .alone
            .extend(outside.map(|&at| (at, "outside the window of other ranks")));
    }
    for k in 0..least {
        let members: Vec<At> = own.iter().map(|list| list[skip(list) + k]).collect();
        if let Some(&other) = members.iter().find(|&&at| kind(at) != kind(members[0])) {
            return Err(disagree(ranks, calls, group, k, members[0], other));
        }
        meetings.collectives.push(meeting(
            ranks,
            calls,
            group,
            index,
            k as u32,
            kind(members[0]),
            members,
        )?);
    }
    Ok(())
}

fn calls_of(calls: &[Calls], rank: u32, group: u32) -> Vec<At> {
    let list = calls[rank as usize].list.iter().enumerate();
    list.filter(|(_, call)| call.group == group && !call.is_message())
        .map(|(i, _)| (rank, i as u32))
        .collect()
}

fn meeting(
    ranks: &[Rank],
    calls: &[Calls],
    group: &Group,
    index: u32,
    sequence: u32,
    kind: CollectiveKind,
    members: Vec<At>,
) -> Result<Meeting, Disagreement> {
    let call = |at: At| &calls[at.0 as usize].list[at.1 as usize];
    let count = group.ranks.len() as u64;
    let sizes: Vec<u64> = members
        .iter()
        .map(|&at| {
            size(
                kind,
                call(at).asked.bytes_in,
                call(at).asked.bytes_out,
                count,
            )
        })
        .collect();
    let bytes = sizes.iter().copied().max().unwrap_or(0);
    let uneven =
        sizes.iter().any(|&size| size != bytes) || members.iter().any(|&at| call(at).asked.uneven);
    // Only the root of a scatter knows what it scatters; what others get may differ in all-to-all
    // and in gathering, where every member has a size of its own.
    let one_size = !matches!(
        kind,
        CollectiveKind::AllToAll
            | CollectiveKind::AllGather
            | CollectiveKind::Gather
            | CollectiveKind::Scatter
            | CollectiveKind::ReduceScatter
    );
    if one_size && let Some(other) = sizes.iter().position(|&size| size != sizes[0]) {
        return Err(disagree(
            ranks,
            calls,
            group,
            sequence as usize,
            members[0],
            members[other],
        ));
    }
    let root = if kind.has_root() {
        call(members[0]).asked.peer
    } else {
        None
    };
    if let Some(&other) = members
        .iter()
        .find(|&&at| kind.has_root() && call(at).asked.peer != root)
    {
        return Err(disagree(
            ranks,
            calls,
            group,
            sequence as usize,
            members[0],
            other,
        ));
    }
    let root = root
        .and_then(|root| group.ranks.get(root as usize))
        .and_then(|root| {
            let at = members
                .iter()
                .position(|&(rank, _)| ranks[rank as usize].rank == *root);
            at.map(|at| at as u32)
        });
    Ok(Meeting {
        kind,
        group: index,
        sequence,
        members,
        root,
        bytes,
        uneven,
    })
}

/// `comm_size` of a member that put in and got out so many bytes, in a group of `count`.
fn size(kind: CollectiveKind, bytes_in: u64, bytes_out: u64, count: u64) -> u64 {
    match kind {
        CollectiveKind::AllToAll => bytes_in.max(bytes_out),
        CollectiveKind::AllGather if bytes_in == 0 => bytes_out / count.max(1),
        CollectiveKind::Scatter => bytes_out.saturating_mul(count),
        CollectiveKind::Barrier => 0,
        _ => bytes_in,
    }
}

fn messages(ranks: &[Rank], calls: &[Calls], groups: &[Group], meetings: &mut Meetings) {
    type Key = (u32, u32, i32, u32);
    let mut ends: BTreeMap<Key, (Vec<At>, Vec<At>)> = BTreeMap::new();
    for (rank, own) in calls.iter().enumerate() {
        for (index, call) in own
            .list
            .iter()
            .enumerate()
            .filter(|(_, call)| call.is_message())
        {
            let at = (rank as u32, index as u32);
            let members = &groups[call.group as usize].ranks;
            let Some(&peer) = call.asked.peer.and_then(|peer| members.get(peer as usize)) else {
                meetings
                    .alone
                    .push((at, "to a member that the group does not have"));
                continue;
            };
            let own = ranks[rank].rank;
            if peer == own {
                meetings.alone.push((at, "from a rank to itself"));
                continue;
            }
            let tag = call.asked.tag;
            match call.act {
                Act::Send => ends
                    .entry((own, peer, tag, call.group))
                    .or_default()
                    .0
                    .push(at),
                _ => ends
                    .entry((peer, own, tag, call.group))
                    .or_default()
                    .1
                    .push(at),
            }
        }
    }
    for (sends, receives) in ends.values() {
        let pairs = sends.iter().zip(receives);
        meetings
            .messages
            .extend(pairs.map(|(&send, &receive)| Message { send, receive }));
        let both = sends.len().min(receives.len());
        let rest = sends[both..].iter().chain(&receives[both..]);
        meetings
            .alone
            .extend(rest.map(|&at| (at, "without its other end")));
    }
}

fn disagree(
    ranks: &[Rank],
    calls: &[Calls],
    group: &Group,
    sequence: usize,
    one: At,
    other: At,
) -> Disagreement {
    let say = |at: At| {
        let rank = &ranks[at.0 as usize];
        let call = &calls[at.0 as usize].list[at.1 as usize];
        let item = &rank.items[call.item as usize];
        let id = rank
            .host
            .nodes
            .get(item.host as usize)
            .map_or(0, |node| node.id);
        format!(
            "rank {} calls {} (node {id}, record function id {}) with {} bytes in, {} out{}",
            rank.rank,
            rank.item_name(item),
            call.rf_id,
            call.asked.bytes_in,
            call.asked.bytes_out,
            call.asked
                .peer
                .map(|peer| format!(", root {peer}"))
                .unwrap_or_default(),
        )
    };
    Disagreement(format!(
        "collective {sequence} of group `{}`: {}, but {}",
        group.name,
        say(one),
        say(other)
    ))
}
