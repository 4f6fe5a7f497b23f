//! Finds the `xplane.pb` files of a profile.

use crate::folder::{expand_folders, list_folder};
use chakram_trace::format::TraceError;
use chakram_trace::format::wire::{WireCursor, WireValue};
use std::path::{Path, PathBuf};

/// Endings of profile file names.
const ENDINGS: [&str; 3] = [".xplane.pb", ".xplane.pb.gz", ".xplane.pb.zst"];

/// Returns the profiles in `paths`. A path is a file, a folder with `*.xplane.pb` files, or an
/// output folder of `jax.profiler`. In an output folder, profiles are under `plugins/profile`, and
/// the newest run is used. Files of a folder are sorted by name.
///
/// # Errors
///
/// Fails if a folder cannot be listed or contains no profile.
pub fn find_profiles(paths: &[PathBuf]) -> Result<Vec<PathBuf>, TraceError> {
    let expected = (
        "a file *.xplane.pb",
        "the folder that jax.profiler.start_trace was given, or the file itself",
    );
    expand_folders(paths, expected, |folder| {
        let own = list_files_with_profile_endings(folder)?;
        let runs = folder.join("plugins/profile");
        if !own.is_empty() || !runs.is_dir() {
            return Ok(own);
        }
        // Runs are named after their start time, so the last name is the newest run.
        let runs = list_folder(&runs)?;
        let newest = runs.iter().rev().find(|run| run.is_dir());
        newest.map_or(Ok(own), |newest| list_files_with_profile_endings(newest))
    })
}

fn list_files_with_profile_endings(folder: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let mut files = list_folder(folder)?;
    files.retain(|file| {
        let name = file.to_string_lossy();
        file.is_file() && ENDINGS.iter().any(|ending| name.ends_with(ending))
    });
    Ok(files)
}

/// Returns true if a file that begins with `head` is a profile: its first field is a plane, and the
/// first text in the plane is a name.
pub fn begins_as_xplane(head: &[u8]) -> bool {
    let mut space = WireCursor::new(head, 0);
    if space.read_varint().ok() != Some(1 << 3 | 2) || space.read_varint().is_err() {
        return false;
    }
    let mut plane = WireCursor::new(&head[space.file_offset()..], 0);
    let mut field = plane.read_field();
    if let Ok((1, WireValue::Varint(_))) = field {
        field = plane.read_field();
    }
    let Ok((2, WireValue::Bytes(name, _))) = field else {
        return false;
    };
    let name = std::str::from_utf8(name).unwrap_or_default();
    let sound = !name.is_empty() && name.chars().all(|c| !c.is_control());
    // Check the form of the plane's name, because a trace may have its first record's version at this position.
    sound && (name.starts_with('/') || name == "Task Environment")
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_trace::format::TraceWriter;
    use chakram_trace::format::encoder::ProtobufMessageBuilder;

    #[test]
    fn profiles_begin_with_a_named_plane() {
        let plane = |id: bool, name: &str| {
            let (mut plane, mut space) = (
                ProtobufMessageBuilder::default(),
                ProtobufMessageBuilder::default(),
            );
            if id {
                plane.append_varint(1, 3);
            }
            plane.append_bytes(2, name.as_bytes());
            plane.append_bytes(3, b"");
            space.append_bytes(1, plane.as_bytes());
            space.as_bytes().to_vec()
        };
        assert!(begins_as_xplane(&plane(false, "/host:CPU")));
        assert!(begins_as_xplane(&plane(true, "/device:GPU:3")));
        assert!(begins_as_xplane(&plane(false, "Task Environment")));
        assert!(!begins_as_xplane(&plane(false, "0.0.4")));
        assert!(!begins_as_xplane(&plane(false, "/a\nb")));
        assert!(
            !begins_as_xplane(b"")
                && !begins_as_xplane(b"\x0a")
                && !begins_as_xplane(b"\x0a\x05\x08")
        );
        let trace = TraceWriter::new(Vec::new()).unwrap().into_unflushed_sink();
        assert!(!begins_as_xplane(&trace));
    }
}
