//! The file that a replay is drawn into.

use crate::engine::CompiledReplay;
use crate::files::{OutputFile, OutputSet};
use crate::report::TimelineWriter;
use crate::trace::TraceError;
use crate::trace::file::GzipWriter;
use std::io::{self, Write};
use std::path::Path;

/// Timelines that go into files.
pub struct TimelineFile;

impl TimelineFile {
    /// Starts the timeline of `prepared` that will be the file `path` of `outputs`, if one is wanted.
    pub fn start<'a>(
        path: Option<&Path>,
        prepared: &'a CompiledReplay<'a>,
        outputs: &mut OutputSet,
    ) -> Result<Option<TimelineWriter<'a, TimelineSink>>, TraceError> {
        let picture = path
            .map(|path| TimelineSink::create(path, outputs))
            .transpose()?;
        Ok(picture.map(|picture| TimelineWriter::new(prepared, picture)))
    }

    /// Ends a timeline; the file appears.
    pub fn finish(
        timeline: Option<TimelineWriter<'_, TimelineSink>>,
        path: Option<&Path>,
    ) -> Result<(), TraceError> {
        let (Some(timeline), Some(path)) = (timeline, path) else {
            return Ok(());
        };
        let written = timeline.finish().and_then(TimelineSink::finish);
        let file = written.map_err(|source| TraceError::io(path.to_owned(), "write", source))?;
        file.commit()
    }
}

/// A timeline's file, compressed if its name says so.
pub struct TimelineSink(TimelineEncoding);

enum TimelineEncoding {
    Plain(io::BufWriter<OutputFile>),
    Compressed(GzipWriter<io::BufWriter<OutputFile>>),
}

impl TimelineSink {
    fn create(path: &Path, outputs: &mut OutputSet) -> Result<Self, TraceError> {
        let file = io::BufWriter::new(outputs.create(path)?);
        let compressed = path.extension().is_some_and(|ending| ending == "gz");
        Ok(Self(if compressed {
            TimelineEncoding::Compressed(GzipWriter::new(file))
        } else {
            TimelineEncoding::Plain(file)
        }))
    }

    /// Everything written, not yet under its name.
    fn finish(self) -> io::Result<OutputFile> {
        let file = match self.0 {
            TimelineEncoding::Plain(file) => file,
            TimelineEncoding::Compressed(compressor) => compressor.finish()?,
        };
        file.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

impl Write for TimelineSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            TimelineEncoding::Plain(file) => file.write(bytes),
            TimelineEncoding::Compressed(compressor) => compressor.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            TimelineEncoding::Plain(file) => file.flush(),
            TimelineEncoding::Compressed(compressor) => compressor.flush(),
        }
    }
}
