//! Detects the kind of a PyTorch file from its beginning.

use super::tar::begins_with_tar_header;
use chakram_trace::format::TraceError;
use chakram_trace::format::file::DecompressedStream;
use std::io::Read;
use std::path::Path;

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureFileKind {
    /// Host trace.
    Host,
    /// Device trace.
    Kineto,
    /// Step times measured without a profiler.
    Steps,
    /// Any other file.
    Other,
}

/// Number of bytes to inspect at the beginning of a file. It is large because some device traces begin with long
/// metadata.
const BEGINNING: u64 = 1 << 16;

/// Detects the kind of the file `path` from the keys at its beginning. Does not check the rest of
/// the file.
pub fn sniff_file(path: &Path) -> Result<CaptureFileKind, TraceError> {
    let text = read_json_beginning(DecompressedStream::open_path(path)?, path)?;
    Ok(kind_of_capture_beginning(&text))
}

/// Returns the beginning of a JSON file, as UTF-8.
pub(super) fn read_json_beginning(
    stream: DecompressedStream<'_>,
    path: &Path,
) -> Result<Vec<u8>, TraceError> {
    read_decompressed_beginning(stream, path).map(skip_bom_and_reduce_utf16_to_ascii)
}

fn read_decompressed_beginning(
    stream: DecompressedStream<'_>,
    path: &Path,
) -> Result<Vec<u8>, TraceError> {
    let mut text = Vec::new();
    let read = stream.take(BEGINNING).read_to_end(&mut text);
    // The beginning of a truncated file still shows its kind, so ignore the error.
    match read {
        Err(source) if text.is_empty() => {
            Err(TraceError::from_io(path, "read or decompress", source))
        }
        _ => Ok(text),
    }
}

/// Returns the text after a byte order mark. For UTF-16, returns only the ASCII characters, which include all keys.
/// JSON contains no zero bytes. Without a byte order mark, a zero byte next to the first character therefore identifies
/// UTF-16.
fn skip_bom_and_reduce_utf16_to_ascii(text: Vec<u8>) -> Vec<u8> {
    let ascii = |pairs: &[u8], low: usize| pairs.chunks_exact(2).map(|pair| pair[low]).collect();
    match &text[..] {
        [0xef, 0xbb, 0xbf, rest @ ..] => rest.to_vec(),
        [0xff, 0xfe, rest @ ..] => ascii(rest, 0),
        [0xfe, 0xff, rest @ ..] => ascii(rest, 1),
        [b'{' | b'[', 0, ..] => ascii(&text, 0),
        [0, b'{' | b'[', ..] => ascii(&text, 1),
        _ => text,
    }
}

/// Description of Hugging Face's `config.json`.
pub const HUB_CONFIGURATION: &str =
    "a Hugging Face model configuration, a model that `chakram generate` and `chakram serve` read";

/// Returns a description of a file that is not a capture. Returns `None` unless the first bytes are enough to identify
/// the kind of file.
pub(crate) fn describe_foreign_magic(head: &[u8]) -> Option<&'static str> {
    const FORMATS: [(&[u8], &str); 8] = [
        (b"PK\x03\x04", "a zip archive; unpack it first"),
        (b"BZh", "compressed by bzip2; unpack it first"),
        (b"\xfd7zXZ\0", "compressed by xz; unpack it first"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
        (
            b"SQLite format 3\0",
            "a database of SQLite, such as Nsight Systems exports; `chakram convert nsys` reads those",
        ),
        (
            b"version https://git-lfs.github.com/",
            "a Git LFS pointer in place of the file; `git lfs pull` fetches the file",
        ),
        (b"\xff\xfe\0\0", "text in UTF-32; save it as UTF-8"),
        (b"\0\0\xfe\xff", "text in UTF-32; save it as UTF-8"),
    ];
    let known = FORMATS.iter().find(|(magic, _)| head.starts_with(magic));
    known.map(|(_, what)| *what)
}

/// Returns a description of a file that is not a capture. Returns `None` unless the beginning of the file shows its
/// kind.
pub(crate) fn describe_foreign_file(path: &Path) -> Option<&'static str> {
    /// Number of bytes at the start of a JSON file in which to look for its kind.
    const HEADING: usize = 256;
    let text = read_decompressed_beginning(DecompressedStream::open_path(path).ok()?, path).ok()?;
    let lines = || {
        let event = text.starts_with(b"{\"ph\"") || text.starts_with(b"{\"name\"");
        event.then_some("events, one per line; put them into a JSON list")
    };
    let rocprof = || {
        let key = &b"\"rocprofiler-sdk-tool\""[..];
        let has = text
            .windows(key.len())
            .take(HEADING)
            .any(|part| part == key);
        has.then_some("JSON of rocprofv3; PyTorch's profiler records the same kernels, with what launched them")
    };
    let html = || {
        let head = text.trim_ascii_start();
        let begins = |word: &[u8]| {
            let head = head.get(..word.len());
            head.is_some_and(|head| head.eq_ignore_ascii_case(word))
        };
        (begins(b"<!doctype html") || begins(b"<html")).then_some(
            "a page of HTML, expected a capture; the page may contain a link to the file itself",
        )
    };
    // A model's configuration has these keys in any order.
    let hub = || {
        let has = |key: &str| text.windows(key.len()).any(|part| part == key.as_bytes());
        (text.trim_ascii_start().starts_with(b"{")
            && (has("\"architectures\"") || has("\"model_type\""))
            && has("\"hidden_size\""))
        .then_some(HUB_CONFIGURATION)
    };
    let empty = || text.is_empty().then_some("empty");
    let tar = || match begins_with_tar_header(&text) {
        true => Some("a tar archive without captures; unpack it first"),
        false => (text.get(257..262) == Some(b"ustar"))
            .then_some("a tar archive whose first entry is damaged; copy it again"),
    };
    describe_foreign_magic(&text)
        .or_else(tar)
        .or_else(lines)
        .or_else(html)
        .or_else(rocprof)
        .or_else(hub)
        .or_else(empty)
}

