//! Reads one rank's capture, and extracts its calls and activities. Several ranks can be read in parallel.

use super::ConvertOptions;
use crate::pytorch::activities::{self, RankActivitiesAndDependencies};
use crate::pytorch::calls::{self, RankCommCallsAndAnomalies};
use crate::pytorch::event_links::{HostKinetoJoinError, KeptCaptureWindow, KinetoEventHostNodeMap};
use crate::pytorch::files::RankCaptureFiles;
use crate::pytorch::host::HostTrace;
use crate::pytorch::kineto::{EventCategory, KinetoEvent, KinetoTrace};
use crate::pytorch::rank_timeline::{HostIntervalKind, JoinedRankCapture};
use crate::pytorch::steps::UnprofiledStepDurations;
use crate::pytorch::{host_alone, kineto_alone, operator_order};
use chakram_base::bounds::allocator::return_freed_memory;
use chakram_base::interrupt::{self, wrap_with_current_token};
use chakram_base::setting::SettingKey;
use chakram_trace::format::TraceError;
use chakram_trace::format::error::TraceErrorLocation;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A rank's capture, with its calls and activities.
pub(super) struct AnalysedRankCapture {
    pub rank: JoinedRankCapture,
    pub calls: RankCommCallsAndAnomalies,
    pub activities: RankActivitiesAndDependencies,
    pub link: KinetoEventHostNodeMap,
    /// Steps measured without a profiler.
    pub steps: Option<UnprofiledStepDurations>,
    /// File named in errors about this rank, usually the Kineto trace.
    pub file: PathBuf,
}

/// The joined files of a rank.
struct LinkedRankFiles {
    host: HostTrace,
    kineto: KinetoTrace,
    link: KinetoEventHostNodeMap,
    /// True if record function ids were assigned by order.
    ordered: bool,
}

impl LinkedRankFiles {
    fn new(
        host: Option<HostTrace>,
        kineto: Option<KinetoTrace>,
    ) -> Result<Self, HostKinetoJoinError> {
        let (host, mut kineto) = match (host, kineto) {
            (Some(host), Some(kineto)) => (host, kineto),
            (None, kineto) => {
                let mut kineto = kineto.unwrap_or_default();
                let (ordered, operators) =
                    operator_order::assign_ids_to_host_events_if_any_missing(&mut kineto);
                let (host, link) =
                    kineto_alone::build_host_trace_from_kineto_events(&kineto, operators);
                return Ok(Self {
                    host,
                    kineto,
                    link,
                    ordered,
                });
            }
            (Some(host), None) => {
                let (kineto, link) = host_alone::build_kineto_trace(&host);
                return Ok(Self {
                    host,
                    kineto,
                    link,
                    ordered: true,
                });
            }
        };
        if let (Some(own), Some(theirs)) = (host.pid, kineto.process_with_most_operators())
            && own != theirs
        {
            return Err(HostKinetoJoinError {
                found: format!(
                    "this file and the host trace are of different runs: this file is of process \
                     {theirs}, the host trace of process {own}"
                ),
                hint: "pair the two files of one run, rank by rank; the files of two ranks may be swapped",
                offset: None,
            });
        }
        let ordered = !KinetoEventHostNodeMap::can_join_by_id(&host, &kineto);
        let link = KinetoEventHostNodeMap::new(&host, &kineto)?;
        if ordered {
            operator_order::assign_ids_to_host_events_if_any_missing(&mut kineto);
        }
        Ok(Self {
            host,
            kineto,
            link,
            ordered,
        })
    }
}

/// Rejects times that a real clock cannot show.
fn reject_impossible_event_times(kineto: &KinetoTrace, file: &Path) -> Result<(), TraceError> {
    let far = |event: &&KinetoEvent| {
        let end = event.start_ns.checked_add_unsigned(event.duration_ns);
        end.is_none_or(|end| end >= FARTHEST)
    };
    let Some(event) = kineto.events.iter().find(far) else {
        return Ok(());
    };
    Err(file_error_at_offset(
        file,
        Some(event.offset),
        format!(
            "an event begins {} ns after 1970 and lasts {} ns, expected times before the year 2116",
            event.start_ns, event.duration_ns
        ),
        "capture again with a correct system clock",
    ))
}

/// Rejects operators of several processes, because the ids of correlations, streams and devices are
/// unique only within a process.
fn check_single_process(kineto: &KinetoTrace, file: &Path) -> Result<(), TraceError> {
    let counts = kineto.count_operators_by_process();
    let mut processes = counts.keys().filter(|pid| pid.parse::<u64>().is_ok());
    let (Some(one), Some(other)) = (processes.next(), processes.next()) else {
        return Ok(());
    };
    let more = match processes.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(TraceError::invalid_file(
        file,
        format!(
            "the file has operators of the processes {one}, {other}{more}; merged files of several ranks look like this"
        ),
        "pass the files that the ranks wrote, one each",
    ))
}

