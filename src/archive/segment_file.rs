//! Writes a segment at the end of an archive, or as a separate file.

use super::ArchiveError;
use super::document::{SegmentWorkloadCatalogueChanges, SegmentWriteIntent};
use super::segment::SegmentWriter;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Function that writes a segment's objects, and returns the segment's changes to the catalogue.
pub type SegmentObjectsWriteCallback<'b> = dyn FnMut(
        &mut SegmentWriter<&mut dyn Write>,
    ) -> Result<SegmentWorkloadCatalogueChanges, ArchiveError>
    + 'b;

/// Writes a segment except for its end, and returns the end.
pub fn write_segment_without_footer(
    out: &mut dyn Write,
    start: SegmentWriteIntent,
    body: &mut SegmentObjectsWriteCallback<'_>,
    path: &Path,
) -> Result<Vec<u8>, ArchiveError> {
    let io = |error| ArchiveError::io_error(path, "write", error);
    let mut writer = SegmentWriter::new(out, &start).map_err(io)?;
    let change = body(&mut writer)?;
    let (_, end) = writer
        .finish_segment_and_return_footer(&change)
        .map_err(io)?;
    Ok(end)
}

/// Writes a file with one segment. The file receives its final name only when it is
/// complete.
pub fn write_one_segment_archive_file(
    path: &Path,
    start: SegmentWriteIntent,
    body: &mut SegmentObjectsWriteCallback<'_>,
) -> Result<(), ArchiveError> {
    let io = |error| ArchiveError::io_error(path, "write", error);
    let mut outputs = chakram_trace::files::OutputsAndProtectedInputs::default();
    let mut file = BufWriter::with_capacity(1 << 18, outputs.create_file(path)?);
    let end = write_segment_without_footer(&mut file, start, body, path)?;
    file.write_all(&end).map_err(io)?;
    let file = file.into_inner().map_err(|error| io(error.into_error()))?;
    Ok(file.commit()?)
}
