//! Builds events for a capture without a Kineto trace. The events take their order and nesting from the host operators,
//! and have no times.
//!
//! Operators begin one tick apart, in order of id. Each operator ends when the last operator inside it ends. Ticks only
//! define an order. Nodes without times have no duration, so the replay computes their times from their work.
//!
//! An operator that requests communication is assumed to execute it immediately. The intervals of gloo's workers are
//! ignored, because without times they say nothing. Even the nesting of these intervals is arbitrary: when a worker
//! starts an interval, the observer pushes it onto the stack of the caller's current operator.

use super::IN_FLIGHT;
use super::call_names::{comm_kind_of_interval, comm_kind_of_operator};
use super::event_links::{HostKinetoMatchMethod, KinetoEventHostNodeMap};
use super::host::{HostTrace, NONE};
use super::kineto::{EventCategory, KinetoEvent, KinetoTrace, KinetoTrackIdentity};
use std::collections::BTreeMap;

/// Ticks between the starts of two operators.
const TICK: i64 = 4;

/// Builds a Kineto trace from the operators of `host`.
pub(super) fn build_kineto_trace(host: &HostTrace) -> (KinetoTrace, KinetoEventHostNodeMap) {
    let name = |node: u32| host.texts.get(host.nodes[node as usize].name);
    let mut order: Vec<u32> = (0..host.nodes.len() as u32).collect();
    order.sort_by_key(|&i| host.records[i as usize].id);
    order.retain(|&i| !name(i).starts_with("[pytorch|") && name(i) != "## process_group:init ##");
    let mut link = KinetoEventHostNodeMap::without_links(0);
    link.roots = (host.nodes.len() - order.len()) as u64;
    let (flights, order): (Vec<u32>, Vec<u32>) = order
        .into_iter()
        .partition(|&i| super::is_host_communication_interval_name(name(i)));
    link.carried = flights.len() as u64;
    link.unrequested = count_worker_intervals_without_operator(&flights, &order, &name);
    let ends = operator_ends(host, &order);
    let mut events = TickTimedKinetoTraceBuilder::default();
    for (place, &node) in order.iter().enumerate() {
        let start = TICK * (place as i64 + 1);
        let tid = host.nodes[node as usize].tid;
        let (text, id) = (name(node), 2 * (place as u64 + 1));
        let pushed = events.push(text, (tid, false), (start, ends[place]), id, node);
        let flight = match comm_kind_of_operator(text) {
            Some(_) => {
                let text = format!("{}{text}", IN_FLIGHT[0]);
                events.push(&text, (tid, true), (start + 1, start + 2), id + 1, NONE)
            }
            None => Some(()),
        };
        // A name's index has 32 bits, so the name table can become full.
        if pushed.is_none() || flight.is_none() {
            break;
        }
    }
    link.method = HostKinetoMatchMethod::HostAlone;
    link.linked = order.len() as u64;
    link.host_of = events.host_of;
    (events.kineto, link)
}

/// Returns the number of worker intervals of one kind that no operator in the file requests. They come from library
/// calls without operators.
fn count_worker_intervals_without_operator<'h>(
    flights: &[u32],
    order: &[u32],
    name: &impl Fn(u32) -> &'h str,
) -> u64 {
    let mut requested: Vec<_> = order
        .iter()
        .filter_map(|&i| comm_kind_of_operator(name(i)))
        .collect();
    requested.sort_unstable();
    requested.dedup();
    let alone = |&&i: &&u32| {
        let kind = comm_kind_of_interval(name(i));
        kind.is_none_or(|kind| {
            !requested
                .iter()
                .any(|asked| asked.can_be_executed_by_interval(kind))
        })
    };
    flights.iter().filter(alone).count() as u64
}

/// Kineto events under construction, with ticks as times.
#[derive(Default)]
struct TickTimedKinetoTraceBuilder {
    kineto: KinetoTrace,
    host_of: Vec<u32>,
    /// Track for each pair of a thread and a flag. The flag is true for the track that holds only the thread's
    /// communication.
    tracks: BTreeMap<(u32, bool), u32>,
}

