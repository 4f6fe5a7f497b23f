//! Every folder under `traces/` is a case. The case's golden, `expected.txt`, is the program's
//! output for the commands in `command.txt`. Without `command.txt`, the command is
//! `chakram astra-sim` if there is a `system.json`, and otherwise `chakram replay`. All other
//! machine files in the folder are compared with `machine.toml`.
//! `BLESS=1 cargo test --test it cases` rewrites the goldens. The commit must state why the new
//! answer is right.

use chakram::trace::DecompressedTraceFile;
use std::path::Path;
use std::process::Command;

#[test]
fn every_case_gives_its_expected_report() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cases: Vec<_> = std::fs::read_dir(root.join("traces"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    cases.sort();
    assert!(!cases.is_empty(), "there are cases");
    for case in cases {
        let relative = case.strip_prefix(root).unwrap();
        let mut found = String::new();
        for arguments in read_case_commands(root, relative) {
            let output = Command::new(env!("CARGO_BIN_EXE_chakram"))
                .current_dir(root)
                .args(&arguments)
                .output()
                .unwrap();
            found += &format!(
                "$ chakram {}\n{}{}exit code {}\n",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
                output.status.code().unwrap()
            );
            let answer = String::from_utf8_lossy(&output.stdout);
            let widest = answer.lines().map(|line| line.chars().count()).max();
            // Serving tables show the full names of request classes, so they may be wide.
            let may_be_wide = arguments[0] == "serve" || output.status.code() != Some(0);
            assert!(widest <= Some(120) || may_be_wide, "{arguments:?}");
        }
        let golden = case.join("expected.txt");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&golden, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&golden)
            .unwrap_or_else(|e| panic!("{}: {e}; BLESS=1 writes it", golden.display()));
        assert_eq!(found, expected, "{}", relative.display());
    }
}

/// Returns the arguments of a case: the lines of its `command.txt`, if it has one.
fn read_case_commands(root: &Path, case: &Path) -> Vec<Vec<String>> {
    let Ok(text) = std::fs::read_to_string(root.join(case).join("command.txt")) else {
        return vec![list_case_arguments(root, case)];
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect()
}

/// Returns the arguments that name the traces and the machine of a case.
fn list_case_arguments(root: &Path, case: &Path) -> Vec<String> {
    let name = case.display();
    if !root.join(case).join("system.json").is_file() {
        let mut arguments = vec!["replay".to_owned(), name.to_string()];
        let others = list_other_machine_files(&root.join(case));
        if !others.is_empty() {
            for file in ["machine.toml"]
                .into_iter()
                .chain(others.iter().map(String::as_str))
            {
                arguments.push(format!("--machine={name}/{file}"));
            }
        }
        return arguments;
    }
    let traces = std::fs::read_dir(root.join(case)).unwrap();
    let mut traces = traces.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let prefix = traces.find_map(|name| Some(name.strip_suffix(".0.et")?.to_owned()));
    vec![
        "astra-sim".to_owned(),
        format!("--workload-configuration={name}/{}", prefix.unwrap()),
        format!("--system-configuration={name}/system.json"),
        format!("--network-configuration={name}/network.yml"),
        format!("--remote-memory-configuration={name}/memory.json"),
    ]
}

/// Returns the names of a case's machine files other than `machine.toml`.
fn list_other_machine_files(case: &Path) -> Vec<String> {
    let files = std::fs::read_dir(case).unwrap();
    let names = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut others: Vec<_> = names
        .filter(|name| name.ends_with(".toml") && name != "machine.toml")
        .collect();
    others.sort();
    others
}

/// If a case has captures in a folder `capture`, its traces are exactly the conversions of these
/// captures.
#[test]
fn captured_cases_are_what_their_captures_convert_to() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
    let cases = std::fs::read_dir(root).unwrap();
    let cases = cases.map(|entry| entry.unwrap().path());
    let mut found = 0;
    for case in cases.filter(|case| case.join("capture").is_dir()) {
        let folder = tempfile::tempdir().unwrap();
        let prefix = match std::env::var_os("BLESS") {
            Some(_) => case.join("job"),
            None => folder.path().join("job"),
        };
        let output = Command::new(env!("CARGO_BIN_EXE_chakram"))
            .args(["convert", "pytorch"])
            .arg(case.join("capture"))
            .args(["-z", "zst", "-o"])
            .arg(&prefix)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        // Remove the job's file: a case consists only of its traces, and the file names the version that wrote it,
        // which changes with every release.
        std::fs::remove_file(prefix.with_file_name("job.job.json")).unwrap();
        for entry in std::fs::read_dir(&case).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap();
            if !name.ends_with(".et.zst") {
                continue;
            }
            // Another version of zstd may compress the same trace to other bytes, so compare the
            // contents.
            let fresh = prefix.with_file_name(name);
            let (old, new) = (
                DecompressedTraceFile::open_as_current_schema(&path).unwrap(),
                DecompressedTraceFile::open_as_current_schema(&fresh).unwrap(),
            );
            assert!(old.as_slice() == new.as_slice(), "{}", path.display());
            found += 1;
        }
    }
    assert!(found > 0, "there is such a case");
}

/// `traces/corpus.etz` is an archive of the cases that can be replayed, with their predictions. After deliberately
/// changing a case, record it with `chakram archive add … --replace` and `chakram archive baseline … --reason`.
#[test]
fn the_archive_of_the_cases_has_their_traces_and_its_predictions_stand() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let archive = root.join("traces/corpus.etz");
    let chakram = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_chakram"))
            .current_dir(root)
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let check = chakram(&["archive", "check", "traces/corpus.etz", "--threshold", "0%"]);
    assert_eq!(check, "8 predictions checked, 0 moved by more than 0 %\n");
    let folder = tempfile::tempdir().unwrap();
    let mut found = 0;
    for entry in chakram::archive::Archive::open_archive(&archive)
        .unwrap()
        .workloads()
        .values()
    {
        let workload = format!("traces/corpus.etz::{}", entry.name);
        let to = folder.path().join(&entry.name);
        chakram(&["archive", "extract", &workload, "-o", to.to_str().unwrap()]);
        for file in std::fs::read_dir(&to).unwrap() {
            let (path, case) = (file.unwrap().path(), root.join("traces").join(&entry.name));
            let original = case.join(path.file_name().unwrap());
            assert!(
                std::fs::read(&path).unwrap() == std::fs::read(&original).unwrap(),
                "{}",
                original.display()
            );
            found += 1;
        }
    }
    assert!(found > 20, "{found}");
}
