//! Where reports go.

use crate::report::text::Style;
use crate::trace::write::NewFile;
use std::error::Error;
use std::io::{self, BufWriter, IntoInnerError, IsTerminal, Write};
use std::path::Path;

/// Where a report goes.
pub enum Destination<'a> {
    /// To standard output, through this.
    Stdout(&'a mut dyn Write),
    /// Into a file, which appears when it is complete.
    File(&'a Path),
}

impl Destination<'_> {
    /// What suits it.
    pub fn style(&self) -> Style {
        match self {
            Self::Stdout(_) if io::stdout().is_terminal() => Style::coloured(),
            _ => Style::default(),
        }
    }

    /// Writes all of a report.
    pub fn write(&mut self, text: &str) -> Result<(), Box<dyn Error>> {
        self.fill(|out| out.write_all(text.as_bytes()))
    }

    /// Writes what `write` writes.
    pub fn fill(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Stdout(out) => {
                write(&mut **out)?;
                out.flush()?;
            }
            Self::File(path) => {
                let mut file = BufWriter::new(NewFile::create(path)?);
                write(&mut file)?;
                let file = file.into_inner().map_err(IntoInnerError::into_error)?;
                file.commit()?;
            }
        }
        Ok(())
    }
}
