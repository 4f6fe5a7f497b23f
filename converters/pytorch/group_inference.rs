//! Determines the process group of each communication call.
//!
//! NCCL's records and functional operators name their group. The `c10d` operators of host backends do not, so this
//! module infers it. If only one group exists, every call belongs to it. If several groups exist, the worker threads
//! identify the group, because gloo creates two workers for every new group. If NCCL's records state only the number of
//! members, the stream identifies the group. Messages do not run on worker threads. A message is assigned to the group
//! of all ranks unless its send and receive would not match there.

use super::calls::{CommCall, CommOp, RankCommCallsAndAnomalies, parse_group_of_record};
use super::groups::LARGEST_GROUP;
use super::rank_timeline::JoinedRankCapture;
use super::{ProcessGroup, groups};
use chakram_trace::format::CollectiveKind;
use std::collections::BTreeMap;
use workers::CandidateWorkerThreadPartitions;

mod communicators;
mod workers;

/// A process group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobGroup {
    /// Name of the group, unique in the job.
    pub name: String,
    /// Name of the group in its members' captures. Other ranks may use this name for other groups.
    pub called: String,
    /// Purpose of the group, as the program states it.
    pub desc: String,
    /// Members as job ranks, in the order that the group uses.
    pub ranks: Vec<u32>,
}

/// Number of a job's calls, by the method that found their group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallCountsByInferenceMethod {
    /// For each group, the number of calls whose capture names it.
    pub named: BTreeMap<u32, u64>,
    /// Number of calls assigned to the only group that exists.
    pub only: u64,
    /// For each group, the number of calls whose worker thread or stream identified it.
    pub by_worker: BTreeMap<u32, u64>,
    /// For each group, the number of calls that were assigned to it because no other group has the right size, or
    /// because the rank's other calls name no other group.
    pub by_size: BTreeMap<u32, u64>,
    /// Number of barriers and device collectives whose group is unknown.
    pub untold: u64,
    /// For each group, the number of messages assigned to it.
    pub messages: BTreeMap<u32, u64>,
}

/// Error: the groups cannot be inferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInferenceError {
    /// Rank whose capture reveals the problem.
    pub rank: u32,
    /// Contradiction in the captures.
    pub found: String,
    /// Advice to the user.
    pub hint: String,
}

