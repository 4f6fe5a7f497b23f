//! Answers a point: with a rejection before any replay, a lower bound, or the measures of a replay.

use super::bound::{self, PointTimeAndMemoryBounds};
use super::objective::{PARTS, PointMeasures};
use super::point::{MachineModelStackCaches, PointRefusal, ResolvedPoint, WorkSource};
use super::setting::{self, PRICE, Settings};
use super::study::Study;
use chakram_base::config::ConfigLiteral;
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_engine::{
    CompiledReplay, CopyRepresentsJobChecker, ReplayError, replay_one_copy_or_all_ranks,
};
use chakram_hardware::machine::Machine;
use chakram_jobs::{Job, MAX_REPEATED_NODES};
use chakram_report::settings::{
    CompiledReplayWithReport, explain_no_effect_of_differences, machine_differences,
    reason_option_has_no_effect,
};
use chakram_report::tiles::TileNetworkBusyTimesObserver;
use chakram_report::{
    self as report, BreakdownObserver, MemoryPeakObserver, NpuTimeCategory, Report,
};
use chakram_trace::workload::Workload;
use chakram_workloads::generate::plan::RankMemoryCapacity;
use chakram_workloads::generate::{CheckedWorkloadPattern, WorkloadPattern};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Result of a point: a rejection, or the measures of its replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PointRefusalOrMeasures {
    /// The point is impossible, or exceeds a limit.
    Refused {
        /// Short form of the reason. Reports use it to count rejected points.
        reason: String,
        /// The full reason.
        detail: String,
    },
    /// The point was replayed, with these measures.
    Replayed(PointMeasures),
}

impl From<PointRefusal> for PointRefusalOrMeasures {
    fn from(refusal: PointRefusal) -> Self {
        Self::Refused {
            reason: refusal.reason,
            detail: refusal.detail,
        }
    }
}

/// Replays points of a study. Several threads may share one evaluator.
#[derive(Debug)]
pub struct PointEvaluator<'s> {
    study: &'s Study,
    parts: MachineModelStackCaches,
    workloads: RecentWorkloadCache,
}

impl<'s> PointEvaluator<'s> {
    /// Creates an evaluator for the points of `study`.
    pub fn new(study: &'s Study) -> Self {
        Self {
            study,
            parts: MachineModelStackCaches::default(),
            workloads: RecentWorkloadCache::default(),
        }
    }