impl TickTimedKinetoTraceBuilder {
    /// Adds an event of the host node `node` on the track `on` (thread, and true for communication). Returns `None`
    /// if the name table is full.
    fn push(
        &mut self,
        name: &str,
        on: (u32, bool),
        (start, end): (i64, i64),
        rf_id: u64,
        node: u32,
    ) -> Option<()> {
        let count = self.tracks.len() as u32;
        let track = *self.tracks.entry(on).or_insert(count);
        if track == count {
            let (tid, communication) = on;
            self.kineto.tracks.push(KinetoTrackIdentity {
                tid: tid.to_string(),
                name: if communication {
                    format!("communication of thread {tid}")
                } else {
                    String::new()
                },
                ..KinetoTrackIdentity::default()
            });
        }
        let name = self.kineto.texts.intern_name(name)?;
        self.kineto.events.push(KinetoEvent {
            start_ns: start,
            duration_ns: u64::try_from(end - start).unwrap_or(0),
            name,
            category: EventCategory::CpuOp,
            track,
            rf_id,
            external_id: 0,
            correlation: 0,
            details: NONE,
            offset: 0,
        });
        self.host_of.push(node);
        Some(())
    }
}

/// Returns the tick at which each operator in `order` ends: one tick after the last operator inside
/// it.
fn operator_ends(host: &HostTrace, order: &[u32]) -> Vec<i64> {
    let mut ends: Vec<i64> = (0..order.len() as i64)
        .map(|i| TICK * (i + 1) + TICK - 1)
        .collect();
    for (own, parent) in operator_parents(host, order).into_iter().enumerate().rev() {
        if let Some(parent) = parent {
            ends[parent] = ends[parent].max(ends[own]);
        }
    }
    ends
}

/// For each operator, returns the index in `order` of the operator that encloses it.
///
/// The observer writes each operator when it ends. An operator that began later and ended earlier than another on the
/// same thread ran inside it. This order is more reliable than the file's parent links, because a link names the top of
/// a stack that gloo's workers share. If another tool has sorted the file, however, only the links are available.
fn operator_parents(host: &HostTrace, order: &[u32]) -> Vec<Option<usize>> {
    let linked = parents_linked_on_same_thread(host, order);
    let pairs = linked.iter().zip(order);
    let pairs = pairs.filter_map(|(parent, &i)| parent.map(|parent| i < order[parent]));
    let (before, behind): (Vec<bool>, Vec<bool>) = pairs.partition(|before| *before);
    if before.len() < behind.len() {
        return linked;
    }
    let mut open: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let parent = |(own, &i): (usize, &u32)| {
        let stack = open.entry(host.nodes[i as usize].tid).or_default();
        // Nodes are written when operators end, so the index in the file follows the order in which operators ended.
        while stack.last().is_some_and(|&top| order[top] < i) {
            stack.pop();
        }
        let parent = stack.last().copied();
        stack.push(own);
        parent
    };
    order.iter().enumerate().map(parent).collect()
}

/// Returns the index in `order` of each operator's parent in the file. A parent counts only if it began earlier on the
/// same thread.
fn parents_linked_on_same_thread(host: &HostTrace, order: &[u32]) -> Vec<Option<usize>> {
    let place: BTreeMap<u64, usize> = order
        .iter()
        .enumerate()
        .map(|(place, &i)| (host.records[i as usize].id, place))
        .collect();
    let parent = |(own, &i): (usize, &u32)| {
        let tid = |i: u32| host.nodes[i as usize].tid;
        let parent = place.get(&host.records[i as usize].parent).copied()?;
        // A link to a later operator or to another thread means that the file is damaged.
        (parent < own && tid(order[parent]) == tid(i)).then_some(parent)
    };
    order.iter().enumerate().map(parent).collect()
}
