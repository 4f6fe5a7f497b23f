//! Summarizes a conversion: how much of the input it read, joined, kept or skipped, and which facts it inferred.

use super::activities::{InferredDependencyCounts, RankActivitiesAndDependencies};
use super::call_matching::MatchedAndUnmatchedCallsOfJob;
use super::calls::{CommOp, RankCommCallsAndAnomalies};
use super::clock::ClockCorrection;
use super::emit::EmittedNodeCountsAndTimes;
use super::event_links::{
    HostKinetoMatchMethod, HostThreadKinetoMatchCounts, KinetoEventHostNodeMap,
};
use super::group_inference::{CallCountsByInferenceMethod, JobGroup};
use super::inferred_ranks::CapturedOrInferredRank;
use super::rank_timeline::{
    CutOffOverlappingDeviceEventCounts, DeviceInterval, HostIntervalKind, JoinedRankCapture,
};
use super::transfer_times::{CallWaitAndTransfer, TimeAnomalyCounts};
use super::{JsonRepairKind, JsonRepairs};
use chakram_trace::format::profiler_cost::StepTimesWithoutProfiler;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Facts and counts of a conversion, for reports to the user.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ConversionSummary {
    /// Number of ranks in the job, which may exceed the number of captures.
    pub world: u32,
    /// True if nothing ran on a device, so that host operators count as compute.
    pub host_computes: bool,
    /// Groups, each with the number of its collectives.
    pub groups: Vec<GroupSummary>,
    /// Number of collectives of each kind.
    pub collectives: BTreeMap<&'static str, u64>,
    /// Number of collectives whose members recorded different sizes. The cost is based on the largest of these sizes.
    pub uneven: u64,
    /// Number of collectives in which at least one member has no capture. Time spent waiting for such members counts as
    /// transfer.
    pub partial: u64,
    /// Number of messages whose send and receive were both found.
    pub messages: u64,
    /// Number of unmatched calls, by reason.
    pub alone: BTreeMap<&'static str, u64>,
    /// Counts of implausible times.
    pub odd: TimeAnomalyCounts,
    /// Files from the given folders that are not used, each with the reason.
    pub left_aside: Vec<(PathBuf, String)>,
    /// Number of captured steps, and the median duration, in ns, of the steps measured without a
    /// profiler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unprofiled: Option<(u64, u64)>,
    /// Summary of each rank.
    pub ranks: Vec<RankConversionSummary>,
}

/// Summary of a group.
#[derive(Clone, Debug, serde::Serialize)]
pub struct GroupSummary {
    /// Name of the group, unique in the job.
    pub name: String,
    /// Purpose of the group, as the program states it.
    pub desc: String,
    /// Members, as ranks of the job.
    pub ranks: Vec<u32>,
    /// Number of collectives.
    pub collectives: u64,
    /// Number of calls whose capture names this group.
    pub named: u64,
    /// Number of calls assigned to this group because no other group exists.
    pub only: u64,
    /// Number of calls whose worker thread or stream identifies this group.
    pub by_worker: u64,
    /// Number of calls whose sizes fit only this group. This also counts kernels without arguments, on ranks that name
    /// no other group.
    pub by_size: u64,
    /// Number of messages assigned to this group because their sends and receives match in it.
    pub messages: u64,
}

