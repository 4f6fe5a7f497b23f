//! Estimates how much host time the profiler added to each node during the capture.
//!
//! The observer and the profiler record every operator and annotation on the program's own thread, while the program
//! runs. Recording takes almost equally long for every operator. The time per record comes from the first of these
//! methods that the capture allows:
//!
//! - If the job also measured steps without a profiler, the time of equally many unprofiled steps is subtracted from
//!   the time of the captured steps. The difference is divided by the number of records on the thread with the most
//!   records.
//! - Otherwise, the time is estimated from views. These are operators that compute nothing and take less than a
//!   microsecond by themselves. The estimate is the sum of two medians: the time of views that call no other operator,
//!   and the time from the start of a view to the start of the operator that it calls. The second median is the time
//!   that it takes to start a record. The true cost is slightly higher, because recording takes time between operators,
//!   too.
//! - If the capture has few views, the time comes from measurements of fourteen other jobs on one
//!   machine.
//!
//! Half of a record's time falls inside its operator, and half outside. Each node's time is reduced by the cost of its
//! own record, but by at most the node's duration plus the delay before it. Any excess is subtracted from the next
//! node.

use super::activities::{ActivityKindAndIndex, HostOrDeviceActivity};
use super::event_links::HostKinetoMatchMethod;
use super::rank_timeline::{HostIntervalKind, JoinedRankCapture};
use super::view_operators::is_view_operator;
use chakram_base::statistics::median;
use chakram_trace::format::profiler_cost::{HostTimePerProfilerRecord, ProfilerCostBasis};
use std::collections::BTreeMap;

/// Estimated cost of a record. The estimate is based on fourteen jobs, each measured with and without a profiler on one
/// machine (a virtual CPU of 2026). Some of these jobs were used to fit the estimate. docs/validation/tests.md gives
/// the results for the others.
struct ProfilerRecordCostEstimate {
    /// Cost beyond the time that views show, in percent of that time.
    over_views: u64,
    /// Cost per record in the fourteen jobs, in ns.
    elsewhere: u64,
    /// 90 % interval of the true cost, in percent of the estimate.
    interval: [u64; 2],
}

/// Estimate for records that both the observer and the profiler write.
const OBSERVED: ProfilerRecordCostEstimate = ProfilerRecordCostEstimate {
    over_views: 120,
    elsewhere: 12_000,
    interval: [80, 145],
};
/// Estimate for records that only the profiler writes.
const PROFILED: ProfilerRecordCostEstimate = ProfilerRecordCostEstimate {
    over_views: 240,
    elsewhere: 3_500,
    interval: [40, 350],
};
/// Interval for a cost that was measured on another machine, in percent of the estimate. It is wide, because costs
/// differ more between machines than between jobs.
const ELSEWHERE: [u64; 2] = [0, 400];
/// Minimum number of views for a median.
const FEWEST_VIEWS: usize = 32;
/// Maximum number of views for a median; more views do not improve the median.
const MOST_VIEWS: usize = 20_000;

/// Returns the cost of one record of `rank`, whose files were joined by `method`. Returns `None` if
/// the capture has no times.
pub(super) fn estimate_cost_per_record_from_views(
    rank: &JoinedRankCapture,
    method: HostKinetoMatchMethod,
) -> Option<HostTimePerProfilerRecord> {
    let estimate = match method {
        HostKinetoMatchMethod::Ids | HostKinetoMatchMethod::Order => OBSERVED,
        HostKinetoMatchMethod::KinetoAlone => PROFILED,
        HostKinetoMatchMethod::HostAlone => return None,
    };
    let by_views = estimate_time_per_record_from_views(rank)
        .map(|ns| scale_by_percent(ns, estimate.over_views));
    let (record_ns, basis, interval) = match by_views {
        Some(ns) => (ns, ProfilerCostBasis::Views, estimate.interval),
        None => (estimate.elsewhere, ProfilerCostBasis::OtherJobs, ELSEWHERE),
    };
    Some(HostTimePerProfilerRecord {
        record_ns,
        interval_ns: interval.map(|end| scale_by_percent(record_ns, end)),
        basis,
    })
}

fn scale_by_percent(ns: u64, of: u64) -> u64 {
    ns.saturating_mul(of) / 100
}

/// Returns the cost of one record of a job. The captured steps take `captured` ns, and equally many steps without a
/// profiler take `unprofiled` ns. Returns `None` if no rank has a record.
pub(super) fn estimate_cost_per_record_from_steps(
    ranks: &[JoinedRankCapture],
    captured: u64,
    unprofiled: u64,
) -> Option<HostTimePerProfilerRecord> {
    let threads = ranks
        .iter()
        .flat_map(|rank| rank.threads.iter().map(move |thread| (rank, thread)));
    let records = threads.map(|(rank, thread)| {
        let items = &rank.items[thread.items.start as usize..thread.items.end as usize];
        let recorded = items
            .iter()
            .filter(|item| rank.kind_of_host_interval(item) != HostIntervalKind::Runtime);
        recorded.count() as u64
    });
    let most = records.max().filter(|&most| most > 0)?;
    let record_ns = captured.saturating_sub(unprofiled) / most;
    Some(HostTimePerProfilerRecord {
        record_ns,
        interval_ns: [record_ns; 2],
        basis: ProfilerCostBasis::MeasuredSteps,
    })
}

/// Returns the time of one record in ns, estimated from the views of `rank`, or `None` if there are too few views.
fn estimate_time_per_record_from_views(rank: &JoinedRankCapture) -> Option<u64> {
    let (mut durations, mut starts) = (Vec::new(), Vec::new());
    for thread in &rank.threads {
        for i in thread.items.clone() {
            if durations.len().max(starts.len()) >= MOST_VIEWS {
                break;
            }
            let item = &rank.items[i as usize];
            let plain = rank.event_name(item.event).strip_prefix("aten::");
            if !plain.is_some_and(is_view_operator) {
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

/// Subtracts the profiler's time from the nodes, thread by thread.
pub(super) struct ProfilerTimeSubtractor {
    per_record: u64,
    /// For each thread, the time in ns that could not be subtracted from earlier nodes, which were too short.
    open: BTreeMap<u32, u64>,
}

impl ProfilerTimeSubtractor {
    /// Starts without pending time. Each record of the capture took `per_record` ns.
    pub fn new(per_record: u64) -> Self {
        Self {
            per_record,
            open: BTreeMap::new(),
        }
    }

    /// Returns how much of an activity, and of the `delay` ns before it, is the profiler's time, in ns. Must be called
    /// for a thread's activities in order, because each call carries its excess over to the next.
    pub fn take_profiler_ns_of_activity(
        &mut self,
        rank: &JoinedRankCapture,
        activity: &HostOrDeviceActivity,
        delay: u64,
    ) -> u64 {
        let (thread, recorded) = match activity.kind {
            ActivityKindAndIndex::Item(item) => {
                let item = &rank.items[item as usize];
                (
                    item.thread,
                    rank.kind_of_host_interval(item) != HostIntervalKind::Runtime,
                )
            }
            ActivityKindAndIndex::End(thread) => (thread, false),
            ActivityKindAndIndex::Device(_) | ActivityKindAndIndex::Call(_) => return 0,
        };
        let lasts = u64::try_from(activity.end.saturating_sub(activity.begin)).unwrap_or(0);
        let open = self.open.entry(thread).or_default();
        *open = open.saturating_add(if recorded { self.per_record } else { 0 });
        let charged = (*open).min(delay.saturating_add(lasts));
        *open -= charged;
        charged
    }
}
