//! Joins host nodes and Kineto events by order, for files without record function ids.
//!
//! On a thread, the k-th host node with a name (sorted by id) corresponds to the k-th Kineto event with that name
//! (sorted by start). The observer numbers threads itself, while Kineto uses the system's thread ids. So each host
//! thread is matched to the track whose names are most similar. If Kineto recorded for longer than the observer, the
//! host's operators are a contiguous window of Kineto's operators. The window is found by comparing sequences of names.
//! Shapes do not influence the matching, so they can verify its result.

use super::{
    HostKinetoMatchMethod, HostThreadKinetoMatchCounts, KeptCaptureWindow, KinetoEventHostNodeMap,
};
use crate::pytorch::host::{HostTrace, NONE};
use crate::pytorch::is_host_communication_interval_name;
use crate::pytorch::kineto::{EventCategory, KinetoTrace};
use chakram_trace::graph::{StringArenaInterner, stable_hash};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Number of names in each compared sequence.
const SEQUENCE: usize = 12;
/// Number of sequences to search for on each thread.
const SEQUENCES: usize = 64;
/// If a thread has more events per node than this, Kineto is assumed to have recorded for longer than the observer.
const LONGER: f64 = 1.05;

/// One thread's nodes or events in one file: their indices in order, each with a key for its name.
#[derive(Default)]
struct ThreadOperatorNameSequence {
    of: Vec<u32>,
    names: Vec<u32>,
}

/// Joins `host` and `kineto` by order.
pub(super) fn link_host_trace_to_kineto_by_order(
    host: &HostTrace,
    kineto: &KinetoTrace,
) -> KinetoEventHostNodeMap {
    let mut link = KinetoEventHostNodeMap::without_links(kineto.events.len());
    link.method = HostKinetoMatchMethod::Order;
    let mut keys = kineto.texts.clone();
    let hosts = operators_by_host_thread(host, &mut keys, &mut link);
    let tracks = operators_by_kineto_track(kineto);
    let mut agreement = ShapeComparisonCache::default();
    let mut partial = false;
    for (tid, track) in pair_host_threads_with_kineto_tracks(&hosts, &tracks) {
        let (nodes, events) = (&hosts[&tid], &tracks[&track]);
        let mut row = HostThreadKinetoMatchCounts {
            thread: tid,
            track: kineto.tracks[track as usize].clone(),
            nodes: nodes.of.len() as u64,
            events: events.of.len() as u64,
            windows: 1,
            ..HostThreadKinetoMatchCounts::default()
        };
        let longer = events.of.len() as f64 > nodes.of.len() as f64 * LONGER + 8.0;
        let (from, to) =
            match find_matching_event_range(&nodes.names, &events.names).filter(|_| longer) {
                Some(found) => {
                    partial = true;
                    row.windows = found.alike;
                    (found.from, found.to)
                }
                None => (0, events.of.len()),
            };
        row.window = (from as u64, to as u64);
        for (node, event) in pair_same_named_operators(nodes, events, from..to) {
            link.host_of[event as usize] = node;
            row.linked += 1;
            match agreement.compare_event_shapes(host, kineto, node, event) {
                Some(true) => (row.compared, row.agreeing) = (row.compared + 1, row.agreeing + 1),
                Some(false) => row.compared += 1,
                None => {}
            }
        }
        link.linked += row.linked;
        link.threads.push(row);
    }
    let nodes: u64 = hosts.values().map(|thread| thread.of.len() as u64).sum();
    for (tid, thread) in &hosts {
        if !link.threads.iter().any(|row| row.thread == *tid) {
            link.threads.push(HostThreadKinetoMatchCounts {
                thread: *tid,
                nodes: thread.of.len() as u64,
                ..HostThreadKinetoMatchCounts::default()
            });
        }
    }
    link.threads.sort_by_key(|row| row.thread);
    link.host_only = nodes - link.linked;
    let of_kineto: usize = tracks.values().map(|track| track.of.len()).sum();
    link.kineto_only = of_kineto as u64 - link.linked;
    link.window = partial.then(|| window_spanning_all_linked_events(kineto, &link.host_of));
    link
}

