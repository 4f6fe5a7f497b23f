//! JSON documents of commands: a schema's name and version, the program's, and what the command found.

use super::terminal;
use serde::Serialize;
use std::io::{self, Write};

/// A document; the fields of `body` follow those of every document.
#[derive(Debug, Serialize)]
pub struct VersionedDocument<T> {
    schema: &'static str,
    tool_version: &'static str,
    #[serde(flatten)]
    body: T,
}

impl<T: Serialize> VersionedDocument<T> {
    /// Puts `body` under `schema`, such as `chakram.plan.1`.
    pub fn new(schema: &'static str, body: T) -> Self {
        Self {
            schema,
            tool_version: env!("CARGO_PKG_VERSION"),
            body,
        }
    }

    /// Renders the document so that a terminal can show it.
    pub fn text(&self) -> String {
        terminal::json(self)
    }

    /// Prints the document.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self.text().as_bytes())
    }
}
