//! Traces of all ranks as files, and their groups beside them.

use crate::generate::Job;
use crate::trace::write::{NewFile, TraceWriter, Value};
use crate::trace::{TraceError, roles};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes all ranks. Those that are alike are one file under several names, where the file system
/// has that.
pub fn write(job: &Job, prefix: &Path) -> Result<(), TraceError> {
    let path = |rank: u32| PathBuf::from(format!("{}.{rank}.et", prefix.display()));
    let io = |file: &Path, doing| {
        let file = file.to_owned();
        move |source| TraceError::io(file, doing, source)
    };
    let roles = job.roles().to_string();
    let mut written = std::collections::BTreeSet::new();
    for rank in 0..job.ranks() {
        let class = job.class_of(rank);
        let target = path(rank);
        if class != rank && written.contains(&class) {
            let link = target.with_extension("et.new");
            // What a broken run left behind may go.
            let _ = std::fs::remove_file(&link);
            if std::fs::hard_link(path(class), &link).is_ok() {
                std::fs::rename(&link, &target).map_err(io(&target, "rename into place"))?;
                // Renaming a file onto itself leaves both names.
                let _ = std::fs::remove_file(&link);
                continue;
            }
        }
        let out = BufWriter::new(NewFile::create(&target)?);
        let metadata: &[_] = match &roles[..] {
            "" => &[],
            roles => &[(roles::ATTRIBUTE, Value::Text(roles))],
        };
        let writer = TraceWriter::with_metadata(out, metadata);
        let mut writer = writer.map_err(io(&target, "write"))?;
        job.nodes(class, &mut writer)?;
        let file = writer.into_inner().into_inner();
        file.map_err(|e| e.into_error())
            .map_err(io(&target, "write"))?
            .commit()?;
        written.insert(rank);
    }
    let groups = job.groups();
    if !groups.is_empty() {
        let target = PathBuf::from(format!("{}.groups.json", prefix.display()));
        let mut file = NewFile::create(&target)?;
        let text = serde_json::to_string_pretty(&groups).expect("maps of numbers are JSON");
        writeln!(file, "{text}").map_err(io(&target, "write"))?;
        file.commit()?;
    }
    Ok(())
}
