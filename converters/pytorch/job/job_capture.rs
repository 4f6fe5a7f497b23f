//! Joins the captures of a job's ranks. Matches calls, estimates clock offsets, and separates
//! waiting from transfer.

use super::rank_capture::AnalysedRankCapture;
use crate::pytorch::activities::RankActivitiesAndDependencies;
use crate::pytorch::call_matching::{
    self, CommCallMismatchError, JobRankWithTimeline, MatchedAndUnmatchedCallsOfJob,
};
use crate::pytorch::calls::RankCommCallsAndAnomalies;
use crate::pytorch::clock::{self, ClockCorrection};
use crate::pytorch::emit::{self, SingleCallCrossRankMatch};
use crate::pytorch::event_links::KinetoEventHostNodeMap;
use crate::pytorch::group_inference::{self, JobGroup};
use crate::pytorch::inferred_ranks::{self, CapturedOrInferredRank};
use crate::pytorch::profiler_cost;
use crate::pytorch::rank_timeline::JoinedRankCapture;
use crate::pytorch::steps::UnprofiledStepDurations;
use crate::pytorch::summary::{ConversionSummary, RankConversionSummary};
use crate::pytorch::transfer_times::{self, CallWaitAndTransfer, JobCallsWithCaptures};
use chakram_base::statistics::median;
use chakram_base::units::Span;
use chakram_trace::format::TraceError;
use chakram_trace::format::origin::CallStacks;
use chakram_trace::format::profiler_cost::{
    HostTimePerProfilerRecord, ProfilerOverheadFacts, StepTimesWithoutProfiler,
};
use chakram_trace::format::scan;
use chakram_trace::format::write::{AttributeValue, TraceWriter};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A job whose ranks have been matched.
pub(super) struct MatchedJobCapture {
    /// Captured and inferred ranks, sorted by number.
    pub models: Vec<CapturedOrInferredRank>,
    /// Calls of each rank, in the order of `models`; `times` and `matched` below have the same order.
    calls: Vec<RankCommCallsAndAnomalies>,
    times: Vec<Vec<CallWaitAndTransfer>>,
    met: Vec<Vec<SingleCallCrossRankMatch>>,
    /// Captures of the captured ranks. Several ranks may use the same capture.
    captures: Vec<JoinedRankCapture>,
    activities: Vec<RankActivitiesAndDependencies>,
    links: Vec<KinetoEventHostNodeMap>,
    offsets: Vec<ClockCorrection>,
    groups: Vec<JobGroup>,
    world: u32,
    /// Earliest start of any rank, in ns since the epoch, by the reference clock.
    first: i64,
    host_computes: bool,
    /// Steps measured without a profiler.
    unprofiled: Option<StepTimesWithoutProfiler>,
    /// Cost of a profiler record in each capture, or `None` for a capture without times.
    costs: Vec<Option<HostTimePerProfilerRecord>>,
    pub summary: ConversionSummary,
}

