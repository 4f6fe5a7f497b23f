//! JSON documents that commands print: schema name and version, program version, and the command's results.

use chakram_trace::format::escape_harmful_characters_in_json;
use serde::Serialize;
use std::io::{self, Write};

/// A JSON document: the fields that all documents share (such as the schema), followed by the fields of `body`.
#[derive(Debug, Serialize)]
pub struct VersionedDocument<T> {
    schema: &'static str,
    tool_version: &'static str,
    #[serde(flatten)]
    body: T,
}

impl<T: Serialize> VersionedDocument<T> {
    /// Creates a document with the content `body` and the schema name `schema`, such as `chakram.plan.1`.
    pub fn new(schema: &'static str, body: T) -> Self {
        Self {
            schema,
            tool_version: env!("CARGO_PKG_VERSION"),
            body,
        }
    }

    /// Renders the document as JSON, as [`json_text`] does.
    pub fn to_json_text(&self) -> String {
        json_text(self)
    }

    /// Writes the document as JSON to `out`.
    pub fn print_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self.to_json_text().as_bytes())
    }
}

/// Renders a JSON document that is safe to print: characters that a terminal would interpret are escaped.
pub fn json_text(document: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(document).expect("maps with names as keys are JSON");
    escape_harmful_characters_in_json(&text).into_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_trace::format::is_harmful_character;

    #[test]
    fn json_text_escapes_harmful_characters_and_parses_to_same_value() {
        let document = serde_json::json!({"a\u{9b}": "x\u{202e}\u{e0041}\u{1b}\n"});
        let text = json_text(&document);
        assert!(
            text.chars().all(|c| c == '\n' || !is_harmful_character(c)),
            "{text}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            document
        );
    }
}
