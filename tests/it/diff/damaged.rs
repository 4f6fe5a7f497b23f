//! Tests comparisons of damaged traces: an error or, with `--salvage`, a comparison of the readable part.

use crate::commands::run_chakram;
use proptest::prelude::*;
use std::io::Write;
use std::path::Path;

const CASE: &str = "traces/data-parallel-8/job.0.et";

fn read_case_trace() -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(CASE)).unwrap()
}

/// Runs `chakram diff` on two files with these contents. Returns the exit code, the output and the
/// errors.
fn diff_bytes(sides: [&[u8]; 2], more: &[&str]) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let paths = [("a.0.et", sides[0]), ("b.0.et", sides[1])].map(|(name, bytes)| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let output = run_chakram(&[&["diff", &*paths[0], &*paths[1]], more].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    // Line breaks in a warning depend on the lengths of file names.
    let joined = |text: String| text.replace("\n    ", " ");
    let code = output.status.code().expect("it ends by itself");
    (code, joined(text(output.stdout)), text(output.stderr))
}

#[test]
fn damage_is_an_error_of_each_side_that_has_it() {
    let whole = read_case_trace();
    let cut = &whole[..whole.len() - 3];
    let mut bent = whole.clone();
    // The middle of the file has varints of ten bytes and more.
    let middle = whole.len() / 2;
    bent[middle..middle + 12].fill(0xff);
    // A record claims 80 bytes, but only 3 bytes follow.
    let noise = [80, 1, 2, 3];
    for damaged in [cut, &bent, &noise, &[]] {
        for (sides, names) in [
            ([damaged, &whole], &["a.0.et"][..]),
            ([&whole, damaged], &["b.0.et"]),
            // Two equal damaged files are not equal traces, because they are not traces.
            ([damaged, damaged], &["a.0.et", "b.0.et"]),
        ] {
            for format in ["text", "json", "csv"] {
                let (code, text, error) = diff_bytes(sides, &["--format", format]);
                assert_eq!((code, &*text), (2, ""), "{error}");
                for name in ["a.0.et", "b.0.et"] {
                    assert_eq!(error.contains(name), names.contains(&name), "{error}");
                }
                assert!(
                    error.contains("byte ") && error.contains("--salvage"),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn salvaged_records_are_compared_and_lost_bytes_reported() {
    let whole = read_case_trace();
    let cut = &whole[..whole.len() - 3];
    // The last node is lost.
    let (code, text, error) = diff_bytes([&whole, cut], &["--salvage"]);
    assert_eq!((code, &*error), (0, ""));
    assert!(text.contains("b.0.et") && text.contains("lost: "), "{text}");
    assert!(text.contains("removed"), "{text}");
    let (code, table, error) = diff_bytes([&whole, cut], &["--salvage", "--format", "csv"]);
    assert_eq!(code, 0);
    assert!(
        table.lines().count() > 1 && error.contains("bytes are lost"),
        "{table}{error}"
    );
    // Both files lose the same node, so there is a note but no difference.
    let (code, text, _) = diff_bytes([cut, cut], &["--salvage"]);
    assert_eq!(code, 0);
    assert!(
        text.contains("lost: ") && text.contains("no differences"),
        "{text}"
    );
    // Undamaged files give no note.
    let (_, text, _) = diff_bytes([&whole, &whole], &["--salvage"]);
    let said: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(
        said,
        ["1 rank in both, 1 of them identical", "no differences"]
    );
    // If no record is sound, there is no comparison.
    let (code, _, error) = diff_bytes([&[80, 1, 2, 3], &whole], &["--salvage"]);
    assert_eq!(code, 2);
    assert!(
        error.contains("a.0.et") && !error.contains("--salvage"),
        "{error}"
    );
}

#[test]
fn a_packed_file_that_breaks_off_is_salvaged_too() {
    let whole = read_case_trace();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&whole).unwrap();
    let packed = packed.finish().unwrap();
    let cut = &packed[..packed.len() / 2];
    let (code, _, error) = diff_bytes([cut, &whole], &[]);
    assert_eq!(code, 2);
    assert!(error.contains("a.0.et: cannot decompress: "), "{error}");
    let (code, text, error) = diff_bytes([&packed, cut], &["--salvage"]);
    assert_eq!(code, 0, "{error}");
    assert!(
        text.contains("b.0.et") && text.contains("removed"),
        "{text}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Truncation at any byte is an error, unless the byte is between two records.
    #[test]
    fn truncation_is_an_error_unless_it_is_between_two_records(at in 0.0..1.0_f64) {
        let whole = read_case_trace();
        let cut = &whole[..(whole.len() as f64 * at) as usize];
        let mut frames = chakram::internals::FrameCursor::new(cut);
        let mut whole_records = !cut.is_empty();
        loop {
            match frames.next_record() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => {
                    whole_records = false;
                    break;
                }
            }
        }
        let (code, _, error) = diff_bytes([&whole, cut], &[]);
        prop_assert_eq!(code, if whole_records { 0 } else { 2 }, "{}", error);
    }
}
