//! Matches a workload's collectives by their order in each group, and matches sends with receives.
//!
//! Matches are computed once before the run, from program order. Mismatches between ranks are therefore reported before
//! the run, and the run itself searches for no match.

use super::error::ReplayRefusal;
use super::ids::ReplayGroupId;
use super::options::{CommunicationDurationSource, ReplayOptions};
use super::plan::{NONE, PlacedCommunicationGroup, PlannedCollective, ReplayPlan, group_text};
use super::price_changes::RequestedDurationChanges;
use super::split_sizes;
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_hardware::collective::NamedScriptedAlgorithm;
use chakram_trace::format::escape_and_shorten_name;
use chakram_trace::graph::{CollectiveNode, Graph};
use chakram_trace::matching::{
    CollectiveSignature, MemberCalls, MessageChannel, MessageDisagreement, MessageHalf,
    RankAndCommIndex, TraceCallsByGroupSlot, find_disagreement, match_messages_by_channel,
};
use chakram_trace::workload::Workload;
use std::sync::Arc;

/// A communicator (group slot) of an instance, as (group, instance, slot).
type InstanceCommunicatorKey = (ReplayGroupId, u32, u32);

/// Matches the k-th collectives of a group's members, and checks that matched collectives are the same.
pub(super) fn match_collectives(
    plan: &mut ReplayPlan,
    workload: &Workload,
    options: &ReplayOptions,
) -> Result<(), ReplayRefusal> {
    renumber_calls_in_shared_groups(plan, workload);
    let calls_of = workload.distinct_graphs().iter().map(|graph| {
        let calls = graph
            .collective_calls()
            .iter()
            .map(|call| call.group)
            .zip(0..);
        TraceCallsByGroupSlot::new(graph.group_slots().len(), calls)
    });
    let calls_of: Vec<TraceCallsByGroupSlot> = calls_of.collect();
    let mut callers: Vec<InstanceCommunicatorKey> = Vec::new();
    for (instance, of) in (0..).zip(&plan.instances) {
        let slots = (0..).zip(&of.slots);
        callers.extend(slots.map(|(slot, bound)| (bound.group, instance, slot)));
    }
    // The sort is stable, so members stay in ascending order by rank.
    callers.sort_by_key(|caller| caller.0);
    let mut before: Option<Arc<[PlannedCollective]>> = None;
    for same in callers.chunk_by(|a, b| a.0 == b.0) {
        let group = same[0].0.index();
        let members: Vec<MemberCalls<'_>> =
            calls_of_group_members(workload, &calls_of, same).collect();
        let mut calls = collect_group_calls_and_check_members(plan, workload, same, &members)?;
        check_calls_have_sizes_of_custom_algorithms(&plan.groups[group], &calls, &options.custom)?;
        if options.comm == CommunicationDurationSource::Model {
            apply_duration_changes_to_calls(plan, workload, &options.changes, &mut calls, &members);
        }
        // Groups with equal collectives are mostly adjacent, so compare each group only with the previous one.
        plan.groups[group].calls = match &before {
            Some(before) if **before == *calls => Arc::clone(before),
            _ => calls.into(),
        };
        before = Some(Arc::clone(&plan.groups[group].calls));
        split_sizes::gather_split_sizes(plan, workload, group, &members)?;
    }
    Ok(())
}

/// Rejects collectives whose size differs from the size for which their custom algorithm was written.
fn check_calls_have_sizes_of_custom_algorithms(
    group: &PlacedCommunicationGroup,
    calls: &[PlannedCollective],
    custom: &[NamedScriptedAlgorithm],
) -> Result<(), ReplayRefusal> {
    let members = group.extent.member_count();
    for algorithm in custom {
        let Some(expected) = algorithm.buffer else {
            continue;
        };
        let mut fits = calls
            .iter()
            .filter(|call| algorithm.applies_to(call.kind, members));
        if let Some(call) = fits.find(|call| call.buffer != expected) {
            let (kind, found) = (algorithm.kind, call.buffer);
            return Err(ReplayRefusal::new(
                format!(
                    "{} {}: the messages are those of {kind}s of {expected} bytes, but the {} has one of {found} \
                     bytes",
                    SettingKey::Custom,
                    algorithm.name,
                    group_text(group),
                ),
                format!(
                    "an algorithm for {found} bytes; every {kind} among {members} members must have its size"
                ),
            ));
        }
    }
    Ok(())
}

/// Returns the calls of each member that has a trace and uses the group of `callers`.
fn calls_of_group_members<'c>(
    workload: &Workload,
    calls_of: &'c [TraceCallsByGroupSlot],
    callers: &[InstanceCommunicatorKey],
) -> impl Iterator<Item = MemberCalls<'c>> {
    let instances = callers.chunk_by(|a, b| a.1 == b.1);
    instances.map(|slots| {
        let instance = slots[0].1;
        let graph = workload.instances()[instance as usize].graph;
        calls_of[graph.index()].calls_of_member(instance, slots.iter().map(|caller| caller.2))
    })
}

