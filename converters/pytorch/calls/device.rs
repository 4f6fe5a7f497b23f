//! Finds the calls that kernels of NCCL and similar libraries execute.
//!
//! A kernel's operation comes from the first of these sources that is available:
//!
//! - The `record_param_comms` record or the `c10d` operator around the kernel's launch, or several
//!   requests that this launch executes together (`requests`).
//! - The arguments that newer profilers repeat in the kernel's own event. Kernels of a launched graph have no other
//!   source.
//! - The kernel's name, which is ambiguous: every all-to-all is named SendRecv.

use super::super::call_names::comm_kind_of_interval;
use super::super::kineto::is_graph_launch;
use super::super::rank_timeline::{DeviceInterval, JoinedRankCapture, NONE};
use super::super::timeline_events::TimelineEventWithoutTimes;
use super::args::{self, parse_comm_call};
use super::requests::{CommRequestHostIntervalIndices, RequestsByExecutingLaunch};
use super::{CommCall, CommCallArgs, CommOp, RankCommCallsAndAnomalies, UserCommKernelRules};
use crate::comm_kernels::KernelNameCommunicationHint;
use chakram_trace::format::{CollectiveKind, Dtype};

/// Finds the calls that kernels execute, and appends them to `calls`.
pub(super) fn append_device_calls(
    rank: &JoinedRankCapture,
    kernels: &UserCommKernelRules,
    calls: &mut RankCommCallsAndAnomalies,
) {
    let mut found: Vec<CommCall> = Vec::new();
    let mut ids = None;
    // Many kernels share a name, so classify each name only once.
    let (texts, table) = (&rank.kineto.texts, kernels.lookup_table());
    let mut named: Vec<Option<KernelNameCommunicationHint>> = vec![None; texts.len()];
    let mut find = |name: u32| {
        *named[name as usize].get_or_insert_with(|| table.classify_name(texts.get(name)))
    };
    let mut communicating: Vec<(u32, Option<CollectiveKind>)> = Vec::new();
    for (i, device) in (0..).zip(&rank.devices) {
        let event = &rank.events[device.event as usize];
        let hint = find(event.name);
        if let KernelNameCommunicationHint::Communicates(kind) = hint {
            communicating.push((i, kind));
        } else if has_collective_arguments(rank, event) {
            communicating.push((i, None));
        }
    }
    let launches = communicating
        .iter()
        .map(|&(i, _)| &rank.devices[i as usize])
        .filter(|device| device.launch != NONE && !is_kernel_of_launched_graph(rank, device))
        .map(|device| {
            (
                device.launch,
                CommRecordsAroundLaunch::from_device_interval(rank, device).is_empty(),
            )
        });
    let deferred = RequestsByExecutingLaunch::find_requests_launched_outside_interval(
        rank,
        &launches.collect(),
    );
    for &request in &deferred.unlaunched {
        let requested = CommRecordsAroundLaunch::from_request_executed_by_later_launch(request)
            .parse_recorded_or_operator_calls(rank)
            .into_iter();
        let names = requested.map(|(item, ..)| rank.host_interval_name(&rank.items[item as usize]));
        calls.never_ran.extend(names.map(str::to_owned));
    }
    for (i, kind) in communicating {
        let device = &rank.devices[i as usize];
        if device.launch == NONE {
            calls.before += 1;
            calls.unknown.push(i);
            continue;
        }
        let context = CommRecordsAroundLaunch::from_device_interval(rank, device);
        let event = &rank.events[device.event as usize];
        let mut made =
            match context.has_only_library_range() && has_collective_arguments(rank, event) {
                // The kernel's own arguments are more specific than the records around its launch, so ignore the
                // latter.
                true => Vec::new(),
                false => calls_executed_by_launch(rank, device.launch, &context, &deferred),
            };
        // One graph launch runs many kernels, each a separate call, so do not merge kernels without a recorded call.
        let alone = made.is_empty();
        if alone {
            let told = comm_call_of_kernel(rank, device, kind);
            made.extend(told.map(|(act, asked)| (device.launch, act, asked)));
        }
        if made.is_empty() {
            calls.unknown.push(i);
        }
        for (item, act, asked) in made {
            let known = found
                .iter_mut()
                .rev()
                // A collective's kernels are launched in succession, so searching the most recent
                // calls is enough.
                .take(64)
                .find(|call| call.item == item && !alone);
            match known {
                Some(call) => {
                    if calls.further.last().is_none_or(|&(last, _)| last != i) {
                        calls.further.push((i, call.device));
                    }
                    call.start = call.start.min(device.start);
                    call.end = call.end.max(device.end);
                    call.done = call.end;
                    call.parts += 1;
                }
                None => found.push(CommCall {
                    item,
                    rf_id: ids
                        .get_or_insert_with(|| OperatorIdsByStart::new(rank))
                        .find_item_or_preceding_operator_id(rank, item),
                    act,
                    asked,
                    group: NONE,
                    worker: NONE,
                    stream: Some(device.stream),
                    device: i,
                    launched: device.start,
                    start: device.start,
                    end: device.end,
                    done: device.end,
                    event: device.event,
                    parts: 1,
                }),
            }
        }
    }
    let dropped = calls_without_kernels(rank, &found, &deferred);
    let named = |call: CommCall| {
        let ids = ids.get_or_insert_with(|| OperatorIdsByStart::new(rank));
        CommCall {
            rf_id: ids.find_item_or_preceding_operator_id(rank, call.item),
            ..call
        }
    };
    calls.dropped = dropped.into_iter().map(named).collect();
    calls.list.extend(found);
}

