//! A job's captures, read, joined across ranks and written as traces.

use super::files::Pair;
use super::host::HostTrace;
use super::kineto::KinetoTrace;
use super::summary::Summary;
use crate::trace::TraceError;
use crate::trace::file::Packer;
use crate::trace::write::NewFile;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

mod joined;
mod part;

use joined::Joined;
use part::Part;

/// What to convert.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only the step with this number, by its `ProfilerStep#N`.
    pub step: Option<u64>,
    /// How many ranks are read at once; 0 for as many as the machine has processors.
    pub threads: usize,
}

/// Converts the captures `pairs` of one job and writes rank r's trace to `path(r)`, packed as that
/// name's ending says. No file appears unless all ranks convert. `progress` is told how many ranks are
/// read, of how many.
///
/// # Errors
///
/// Files that cannot be read, that do not belong together, or whose ranks disagree about what they
/// communicate; traces that cannot be written.
pub fn convert(
    pairs: &[Pair],
    options: &Options,
    path: &dyn Fn(u32) -> PathBuf,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Summary, TraceError> {
    let mut job = Joined::new(Part::read_all(pairs, options, progress)?)?;
    let mut files = Vec::new();
    for i in 0..job.ranks.len() {
        let to = path(job.ranks[i].rank);
        let io = |source| TraceError::io(to.clone(), "write", source);
        let ending = to.extension().and_then(|ending| ending.to_str());
        let packer = Packer::new(NewFile::create(&to)?, ending.unwrap_or("")).map_err(io)?;
        let out = job.write(i, BufWriter::with_capacity(1 << 18, packer), &to)?;
        let packer = out.into_inner().map_err(|e| io(e.into_error()))?;
        files.push(packer.finish().map_err(io)?);
    }
    // Only now does anything appear.
    for file in files {
        file.commit()?;
    }
    Ok(job.summary)
}

/// A rank's number and its trace, as bytes.
pub type RankTrace = (u32, Vec<u8>);

/// Converts captures that are in memory: of each rank its number, the host trace and the Kineto trace.
///
/// # Errors
///
/// As [`convert`].
pub fn convert_bytes(
    captures: &[(u32, &[u8], &[u8])],
    options: &Options,
) -> Result<(Vec<RankTrace>, Summary), TraceError> {
    let parts = captures.iter().map(|&(number, host, kineto)| {
        let host = HostTrace::from_bytes(host)?;
        let kineto = KinetoTrace::from_bytes(kineto)?;
        Part::new(number, host, kineto, Path::new("capture"), options)
    });
    let mut job = Joined::new(parts.collect::<Result<_, _>>()?)?;
    let mut traces = Vec::new();
    for i in 0..job.ranks.len() {
        let trace = job.write(i, Vec::new(), Path::new("trace"))?;
        traces.push((job.ranks[i].rank, trace));
    }
    Ok((traces, job.summary))
}