/// Summary of a rank.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RankConversionSummary {
    /// Rank number in the job.
    pub rank: u32,
    /// Captured rank from which this rank was inferred, or `None` if this rank has a capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inferred_from: Option<u32>,
    /// Path of the trace.
    pub path: PathBuf,
    /// Number of bytes of JSON that were read.
    pub bytes: u64,
    /// Program that wrote the rank's events, if it is not PyTorch's profiler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<&'static str>,
    /// Schema version in the host trace.
    pub schema: String,
    /// Method that joined the rank's two files.
    pub method: HostKinetoMatchMethod,
    /// Links of each host thread, if the files were joined by order.
    pub threads: Vec<HostThreadKinetoMatchCounts>,
    /// Fraction of nodes that are linked, multiplied by the fraction of compared shapes that are equal. This is
    /// meaningful only if the files were joined by order.
    pub confidence: f64,
    /// Device time in the capture and in the trace, both in ns.
    pub device_ns: (u64, u64),
    /// Number of communication calls whose size the capture does not state.
    pub unsized_calls: u64,
    /// Number of host nodes.
    pub host_nodes: u64,
    /// Number of Kineto events that were kept.
    pub events: u64,
    /// Number of host nodes with an event.
    pub linked: u64,
    /// Number of skipped host nodes, by reason.
    pub host_left_out: Vec<(String, u64)>,
    /// Number of skipped Kineto events, by reason.
    pub events_left_out: Vec<(String, u64)>,
    /// Repairs of the files' texts, by kind.
    pub repairs: Vec<String>,
    /// Number of operators.
    pub operators: u64,
    /// Number of ranges that Python opened.
    pub annotations: u64,
    /// Number of calls into the device's driver.
    pub runtime: u64,
    /// Number of kernels and copies on the device.
    pub device: u64,
    /// Number of kernels and copies launched before the capture began. No dependency explains when they start.
    pub unlaunched: u64,
    /// Number of launches whose kernels the profiler did not record.
    pub dropped: u64,
    /// Counts of kernels and copies that were cut off where the next event on their stream starts.
    pub overlaps: CutOffOverlappingDeviceEventCounts,
    /// Number of kernels and copies whose operator is known but whose launch is not.
    pub by_operator: u64,
    /// Number of communication kernels whose operation is unknown. They keep their recorded time.
    pub unknown_comm: u64,
    /// Total time of the communication kernels whose operation is unknown, in ns.
    pub unknown_comm_ns: u64,
    /// Name of the first communication kernel whose operation is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_unknown_comm: Option<String>,
    /// Number of communication kernels that were launched before the capture began.
    pub before: u64,
    /// Number of collective calls, of sends, and of receives.
    pub calls: (u64, u64, u64),
    /// Names of communication operators whose execution was not recorded.
    pub never_ran: Vec<String>,
    /// Number of host threads and number of device streams.
    pub lanes: (u64, u64),
    /// Number of inferred dependencies, by rule.
    pub found: InferredDependencyCounts,
    /// Correction of the rank's clock, and the observations on which it is based.
    pub offset: ClockCorrection,
    /// Numbers of emitted nodes and dependencies.
    pub written: EmittedNodeCountsAndTimes,
    /// Time from the start of the job to the end of the rank's last event, in ns.
    pub captured_ns: i64,
    /// Time from the start of the rank's first event to the end of its last event, in ns.
    pub own_ns: i64,
    /// Communication time that counts as transfer, in ns.
    pub transfer_ns: u64,
    /// Communication time that counts as waiting, in ns.
    pub wait_ns: u64,
}

