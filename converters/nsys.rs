//! Converts Nsight Systems reports that were exported to SQLite. Each process that uses devices becomes one trace.
//!
//! An export has one table per kind of event. The converter reads the tables row by row, and turns each process into
//! host and device events like a Kineto trace's. The PyTorch converter does the rest: it links launches to kernels by
//! correlation id, matches communication across ranks, aligns clocks, and infers waits.
//!
//! - `sqlite` reads the pages, rows and values of a file;
//! - `report` reads the events of each process;
//! - `nccl` reads sizes and communicators from the ranges that NCCL writes.

mod nccl;
mod report;
mod sqlite;
#[cfg(test)]
mod tests;

use crate::folder::{expand_folders, list_folder};
use crate::pytorch::summary::ConversionSummary;
use crate::pytorch::{ConvertOptions, ProcessGroup, convert_kineto};
use chakram_base::ids::MAX_NPUS;
use chakram_trace::files::{CompleteUncommittedFileHandle, OutputsAndProtectedInputs};
use chakram_trace::format::TraceError;
use chakram_trace::format::file::DecompressedStream;
use nccl::NcclCall;
use report::ProcessCapture;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Returns true if a file that begins with `head` is an SQLite database.
pub fn begins_as_sqlite(head: &[u8]) -> bool {
    head.starts_with(sqlite::MAGIC)
}

/// Returns true if the file at `path` is an SQLite database, whichever program wrote it.
pub fn is_sqlite_database(path: &Path) -> bool {
    let mut head = Vec::new();
    let stream = DecompressedStream::open_path(path);
    let read = stream.map(|stream| stream.take(64).read_to_end(&mut head));
    read.is_ok() && begins_as_sqlite(&head)
}

/// Returns true if the database at `path` has the tables of an Nsight Systems export.
pub fn is_export(path: &Path) -> bool {
    report::is_export(path)
}

/// Source of the ranks' numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NcclOrDeviceRankSource {
    /// A process's rank is its rank in NCCL's largest communicator.
    Nccl,
    /// Processes are numbered in order of file, then device, then process id.
    Devices,
}

/// Conversion summary, including facts that only Nsight Systems exports provide.
#[derive(Clone, Debug, Serialize)]
pub struct NsysConversionSummary {
    /// Summary in the form that all conversions share.
    #[serde(flatten)]
    pub conversion: ConversionSummary,
    /// Source of the ranks' numbers.
    pub order: NcclOrDeviceRankSource,
    /// The process of each rank: file, process id and devices.
    pub processes: Vec<(PathBuf, u64, Vec<i32>)>,
    /// Number of kernels whose communication NCCL's ranges describe.
    pub stated: u64,
}

/// A conversion's summary and the traces that it wrote, by rank.
pub type NsysSummaryAndWrittenTraces = (
    NsysConversionSummary,
    Vec<(u32, CompleteUncommittedFileHandle)>,
);

/// Returns the exports in `paths`. Files keep the given order; a folder's files are sorted by name.
///
/// # Errors
///
/// Fails if a folder cannot be listed or contains no export.
pub fn find_exports(paths: &[PathBuf]) -> Result<Vec<PathBuf>, TraceError> {
    let expected = (
        "an export of Nsight Systems",
        "export its reports: nsys export -t sqlite REPORT.nsys-rep",
    );
    expand_folders(paths, expected, |folder| {
        let mut own = list_folder(folder)?;
        own.retain(|path| path.is_file() && is_export(path));
        Ok(own)
    })
}

/// Converts the exports at `paths`, which belong to one job. Creates rank r's trace in `files` as `path(r)`.
///
/// # Errors
///
/// Fails if a file is not an export or has no device events, if ranks disagree about their communication, or if a
/// trace cannot be written.
pub fn convert_exports(
    paths: &[PathBuf],
    options: &ConvertOptions,
    path: &dyn Fn(u32) -> PathBuf,
    files: &mut OutputsAndProtectedInputs,
) -> Result<NsysSummaryAndWrittenTraces, TraceError> {
    let mut processes = Vec::new();
    for path in paths {
        processes.extend(report::read_process_captures(path, &options.comm_kernels)?);
    }
    let (order, largest) = sort_and_number_processes_by_rank(&mut processes);
    let stated = add_nccl_arguments_to_kernels(&mut processes, largest.as_deref());
    let about = processes.iter().map(|process| {
        let devices = process.devices.iter().copied().collect();
        (process.file.clone(), process.pid, devices)
    });
    let about = about.collect();
    let traces = processes.into_iter().map(ProcessCapture::finish_trace);
    let (conversion, written) = convert_kineto(traces.collect(), options, path, files)?;
    let summary = NsysConversionSummary {
        conversion,
        order,
        processes: about,
        stated,
    };
    Ok((summary, written))
}

/// Sorts processes by rank, and numbers them. If NCCL's largest communicator contains all processes, it determines the
/// ranks, and its name is returned. Otherwise the processes are sorted by file, device and process id.
fn sort_and_number_processes_by_rank(
    processes: &mut Vec<ProcessCapture>,
) -> (NcclOrDeviceRankSource, Option<String>) {
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
        return (NcclOrDeviceRankSource::Nccl, largest.map(|(name, _)| name));
    }
    // Files keep the order in which the user listed them.
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
    (NcclOrDeviceRankSource::Devices, None)
}

/// Adds the members of communicators, and gives kernels the call arguments from NCCL's ranges. Returns the number of
/// kernels that got arguments. If `all` names a communicator of all processes, its ranks are the job's ranks.
fn add_nccl_arguments_to_kernels(processes: &mut [ProcessCapture], all: Option<&str>) -> u64 {
    // Maps each communicator's name to its number of members and to the job rank of each known member.
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
        .map(|process| nccl::map_kernels_to_nccl_calls(std::mem::take(&mut process.moments)))
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
            let mut arguments = call.list_arguments_as_in_pytorch(peer);
            if members.is_none() {
                // The size of a communicator may be known even if its members are not. If the job
                // has only one communicator, the size is not needed.
                let size = name
                    .and_then(|name| communicators.get(name))
                    .map(|(ranks, _)| *ranks);
                if size.is_some() || is_only {
                    arguments.retain(|(key, _)| key != "Process Group Name");
                }
                let size = size.or((name.is_some() && !is_only).then_some(0));
                arguments.extend(size.map(|size| ("Group size".to_owned(), size.to_string())));
            }
            process.add_arguments_to_event(*event, arguments);
            stated += 1;
        }
    }
    stated
}
