//! Destinations of reports.

use crate::terminal::{self, EscapeStyle, EscapingWriter};
use chakram_report::NodeTable;
use chakram_report::text::TextStyleWidthAndDetail;
use chakram_trace::files::{OutputClaim, OutputFile, OutputsAndProtectedInputs};
use chakram_trace::format::TraceError;
use std::error::Error;
use std::io::{self, BufWriter, IntoInnerError, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Destination of a report: standard output or a file. Also manages the command's other outputs.
pub struct ReportDestinationAndOutputs<'a> {
    out: &'a mut dyn Write,
    file: Option<OutputClaim>,
    is_parquet: bool,
    outputs: OutputsAndProtectedInputs,
}

impl<'a> ReportDestinationAndOutputs<'a> {
    /// Creates a destination on standard output, to which `out` writes.
    pub fn create_on_standard_output(
        out: &'a mut dyn Write,
        outputs: OutputsAndProtectedInputs,
    ) -> Self {
        Self {
            out,
            file: None,
            is_parquet: false,
            outputs,
        }
    }

    /// Creates a destination in the file `path`. The file has a temporary name until the report is
    /// complete. `-` means standard output.
    ///
    /// Fails if the file cannot be created, or if it is an input of the command.
    pub fn create_at_path(
        out: &'a mut dyn Write,
        path: &Path,
        mut outputs: OutputsAndProtectedInputs,
    ) -> Result<Self, TraceError> {
        let piped = path == Path::new("-");
        let file = (!piped).then(|| outputs.claim_path(path)).transpose()?;
        Ok(Self {
            out,
            file,
            is_parquet: is_parquet(path),
            outputs,
        })
    }

    /// Returns the other outputs of the command.
    pub fn other_outputs(&mut self) -> &mut OutputsAndProtectedInputs {
        &mut self.outputs
    }

    /// Returns the path of an additional output file; `option` is the option that gives `path`. `-`
    /// means standard output, which is an error if the report also goes there.
    pub fn path_of_additional_output(&self, option: &str, path: &Path) -> Result<PathBuf, String> {
        match (path == Path::new("-"), &self.file) {
            (false, _) => Ok(path.to_owned()),
            (true, Some(_)) => Ok(PathBuf::from("/dev/stdout")),
            (true, None) => Err(format!(
                "{option} - : the output would be mixed with the lines of the report\n  \
                 try: {option} FILE, or -o FILE for the report"
            )),
        }
    }

    /// Creates an additional output file; `option` is the option that gives `path`.
    pub fn create_additional_output(
        &mut self,
        option: &str,
        path: &Path,
    ) -> Result<OutputFile, Box<dyn Error>> {
        let path = self.path_of_additional_output(option, path)?;
        Ok(self.outputs.create_file(&path)?)
    }

    /// Returns the text style for this destination.
    pub fn text_style(&self) -> TextStyleWidthAndDetail {
        terminal::text_style(self.file.is_none())
    }

    /// Returns true if the report goes to a terminal.
    pub fn is_terminal(&self) -> bool {
        self.file.is_none() && io::stdout().is_terminal()
    }

    /// Writes a complete report.
    pub fn write_report(&mut self, text: &str) -> Result<(), Box<dyn Error>> {
        self.run_write_and_commit_output(|out| out.write_all(text.as_bytes()))
    }

    /// Runs `write`, and forwards its output at every flush. A file is created at the first flush.
    /// If the command is interrupted, the file keeps everything that was flushed.
    pub fn write_streamed_output(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Box<dyn Error>> {
        let Some(claim) = &self.file else {
            write(&mut *self.out)?;
            return Ok(self.out.flush()?);
        };
        let mut growing = LazilyCreatedFile { claim, file: None };
        write(&mut growing)?;
        if let Some(file) = growing.file {
            let file = file.into_inner().into_inner();
            file.map_err(IntoInnerError::into_error)?.commit()?;
        }
        Ok(())
    }

    /// Writes a table of nodes: as Parquet if the name of the file ends with `.parquet`, otherwise
    /// as CSV.
    pub fn write_node_table(&mut self, table: &NodeTable) -> Result<(), Box<dyn Error>> {
        let Some(claim) = self.file.as_ref().filter(|_| self.is_parquet) else {
            return self.run_write_and_commit_output(|out| table.write_csv(out));
        };
        let mut file = BufWriter::new(claim.create_file()?);
        table.write_parquet(&mut file)?;
        let file = file.into_inner().map_err(IntoInnerError::into_error)?;
        Ok(file.commit()?)
    }

    /// Runs `write`, and writes all its output at the end.
    pub fn run_write_and_commit_output(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Box<dyn Error>> {
        match &self.file {
            None => {
                write(&mut *self.out)?;
                self.out.flush()?;
            }
            Some(claim) => {
                let mut text =
                    EscapingWriter::new(BufWriter::new(claim.create_file()?), EscapeStyle::All);
                write(&mut text)?;
                let file = text.into_inner().into_inner();
                let file = file.map_err(IntoInnerError::into_error)?;
                file.commit()?;
            }
        }
        Ok(())
    }
}

/// Returns true if the name of a file ends with `.parquet`.
pub fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "parquet")
}

/// A file that is created at the first write.
struct LazilyCreatedFile<'a> {
    claim: &'a OutputClaim,
    file: Option<EscapingWriter<BufWriter<OutputFile>>>,
}

impl Write for LazilyCreatedFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.file.is_none() {
            let mut file = self.claim.create_file().map_err(io::Error::other)?;
            file.publish_early().map_err(io::Error::other)?;
            let text = EscapingWriter::new(BufWriter::new(file), EscapeStyle::All);
            self.file = Some(text);
        }
        match &mut self.file {
            Some(file) => file.write(bytes),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushed_output_is_in_the_file_before_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        let claim = |out| {
            ReportDestinationAndOutputs::create_at_path(
                out,
                &path,
                OutputsAndProtectedInputs::default(),
            )
            .unwrap()
        };
        // If nothing is written, no file is created.
        let mut out = Vec::new();
        claim(&mut out).write_streamed_output(|_| Ok(())).unwrap();
        assert!(!path.exists());
        let mut out = Vec::new();
        let stopped = claim(&mut out).write_streamed_output(|out| {
            out.write_all(b"first\n")?;
            out.flush()?;
            assert_eq!(std::fs::read(&path).unwrap(), b"first\n");
            out.write_all(b"second\n")?;
            out.flush()?;
            assert_eq!(std::fs::read(&path).unwrap(), b"first\nsecond\n");
            Err(io::Error::other("interrupted"))
        });
        assert!(stopped.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"first\nsecond\n");
        assert!(out.is_empty());
    }
}
