//! Host time that the profiler added while it captured, estimated node by node.
//!
//! Observer and profiler write a record of every operator and annotation while the program runs, on the program's thread.
//! The time of a record hardly depends on the operator. What it was follows from the capture:
//!
//! - from steps that the job measured without a profiler, where it has some: the time by which the capture is longer than as
//!   many of those, divided by the records of the thread that has most of them;
//! - else from views, which are operators that compute nothing and take less than a microsecond by themselves: the median time
//!   of views that call no other operator, plus the median time from the start of a view to that of the operator that it
//!   calls, which is what starting a record takes. A record takes a little longer than that, as some of the work lies between
//!   operators;
//! - else, in captures with few views, from fourteen other jobs, all on one machine.
//!
//! Of a record half lies in its operator and half in whatever surrounds it, so a node bears its own record as far as its
//! duration and delay last, and the rest falls to the node behind it.

use super::activities::{Activity, ActivityKind};
use super::event_links::LinkMethod;
use super::rank_timeline::{HostIntervalKind, RankTimeline};
use super::view_operators::is_view;
use chakram_base::statistics::median;
use chakram_trace::format::profiler_cost::{CostBasis, ProfilerCost};
use std::collections::BTreeMap;

/// Estimate of the cost of a record, from captures of fourteen jobs whose steps were measured without a profiler, too, all on one
/// machine, a virtual CPU of 2026. Half of the jobs were fitted on; docs/validation/tests.md has the others.
struct RecordEstimate {
    /// Cost over the time that shows in views, percent.
    over_views: u64,
    /// Cost in those jobs, ns.
    elsewhere: u64,
    /// Ends of the interval that has nine of ten costs, percent of the estimate.
    interval: [u64; 2],
}

/// Of records that observer and profiler write.
const OBSERVED: RecordEstimate = RecordEstimate {
    over_views: 120,
    elsewhere: 12_000,
    interval: [80, 145],
};
/// Of records that the profiler writes alone.
const PROFILED: RecordEstimate = RecordEstimate {
    over_views: 240,
    elsewhere: 3_500,
    interval: [40, 350],
};
/// Ends of the interval of a cost that was measured on another machine, percent: machines differ by more than jobs.
const ELSEWHERE: [u64; 2] = [0, 400];
/// Fewest views of which a median is taken.
const FEWEST_VIEWS: usize = 32;
/// Most views of which a median is taken: more say no more.
const MOST_VIEWS: usize = 20_000;

/// Returns the cost of a record of `rank`, which was joined by `method`. `None` if nothing has a time.
pub(super) fn cost_by_views(rank: &RankTimeline, method: LinkMethod) -> Option<ProfilerCost> {
    let estimate = match method {
        LinkMethod::Ids | LinkMethod::Order => OBSERVED,
        LinkMethod::KinetoAlone => PROFILED,
        LinkMethod::HostAlone => return None,
    };
    let by_views = time_of_views(rank).map(|ns| percent(ns, estimate.over_views));
    let (record_ns, basis, interval) = match by_views {
        Some(ns) => (ns, CostBasis::Views, estimate.interval),
        None => (estimate.elsewhere, CostBasis::OtherJobs, ELSEWHERE),
    };
    Some(ProfilerCost {
        record_ns,
        interval_ns: interval.map(|end| percent(record_ns, end)),
        basis,
    })
}

fn percent(ns: u64, of: u64) -> u64 {
    ns.saturating_mul(of) / 100
}

/// Returns the cost of a record of a job whose capture lasts `captured` ns, and as many steps without a profiler
/// `unprofiled` ns. `None` if no rank has a record.
pub(super) fn cost_by_steps(
    ranks: &[RankTimeline],
    captured: u64,
    unprofiled: u64,
) -> Option<ProfilerCost> {
    let threads = ranks
        .iter()
        .flat_map(|rank| rank.threads.iter().map(move |thread| (rank, thread)));
    let records = threads.map(|(rank, thread)| {
        let items = &rank.items[thread.items.start as usize..thread.items.end as usize];
        let recorded = items
            .iter()
            .filter(|item| rank.role(item) != HostIntervalKind::Runtime);
        recorded.count() as u64
    });
    let most = records.max().filter(|&most| most > 0)?;
    let record_ns = captured.saturating_sub(unprofiled) / most;
    Some(ProfilerCost {
        record_ns,
        interval_ns: [record_ns; 2],
        basis: CostBasis::MeasuredSteps,
    })
}

/// Returns the time that shows in views of `rank` as that of a record, ns; `None` if it has few of them.
fn time_of_views(rank: &RankTimeline) -> Option<u64> {
    let (mut durations, mut starts) = (Vec::new(), Vec::new());
    for thread in &rank.threads {
        for i in thread.items.clone() {
            if durations.len().max(starts.len()) >= MOST_VIEWS {
                break;
            }
            let item = &rank.items[i as usize];
            let plain = rank.name(item.event).strip_prefix("aten::");
            if !plain.is_some_and(is_view) {
                continue;
            }
            let next = rank.items.get(i as usize + 1);
            let (times, to) = match next.filter(|next| next.parent == i) {
                Some(called) => (&mut starts, called.start),
                None => (&mut durations, item.end),
            };
            times.push(u64::try_from(to.saturating_sub(item.start)).unwrap_or(0));
        }
    }
    if durations.len().min(starts.len()) < FEWEST_VIEWS {
        return None;
    }
    Some(median(&mut durations)?.saturating_add(median(&mut starts)?))
}

/// Charges nodes with the profiler's time, thread by thread.
pub(super) struct ProfilerCharges {
    per_record: u64,
    /// Time of each thread that its nodes did not last for.
    open: BTreeMap<u32, u64>,
}

impl ProfilerCharges {
    /// Starts with a capture of which each record took `per_record` ns.
    pub fn new(per_record: u64) -> Self {
        Self {
            per_record,
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