impl MatchedJobCapture {
    /// Matches the captures `parts`. If `infer` is set, it is the number of ranks in the job, and
    /// ranks without a capture are inferred.
    pub fn new(
        mut parts: Vec<AnalysedRankCapture>,
        infer: Option<u32>,
    ) -> Result<Self, TraceError> {
        parts.sort_by_key(|part| part.rank.rank);
        let twice = |pair: &&[AnalysedRankCapture]| pair[0].rank.rank == pair[1].rank.rank;
        if let Some(pair) = parts.windows(2).find(twice) {
            let (one, other) = (&pair[0], &pair[1]);
            return Err(TraceError::invalid_file(
                &other.file,
                format!(
                    "the file states that it is of rank {}, and so does {}",
                    other.rank.rank,
                    one.file.display()
                ),
                "convert one job at a time, each rank once",
            ));
        }
        let world = world_size(&parts, infer)?;
        check_ranks_belong_to_one_run(&parts)?;
        let captured_steps = parts
            .iter()
            .map(AnalysedRankCapture::count_captured_steps)
            .max();
        let mut steps = UnprofiledStepDurations::step_durations_of_job(
            parts.iter().filter_map(|part| part.steps.as_ref()),
        );
        let unprofiled = captured_steps.filter(|&steps| steps > 0);
        let unprofiled = unprofiled.and_then(|captured| {
            let ends = [*steps.iter().min()?, *steps.iter().max()?];
            Some(StepTimesWithoutProfiler {
                captured,
                step: Span::from_ns(median(&mut steps)?),
                range: Some(ends.map(Span::from_ns)),
            })
        });
        let files: Vec<PathBuf> = parts.iter().map(|part| part.file.clone()).collect();
        let (mut ranks, mut calls, mut activities, mut links) = (vec![], vec![], vec![], vec![]);
        for part in parts {
            ranks.push(part.rank);
            calls.push(part.calls);
            activities.push(part.activities);
            links.push(part.link);
        }
        let file = |rank: u32| {
            let at = ranks.iter().position(|r| r.rank == rank).unwrap_or(0);
            files.get(at).map_or(Path::new(""), |file| file)
        };
        let (mut groups, inferred) = group_inference::resolve_groups_of_all_calls(
            &ranks, &mut calls, world,
        )
        .map_err(|unknown| {
            TraceError::invalid_file(file(unknown.rank), unknown.found, &unknown.hint)
        })?;
        let disagree =
            |no: CommCallMismatchError| TraceError::invalid_file(file(u32::MAX), no.0, ONE_RUN);
        let captured = ranks.iter().map(|rank| JobRankWithTimeline {
            number: rank.rank,
            timeline: rank,
        });
        let captured: Vec<JobRankWithTimeline<'_>> = captured.collect();
        let mut matches = call_matching::match_calls_across_ranks(&captured, &calls, &groups)
            .map_err(disagree)?;
        let offsets = clock::estimate_offsets(&ranks, &calls, &matches);
        let mut models: Vec<CapturedOrInferredRank> = (0..)
            .zip(&ranks)
            .map(CapturedOrInferredRank::from_capture)
            .collect();
        if infer.is_some() {
            let found = inferred_ranks::infer_ranks(&captured, &calls, &mut groups, world);
            let found = found.map_err(|unknown| {
                let hint = "capture a rank of each pipeline stage, tensor shard and expert";
                TraceError::invalid_file(file(unknown.nearest), unknown.to_string(), hint)
            })?;
            (models, calls) = found.into_iter().unzip();
            let all = models.iter().map(|model| JobRankWithTimeline {
                number: model.number,
                timeline: &ranks[model.capture],
            });
            let all: Vec<JobRankWithTimeline<'_>> = all.collect();
            matches =
                call_matching::match_calls_across_ranks(&all, &calls, &groups).map_err(disagree)?;
        }
        let seen = JobCallsWithCaptures {
            calls: &calls,
            timelines: &ranks,
            captures: &activities,
            offsets: &offsets,
            models: &models,
        };
        let (times, odd) =
            transfer_times::split_all_calls_into_wait_and_transfer(&seen, &matches, &groups);
        let starts = activities.iter().zip(&offsets);
        let starts =
            starts.map(|(activities, offset)| offset.to_reference_time(activities.time_span().0));
        let host_computes = !ranks
            .iter()
            .any(JoinedRankCapture::has_run_or_launched_device_work);
        let first = starts.min().unwrap_or(0);
        let ends = activities.iter().zip(&offsets);
        let last =
            ends.map(|(activities, offset)| offset.to_reference_time(activities.time_span().1));
        let captured = last.max().unwrap_or(first).saturating_sub(first);
        let by_steps = unprofiled.and_then(|steps| {
            let unprofiled = (steps.step.0 / 1000).saturating_mul(steps.captured);
            let captured = u64::try_from(captured).unwrap_or(0);
            profiler_cost::estimate_cost_per_record_from_steps(&ranks, captured, unprofiled)
        });
        let costs = ranks.iter().zip(&links).map(|(rank, link)| {
            // The cost can be estimated only for PyTorch's own profiler.
            if rank.kineto.source.is_some() {
                return None;
            }
            let by_views = || profiler_cost::estimate_cost_per_record_from_views(rank, link.method);
            by_steps.filter(|_| !rank.untimed).or_else(by_views)
        });
        let costs: Vec<Option<HostTimePerProfilerRecord>> = costs.collect();
        Ok(Self {
            met: list_match_result_of_each_call(&calls, &matches, &models),
            first,
            summary: ConversionSummary::new(
                &groups,
                &inferred,
                &matches,
                odd,
                world,
                host_computes,
                unprofiled,
            ),
            unprofiled,
            costs,
            models,
            captures: ranks,
            calls,
            activities,
            links,
            groups,
            times,
            offsets,
            world,
            host_computes,
        })
    }