    /// Returns a key that is equal for points with the same work, so that they can be evaluated one after another.
    pub fn work_key(point: &Settings) -> String {
        let of_work = |key: &str| {
            ["trace", "model", "plan", "stack", "tokens"]
                .iter()
                .any(|start| key.starts_with(start))
                || setting::changes_how_traces_are_read(key)
        };
        let of_work: Settings = (point.iter())
            .filter(|(key, _)| of_work(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        setting::format_settings(&of_work)
    }

    /// Resolves a point, and checks the limits that need no generated nodes.
    pub fn resolve_point(&self, point: &Settings) -> Result<ResolvedPoint, PointRefusal> {
        let settings = self.study.merge_with_base_settings(point);
        let resolved = ResolvedPoint::new(&settings, &self.parts)?;
        let npus = match &resolved.work {
            WorkSource::Plan(pattern) => Some(pattern.plan.rank_count()),
            WorkSource::Traces(..) => None,
        };
        if let Some(npus) = npus {
            self.check_npu_and_cost_limits(npus, &settings)?;
        }
        Ok(resolved)
    }

    fn check_npu_and_cost_limits(
        &self,
        npus: u128,
        settings: &Settings,
    ) -> Result<(), PointRefusal> {
        let limits = &self.study.limits;
        if let Some(most) = limits.npus.filter(|most| npus > u128::from(*most)) {
            let detail = format!("{npus} NPUs, and limits.npus is {most}");
            return Err(PointRefusal::new("limits.npus", detail));
        }
        let price = settings.get(PRICE).and_then(ConfigLiteral::as_number);
        if let (Some(most), Some(price)) = (limits.cost, price) {
            let cost = price * npus as f64;
            if cost > most {
                let detail = format!("{cost} an hour, and limits.cost is {most}");
                return Err(PointRefusal::new("limits.cost", detail));
            }
        }
        Ok(())
    }

    /// Rejects a plan that needs too much memory. `least` is true if the stated need is only a lower bound.
    fn check_memory(
        &self,
        point: &ResolvedPoint,
        (bytes, fits): (u64, bool),
        least: &str,
    ) -> Result<(), PointRefusal> {
        if !self.study.limits.fits {
            return Ok(());
        }
        let Some(own) = point.smallest_npu_memory() else {
            let detail = format!(
                "machine {} describes no NPU, so the memory of its NPUs is unknown",
                point.machine.name()
            );
            return Err(PointRefusal::new("limits.fits", detail));
        };
        if !fits {
            let capacity = match &point.work {
                WorkSource::Plan(pattern) => RankMemoryCapacity::new(own, &pattern.plan)
                    .capacity_with_remote_share_if_streaming(true),
                WorkSource::Traces(..) => own,
            };
            let [bytes, capacity] = [bytes, capacity].map(chakram_base::units::Bytes);
            let detail = format!("an NPU needs {least}{bytes} and has {capacity}");
            return Err(PointRefusal::new("limits.fits", detail));
        }
        Ok(())
    }

    /// Returns a lower bound for the plan of a valid point. If `whole` is true, it covers all micro-batches; otherwise,
    /// it is the quick bound.
    pub fn bound_point(
        &self,
        point: &Settings,
        whole: bool,
    ) -> Result<PointTimeAndMemoryBounds, PointRefusal> {
        let resolved = self.resolve_point(point)?;
        let WorkSource::Plan(pattern) = &resolved.work else {
            return Err(PointRefusal::new("trace", "traces have no bound"));
        };
        let (bound, fits) = if whole {
            bound::bound_step_over_all_micro_batches(&resolved, pattern)?
        } else {
            bound::bound_step_quickly(&resolved, pattern)?
        };
        let least = if bound.is_whole { "" } else { "at least " };
        self.check_memory(&resolved, (bound.memory_bytes, fits), least)?;
        Ok(bound)
    }

    /// Returns the measures of a plan that need no replay. Objectives need only these and the time.
    pub fn compute_measures_without_replay(
        &self,
        point: &Settings,
        time_ps: u64,
    ) -> Result<PointMeasures, PointRefusal> {
        let resolved = self.resolve_point(point)?;
        let WorkSource::Plan(pattern) = &resolved.work else {
            return Err(PointRefusal::new("trace", "traces have no bound"));
        };
        let samples = pattern.plan.batch.saturating_mul(pattern.plan.steps.into());
        let tokens = samples.saturating_mul(pattern.model.sequence.max(1));
        Ok(PointMeasures {
            time_ps,
            npus: pattern.plan.rank_count() as u32,
            dollars_per_npu_hour: resolved.machine.price_per_npu_hour(),
            tokens: Some(tokens),
            ..PointMeasures::default()
        })
    }

    /// Replays a point, and returns its measures. `is_bounded` is true if the memory was already
    /// checked together with the point's full bound.
    pub fn answer_by_replay(&self, point: &Settings, is_bounded: bool) -> PointRefusalOrMeasures {
        self.replay_point(point, is_bounded).map_or_else(
            PointRefusalOrMeasures::from,
            PointRefusalOrMeasures::Replayed,
        )
    }

    fn replay_point(
        &self,
        point: &Settings,
        is_bounded: bool,
    ) -> Result<PointMeasures, PointRefusal> {
        let resolved = self.resolve_point(point)?;
        // Check the memory before the replay, because the bound takes less time.
        if let (WorkSource::Plan(pattern), true, false) =
            (&resolved.work, self.study.limits.fits, is_bounded)
        {
            let (bound, fits) = bound::bound_step_over_all_micro_batches(&resolved, pattern)?;
            self.check_memory(&resolved, (bound.memory_bytes, fits), "")?;
        }
        let work = self.get_point_work(&resolved)?;
        let workload = work.workload();
        // Only the traces state the number of ranks, so it can be checked only now.
        if matches!(resolved.work, WorkSource::Traces(..)) {
            self.check_npu_and_cost_limits(
                workload.rank_count_including_untraced().into(),
                &self.study.merge_with_base_settings(point),
            )?;
        }
        let (machine, options) = (&*resolved.machine, &resolved.options);
        // With `aggregate`, the engine itself finds equal ranks, so give it all of them.
        let copies = if options.aggregate {
            &[]
        } else {
            work.ranks_of_each_copy()
        };
        let found = replay_one_copy_or_all_ranks(workload, machine, options, copies, |workload| {
            replay_and_measure_workload(workload, &resolved)
        })?;
        self.check_memory(&resolved, (found.peak.unwrap_or(0), found.fits), "")?;
        let amounts = workload.work_amounts();
        Ok(PointMeasures {
            time_ps: found.makespan.0,
            npus: workload.rank_count_including_untraced(),
            parts_ps: found.parts_ps,
            memory_bytes: found.peak,
            dollars_per_npu_hour: machine.price_per_npu_hour(),
            tokens: amounts.map(|all| all.tokens.unwrap_or(all.samples)),
            kernel_energy_pj: found
                .kernel_energy
                .map(|mean| mean * f64::from(workload.rank_count_including_untraced())),
            unmapped_ps: found.kernel_energy.map(|_| found.unmapped_ps),
            links_busy_ps: found.busy.map(|[links, _]| links.0),
            ports_busy_ps: found.busy.map(|[_, ports]| ports.0),
        })
    }

    /// Returns the work of a point, from the cache if possible. Fails if an option of the point has
    /// no effect.
    fn get_point_work(
        &self,
        point: &ResolvedPoint,
    ) -> Result<Arc<GeneratedOrCapturedWork>, PointRefusal> {
        let work = self.workloads.get_or_build_workload(point)?;
        point
            .options
            .check_options_affect_workload(work.workload())?;
        Ok(work)
    }

    /// Returns the reason why two points with different machines have equal results. `None` if another replay would be
    /// too large.
    pub fn why_machines_give_equal_results(
        &self,
        one: &Settings,
        other: &Settings,
    ) -> Option<String> {
        let before = self.resolve_point(one).ok()?.machine;
        self.replay_point_and_inspect_run(other, |run, machine| {
            explain_no_effect_of_differences(&machine_differences(&before, machine), run)
        })
    }

    /// Returns the reason why an option has no effect on a point. `None` if another replay would be too large.
    pub fn reason_option_has_no_effect(&self, key: SettingKey, point: &Settings) -> Option<String> {
        self.replay_point_and_inspect_run(point, |run, _| {
            reason_option_has_no_effect(key, false, run)
        })
    }

    fn replay_point_and_inspect_run<T>(
        &self,
        point: &Settings,
        say: impl FnOnce(&CompiledReplayWithReport<'_>, &Machine) -> T,
    ) -> Option<T> {
        let resolved = self.resolve_point(point).ok()?;
        let work = self.get_point_work(&resolved).ok()?;
        let workload = work.workload();
        if workload.node_count() > MAX_REPEATED_NODES {
            return None;
        }
        let compiled = CompiledReplay::new(workload, &resolved.machine, &resolved.options).ok()?;
        let (report, ()) = report::replay_to_report(&compiled, ()).ok()?;
        let run = CompiledReplayWithReport {
            prepared: &compiled,
            report: &report,
        };
        Some(say(&run, &resolved.machine))
    }

    /// Returns the report of a point; `None` if its work has more than `nodes` nodes.
    pub fn report_point_within_node_limit(&self, point: &Settings, nodes: u64) -> Option<Report> {
        let work = self.get_point_work(&self.resolve_point(point).ok()?).ok()?;
        if work.workload().node_count() > nodes {
            return None;
        }
        self.report_point(point).ok()
    }

    /// Replays a point with all the observers that a report needs.
    ///
    /// # Errors
    ///
    /// Fails with the reason if the point cannot be replayed.
    pub fn report_point(&self, point: &Settings) -> Result<Report, PointRefusal> {
        let resolved = self.resolve_point(point)?;
        let work = self.get_point_work(&resolved)?;
        let workload = work.workload();
        let refused = |error: ReplayError| PointRefusal::new("replay", error);
        let compiled = CompiledReplay::new(workload, &resolved.machine, &resolved.options);
        let compiled = compiled.map_err(|refusal| refused(refusal.into()))?;
        let (mut report, ()) = report::replay_to_report(&compiled, ()).map_err(refused)?;
        let settings = self.study.merge_with_base_settings(point);
        let number = |key: &str| settings.get(key).and_then(ConfigLiteral::as_number);
        let price = number(PRICE).or(resolved.machine.price_per_npu_hour());
        report
            .add_replay_and_token_costs(price, number("total_tokens").map(|tokens| tokens as u64));
        Ok(report)
    }
}

/// Result of a replay.
struct PointReplayResult {
    makespan: Span,
    /// Time in each part, averaged over NPUs.
    parts_ps: [u64; PARTS.len()],
    /// Energy of kernels timed by loop nests, averaged over NPUs, in picojoules; `None` without such kernels.
    kernel_energy: Option<f64>,
    /// Compute time of kernels that are not timed by loop nests, averaged over NPUs.
    unmapped_ps: u64,
    /// Most bytes in use at once on an NPU, if the traces state allocations.
    peak: Option<u64>,
    /// True if every NPU's peak fits into its memory.
    fits: bool,
    /// Mean busy times of links and of memory ports, if the machine consists of tiles.
    busy: Option<[Span; 2]>,
}

/// Replays a workload, and returns the measures that objectives need. Also returns true if the replayed ranks may
/// represent all ranks of the job.
fn replay_and_measure_workload(
    workload: &Workload,
    resolved: &ResolvedPoint,
) -> Result<(PointReplayResult, bool), PointRefusal> {
    let refused = |error: ReplayError| PointRefusal::new("replay", error);
    let compiled = CompiledReplay::new(workload, &resolved.machine, &resolved.options);
    let compiled = compiled.map_err(|refusal| refused(refusal.into()))?;
    compiled
        .check_most_kernels_have_durations()
        .and_then(|()| compiled.check_requested_tile_groups_form())
        .map_err(|refusal| refused(refusal.into()))?;
    let observers = (
        CopyRepresentsJobChecker::new(&compiled),
        (
            BreakdownObserver::new(&compiled),
            (
                MemoryPeakObserver::new(&compiled),
                TileNetworkBusyTimesObserver::default(),
            ),
        ),
    );
    let (outcome, (check, (breakdown, (memory, tiles)))) =
        compiled.run(observers).map_err(refused)?;
    let (times, _) = breakdown.into_npu_times_and_totals(outcome.makespan);
    let count = times.len().max(1) as u128;
    let part = |part: NpuTimeCategory| {
        let sum: u128 = times
            .iter()
            .map(|time| u128::from(time.parts[part as usize].0))
            .sum();
        (sum / count) as u64
    };
    let (rows, basis) = (memory.into_rows(), compiled.duration_source_counts());
    let measured = PointReplayResult {
        makespan: outcome.makespan,
        parts_ps: [
            NpuTimeCategory::Compute,
            NpuTimeCategory::Communication,
            NpuTimeCategory::Memory,
            NpuTimeCategory::Host,
            NpuTimeCategory::Idle,
            NpuTimeCategory::Bubble,
        ]
        .map(part),
        kernel_energy: (basis.mapped > 0).then(|| basis.mapped_energy / count as f64),
        unmapped_ps: (part(NpuTimeCategory::Compute) as f64
            * basis.kernel_time_share_without_loop_nest()) as u64,
        peak: rows.iter().map(|row| row.peak.0).max(),
        fits: rows.iter().all(|row| row.fits == Some(true)),
        busy: tiles
            .summarize_tile_link_and_port_use(&compiled)
            .map(|tiles| tiles.mean_link_and_port_busy_times()),
    };
    Ok((measured, check.represents_all()))
}

/// Maximum number of cached workloads.
const KEPT: usize = 4;

/// Work shared by several points.
#[derive(Debug)]
enum GeneratedOrCapturedWork {
    Generated(Workload, Vec<Vec<u32>>),
    Captured(Job),
}

impl GeneratedOrCapturedWork {
    /// Returns the ranks of each copy, if the job consists of several equal copies.
    fn ranks_of_each_copy(&self) -> &[Vec<u32>] {
        match self {
            Self::Generated(_, copies) => copies,
            Self::Captured(_) => &[],
        }
    }

    fn workload(&self) -> &Workload {
        match self {
            Self::Generated(workload, _) => workload,
            Self::Captured(job) => job.workload(),
        }
    }
}

type SharedWorkCell = Arc<OnceLock<Result<Arc<GeneratedOrCapturedWork>, PointRefusal>>>;

/// Cache of the most recently used workloads. Each is built only once, even if many points need it.
#[derive(Debug, Default)]
struct RecentWorkloadCache(Mutex<Vec<(String, SharedWorkCell)>>);

impl RecentWorkloadCache {
    fn get_or_build_workload(
        &self,
        point: &ResolvedPoint,
    ) -> Result<Arc<GeneratedOrCapturedWork>, PointRefusal> {
        let cell = {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let known = kept.iter().position(|(key, _)| *key == point.work_key);
            let entry = match known {
                // Move the entry to the end, so that the least recently used entry is dropped.
                Some(index) => kept.remove(index),
                None => (point.work_key.clone(), SharedWorkCell::default()),
            };
            let cell = Arc::clone(&entry.1);
            kept.push(entry);
            if kept.len() > KEPT {
                kept.remove(0);
            }
            cell
        };
        // Build the workload without holding the lock, so that other points do not wait.
        cell.get_or_init(|| build_work(&point.work).map(Arc::new))
            .clone()
    }
}

fn build_work(work: &WorkSource) -> Result<GeneratedOrCapturedWork, PointRefusal> {
    match work {
        WorkSource::Plan(pattern) => {
            let job = CheckedWorkloadPattern::new(WorkloadPattern::Training(pattern.clone()))?;
            job.check_workload_fits_memory()
                .map_err(|e| PointRefusal::new("size", e))?;
            let workload = job
                .build_workload()
                .map_err(|e| PointRefusal::new("size", e))?;
            Ok(GeneratedOrCapturedWork::Generated(
                workload,
                job.find_independent_copies(),
            ))
        }
        WorkSource::Traces(path, loading) => {
            let job = Job::open_job_with_options([path], loading)
                .map_err(|e| PointRefusal::new("trace", e))?;
            Ok(GeneratedOrCapturedWork::Captured(job))
        }
    }
}
