//! Detects the format of a text from the keys of its first object.

use super::json::{JsonCursor, JsonScalar};
use super::{MARK, TextFormat, json_lines};
use std::borrow::Cow;

/// Classification of a text by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::format) enum SniffedText {
    /// A trace.
    Trace(TextFormat),
    /// A capture of this kind. The user must convert the capture first.
    Capture(&'static str),
    /// JSON that is neither a trace nor a capture, as far as the inspected part shows.
    Other,
    /// Text that is not JSON.
    NoJson,
}

/// Classifies `text`, which may be truncated.
pub(in crate::format) fn classify_text(text: &[u8]) -> SniffedText {
    let text = text.strip_prefix(MARK).unwrap_or(text);
    if text.starts_with(json_lines::BEGINNING) {
        return SniffedText::Trace(TextFormat::JsonLines);
    }
    let mut json = JsonCursor::new(text, (1, 1));
    let array = json.accept_byte(b'[');
    if !json.accept_byte(b'{') {
        return if array && json.accept_byte(b']') {
            SniffedText::Trace(TextFormat::ProtoJson)
        } else {
            SniffedText::NoJson
        };
    }
    match json.peek_byte() {
        Some(b'}') => return SniffedText::Trace(TextFormat::ProtoJson),
        Some(b'"') => {}
        _ => return SniffedText::NoJson,
    }
    let mut host = false;
    loop {
        let Ok(key) = json.parse_key() else {
            return SniffedText::Other;
        };
        match &*key {
            "workload_graph" if !array => return SniffedText::Trace(TextFormat::WorkloadGraph),
            "traceEvents" | "ph" => return SniffedText::Capture("a Kineto trace of PyTorch"),
            "nodes" if host => return SniffedText::Capture("a host trace of PyTorch"),
            "nodes" if !array => return SniffedText::Trace(TextFormat::Nodes),
            "schema" => match json.parse_scalar() {
                Ok(JsonScalar::Text(Cow::Borrowed(text))) if text.starts_with("chakram.trace.") => {
                    return SniffedText::Trace(TextFormat::ProtoJson);
                }
                Ok(JsonScalar::Text(_)) => host = true,
                _ => return SniffedText::Other,
            },
            "version" | "attr" | "id" | "name" | "type" | "ctrlDeps" | "ctrl_deps" | "dataDeps"
            | "data_deps" | "startTimeMicros" | "start_time_micros" | "durationMicros"
            | "duration_micros" | "inputs" | "outputs"
                if !host =>
            {
                return SniffedText::Trace(TextFormat::ProtoJson);
            }
            _ => {
                if json.skip_value().is_err() {
                    return SniffedText::Other;
                }
            }
        }
        // The value of the key has now been read or skipped.
        if !json.accept_byte(b',') {
            return SniffedText::Other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_known_by_their_first_keys() {
        let trace = |form| SniffedText::Trace(form);
        for (text, expected) in [
            (
                "{\"schema\":\"chakram.trace.1\"}\n{\"id\":0}",
                trace(TextFormat::JsonLines),
            ),
            (
                "{ \"schema\": \"chakram.trace.1\" }",
                trace(TextFormat::ProtoJson),
            ),
            (
                "\u{feff}{}\n{\"name\": \"x\"}",
                trace(TextFormat::ProtoJson),
            ),
            ("[]", trace(TextFormat::ProtoJson)),
            ("[\n {\"id\": \"1\"}]", trace(TextFormat::ProtoJson)),
            (
                "{\"ngpus\": 8, \"workload_graph\": [",
                trace(TextFormat::WorkloadGraph),
            ),
            ("{\"nodes\": [", trace(TextFormat::Nodes)),
            (
                "{\"schema\": \"1.0.1\", \"pid\": 1, \"nodes\": [",
                SniffedText::Capture("a host trace of PyTorch"),
            ),
            (
                "{\"schemaVersion\": 1, \"traceEvents\": [",
                SniffedText::Capture("a Kineto trace of PyTorch"),
            ),
            (
                "[{\"ph\": \"X\"}]",
                SniffedText::Capture("a Kineto trace of PyTorch"),
            ),
            ("{\"1\": [0, 1]}", SniffedText::Other),
            (
                "{\"schema\": \"chakram.report.1\", \"makespan_ps\": 1}",
                SniffedText::Other,
            ),
            ("{\"a\": ", SniffedText::Other),
            ("\u{c}\u{12}\u{a}hello", SniffedText::NoJson),
            ("{\u{a}\u{5}0.0.4", SniffedText::NoJson),
            ("", SniffedText::NoJson),
        ] {
            assert_eq!(classify_text(text.as_bytes()), expected, "{text}");
        }
    }
}
