//! Replays on the chosen network, with the observers that the output needs.

use super::AstraSimArgs;
use super::render::{self, RankStatistics};
use super::transcript::{self, FormulaTimingLineOrderCheck, RankAndNodeEventRecorder};
use crate::output::{ReportDestinationAndOutputs, ReportFormatArg, TimelineFileCreator};
use crate::terminal;
use chakram_astra_sim::{self as astra_sim, CompletedNode, TensorLifetimesAndAccesses};
use chakram_engine::{CompletedReplayTotals, ReplayError, ReplayOptions};
use chakram_jobs::{AstraSimJob, replay_on_input_network};
use chakram_report::summary::format_count_with_noun;
use chakram_report::{NodeSpanRecorder, RankBusyTimeObserver};
use chakram_trace::files::{OutputsAndProtectedInputs, join_prefix_middle_and_ending};
use chakram_trace::format::{TraceError, escape_control_characters_in_lines};
use chakram_trace::graph::NodeKind;
use chakram_trace::workload::Workload;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

/// Replays `job` and prints the requested output.
///
/// If the replay deadlocks, text and CSV still contain the ranks that finished.
pub fn run(
    args: &AstraSimArgs,
    job: &AstraSimJob,
    to: &mut ReportDestinationAndOutputs<'_>,
) -> Result<(), Box<dyn Error>> {
    for note in &job.notes {
        terminal::print_note(format_args!("{note}"))?;
    }
    let start = Instant::now();
    let mut options = engine_options(args);
    if replay_and_print(args, job, &options, start, to)? == ReplayPrintedOrOrderLost::LostOrder {
        options.stepwise = true;
        replay_and_print(args, job, &options, start, to)?;
    }
    Ok(())
}

/// Result of one attempt to replay and print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplayPrintedOrOrderLost {
    /// All output was written.
    Done,
    /// Nothing was printed, because the use of formulas for collectives may have changed the order of ASTRA-sim's
    /// lines. The caller must replay every collective step by step.
    LostOrder,
}

/// Replays `job` with the given options and prints the requested output.
fn replay_and_print(
    args: &AstraSimArgs,
    job: &AstraSimJob,
    options: &ReplayOptions,
    start: Instant,
    to: &mut ReportDestinationAndOutputs<'_>,
) -> Result<ReplayPrintedOrOrderLost, Box<dyn Error>> {
    let (inputs, workload, machine) = (&job.inputs, &job.workload, job.build_machine());
    let prepared = job.compile_replay(&machine, options)?;
    let mut collectives = job.collectives.clone();
    let instances = workload.instances();
    let odd = instances.iter().zip(&job.work);
    // `None` means that all compute nodes of the graph are kernels, so that the observer need not
    // check each node.
    let odd = odd.map(|(instance, work)| work.stand_ins.then(|| workload.graph_of(instance)));
    let odd: Vec<_> = odd.collect();
    let mut busy =
        RankBusyTimeObserver::new(workload, |instance, node| match odd[instance.index()] {
            None => NodeKind::Compute,
            Some(graph) => astra_sim::astra_kind_of_compute_node(graph, node),
        });
    let mut spans = job
        .tensors
        .is_some()
        .then(|| NodeSpanRecorder::new(&prepared));
    let path = args.timeline.file_path();
    let timeline = TimelineFileCreator::start_timeline(&args.timeline, &prepared, to)?;
    let traces = job.types.is_some();
    let mut transcript = args
        .prints_as_original_astra_sim()
        .then(|| RankAndNodeEventRecorder::new(workload, traces));
    let mut order = FormulaTimingLineOrderCheck::default();
    let lines = transcript.as_mut().map(|lines| (lines, &mut order));
    let mut watched = (&mut busy, (spans.as_mut(), (lines, timeline)));
    let full = args.format == ReportFormatArg::Json;
    let result = replay_on_input_network(&prepared, inputs, &mut collectives, full, &mut watched);
    let (_, (_, (_, timeline))) = watched;
    // If the replay was rejected, the observers recorded nothing useful.
    let result = match result {
        Err(error @ ReplayError::Refused(_)) => return Err(error.into()),
        result => result,
    };
    if !order.is_kept() {
        return Ok(ReplayPrintedOrOrderLost::LostOrder);
    }
    if let Ok((outcome, _)) = &result {
        let nodes = format_count_with_noun(workload.node_count(), "node");
        let (closed, stepwise) = (outcome.closed, outcome.stepwise);
        let collectives = format_args!("collectives: {closed} analytical, {stepwise} simulated");
        terminal::print_detail_with_elapsed_time(
            start,
            format_args!("replayed {nodes} ({collectives})"),
        )?;
    }
    let beyond = collectives
        .first_endless_wait()
        .map(|beyond| beyond.to_string());
    if let Some(beyond) = &beyond {
        terminal::print_note(format_args!("{beyond}"))?;
    }
    let result = result.map(|(_, report)| (report, timeline));
    let mut rows = Vec::new();
    for (instance, time) in busy.busy_times_of_all_ranks().enumerate() {
        let row = RankStatistics::new(instances[instance].rank.0, time, job.work[instance]);
        rows.extend(row.map(|row| (instance, row)));
    }
    if let (Some(tensors), Some(spans)) = (&job.tensors, &spans) {
        for (instance, row) in &mut rows {
            let ran = iter_completed_nodes(workload, spans, *instance);
            let memory = TensorLifetimesAndAccesses::compute_lifetimes(&tensors[*instance], ran);
            print_note_on_reads_before_writes(&memory, row.rank)?;
            write_memory_chart_file(
                &memory,
                row.rank,
                &inputs.system.memory_trace,
                to.other_outputs(),
            )?;
            row.peak_memory = Some(memory.peak_bytes());
        }
    }
    if let Some(transcript) = &transcript {
        let types = job.types.as_deref().unwrap_or_default();
        let lines = transcript::render_lines(
            transcript,
            inputs,
            &rows,
            types,
            transcript::format_current_timestamp(),
        );
        to.write_report(&lines.printed)?;
        let folder = args.logging_folder.as_deref();
        let log = folder.unwrap_or(Path::new("log")).join("log.log");
        // Create all folders on the path, as ASTRA-sim does.
        let parent = folder
            .and_then(Path::parent)
            .filter(|p| !p.as_os_str().is_empty());
        if let Some(parent) = parent {
            std::fs::create_dir_all(parent)
                .map_err(|error| TraceError::from_io(&log, "create", error))?;
        }
        let mut file = to.other_outputs().create_file(&log)?;
        file.write_all(escape_control_characters_in_lines(&lines.logged).as_bytes())?;
        file.commit()?;
        let (_, timeline) = result?;
        TimelineFileCreator::finish_timeline(timeline, path)?;
        return Ok(ReplayPrintedOrOrderLost::Done);
    }
    // Print the rows even if the replay failed, and check `result` afterwards.
    let rows: Vec<RankStatistics> = rows.into_iter().map(|(_, row)| row).collect();
    match args.format {
        ReportFormatArg::Text => to.write_report(&render::render_text(&rows))?,
        ReportFormatArg::Csv => to.write_report(&render::render_csv(&rows))?,
        ReportFormatArg::Json => {}
    }
    let (report, timeline) = result?;
    TimelineFileCreator::finish_timeline(timeline, path)?;
    if let Some(report) = report {
        let notes = job.notes.iter().map(ToString::to_string);
        let notes: Vec<String> = notes.chain(beyond).collect();
        let options = args.option_json();
        let document =
            render::AstraSimReportDocument::new(report, &rows, inputs, options, notes, &job.files);
        to.run_write_and_commit_output(|out| {
            chakram_report::json::write_indented_json(
                &mut terminal::EscapingWriter::new_for_json(out),
                &document,
            )
        })?;
    }
    Ok(ReplayPrintedOrOrderLost::Done)
}