/// Rejects captures whose device work has a form that the reader does not support.
fn check_device_work_supported(rank: &JoinedRankCapture, file: &Path) -> Result<(), TraceError> {
    if !rank.devices.is_empty() || rank.kineto.unread.is_empty() {
        return Ok(());
    }
    let unread = rank.kineto.unread.iter().map(|(category, count)| {
        format!(
            "{count} of category `{}`",
            chakram_trace::format::escape_and_shorten_name(category)
        )
    });
    let unread: Vec<String> = unread.collect();
    Err(TraceError::invalid_file(
        file,
        format!(
            "the events of devices cannot be read: {}",
            unread.join(", ")
        ),
        "export with a profiler whose device events have the categories `kernel`, `gpu_memcpy` and `gpu_memset`",
    ))
}

/// Maximum distance of a time from 1970, in ns; it reaches until 2116. The sum of two such times does not overflow.
const FARTHEST: i64 = 1 << 62;

impl AnalysedRankCapture {
    /// Extracts the calls and activities from the files of the rank `number`.
    pub fn new(
        number: u32,
        host: Option<HostTrace>,
        kineto: Option<KinetoTrace>,
        file: &Path,
        options: &ConvertOptions,
    ) -> Result<Self, TraceError> {
        if let Some(kineto) = &kineto {
            reject_impossible_event_times(kineto, file)?;
            check_single_process(kineto, file)?;
        }
        let joined = LinkedRankFiles::new(host, kineto)
            .map_err(|no| file_error_at_offset(file, no.offset, no.found, no.hint))?;
        let LinkedRankFiles {
            host,
            mut kineto,
            mut link,
            ordered,
        } = joined;
        let window = match options.step {
            None => link.window.unwrap_or(KeptCaptureWindow::ALL),
            Some(step) => step_window(&kineto, step).map_err(|found| {
                let hint = format!(
                    "name one of them, or leave {} out to convert all",
                    SettingKey::Step
                );
                TraceError::invalid_file(file, found, hint)
            })?,
        };
        let number = kineto.rank.unwrap_or(number);
        if kineto.host_name.is_none() {
            let process = kineto.process_with_most_operators();
            kineto.host_name = process.and_then(|process| host_name_in_file_name(file, process));
        }
        let mut rank = JoinedRankCapture::new(number, host, kineto, ordered, &link, window);
        // Free `host_of`, because the activities now refer to their nodes directly.
        link.host_of = Vec::new();
        rank.free_temporary_data();
        if rank.items.is_empty() && rank.devices.is_empty() {
            return Err(TraceError::invalid_file(
                file,
                "the capture has neither operators nor kernels",
                "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] around a step",
            ));
        }
        check_device_work_supported(&rank, file)?;
        let mut calls = calls::find_comm_calls(&rank, &options.comm_kernels);
        let activities = activities::find_activities_and_record_usable_results(&rank, &mut calls);
        Ok(Self {
            rank,
            calls,
            activities,
            link,
            steps: None,
            file: file.to_owned(),
        })
    }

    /// Returns the number of steps in the capture; 0 if unknown.
    pub fn count_captured_steps(&self) -> u64 {
        let items = self.rank.items.iter();
        let mut steps: Vec<&str> = items
            .filter(|item| self.rank.kind_of_host_interval(item) == HostIntervalKind::Annotation)
            .filter_map(|item| self.rank.host_interval_name(item).strip_prefix(STEP))
            .collect();
        steps.sort_unstable();
        steps.dedup();
        let measured = self.steps.as_ref();
        match steps.len() {
            0 => measured.map_or(0, |steps| steps.captured_steps),
            count => count as u64,
        }
    }