/// Sets the group of every call. `ranks` must be sorted; `world` is the number of ranks in the job.
pub fn resolve_groups_of_all_calls(
    ranks: &[JoinedRankCapture],
    calls: &mut [RankCommCallsAndAnomalies],
    world: u32,
) -> Result<(Vec<JobGroup>, CallCountsByInferenceMethod), GroupInferenceError> {
    let mut groups = Vec::new();
    let mut inferred = CallCountsByInferenceMethod::default();
    let all: Vec<u32> = (0..world).collect();
    let mut own = Vec::new();
    for rank in ranks {
        own.push(merge_declared_groups_of_rank(rank, &all, &mut groups)?);
    }
    let known: Vec<_> = (0..ranks.len())
        .map(|r| CandidateWorkerThreadPartitions::new(&ranks[r], &calls[r], &own[r], &groups))
        .collect();
    // Host traces alone do not show which threads are workers, so do not infer groups from threads.
    let workers = if ranks.iter().any(|rank| rank.untimed) {
        vec![BTreeMap::new(); ranks.len()]
    } else {
        workers::infer_group_of_each_worker_thread(ranks, calls, &groups, &own, &known)
    };
    let communicators =
        communicators::assign_communicator_groups(ranks, calls, &mut groups, &own, world);
    let assumed: Vec<Option<u32>> = own
        .iter()
        .zip(&*calls)
        .map(|(own, calls)| find_only_group_named_by_calls(calls, own, &groups))
        .collect();
    for (r, rank) in ranks.iter().enumerate() {
        let own = &own[r];
        let RankCommCallsAndAnomalies { list, dropped, .. } = &mut calls[r];
        for call in list.iter_mut().chain(dropped) {
            let key = communicators::stream_and_size_of_unnamed_communicator(call);
            // If the record states the number of members, the group must have this size.
            let fits = |group: &u32| {
                key.is_none_or(|(_, size)| groups[*group as usize].ranks.len() == size as usize)
            };
            let by_stream = || communicators[r].get(&key?).copied();
            let by_thread = || workers[r].get(&call.worker).copied().or_else(by_stream);
            let on_device = call.on_device() || call.has_only_dropped_kernels();
            let assumed = || {
                let other = || match call.asked.by_name {
                    true => find_only_multi_rank_group(own, &groups),
                    false => own.first().copied(),
                };
                let assumed = assumed[r].or_else(other);
                assumed.filter(|group| on_device && fits(group))
            };
            call.group = match (&call.asked.group, &own[..]) {
                (Some(name), _) => {
                    let found = own.iter().find(|&&g| groups[g as usize].called == *name);
                    match found {
                        Some(&group) => {
                            *inferred.named.entry(group).or_default() += 1;
                            group
                        }
                        // Only the group's size is known, so the call keeps its recorded time.
                        None if call.on_device() && call.asked.members.is_some() => {
                            inferred.untold += 1;
                            UNTOLD
                        }
                        None => return Err(undeclared_group_error(rank, call, name)),
                    }
                }
                (None, &[only]) if fits(&only) => {
                    inferred.only += 1;
                    only
                }
                // This choice of the group is provisional: `messages` moves the message to another
                // group if its send and receive do not match.
                (None, _) if call.is_message() => own[0],
                (None, _) => {
                    if let Some(group) = by_thread() {
                        *inferred.by_worker.entry(group).or_default() += 1;
                        group
                    } else if let Some(group) =
                        find_only_group_of_shown_size(call, own, &groups).or_else(assumed)
                    {
                        *inferred.by_size.entry(group).or_default() += 1;
                        group
                    } else if key.is_some()
                        || call.has_only_dropped_kernels()
                        || call.asked.by_name
                        || call.act == CommOp::Collective(CollectiveKind::Barrier)
                    {
                        // A barrier whose group is unknown moves no data, so it keeps its recorded time, and nothing
                        // waits for it. The same applies to a kernel whose group is unknown.
                        inferred.untold += 1;
                        UNTOLD
                    } else {
                        return Err(unnamed_group_error(rank, call));
                    }
                }
            };
        }
    }
    let all_calls = calls.iter_mut();
    let all_calls = all_calls.flat_map(|calls| calls.list.iter_mut().chain(&mut calls.dropped));
    for call in all_calls {
        if let (None, Some(rank)) = (call.asked.peer, call.asked.peer_rank) {
            let members = groups
                .get(call.group as usize)
                .map_or(&[][..], |group| &group.ranks);
            let place = members.iter().position(|member| *member == rank);
            call.asked.peer = place.map(|place| place as u32);
        }
    }
    move_messages_to_smaller_group(ranks, calls, &groups, &mut inferred)?;
    Ok((groups, inferred))
}

/// Index that marks calls whose group is unknown.
pub const UNTOLD: u32 = u32::MAX;

/// Returns the only group in `own` whose number of members fits the sizes of `call`, or `None` if
/// several fit.
fn find_only_group_of_shown_size(call: &CommCall, own: &[u32], groups: &[JobGroup]) -> Option<u32> {
    let shown = member_count_shown_by_sizes(call)?;
    let mut fitting = own
        .iter()
        .filter(|&&g| groups[g as usize].ranks.len() == shown as usize);
    let &only = fitting.next()?;
    fitting.next().is_none().then_some(only)
}

/// Returns the only group in `own` that has several members. Groups with equal members count as
/// one.
fn find_only_multi_rank_group(own: &[u32], groups: &[JobGroup]) -> Option<u32> {
    let ranks = |group: u32| &groups[group as usize].ranks;
    let mut several = own.iter().copied().filter(|&group| ranks(group).len() > 1);
    let first = several.next()?;
    several
        .all(|group| ranks(group) == ranks(first))
        .then_some(first)
}

/// Returns the group for a rank's kernels that are known only by name. It is the only group that the rank's other calls
/// name.
fn find_only_group_named_by_calls(
    calls: &RankCommCallsAndAnomalies,
    own: &[u32],
    groups: &[JobGroup],
) -> Option<u32> {
    let named = calls
        .list
        .iter()
        .filter_map(|call| call.asked.group.as_ref());
    let mut named: Vec<&String> = named.collect();
    named.sort_unstable();
    named.dedup();
    match named[..] {
        [only] => own
            .iter()
            .copied()
            .find(|&g| groups[g as usize].called == *only),
        _ => None,
    }
}

