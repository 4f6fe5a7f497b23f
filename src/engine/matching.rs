//! Who meets whom: collectives of a group in their order, sends with their receives.
//!
//! Matches are made once, from program order, before anything runs. So ranks that disagree are named
//! before the run, and the run never searches.

use super::error::Refusal;
use super::plan::{CallPlan, GroupPlan, NONE, Plan, group_text};
use crate::graph::{Call, Graph};
use crate::ids::{NodeIndex, Rank};
use crate::trace::shown;
use crate::workload::{Instance, Workload};

/// Matches the k-th collective of each member of a group, and checks that they are the same.
pub(super) fn collectives(plan: &mut Plan, workload: &Workload) -> Result<(), Refusal> {
    renumber_shared_groups(plan, workload);
    // The first present member of each group sets the calls; the others are held against it.
    let mut leader: Vec<Option<Leader<'_>>> = vec![None; plan.groups.len()];
    for (i, instance) in workload.instances().iter().enumerate() {
        let graph = workload.graph(instance);
        for (slot, bound) in plan.instances[i].slots.iter().enumerate() {
            let group = bound.group as usize;
            let own = Leader {
                instance,
                graph,
                slots: &plan.instances[i].slots,
                slot: slot as u32,
                merged: plan.instances[i].sequences.is_some(),
            };
            match &leader[group] {
                None => {
                    let calls = own.calls(group as u32).map(|call| {
                        check_root(instance, graph, call, &plan.groups[group])?;
                        call_plan(instance, graph, call, &plan.groups[group])
                    });
                    plan.groups[group].calls = calls.collect::<Result<_, _>>()?;
                    leader[group] = Some(own);
                }
                Some(first) if first.same_calls(&own) => {}
                Some(first) => compare(first, &own, group as u32, &plan.groups[group])?,
            }
        }
    }
    everyone_calls(plan, workload, &leader)
}

/// Refuses a member that has a trace and makes none of its group's collectives.
fn everyone_calls(
    plan: &Plan,
    workload: &Workload,
    leaders: &[Option<Leader<'_>>],
) -> Result<(), Refusal> {
    let mut callers = vec![0_u32; plan.groups.len()];
    for instance in &plan.instances {
        for (i, slot) in instance.slots.iter().enumerate() {
            let earlier = &instance.slots[..i];
            let first = earlier.iter().all(|other| other.group != slot.group);
            callers[slot.group as usize] += u32::from(first);
        }
    }
    for (index, group) in plan.groups.iter().enumerate() {
        let Some(first) = leaders[index].filter(|_| callers[index] < group.present) else {
            continue;
        };
        for &member in &group.members {
            let instance = plan.instance_of[member.index()];
            let Some(of) = plan.instances.get(instance as usize) else {
                continue;
            };
            if of.slots.iter().all(|slot| slot.group as usize != index) {
                let instance = &workload.instances()[instance as usize];
                let own = Leader {
                    instance,
                    graph: workload.graph(instance),
                    slots: &of.slots,
                    slot: 0,
                    merged: false,
                };
                return compare(&first, &own, index as u32, group);
            }
        }
    }
    Ok(())
}

/// A member's calls of one group.
#[derive(Clone, Copy)]
struct Leader<'a> {
    instance: &'a Instance,
    graph: &'a Graph,
    slots: &'a [super::plan::Slot],
    slot: u32,
    /// Whether several slots of the instance are one group.
    merged: bool,
}

impl<'a> Leader<'a> {
    fn calls(&self, group: u32) -> impl Iterator<Item = &'a Call> + use<'a> {
        let slots = self.slots;
        let of = move |call: &&Call| slots[call.group as usize].group == group;
        self.graph.calls().iter().filter(of)
    }

    /// Whether two members obviously make the same calls: the same slot of the same graph.
    fn same_calls(&self, other: &Self) -> bool {
        let same_graph = std::ptr::eq(self.graph, other.graph);
        same_graph && self.slot == other.slot && !self.merged && !other.merged
    }
}

/// Where two slots of an instance are one group, their calls need a common numbering.
pub(super) fn renumber_shared_groups(plan: &mut Plan, workload: &Workload) {
    for (i, instance) in workload.instances().iter().enumerate() {
        let slots = &plan.instances[i].slots;
        let mut groups: Vec<u32> = slots.iter().map(|slot| slot.group).collect();
        groups.sort_unstable();
        if groups.windows(2).all(|pair| pair[0] != pair[1]) {
            continue;
        }
        let mut next = vec![0_u32; plan.groups.len()];
        let calls = workload.graph(instance).calls().iter();
        let sequences = calls.map(|call| {
            let counter = &mut next[slots[call.group as usize].group as usize];
            *counter += 1;
            *counter - 1
        });
        let sequences = sequences.collect();
        plan.instances[i].sequences = Some(sequences);
    }
}

