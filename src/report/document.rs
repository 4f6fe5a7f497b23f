//! JSON documents of commands: the name and version of a schema, the version of the program, and what the command found.

use chakram_trace::format::json_escaped;
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

    /// Renders the document as [`json_text`].
    pub fn text(&self) -> String {
        json_text(self)
    }

    /// Writes the document to `out`.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self.text().as_bytes())
    }
}

/// Renders a JSON document in which harmful characters are escaped, so that it can be shown on a terminal.
pub fn json_text(document: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(document).expect("maps with names as keys are JSON");
    json_escaped(&text).into_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_trace::format::is_harmful;

    #[test]
    fn json_stays_what_it_says() {
        let document = serde_json::json!({"a\u{9b}": "x\u{202e}\u{e0041}\u{1b}\n"});
        let text = json_text(&document);
        assert!(text.chars().all(|c| c == '\n' || !is_harmful(c)), "{text}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            document
        );
    }
}
