//! Writes a rank's activities as nodes of a trace.

use super::activities::{
    ActivityKindAndIndex, RankActivitiesAndDependencies, ThreadCommunicationOrStreamLane,
};
use super::alike_kernels::SameNameWorkEstimator;
use super::calls::RankCommCallsAndAnomalies;
use super::group_inference::JobGroup;
use super::op_cost::IntervalFlopsAndBytesTable;
use super::profiler_cost::ProfilerTimeSubtractor;
use super::rank_timeline::JoinedRankCapture;
use super::transfer_times::CallWaitAndTransfer;
use chakram_trace::format::TraceError;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::write::{NamedAttribute, NodeFieldsBeyondView, TraceWriter};
use node::{HostAndDeviceActivityEmitter, first_tensor_dtype_of_each_node_form};
use order::order_activities;
use serde::Serialize;
use std::io::Write;

mod lanes;
mod node;
mod order;

pub use lanes::list_lane_name_attributes;

/// The job data needed to write a rank's nodes.
pub struct RankNodeEmissionInputs<'a> {
    /// Number of the rank. The rank's capture may belong to another rank with the same role.
    pub number: u32,
    /// Groups of the job.
    pub groups: &'a [JobGroup],
    /// Waiting and transfer time of each call.
    pub times: &'a [CallWaitAndTransfer],
    /// `comm_size`, root and partners of each call.
    pub matches: &'a [SingleCallCrossRankMatch],
    /// Start of the job, in ns by this rank's clock.
    pub start: i64,
    /// True if no node of the job ran on a device, so that host operators count as compute.
    pub host_computes: bool,
    /// Time that the profiler needs to write one record, in ns.
    pub record_ns: u64,
}

/// Result of matching a call across ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SingleCallCrossRankMatch {
    /// A collective's `comm_size`, or the number of bytes that a message sends.
    pub bytes: u64,
    /// True if no capture states the number of bytes.
    pub size_unknown: bool,
    /// Position of the root in the group.
    pub root: Option<u32>,
    /// True if members exchange parts of different sizes.
    pub uneven: bool,
    /// True if the other members' calls were found. A call without partners becomes host or device work.
    pub found: bool,
}

/// Numbers of emitted nodes and dependencies, and sums of their times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct EmittedNodeCountsAndTimes {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of dependencies between nodes.
    pub causes: u64,
    /// Total time of nodes on device streams, in ns, including waits for other ranks.
    pub device_ns: u64,
    /// Estimated time that the profiler added to host nodes, in ns.
    pub profiler_ns: u64,
    /// Estimated time that the profiler needs to write one record, in ns.
    pub profiler_record_ns: u64,
}

