//! Tests captures in tar archives as people publish them: plain, gzip or zstd, in folders, and
//! among other files.

use crate::commands::run_chakram;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const CAPTURE: &str = "traces/ddp-resnet18/capture";

/// Appends an entry with a ustar header (name, mode, size in octal, kind, and checksum).
fn append_tar_entry(tar: &mut Vec<u8>, name: &str, contents: &[u8]) {
    let mut header = [0_u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(format!("{:011o}", contents.len()).as_bytes());
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    tar.extend(header);
    tar.extend(contents);
    tar.resize(tar.len().next_multiple_of(512), 0);
}

/// Returns a tar archive with the repository's capture in a folder, and with one file that is not a capture.
fn build_capture_tar() -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(CAPTURE);
    let mut files: Vec<PathBuf> = fs::read_dir(root)
        .expect("it is there")
        .map(|entry| entry.expect("it can be read").path())
        .collect();
    files.sort();
    let mut tar = Vec::new();
    append_tar_entry(&mut tar, "run/README.md", b"not a capture");
    for file in files {
        let name = file.file_name().expect("it has one").to_string_lossy();
        append_tar_entry(
            &mut tar,
            &format!("./run/{name}"),
            &fs::read(&file).expect("it is there"),
        );
    }
    tar.resize(tar.len() + 1024, 0);
    tar
}

fn compress_gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(bytes).expect("there is room");
    writer.finish().expect("there is room")
}

#[test]
fn archives_convert_as_their_folders_do() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let expected = path("expected");
    assert!(
        run_chakram(&["convert", "pytorch", CAPTURE, "-o", &expected])
            .status
            .success()
    );
    let tar = build_capture_tar();
    let forms = [
        ("capture.tar", tar.clone()),
        ("capture.tar.gz", compress_gzip(&tar)),
        ("capture.tgz", compress_gzip(&tar)),
        (
            "capture.tar.zst",
            zstd::encode_all(&tar[..], 1).expect("it packs"),
        ),
        // The program detects formats from contents, not from names.
        ("download", compress_gzip(&tar)),
    ];
    for (name, bytes) in forms {
        let file = path(name);
        fs::write(&file, bytes).expect("there is room");
        let out = path("out");
        for command in [&["convert"][..], &["convert", "pytorch"]] {
            let output = run_chakram(&[command, &[&file, "-o", &out]].concat());
            let said = String::from_utf8(output.stdout).expect("it is text");
            let error = String::from_utf8(output.stderr).expect("it is text");
            assert!(output.status.success(), "{name}: {error}");
            assert!(
                said.contains(&format!("{name}/run/README.md, no capture")),
                "{said}"
            );
            for rank in 0..2 {
                let trace = |prefix: &str| fs::read(format!("{prefix}.{rank}.et"));
                assert_eq!(trace(&out).unwrap(), trace(&expected).unwrap(), "{name}");
            }
        }
        // Errors of other commands name the command that reads the file.
        let error = String::from_utf8(run_chakram(&["inspect", &file]).stderr).expect("it is text");
        assert!(
            error.contains(&format!("chakram convert pytorch {file} -o job")),
            "{error}"
        );
    }
    // The archive is read from a folder, and no extracted file remains there.
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).expect("there is room");
    fs::copy(path("capture.tgz"), inner.join("capture.tgz")).expect("there is room");
    let out = path("out");
    let args = ["convert", "pytorch", &path("inner"), "-o", &out];
    assert!(run_chakram(&args).status.success());
    assert_eq!(
        fs::read(format!("{out}.1.et")).unwrap(),
        fs::read(format!("{expected}.1.et")).unwrap()
    );
    assert_eq!(fs::read_dir(inner).expect("it is there").count(), 1);
    // An output may not replace an input.
    let same = path("capture.tar.0.et");
    fs::write(&same, &tar).expect("there is room");
    let output = run_chakram(&["convert", "pytorch", &same, "-o", &path("capture.tar")]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read(&same).unwrap(), tar);
}

#[test]
fn archives_that_hold_none_or_too_much_are_refused() {
    let folder = tempfile::tempdir().expect("there is room");
    let refused = |name: &str, bytes: &[u8]| {
        let file = folder.path().join(name).display().to_string();
        fs::write(&file, bytes).expect("there is room");
        let out = folder.path().join("out").display().to_string();
        let output = run_chakram(&["convert", &file, "-o", &out]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        String::from_utf8(output.stderr).expect("it is text")
    };
    let mut none = Vec::new();
    append_tar_entry(&mut none, "../../etc/notes.txt", b"text");
    let error = refused("none.tar", &none);
    assert!(
        error.contains("a tar archive without captures; it contains etc/notes.txt"),
        "{error}"
    );
    // The archive is truncated inside its second file.
    let whole = build_capture_tar();
    let error = refused("cut.tar", &whole[..3 * whole.len() / 4]);
    assert!(error.contains("cut.tar"), "{error}");
    // 64 MiB of zeros compress to 7 kB.
    let mut zeros = Vec::new();
    append_tar_entry(&mut zeros, "zeros.json", &vec![0; 64 << 20]);
    let error = refused(
        "zeros.tar.zst",
        &zstd::encode_all(&zeros[..], 1).expect("it packs"),
    );
    assert!(error.contains("--max-ratio"), "{error}");
    assert!(!folder.path().join("out.0.et").exists());
}
