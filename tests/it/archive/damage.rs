//! Tests archives with damaged bytes.

use super::ArchiveTestFolder;
use crate::corpus::is_whole_corpus_requested;
use chakram::archive::Archive;
use std::path::Path;

/// Returns `true` if commands report that the archive at `path` is damaged. A panic, a hang, or a
/// report about the tail of an interrupted command does not count.
fn is_damage_noticed(path: &Path) -> bool {
    let verdict = Archive::open_archive(path).and_then(|archive| archive.verify_all(&|| ()));
    verdict.map_or(true, |verdict| !verdict.is_sound())
}

#[test]
fn every_changed_byte_of_a_file_is_noticed() {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    corpus.run_successfully(&[
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
    corpus.run_successfully(&["archive", "add", "@a.etz", "@job", "--set", "gpu=h100"]);
    let path = corpus.at("a.etz");
    let sound = std::fs::read(&path).unwrap();
    assert!(!is_damage_noticed(&path));
    // Testing every bit of every byte takes ten times as long, so only the complete test flips all bits.
    for at in 0..sound.len() {
        let bits = if is_whole_corpus_requested() {
            0..8
        } else {
            at % 8..at % 8 + 1
        };
        for bit in bits {
            let mut bytes = sound.clone();
            bytes[at] ^= 1 << bit;
            std::fs::write(&path, &bytes).unwrap();
            assert!(is_damage_noticed(&path), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn every_changed_byte_of_a_folder_is_noticed() {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&["archive", "create", "--folder", "@a"]);
    corpus.add_small_job("@a", "x", "1");
    for file in ["manifest", "packs/00000001.etz"] {
        let path = corpus.at("a").join(file);
        let sound = std::fs::read(&path).unwrap();
        for at in (0..sound.len()).step_by(if file == "manifest" { 1 } else { 7 }) {
            let mut bytes = sound.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&path, &bytes).unwrap();
            assert!(is_damage_noticed(&corpus.at("a")), "{file}, byte {at}");
        }
        std::fs::write(&path, &sound).unwrap();
        assert!(!is_damage_noticed(&corpus.at("a")));
    }
}

#[test]
#[ignore = "takes minutes: cargo test --release --test it ten_thousand -- --ignored"]
fn ten_thousand_changed_bits_of_a_large_archive_are_noticed() {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/ddp-resnet18/capture");
    let capture = capture.display().to_string();
    corpus.run_successfully(&["convert", "pytorch", &capture, "-o", "@captured/job"]);
    corpus.run_successfully(&[
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
        corpus.run_successfully(&[
            "generate",
            "data-parallel",
            "--ranks",
            "8",
            "--layers",
            layers,
            "-o",
            &at,
        ]);
        corpus.run_successfully(&[
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
        assert!(is_damage_noticed(&path), "byte {at}, bit {bit}");
    }
}

#[test]
fn unfinished_tail_is_reported_and_earlier_workloads_stay() {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    corpus.add_small_job("@a.etz", "first", "1");
    let path = corpus.at("a.etz");
    let before = std::fs::read(&path).unwrap().len();
    corpus.add_small_job("@a.etz", "second", "2");
    let whole = std::fs::read(&path).unwrap();
    for length in before..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let archive = Archive::open_archive(&path).unwrap();
        assert_eq!(
            archive.workloads().keys().collect::<Vec<_>>(),
            ["first"],
            "{length}"
        );
        let tail = archive.uncommitted_tail().map_or(0, |tail| tail.bytes);
        assert_eq!(tail, (length - before) as u64);
        if (length - before).is_multiple_of(97) || length + 100 > whole.len() {
            let verdict = archive.verify_all(&|| ()).unwrap();
            assert!(verdict.is_sound());
            assert_eq!(verdict.has_unfinished_tail(), length > before, "{length}");
            let told = verdict.tail.map_or(String::new(), |tail| tail.to_string());
            // Commands report the name of an unfinished workload as soon as it is in the file.
            let what = "`add` that was not finished; not in the archive: second";
            assert!(length < before + 200 || told.contains(what), "{told}");
        }
    }
    // A later command moves the tail to a separate file and continues. Another command after that keeps the file.
    let cut = &whole[..whole.len() - 1];
    for kept in ["a.etz.unfinished", "a.etz.unfinished.2"] {
        std::fs::write(&path, cut).unwrap();
        let verified = corpus.run_program(&["archive", "verify", "@a.etz"]);
        assert_eq!(verified.status.code(), Some(1));
        let told = String::from_utf8_lossy(&verified.stdout).into_owned();
        assert!(
            told.contains("unfinished: ") && told.contains("second"),
            "{told}"
        );
        let listed = corpus.run_program(&["archive", "list", "@a.etz"]);
        let told = String::from_utf8_lossy(&listed.stderr).into_owned();
        assert!(listed.status.success() && told.contains("second"), "{told}");
        let added =
            corpus.run_program(&["archive", "add", "@a.etz", "@first/job", "--name", "third"]);
        let told = String::from_utf8_lossy(&added.stderr).into_owned();
        assert!(told.contains(&corpus.path_text(kept)), "{told}");
        assert_eq!(std::fs::read(corpus.at(kept)).unwrap(), cut[before..]);
        assert_eq!(super::list_workload_names(&path), ["first", "third"]);
        corpus.run_successfully(&["archive", "verify", "@a.etz"]);
    }
    // A command that fails does not remove the tail.
    std::fs::write(&path, cut).unwrap();
    corpus.run_failing_with_code(
        2,
        &["archive", "add", "@a.etz", "@first/job", "--with", "@none"],
    );
    corpus.run_failing_with_code(
        2,
        &["archive", "add", "@a.etz", "@first/job", "--name", "first"],
    );
    assert_eq!(std::fs::read(&path).unwrap(), cut);
    assert!(!corpus.at("a.etz.unfinished.3").exists());
    // The file is truncated within the first segment, or empty.
    for length in [0, 1, 91, 100] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(
            corpus
                .run_failing_with_code(2, &["archive", "list", "@a.etz"])
                .contains("this is not an archive")
        );
    }
}

/// The end of the last of three workloads is damaged. The last workload was completely written, so
/// no command may treat it as unfinished.
#[test]
fn a_damaged_end_is_damage_and_no_writer_removes_it() {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    for (name, layers) in [("w1", "1"), ("w2", "2"), ("w3", "3")] {
        corpus.add_small_job("@a.etz", name, layers);
    }
    let path = corpus.at("a.etz");
    let sound = std::fs::read(&path).unwrap();
    for back in 1..=92 {
        for bit in 0..8 {
            let mut bytes = sound.clone();
            let at = bytes.len() - back;
            bytes[at] ^= 1 << bit;
            std::fs::write(&path, &bytes).unwrap();
            assert!(
                is_damage_noticed(&path),
                "{back} bytes before the end, bit {bit}"
            );
        }
    }
    // More than one bit is damaged: the last sector is zeroed, or overwritten with noise.
    let mut empty = sound.clone();
    let from = empty.len() - 300;
    empty[from..].fill(0);
    let mut more = sound.clone();
    more.extend(b"noise");
    for bytes in [&empty, &more] {
        std::fs::write(&path, bytes).unwrap();
        assert!(is_damage_noticed(&path));
    }
    let mut bytes = sound;
    let at = bytes.len() - 50;
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let verified = corpus.run_program(&["archive", "verify", "@a.etz"]);
    assert_eq!(verified.status.code(), Some(2));
    let told = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(told.contains("damaged: ") && told.contains("w3"), "{told}");
    let told = corpus.run_failing_with_code(2, &["archive", "list", "@a.etz"]);
    assert!(told.contains("w3"), "{told}");
    let told = corpus.run_failing_with_code(
        2,
        &["replay", &corpus.path_text("a.etz::w3"), "-m", "dgx-h100"],
    );
    assert!(told.contains("has a wrong checksum"), "{told}");
    corpus.run_successfully(&["archive", "create", "@b.etz"]);
    for words in [
        &["archive", "add", "@a.etz", "@w1/job", "--name", "new"][..],
        &[
            "archive", "baseline", "@a.etz", "-m", "dgx-h100", "--reason", "x",
        ],
        &["archive", "gc", "@a.etz", "--drop", "w1"],
        &["archive", "merge", "@a.etz", "@b.etz"],
        &["archive", "merge", "@b.etz", "@a.etz"],
    ] {
        let told = corpus.run_failing_with_code(2, words);
        assert!(told.contains("w3") && told.contains("head -c"), "{told}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{words:?}");
    }
    // Workloads before the damage are still readable.
    corpus.run_successfully(&["archive", "extract", "@a.etz::w1", "-o", "@out"]);
}

/// The tail contains an archive whose end matches no segment of this archive.
#[test]
fn an_archive_within_a_tail_ends_no_segment() {
    let corpus = ArchiveTestFolder::new();
    for archive in ["@a.etz", "@inner.etz"] {
        corpus.run_successfully(&["archive", "create", archive]);
    }
    corpus.add_small_job("@a.etz", "first", "1");
    let path = corpus.at("a.etz");
    let before = std::fs::read(&path).unwrap().len();
    let with = [
        "archive",
        "add",
        "@a.etz",
        "@first/job",
        "--name",
        "second",
        "--with",
        "@inner.etz",
    ];
    corpus.run_successfully(&with);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 10]).unwrap();
    let archive = Archive::open_archive(&path).unwrap();
    assert_eq!(archive.total_segment_bytes(), before as u64);
    assert!(archive.verify_all(&|| ()).unwrap().has_unfinished_tail());
}

/// The writer of a folder was interrupted after it wrote a pack, and before it wrote the manifest
/// that names the pack.
#[test]
fn a_pack_that_no_manifest_names_was_not_finished() {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&["archive", "create", "--folder", "@a"]);
    corpus.add_small_job("@a", "first", "1");
    let manifest = std::fs::read(corpus.at("a/manifest")).unwrap();
    corpus.add_small_job("@a", "second", "2");
    let pack = std::fs::read(corpus.at("a/packs/00000002.etz")).unwrap();
    std::fs::write(corpus.at("a/manifest"), manifest).unwrap();
    let verified = corpus.run_program(&["archive", "verify", "@a"]);
    assert_eq!(verified.status.code(), Some(1));
    let told = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(
        told.contains("00000002.etz") && told.contains("second"),
        "{told}"
    );
    let added = corpus.run_program(&["archive", "add", "@a", "@first/job", "--name", "third"]);
    let told = String::from_utf8_lossy(&added.stderr).into_owned();
    assert!(told.contains(&corpus.path_text("a.unfinished")), "{told}");
    assert_eq!(std::fs::read(corpus.at("a.unfinished")).unwrap(), pack);
    corpus.run_successfully(&["archive", "verify", "@a"]);
}

/// An archive of 1,387 bytes has a catalogue, with correct checksums, that claims 4,000,000 ranks of one trace of 75
/// bytes. When extracted, these ranks take at least 4,000,000 × 256 bytes (one inode each), which is 1,024 MB. A small
/// input may unpack only to 16 MiB.
#[test]
fn ranks_that_a_catalogue_claims_are_bounded_by_its_archive() {
    let corpus = ArchiveTestFolder::new();
    let bomb = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/it/archive/ranks-bomb.etz"
    );
    let workload = format!("{bomb}::s");
    for words in [
        &["archive", "extract", &workload, "-o", "@x"][..],
        &[
            "archive",
            "extract",
            &workload,
            "-o",
            "@x",
            "--ranks",
            "5-3999990",
        ],
        &["replay", &workload, "-m", "dgx-h100"],
        &["inspect", &workload],
    ] {
        let started = std::time::Instant::now();
        let told = corpus.run_failing_with_code(2, words);
        assert!(
            told.contains(" files, which take at least 64.0 MB"),
            "{told}"
        );
        assert!(told.contains("--max-ratio 4614"), "{told}");
        assert!(started.elapsed().as_secs() < 5);
    }
    assert!(!corpus.at("x").exists());
    // A single rank takes no more space than its own trace, and ranks with the same trace share one
    // file.
    corpus.run_successfully(&[
        "archive", "extract", &workload, "-o", "@x", "--ranks", "5-9",
    ]);
    assert_eq!(std::fs::read_dir(corpus.at("x")).unwrap().count(), 5);
}

/// Ranks with the same trace are one file with several names. Each name takes 8 B plus its letters,
/// so 70,000 names of at least 10 letters stay below the 16 MiB to which any archive may unpack.
#[test]
fn equal_ranks_of_large_jobs_come_out_of_a_small_archive() {
    let corpus = ArchiveTestFolder::new();
    let words = ["generate", "collective", "all-reduce", "--size", "1MB"];
    // The complete test has more names than 16 bits can count.
    let ranks = if is_whole_corpus_requested() {
        "70000"
    } else {
        "7000"
    };
    corpus.run_successfully(&[&words[..], &["--ranks", ranks, "-o", "@in/job"]].concat());
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    corpus.run_successfully(&["archive", "add", "@a.etz", "@in/job", "--name", "w"]);
    assert!(std::fs::metadata(corpus.at("a.etz")).unwrap().len() < 10_000);
    corpus.run_successfully(&["archive", "extract", "@a.etz::w", "-o", "@out"]);
    let names = |folder: &str| std::fs::read_dir(corpus.at(folder)).unwrap().count();
    assert_eq!(names("out"), names("in"));
    // A machine with too few NPUs gives an error.
    let told = corpus.run_failing_with_code(2, &["replay", "@a.etz::w", "-m", "dgx-h100"]);
    assert!(
        told.contains(&format!("the job has {ranks} ranks")),
        "{told}"
    );
}

#[test]
fn what_is_no_archive_is_refused() {
    let corpus = ArchiveTestFolder::new();
    for (name, bytes) in [
        ("zeros", vec![0; 100_000]),
        ("text", b"hello\n".repeat(5000)),
        ("empty", vec![]),
    ] {
        std::fs::write(corpus.at(name), bytes).unwrap();
        let path = format!("@{name}");
        let error = corpus.run_failing_with_code(2, &["archive", "verify", &path]);
        assert!(error.contains("this is not an archive"), "{error}");
    }
    std::fs::create_dir(corpus.at("folder")).unwrap();
    assert!(
        corpus
            .run_failing_with_code(2, &["archive", "list", "@folder"])
            .contains("this folder is not an archive")
    );
}