fn member_count_shown_by_sizes(call: &CommCall) -> Option<u32> {
    match call.act {
        CommOp::Collective(kind) => call.asked.member_count_from_size_ratio(kind),
        _ => None,
    }
}

/// Returns a lower bound on the number of ranks in the job. The default group contains all ranks
/// and no group is larger, so the groups determine the bound.
pub(super) fn lower_bound_of_world_size(
    rank: &JoinedRankCapture,
    calls: &RankCommCallsAndAnomalies,
) -> u32 {
    let declared = rank.host.groups.iter().chain(&rank.kineto.groups).cloned();
    let of_groups = declared
        .chain(groups_described_by_call_records(rank))
        .map(|group| {
            let last = group
                .ranks
                .iter()
                .max()
                .map_or(0, |last| last.saturating_add(1));
            last.max(group.size.unwrap_or(0))
        });
    let of_calls = calls.list.iter().filter_map(|call| call.asked.members);
    let plausible = |count: &u32| *count <= LARGEST_GROUP;
    of_groups
        .chain(of_calls)
        .filter(plausible)
        .max()
        .unwrap_or(0)
}

/// Returns the groups that the records of calls describe. Each group has a name. It also has either its members (listed
/// or computed) or only their number.
fn groups_described_by_call_records(rank: &JoinedRankCapture) -> Vec<ProcessGroup> {
    let mut found: BTreeMap<String, ProcessGroup> = BTreeMap::new();
    let mut placed: BTreeMap<String, ProcessGroup> = BTreeMap::new();
    let kineto = rank.kineto.args.iter();
    let kineto = kineto.filter_map(|args| group_from_record_arguments(args, &OF_PROFILER));
    let host = rank.host.args.iter();
    let host = host.filter_map(|args| group_from_record_arguments(&args.attrs, &OF_OBSERVER));
    for group in kineto.chain(host) {
        found.entry(group.name.clone()).or_insert(group);
    }
    // Before schema 1.1.0, observers wrote the group into a record's inputs.
    for args in &rank.host.args {
        let is_known = |group: &ProcessGroup| !group.ranks.is_empty() || group.size.is_some();
        let Some(group) = parse_group_of_record(&args.inputs).filter(is_known) else {
            continue;
        };
        match found.get_mut(&group.name) {
            Some(known) if known.ranks.is_empty() => known.ranks = group.ranks,
            Some(_) => {}
            None => {
                placed.entry(group.name.clone()).or_insert(group);
            }
        }
    }
    found.into_values().chain(placed.into_values()).collect()
}