/// Returns the calls that `launch` executes: the requests around it, which `context` describes, or else the requests
/// deferred to it.
fn calls_executed_by_launch(
    rank: &JoinedRankCapture,
    launch: u32,
    context: &CommRecordsAroundLaunch,
    deferred: &RequestsByExecutingLaunch,
) -> Vec<(u32, CommOp, CommCallArgs)> {
    let mut calls = context.parse_recorded_or_operator_calls(rank);
    if context.is_empty() {
        let requests = deferred.requests_executed_by_launch(launch).iter();
        calls.extend(requests.flat_map(|&request| {
            CommRecordsAroundLaunch::from_request_executed_by_later_launch(request)
                .parse_recorded_or_operator_calls(rank)
        }));
    }
    calls
}

/// Returns the calls whose launches have no kernel, except those in `found`.
fn calls_without_kernels(
    rank: &JoinedRankCapture,
    found: &[CommCall],
    deferred: &RequestsByExecutingLaunch,
) -> Vec<CommCall> {
    let mut known: Vec<u32> = found.iter().map(|call| call.item).collect();
    known.sort_unstable();
    let mut dropped: Vec<CommCall> = Vec::new();
    for &launch in &rank.dropped {
        let context = CommRecordsAroundLaunch::from_launch_interval(rank, launch);
        let made = calls_executed_by_launch(rank, launch, &context, deferred);
        let at = rank.items[launch as usize].end;
        for (item, act, asked) in made {
            // A call may launch several communication kernels, and also other kernels, so count each
            // call once.
            if known.binary_search(&item).is_ok() || dropped.iter().any(|call| call.item == item) {
                continue;
            }
            dropped.push(CommCall {
                item,
                rf_id: 0,
                act,
                asked,
                group: NONE,
                worker: NONE,
                stream: None,
                device: NONE,
                launched: at,
                start: at,
                end: at,
                done: at,
                event: rank.items[launch as usize].event,
                parts: 0,
            });
        }
    }
    dropped
}

/// Returns true if a kernel belongs to a launched graph. The graph's requests were made earlier,
/// when the graph was captured.
fn is_kernel_of_launched_graph(rank: &JoinedRankCapture, device: &DeviceInterval) -> bool {
    is_graph_launch(rank.event_name(rank.items[device.launch as usize].event))
}

/// Returns true if a kernel's own arguments describe a collective.
fn has_collective_arguments(rank: &JoinedRankCapture, event: &TimelineEventWithoutTimes) -> bool {
    let named = |args: &[(String, String)]| args.iter().any(|(key, _)| key == "Collective name");
    rank.args_of_event(event).is_some_and(named)
}

