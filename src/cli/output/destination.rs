//! Where reports go.

use crate::report::text::Style;
use crate::trace::write::NewFile;
use std::error::Error;
use std::io::{self, IsTerminal, Write};
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
        match self {
            Self::Stdout(out) => {
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
            Self::File(path) => {
                let mut file = NewFile::create(path)?;
                file.write_all(text.as_bytes())?;
                file.commit()?;
            }
        }
        Ok(())
    }
}
