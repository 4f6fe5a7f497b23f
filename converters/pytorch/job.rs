//! Reads the captures of a job, joins them across ranks, and writes traces.

use super::calls::UserCommKernelRules;
use super::files::RankCaptureFiles;
use super::host::HostTrace;
use super::kineto::KinetoTrace;
use super::summary::ConversionSummary;
use chakram_base::interrupt;
use chakram_trace::files::{CompleteUncommittedFileHandle, OutputsAndProtectedInputs};
use chakram_trace::format::TraceError;
use chakram_trace::format::file::MaybeCompressedWriter;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

mod job_capture;
mod rank_capture;

use job_capture::MatchedJobCapture;
use rank_capture::AnalysedRankCapture;

/// Options of a conversion.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// Number N of the only step to convert, whose range is called `ProfilerStep#N`, or `None` to convert all steps.
    pub step: Option<u64>,
    /// Number of ranks in the job. If set, ranks that have no capture are inferred.
    pub infer_ranks: Option<u32>,
    /// Number of ranks to read in parallel; 0 means one per processor.
    pub threads: usize,
    /// Names of further communication kernels, besides the built-in names of NCCL and similar libraries.
    pub comm_kernels: UserCommKernelRules,
}

/// Converts the captures `pairs` of one job. Creates the trace of rank r in `files` at `path(r)`, compressed according
/// to the file extension. Returns the summary and the written files, which appear when `files` is committed. Calls
/// `progress` with the number of ranks read so far and the total.
///
/// # Errors
///
/// Fails if files cannot be read or do not belong together, if ranks disagree about their communication, or if a
/// trace cannot be written.
pub fn convert_capture_pairs(
    pairs: &[RankCaptureFiles],
    options: &ConvertOptions,
    path: &dyn Fn(u32) -> PathBuf,
    files: &mut OutputsAndProtectedInputs,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<(ConversionSummary, Vec<(u32, CompleteUncommittedFileHandle)>), TraceError> {
    let captures = AnalysedRankCapture::read_all(pairs, options, progress)?;
    match_captures_and_write_traces(captures, options, path, files)
}

/// Converts the device traces of one job, as [`convert_capture_pairs`] does. Each trace comes with the file from which
/// it was read, and must state its rank.
///
/// # Errors
///
/// Fails for the same reasons as [`convert_capture_pairs`].
pub(crate) fn convert_kineto(
    traces: Vec<(PathBuf, KinetoTrace)>,
    options: &ConvertOptions,
    path: &dyn Fn(u32) -> PathBuf,
    files: &mut OutputsAndProtectedInputs,
) -> Result<(ConversionSummary, Vec<(u32, CompleteUncommittedFileHandle)>), TraceError> {
    let captures = traces
        .into_iter()
        .map(|(file, trace)| AnalysedRankCapture::new(0, None, Some(trace), &file, options));
    match_captures_and_write_traces(captures.collect::<Result<_, _>>()?, options, path, files)
}

/// Matches the captures of ranks and writes their traces.
fn match_captures_and_write_traces(
    captures: Vec<AnalysedRankCapture>,
    options: &ConvertOptions,
    path: &dyn Fn(u32) -> PathBuf,
    files: &mut OutputsAndProtectedInputs,
) -> Result<(ConversionSummary, Vec<(u32, CompleteUncommittedFileHandle)>), TraceError> {
    let mut job = MatchedJobCapture::new(captures, options.infer_ranks)?;
    let mut written = Vec::new();
    for i in 0..job.models.len() {
        interrupt::fail_if_stopped_or_out_of_memory()?;
        let to = path(job.models[i].number);
        let io = |source| TraceError::from_io(to.clone(), "write", source);
        let ending = to.extension().and_then(|ending| ending.to_str());
        let file = files.create_file(&to)?.with_digest();
        let packer = MaybeCompressedWriter::new(file, ending.unwrap_or("")).map_err(io)?;
        let out = job.write_rank(i, BufWriter::with_capacity(1 << 18, packer), &to)?;
        let packer = out.into_inner().map_err(|e| io(e.into_error()))?;
        let file = packer.finish().map_err(io)?;
        written.push((
            job.models[i].number,
            files.close_file_and_queue_for_commit(file)?,
        ));
    }
    Ok((job.summary, written))
}

/// A rank's number and its trace, as bytes.
pub type RankAndTraceBytes = (u32, Vec<u8>);

/// A rank's number, its host trace and its Kineto trace; a missing trace is `None`.
pub type RankHostAndKineto<'a> = (u32, Option<&'a [u8]>, Option<&'a [u8]>);

/// Converts captures that are in memory.
///
/// # Errors
///
/// Fails for the same reasons as [`convert_capture_pairs`].
pub fn convert_in_memory_captures(
    captures: &[RankHostAndKineto<'_>],
    options: &ConvertOptions,
) -> Result<(Vec<RankAndTraceBytes>, ConversionSummary), TraceError> {
    let parts = captures.iter().map(|&(number, host, kineto)| {
        let host = host.map(HostTrace::from_bytes).transpose()?;
        let kineto = kineto.map(KinetoTrace::from_bytes).transpose()?;
        AnalysedRankCapture::new(number, host, kineto, Path::new("capture"), options)
    });
    let mut job = MatchedJobCapture::new(parts.collect::<Result<_, _>>()?, options.infer_ranks)?;
    let mut traces = Vec::new();
    for i in 0..job.models.len() {
        let trace = job.write_rank(i, Vec::new(), Path::new("trace"))?;
        traces.push((job.models[i].number, trace));
    }
    Ok((traces, job.summary))
}