/// Returns the operators of each host thread, sorted by id.
fn operators_by_host_thread(
    host: &HostTrace,
    keys: &mut StringArenaInterner,
    link: &mut KinetoEventHostNodeMap,
) -> BTreeMap<u32, ThreadOperatorNameSequence> {
    let mut order: Vec<u32> = (0..host.nodes.len() as u32).collect();
    order.sort_by_key(|&i| host.records[i as usize].id);
    let mut threads: BTreeMap<u32, ThreadOperatorNameSequence> = BTreeMap::new();
    for i in order {
        let node = &host.nodes[i as usize];
        let name = host.texts.get(node.name);
        let root = name.starts_with("[pytorch|") || name == "## process_group:init ##";
        if root {
            link.roots += 1;
            continue;
        }
        // The observer assigns intervals in flight to the requesting thread, whereas Kineto assigns them to the worker,
        // so they cannot match.
        if is_host_communication_interval_name(name) {
            continue;
        }
        let Some(key) = keys.intern_name(name) else {
            continue;
        };
        let thread = threads.entry(node.tid).or_default();
        thread.of.push(i);
        thread.names.push(key);
    }
    threads
}

/// Returns each track's operators, sorted by start. If two operators start at the same time, the
/// longer operator comes first.
fn operators_by_kineto_track(kineto: &KinetoTrace) -> BTreeMap<u32, ThreadOperatorNameSequence> {
    let mut order: Vec<u32> = (0..kineto.events.len() as u32)
        .filter(|&i| {
            let event = &kineto.events[i as usize];
            matches!(
                event.category,
                EventCategory::CpuOp | EventCategory::Annotation
            ) && !is_host_communication_interval_name(kineto.texts.get(event.name))
        })
        .collect();
    order.sort_by_key(|&i| {
        let event = &kineto.events[i as usize];
        (event.start_ns, Reverse(event.duration_ns), i)
    });
    let mut tracks: BTreeMap<u32, ThreadOperatorNameSequence> = BTreeMap::new();
    for i in order {
        let event = &kineto.events[i as usize];
        let track = tracks.entry(event.track).or_default();
        track.of.push(i);
        track.names.push(event.name);
    }
    tracks
}

/// Pairs host threads with tracks. The most certain pairs come first.
fn pair_host_threads_with_kineto_tracks(
    hosts: &BTreeMap<u32, ThreadOperatorNameSequence>,
    tracks: &BTreeMap<u32, ThreadOperatorNameSequence>,
) -> Vec<(u32, u32)> {
    let count = |thread: &ThreadOperatorNameSequence| {
        let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
        for name in &thread.names {
            *counts.entry(*name).or_default() += 1;
        }
        counts
    };
    let of_tracks: Vec<_> = tracks
        .iter()
        .map(|(id, track)| (id, count(track)))
        .collect();
    let mut candidates = Vec::new();
    for (tid, thread) in hosts {
        let own = count(thread);
        for (track, theirs) in &of_tracks {
            let common = own
                .iter()
                .filter_map(|(name, n)| Some(theirs.get(name)?.min(n)));
            let common: u64 = common.sum();
            let at_once = thread.names.iter().zip(&tracks[*track].names);
            let in_step = at_once.take(256).filter(|(a, b)| a == b).count();
            if common > 0 {
                candidates.push((Reverse(common), Reverse(in_step), *tid, **track));
            }
        }
    }
    candidates.sort_unstable();
    let mut chosen: Vec<(u32, u32)> = Vec::new();
    for (.., tid, track) in candidates {
        if !chosen.iter().any(|&(t, k)| t == tid || k == track) {
            chosen.push((tid, track));
        }
    }
    chosen
}

/// A contiguous range of a track's events that matches the operators of a host thread.
struct TrackEventRangeOfHostThread {
    from: usize,
    to: usize,
    /// Number of ranges that fit equally well, including this range.
    alike: u64,
}

/// Finds the range of `events` with the same names as `nodes`. Sequences of names vote for the range's offset, and the
/// offset with the most votes wins.
fn find_matching_event_range(nodes: &[u32], events: &[u32]) -> Option<TrackEventRangeOfHostThread> {
    let length = SEQUENCE.min(nodes.len());
    if length == 0 || events.len() < length {
        return None;
    }
    let mut wanted: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let places = nodes.len() - length + 1;
    for at in (0..places).step_by(places.div_ceil(SEQUENCES)) {
        let hash = stable_hash(&&nodes[at..at + length]);
        wanted.entry(hash).or_default().push(at);
    }
    let mut votes: BTreeMap<i64, u64> = BTreeMap::new();
    for (at, sequence) in events.windows(length).enumerate() {
        for &own in wanted.get(&stable_hash(&sequence)).into_iter().flatten() {
            *votes.entry(at as i64 - own as i64).or_default() += 1;
        }
    }
    let most = *votes.values().max()?;
    let alike = votes.values().filter(|&&n| n == most).count() as u64;
    let (&offset, _) = votes.iter().find(|(_, n)| **n == most)?;
    let from = usize::try_from(offset).unwrap_or(0);
    let to = (offset + nodes.len() as i64).clamp(0, events.len() as i64) as usize;
    Some(TrackEventRangeOfHostThread { from, to, alike })
}

