//! Reports of Nsight Systems that were exported to SQLite, to one trace for each process that uses devices.
//!
//! An export is a table for each kind of event, whose rows are read one at a time; a process becomes the events of a host and
//! its devices that a Kineto trace is read into, so that all from there on is what captures of PyTorch have: launches by
//! correlation, streams, communication and its matching across ranks, clocks, waits and what is unknown.
//!
//! - `sqlite`: pages, rows and values of a file;
//! - `report`: events of processes;
//! - `nccl`: sizes and communicators, as NCCL's ranges say them.

mod nccl;
mod report;
mod sqlite;
#[cfg(test)]
mod tests;

use crate::folder::{files_of, listed};
use crate::pytorch::summary::ConversionSummary;
use crate::pytorch::{ConvertOptions, ProcessGroup, convert_kineto};
use chakram_base::ids::MAX_NPUS;
use chakram_trace::files::{OutputHandle, OutputSet};
use chakram_trace::format::TraceError;
use chakram_trace::format::file::DecompressedStream;
use nccl::NcclCall;
use report::ProcessCapture;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Whether a file that begins with `head` is one of SQLite.
pub fn begins(head: &[u8]) -> bool {
    head.starts_with(sqlite::MAGIC)
}

/// Whether the file at `path` is one of SQLite, of Nsight Systems or not.
pub fn is_database(path: &Path) -> bool {
    let mut head = Vec::new();
    let stream = DecompressedStream::open(path);
    let read = stream.map(|stream| stream.take(64).read_to_end(&mut head));
    read.is_ok() && begins(&head)
}

/// Whether the database at `path` has tables that Nsight Systems exports.
pub fn is_export(path: &Path) -> bool {
    report::is_export(path)
}

/// Order of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RankOrder {
    /// By their ranks in NCCL's largest communicator.
    Nccl,
    /// By file, then by device, then by process.
    Devices,
}

/// What exports are of, beside what every conversion says.
#[derive(Clone, Debug, Serialize)]
pub struct NsysSummary {
    /// The conversion.
    #[serde(flatten)]
    pub conversion: ConversionSummary,
    /// Order of the ranks.
    pub order: RankOrder,
    /// The process of each rank: its file, process id and devices.
    pub processes: Vec<(PathBuf, u64, Vec<i32>)>,
    /// Number of kernels of which NCCL's ranges say what they communicate.
    pub stated: u64,
}

/// A conversion with the traces that were written, by rank.
pub type NsysConversion = (NsysSummary, Vec<(u32, OutputHandle)>);

/// Returns the exports among `paths`: files as they are, and those in folders by name.
///
/// # Errors
///
/// A folder that cannot be listed, or has none.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, TraceError> {
    let expected = (
        "an export of Nsight Systems",
        "export its reports: nsys export -t sqlite REPORT.nsys-rep",
    );
    files_of(paths, expected, |folder| {
        let mut own = listed(folder)?;
        own.retain(|path| path.is_file() && is_export(path));
        Ok(own)
    })
}

/// Converts the exports at `paths`, of one job, and hands rank r's trace to `files` as `path(r)`.
///
/// # Errors
///
/// Files that are no exports or say nothing of devices, ranks that disagree about what they communicate, and traces that
/// cannot be written.
pub fn convert(
    paths: &[PathBuf],
    options: &ConvertOptions,
    path: &dyn Fn(u32) -> PathBuf,
    files: &mut OutputSet,
) -> Result<NsysConversion, TraceError> {
    let mut processes = Vec::new();
    for path in paths {
        processes.extend(report::read(path, &options.comm_kernels)?);
    }
    let (order, largest) = order(&mut processes);
    let stated = state_calls(&mut processes, largest.as_deref());
    let about = processes.iter().map(|process| {
        let devices = process.devices.iter().copied().collect();
        (process.file.clone(), process.pid, devices)
    });
    let about = about.collect();
    let traces = processes.into_iter().map(ProcessCapture::finish);
    let (conversion, written) = convert_kineto(traces.collect(), options, path, files)?;
    let summary = NsysSummary {
        conversion,
        order,
        processes: about,
        stated,
    };
    Ok((summary, written))
}