    /// Writes the trace of the rank at index `i` to `out`. The summary names `to` as its file.
    pub fn write_rank<W: Write>(&mut self, i: usize, out: W, to: &Path) -> Result<W, TraceError> {
        let model = self.models[i];
        let rank = &self.captures[model.capture];
        let (activities, link) = (&self.activities[model.capture], &self.links[model.capture]);
        let offset = self.offsets[model.capture];
        let cost = self.costs[model.capture];
        let captured = offset
            .to_reference_time(activities.time_span().1)
            .saturating_sub(self.first);
        let job = emit::RankNodeEmissionInputs {
            number: model.number,
            groups: &self.groups,
            times: &self.times[i],
            matches: &self.met[i],
            start: offset.own_clock_time_at(self.first),
            host_computes: self.host_computes,
            record_ns: cost.map_or(0, |cost| cost.record_ns),
        };
        let lanes = emit::list_lane_name_attributes(rank, activities, self.host_computes);
        let on_device = !self.host_computes || rank.untimed && rank.host.on_device;
        let kernels_on = if !on_device { scan::CPU } else { scan::DEVICE };
        let ns = u64::try_from(captured).unwrap_or(0);
        let mut metadata = vec![
            ("schema", AttributeValue::Text(&rank.host.schema)),
            (
                "source",
                AttributeValue::Text(rank.kineto.source.unwrap_or("pytorch")),
            ),
            ("rank", AttributeValue::Int(i64::from(model.number))),
            (scan::WORLD_SIZE, AttributeValue::Int(i64::from(self.world))),
            (scan::KERNELS_ON, AttributeValue::Text(kernels_on)),
        ];
        // A capture without times has no duration.
        if !rank.untimed {
            metadata.insert(0, ("captured_ns", AttributeValue::Uint(ns)));
        }
        let captured_on = rank.capture_environment();
        let said = captured_on.attributes();
        metadata.extend(said.map(|(name, value)| (name, AttributeValue::Text(value))));
        if model.inferred {
            let of = AttributeValue::Int(i64::from(rank.rank));
            metadata.push(("inferred_from", of));
        }
        if !rank.dropped.is_empty() {
            let dropped = AttributeValue::Uint(rank.dropped.len() as u64);
            metadata.push((scan::DROPPED_KERNELS, dropped));
        }
        let profiler = ProfilerOverheadFacts {
            cost,
            unprofiled: self.unprofiled,
        };
        metadata.extend(profiler.attributes());
        let stacks = &rank.stacks.calls;
        let names: Vec<&str> = stacks.names.iter().map(String::as_str).collect();
        let numbers = stacks.encode_calls();
        if !stacks.is_empty() {
            let [of_names, of_calls] = CallStacks::ATTRIBUTES;
            metadata.push((of_names, AttributeValue::Texts(&names)));
            metadata.push((of_calls, AttributeValue::Ints(&numbers)));
        }
        for (lane, name) in &lanes {
            metadata.push((lane, AttributeValue::Text(name)));
        }
        let io = |source| TraceError::from_io(to, "write", source);
        let mut writer = TraceWriter::start_with_metadata(out, &metadata).map_err(io)?;
        let calls = &self.calls[i];
        let written = emit::write_nodes(rank, calls, activities, &job, &mut writer)
            .map_err(|e| e.in_file(to))?;
        self.summary.ranks.push(RankConversionSummary::new(
            model,
            rank,
            calls,
            activities,
            link,
            offset,
            written,
            captured,
            &self.times[i],
            to,
        ));
        Ok(writer.into_unflushed_sink())
    }
}

