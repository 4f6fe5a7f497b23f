//! Archives in folders. Each pack is a file with one segment; a manifest lists the packs.
//!
//! The manifest has two lines: JSON, and the CRC-32 of the JSON line. A commit replaces the
//! manifest by renaming a file, so a reader sees the archive either before or after the commit.

use super::document::{SCHEMA, SegmentWriteIntent};
use super::segment::{
    ArchiveFileSegment, RandomAccessSegmentFile, compute_crc32, parse_segment_write_plan,
};
use super::segment_file::{SegmentObjectsWriteCallback, write_one_segment_archive_file};
use super::segments::find_segments_and_tail;
use super::tail::UncommittedArchiveTail;
use super::{ArchiveError, ENDING};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::file::read_text;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Name of the manifest.
const MANIFEST: &str = "manifest";
/// Name of the file that writers lock to keep each other out.
pub const LOCK: &str = "lock";
const PACKS: &str = "packs";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArchiveFolderManifest {
    schema: String,
    /// Number of the next pack; commands never reuse a number.
    next: u64,
    packs: Vec<PackSegmentFileRow>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PackSegmentFileRow {
    /// Name of the pack's file in the folder of packs.
    file: String,
    bytes: u64,
    /// BLAKE3 hash of the pack's segment, without the segment's end.
    digest: String,
}

impl ArchiveFolderManifest {
    fn read_and_check_manifest(path: &Path) -> Result<Self, ArchiveError> {
        let path = path.join(MANIFEST);
        let io = |error| ArchiveError::io_error(&path, "read", error);
        let file = File::open(&path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let text = read_text(&file, length).map_err(io)?;
        let wrong = |found: &str| ArchiveError::broken_archive_error(found).in_file(&path);
        let (line, sum) = text
            .split_once('\n')
            .ok_or_else(|| wrong("the manifest has no checksum"))?;
        if sum != format!("{:08x}\n", compute_crc32(line.as_bytes())) {
            return Err(wrong("the checksum does not match"));
        }
        let this: Self = serde_json::from_str(line).map_err(|error| wrong(&error.to_string()))?;
        if this.schema != SCHEMA {
            return Err(wrong(&format!("the schema is not {SCHEMA}")));
        }
        if this
            .packs
            .iter()
            .any(|pack| pack.file != pack_name(pack.pack_number()))
        {
            return Err(wrong("a pack has an invalid name"));
        }
        Ok(this)
    }

    fn write_file(&self, path: &Path) -> Result<(), ArchiveError> {
        let path = path.join(MANIFEST);
        let io = |error| ArchiveError::io_error(&path, "write", error);
        let line = serde_json::to_string(self).expect("a manifest is JSON");
        let mut file = OutputsAndProtectedInputs::default().create_file(&path)?;
        file.write_all(format!("{line}\n{:08x}\n", compute_crc32(line.as_bytes())).as_bytes())
            .map_err(io)?;
        Ok(file.commit()?)
    }
}

impl PackSegmentFileRow {
    fn pack_number(&self) -> u64 {
        let digits = self.file.strip_suffix(ENDING).unwrap_or("");
        digits.parse().unwrap_or(u64::MAX)
    }
}

fn pack_name(number: u64) -> String {
    format!("{number:08}{ENDING}")
}

/// Opens the segments of the archive `path`, and finds a pack that was written but not committed to
/// the manifest.
pub fn open_segments_and_uncommitted_pack(
    path: &Path,
) -> Result<(Vec<ArchiveFileSegment>, Option<UncommittedArchiveTail>), ArchiveError> {
    if !path.join(MANIFEST).is_file() {
        return Err(ArchiveError::refused_request_error(
            format!("{}: this folder is not an archive", path.display()),
            "chakram archive create",
        ));
    }
    // Maximum number of attempts to open the packs. An attempt fails if a `gc` removes packs after this function has
    // read the manifest.
    const TRIES: usize = 8;
    let mut last = None;
    for _ in 0..TRIES {
        let manifest = ArchiveFolderManifest::read_and_check_manifest(path)?;
        match open_packs(path, &manifest) {
            Err(error) if error.is_file_not_found() => last = Some(error),
            Err(error) => return Err(error),
            Ok(segments) => return Ok((segments, find_uncommitted_pack(path, &manifest)?)),
        }
    }
    Err(last.expect("one try failed"))
}

fn open_packs(
    path: &Path,
    manifest: &ArchiveFolderManifest,
) -> Result<Vec<ArchiveFileSegment>, ArchiveError> {
    let mut all = Vec::new();
    for row in &manifest.packs {
        let file = path.join(PACKS).join(&row.file);
        let (mut found, tail) = find_segments_and_tail(RandomAccessSegmentFile::open_file(&file)?)?;
        let digest = blake3::Hash::from_hex(&row.digest)
            .map(|hash| *hash.as_bytes())
            .ok();
        match (found.pop(), found.len(), tail) {
            (Some(segment), 0, None)
                if segment.end.length == row.bytes && Some(segment.end.digest) == digest =>
            {
                all.push(segment);
            }
            _ => {
                let found = format!(
                    "the file is not the pack of {} bytes that the manifest names",
                    row.bytes
                );
                return Err(ArchiveError::broken_archive_error(found).in_file(&file));
            }
        }
    }
    Ok(all)
}

/// Finds a pack that a command wrote but did not commit. The name of its file contains the
/// manifest's next number.
fn find_uncommitted_pack(
    path: &Path,
    manifest: &ArchiveFolderManifest,
) -> Result<Option<UncommittedArchiveTail>, ArchiveError> {
    let pack = path.join(PACKS).join(pack_name(manifest.next));
    if !pack.is_file() {
        return Ok(None);
    }
    let lock = File::open(path.join(LOCK)).and_then(|file| Ok(file.try_lock_shared()?));
    let is_locked = lock.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    if !is_locked && ArchiveFolderManifest::read_and_check_manifest(path)?.next != manifest.next {
        return Ok(None);
    }
    let file = RandomAccessSegmentFile::open_file(&pack)?;
    let length = file.file_length()?;
    let start = parse_segment_write_plan(&file.read_exact_at(0, length.min(1 << 20))?);
    Ok(Some(UncommittedArchiveTail {
        is_locked,
        ..UncommittedArchiveTail::new(&pack, 0..length, true, start)
    }))
}

/// Creates an empty archive in the folder `path`.
pub fn create_empty(path: &Path) -> Result<(), ArchiveError> {
    let io = |error| ArchiveError::io_error(path, "create", error);
    fs::create_dir_all(path.join(PACKS)).map_err(io)?;
    File::create(path.join(LOCK)).map_err(io)?;
    let manifest = ArchiveFolderManifest {
        schema: SCHEMA.to_owned(),
        next: 1,
        packs: Vec::new(),
    };
    manifest.write_file(path)
}

fn write_one_segment_pack_file(
    path: &Path,
    number: u64,
    start: SegmentWriteIntent,
    body: &mut SegmentObjectsWriteCallback<'_>,
) -> Result<PackSegmentFileRow, ArchiveError> {
    let name = pack_name(number);
    let file = path.join(PACKS).join(&name);
    write_one_segment_archive_file(&file, start, body)?;
    let (found, _) = find_segments_and_tail(RandomAccessSegmentFile::open_file(&file)?)?;
    let segment = found
        .first()
        .ok_or_else(|| ArchiveError::broken_archive_error("the pack has no end").in_file(&file))?;
    Ok(PackSegmentFileRow {
        file: name,
        bytes: segment.end.length,
        digest: blake3::Hash::from_bytes(segment.end.digest)
            .to_hex()
            .to_string(),
    })
}

/// Writes a pack, and returns the manifest with this pack appended.
fn write_pack_returning_new_manifest(
    path: &Path,
    start: SegmentWriteIntent,
    body: &mut SegmentObjectsWriteCallback<'_>,
) -> Result<ArchiveFolderManifest, ArchiveError> {
    let mut manifest = ArchiveFolderManifest::read_and_check_manifest(path)?;
    let row = write_one_segment_pack_file(path, manifest.next, start, body)?;
    manifest.next += 1;
    manifest.packs.push(row);
    Ok(manifest)
}

/// Adds a pack. The folder must be locked.
pub fn add_pack(
    path: &Path,
    start: SegmentWriteIntent,
    body: &mut SegmentObjectsWriteCallback<'_>,
) -> Result<(), ArchiveError> {
    write_pack_returning_new_manifest(path, start, body)?.write_file(path)
}

/// Replaces all packs by one pack. The folder must be locked.
pub fn replace_all_packs_by_one(
    path: &Path,
    start: SegmentWriteIntent,
    body: &mut SegmentObjectsWriteCallback<'_>,
) -> Result<(), ArchiveError> {
    let mut manifest = write_pack_returning_new_manifest(path, start, body)?;
    let number = manifest.next - 1;
    manifest.packs.drain(..manifest.packs.len() - 1);
    manifest.write_file(path)?;
    // Remove all other packs, including those left behind by interrupted commands; no manifest lists them any more.
    for entry in fs::read_dir(path.join(PACKS))
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let digits = name.to_str().and_then(|name| name.strip_suffix(ENDING));
        if digits
            .and_then(|digits| digits.parse().ok())
            .is_some_and(|own: u64| own < number)
        {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}