/// Names of the attributes that describe a record's group, in this order: name (or the group's number),
/// description, members, first member, stride, number of members.
type RecordGroupAttributeNames = [&'static str; 7];

const OF_PROFILER: RecordGroupAttributeNames = [
    "Process Group Name",
    "Process Group ID",
    "Process Group Description",
    "Process Group Ranks",
    "Global rank start",
    "Global rank stride",
    "Group size",
];

const OF_OBSERVER: RecordGroupAttributeNames = [
    "pg_name",
    "pg_id",
    "pg_desc",
    "pg_ranks",
    "global_rank_start",
    "global_rank_stride",
    "pg_size",
];

/// Returns the group that a record's arguments describe. The group states either its members or only their number.
fn group_from_record_arguments(
    args: &[(String, String)],
    keys: &RecordGroupAttributeNames,
) -> Option<ProcessGroup> {
    let get = |key: &str| {
        let value = args.iter().find(|(name, _)| name == key);
        let value = value.map(|(_, value)| value.trim_matches('"'));
        value.filter(|value| !value.is_empty())
    };
    let number = |key: &str| get(key).and_then(|value| value.parse::<u32>().ok());
    let &[name, id, desc, listed, first, stride, size] = keys;
    let name = get(name).or_else(|| get(id))?;
    let size = number(size).filter(|size| (1..=LARGEST_GROUP).contains(size));
    let listed = get(listed).and_then(|list| groups::parse_ranks(list, size));
    let listed = listed.filter(|list| size.is_none_or(|size| list.len() == size as usize));
    let strided = || groups::rank_progression(number(first)?, number(stride)?, size?);
    let ranks = listed.or_else(strided).unwrap_or_default();
    (!ranks.is_empty() || size.is_some()).then(|| ProcessGroup {
        name: name.to_owned(),
        desc: get(desc).unwrap_or("").to_owned(),
        ranks,
        size,
        ..ProcessGroup::default()
    })
}

/// Returns true if a group without a member list contains all ranks: it is the default group, or
/// its size is the number of ranks in the job.
fn contains_all_ranks(group: &ProcessGroup, all: &[u32]) -> bool {
    let is_default = group.desc == "default_pg" || group.name == "0" && group.desc.is_empty();
    is_default || group.size.is_none_or(|size| size as usize == all.len())
}

/// Merges the groups that `rank` declares into `groups`. Returns the indices of these groups; the
/// group of all ranks comes first.
fn merge_declared_groups_of_rank(
    rank: &JoinedRankCapture,
    all: &[u32],
    groups: &mut Vec<JobGroup>,
) -> Result<Vec<u32>, GroupInferenceError> {
    let mut list: Vec<ProcessGroup> = rank.host.groups.clone();
    for group in &rank.kineto.groups {
        match list.iter_mut().find(|known| known.name == group.name) {
            // If the host trace does not list the members, those in the Kineto trace are used.
            Some(known) if known.ranks.is_empty() => known.ranks.clone_from(&group.ranks),
            Some(_) => {}
            None => list.push(group.clone()),
        }
    }
    // Also merge the groups in records, because they may be undeclared, or may have members that no declaration lists.
    for group in groups_described_by_call_records(rank) {
        match list.iter_mut().find(|known| known.name == group.name) {
            Some(known) if known.ranks.is_empty() && !contains_all_ranks(known, all) => {
                known.ranks = group.ranks;
                known.size = known.size.or(group.size);
            }
            Some(_) => {}
            None => list.push(group),
        }
    }
    // Drop groups whose members are still unknown.
    list.retain(|group| !group.ranks.is_empty() || contains_all_ranks(group, all));
    // If no group is declared, the group of all ranks is the only one.
    if list.is_empty() {
        list.push(ProcessGroup {
            name: "0".to_owned(),
            ..ProcessGroup::default()
        });
    }
    let mut own = Vec::new();
    for group in list {
        let ranks = if group.ranks.is_empty() {
            all.to_vec()
        } else {
            group.ranks
        };
        // If every rank creates only its own part of a split, the parts share a name but no rank.
        let known = groups.iter().position(|known| {
            known.called == group.name && known.ranks.iter().any(|rank| ranks.contains(rank))
        });
        let index = match known {
            Some(known) if groups[known].ranks != ranks => {
                return Err(GroupInferenceError {
                    rank: rank.rank,
                    found: format!(
                        "this rank declares group `{}` with ranks {ranks:?}, but another rank declares it with {:?}",
                        group.name, groups[known].ranks
                    ),
                    hint: "convert the captures of one run together".to_owned(),
                });
            }
            Some(known) => known,
            None => {
                let first = ranks.first().copied().unwrap_or(0);
                groups.push(JobGroup {
                    name: unique_group_name(&group.name, first, groups),
                    called: group.name,
                    desc: group.desc,
                    ranks,
                });
                groups.len() - 1
            }
        };
        own.push(index as u32);
    }
    let whole = own.iter().position(|&g| groups[g as usize].ranks == all);
    if let Some(whole) = whole {
        // Put the group of all ranks first, because messages without a group are assigned to the
        // first group. All other groups keep their order.
        own[..=whole].rotate_right(1);
    }
    Ok(own)
}

/// Returns `name` if the job does not use this name yet, otherwise `name@first`, with a number
/// appended if necessary.
pub(super) fn unique_group_name(name: &str, first: u32, groups: &[JobGroup]) -> String {
    let taken = |name: &str| groups.iter().any(|group| group.name == name);
    if !taken(name) {
        return name.to_owned();
    }
    let mut unique = format!("{name}@{first}");
    for number in 2.. {
        if !taken(&unique) {
            break;
        }
        unique = format!("{name}@{first}.{number}");
    }
    unique
}

/// Moves messages to a smaller group if their sends and receives do not match in the group of all ranks.
fn move_messages_to_smaller_group(
    ranks: &[JoinedRankCapture],
    calls: &mut [RankCommCallsAndAnomalies],
    groups: &[JobGroup],
    inferred: &mut CallCountsByInferenceMethod,
) -> Result<(), GroupInferenceError> {
    let place: BTreeMap<u32, usize> = ranks.iter().enumerate().map(|(i, r)| (r.rank, i)).collect();
    let mut candidates: Vec<u32> = (0..groups.len() as u32).collect();
    // Start with the largest group, so that messages go to a smaller group only if they do not match in
    // a larger one.
    candidates.sort_by_key(|&g| (std::cmp::Reverse(groups[g as usize].ranks.len()), g));
    let mut open: Vec<bool> = calls
        .iter()
        .map(|calls| calls.list.iter().any(is_message_without_group_name))
        .collect();
    if groups.len() == 1 {
        return Ok(());
    }
    for group in candidates {
        let members: Vec<usize> = groups[group as usize]
            .ranks
            .iter()
            .filter_map(|rank| place.get(rank).copied())
            .collect();
        if !members.iter().any(|&m| open[m])
            || !has_matching_messages_in_group(ranks, calls, &groups[group as usize], &members)
        {
            continue;
        }
        for member in members {
            open[member] = false;
            for call in calls[member]
                .list
                .iter_mut()
                .filter(|call| is_message_without_group_name(call))
            {
                call.group = group;
                *inferred.messages.entry(group).or_default() += 1;
            }
        }
    }
    match open.iter().position(|&open| open) {
        None => Ok(()),
        Some(rank) => Err(GroupInferenceError {
            rank: ranks[rank].rank,
            found: "the sends and receives of this rank match the other ranks in no group".to_owned(),
            hint:
                "convert all ranks of the run together; if all are given, the program sent messages \
                   in several groups, which a capture of a host backend cannot distinguish"
                    .to_owned(),
        }),
    }
}

fn is_message_without_group_name(call: &CommCall) -> bool {
    call.is_message() && call.asked.group.is_none()
}

/// Returns true if the messages of all members match when peers are numbered within `group`.
fn has_matching_messages_in_group(
    ranks: &[JoinedRankCapture],
    calls: &[RankCommCallsAndAnomalies],
    group: &JobGroup,
    members: &[usize],
) -> bool {
    // A send adds one to a count, and a receive subtracts one. The group fits if every count ends at
    // zero.
    let mut balance: BTreeMap<(u32, u32, i32, u64), i64> = BTreeMap::new();
    for &member in members {
        let own = ranks[member].rank;
        for call in calls[member]
            .list
            .iter()
            .filter(|call| is_message_without_group_name(call))
        {
            let Some(&peer) = call
                .asked
                .peer
                .and_then(|peer| group.ranks.get(peer as usize))
            else {
                return false;
            };
            // The messages of a peer without a capture are unknown, so skip the peer.
            if ranks.binary_search_by_key(&peer, |rank| rank.rank).is_err() {
                continue;
            }
            let (tag, bytes) = (
                call.asked.tag,
                call.asked.bytes_in.saturating_add(call.asked.bytes_out),
            );
            match call.act {
                CommOp::Send => *balance.entry((own, peer, tag, bytes)).or_default() += 1,
                _ => *balance.entry((peer, own, tag, bytes)).or_default() -= 1,
            }
        }
    }
    balance.values().all(|&count| count == 0)
}

fn undeclared_group_error(
    rank: &JoinedRankCapture,
    call: &CommCall,
    name: &str,
) -> GroupInferenceError {
    GroupInferenceError {
        rank: rank.rank,
        found: format!(
            "`{}` names group `{name}`, which neither the host trace nor Kineto declares",
            rank.host_interval_name(&rank.items[call.item as usize])
        ),
        hint: "capture with a profiler that writes `## process_group:init ##` or distributedInfo \
               (PyTorch 2.4 or later)"
            .to_owned(),
    }
}

fn unnamed_group_error(rank: &JoinedRankCapture, call: &CommCall) -> GroupInferenceError {
    let (why, hint) = if rank.untimed {
        (
            "neither names nor sizes determine the group, and a host trace does not record the worker threads",
            "convert with the Kineto traces of the run, or capture functional collectives, which name \
             their group",
        )
    } else {
        (
            "the rank is in several groups, whose worker threads cannot be distinguished",
            "capture a window in which every group is used, or functional collectives, which name \
             their group",
        )
    };
    GroupInferenceError {
        rank: rank.rank,
        found: format!(
            "the group of `{}` (record function id {}) is unknown: {why}",
            rank.host_interval_name(&rank.items[call.item as usize]),
            call.rf_id
        ),
        hint: hint.to_owned(),
    }
}
