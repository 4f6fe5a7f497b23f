//! Detection of a text format from the keys of its first object.

use super::json::{Json, Scalar};
use super::{MARK, TextForm, json_lines};
use std::borrow::Cow;

/// Classification of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::trace) enum Seen {
    /// A trace.
    Trace(TextForm),
    /// Capture that must be converted first; its name.
    Capture(&'static str),
    /// JSON of another kind, as far as it was inspected.
    Other,
    /// Not JSON.
    NoJson,
}

/// Classifies `text`, which may be the beginning of a longer one.
pub(in crate::trace) fn sniff(text: &[u8]) -> Seen {
    let text = text.strip_prefix(MARK).unwrap_or(text);
    if text.starts_with(json_lines::BEGINNING) {
        return Seen::Trace(TextForm::JsonLines);
    }
    let mut json = Json::new(text, (1, 1));
    let array = json.accept(b'[');
    if !json.accept(b'{') {
        return match array && json.accept(b']') {
            true => Seen::Trace(TextForm::ProtoJson),
            false => Seen::NoJson,
        };
    }
    match json.peek() {
        Some(b'}') => return Seen::Trace(TextForm::ProtoJson),
        Some(b'"') => {}
        _ => return Seen::NoJson,
    }
    let mut host = false;
    loop {
        let Ok(key) = json.key() else {
            return Seen::Other;
        };
        match &*key {
            "workload_graph" if !array => return Seen::Trace(TextForm::WorkloadGraph),
            "traceEvents" | "ph" => return Seen::Capture("a Kineto trace of PyTorch"),
            "nodes" if host => return Seen::Capture("a host trace of PyTorch"),
            "nodes" if !array => return Seen::Trace(TextForm::Nodes),
            "schema" => match json.scalar() {
                Ok(Scalar::Text(Cow::Borrowed(text))) if text.starts_with("chakram.trace.") => {
                    return Seen::Trace(TextForm::ProtoJson);
                }
                Ok(Scalar::Text(_)) => host = true,
                _ => return Seen::Other,
            },
            "version" | "attr" | "id" | "name" | "type" | "ctrlDeps" | "ctrl_deps" | "dataDeps"
            | "data_deps" | "startTimeMicros" | "start_time_micros" | "durationMicros"
            | "duration_micros" | "inputs" | "outputs"
                if !host =>
            {
                return Seen::Trace(TextForm::ProtoJson);
            }
            _ => {
                if json.skip().is_err() {
                    return Seen::Other;
                }
            }
        }
        // At this point the value of `schema` has been read, or that of any other key skipped.
        if !json.accept(b',') {
            return Seen::Other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_known_by_their_first_keys() {
        let trace = |form| Seen::Trace(form);
        for (text, expected) in [
            (
                "{\"schema\":\"chakram.trace.1\"}\n{\"id\":0}",
                trace(TextForm::JsonLines),
            ),
            (
                "{ \"schema\": \"chakram.trace.1\" }",
                trace(TextForm::ProtoJson),
            ),
            ("\u{feff}{}\n{\"name\": \"x\"}", trace(TextForm::ProtoJson)),
            ("[]", trace(TextForm::ProtoJson)),
            ("[\n {\"id\": \"1\"}]", trace(TextForm::ProtoJson)),
            (
                "{\"ngpus\": 8, \"workload_graph\": [",
                trace(TextForm::WorkloadGraph),
            ),
            ("{\"nodes\": [", trace(TextForm::Nodes)),
            (
                "{\"schema\": \"1.0.1\", \"pid\": 1, \"nodes\": [",
                Seen::Capture("a host trace of PyTorch"),
            ),
            (
                "{\"schemaVersion\": 1, \"traceEvents\": [",
                Seen::Capture("a Kineto trace of PyTorch"),
            ),
            (
                "[{\"ph\": \"X\"}]",
                Seen::Capture("a Kineto trace of PyTorch"),
            ),
            ("{\"1\": [0, 1]}", Seen::Other),
            (
                "{\"schema\": \"chakram.report.1\", \"makespan_ps\": 1}",
                Seen::Other,
            ),
            ("{\"a\": ", Seen::Other),
            ("\u{c}\u{12}\u{a}hello", Seen::NoJson),
            ("{\u{a}\u{5}0.0.4", Seen::NoJson),
            ("", Seen::NoJson),
        ] {
            assert_eq!(sniff(text.as_bytes()), expected, "{text}");
        }
    }
}
