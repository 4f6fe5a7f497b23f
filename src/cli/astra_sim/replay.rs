//! Replay on the chosen network, with the observers that the output needs.

use super::AstraSimArgs;
use super::job::Job;
use super::render::{self, Row};
use super::transcript::{self, Transcript};
use crate::astra_sim::{
    self, Aware, Collectives, Inputs, Links, Memory, NetworkModel, Ported, Quirk, Ran, Unaware,
};
use crate::cli::output::{Destination, Drawing, Format};
use crate::cli::terminal;
use crate::engine::{Options, Outcome, Prepared, ReplayError};
use crate::files::{Outputs, numbered};
use crate::graph::Kind;
use crate::network::Network;
use crate::report::{self, Busy, Observer, Report, Spans};
use crate::trace::TraceError;
use crate::workload::Workload;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

/// Replays `job` and prints the requested output.
///
/// Where the replay deadlocks, text and CSV still have the ranks that finished.
pub fn run(args: &AstraSimArgs, job: Job, to: &mut Destination<'_>) -> Result<(), Box<dyn Error>> {
    let (inputs, workload, mut collectives) = (&job.inputs, &job.workload, job.collectives);
    let machine = astra_sim::machine(inputs, job.lanes);
    let prepared = Prepared::in_manner(workload, &machine, &options(args), &collectives);
    let prepared = prepared.map_err(ReplayError::from)?;
    for note in &job.notes {
        terminal::note(format_args!("{note}"))?;
    }
    let instances = workload.instances();
    let odd = instances.iter().zip(&job.work);
    // Most graphs need no look-up per node, which `None` says.
    let odd = odd.map(|(instance, work)| work.stand_ins.then(|| workload.graph(instance)));
    let odd: Vec<_> = odd.collect();
    let mut busy = Busy::new(workload, |instance, node| match odd[instance as usize] {
        None => Kind::Compute,
        Some(graph) => astra_sim::counts_as(graph, node),
    });
    let mut spans = job.tensors.is_some().then(|| Spans::new(&prepared));
    let path = args.timeline.as_deref();
    let timeline = Drawing::start(path, &prepared, to.outputs())?;
    let traces = job.types.is_some();
    let mut transcript = args
        .transcribes()
        .then(|| Transcript::new(workload, traces));
    let watched = (&mut busy, (spans.as_mut(), (transcript.as_mut(), timeline)));
    let full = args.format == Format::Json;
    let result = replay(&prepared, inputs, &mut collectives, full, watched);
    let beyond = collectives.beyond().map(|beyond| beyond.to_string());
    if let Some(beyond) = &beyond {
        terminal::note(format_args!("{beyond}"))?;
    }
    let result = result.map(|(_, report, (_, (_, (_, timeline))))| (report, timeline));
    let mut rows = Vec::new();
    for (instance, time) in busy.times().enumerate() {
        let row = Row::new(instances[instance].rank.0, time, job.work[instance]);
        rows.extend(row.map(|row| (instance, row)));
    }
    if let (Some(tensors), Some(spans)) = (&job.tensors, &spans) {
        for (instance, row) in &mut rows {
            let ran = ran(workload, spans, *instance);
            let memory = Memory::follow(&tensors[*instance], ran);
            say_early(&memory, row.rank)?;
            draw(&memory, row.rank, &inputs.system.memory_trace, to.outputs())?;
            row.peak_memory = Some(memory.peak());
        }
    }
    if let Some(transcript) = &transcript {
        let types = job.types.as_deref().unwrap_or_default();
        let lines = transcript::lines(transcript, inputs, &rows, types, transcript::clock());
        to.write(&lines.printed)?;
        let folder = args.logging_folder.as_deref();
        let log = folder.unwrap_or(Path::new("log")).join("log.log");
        let mut file = to.outputs().create(&log)?;
        file.write_all(terminal::plain(&lines.logged).as_bytes())?;
        file.commit()?;
        let (_, timeline) = result?;
        Drawing::finish(timeline, path)?;
        return Ok(());
    }
    // The rows are printed although the replay may have failed: `result` is checked behind them.
    let rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
    match args.format {
        Format::Text => to.write(&render::text(&rows))?,
        Format::Csv => to.write(&render::csv(&rows))?,
        Format::Json => {}
    }
    let (report, timeline) = result?;
    Drawing::finish(timeline, path)?;
    if let Some(report) = report {
        let notes = job.notes.iter().map(ToString::to_string);
        let notes: Vec<String> = notes.chain(beyond).collect();
        let document = render::json(&report, &rows, inputs, args.options(), &notes, &job.files);
        to.write(&terminal::json(&document))?;
    }
    Ok(())
}

