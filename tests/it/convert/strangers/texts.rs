//! Tests encodings, compression, and texts that are not captures.

use super::gpu_job::{
    assert_conversion_refused, assert_job_converts_with_device_time, convert_rank_files,
    generate_rank_files, has_category, sum_kernel_ns, trace_events_mut, try_convert_files,
};
use chakram::trace::MaybeCompressedWriter;
use serde_json::{Value, json};
use std::io::Write;

const RANKS: u64 = 2;
const LAYERS: u64 = 2;

fn compress_text(text: &[u8], ending: &str) -> Vec<u8> {
    let mut packer = MaybeCompressedWriter::new(Vec::new(), ending).unwrap();
    packer.write_all(text).unwrap();
    packer.finish().unwrap()
}

fn encode_as_utf16(text: &str, mark: bool, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
    let mark = std::iter::once(0xfeff).filter(|_| mark);
    mark.chain(text.encode_utf16()).flat_map(bytes).collect()
}

#[test]
fn captures_in_any_text_encoding_and_compression_are_read() {
    let all = generate_rank_files(RANKS, LAYERS);
    let device = sum_kernel_ns(&all);
    let halves = |text: &str, ending: &str| {
        let (one, other) = text.as_bytes().split_at(text.len() / 2);
        [compress_text(one, ending), compress_text(other, ending)].concat()
    };
    type Saved<'a> = (&'a str, Box<dyn Fn(&str) -> Vec<u8> + 'a>);
    let saved: [Saved<'_>; 9] = [
        (
            "UTF-8 with a mark",
            Box::new(|text| [b"\xef\xbb\xbf", text.as_bytes()].concat()),
        ),
        (
            "UTF-16, low byte first",
            Box::new(|text| encode_as_utf16(text, true, u16::to_le_bytes)),
        ),
        (
            "UTF-16, high byte first",
            Box::new(|text| encode_as_utf16(text, true, u16::to_be_bytes)),
        ),
        (
            "UTF-16 without a mark, low",
            Box::new(|text| encode_as_utf16(text, false, u16::to_le_bytes)),
        ),
        (
            "UTF-16 without a mark, high",
            Box::new(|text| encode_as_utf16(text, false, u16::to_be_bytes)),
        ),
        ("gzip in two members", Box::new(|text| halves(text, "gz"))),
        ("zstd in two frames", Box::new(|text| halves(text, "zst"))),
        (
            "a bare list",
            Box::new(|text| {
                let file: Value = serde_json::from_str(text).unwrap();
                file["traceEvents"].to_string().into_bytes()
            }),
        ),
        (
            "line ends of Windows",
            Box::new(|text| {
                let file: Value = serde_json::from_str(text).unwrap();
                serde_json::to_string_pretty(&file)
                    .unwrap()
                    .replace('\n', "\r\n")
                    .into_bytes()
            }),
        ),
    ];
    for (what, save) in saved {
        let texts: Vec<Vec<u8>> = all.iter().map(|file| save(&file.to_string())).collect();
        assert_job_converts_with_device_time(what, &texts, device, LAYERS);
    }
}

/// A profile with thousands of invalid JSON numbers gives one note, not thousands.
#[test]
fn repairs_of_one_kind_are_one_remark() {
    let mut all = generate_rank_files(RANKS, LAYERS);
    let device = sum_kernel_ns(&all);
    for file in &mut all {
        for event in trace_events_mut(file)
            .iter_mut()
            .filter(|event| has_category(event, "kernel"))
        {
            event["args"]["est. achieved occupancy %"] = json!("NaN");
        }
    }
    let texts: Vec<String> = all
        .iter()
        .map(|file| file.to_string().replace("\"NaN\"", "NaN"))
        .collect();
    let job = assert_job_converts_with_device_time("numbers that are none", &texts, device, LAYERS);
    for rank in &job.summary.ranks {
        let [line] = &rank.repairs[..] else {
            panic!("{:?}", rank.repairs);
        };
        // Each layer has a matrix product and an all-reduce.
        assert!(line.contains("`NaN`, and 3 more"), "{line}");
    }
}

#[test]
fn files_that_are_no_captures_are_refused_with_their_kind() {
    let one = generate_rank_files(1, 1)[0].to_string();
    let tar = [&[b'a'; 257][..], b"ustar\x0000"].concat();
    let lines = "{\"ph\": \"X\"}\n{\"ph\": \"X\"}\n".as_bytes();
    for (bytes, what) in [
        (&b"PK\x03\x04\x14\0"[..], "a zip archive"),
        (b"\xfd7zXZ\0\0", "compressed by xz"),
        (b"BZh91AY", "compressed by bzip2"),
        (b"SQLite format 3\0", "a database of SQLite"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
            "a Git LFS pointer",
        ),
        (b"\n<!DOCTYPE HTML>\n<html>", "a page of HTML"),
        (b"{\n \"rocprofiler-sdk-tool\": []}", "JSON of rocprofv3"),
        (b"", "empty"),
        (b"\xff\xfe\0\0{\0\0\0", "UTF-32"),
        (&tar, "a tar archive"),
        (lines, "events, one per line"),
    ] {
        assert_conversion_refused(
            try_convert_files(&[("kineto.0.json", bytes)]),
            &["kineto.0.json", what],
        );
    }
    let twice = format!("{one}\n{one}");
    assert_conversion_refused(
        convert_rank_files(&[twice]),
        &["kineto.0.json", "a second JSON text begins here", "split"],
    );
    let other = json!({"traceEvents": [{"ph": "X", "cat": "devtools.timeline", "name": "Task", "ts": 1, "dur": 2}]});
    assert_conversion_refused(
        convert_rank_files(&[other.to_string()]),
        &["neither operators nor kernels", "profile with"],
    );
}
