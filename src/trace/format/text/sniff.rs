//! Detects the format of a text from the keys of its first object.

use super::json::{JsonCursor, JsonScalarOrContainerStart};
use super::{JsonTraceFormat, MARK, json_lines};
use std::borrow::Cow;

/// What a text is, judged by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::format) enum TraceOrCaptureTextKind {
    /// A trace.
    Trace(JsonTraceFormat),
    /// A capture of this kind, which the user must convert first.
    Capture(&'static str),
    /// JSON in which the inspected part shows neither a trace nor a capture.
    Other,
    /// Text that is not JSON.
    NoJson,
}

/// Classifies `text`, which may be truncated.
pub(in crate::format) fn classify_text(text: &[u8]) -> TraceOrCaptureTextKind {
    let text = text.strip_prefix(MARK).unwrap_or(text);
    if text.starts_with(json_lines::BEGINNING) {
        return TraceOrCaptureTextKind::Trace(JsonTraceFormat::JsonLines);
    }
    let mut json = JsonCursor::new(text, (1, 1));
    let array = json.accept_byte(b'[');
    if !json.accept_byte(b'{') {
        return if array && json.accept_byte(b']') {
            TraceOrCaptureTextKind::Trace(JsonTraceFormat::ProtoJson)
        } else {
            TraceOrCaptureTextKind::NoJson
        };
    }
    match json.peek_byte() {
        Some(b'}') => return TraceOrCaptureTextKind::Trace(JsonTraceFormat::ProtoJson),
        Some(b'"') => {}
        _ => return TraceOrCaptureTextKind::NoJson,
    }
    let mut host = false;
    loop {
        let Ok(key) = json.parse_key() else {
            return TraceOrCaptureTextKind::Other;
        };
        match &*key {
            "workload_graph" if !array => {
                return TraceOrCaptureTextKind::Trace(JsonTraceFormat::WorkloadGraph);
            }
            "traceEvents" | "ph" => {
                return TraceOrCaptureTextKind::Capture("a Kineto trace of PyTorch");
            }
            "nodes" if host => return TraceOrCaptureTextKind::Capture("a host trace of PyTorch"),
            "nodes" if !array => return TraceOrCaptureTextKind::Trace(JsonTraceFormat::Nodes),
            "schema" => match json.parse_scalar() {
                Ok(JsonScalarOrContainerStart::Text(Cow::Borrowed(text)))
                    if text.starts_with("chakram.trace.") =>
                {
                    return TraceOrCaptureTextKind::Trace(JsonTraceFormat::ProtoJson);
                }
                Ok(JsonScalarOrContainerStart::Text(_)) => host = true,
                _ => return TraceOrCaptureTextKind::Other,
            },
            "version" | "attr" | "id" | "name" | "type" | "ctrlDeps" | "ctrl_deps" | "dataDeps"
            | "data_deps" | "startTimeMicros" | "start_time_micros" | "durationMicros"
            | "duration_micros" | "inputs" | "outputs"
                if !host =>
            {
                return TraceOrCaptureTextKind::Trace(JsonTraceFormat::ProtoJson);
            }
            _ => {
                if json.skip_value().is_err() {
                    return TraceOrCaptureTextKind::Other;
                }
            }
        }
        // At this point, the value of the key has been read or skipped.
        if !json.accept_byte(b',') {
            return TraceOrCaptureTextKind::Other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_formats_are_detected_by_their_first_keys() {
        let trace = |form| TraceOrCaptureTextKind::Trace(form);
        for (text, expected) in [
            (
                "{\"schema\":\"chakram.trace.1\"}\n{\"id\":0}",
                trace(JsonTraceFormat::JsonLines),
            ),
            (
                "{ \"schema\": \"chakram.trace.1\" }",
                trace(JsonTraceFormat::ProtoJson),
            ),
            (
                "\u{feff}{}\n{\"name\": \"x\"}",
                trace(JsonTraceFormat::ProtoJson),
            ),
            ("[]", trace(JsonTraceFormat::ProtoJson)),
            ("[\n {\"id\": \"1\"}]", trace(JsonTraceFormat::ProtoJson)),
            (
                "{\"ngpus\": 8, \"workload_graph\": [",
                trace(JsonTraceFormat::WorkloadGraph),
            ),
            ("{\"nodes\": [", trace(JsonTraceFormat::Nodes)),
            (
                "{\"schema\": \"1.0.1\", \"pid\": 1, \"nodes\": [",
                TraceOrCaptureTextKind::Capture("a host trace of PyTorch"),
            ),
            (
                "{\"schemaVersion\": 1, \"traceEvents\": [",
                TraceOrCaptureTextKind::Capture("a Kineto trace of PyTorch"),
            ),
            (
                "[{\"ph\": \"X\"}]",
                TraceOrCaptureTextKind::Capture("a Kineto trace of PyTorch"),
            ),
            ("{\"1\": [0, 1]}", TraceOrCaptureTextKind::Other),
            (
                "{\"schema\": \"chakram.report.1\", \"makespan_ps\": 1}",
                TraceOrCaptureTextKind::Other,
            ),
            ("{\"a\": ", TraceOrCaptureTextKind::Other),
            ("\u{c}\u{12}\u{a}hello", TraceOrCaptureTextKind::NoJson),
            ("{\u{a}\u{5}0.0.4", TraceOrCaptureTextKind::NoJson),
            ("", TraceOrCaptureTextKind::NoJson),
        ] {
            assert_eq!(classify_text(text.as_bytes()), expected, "{text}");
        }
    }
}
