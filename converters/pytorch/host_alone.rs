//! Events of a capture without a Kineto trace: the order and nesting of the host's operators, without times.
//!
//! Operators begin in the order of their ids, each a tick after the one before, and end with the last that ran in
//! them. Ticks only say what comes before what: nodes made of them have no duration and are priced by what they do.

use super::call_names::operator_kind;
use super::event_links::{HostNodeLinks, LinkMethod};
use super::host::{HostTrace, NONE};
use super::kineto::{EventCategory, KinetoEvent, KinetoTrace, KinetoTrack};
use super::{IN_FLIGHT, in_flight};
use std::collections::BTreeMap;

/// Ticks between the starts of two operators.
const TICK: i64 = 4;

/// Makes a Kineto trace of the operators of `host`.
pub(super) fn kineto_trace(host: &HostTrace) -> (KinetoTrace, HostNodeLinks) {
    let mut order: Vec<u32> = (0..host.nodes.len() as u32).collect();
    order.sort_by_key(|&i| host.nodes[i as usize].id);
    let name = |node: u32| host.texts.get(host.nodes[node as usize].name);
    order.retain(|&i| !name(i).starts_with("[pytorch|") && name(i) != "## process_group:init ##");
    let roots = (host.nodes.len() - order.len()) as u64;
    let ends = ends(host, &order);
    let gloo = order.iter().any(|&i| in_flight(name(i)));
    let mut kineto = KinetoTrace::default();
    let mut tracks: BTreeMap<(u32, bool), u32> = BTreeMap::new();
    let mut host_of = Vec::new();
    let mut last_request = 0;
    for (place, &node) in order.iter().enumerate() {
        let start = TICK * (place as i64 + 1);
        let tid = host.nodes[node as usize].tid;
        let flies = in_flight(name(node));
        let asks = operator_kind(name(node));
        let id = 2 * (place as u64 + 1);
        if asks.is_some() {
            last_request = id;
        }
        let mut push = |text: &str, flies: bool, start: i64, end: i64, rf_id: u64, node: u32| {
            let count = tracks.len() as u32;
            let track = *tracks.entry((tid, flies)).or_insert(count);
            if track == count {
                kineto.tracks.push(KinetoTrack {
                    tid: tid.to_string(),
                    name: if flies {
                        format!("communication of thread {tid}")
                    } else {
                        String::new()
                    },
                    ..KinetoTrack::default()
                });
            }
            let event = event(kineto.texts.intern(text)?, track, start, end, rf_id);
            kineto.events.push(event);
            host_of.push(node);
            Some(())
        };
        let pushed = if flies {
            push(name(node), true, start, start + 1, last_request + 1, NONE)
        } else {
            push(name(node), false, start, ends[place], id, node)
        };
        // NCCL has no interval on the host; its kernels are in the file that is missing.
        let flight = if asks.is_some() && !gloo {
            let text = format!("{}{}", IN_FLIGHT[0], name(node));
            push(&text, true, start + 1, start + 2, id + 1, NONE)
        } else {
            Some(())
        };
        if pushed.is_none() || flight.is_none() {
            break;
        }
    }
    let mut link = HostNodeLinks::unlinked(0);
    link.method = LinkMethod::HostAlone;
    link.linked = host_of.iter().filter(|node| **node != NONE).count() as u64;
    link.roots = roots;
    link.host_of = host_of;
    (kineto, link)
}

/// Returns the tick at which each operator of `order` ends: behind the last that ran in it.
fn ends(host: &HostTrace, order: &[u32]) -> Vec<i64> {
    let place: BTreeMap<u64, usize> = order
        .iter()
        .enumerate()
        .map(|(place, &i)| (host.nodes[i as usize].id, place))
        .collect();
    let mut ends: Vec<i64> = (0..order.len() as i64)
        .map(|i| TICK * (i + 1) + TICK - 1)
        .collect();
    for (own, &i) in order.iter().enumerate().rev() {
        let node = &host.nodes[i as usize];
        let parent = place.get(&node.parent).copied();
        // A parent begins before its children, and on their thread; anything else is damage.
        let Some(parent) = parent.filter(|&parent| parent < own) else {
            continue;
        };
        let around = &host.nodes[order[parent] as usize];
        if around.tid == node.tid && !in_flight(host.texts.get(around.name)) {
            ends[parent] = ends[parent].max(ends[own]);
        }
    }
    ends
}

fn event(name: u32, track: u32, start: i64, end: i64, rf_id: u64) -> KinetoEvent {
    KinetoEvent {
        start_ns: start,
        duration_ns: u64::try_from(end - start).unwrap_or(0),
        name,
        category: EventCategory::CpuOp,
        track,
        rf_id,
        external_id: 0,
        correlation: 0,
        stream: -1,
        device: -1,
        bytes: 0,
        args: NONE,
        shapes: NONE,
        types: NONE,
        bytes_in: 0,
        offset: 0,
    }
}
