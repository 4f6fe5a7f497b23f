//! The file that a replay is drawn into.

use crate::engine::Prepared;
use crate::files::{OutputFile, Outputs};
use crate::report::Timeline;
use crate::trace::TraceError;
use crate::trace::file::Compressor;
use std::io::{self, Write};
use std::path::Path;

/// Timelines that go into files.
pub struct Drawing;

impl Drawing {
    /// Starts the timeline of `prepared` that will be the file `path` of `outputs`, if one is wanted.
    pub fn start<'a>(
        path: Option<&Path>,
        prepared: &'a Prepared<'a>,
        outputs: &mut Outputs,
    ) -> Result<Option<Timeline<'a, Picture>>, TraceError> {
        let picture = path
            .map(|path| Picture::create(path, outputs))
            .transpose()?;
        Ok(picture.map(|picture| Timeline::new(prepared, picture)))
    }

    /// Ends a timeline; the file appears.
    pub fn finish(
        timeline: Option<Timeline<'_, Picture>>,
        path: Option<&Path>,
    ) -> Result<(), TraceError> {
        let (Some(timeline), Some(path)) = (timeline, path) else {
            return Ok(());
        };
        let written = timeline.finish().and_then(Picture::finish);
        let file = written.map_err(|source| TraceError::io(path.to_owned(), "write", source))?;
        file.commit()
    }
}

/// A timeline's file, compressed if its name says so.
pub struct Picture(Form);

enum Form {
    Plain(io::BufWriter<OutputFile>),
    Compressed(Compressor<io::BufWriter<OutputFile>>),
}

impl Picture {
    fn create(path: &Path, outputs: &mut Outputs) -> Result<Self, TraceError> {
        let file = io::BufWriter::new(outputs.create(path)?);
        let compressed = path.extension().is_some_and(|ending| ending == "gz");
        Ok(Self(match compressed {
            true => Form::Compressed(Compressor::new(file)),
            false => Form::Plain(file),
        }))
    }

    /// Everything written, not yet under its name.
    fn finish(self) -> io::Result<OutputFile> {
        let file = match self.0 {
            Form::Plain(file) => file,
            Form::Compressed(compressor) => compressor.finish()?,
        };
        file.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

impl Write for Picture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Form::Plain(file) => file.write(bytes),
            Form::Compressed(compressor) => compressor.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Form::Plain(file) => file.flush(),
            Form::Compressed(compressor) => compressor.flush(),
        }
    }
}