/// Operator ids sorted by start. A call that is known only from its launch gets the id of one of these operators.
struct OperatorIdsByStart(Vec<(i64, u64)>);

impl OperatorIdsByStart {
    fn new(rank: &JoinedRankCapture) -> Self {
        let of = |event: u32| rank.events[event as usize].rf_id;
        let known = rank.items.iter().map(|item| (item.start, of(item.event)));
        let mut list: Vec<(i64, u64)> = known.filter(|&(_, id)| id != 0).collect();
        list.sort_unstable();
        Self(list)
    }

    /// Returns the id of `item`, or of the last operator that began before it.
    fn find_item_or_preceding_operator_id(&self, rank: &JoinedRankCapture, item: u32) -> u64 {
        let item = &rank.items[item as usize];
        let own = rank.events[item.event as usize].rf_id;
        if own != 0 {
            return own;
        }
        let after = self.0.partition_point(|&(start, _)| start <= item.start);
        after.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

/// Returns a kernel's call, taken from its own arguments if there are any. Otherwise, uses the kind that its name shows
/// and the inputs of the surrounding operator.
fn comm_call_of_kernel(
    rank: &JoinedRankCapture,
    device: &DeviceInterval,
    kind: Option<CollectiveKind>,
) -> Option<(CommOp, CommCallArgs)> {
    let event = &rank.events[device.event as usize];
    let args = rank.args_of_event(event);
    if let Some(told) = args.and_then(|args| parse_call_from_attrs_or_kineto_args(None, Some(args)))
    {
        return Some(told);
    }
    let kind = kind?;
    let operator = rank
        .items
        .get(rank.operator_of_device_event(device) as usize);
    let node = operator.and_then(|item| rank.host.nodes.get(item.host as usize));
    let form = node.map(|node| rank.host.shared_properties_of_node(node));
    let bytes = form.map_or(0, |form| form.bytes_in);
    Some((
        CommOp::Collective(kind),
        CommCallArgs {
            bytes_in: bytes,
            bytes_out: bytes,
            by_name: true,
            dtype: form.and_then(|form| {
                args::parse_first_tensor_dtype(rank.host.texts.get(form.types_in))
            }),
            asynchronous: Some(true),
            ..CommCallArgs::default()
        },
    ))
}

/// Operators and records that surround a kernel's launch.
struct CommRecordsAroundLaunch {
    /// Indices of the host intervals of `record_param_comms` around the launch. The list has several entries if the
    /// kernel executes a batch of messages.
    records: Vec<u32>,
    /// Index of the `c10d` operator's host interval.
    operator: u32,
    /// Index of the host interval that the communication library itself recorded, such as
    /// `nccl:all_to_all`.
    range: u32,
}

impl CommRecordsAroundLaunch {
    /// Returns the context of a request that a later launch executes.
    fn from_request_executed_by_later_launch(request: CommRequestHostIntervalIndices) -> Self {
        let records = (request.record != NONE).then_some(request.record);
        Self {
            records: records.into_iter().collect(),
            operator: request.operator,
            range: NONE,
        }
    }

    /// Returns true if no request surrounds the launch.
    fn is_empty(&self) -> bool {
        self.records.is_empty() && (self.operator, self.range) == (NONE, NONE)
    }

    /// Returns true if only the library's own range surrounds the launch.
    fn has_only_library_range(&self) -> bool {
        self.records.is_empty() && self.operator == NONE && self.range != NONE
    }

    fn from_device_interval(rank: &JoinedRankCapture, device: &DeviceInterval) -> Self {
        Self::from_launch_interval(rank, device.launch)
    }

    /// Returns the operators and records that surround `launch`.
    fn from_launch_interval(rank: &JoinedRankCapture, launch: u32) -> Self {
        let mut this = Self {
            records: Vec::new(),
            operator: NONE,
            range: NONE,
        };
        for i in std::iter::once(launch).chain(rank.ancestors_of(launch)) {
            let name = rank.host_interval_name(&rank.items[i as usize]);
            if name == "record_param_comms" && this.records.is_empty() {
                this.records.push(i);
            } else if name == "nccl:coalesced" && this.records.is_empty() {
                this.records = record_param_comms_indices_in_batch(rank, i, launch);
            } else if args::comm_op_of_operator(name).is_some() && this.operator == NONE {
                this.operator = i;
            } else if comm_kind_of_interval(name).is_some() && this.range == NONE {
                this.range = i;
            }
        }
        this
    }

    fn parse_recorded_or_operator_calls(
        &self,
        rank: &JoinedRankCapture,
    ) -> Vec<(u32, CommOp, CommCallArgs)> {
        let recorded = self.records.iter();
        let mut made: Vec<_> = recorded
            .filter_map(|&i| parse_recorded_call(rank, i).map(|(act, asked)| (i, act, asked)))
            .collect();
        let from_operator = || {
            let item = rank.items.get(self.operator as usize)?;
            let node = rank.host.nodes.get(item.host as usize)?;
            let args = rank.host.args.get(node.args as usize)?;
            parse_comm_call(
                rank.host_interval_name(item),
                &args.inputs,
                &args.input_types,
            )
        };
        let Some((act, asked)) = from_operator() else {
            if made.is_empty() {
                made.extend(self.parse_call_of_library_range(rank));
            }
            return made;
        };
        match &mut made[..] {
            [] => {
                let mut named = self.records.iter();
                let group = named.find_map(|&record| find_recorded_group_name(rank, record));
                made.push((self.operator, act, CommCallArgs { group, ..asked }));
            }
            // Only the operator states the root and the result's storages, so add them to the
            // recorded call.
            [(_, recorded, known)] if *recorded == act => {
                known.results = asked.results;
                known.peer = known.peer.or(asked.peer);
                known.tag = asked.tag;
                if (known.bytes_in, known.bytes_out) == (0, 0) {
                    (known.bytes_in, known.bytes_out) = (asked.bytes_in, asked.bytes_out);
                    known.dtype = known.dtype.or(asked.dtype);
                }
            }
            _ => {}
        }
        made
    }
}

impl CommRecordsAroundLaunch {
    /// Returns the call that the library's range describes. The range states the kind of communication and the size of
    /// the tensor.
    fn parse_call_of_library_range(
        &self,
        rank: &JoinedRankCapture,
    ) -> Option<(u32, CommOp, CommCallArgs)> {
        let item = rank.items.get(self.range as usize)?;
        let kind = comm_kind_of_interval(rank.host_interval_name(item))?.collective_kind()?;
        let form = rank
            .host
            .shared_properties_of_node(rank.host.nodes.get(item.host as usize)?);
        let asked = CommCallArgs {
            bytes_in: form.bytes_in,
            dtype: args::parse_first_tensor_dtype(rank.host.texts.get(form.types_in)),
            asynchronous: Some(true),
            ..CommCallArgs::default()
        };
        Some((self.range, CommOp::Collective(kind), asked))
    }
}

/// Returns the indices of the `record_param_comms` host intervals in `batch`. A single launch, `launch`, executes all
/// messages of the batch.
fn record_param_comms_indices_in_batch(
    rank: &JoinedRankCapture,
    batch: u32,
    launch: u32,
) -> Vec<u32> {
    // Host intervals are sorted by thread and start. The indices of the batch's intervals are therefore between the
    // batch's own index and the launch's.
    let inside = batch..launch;
    let is_record = |i: &u32| {
        let item = &rank.items[*i as usize];
        item.thread == rank.items[batch as usize].thread
            && rank.host_interval_name(item) == "record_param_comms"
    };
    inside.filter(is_record).collect()
}

/// Parses a `record_param_comms`, either from the host node's attributes or from the Kineto event's
/// arguments.
pub(super) fn parse_recorded_call(
    rank: &JoinedRankCapture,
    index: u32,
) -> Option<(CommOp, CommCallArgs)> {
    let item = &rank.items[index as usize];
    let event = &rank.events[item.event as usize];
    let host = rank.host.nodes.get(item.host as usize);
    let host = host.and_then(|node| rank.host.args.get(node.args as usize));
    let kineto = rank.args_of_event(event);
    parse_call_from_attrs_or_kineto_args(host.map(|args| &args.attrs[..]), kineto)
}

/// Returns the group that a `record_param_comms` names in its attributes. Before schema 1.1.0, it is named only among
/// the inputs.
pub(super) fn find_recorded_group_name(rank: &JoinedRankCapture, index: u32) -> Option<String> {
    if let Some((_, asked)) = parse_recorded_call(rank, index) {
        return asked.group;
    }
    let item = &rank.items[index as usize];
    let node = rank.host.nodes.get(item.host as usize)?;
    let group = args::parse_group_of_record(&rank.host.args.get(node.args as usize)?.inputs)?;
    Some(group.name)
}

/// Parses the arguments of a call, either from the host node's attributes or from the Kineto event's
/// arguments.
fn parse_call_from_attrs_or_kineto_args(
    host: Option<&[(String, String)]>,
    kineto: Option<&[(String, String)]>,
) -> Option<(CommOp, CommCallArgs)> {
    let text = |attribute: &str, argument: &str| {
        let of = |list: &[(String, String)], key: &str| {
            let found = list.iter().find(|(k, _)| k == key);
            found.map(|(_, value)| value.trim_matches('"').to_owned())
        };
        let known = host.and_then(|attrs| of(attrs, attribute));
        known
            // An empty attribute counts as missing.
            .filter(|value| !value.is_empty())
            .or_else(|| of(kineto?, argument))
    };
    let act = comm_op_of_nccl_name(&text("collective_name", "Collective name")?)?;
    let dtype = text("dtype", "dtype").unwrap_or_default();
    // If the type is unknown, the element size is unknown too, so record only the call itself.
    let size = element_bytes_of_scalar_type(&dtype).unwrap_or(0);
    let elements = |attribute, argument| -> u64 {
        text(attribute, argument)
            .and_then(|value| value.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let inputs = elements("in_msg_nelems", "In msg nelems");
    let stated = text("in_msg_nelems", "In msg nelems").is_some_and(|n| n.parse::<u64>().is_ok());
    let outputs = elements("out_msg_nelems", "Out msg nelems");
    let splits = [
        text("in_split_size", "In split size"),
        text("out_split_size", "Out split size"),
    ];
    let uneven = splits
        .iter()
        .flatten()
        .any(|list| are_split_sizes_uneven(list));
    let [sends, receives] = match act {
        CommOp::Collective(CollectiveKind::AllToAll) => {
            let [input, output] = splits.map(|list| parse_split_size_list(&list?));
            let bytes = [inputs, outputs].map(|elements| elements.saturating_mul(size));
            let of =
                |sizes: Option<Vec<u64>>, bytes| args::split_bytes_in_proportion(&sizes?, bytes);
            [of(input, bytes[0]), of(output, bytes[1])]
        }
        _ => [None, None],
    };
    let number = |text: Option<String>| text.and_then(|text| text.parse::<u32>().ok());
    // For messages, the profiler writes ranks of the job, whereas operators use ranks in the group.
    let (peer, peer_rank) = match act {
        CommOp::Send => (None, number(text("dst_rank", "Dst Rank"))),
        CommOp::Receive => (None, number(text("src_rank", "Src Rank"))),
        CommOp::Collective(kind) if kind.has_root() => (number(text("root", "Root")), None),
        CommOp::Collective(_) => (None, None),
    };
    Some((
        act,
        CommCallArgs {
            bytes_in: inputs.saturating_mul(size),
            bytes_out: outputs.saturating_mul(size),
            size_stated: stated && size > 0,
            dtype: Dtype::from_name(&dtype),
            peer,
            peer_rank,
            sequence: text("seq", "Seq").and_then(|sequence| sequence.parse().ok()),
            tag: 0,
            asynchronous: Some(true),
            group: text("pg_name", "Process Group Name")
                .or_else(|| text("pg_id", "Process Group ID"))
                .filter(|name| !name.is_empty()),
            uneven,
            sends,
            receives,
            members: text("pg_size", "Group size").and_then(|count| count.parse().ok()),
            results: Vec::new(),
            by_name: false,
        },
    ))
}

/// Parses a list such as `[4, 8]`; returns `None` if it is truncated.
fn parse_split_size_list(list: &str) -> Option<Vec<u64>> {
    let inner = list.trim_matches(['[', ']']).trim();
    if inner.is_empty() {
        return Some(Vec::new());
    }
    inner
        .split(',')
        .map(|size| size.trim().parse().ok())
        .collect()
}

fn are_split_sizes_uneven(list: &str) -> bool {
    let inner = list.trim_matches(['[', ']']);
    let mut sizes = inner.split(',').map(str::trim);
    let first = sizes.next();
    !inner.is_empty() && sizes.any(|size| Some(size) != first)
}

/// Returns the operation that NCCL's process group calls `name`.
fn comm_op_of_nccl_name(name: &str) -> Option<CommOp> {
    use CollectiveKind as Kind;
    use CommOp::Collective;
    let plain = name.trim_start_matches("nccl:").trim_start_matches('_');
    Some(match plain {
        "send" => CommOp::Send,
        "recv" => CommOp::Receive,
        _ if plain.starts_with("allreduce") || plain == "all_reduce" => Collective(Kind::AllReduce),
        _ if plain.starts_with("reduce_scatter") => Collective(Kind::ReduceScatter),
        _ if plain.starts_with("allgather") || plain.starts_with("all_gather") => {
            Collective(Kind::AllGather)
        }
        _ if plain.starts_with("all_to_all") || plain.starts_with("alltoall") => {
            Collective(Kind::AllToAll)
        }
        _ if plain.starts_with("broadcast") => Collective(Kind::Broadcast),
        "reduce" | "reduce_oop" => Collective(Kind::Reduce),
        "gather" => Collective(Kind::Gather),
        "scatter" => Collective(Kind::Scatter),
        "barrier" => Collective(Kind::Barrier),
        _ => return None,
    })
}

/// Returns the bytes per element of PyTorch's scalar type `name`.
fn element_bytes_of_scalar_type(name: &str) -> Option<u64> {
    Some(match name {
        "Byte" | "Char" | "Bool" | "QInt8" | "QUInt8" => 1,
        "Short" | "Half" | "BFloat16" | "UInt16" => 2,
        "Int" | "Float" | "QInt32" | "UInt32" => 4,
        "Long" | "Double" | "ComplexFloat" | "UInt64" => 8,
        "ComplexDouble" => 16,
        other if other.starts_with("Float8") => 1,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_process_group_names_map_to_their_collectives() {
        let kinds = [
            ("allreduce_coalesced", CollectiveKind::AllReduce),
            ("_allgather_base", CollectiveKind::AllGather),
            ("_reduce_scatter_base", CollectiveKind::ReduceScatter),
            ("all_to_allv", CollectiveKind::AllToAll),
            ("broadcast_oop", CollectiveKind::Broadcast),
        ];
        for (name, kind) in kinds {
            assert_eq!(
                comm_op_of_nccl_name(name),
                Some(CommOp::Collective(kind)),
                "{name}"
            );
        }
        assert_eq!(comm_op_of_nccl_name("wait"), None);
    }

    #[test]
    fn split_sizes_are_even_when_all_are_equal_or_none_is_given() {
        assert!(!are_split_sizes_uneven("[]"));
        assert!(!are_split_sizes_uneven("[4, 4]"));
        assert!(are_split_sizes_uneven("[4, 8]"));
        assert_eq!(parse_split_size_list("[4, 8]"), Some(vec![4, 8]));
        assert_eq!(parse_split_size_list("[]"), Some(vec![]));
        // The profiler truncates long lists.
        assert_eq!(parse_split_size_list("[4, 8, ...]"), None);
    }
}