impl ConversionSummary {
    /// Creates the summary with the facts that are known before any rank is written.
    pub fn new(
        groups: &[JobGroup],
        inferred: &CallCountsByInferenceMethod,
        matches: &MatchedAndUnmatchedCallsOfJob,
        odd: TimeAnomalyCounts,
        world: u32,
        host_computes: bool,
        unprofiled: Option<StepTimesWithoutProfiler>,
    ) -> Self {
        let mut collectives = BTreeMap::new();
        let mut per_group = vec![0_u64; groups.len()];
        for matched in &matches.collectives {
            let (_, name, _) = chakram_trace::format::CollectiveKind::ALL[matched.kind as usize];
            *collectives.entry(name).or_default() += 1;
            per_group[matched.group as usize] += 1;
        }
        let mut alone = BTreeMap::new();
        for (_, reason) in &matches.unmatched {
            *alone.entry(*reason).or_default() += 1;
        }
        let of = |map: &BTreeMap<u32, u64>, i: usize| map.get(&(i as u32)).copied().unwrap_or(0);
        let absent = |m: &&super::call_matching::MatchedCollective| {
            m.members.len() < groups[m.group as usize].ranks.len()
        };
        let partial = matches.collectives.iter().filter(absent).count() as u64;
        let groups = groups.iter().enumerate().map(|(i, group)| GroupSummary {
            name: group.name.clone(),
            desc: group.desc.clone(),
            ranks: group.ranks.clone(),
            collectives: per_group[i],
            named: of(&inferred.named, i),
            only: if groups.len() == 1 { inferred.only } else { 0 },
            by_worker: of(&inferred.by_worker, i),
            by_size: of(&inferred.by_size, i),
            messages: of(&inferred.messages, i),
        });
        Self {
            world,
            host_computes,
            groups: groups.collect(),
            collectives,
            uneven: matches.collectives.iter().filter(|m| m.uneven).count() as u64,
            partial,
            messages: matches.messages.len() as u64,
            alone,
            odd,
            left_aside: Vec::new(),
            unprofiled: unprofiled.map(|steps| (steps.captured, steps.step.0 / 1000)),
            ranks: Vec::new(),
        }
    }
}

impl RankConversionSummary {
    /// Creates the summary of the rank `model`, whose timeline is `rank`.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is a stage of the conversion"
    )]
    pub fn new(
        model: CapturedOrInferredRank,
        rank: &JoinedRankCapture,
        calls: &RankCommCallsAndAnomalies,
        activities: &RankActivitiesAndDependencies,
        link: &KinetoEventHostNodeMap,
        offset: ClockCorrection,
        written: EmittedNodeCountsAndTimes,
        captured_ns: i64,
        times: &[CallWaitAndTransfer],
        path: &Path,
    ) -> Self {
        let mut roles = [0; 3];
        for item in &rank.items {
            roles[rank.kind_of_host_interval(item) as usize] += 1;
        }
        let role = |role: HostIntervalKind| roles[role as usize];
        let kept = rank.items.len() as u64 + rank.flights.len() as u64;
        let mut host_left_out = vec![
            ("process and threads".to_owned(), link.roots),
            ("without a Kineto event".to_owned(), link.host_only),
            (
                "worker intervals that operators already cover".to_owned(),
                link.carried - link.unrequested,
            ),
            ("communication without a call".to_owned(), link.unrequested),
        ];
        let mut events_left_out = rank.kineto.left_out.clone();
        let on_host = rank.events.iter().filter(|event| {
            use super::kineto::EventCategory::{Copy, Kernel, Set, Sync};
            !matches!(event.category, Copy | Kernel | Set | Sync)
        });
        let outside = (on_host.count() as u64).saturating_sub(kept);
        let outside = outside + rank.beyond;
        events_left_out.push(("outside the step".to_owned(), outside));
        let beyond = "outside the profiler's span".to_owned();
        events_left_out.push((beyond, rank.kineto.outside));
        let untimed = "without a duration, or a negative one".to_owned();
        events_left_out.push((untimed, rank.kineto.untimed));
        events_left_out.push(("communication without a call".to_owned(), calls.orphans));
        host_left_out.retain(|(_, count)| *count > 0);
        events_left_out.retain(|(_, count)| *count > 0);
        let mut streams: Vec<i64> = rank.devices.iter().map(|device| device.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        let count = |act: fn(&CommOp) -> bool| {
            calls.list.iter().filter(|call| act(&call.act)).count() as u64
        };
        let unknown = || {
            calls
                .unknown
                .iter()
                .map(|&device| &rank.devices[device as usize])
        };
        let repairs = describe_repairs("host trace", &rank.host.repairs);
        let repairs = repairs.chain(describe_repairs("Kineto trace", &rank.kineto.repairs));
        Self {
            rank: model.number,
            inferred_from: model.inferred.then_some(rank.rank),
            path: path.to_owned(),
            bytes: match model.inferred {
                true => 0,
                false => rank.host.bytes + rank.kineto.bytes,
            },
            source: rank.kineto.source,
            schema: rank.host.schema.clone(),
            method: link.method,
            threads: link.threads.clone(),
            confidence: link.mean_link_confidence_over_threads(),
            device_ns: (sum_device_time_ns(rank), written.device_ns),
            unsized_calls: count_calls_of_unknown_size(calls),
            host_nodes: rank.host.nodes.len() as u64,
            events: rank.events.len() as u64,
            linked: link.linked,
            host_left_out,
            events_left_out,
            repairs: repairs.collect(),
            operators: role(HostIntervalKind::Operator),
            annotations: role(HostIntervalKind::Annotation),
            runtime: role(HostIntervalKind::Runtime),
            device: rank.devices.len() as u64,
            unlaunched: rank.unlaunched,
            dropped: rank.dropped.len() as u64,
            overlaps: rank.overlaps,
            by_operator: rank.by_operator,
            unknown_comm: calls.unknown.len() as u64,
            unknown_comm_ns: unknown().fold(0, |sum, device| {
                sum.saturating_add(
                    u64::try_from(device.end.saturating_sub(device.start)).unwrap_or(0),
                )
            }),
            first_unknown_comm: unknown()
                .next()
                .map(|device| rank.event_name(device.event).to_owned()),
            before: calls.before,
            calls: (
                count(|act| matches!(act, CommOp::Collective(_))),
                count(|act| *act == CommOp::Send),
                count(|act| *act == CommOp::Receive),
            ),
            never_ran: calls.never_ran.clone(),
            lanes: (rank.threads.len() as u64, streams.len() as u64),
            found: activities.stats,
            offset,
            written,
            captured_ns,
            own_ns: activities
                .time_span()
                .1
                .saturating_sub(activities.time_span().0),
            transfer_ns: times
                .iter()
                .fold(0, |sum, time| sum.saturating_add(time.transfer)),
            wait_ns: times
                .iter()
                .fold(0, |sum, time| sum.saturating_add(time.wait)),
        }
    }
}