fn call_plan(
    instance: &Instance,
    graph: &Graph,
    call: &Call,
    group: &GroupPlan,
) -> Result<CallPlan, Refusal> {
    let size = group.members.len() as u32;
    let buffer = call
        .kind
        .buffer(graph.bytes(call.node), size)
        .ok_or_else(|| {
            Refusal::new(
                format!(
                    "{}: {size} shards of {} bytes are more than 2^63",
                    describe(instance.rank, graph, call.node),
                    graph.bytes(call.node)
                ),
                "look whether `comm_size` is the shard, as it must be for all-gather and gather",
            )
        })?;
    let member = root_member(call, group).unwrap_or(0);
    Ok(CallPlan {
        kind: call.kind,
        buffer,
        root: group.extent.position_of[member],
    })
}

/// The root's place among the members; the first if the trace does not say.
fn root_member(call: &Call, group: &GroupPlan) -> Option<usize> {
    match call.root {
        NONE => Some(0),
        root => group.members.iter().position(|&m| m == Rank(root)),
    }
}

fn check_root(
    instance: &Instance,
    graph: &Graph,
    call: &Call,
    group: &GroupPlan,
) -> Result<(), Refusal> {
    if call.kind.has_root() && root_member(call, group).is_none() {
        return Err(Refusal::new(
            format!(
                "{}: its root is rank {}, which is not in its {}",
                describe(instance.rank, graph, call.node),
                call.root,
                group_text(group)
            ),
            "`comm_root` is a rank of the job, not a place in the group",
        ));
    }
    Ok(())
}

/// Refuses the first difference between the calls of two members.
fn compare(
    first: &Leader<'_>,
    own: &Leader<'_>,
    index: u32,
    group: &GroupPlan,
) -> Result<(), Refusal> {
    let say = |leader: &Leader<'_>, call: Option<&Call>| match call {
        Some(call) => format!(
            "{} is {} of {} bytes{}",
            describe(leader.instance.rank, leader.graph, call.node),
            call.kind,
            leader.graph.bytes(call.node),
            if call.kind.has_root() && call.root != NONE {
                format!(" rooted at rank {}", call.root)
            } else {
                String::new()
            }
        ),
        None => format!(
            "rank {} has no further collective of this group",
            leader.instance.rank
        ),
    };
    let (mut ours, mut theirs) = (own.calls(index), first.calls(index));
    for sequence in 0_u64.. {
        let (a, b) = (theirs.next(), ours.next());
        let same = match (a, b) {
            (None, None) => return Ok(()),
            (Some(a), Some(b)) => {
                a.kind == b.kind
                    && first.graph.bytes(a.node) == own.graph.bytes(b.node)
                    && (!a.kind.has_root() || root_member(a, group) == root_member(b, group))
            }
            _ => false,
        };
        if !same {
            return Err(Refusal::new(
                format!(
                    "the ranks disagree on collective {sequence} (counted from 0) of the {}: {}, but {}",
                    group_text(group),
                    say(first, a),
                    say(own, b)
                ),
                "members of a group must make the same collectives in the same order; look for a \
                 trace of another job or step, or one that was cut",
            ));
        }
    }
    Ok(())
}

/// One half of a message, with its ends.
struct Half {
    source: Rank,
    target: Rank,
    tag: i32,
    receive: bool,
    instance: u32,
    message: u32,
}

impl Half {
    fn key(&self) -> (Rank, Rank, i32) {
        (self.source, self.target, self.tag)
    }
}

/// Numbers the channels of messages that nothing tells apart: the ends, the tag and the size. Refuses a
/// channel with more halves of one kind than of the other, unless `lonely`.
pub(super) fn channels(plan: &mut Plan, workload: &Workload, lonely: bool) -> Result<(), Refusal> {
    let mut halves = halves(plan, workload);
    let bytes = |half: &Half| {
        let (graph, node) = node_of(workload, half);
        graph.bytes(node)
    };
    halves.sort_by_cached_key(|half| (half.key(), bytes(half), half.receive));
    let mut rest = &halves[..];
    let mut before = None;
    while let Some(head) = rest.first() {
        let key = (head.key(), bytes(head));
        let askings = match (before == Some(head.key()), plan.askings.last()) {
            (true, Some(&first)) => first,
            _ => plan.pairs,
        };
        plan.askings.push(askings);
        before = Some(head.key());
        let count = rest
            .iter()
            .take_while(|half| (half.key(), bytes(half)) == key);
        let (same, others) = rest.split_at(count.count());
        rest = others;
        let sends = same.iter().take_while(|half| !half.receive).count();
        let (sends, receives) = same.split_at(sends);
        if sends.len() != receives.len() && !lonely {
            let k = sends.len().min(receives.len());
            return Err(unmatched(workload, sends, receives, k));
        }
        for half in same {
            plan.instances[half.instance as usize].pairs[half.message as usize] = plan.pairs;
        }
        plan.pairs += 1;
    }
    Ok(())
}

