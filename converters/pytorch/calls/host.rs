//! Finds the calls that gloo and other host backends execute.
//!
//! A `gloo:*` interval gets its record function id when the operator that requests the interval runs. An interval
//! therefore belongs to the last `c10d` operator, on any thread, that has a lower id. The interval's name does not show
//! the operation, because gloo implements a reduce-scatter as an all-reduce.

use super::super::call_names::{comm_kind_of_interval, comm_kind_of_operator};
use super::super::rank_timeline::{InFlightGlooInterval, JoinedRankCapture, NONE};
use super::args::{self, parse_comm_call};
use super::{CommCall, RankCommCallsAndAnomalies};

/// Finds the calls of `rank` that host backends executed.
pub(super) fn find_host_backend_calls(rank: &JoinedRankCapture) -> RankCommCallsAndAnomalies {
    let mut calls = RankCommCallsAndAnomalies::default();
    let mut askers: Vec<(u64, u32)> = Vec::new();
    for (i, item) in rank.items.iter().enumerate() {
        let name = rank.host_interval_name(item);
        if args::comm_op_of_operator(name).is_some() {
            askers.push((rank.events[item.event as usize].rf_id, i as u32));
        } else if comm_kind_of_operator(name).is_some() && !rank_has_device_work(rank) {
            calls.never_ran.push(name.to_owned());
        }
    }
    askers.sort_unstable();
    let mut flights: Vec<Vec<&InFlightGlooInterval>> = vec![Vec::new(); askers.len()];
    for flight in &rank.flights {
        let after = askers.partition_point(|&(id, _)| id < flight.rf_id);
        let asker = after
            .checked_sub(1)
            .map(|before| (before, askers[before].1));
        // An interval can belong to an operator of the same kind that started earlier.
        let fits = |item: u32| {
            let item = &rank.items[item as usize];
            let kinds = comm_kind_of_operator(rank.host_interval_name(item))
                .zip(comm_kind_of_interval(rank.event_name(flight.event)));
            item.start <= flight.start
                && kinds.is_none_or(|(asked, made)| asked.can_be_executed_by_interval(made))
        };
        match asker.filter(|&(_, item)| fits(item)) {
            Some((asker, _)) => flights[asker].push(flight),
            None => calls.orphans += 1,
        }
    }
    for (&(rf_id, item), flights) in askers.iter().zip(&flights) {
        let name = rank.host_interval_name(&rank.items[item as usize]);
        if flights.is_empty() {
            if !rank_has_device_work(rank) {
                calls.never_ran.push(name.to_owned());
            }
            continue;
        }
        match build_host_comm_call(rank, rf_id, item, flights) {
            Some(call) => calls.list.push(call),
            None => calls.never_ran.push(name.to_owned()),
        }
    }
    calls
}

/// Returns true if the host launched anything on a device. If so, kernels execute the calls.
fn rank_has_device_work(rank: &JoinedRankCapture) -> bool {
    rank.has_run_or_launched_device_work()
}

fn build_host_comm_call(
    rank: &JoinedRankCapture,
    rf_id: u64,
    index: u32,
    flights: &[&InFlightGlooInterval],
) -> Option<CommCall> {
    let item = &rank.items[index as usize];
    let node = rank.host.nodes.get(item.host as usize)?;
    let args = rank.host.args.get(node.args as usize)?;
    let (act, mut asked) = parse_comm_call(
        rank.host_interval_name(item),
        &args.inputs,
        &args.input_types,
    )?;
    // Functional operators wrap the `c10d` operator and carry the group's name.
    asked.group = rank
        .ancestors_of(index)
        .find_map(|i| parse_functional_operator_group_name(rank, i));
    if asked.group.is_none() {
        asked.group = find_group_name_in_operator_record(rank, index);
    }
    // A coalesced operation has several intervals, and ends with the last of them.
    let last = flights.iter().max_by_key(|flight| flight.end)?;
    // A message's interval is on the caller's thread, and a collective's interval is on a worker's
    // thread.
    let by_caller = last.thread == item.thread;
    let taken_up = flights.iter().map(|flight| flight.start).min()?;
    // A message is passed to gloo while its operator runs. Its interval opens later, sometimes after the message has
    // arrived. So the transfer is assumed to start with the operator. A collective starts when its worker has copied
    // the input. The worker's final copies do not belong to the transfer.
    let (start, end) = if by_caller {
        (item.start, last.end)
    } else {
        let moving = flights
            .iter()
            .map(|flight| find_longest_operator_free_transfer_time(rank, flight));
        moving.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?
    };
    Some(CommCall {
        item: index,
        rf_id,
        act,
        asked,
        group: NONE,
        worker: if by_caller { NONE } else { last.thread },
        stream: None,
        device: NONE,
        launched: if by_caller {
            item.start
        } else {
            taken_up.min(item.end)
        },
        start,
        end,
        done: last.end,
        event: last.event,
        parts: flights.len() as u32,
    })
}

/// Returns the group name in a `record_param_comms` inside the operator.
fn find_group_name_in_operator_record(rank: &JoinedRankCapture, operator: u32) -> Option<String> {
    let end = rank.items[operator as usize].end;
    let inside = rank.items.iter().enumerate().skip(operator as usize + 1);
    let mut inside = inside.take_while(|(_, item)| item.start < end).take(16);
    let (record, _) =
        inside.find(|(_, item)| rank.host_interval_name(item) == "record_param_comms")?;
    super::device::find_recorded_group_name(rank, record as u32)
}

fn parse_functional_operator_group_name(rank: &JoinedRankCapture, item: u32) -> Option<String> {
    let item = &rank.items[item as usize];
    if !rank
        .host_interval_name(item)
        .starts_with("_c10d_functional::")
    {
        return None;
    }
    let node = rank.host.nodes.get(item.host as usize)?;
    args::parse_functional_group_name(&rank.host.args.get(node.args as usize)?.inputs)
}

/// Returns when an interval moved data: the longest period in which no operator ran on the interval's worker.
fn find_longest_operator_free_transfer_time(
    rank: &JoinedRankCapture,
    flight: &InFlightGlooInterval,
) -> (i64, i64) {
    let range = rank.threads[flight.thread as usize].items.clone();
    let items = &rank.items[range.start as usize..range.end as usize];
    let first = items.partition_point(|item| item.start < flight.start);
    let mut free = flight.start;
    let mut longest = (flight.start, flight.start);
    for item in items[first..]
        .iter()
        .take_while(|item| item.start < flight.end)
    {
        if item.start - free > longest.1 - longest.0 {
            longest = (free, item.start);
        }
        free = free.max(item.end);
    }
    if flight.end - free > longest.1 - longest.0 {
        longest = (free, flight.end);
    }
    longest
}