/// Maximum number of ranks of a job.
const LARGEST_WORLD: u32 = 1 << 20;

/// Returns the number of ranks in the job. Fails unless all captures and `wanted` agree on this
/// number.
fn world_size(parts: &[AnalysedRankCapture], wanted: Option<u32>) -> Result<u32, TraceError> {
    let said = |part: &AnalysedRankCapture| part.rank.kineto.world_size;
    let first = parts.iter().find(|part| said(part).is_some());
    for part in parts {
        if let (Some(first), Some(own)) = (first, said(part))
            && said(first) != Some(own)
        {
            return Err(TraceError::invalid_file(
                &part.file,
                format!(
                    "the file is of a job of {own} ranks, but {} is of a job of {} ranks",
                    first.file.display(),
                    said(first).unwrap_or(0)
                ),
                ONE_RUN,
            ));
        }
    }
    let seen = parts
        .iter()
        .map(|part| part.rank.rank.saturating_add(1))
        .max();
    let known = first.and_then(said);
    let implied = |part: &AnalysedRankCapture| {
        group_inference::lower_bound_of_world_size(&part.rank, &part.calls)
    };
    let implied = match known {
        Some(_) => None,
        None => parts.iter().map(implied).max(),
    };
    let least = seen.max(implied).unwrap_or(0);
    let world = known.or(wanted).unwrap_or(0).max(least);
    if let Some(wanted) = wanted.filter(|&wanted| wanted != world) {
        let file = parts.first().map_or(Path::new(""), |part| &part.file);
        return Err(TraceError::invalid_file(
            file,
            format!("the capture is of a job of {world} ranks, but {wanted} ranks were requested"),
            "infer the ranks that the job has; `chakram scale` makes larger jobs from complete ones",
        ));
    }
    if world > LARGEST_WORLD {
        let file = first.map_or(Path::new(""), |part| &part.file);
        return Err(TraceError::invalid_file(
            file,
            format!("the file states a job of {world} ranks, expected at most {LARGEST_WORLD}"),
            "correct `world_size` and `rank` in its `distributedInfo`",
        ));
    }
    Ok(world)
}

const ONE_RUN: &str = "convert the captures of one run, all profiled over the same steps";

/// Maximum gap between the periods in which ranks on one host were profiled, in ns. The gap is small, because these
/// ranks share a clock.
const APART_ON_ONE_HOST: i64 = 1_000_000_000;
/// Maximum gap between the periods in which ranks on different hosts were profiled, in ns. It is larger than for one
/// host, because the hosts' clocks differ.
const APART: i64 = 10_000_000_000;