/// Writes the nodes of `rank` from its `activities` and `calls`.
pub fn write_nodes<W: Write>(
    rank: &JoinedRankCapture,
    calls: &RankCommCallsAndAnomalies,
    activities: &RankActivitiesAndDependencies,
    job: &RankNodeEmissionInputs<'_>,
    writer: &mut TraceWriter<W>,
) -> Result<EmittedNodeCountsAndTimes, TraceError> {
    let order = order_activities(rank, activities, calls);
    let mut ids = vec![0_u32; activities.list.len()];
    for (place, &work) in order.iter().enumerate() {
        // Ids start at 2, because id 1 is the node that declares the groups.
        ids[work as usize] = place as u32 + 2;
    }
    let mut written = EmittedNodeCountsAndTimes {
        profiler_record_ns: job.record_ns,
        ..EmittedNodeCountsAndTimes::default()
    };
    let text = format_rank_groups_as_pg_config_json(job.number, job.groups);
    writer.write_node(
        &NodeView::declare_groups(1, &text),
        &[],
        &NodeFieldsBeyondView::default(),
    )?;
    written.nodes += 1;
    let mut writing = HostAndDeviceActivityEmitter {
        rank,
        calls,
        activities,
        job,
        ids: &ids,
        efforts: &IntervalFlopsAndBytesTable::new(rank, job.host_computes),
        alike: SameNameWorkEstimator::default(),
        dtypes: &first_tensor_dtype_of_each_node_form(rank),
        steps: &rank.step_windows(),
    };
    writing.alike = SameNameWorkEstimator::new(writing.iter_device_work_except_communication());
    let mut first = vec![0_u32; ids.len() + 1];
    for &(_, effect) in &activities.dependencies {
        first[effect as usize + 1] += 1;
    }
    for i in 0..ids.len() {
        first[i + 1] += first[i];
    }
    let mut causes: Vec<u64> = Vec::new();
    let mut attributes: Vec<NamedAttribute<'static>> = Vec::new();
    let mut charges = ProfilerTimeSubtractor::new(job.record_ns);
    for &work in &order {
        let activity = &activities.list[work as usize];
        causes.clear();
        // Dependencies are sorted by effect, so all dependencies of an activity are adjacent.
        let (from, to) = (first[work as usize], first[work as usize + 1]);
        let own = &activities.dependencies[from as usize..to as usize];
        let mut last = None;
        for &(cause, _) in own {
            causes.push(u64::from(ids[cause as usize]));
            last = last.max(Some(find_activity_end_in_replay(
                activities, calls, job, cause,
            )));
        }
        causes.sort_unstable();
        let late = match activity.kind {
            ActivityKindAndIndex::Call(call) => job.times[call as usize].late,
            _ => 0,
        };
        let delay =
            clamp_to_nonnegative_ns(activity.begin.saturating_sub(last.unwrap_or(job.start)));
        let delay = delay.saturating_add(late);
        let profiler = charges.take_profiler_ns_of_activity(rank, activity, delay);
        written.profiler_ns = written.profiler_ns.saturating_add(profiler);
        attributes.clear();
        let span = (delay, profiler);
        writing.write_node(work, activity, span, &causes, &mut attributes, writer)?;
        written.nodes += 1;
        written.causes += causes.len() as u64;
        if let ThreadCommunicationOrStreamLane::Stream(_) =
            activities.lane_of_activity(rank, activity)
        {
            let end = find_activity_end_in_replay(activities, calls, job, work);
            let lasted = clamp_to_nonnegative_ns(end.saturating_sub(activity.begin));
            written.device_ns = written.device_ns.saturating_add(lasted);
        }
    }
    Ok(written)
}

/// Returns when an activity ends in a replay that reproduces the capture.
fn find_activity_end_in_replay(
    activities: &RankActivitiesAndDependencies,
    calls: &RankCommCallsAndAnomalies,
    job: &RankNodeEmissionInputs<'_>,
    work: u32,
) -> i64 {
    let activity = &activities.list[work as usize];
    match activity.kind {
        ActivityKindAndIndex::Call(call) => {
            let time = &job.times[call as usize];
            calls.list[call as usize]
                .start
                .saturating_add_unsigned(time.late)
                .saturating_add_unsigned(time.wait.saturating_add(time.transfer))
        }
        _ => activity.end,
    }
}

/// A process group in the form of PyTorch's `pg_config`.
#[derive(Serialize)]
struct EmittedPgConfigGroup<'g> {
    pg_name: &'g str,
    pg_desc: &'g str,
    ranks: &'g [u32],
    group_size: usize,
    group_count: usize,
}

/// Returns the declaration of a rank's groups, in the format of PyTorch's `pg_config`.
fn format_rank_groups_as_pg_config_json(number: u32, groups: &[JobGroup]) -> String {
    let own = groups.iter().filter(|group| group.ranks.contains(&number));
    let declared = own.map(|group| EmittedPgConfigGroup {
        pg_name: &group.name,
        pg_desc: &group.desc,
        ranks: &group.ranks,
        group_size: group.ranks.len(),
        group_count: groups.len(),
    });
    let declared: Vec<_> = declared.collect();
    serde_json::to_string(&declared).expect("names and numbers can be written")
}

fn clamp_to_nonnegative_ns(difference: i64) -> u64 {
    u64::try_from(difference).unwrap_or(0)
}