/// Returns one line per kind of repair in a file.
fn describe_repairs<'r>(
    file: &'r str,
    repairs: &'r JsonRepairs,
) -> impl Iterator<Item = String> + 'r {
    repairs.counts.iter().map(move |(kind, count)| {
        let mut listed = repairs.listed.iter();
        let first = listed.find(|repair| repair.what == *kind);
        let what = match kind {
            JsonRepairKind::Name => "a name that was not escaped",
            JsonRepairKind::Groups => "a truncated list of groups",
            JsonRepairKind::Number => "a number that is not valid JSON",
            JsonRepairKind::Comma => "a comma after the last element",
        };
        let more = match count - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        // The list of repairs is limited, so it may contain no repair of this kind.
        match first {
            Some(first) => {
                let text = chakram_trace::format::escape_and_shorten_name(&first.text);
                format!("{file}, byte {}: {what}: `{text}`{more}", first.offset)
            }
            None => format!("{file}: {what}: {count} times"),
        }
    })
}

/// Returns how much device time the capture contains, in ns. The time is summed over streams, because work on one
/// stream does not overlap.
fn sum_device_time_ns(rank: &JoinedRankCapture) -> u64 {
    let lasts = |device: &DeviceInterval| device.end.saturating_sub(device.start);
    rank.devices.iter().fold(0, |sum: u64, device| {
        sum.saturating_add(u64::try_from(lasts(device)).unwrap_or(0))
    })
}

/// Returns the number of calls that move an unknown amount of data.
fn count_calls_of_unknown_size(calls: &RankCommCallsAndAnomalies) -> u64 {
    let list = calls.list.iter();
    list.filter(|call| call.size_unknown()).count() as u64
}