/// Returns the engine's options for `args`.
pub fn engine_options(args: &AstraSimArgs) -> ReplayOptions {
    ReplayOptions {
        // A replay that writes a timeline cannot be repeated, because the timeline file can be started only once. It
        // therefore simulates step by step from the start. This always keeps the order of lines.
        stepwise: args.stepwise
            || (args.prints_as_original_astra_sim() && args.timeline.file_path().is_some()),
        // If several ranks finish at the same time, ASTRA-sim prints them in the order of their last events, so the
        // engine must keep this order.
        ordered_ends: args.prints_as_original_astra_sim(),
        ..ReplayOptions::default()
    }
}

/// Replays `job` without observers.
pub fn replay_without_observers(
    args: &AstraSimArgs,
    job: &AstraSimJob,
) -> Result<CompletedReplayTotals, ReplayError> {
    let machine = job.build_machine();
    let prepared = job.compile_replay(&machine, &engine_options(args))?;
    let mut collectives = job.collectives.clone();
    let (outcome, _) =
        replay_on_input_network(&prepared, &job.inputs, &mut collectives, false, &mut ())?;
    Ok(outcome)
}

/// Iterates over an instance's nodes in the order in which they completed.
fn iter_completed_nodes<'a>(
    workload: &'a Workload,
    spans: &'a NodeSpanRecorder,
    instance: usize,
) -> impl Iterator<Item = CompletedNode<'a>> {
    let graph = workload.graph_of(&workload.instances()[instance]);
    spans
        .spans_of_instance(instance)
        .iter()
        .map(|span| CompletedNode {
            id: graph.id(span.node),
            name: graph.name(span.node),
            start: span.start,
            end: span.end,
        })
}

fn print_note_on_reads_before_writes(
    memory: &TensorLifetimesAndAccesses<'_>,
    rank: u32,
) -> io::Result<()> {
    let mut early = memory.tensors_read_before_written();
    let count = early.len();
    match early.next() {
        None => Ok(()),
        Some(first) => terminal::print_note(format_args!(
            "rank {rank}: {count} tensors are read before they are written, the first is `{}`: \
             these tensors count as present from the start, where the original aborts",
            chakram_trace::format::escape_and_shorten_name(first)
        )),
    }
}

/// Writes a chart of a rank's memory to a separate file.
fn write_memory_chart_file(
    memory: &TensorLifetimesAndAccesses<'_>,
    rank: u32,
    name: &str,
    outputs: &mut OutputsAndProtectedInputs,
) -> Result<(), TraceError> {
    let path = join_prefix_middle_and_ending(Path::new(name), rank, ".json");
    let mut out = io::BufWriter::new(outputs.create_file(&path)?);
    let drawn = memory.write_chrome_trace(rank, &mut out);
    let file = drawn.and_then(|()| out.into_inner().map_err(io::IntoInnerError::into_error));
    let file = file.map_err(|source| TraceError::from_io(path, "write", source))?;
    file.commit()
}
