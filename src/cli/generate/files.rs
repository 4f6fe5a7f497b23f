//! Traces of all ranks as a job on disk.

use crate::cli::progress::{CountedSink, Progress};
use crate::cli::{terminal, traces};
use crate::files::{OutputHandle, OutputSet};
use crate::generate::GeneratedJob;
use crate::job::JobOutputs;
use crate::report::summary::counted;
use crate::trace::job::JobFile;
use crate::trace::roles;
use crate::trace::scan::CORE;
use crate::trace::work_amounts;
use crate::trace::write::{AttributeValue, TraceWriter};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

/// Nodes above which files are said to become large before they are written.
const MANY: u64 = 20_000_000;

/// Writes all ranks, and says what their files are called. Those that are alike are one file under several names if
/// `link` says so and the file system has that. `machine` is what the job was made for.
pub fn write(
    job: &GeneratedJob,
    output: &Path,
    outputs: OutputSet,
    link: bool,
    machine: Option<&str>,
) -> Result<String, Box<dyn Error>> {
    let mut outputs = JobOutputs::new(output, "", outputs)?;
    let roles = job.roles().to_string();
    let amounts = job.amounts().map(|amounts| amounts.to_string());
    let roles = (!roles.is_empty()).then_some(&roles[..]);
    let said = [
        (roles::ATTRIBUTE, roles),
        (work_amounts::ATTRIBUTE, amounts.as_deref()),
    ];
    let said = said.into_iter();
    let metadata = said.filter_map(|(name, text)| Some((name, AttributeValue::Text(text?))));
    let metadata: Vec<_> = metadata.collect();
    let mut written: BTreeMap<u32, OutputHandle> = BTreeMap::new();
    // Ranks that are alike are written once, as far as files can be shared.
    let classes: BTreeMap<u32, u32> = (0..job.ranks()).map(|r| (job.class_of(r), r)).collect();
    let nodes = classes.values().map(|rank| job.node_count(*rank)).sum();
    if nodes > MANY {
        terminal::note(format_args!(
            "writing {}, which takes a while and gigabytes; Ctrl-C leaves no file",
            counted(nodes, "node")
        ))?;
    }
    // Links take no time; copies do.
    let all = match link {
        true => nodes,
        false => (0..job.ranks()).map(|rank| job.node_count(rank)).sum(),
    };
    let progress = Progress::start("writing", "nodes", all);
    for rank in 0..job.ranks() {
        let class = job.class_of(rank);
        if let Some(&known) = written.get(&class)
            && outputs.share(rank, known, link)?.is_some()
        {
            if !link {
                progress.add(job.node_count(rank));
            }
            continue;
        }
        let target = outputs.path(rank);
        let core = job.core_of(rank).map(|[x, y]| format!("{x},{y}"));
        let core = core
            .as_deref()
            .map(|core| (CORE, AttributeValue::Text(core)));
        let metadata: Vec<_> = metadata.iter().cloned().chain(core).collect();
        let mut writer = TraceWriter::with_metadata(outputs.start(rank)?, &metadata)?;
        let nodes = job.nodes(class, &mut CountedSink(&progress, &mut writer));
        nodes.map_err(|error| error.writing_to(&target))?;
        let done = outputs.finish(rank, writer.into_inner())?;
        written.insert(class, done);
    }
    let groups = job.groups();
    if !groups.is_empty() {
        outputs.groups(&groups)?;
    }
    traces::saved(&outputs.commit(JobFile {
        groups,
        roles: job.roles(),
        machine: machine.map(str::to_owned),
        ..JobFile::default()
    })?)
}
