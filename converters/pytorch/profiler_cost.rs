//! Host time that the profiler added while it captured, estimated node by node.
//!
//! Observer and profiler write a record of every operator and annotation while the program runs, on the program's thread.
//! The time of a record hardly depends on the operator: in captures of fourteen jobs (docs/validation.md), steps with and
//! without both writers differ by 12.0 µs a record, and with the profiler alone by 4.3 µs. Both numbers are fitted on every
//! other pair of those jobs and hold on the rest. They are of one machine, a virtual CPU of 2026; where a job measures
//! steps of its own without a profiler, reports show both.
//!
//! Of a record half lies in its operator and half in whatever surrounds it, so a node bears its own record as far as its
//! duration and delay last, and the rest falls to the node behind it.

use super::activities::{Activity, ActivityKind};
use super::event_links::LinkMethod;
use super::rank_timeline::{HostIntervalKind, RankTimeline};
use std::collections::BTreeMap;

/// Time of a record that observer and profiler write, ns.
const OBSERVED: u64 = 12_000;
/// Time of a record that the profiler writes alone, ns.
const PROFILED: u64 = 4_300;

/// Charges nodes with the profiler's time, thread by thread.
pub(super) struct ProfilerCharges {
    per_record: u64,
    /// Time of each thread that its nodes did not last for.
    open: BTreeMap<u32, u64>,
}

impl ProfilerCharges {
    /// Starts with a capture by `method`.
    pub fn new(method: LinkMethod) -> Self {
        Self {
            per_record: match method {
                LinkMethod::Ids | LinkMethod::Order => OBSERVED,
                LinkMethod::KinetoAlone => PROFILED,
                // Nothing has a time.
                LinkMethod::HostAlone => 0,
            },
            open: BTreeMap::new(),
        }
    }

    /// Returns the profiler's part, ns, of an activity that has a delay of `delay` ns before it. Activities of a thread
    /// come in order.
    pub fn charge(&mut self, rank: &RankTimeline, activity: &Activity, delay: u64) -> u64 {
        let (thread, recorded) = match activity.kind {
            ActivityKind::Item(item) => {
                let item = &rank.items[item as usize];
                (item.thread, rank.role(item) != HostIntervalKind::Runtime)
            }
            ActivityKind::End(thread) => (thread, false),
            ActivityKind::Device(_) | ActivityKind::Call(_) => return 0,
        };
        let lasts = u64::try_from(activity.end.saturating_sub(activity.begin)).unwrap_or(0);
        let open = self.open.entry(thread).or_default();
        *open = open.saturating_add(if recorded { self.per_record } else { 0 });
        let charged = (*open).min(delay.saturating_add(lasts));
        *open -= charged;
        charged
    }
}
