//! `chakram convert trace`: converts traces of any format to `.et` or JSON Lines.

use super::SummaryFormatArg;
use crate::load::SkipJobFileCheckArg;
use crate::terminal;
use crate::traces::print_other_traces_note;
use chakram_jobs::{
    declared_groups, list_stale_traces, merge_job_file_declarations,
    update_trace_digest_in_job_file, write_job_file,
};
use chakram_trace::files::{
    CompleteUncommittedFileHandle, OutputsAndProtectedInputs, join_prefix_middle_and_ending,
};
use chakram_trace::format::file::{
    DecompressedStream, DecompressedTraceFile, FoundTraces, MaybeCompressedWriter,
    decompress_as_far_as_possible, read_bytes_within_memory_limit,
};
use chakram_trace::format::job::JobFileRankEntry;
use chakram_trace::format::salvage::{self, SalvageReport, SalvageSchemaAndDanglingOptions};
use chakram_trace::format::source::TraceRecordReader;
use chakram_trace::format::text::{JsonLineWriter, JsonTraceFormat};
use chakram_trace::format::trace_format::TraceFormat;
use chakram_trace::format::wire::{FrameCursor, RawRecord};
use chakram_trace::format::write::LengthPrefixedRecordWriter;
use chakram_trace::format::{SchemaGeneration, TraceError};
use clap::{Args, ValueEnum};
use std::error::Error;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod plan;
mod summary;

use plan::{ConvertPlan, ConvertTask, OutputTraceForm};
use summary::TraceConversionResult;

/// Convert traces of any format to .et, or to JSON Lines and back
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram convert trace job.0.et -o job.0.jsonl        text, one node per line, lossless
  chakram convert trace job.0.jsonl -o job.0.et        and back, byte for byte
  chakram convert trace old/ -o new/job.et             a folder of traces of 2023: new/job.0.et, …
  chakram convert trace pasted.json -o job.0.et        chakra_jsonizer's output, workload_graph, …
  chakram convert trace cut.0.et.gz -o whole.0.et --salvage
  chakram convert trace job.0.et.zst -o - --to jsonl | grep COMM_COLL | head

Formats are recognised by their contents: .et of any generation since 0.0.1, JSON Lines, protobuf JSON (objects in
sequence or in an array), objects with `workload_graph` or `nodes`; each plain, gzip or zstd.")]
pub struct ConvertTraceArgs {
    /// Files, folders or prefixes of jobs; - is standard input
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,
    /// Write to this file; for several traces PREFIX.et means PREFIX.0.et, …; - is standard output
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Output format; needed if the name ends with neither .et nor .jsonl (with or without .gz or .zst)
    #[arg(long, value_enum, value_name = "FORM")]
    to: Option<OutputTraceFormArg>,
    /// Schema generation of binary inputs that do not declare it: 0.0.1, 0.0.2, 0.0.3a, 0.0.3b, 0.0.4
    #[arg(long, hide_short_help = true, value_name = "VERSION", value_parser = parse_schema_generation)]
    generation: Option<SchemaGeneration>,
    #[command(flatten)]
    verify: SkipJobFileCheckArg,
    /// Keep the intact records of damaged inputs, and report the losses
    #[arg(long)]
    salvage: bool,
    /// With --salvage, keep dependencies on missing nodes
    #[arg(long, hide_short_help = true, requires = "salvage")]
    keep_dangling: bool,
    /// Format of the summary
    #[arg(long, value_enum, default_value_t = SummaryFormatArg::Text, value_name = "FORMAT")]
    format: SummaryFormatArg,
}

/// Trace format of the output, as a command-line word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputTraceFormArg {
    /// Length-prefixed records, which every Chakra tool reads
    Et,
    /// JSON Lines
    Jsonl,
}

fn parse_schema_generation(text: &str) -> Result<SchemaGeneration, String> {
    SchemaGeneration::from_name(text).ok_or_else(|| {
        let names = SchemaGeneration::ALL.map(|(_, name)| name);
        format!("expected one of {}", names.join(", "))
    })
}