/// Returns the collectives of the group of `callers`, as the first member with a trace states them. Fails if the calls
/// of another member differ.
fn collect_group_calls_and_check_members(
    plan: &ReplayPlan,
    workload: &Workload,
    callers: &[InstanceCommunicatorKey],
    all: &[MemberCalls<'_>],
) -> Result<Vec<PlannedCollective>, ReplayRefusal> {
    let group = &plan.groups[callers[0].0.index()];
    let count = all.len();
    let mut members = all.iter().cloned();
    let Some(first) = members.next() else {
        return Ok(Vec::new());
    };
    let calls = first
        .iter_calls_of_this_member()
        .map(|call| build_planned_collective(workload, group, call));
    let mut calls: Vec<PlannedCollective> = calls.collect::<Result<_, _>>()?;
    // The first member with a trace that never uses the group.
    let mut silent = None;
    if count < group.present as usize {
        let present = group.members.iter().map(|m| plan.instance_of[m.index()]);
        let called = |instance: &u32| callers.binary_search_by_key(instance, |c| c.1).is_ok();
        silent = present.filter(|&i| i != NONE).find(|i| !called(i));
    }
    let silent = silent.map(|instance| MemberCalls {
        rank: instance,
        calls: <_>::default(),
    });
    let signature = |at| {
        let (_, graph, call) = rank_graph_and_call_of_collective(workload, at);
        let root = call
            .kind
            .has_root()
            .then(|| root_rank_or_first_member(call, group).0);
        CollectiveSignature {
            kind: call.kind,
            bytes: graph.stated_bytes_of_node(call.node),
            root,
        }
    };
    let Some(found) = find_disagreement(&first, members.chain(silent), signature) else {
        for (place, call) in calls.iter_mut().enumerate() {
            call.recorded = longest_recorded_transfer_if_size_unknown(workload, all, place);
        }
        return Ok(calls);
    };
    Err(ReplayRefusal::new(
        format!(
            "the ranks disagree on collective {} (counted from 0) of the {}: {}, but {}",
            found.k,
            group_text(group),
            describe_call(workload, first.rank, found.calls[0]),
            describe_call(workload, found.other, found.calls[1])
        ),
        "look for a trace of another job or step, or a truncated trace; members of a group must \
         make the same collectives in the same order",
    ))
}

/// Changes the durations of `calls`, the collectives issued by `members`, as the options request.
fn apply_duration_changes_to_calls(
    plan: &mut ReplayPlan,
    workload: &Workload,
    changes: &RequestedDurationChanges,
    calls: &mut [PlannedCollective],
    members: &[MemberCalls<'_>],
) {
    let Some(first) = members.first() else { return };
    // In `plan.changes`, the counts for kernel changes come first and those for collective changes last.
    let from = plan.changes.len() - changes.collectives.len();
    for (call, at) in calls.iter_mut().zip(first.iter_calls_of_this_member()) {
        let (_, graph, node) = rank_graph_and_call_of_collective(workload, at);
        for (number, time) in changes.matching_collective_changes(call.kind, graph.name(node.node))
        {
            plan.changes[from + number].count_match_of_unknown_duration();
            call.changed = Some(time);
        }
    }
}

/// Returns the longest transfer that a member recorded for a collective of unknown size. Returns `None` if the first
/// member states a size.
fn longest_recorded_transfer_if_size_unknown(
    workload: &Workload,
    members: &[MemberCalls<'_>],
    place: usize,
) -> Option<Span> {
    let first = members.first()?.call_at(place)?;
    if !rank_graph_and_call_of_collective(workload, first)
        .2
        .size_unknown
    {
        return None;
    }
    let calls = members.iter().filter_map(|member| member.call_at(place));
    let transfers = calls.map(|at| {
        let (_, graph, call) = rank_graph_and_call_of_collective(workload, at);
        graph.recorded_duration(call.node)
    });
    transfers.max()
}

fn rank_graph_and_call_of_collective(
    workload: &Workload,
    at: RankAndCommIndex,
) -> (Rank, &Graph, &CollectiveNode) {
    let instance = &workload.instances()[at.0 as usize];
    let graph = workload.graph_of(instance);
    (
        instance.rank,
        graph,
        &graph.collective_calls()[at.1 as usize],
    )
}

/// Formats an instance's call for error messages, or says that the call is missing.
fn describe_call(workload: &Workload, instance: u32, call: Option<RankAndCommIndex>) -> String {
    let Some(call) = call else {
        let rank = workload.instances()[instance as usize].rank;
        return format!("rank {rank} has no further collective in this group");
    };
    let (rank, graph, call) = rank_graph_and_call_of_collective(workload, call);
    let root = if call.kind.has_root() && call.root != NONE {
        format!(" rooted at rank {}", call.root)
    } else {
        String::new()
    };
    let (node, bytes) = (
        describe_node(rank, graph, call.node),
        graph.stated_bytes_of_node(call.node),
    );
    format!("{node} is {} of {bytes} bytes{root}", call.kind)
}

/// Returns the root's rank. By default, the root is the first member.
fn root_rank_or_first_member(call: &CollectiveNode, group: &PlacedCommunicationGroup) -> Rank {
    match call.root {
        NONE => group.members[0],
        root => Rank(root),
    }
}

/// Renumbers an instance's collective calls if two of its communicators (slots of the graph) are bound to the same
/// group.
pub(super) fn renumber_calls_in_shared_groups(plan: &mut ReplayPlan, workload: &Workload) {
    for (i, instance) in workload.instances().iter().enumerate() {
        let slots = &plan.instances[i].slots;
        let mut groups: Vec<ReplayGroupId> = slots.iter().map(|slot| slot.group).collect();
        groups.sort_unstable();
        if groups.windows(2).all(|pair| pair[0] != pair[1]) {
            continue;
        }
        let mut next = vec![0_u32; plan.groups.len()];
        let calls = workload.graph_of(instance).collective_calls().iter();
        let sequences = calls.map(|call| {
            let counter = &mut next[slots[call.group as usize].group.index()];
            *counter += 1;
            *counter - 1
        });
        let sequences = sequences.collect();
        plan.instances[i].sequences = Some(sequences);
    }
}

fn build_planned_collective(
    workload: &Workload,
    group: &PlacedCommunicationGroup,
    at: RankAndCommIndex,
) -> Result<PlannedCollective, ReplayRefusal> {
    let (rank, graph, call) = rank_graph_and_call_of_collective(workload, at);
    let refusal = |found: String, hint: &str| {
        let node = describe_node(rank, graph, call.node);
        ReplayRefusal::new(format!("{node}: {found}"), hint)
    };
    let root = root_rank_or_first_member(call, group);
    let place = group.members.iter().position(|&m| m == root);
    if call.kind.has_root() && place.is_none() {
        return Err(refusal(
            format!(
                "the root is rank {root}, which is not in the {}",
                group_text(group)
            ),
            "a rank of the job in `comm_root`, not a position in the group",
        ));
    }
    let (size, bytes) = (
        group.members.len() as u32,
        graph.stated_bytes_of_node(call.node),
    );
    let buffer = call.kind.buffer_bytes(bytes, size).ok_or_else(|| {
        refusal(
            format!("{size} shards of {bytes} bytes are more than 2^63 bytes in total"),
            "check that `comm_size` is the size of a shard, as all-gather and gather need",
        )
    })?;
    Ok(PlannedCollective {
        kind: call.kind,
        buffer,
        root: group.extent.position_of[place.unwrap_or(0)],
        recorded: None,
        changed: None,
    })
}

/// Assigns indices to message channels. A channel is defined by two ends, a tag and a size. Fails if a channel has
/// different numbers of sends and receives, unless `allow_unmatched` is true.
pub(super) fn number_message_channels(
    plan: &mut ReplayPlan,
    workload: &Workload,
    allow_unmatched: bool,
) -> Result<(), ReplayRefusal> {
    let mut halves = collect_message_halves(plan, workload, |graph, node| {
        graph.stated_bytes_of_node(node)
    });
    let (mut before, mut alone) = (None, Vec::new());
    for found in match_messages_by_channel(&mut halves) {
        let channel = found.channel;
        let ends = (channel.source, channel.target, channel.tag);
        let askings = match (before == Some(ends), plan.request_channels.last()) {
            (true, Some(&first)) => first,
            _ => plan.pairs,
        };
        plan.request_channels.push(askings);
        before = Some(ends);
        if !allow_unmatched && let Some(disagreement) = found.find_disagreement(|_| channel.scope) {
            alone.push(disagreement);
        }
        for half in found.sends.iter().chain(found.receives) {
            plan.assign_next_match_index_to_message_half(half.at);
        }
        plan.pairs += 1;
    }
    match &alone[..] {
        [] => Ok(()),
        [first, ..] => Err(match find_size_mismatch(&alone) {
            Some((send, receive)) => message_size_mismatch_error(workload, send, receive),
            None => message_disagreement_error(workload, first),
        }),
    }
}

/// Returns the first unmatched send and unmatched receive that agree in their ends and tag but differ in size, or
/// `None`. They are probably the two halves of one message, to which the traces give different sizes. In the list,
/// channels with the same ends and tag must be next to each other.
fn find_size_mismatch(
    alone: &[MessageDisagreement<u64>],
) -> Option<(RankAndCommIndex, RankAndCommIndex)> {
    let halves = alone.iter().filter_map(|disagreement| match disagreement {
        MessageDisagreement::Count { half, .. } => Some(half),
        MessageDisagreement::Size { .. } => None,
    });
    let halves: Vec<_> = halves.collect();
    let ends = |half: &MessageHalf<u64>| {
        let MessageChannel {
            source,
            target,
            tag,
            ..
        } = half.channel;
        (source, target, tag)
    };
    let mut messages = halves.chunk_by(|a, b| ends(a) == ends(b));
    messages.find_map(|of| {
        let send = of
            .iter()
            .filter(|half| !half.receive)
            .min_by_key(|half| half.at)?;
        let receive = of
            .iter()
            .filter(|half| half.receive)
            .min_by_key(|half| half.at)?;
        Some((send.at, receive.at))
    })
}

fn message_size_mismatch_error(
    workload: &Workload,
    send: RankAndCommIndex,
    receive: RankAndCommIndex,
) -> ReplayRefusal {
    let said = |half| {
        let (rank, graph, node) = rank_graph_and_node_of_message(workload, half);
        (
            describe_node(rank, graph, node),
            graph.stated_bytes_of_node(node),
        )
    };
    let ((sender, sent), (receiver, expected)) = (said(send), said(receive));
    ReplayRefusal::new(
        format!(
            "the sizes of a send and its receive differ: {sender} sends {sent} bytes, and {receiver} expects \
             {expected}; messages are matched by ends, tag and size, so neither node has a partner"
        ),
        "give both nodes the same `comm_size`, or check that the two traces are of one job and step",
    )
}

/// Matches sends with receives: for the same two ranks and tag, the k-th send matches the k-th receive.
pub(super) fn assign_message_matches(
    plan: &mut ReplayPlan,
    workload: &Workload,
) -> Result<(), ReplayRefusal> {
    let mut halves = collect_message_halves(plan, workload, |_, _| ());
    for found in match_messages_by_channel(&mut halves) {
        if let Some(disagreement) =
            found.find_disagreement(|half| bytes_of_message_half(workload, half))
        {
            return Err(message_disagreement_error(workload, &disagreement));
        }
        for (send, receive) in found.matched_pairs() {
            plan.assign_next_match_index_to_message_half(send);
            plan.assign_next_match_index_to_message_half(receive);
            plan.pairs += 1;
        }
    }
    Ok(())
}

/// Returns all sends or all receives whose other end has a trace. Each entry names an instance and a message.
fn collect_message_halves<S>(
    plan: &mut ReplayPlan,
    workload: &Workload,
    scope: impl Fn(&Graph, NodeIndex) -> S,
) -> Vec<MessageHalf<S>> {
    let mut halves = Vec::new();
    for (i, instance) in (0..).zip(workload.instances()) {
        let graph = workload.graph_of(instance);
        plan.instances[i as usize].pairs = vec![NONE; graph.messages().len()];
        for (m, message) in (0..).zip(graph.messages()) {
            let peer = instance.peers[message.peer as usize];
            if plan.instance_of[peer.index()] != NONE {
                let (own, scope) = (instance.rank.0, scope(graph, message.node));
                let half =
                    MessageHalf::new(own, peer.0, message.receive, message.tag, scope, (i, m));
                halves.push(half);
            }
        }
    }
    halves
}

fn rank_graph_and_node_of_message(
    workload: &Workload,
    half: RankAndCommIndex,
) -> (Rank, &Graph, NodeIndex) {
    let instance = &workload.instances()[half.0 as usize];
    let graph = workload.graph_of(instance);
    (instance.rank, graph, graph.messages()[half.1 as usize].node)
}

fn bytes_of_message_half(workload: &Workload, half: RankAndCommIndex) -> u64 {
    let (_, graph, node) = rank_graph_and_node_of_message(workload, half);
    graph.stated_bytes_of_node(node)
}

fn message_disagreement_error<S>(
    workload: &Workload,
    disagreement: &MessageDisagreement<S>,
) -> ReplayRefusal {
    let named = |half: &MessageHalf<S>| {
        let (rank, graph, node) = rank_graph_and_node_of_message(workload, half.at);
        describe_node(rank, graph, node)
    };
    ReplayRefusal::new(
        disagreement.describe_disagreement(named, |half| bytes_of_message_half(workload, half)),
        "check that the two traces are of one job and step, and that neither is truncated",
    )
}

/// Formats a node for messages, as `rank 3 node 17 `name``.
pub(super) fn describe_node(rank: Rank, graph: &Graph, node: NodeIndex) -> String {
    let name = escape_and_shorten_name(graph.name(node));
    format!("rank {rank} node {} `{name}`", graph.id(node))
}