    /// Reads the files of a rank and extracts their contents. A file may also contain the merged traces of
    /// several ranks.
    fn read_ranks_of_capture_files(
        pair: &RankCaptureFiles,
        options: &ConvertOptions,
    ) -> Result<Vec<Self>, TraceError> {
        let host = pair.host.as_deref();
        let host = host.map(|path| {
            pair.parse_held_or_read_file_from_disk(
                path,
                HostTrace::read_file,
                HostTrace::from_bytes,
            )
        });
        let host = host.transpose()?;
        let kineto = pair.kineto.as_deref();
        let kineto = kineto.map(|path| {
            pair.parse_held_or_read_file_from_disk(
                path,
                KinetoTrace::read_file,
                KinetoTrace::from_bytes,
            )
        });
        let kineto = kineto.transpose()?;
        let kineto = match (&host, kineto) {
            (None, Some(kineto)) => {
                let mut ranks = kineto.split_ranks();
                if ranks.len() > 1 {
                    let captures = ranks.into_iter().map(|rank| {
                        Self::new(
                            pair.rank,
                            None,
                            Some(rank),
                            pair.file_to_name_in_messages(),
                            options,
                        )
                    });
                    return captures.collect();
                }
                ranks.pop()
            }
            (_, kineto) => kineto,
        };
        if pair.unnumbered && kineto.as_ref().is_none_or(|kineto| kineto.rank.is_none()) {
            return Err(TraceError::invalid_file(
                pair.file_to_name_in_messages(),
                "the rank is unknown: neither the file's name nor a `distributedInfo` states it",
                "name the files of the ranks host.0.json, kineto.0.json, host.1.json, …",
            ));
        }
        let steps = pair.steps.as_deref();
        let steps = steps
            .map(|path| {
                pair.parse_held_or_read_file_from_disk(
                    path,
                    UnprofiledStepDurations::read_file,
                    UnprofiledStepDurations::from_bytes,
                )
            })
            .transpose()?;
        let mut capture = Self::new(
            pair.rank,
            host,
            kineto,
            pair.file_to_name_in_messages(),
            options,
        )?;
        // The number in the file name may be a step and not a rank, as in `trace_8.json`. Only captures with
        // communication must state their rank.
        if pair.guessed && capture.rank.kineto.rank.is_none() && capture.calls.list.is_empty() {
            capture.rank.rank = 0;
        }
        Ok(vec![Self { steps, ..capture }])
    }

    /// Reads all pairs in parallel. Calls `progress` with the number of ranks read so far.
    pub fn read_all(
        pairs: &[RankCaptureFiles],
        options: &ConvertOptions,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Vec<Self>, TraceError> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = match options.threads {
            0 => processors,
            threads => threads,
        };
        let slots: Vec<_> = pairs.iter().map(|_| Mutex::new(None)).collect();
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let read_next = || {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(pair) = pairs.get(i) else { break };
                let part = interrupt::fail_if_stopped_or_out_of_memory().map_err(TraceError::from);
                let part = part.and_then(|()| Self::read_ranks_of_capture_files(pair, options));
                if let Ok(mut slot) = slots[i].lock() {
                    *slot = Some(part);
                }
                progress(done.fetch_add(1, Ordering::Relaxed) + 1, pairs.len());
            }
        };
        // The calling thread also reads, so that it can later reuse the memory that it frees here.
        std::thread::scope(|scope| {
            for _ in 1..threads.min(pairs.len()) {
                scope.spawn(wrap_with_current_token(read_next));
            }
            read_next();
        });
        // Nesting and linking temporarily needed as much memory as the result does, so return that memory to the
        // system.
        return_freed_memory();
        let parts = slots.into_iter().map(|slot| {
            let part = slot.into_inner().ok().flatten();
            part.expect("every pair was read")
        });
        let parts: Result<Vec<Vec<Self>>, TraceError> = parts.collect();
        Ok(parts?.into_iter().flatten().collect())
    }
}

/// Returns the host name in the profiler's default file name, `HOST_PROCESS.TIME.pt.trace.json`.
fn host_name_in_file_name(file: &Path, process: u64) -> Option<String> {
    let (stem, _) = file.file_name()?.to_str()?.split_once(".pt.trace")?;
    let worker = stem.split_once('.').map_or(stem, |(worker, _)| worker);
    let host = worker.strip_suffix(&format!("_{process}"))?;
    (!host.is_empty()).then(|| host.to_owned())
}

const STEP: &str = "ProfilerStep#";

/// Returns the time window of step `step`.
fn step_window(kineto: &KinetoTrace, step: u64) -> Result<KeptCaptureWindow, String> {
    let mut steps = Vec::new();
    for event in &kineto.events {
        let name = kineto.texts.get(event.name);
        let number = name.strip_prefix(STEP).and_then(|n| n.parse::<u64>().ok());
        // The device track repeats the ranges, so use only the host's ranges.
        if let (Some(number), EventCategory::Annotation) = (number, event.category) {
            steps.push(number);
            if number == step {
                return Ok(KeptCaptureWindow {
                    from: event.start_ns,
                    to: event.start_ns.saturating_add_unsigned(event.duration_ns),
                });
            }
        }
    }
    steps.sort_unstable();
    Err(if steps.is_empty() {
        format!("the capture has no step {step}: no event is named `{STEP}N`")
    } else {
        format!("the capture has no step {step}, only {steps:?}")
    })
}

/// Builds the error for an invalid `file`, with a byte offset in its text.
fn file_error_at_offset(
    file: &Path,
    offset: Option<u64>,
    found: impl Into<String>,
    hint: &str,
) -> TraceError {
    let place = TraceErrorLocation {
        file: Some(file.to_owned()),
        offset: offset.map(|offset| offset as usize),
        ..TraceErrorLocation::default()
    };
    TraceError::invalid_at(place, found, hint)
}