/// All halves whose other end has a trace.
fn halves(plan: &mut Plan, workload: &Workload) -> Vec<Half> {
    let mut halves = Vec::new();
    for (i, instance) in workload.instances().iter().enumerate() {
        let messages = workload.graph(instance).messages();
        plan.instances[i].pairs = vec![NONE; messages.len()];
        for (m, message) in messages.iter().enumerate() {
            let peer = instance.peers[message.peer as usize];
            if plan.instance_of[peer.index()] == NONE {
                continue;
            }
            let (source, target) = if message.receive {
                (peer, instance.rank)
            } else {
                (instance.rank, peer)
            };
            halves.push(Half {
                source,
                target,
                tag: message.tag,
                receive: message.receive,
                instance: i as u32,
                message: m as u32,
            });
        }
    }
    halves
}

/// Matches the k-th send from one rank to another with a tag and the k-th such receive.
pub(super) fn messages(plan: &mut Plan, workload: &Workload) -> Result<(), Refusal> {
    let mut halves = halves(plan, workload);
    // Stable, so halves of one kind stay in program order.
    halves.sort_by_key(|half| (half.key(), half.receive));
    let mut rest = &halves[..];
    while let Some(head) = rest.first() {
        let count = rest
            .iter()
            .take_while(|half| half.key() == head.key())
            .count();
        let (same, others) = rest.split_at(count);
        rest = others;
        let sends = same.iter().take_while(|half| !half.receive).count();
        let (sends, receives) = same.split_at(sends);
        for k in 0..sends.len().max(receives.len()) {
            let (Some(send), Some(receive)) = (sends.get(k), receives.get(k)) else {
                return Err(unmatched(workload, sends, receives, k));
            };
            let bytes = |half: &Half| {
                let (graph, node) = node_of(workload, half);
                graph.bytes(node)
            };
            if bytes(send) != bytes(receive) {
                return Err(Refusal::new(
                    format!(
                        "{} sends {} bytes, but {} expects {} (message {k} from rank {} to rank {} \
                         with tag {}, counted from 0)",
                        text(workload, send),
                        bytes(send),
                        text(workload, receive),
                        bytes(receive),
                        send.source,
                        send.target,
                        send.tag
                    ),
                    "the two traces are of different jobs or steps, or one was cut",
                ));
            }
            for half in [send, receive] {
                plan.instances[half.instance as usize].pairs[half.message as usize] = plan.pairs;
            }
            plan.pairs += 1;
        }
    }
    Ok(())
}

fn node_of<'a>(workload: &'a Workload, half: &Half) -> (&'a Graph, NodeIndex) {
    let graph = workload.graph(&workload.instances()[half.instance as usize]);
    (graph, graph.messages()[half.message as usize].node)
}

fn text(workload: &Workload, half: &Half) -> String {
    let (graph, node) = node_of(workload, half);
    describe(
        workload.instances()[half.instance as usize].rank,
        graph,
        node,
    )
}

fn unmatched(workload: &Workload, sends: &[Half], receives: &[Half], k: usize) -> Refusal {
    let (half, what, other) = match (sends.get(k), receives.get(k)) {
        (Some(send), _) => (send, "send", "receive"),
        (None, Some(receive)) => (receive, "receive", "send"),
        (None, None) => unreachable!("k counts one of the two"),
    };
    let (graph, node) = node_of(workload, half);
    let (far, end) = if half.receive {
        (half.source, "from")
    } else {
        (half.target, "to")
    };
    Refusal::new(
        format!(
            "{} has no partner: it is {what} {k} (counted from 0) {end} rank {far} with tag {} and \
             {} bytes, and rank {far} has only {} such {other}s",
            text(workload, half),
            half.tag,
            graph.bytes(node),
            sends.len().min(receives.len()),
        ),
        "the two traces are of different jobs or steps, or one was cut",
    )
}

/// `rank 3 node 17 `name``, for messages.
pub(super) fn describe(rank: Rank, graph: &Graph, node: NodeIndex) -> String {
    let name = shown(graph.name(node));
    format!("rank {rank} node {} `{name}`", graph.id(node))
}