/// Rejects ranks that cannot belong to one run: ranks that share a process, or that were profiled in different periods.
fn check_ranks_belong_to_one_run(parts: &[AnalysedRankCapture]) -> Result<(), TraceError> {
    let mut processes: BTreeMap<(Option<&str>, u64), &AnalysedRankCapture> = BTreeMap::new();
    for part in parts {
        let rank = &part.rank;
        let Some(process) = rank.process else {
            continue;
        };
        let host = rank.kineto.host_name.as_deref();
        // In containers, every rank may have process id 1, so equal ids prove nothing.
        if process > 1
            && let Some(other) = processes.insert((host, process), part)
            && (host.is_some() || are_unranked_and_disjoint_in_time(part, other))
        {
            let of = host.map_or(String::new(), |host| format!(" of host {host}"));
            return Err(TraceError::invalid_file(
                &part.file,
                format!(
                    "rank {} is process {process}{of}, and so is rank {} in {}",
                    part.rank.rank,
                    other.rank.rank,
                    other.file.display()
                ),
                "give each rank its own files, and convert windows of one process one by one",
            ));
        }
    }
    if parts.len() < 2 || parts.iter().any(|part| part.rank.untimed) {
        return Ok(());
    }
    let mut by_start: Vec<_> = parts
        .iter()
        .map(|part| (part.activities.time_span(), part))
        .collect();
    by_start.sort_by_key(|&(span, part)| (span, part.rank.rank));
    let ((_, mut end), mut last) = by_start[0];
    for &((from, to), part) in &by_start[1..] {
        let names = (&part.rank.kineto.host_name, &last.rank.kineto.host_name);
        let one_host = names.0.is_some() && names.0 == names.1;
        let apart = from.saturating_sub(end);
        if apart > if one_host { APART_ON_ONE_HOST } else { APART } {
            return Err(TraceError::invalid_file(
                &part.file,
                format!(
                    "the file and {} are of different runs: rank {} begins {:.3} s after rank {} ended",
                    last.file.display(),
                    part.rank.rank,
                    apart as f64 / 1e9,
                    last.rank.rank
                ),
                ONE_RUN,
            ));
        }
        if to > end {
            (end, last) = (to, part);
        }
    }
    Ok(())
}

/// Returns true if neither capture states its rank and they do not overlap in time. Such captures are successive
/// windows of one process, not two ranks.
fn are_unranked_and_disjoint_in_time(
    one: &AnalysedRankCapture,
    other: &AnalysedRankCapture,
) -> bool {
    let says = |part: &AnalysedRankCapture| part.rank.kineto.rank.is_some() || part.rank.untimed;
    let (one_span, other_span) = (one.activities.time_span(), other.activities.time_span());
    let apart = one_span.1 <= other_span.0 || other_span.1 <= one_span.0;
    apart && !says(one) && !says(other)
}

/// For each call, returns the result of matching the call across ranks.
fn list_match_result_of_each_call(
    calls: &[RankCommCallsAndAnomalies],
    matches: &MatchedAndUnmatchedCallsOfJob,
    models: &[CapturedOrInferredRank],
) -> Vec<Vec<SingleCallCrossRankMatch>> {
    let mut met: Vec<Vec<SingleCallCrossRankMatch>> = calls
        .iter()
        .map(|calls| vec![SingleCallCrossRankMatch::default(); calls.list.len()])
        .collect();
    for matched in &matches.collectives {
        let root = matched
            .root
            .map(|root| models[matched.members[root as usize].0 as usize].number);
        let unknown =
            |&(rank, call): &(u32, u32)| calls[rank as usize].list[call as usize].size_unknown();
        let size_unknown = matched.bytes == 0 && matched.members.iter().any(unknown);
        for &(rank, call) in &matched.members {
            met[rank as usize][call as usize] = SingleCallCrossRankMatch {
                bytes: matched.bytes,
                size_unknown,
                root,
                uneven: matched.uneven,
                found: true,
            };
        }
    }
    for message in &matches.messages {
        let ends = [message.send, message.receive];
        let ends = ends.map(|(rank, call)| &calls[rank as usize].list[call as usize]);
        // One side of the message may not have recorded the number of bytes, so take the larger
        // value.
        let bytes = ends.map(|end| end.asked.bytes_in.max(end.asked.bytes_out));
        let bytes = bytes.into_iter().max().unwrap_or(0);
        let size_unknown = bytes == 0 && ends.iter().any(|end| end.size_unknown());
        for (rank, call) in [message.send, message.receive] {
            met[rank as usize][call as usize] = SingleCallCrossRankMatch {
                bytes,
                size_unknown,
                found: true,
                ..SingleCallCrossRankMatch::default()
            };
        }
    }
    met
}
