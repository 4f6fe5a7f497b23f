//! Separates the files of several ranks by process, if the file names contain equal numbers or no
//! numbers.

use super::held::MemoryOnlyInputFiles;
use super::{FoundCaptureFile, HostAndKinetoFilesByRank, RankCaptureFiles, is_standard_input_path};
use chakram_trace::format::TraceError;
use std::collections::BTreeMap;

/// Removes files from `ranks` if their names do not distinguish ranks, because several files of one
/// kind have the same number or no number. Pairs the removed files by process, and returns the
/// pairs sorted by process. The captures of these pairs must state their ranks. Removes nothing if
/// a process has two files of one kind, or if a file contains no process id.
pub(super) fn take_files_without_distinct_rank(
    ranks: &mut HostAndKinetoFilesByRank,
    held: &MemoryOnlyInputFiles,
) -> Result<Vec<RankCaptureFiles>, TraceError> {
    // If there is one host trace and several Kineto traces, use the Kineto trace of the same process, and leave the
    // others aside.
    let several = |[hosts, kinetos]: &[Vec<FoundCaptureFile>; 2]| {
        hosts.len() > 1 || hosts.is_empty() && kinetos.len() > 1
    };
    if !ranks.values().any(several) {
        return Ok(Vec::new());
    }
    let of =
        |rank: &Option<u32>, files: &[Vec<FoundCaptureFile>; 2]| rank.is_none() || several(files);
    let mut processes: BTreeMap<u64, [Option<&FoundCaptureFile>; 2]> = BTreeMap::new();
    for (_, files) in ranks.iter().filter(|(rank, files)| of(rank, files)) {
        for (kind, file) in (0..)
            .zip(files)
            .flat_map(|(kind, files)| files.iter().map(move |file| (kind, file)))
        {
            if is_standard_input_path(&file.path) {
                return Ok(Vec::new());
            }
            let slot = match held.read_process_id(&file.path)? {
                Some(pid) => &mut processes.entry(pid).or_default()[kind],
                None => return Ok(Vec::new()),
            };
            if slot.replace(file).is_some() {
                return Ok(Vec::new());
            }
        }
    }
    let path = |file: &FoundCaptureFile| file.path.clone();
    let pairs = processes
        .into_values()
        .map(|[host, kineto]| RankCaptureFiles {
            rank: 0,
            unnumbered: true,
            guessed: false,
            host: host.map(path),
            kineto: kineto.map(path),
            steps: None,
            held: held.clone(),
        });
    let pairs = pairs.collect();
    ranks.retain(|rank, files| !of(rank, files));
    Ok(pairs)
}
