//! Tests that this program and a Python reader read archives of every version of the format.

use super::{ArchiveTestFolder, list_workload_names, read_folder_files};
use crate::corpus::corpus_path_or_count_skip as shared;
use std::path::Path;
use std::process::Command;

/// Archives that earlier versions of the program wrote, one for each version of the format.
const GOLDEN: [&str; 3] = [
    "tests/it/archive/golden-1.etz",
    "tests/it/archive/golden-2.etz",
    "tests/it/archive/golden-3.etz",
];

/// Returns a Python interpreter that has the package zstandard: `CHAKRAM_PYTHON`, or `python3`.
fn find_python_with_zstandard() -> Option<String> {
    let name = std::env::var("CHAKRAM_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&name)
        .args(["-c", "import zstandard"])
        .output();
    let there = found.is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("SKIPPED: {name} has no package zstandard; CHAKRAM_PYTHON may name another");
    }
    there.then_some(name)
}

/// Extracts every workload of `archive` with this program and with the Python reader, and compares
/// the extracted files.
fn check_python_reader_agrees(corpus: &ArchiveTestFolder, python: &str, archive: &Path) {
    for (number, name) in list_workload_names(archive).iter().enumerate() {
        let (ours, theirs) = (format!("ours{number}"), format!("theirs{number}"));
        let workload = format!("{}::{name}", archive.display());
        corpus.run_successfully(&["archive", "extract", &workload, "-o", &format!("@{ours}")]);
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/converters/archive/read_archive.py"
        );
        let output = Command::new(python)
            .arg(script)
            .arg(archive)
            .arg(name)
            .arg(corpus.at(&theirs))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            read_folder_files(&corpus.at(&ours)) == read_folder_files(&corpus.at(&theirs)),
            "{name}"
        );
    }
}

#[test]
fn archives_of_every_version_are_read() {
    for golden in GOLDEN {
        let corpus = ArchiveTestFolder::new();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(golden);
        // The last version also has a captured job, whose columns are sums over other columns.
        let captured = ["captured", "default", "plain"];
        let expected = &captured[usize::from(!golden.contains('3'))..];
        assert_eq!(list_workload_names(&path), expected, "{golden}");
        let text = corpus.run_successfully(&["archive", "verify", golden]);
        assert!(text.ends_with("all committed data is intact\n"), "{text}");
        // When the format was introduced, four ranks had 28 nodes each (`default`) or 5 nodes each
        // (`plain`).
        for (name, nodes) in [("default", 112), ("plain", 20)] {
            let workload = format!("{golden}::{name}");
            let text = corpus.run_successfully(&["replay", &workload, "--machine", "dgx-h100"]);
            assert!(
                text.contains(&format!(
                    "::{name}: 4 of 4 ranks, {nodes} nodes, all completed"
                )),
                "{text}"
            );
        }
        if let Some(python) = find_python_with_zstandard() {
            check_python_reader_agrees(&corpus, &python, &path);
        }
    }
}

#[test]
fn the_reader_in_python_reads_what_is_written_today() {
    let Some(python) = find_python_with_zstandard() else {
        return;
    };
    let corpus = ArchiveTestFolder::new();
    for (kind, archive) in [(&[][..], "@a.etz"), (&["--folder"], "@a")] {
        corpus.run_successfully(&[&["archive", "create", archive], kind].concat());
        let words = [
            "generate",
            "llama3-8b",
            "--tensor",
            "2",
            "--pipeline",
            "2",
            "--batch",
            "4",
            "--tokens",
            "64",
        ];
        corpus.run_successfully(&[&words[..], &["-o", "@job/job"]].concat());
        corpus.run_successfully(&["archive", "add", archive, "@job/job", "--name", "best"]);
        corpus.run_successfully(&[
            "archive",
            "add",
            archive,
            "traces/ddp-resnet18",
            "--with",
            "docs/tutorials",
        ]);
        if let Some(capture) = shared("captures/pytorch/pp_1f1b") {
            corpus.run_successfully(&[
                "convert",
                "pytorch",
                &capture.display().to_string(),
                "-o",
                "@captured/job",
            ]);
            corpus.run_successfully(&["archive", "add", archive, "@captured/job"]);
        }
        corpus.run_successfully(&["archive", "gc", archive, "--drop", "best"]);
        corpus.run_successfully(&[
            "archive", "add", archive, "@job/job", "--name", "best", "--level", "best",
        ]);
        corpus.run_successfully(&["archive", "create", "--folder", &format!("{archive}-best")]);
        corpus.run_successfully(&[
            "archive",
            "add",
            &format!("{archive}-best"),
            "@job/job",
            "--level",
            "best",
        ]);
        check_python_reader_agrees(
            &corpus,
            &python,
            &corpus.at(&format!("{}-best", &archive[1..])),
        );
        check_python_reader_agrees(&corpus, &python, &corpus.at(&archive[1..]));
    }
}