/// Runs the command. The summary goes to `out`; if a trace goes there, the summary goes to standard error instead.
///
/// # Errors
///
/// Fails if an input contains no trace or a damaged trace, or if output cannot be written.
pub fn run(args: &ConvertTraceArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let ConvertPlan {
        jobs,
        found,
        prefix,
    } = plan::plan_outputs(
        &args.inputs,
        &args.output,
        args.to,
        args.verify.verify_level_for_replay(),
    )?;
    let piped = jobs.iter().any(|job| job.output.is_none());
    let mut outputs = OutputsAndProtectedInputs::default();
    // Mark all inputs before the first output starts, so that no output replaces an input that is still to be read.
    let inputs = jobs.iter().filter_map(|job| job.input.as_ref());
    inputs.for_each(|file| outputs.register_input(&file.path));
    let mut converted = Vec::new();
    let mut all = Vec::new();
    for job in &jobs {
        let (one, written) = convert_one_trace(job, args, &mut outputs)?;
        converted.push(one);
        all.extend(written);
    }
    let single = jobs[0].output.as_ref().zip(all.first());
    match (prefix, single) {
        (Some(prefix), _) => commit_job(&prefix, &jobs, &all, &found, outputs)?,
        (None, Some((path, &written))) => {
            update_trace_digest_in_job_file(&mut outputs, path, written)?;
            outputs.commit_all()?;
        }
        _ => {}
    }
    let summary = match args.format {
        SummaryFormatArg::Text => summary::render_text(&converted),
        SummaryFormatArg::Json => summary::render_json(&converted),
    };
    if piped {
        terminal::print_or_capture_stderr_line(format_args!("{}", summary.trim_end()))?
    } else {
        out.write_all(summary.as_bytes())?
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives a job's files their final names, together with a new job file. If the input's job file already exists at the
/// output's path, it is kept, because the outputs are the same traces in another format.
fn commit_job(
    prefix: &Path,
    jobs: &[ConvertTask],
    all: &[CompleteUncommittedFileHandle],
    found: &FoundTraces,
    mut outputs: OutputsAndProtectedInputs,
) -> Result<(), Box<dyn Error>> {
    let path = join_prefix_middle_and_ending(prefix, "job", ".json");
    if found.jobs.contains_key(&path) {
        return Ok(outputs.commit_all()?);
    }
    let mut about = merge_job_file_declarations(found, declared_groups(found)?);
    for (job, written) in jobs.iter().zip(all) {
        let (Some(input), Some(output)) = (&job.input, &job.output) else {
            continue;
        };
        let file = output.file_name().unwrap_or_default();
        about.ranks.push(JobFileRankEntry {
            rank: input.rank,
            file: file.to_string_lossy().into_owned(),
            seal: written.seal,
        });
    }
    write_job_file(&mut outputs, &path, &about)?;
    outputs.commit_all()?;
    Ok(print_other_traces_note(
        prefix,
        &list_stale_traces(prefix, &about)?,
    )?)
}

/// The output has a temporary name until the caller renames all outputs together.
fn convert_one_trace(
    job: &ConvertTask,
    args: &ConvertTraceArgs,
    outputs: &mut OutputsAndProtectedInputs,
) -> Result<(TraceConversionResult, Option<CompleteUncommittedFileHandle>), Box<dyn Error>> {
    let input = job.input.as_ref().map(|file| file.path.as_path());
    let name = input.unwrap_or(Path::new("standard input"));
    let (converted, written) = match &job.output {
        None => {
            let out = BufWriter::with_capacity(1 << 16, terminal::open_binary_standard_output());
            let packer = MaybeCompressedWriter::new(out, job.packed)?;
            let to = Path::new("standard output");
            let written = convert_records(job, args, packer);
            let (packer, written) =
                written.map_err(|e| e.fill_missing_output_path(to).in_file(name))?;
            packer.finish()?.flush()?;
            (written, None)
        }
        Some(path) => {
            let io = |source| TraceError::from_io(path.clone(), "write", source);
            let file = outputs.create_file(path)?.with_digest();
            let file = BufWriter::with_capacity(1 << 16, file);
            let packer = MaybeCompressedWriter::new(file, job.packed).map_err(io)?;
            let written = convert_records(job, args, packer);
            let (packer, written) =
                written.map_err(|e| e.fill_missing_output_path(path).in_file(name))?;
            let file = packer.finish().map_err(io)?;
            let file = file.into_inner().map_err(|e| io(e.into_error()))?;
            (
                written,
                Some(outputs.close_file_and_queue_for_commit(file)?),
            )
        }
    };
    let converted = TraceConversionResult {
        input: name.to_owned(),
        output: job.output.clone(),
        ..converted
    };
    Ok((converted, written))
}

/// Writes the records of a task's input to `out`, converted to the task's format.
fn convert_records<W: Write>(
    job: &ConvertTask,
    args: &ConvertTraceArgs,
    out: W,
) -> Result<(W, TraceConversionResult), TraceError> {
    let mut sink = CountingConvertSink::new(job.to, out);
    if args.salvage {
        let (form, wrong, bytes, report) = salvage_records(job, args)?;
        let mut frames = FrameCursor::new(&bytes);
        while let Some(record) = frames.next_record()? {
            sink.write_record(record)?;
        }
        let converted = sink.result_without_file_names(form);
        let converted = TraceConversionResult {
            salvaged: Some((report, wrong)),
            ..converted
        };
        return Ok((sink.into_inner(), converted));
    }
    let stdin;
    let stream = match &job.input {
        Some(file) => {
            if let Some(seal) = &file.seal
                && let Ok(there) = file.path.metadata()
            {
                seal.check_length(file, there.len())?;
            }
            DecompressedStream::open_path(&file.path)?
        }
        None => {
            stdin = io::stdin().lock();
            let stream = DecompressedStream::from_reader(stdin);
            stream.map_err(|source| TraceError::from_io("", "read", source))?
        }
    };
    let mut source = TraceRecordReader::new(stream, args.generation)?;
    // Only formats that are read record by record can be salvaged.
    let by_record = matches!(
        source.detected_format(),
        TraceFormat::Et(_) | TraceFormat::Text(JsonTraceFormat::JsonLines)
    );
    let hint = |error: TraceError| {
        if by_record {
            error.with_cause("--salvage keeps the intact records")
        } else {
            error
        }
    };
    while let Some(record) = source.next_record().map_err(hint)? {
        sink.write_record(record)?;
    }
    // Check the number of records only at the end, because the length of a stream is not known
    // earlier.
    if sink.records == 0 {
        return Err(TraceError::empty_file());
    }
    if sink.records == sink.blank {
        return Err(TraceError::all_zero_file(sink.blank));
    }
    let converted = sink.result_without_file_names(source.detected_format());
    Ok((sink.into_inner(), converted))
}

/// Salvages the intact records from a task's input. Returns the input's format, any decompression error, the new file's
/// contents, and a report of the losses.
fn salvage_records(
    job: &ConvertTask,
    args: &ConvertTraceArgs,
) -> Result<(TraceFormat, Option<String>, Vec<u8>, SalvageReport), TraceError> {
    let held;
    let read;
    let packed = match &job.input {
        Some(file) => {
            // Open the file without decompressing it, so that the intact beginning of a damaged stream can be
            // decompressed here.
            held = DecompressedTraceFile::open_without_decompressing(&file.path)?;
            held.as_slice()
        }
        None => {
            let all = read_bytes_within_memory_limit(io::stdin().lock(), 0);
            read = all.map_err(|source| TraceError::from_io("", "read", source))?;
            &read
        }
    };
    let unpacked = decompress_as_far_as_possible(packed);
    let (contents, wrong) = match &unpacked {
        Some((bytes, wrong)) => (&bytes[..], wrong.as_ref().map(ToString::to_string)),
        None => (packed, None),
    };
    let options = SalvageSchemaAndDanglingOptions {
        generation: args.generation,
        keep_dangling: args.keep_dangling,
    };
    let (bytes, report) = salvage::salvage_trace(contents, options)?;
    Ok((report.detected_format(), wrong, bytes, report))
}

/// Writes the output records and counts them.
struct CountingConvertSink<W: Write> {
    kind: EtOrJsonLineWriter<W>,
    records: usize,
    /// Number of nodes whose records have zero bytes.
    empty: usize,
    /// Number of records with zero bytes; the metadata record counts too if it has zero bytes.
    blank: usize,
}

enum EtOrJsonLineWriter<W: Write> {
    Et(LengthPrefixedRecordWriter<W>),
    Lines(JsonLineWriter<W>),
}

impl<W: Write> CountingConvertSink<W> {
    fn new(to: OutputTraceForm, out: W) -> Self {
        Self {
            kind: match to {
                OutputTraceForm::Et => EtOrJsonLineWriter::Et(LengthPrefixedRecordWriter::new(out)),
                OutputTraceForm::JsonLines => EtOrJsonLineWriter::Lines(JsonLineWriter::new(out)),
            },
            records: 0,
            empty: 0,
            blank: 0,
        }
    }

    fn write_record(&mut self, record: RawRecord<'_>) -> Result<(), TraceError> {
        // The first record is metadata, not a node.
        self.empty += usize::from(record.bytes.is_empty() && self.records > 0);
        self.blank += usize::from(record.bytes.is_empty());
        self.records += 1;
        match &mut self.kind {
            EtOrJsonLineWriter::Et(frames) => frames.write_record(record.bytes),
            EtOrJsonLineWriter::Lines(lines) => lines.write_record(record),
        }
    }

    /// Returns the conversion's result without file names, which the caller adds.
    fn result_without_file_names(&self, form: TraceFormat) -> TraceConversionResult {
        TraceConversionResult {
            input: PathBuf::new(),
            output: None,
            form,
            nodes: self.records.saturating_sub(1),
            empty: self.empty,
            salvaged: None,
        }
    }

    fn into_inner(self) -> W {
        match self.kind {
            EtOrJsonLineWriter::Et(frames) => frames.into_inner(),
            EtOrJsonLineWriter::Lines(lines) => lines.into_inner(),
        }
    }
}
