//! The timeline, parsed back: every node is a slice, slices of a track do not overlap, and every
//! arrow has both ends.

use chakram::engine::{Options, Prepared};
use chakram::generate::{DataParallel, Job, P2p, Pattern, Traffic};
use chakram::machine::Machine;
use chakram::report::{Timeline, replay};
use serde_json::Value;
use std::collections::BTreeMap;

fn events(pattern: Pattern) -> Vec<Value> {
    let machine = Machine::preset("dgx-h100").unwrap();
    let workload = Job::new(pattern).unwrap().workload().unwrap();
    let prepared = Prepared::new(&workload, &machine, &Options::default()).unwrap();
    let timeline = Timeline::new(&prepared, Vec::new());
    let (report, timeline) = replay(&prepared, timeline).unwrap();
    let parsed: Value = serde_json::from_slice(&timeline.finish().unwrap()).unwrap();
    let events = parsed["traceEvents"].as_array().unwrap().clone();
    let slices = events.iter().filter(|event| event["ph"] == "X").count();
    assert_eq!(slices as u64, report.outcome.nodes, "every node is a slice");
    events
}

fn check_tracks(events: &[Value]) {
    let mut tracks: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let key = (
            event["pid"].as_u64().unwrap(),
            event["tid"].as_u64().unwrap(),
        );
        let start = event["ts"].as_f64().unwrap();
        let end = start + event["dur"].as_f64().unwrap();
        tracks.entry(key).or_default().push((start, end));
    }
    for (track, mut slices) in tracks {
        let named =
            |e: &&Value| e["name"] == "thread_name" && e["pid"] == track.0 && e["tid"] == track.1;
        assert_eq!(
            events.iter().filter(named).count(),
            1,
            "{track:?} has a name"
        );
        slices.sort_by(|a, b| a.partial_cmp(b).unwrap());
        for pair in slices.windows(2) {
            assert!(pair[0].1 <= pair[1].0 + 1e-6, "{track:?}: {pair:?} overlap");
        }
    }
}

#[test]
fn training_is_drawn_with_named_collectives() {
    let events = events(Pattern::DataParallel(DataParallel {
        layers: 3,
        ..DataParallel::new(4)
    }));
    check_tracks(&events);
    // 2 h^2 * 12 bytes of gradients with h = 4096: 402,653,184 B.
    let wanted = "all-reduce of 402.7 MB, all 4 ranks, ring 4 (nvlink)";
    let drawn = events
        .iter()
        .filter(|event| event["name"] == wanted)
        .count();
    assert_eq!(drawn, 3 * 4, "one for each layer and rank");
}

#[test]
fn messages_are_drawn_with_arrows() {
    for traffic in [Traffic::Ring, Traffic::Incast, Traffic::PingPong] {
        let events = events(Pattern::P2p(P2p {
            count: 5,
            ..P2p::new(traffic, 1 << 20, 6)
        }));
        check_tracks(&events);
        let mut ends: BTreeMap<u64, Vec<(String, f64)>> = BTreeMap::new();
        for event in events.iter().filter(|event| event["cat"] == "message") {
            let phase = event["ph"].as_str().unwrap().to_owned();
            let at = event["ts"].as_f64().unwrap();
            ends.entry(event["id"].as_u64().unwrap())
                .or_default()
                .push((phase, at));
        }
        let messages = events.iter().filter(|event| event["cat"] == "send").count();
        assert_eq!(ends.len(), messages);
        for (id, mut ends) in ends {
            ends.sort_by(|a, b| b.0.cmp(&a.0));
            assert!(
                matches!(&ends[..], [(s, from), (f, to)] if s == "s" && f == "f" && from <= to),
                "arrow {id}: {ends:?}"
            );
        }
    }
}