/// Puts processes in the order of their ranks and numbers them: by NCCL's largest communicator, if that has all of them, which
/// is returned too, or else by file, device and process.
fn order(processes: &mut Vec<ProcessCapture>) -> (RankOrder, Option<String>) {
    let all = processes.iter().flat_map(|process| &process.members);
    let largest = all.max_by_key(|(name, _, ranks)| (*ranks, std::cmp::Reverse(name.clone())));
    let largest = largest.map(|(name, _, ranks)| (name.clone(), *ranks));
    let rank_in = |process: &ProcessCapture| {
        let (name, _) = largest.as_ref()?;
        let own = process.members.iter().find(|(of, ..)| of == name);
        own.map(|(_, rank, _)| *rank)
    };
    let ranks: Option<Vec<u32>> = processes.iter().map(rank_in).collect();
    let world = largest.as_ref().map_or(0, |(_, ranks)| *ranks);
    let fits = |ranks: &Vec<u32>| {
        let distinct: BTreeSet<u32> = ranks.iter().copied().collect();
        distinct.len() == ranks.len() && ranks.iter().all(|rank| *rank < world)
    };
    if let Some(ranks) = ranks.filter(fits) {
        for (process, rank) in processes.iter_mut().zip(ranks) {
            process.trace.rank = Some(rank);
            process.trace.world_size = Some(world);
        }
        processes.sort_by_key(|process| process.trace.rank);
        return (RankOrder::Nccl, largest.map(|(name, _)| name));
    }
    // Files come in the order in which they were given.
    let mut files: Vec<PathBuf> = Vec::new();
    for process in &*processes {
        if !files.contains(&process.file) {
            files.push(process.file.clone());
        }
    }
    processes.sort_by_key(|process| {
        let file = files.iter().position(|file| *file == process.file);
        (file, process.devices.first().copied(), process.pid)
    });
    for (rank, process) in (0..).zip(&mut *processes) {
        process.trace.rank = Some(rank);
    }
    (RankOrder::Devices, None)
}

/// Says of kernels what NCCL's ranges say of their calls, and of communicators who their members are; returns the number of
/// kernels. Members of the communicator `all` have their ranks in it.
fn state_calls(processes: &mut [ProcessCapture], all: Option<&str>) -> u64 {
    // Members of each communicator: rank in it, and rank of the job.
    let mut communicators: BTreeMap<String, (u32, BTreeMap<u32, u32>)> = BTreeMap::new();
    for process in &*processes {
        let own = process.trace.rank.unwrap_or(0);
        for (name, rank, ranks) in &process.members {
            let known = communicators.entry(name.clone()).or_default();
            known.0 = *ranks;
            known.1.insert(*rank, own);
        }
    }
    let whole = |name: &str| {
        let (ranks, members) = communicators.get(name)?;
        if Some(name) == all && *ranks <= MAX_NPUS {
            return Some((0..*ranks).collect());
        }
        let list: Vec<u32> = (0..*ranks)
            .map_while(|rank| members.get(&rank).copied())
            .collect();
        (list.len() as u32 == *ranks).then_some(list)
    };
    let calls: Vec<BTreeMap<u32, NcclCall>> = processes
        .iter_mut()
        .map(|process| nccl::calls_of_kernels(std::mem::take(&mut process.moments)))
        .collect();
    let named = calls.iter().flat_map(BTreeMap::values);
    let named: BTreeSet<&String> = named
        .filter_map(|call| call.communicator.as_ref())
        .collect();
    let is_only = named.len() <= 1 && communicators.len() <= 1;
    let mut stated = 0;
    for (process, calls) in processes.iter_mut().zip(&calls) {
        let own = process.members.iter().map(|(name, ..)| name);
        let own: BTreeSet<&String> = own.collect();
        for name in own {
            if let Some(ranks) = whole(name) {
                process.trace.groups.push(ProcessGroup {
                    name: name.clone(),
                    size: Some(ranks.len() as u32),
                    ranks,
                    ..ProcessGroup::default()
                });
            }
        }
        for (event, call) in calls {
            let name = call.communicator.as_deref();
            let members = name.and_then(whole);
            let peer = match (&members, call.root) {
                (Some(members), Some(peer)) => members.get(peer as usize).copied(),
                (_, peer) => peer,
            };
            let mut arguments = call.arguments(peer);
            if members.is_none() {
                // Of communicators whose members are unknown the size may be; of a job's only one that is not needed.
                let size = name
                    .and_then(|name| communicators.get(name))
                    .map(|(ranks, _)| *ranks);
                if size.is_some() || is_only {
                    arguments.retain(|(key, _)| key != "Process Group Name");
                }
                let size = size.or((name.is_some() && !is_only).then_some(0));
                arguments.extend(size.map(|size| ("Group size".to_owned(), size.to_string())));
            }
            process.state(*event, arguments);
            stated += 1;
        }
    }
    stated
}
