//! References to machines in job files: a preset's name, or a file's path relative to the folder of the job
//! file.
//!
//! Because paths are relative, a job can be replayed from any working folder. A job can also move to another folder
//! together with its machine file.

use chakram_hardware::machine::is_machine_file_path;
use std::path::{Component, Path, PathBuf};

/// Converts the machine `name` in the job file `job` to a name that this process can open. If no file has this relative
/// path, returns `name` unchanged.
pub fn resolve_machine_file_beside_job(name: &str, job: &Path) -> String {
    if !is_machine_file_path(name) {
        return name.to_owned();
    }
    let beside = folder_of(job).join(name);
    match beside.to_str() {
        Some(path) if beside.is_file() => path.to_owned(),
        _ => name.to_owned(),
    }
}

/// Returns the reference to the machine `name` for the job file `job`.
pub fn machine_reference_for_job_file(name: &str, job: &Path) -> String {
    if !is_machine_file_path(name) {
        return name.to_owned();
    }
    let relative = || {
        let machine = Path::new(name).canonicalize().ok()?;
        let folder = folder_of(job).canonicalize().ok()?;
        relative_path(&folder, &machine).to_str().map(str::to_owned)
    };
    relative().unwrap_or_else(|| name.to_owned())
}

fn folder_of(job: &Path) -> &Path {
    match job.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns the relative path from `folder` to `file`. Both arguments are absolute. Returns `file` if the paths share
/// only the root. A path without a folder becomes `./NAME`, because a bare name would mean a preset.
fn relative_path(folder: &Path, file: &Path) -> PathBuf {
    let (from, to): (Vec<_>, Vec<_>) = (folder.components().collect(), file.components().collect());
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    if shared <= 1 {
        return file.to_owned();
    }
    let up = from.len() - shared;
    let start = if up == 0 {
        Component::CurDir
    } else {
        Component::ParentDir
    };
    let climb = [start]
        .into_iter()
        .chain((1..up).map(|_| Component::ParentDir));
    climb.chain(to[shared..].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_path_goes_up_to_the_shared_folder() {
        let way = |folder: &str, file: &str| relative_path(Path::new(folder), Path::new(file));
        assert_eq!(way("/a/b", "/a/b/m.toml"), Path::new("./m.toml"));
        assert_eq!(way("/a/b/c", "/a/m.toml"), Path::new("../../m.toml"));
        assert_eq!(way("/a/b", "/a/x/m.toml"), Path::new("../x/m.toml"));
        assert_eq!(way("/a/b", "/x/m.toml"), Path::new("/x/m.toml"));
    }

    #[test]
    fn names_of_presets_and_missing_files_stay_unchanged() {
        let job = Path::new("s/job.job.json");
        assert_eq!(
            machine_reference_for_job_file("dgx-h100x4", job),
            "dgx-h100x4"
        );
        assert_eq!(
            resolve_machine_file_beside_job("dgx-h100x4", job),
            "dgx-h100x4"
        );
        // No such file exists, so the name stays unchanged.
        assert_eq!(
            machine_reference_for_job_file("none/m.toml", job),
            "none/m.toml"
        );
        assert_eq!(
            resolve_machine_file_beside_job("none/m.toml", job),
            "none/m.toml"
        );
    }
}
