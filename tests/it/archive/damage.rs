//! Bytes that are not what was written.

use super::Corpus;
use chakram::archive::Archive;
use std::path::Path;

/// Whether the archive at `path` is known to be damaged. Panics and hangs are neither.
fn is_noticed(path: &Path) -> bool {
    match Archive::open(path) {
        Err(_) => true,
        Ok(archive) => match archive.verify(&|| ()) {
            Err(_) => true,
            Ok(verdict) => !verdict.is_sound() || verdict.tail.is_some(),
        },
    }
}

#[test]
fn every_changed_byte_of_a_file_is_noticed() {
    let corpus = Corpus::new();
    corpus.ok(&["archive", "create", "@a.etz"]);
    corpus.ok(&[
        "generate",
        "collective",
        "all-reduce",
        "--ranks",
        "2",
        "--size",
        "1 kB",
        "-o",
        "@job",
    ]);
    corpus.ok(&["archive", "add", "@a.etz", "@job", "--set", "gpu=h100"]);
    let path = corpus.at("a.etz");
    let sound = std::fs::read(&path).unwrap();
    assert!(!is_noticed(&path));
    for at in 0..sound.len() {
        for bit in [at % 8, (at + 5) % 8] {
            let mut bytes = sound.clone();
            bytes[at] ^= 1 << bit;
            std::fs::write(&path, &bytes).unwrap();
            assert!(is_noticed(&path), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn every_changed_byte_of_a_folder_is_noticed() {
    let corpus = Corpus::new();
    corpus.ok(&["archive", "create", "--folder", "@a"]);
    corpus.small("@a", "x", "1");
    for file in ["manifest", "packs/00000001.etz"] {
        let path = corpus.at("a").join(file);
        let sound = std::fs::read(&path).unwrap();
        for at in (0..sound.len()).step_by(if file == "manifest" { 1 } else { 7 }) {
            let mut bytes = sound.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&path, &bytes).unwrap();
            assert!(is_noticed(&corpus.at("a")), "{file}, byte {at}");
        }
        std::fs::write(&path, &sound).unwrap();
        assert!(!is_noticed(&corpus.at("a")));
    }
}

#[test]
#[ignore = "takes minutes: cargo test --release --test it archive -- --ignored"]
fn ten_thousand_changed_bits_of_a_large_archive_are_noticed() {
    let corpus = Corpus::new();
    corpus.ok(&["archive", "create", "@a.etz"]);
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/ddp-resnet18/capture");
    let capture = capture.display().to_string();
    corpus.ok(&["convert", "pytorch", &capture, "-o", "@captured/job"]);
    corpus.ok(&[
        "archive",
        "add",
        "@a.etz",
        "@captured/job",
        "--name",
        "captured",
        "--with",
        &capture,
    ]);
    for (layers, level) in [("4", "plain"), ("20", "default"), ("40", "best")] {
        let at = format!("@{level}/job");
        corpus.ok(&[
            "generate",
            "data-parallel",
            "--ranks",
            "8",
            "--layers",
            layers,
            "-o",
            &at,
        ]);
        corpus.ok(&[
            "archive", "add", "@a.etz", &at, "--name", level, "--level", level,
        ]);
    }
    let path = corpus.at("a.etz");
    let sound = std::fs::read(&path).unwrap();
    assert!(sound.len() > 100_000, "{}", sound.len());
    let mut state = 1u64;
    for _ in 0..10_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let at = (state >> 20) as usize % sound.len();
        let bit = (state >> 60) % 8;
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << bit;
        std::fs::write(&path, &bytes).unwrap();
        assert!(is_noticed(&path), "byte {at}, bit {bit}");
    }
}

#[test]
fn a_tail_is_told_and_what_is_before_it_stays() {
    let corpus = Corpus::new();
    corpus.ok(&["archive", "create", "@a.etz"]);
    corpus.small("@a.etz", "first", "1");
    let path = corpus.at("a.etz");
    let before = std::fs::read(&path).unwrap().len();
    corpus.small("@a.etz", "second", "2");
    let whole = std::fs::read(&path).unwrap();
    for length in before..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let archive = Archive::open(&path).unwrap();
        assert_eq!(
            archive.workloads().keys().collect::<Vec<_>>(),
            ["first"],
            "{length}"
        );
        assert_eq!(archive.tail(), (length - before) as u64);
        if (length - before).is_multiple_of(97) || length + 100 > whole.len() {
            let verdict = archive.verify(&|| ()).unwrap();
            assert!(verdict.is_sound());
            let told = verdict.tail.unwrap_or_default();
            // What it was going to be is told as soon as that is there.
            assert!(
                length < before + 200 || told.contains("`add` that was not finished: second"),
                "{told}"
            );
        }
    }
    // A later command removes it and goes on.
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    corpus.small("@a.etz", "third", "3");
    assert_eq!(super::names(&path), ["first", "third"]);
    assert!(!is_noticed(&path));
    // Nothing of the first segment, nothing at all.
    for length in [0, 1, 91, 100] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(
            corpus
                .fails(2, &["archive", "list", "@a.etz"])
                .contains("this is no archive")
        );
    }
}

#[test]
fn what_is_no_archive_is_refused() {
    let corpus = Corpus::new();
    for (name, bytes) in [
        ("zeros", vec![0; 100_000]),
        ("text", b"hello\n".repeat(5000)),
        ("empty", vec![]),
    ] {
        std::fs::write(corpus.at(name), bytes).unwrap();
        let path = format!("@{name}");
        let error = corpus.fails(2, &["archive", "verify", &path]);
        assert!(error.contains("this is no archive"), "{error}");
    }
    std::fs::create_dir(corpus.at("folder")).unwrap();
    assert!(
        corpus
            .fails(2, &["archive", "list", "@folder"])
            .contains("this folder is no archive")
    );
}
