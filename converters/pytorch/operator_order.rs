//! Assigns record function ids in Kineto traces that have none, and finds the operator that
//! requested each interval in flight.
//!
//! Later stages order operators by record function id. They assign each interval of gloo's workers to the last operator
//! with a lower id. If the profiler wrote no ids, this module assigns ids in order of start time. An interval in flight
//! is matched to its operator by kind and size. The interval gets the id that follows its operator's.

use super::call_names::{CollectiveOrMessageKind, comm_kind_of_interval, comm_kind_of_operator};
use super::elements::count_tensor_elements;
use super::kineto::{EventCategory, KinetoTrace};
use std::cmp::Reverse;

/// Maximum number of open operators to search for the one that requested an interval.
const OPEN: usize = 256;

/// If any operator or annotation has no id, assigns new ids to all of them. Returns true if ids were assigned, and the
/// indices of these events. The indices are sorted by start if ids were assigned.
pub(super) fn assign_ids_to_host_events_if_any_missing(
    kineto: &mut KinetoTrace,
) -> (bool, Vec<u32>) {
    let on_host = |category| matches!(category, EventCategory::CpuOp | EventCategory::Annotation);
    let mut order: Vec<u32> = (0..kineto.events.len() as u32)
        .filter(|&i| on_host(kineto.events[i as usize].category))
        .collect();
    if kineto.with_rf_id == order.len() as u64 {
        return (false, order);
    }
    order.sort_by_key(|&i| {
        let event = &kineto.events[i as usize];
        (event.start_ns, Reverse(event.duration_ns), i)
    });
    for (place, &i) in order.iter().enumerate() {
        kineto.events[i as usize].rf_id = 2 * (place as u64 + 1);
    }
    let mut open: Vec<CommOperatorAwaitingTransfer> = Vec::new();
    let mut last = 0;
    for &i in &order {
        let event = &kineto.events[i as usize];
        let name = kineto.texts.get(event.name);
        if let Some(kind) = comm_kind_of_operator(name) {
            last = event.rf_id;
            open.push(CommOperatorAwaitingTransfer {
                id: event.rf_id,
                track: event.track,
                kind,
                elements: elements_of_largest_input(kineto, i),
            });
            if open.len() > OPEN {
                open.remove(0);
            }
        } else if let Some(kind) =
            comm_kind_of_interval(name).filter(|_| super::is_host_communication_interval_name(name))
        {
            let found = find_operator_of_comm_interval(
                &open,
                kind,
                event.track,
                elements_of_largest_input(kineto, i),
            );
            let id = match found {
                // Each operator opens at most one interval, so do not consider it again.
                Some(found) => open.remove(found).id,
                None => last,
            };
            kineto.events[i as usize].rf_id = id + 1;
        }
    }
    (true, order)
}

/// A communication operator whose transfer interval has not been found yet.
struct CommOperatorAwaitingTransfer {
    id: u64,
    track: u32,
    kind: CollectiveOrMessageKind,
    elements: u64,
}

/// Returns the first operator that may have produced an interval of this kind and size.
fn find_operator_of_comm_interval(
    open: &[CommOperatorAwaitingTransfer],
    kind: CollectiveOrMessageKind,
    track: u32,
    elements: u64,
) -> Option<usize> {
    let fits = |operator: &CommOperatorAwaitingTransfer| {
        operator.kind.can_be_executed_by_interval(kind)
            // The interval of a message is on the caller's thread.
            && (!kind.is_message() || operator.track == track)
    };
    let exact =
        |operator: &CommOperatorAwaitingTransfer| fits(operator) && operator.elements == elements;
    open.iter()
        .position(exact)
        .or_else(|| open.iter().position(fits))
}

/// Returns the number of elements of an event's largest input; zero if unknown.
fn elements_of_largest_input(kineto: &KinetoTrace, event: u32) -> u64 {
    let args = kineto.args_of_event(&kineto.events[event as usize]);
    let dims = args.and_then(|args| args.iter().find(|(key, _)| key == "Input Dims"));
    let dims = dims.and_then(|(_, dims)| serde_json::from_str::<serde_json::Value>(dims).ok());
    let list = dims.as_ref().and_then(serde_json::Value::as_array);
    let sized = list.into_iter().flatten();
    let sized = sized.filter(|dims| dims.as_array().is_some_and(|list| !list.is_empty()));
    sized.map(count_tensor_elements).max().unwrap_or(0)
}