/// Returns the pairs of a host node and an event within the range `window`.
fn pair_same_named_operators(
    nodes: &ThreadOperatorNameSequence,
    events: &ThreadOperatorNameSequence,
    window: std::ops::Range<usize>,
) -> Vec<(u32, u32)> {
    let mut places: BTreeMap<u32, std::collections::VecDeque<u32>> = BTreeMap::new();
    for at in window {
        places
            .entry(events.names[at])
            .or_default()
            .push_back(events.of[at]);
    }
    let all = nodes.of.iter().zip(&nodes.names);
    all.filter_map(|(node, name)| Some((*node, places.get_mut(name)?.pop_front()?)))
        .collect()
}

/// Returns the window from the start of the first linked event to the end of the last linked event.
fn window_spanning_all_linked_events(kineto: &KinetoTrace, host_of: &[u32]) -> KeptCaptureWindow {
    let linked = kineto.events.iter().zip(host_of);
    let linked = linked
        .filter(|(_, host)| **host != NONE)
        .map(|(event, _)| event);
    let mut window = KeptCaptureWindow {
        from: i64::MAX,
        to: i64::MIN,
    };
    for event in linked {
        let end = event.start_ns.saturating_add_unsigned(event.duration_ns);
        window.from = window.from.min(event.start_ns);
        window.to = window.to.max(end);
    }
    window
}

/// Cached results of comparing shapes, so that each pair of shape texts is compared only once.
#[derive(Default)]
struct ShapeComparisonCache(BTreeMap<(u32, u32), bool>);

impl ShapeComparisonCache {
    /// Returns true if a node and an event have equal shapes, or `None` if Kineto recorded no shapes.
    fn compare_event_shapes(
        &mut self,
        host: &HostTrace,
        kineto: &KinetoTrace,
        node: u32,
        event: u32,
    ) -> Option<bool> {
        let theirs = kineto
            .details_of_event(&kineto.events[event as usize])
            .shapes;
        if theirs == NONE {
            return None;
        }
        let own = host
            .shared_properties_of_node(&host.nodes[node as usize])
            .shapes_in;
        let compared = self.0.entry((own, theirs));
        Some(*compared.or_insert_with(|| {
            host_and_kineto_shapes_agree(host.texts.get(own), kineto.texts.get(theirs))
        }))
    }
}

/// Compares shapes argument by argument. Before 2024, Kineto did not record the shapes of lists, so
/// these shapes are not compared.
fn host_and_kineto_shapes_agree(host: &str, kineto: &str) -> bool {
    let parse =
        |text: &str| serde_json::from_str::<Vec<serde_json::Value>>(text).unwrap_or_default();
    let (host, kineto) = (parse(host), parse(kineto));
    let unknown = |dims: &serde_json::Value| dims.as_array().is_none_or(Vec::is_empty);
    host.iter()
        .zip(&kineto)
        .all(|(own, theirs)| unknown(theirs) || own == theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_range_found_is_where_most_name_sequences_match() {
        // Kineto has four iterations of 40 names, and one name differs in the third iteration. The host
        // recorded only the third iteration.
        let iteration = |n: u32| (0..40).map(move |i| if n == 2 && i == 20 { 99 } else { i % 17 });
        let events: Vec<u32> = (0..4).flat_map(iteration).collect();
        let nodes: Vec<u32> = iteration(2).collect();
        let found = find_matching_event_range(&nodes, &events).expect("it is there");
        assert_eq!((found.from, found.to, found.alike), (80, 120, 1));
        let plain: Vec<u32> = iteration(0).collect();
        let found = find_matching_event_range(&plain, &events).expect("it is there");
        assert_eq!((found.from, found.to, found.alike), (0, 40, 3));
        assert!(find_matching_event_range(&[5], &[6]).is_none());
    }

    #[test]
    fn shapes_agree_where_both_are_known() {
        assert!(host_and_kineto_shapes_agree(
            "[[4, 8], [], [[2], [3]]]",
            "[[4, 8], [], []]"
        ));
        assert!(!host_and_kineto_shapes_agree("[[4, 8]]", "[[4, 9]]"));
    }
}