/// Returns the process id that the beginning of a capture states: the host trace's, or the first event's.
pub(super) fn find_process_id(text: &[u8]) -> Option<u64> {
    const KEY: &[u8] = b"\"pid\"";
    let at = text.windows(KEY.len()).position(|part| part == KEY)? + KEY.len();
    let rest = text[at..]
        .trim_ascii_start()
        .strip_prefix(b":")?
        .trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// Returns the kind of the capture that begins with `text`.
pub(super) fn kind_of_capture_beginning(text: &[u8]) -> CaptureFileKind {
    let mut keys = SeenTopLevelJsonKeys::default();
    match text.trim_ascii_start() {
        [b'[', rest @ ..] if rest.trim_ascii_start().starts_with(b"{") => {
            return CaptureFileKind::Kineto;
        }
        [b'{', rest @ ..] => keys.scan_keys(rest),
        _ => {}
    }
    if keys.steps {
        CaptureFileKind::Steps
    } else if keys.events || keys.kineto && !keys.nodes {
        CaptureFileKind::Kineto
    } else if keys.nodes && (keys.schema || is_written_by_observer(text))
        || keys.schema && !keys.kineto
    {
        CaptureFileKind::Host
    } else {
        CaptureFileKind::Other
    }
}

/// Returns true if the observer wrote the nodes in `text`. This is needed if a file's keys were sorted, because the
/// schema then comes after the part that was read.
fn is_written_by_observer(text: &[u8]) -> bool {
    let has = |key: &[u8]| text.windows(key.len()).any(|part| part == key);
    has(b"\"rf_id\"") && (has(b"\"ctrl_deps\"") || has(b"\"fw_parent\""))
}

/// Keys seen so far in the outermost object.
#[derive(Default)]
struct SeenTopLevelJsonKeys {
    schema: bool,
    nodes: bool,
    events: bool,
    kineto: bool,
    steps: bool,
}

impl SeenTopLevelJsonKeys {
    fn scan_keys(&mut self, text: &[u8]) {
        let mut depth = 0_usize;
        let mut at = 0;
        while let Some(&byte) = text.get(at) {
            at += 1;
            match byte {
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth == 0 => return,
                b'}' | b']' => depth -= 1,
                b'"' => {
                    let start = at;
                    while text.get(at).is_some_and(|b| *b != b'"') {
                        at += 1 + usize::from(text[at] == b'\\');
                    }
                    let string = &text[start..at.min(text.len())];
                    at += 1;
                    let rest = text.get(at..).unwrap_or_default().trim_ascii_start();
                    if depth == 0 && rest.starts_with(b":") {
                        let value = rest[1..].trim_ascii_start();
                        // chakram's own reports also have a schema, but its name begins with `chakram.`.
                        if string == b"schema" && value.starts_with(b"\"chakram.")
                            || self.record_key_and_tell_if_kind_is_certain(string)
                        {
                            return;
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Records a key, and returns true if the kind is now certain.
    fn record_key_and_tell_if_kind_is_certain(&mut self, key: &[u8]) -> bool {
        match key {
            b"schema" => self.schema = true,
            b"nodes" => self.nodes = true,
            b"traceEvents" => self.events = true,
            b"unprofiled_ns" => self.steps = true,
            b"schemaVersion"
            | b"deviceProperties"
            | b"distributedInfo"
            | b"baseTimeNanoseconds"
            | b"displayTimeUnit" => self.kineto = true,
            _ => {}
        }
        self.steps || self.events || self.schema && self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_file_kind_follows_from_first_keys() {
        for (text, expected) in [
            (
                r#"{"schema": "1.0.1", "pid": 1, "nodes": ["#,
                CaptureFileKind::Host,
            ),
            (
                r#"{ "nodes": [{"traceEvents": 1}], "schema": "1""#,
                CaptureFileKind::Host,
            ),
            (
                r#"{"finish_ts": 1, "nodes": [{"ctrl_deps": 1, "rf_id": 5}"#,
                CaptureFileKind::Host,
            ),
            (
                r#"{"schemaVersion": 1, "deviceProp"#,
                CaptureFileKind::Kineto,
            ),
            (
                r#"{"metadata": {"nodes": 1, "schema": 2}, "traceEvents": [1"#,
                CaptureFileKind::Kineto,
            ),
            ("\n [ {\"ph\"", CaptureFileKind::Kineto),
            (r#"{"a": "\"schema\": "}"#, CaptureFileKind::Other),
            (r#"{"unprofiled_ns": [1, 2"#, CaptureFileKind::Steps),
            (r#"{"nodes": []}"#, CaptureFileKind::Other),
            (
                r#"{"schema": "chakram.report.1", "nodes": []}"#,
                CaptureFileKind::Other,
            ),
            (
                r#"{"workload_graph": [{"schema": 1}]}"#,
                CaptureFileKind::Other,
            ),
            ("[1]", CaptureFileKind::Other),
            ("", CaptureFileKind::Other),
            ("{\"a", CaptureFileKind::Other),
            ("{\"a\\", CaptureFileKind::Other),
            ("\u{a}\u{a}0.0.4", CaptureFileKind::Other),
        ] {
            assert_eq!(
                kind_of_capture_beginning(text.as_bytes()),
                expected,
                "{text}"
            );
        }
    }
}