/// Returns the engine's options for `args`.
pub fn options(args: &AstraSimArgs) -> Options {
    Options {
        // Closed forms give the time at which members end, and not their order at an instant.
        stepwise: args.stepwise || args.transcribes(),
        lonely_messages: args.lenient,
        ..Options::default()
    }
}

/// Replays `job` and returns its outcome alone.
pub fn outcome(args: &AstraSimArgs, job: Job) -> Result<Outcome, ReplayError> {
    let (inputs, mut collectives) = (&job.inputs, job.collectives);
    let machine = astra_sim::machine(inputs, job.lanes);
    let prepared = Prepared::in_manner(&job.workload, &machine, &options(args), &collectives);
    let (outcome, _, ()) = replay(&prepared?, inputs, &mut collectives, false, ())?;
    Ok(outcome)
}

/// Outcome of a replay, a report if one was requested, and the observer.
type Replayed<O> = Result<(Outcome, Option<Report>, O), ReplayError>;

/// Replays `prepared` over the network that `inputs` choose, with a report if `full`.
fn replay<O: Observer>(
    prepared: &Prepared<'_>,
    inputs: &Inputs,
    collectives: &mut Collectives,
    full: bool,
    observer: O,
) -> Replayed<O> {
    let (file, quirks) = (&inputs.network, inputs.quirks);
    let shares = !quirks.has(Quirk::FreePorts);
    let cuts_through = !quirks.has(Quirk::StoreAndForward);
    match inputs.model {
        NetworkModel::Unaware if shares => {
            let network = Ported::new(file, quirks);
            replay_over(network, prepared, collectives, full, observer)
        }
        NetworkModel::Unaware => {
            let network = Unaware::new(file, quirks);
            replay_over(network, prepared, collectives, full, observer)
        }
        NetworkModel::Aware if cuts_through => {
            let network = Links::new(file, quirks);
            replay_over(network, prepared, collectives, full, observer)
        }
        NetworkModel::Aware => {
            let network = Aware::new(file, quirks);
            replay_over(network, prepared, collectives, full, observer)
        }
    }
}

fn replay_over<N: Network, O: Observer>(
    network: N,
    prepared: &Prepared<'_>,
    collectives: &mut Collectives,
    full: bool,
    mut observer: O,
) -> Replayed<O> {
    match full {
        true => {
            let replayed = report::replay_in(prepared, observer, network, collectives);
            replayed.map(|(report, observer)| (report.outcome.clone(), Some(report), observer))
        }
        false => {
            let outcome =
                prepared.run_in::<dyn Observer, _, _>(&mut observer, network, collectives)?;
            Ok((outcome, None, observer))
        }
    }
}

/// Returns the nodes of an instance in the order in which they completed.
fn ran<'a>(
    workload: &'a Workload,
    spans: &'a Spans,
    instance: usize,
) -> impl Iterator<Item = Ran<'a>> {
    let graph = workload.graph(&workload.instances()[instance]);
    spans.of(instance).iter().map(|span| Ran {
        id: graph.id(span.node),
        name: graph.name(span.node),
        start: span.start,
        end: span.end,
    })
}

fn say_early(memory: &Memory<'_>, rank: u32) -> io::Result<()> {
    let mut early = memory.early();
    let count = early.len();
    match early.next() {
        None => Ok(()),
        Some(first) => terminal::note(format_args!(
            "rank {rank}: {count} tensors are read before they are written, the first of them \
             `{}`: they count as there from the start, where the original aborts",
            crate::trace::shown(first)
        )),
    }
}

/// Draws the memory of a rank into a file of its own.
fn draw(
    memory: &Memory<'_>,
    rank: u32,
    name: &str,
    outputs: &mut Outputs,
) -> Result<(), TraceError> {
    let path = numbered(Path::new(name), rank, ".json");
    let mut out = io::BufWriter::new(outputs.create(&path)?);
    let drawn = memory.draw(rank, &mut out);
    let file = drawn.and_then(|()| out.into_inner().map_err(io::IntoInnerError::into_error));
    let file = file.map_err(|source| TraceError::io(path, "write", source))?;
    file.commit()
}
