//! Tests names of any length, ranks outside the job, and outputs that are also inputs.

use crate::commands::run_chakram;
use std::path::Path;
use std::time::{Duration, Instant};

fn encode_varint(mut n: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while n > 127 {
        out.push((n & 127 | 128) as u8);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

fn encode_number_field(field: usize, value: usize) -> Vec<u8> {
    [encode_varint(field << 3), encode_varint(value)].concat()
}

fn encode_block_field(field: usize, value: &[u8]) -> Vec<u8> {
    [
        &encode_varint(field << 3 | 2),
        &encode_varint(value.len()),
        value,
    ]
    .concat()
}

/// Writes a trace of one compute node on the host with this name.
fn write_trace_of_named_node(path: &Path, name: &str) {
    let attribute = [
        encode_block_field(1, b"is_cpu_op"),
        encode_number_field(27, 0),
    ]
    .concat();
    let fields = [
        encode_number_field(3, 4),
        encode_number_field(7, 5),
        encode_block_field(10, &attribute),
    ]
    .concat();
    let node = [
        encode_number_field(1, 1),
        encode_block_field(2, name.as_bytes()),
        fields,
    ]
    .concat();
    let meta = encode_block_field(1, b"0.0.4");
    let records = [meta, node].map(|record| [encode_varint(record.len()), record].concat());
    std::fs::write(path, records.concat()).unwrap();
}

#[test]
fn a_name_of_a_megabyte_is_cut_and_takes_no_time() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("job.0.et");
    write_trace_of_named_node(&trace, &"A".repeat(1_000_000));
    let trace = trace.display().to_string();
    let page = folder.path().join("page.html").display().to_string();
    for (words, whole) in [
        (&["replay", &trace, "-m", "dgx-h100"][..], false),
        (&["inspect", &trace], false),
        (&["inspect", &trace, "--critical-path"], false),
        (
            &["replay", &trace, "-m", "dgx-h100", "--format", "json"],
            true,
        ),
        (&["inspect", &trace, "--format", "json"], true),
        (
            &["replay", &trace, "-m", "dgx-h100", "--html", &page],
            false,
        ),
    ] {
        let started = Instant::now();
        let output = run_chakram(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}");
        assert!(started.elapsed() < Duration::from_secs(10), "{words:?}");
        assert_eq!(
            output.stdout.len() > 1_000_000,
            whole,
            "{words:?}: {}",
            output.stdout.len()
        );
        assert!(
            whole || output.stdout.len() < 10_000,
            "{words:?}: {}",
            output.stdout.len()
        );
    }
    assert!(std::fs::metadata(&page).unwrap().len() < 200_000);
}

/// A table shows 240 characters of a name, or the whole name with details. Other formats have no
/// limit.
#[test]
fn names_that_are_cut_come_whole_with_details() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("job.0.et");
    let name = format!("kernel<{}>", "float, ".repeat(700));
    write_trace_of_named_node(&trace, &name);
    let trace = trace.display().to_string();
    let replay = |more: &[&str]| {
        let output = run_chakram(&[&["replay", &trace, "-m", "dgx-h100"], more].concat());
        assert!(output.status.success(), "{more:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let longest = |text: &str| text.lines().map(|line| line.chars().count()).max();
    let cut = replay(&[]);
    assert!(
        !cut.contains(&name) && cut.contains("kernel<float"),
        "{cut}"
    );
    assert!(longest(&cut) < Some(400), "{cut}");
    for more in [
        &["--details"][..],
        &["--format", "json"],
        &["--format", "csv", "--table", "operators"],
    ] {
        assert!(replay(more).contains(&name), "{more:?}");
    }
}

/// A machine has at most 4,194,304 NPUs, so converters accept no more ranks.
#[test]
fn converters_take_no_more_ranks_than_machines_have() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("t").display().to_string();
    for source in ["text", "simai"] {
        for npus in ["4194305", "5000000", "2147483648"] {
            let started = Instant::now();
            let output = run_chakram(&["convert", source, "x.txt", "--npus", npus, "-o", &output]);
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{error}");
            assert!(error.contains("4194304"), "{error}");
            assert!(started.elapsed() < Duration::from_secs(5));
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn calibrate_does_not_replace_what_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let name = |path: &str| at(path).display().to_string();
    let machine = run_chakram(&["machine", "show", "dgx-h100"]).stdout;
    let table = "format,m,n,k,us\nbf16,4096,4096,4096,220\n";
    std::fs::write(at("m.toml"), &machine).unwrap();
    std::fs::write(at("gemms.csv"), table).unwrap();
    std::fs::create_dir(at("in")).unwrap();
    std::os::unix::fs::symlink(at("m.toml"), at("symbolic.toml")).unwrap();
    std::fs::hard_link(at("m.toml"), at("hard.toml")).unwrap();
    let calibrate = |to: &str| {
        let [table, machine, to] = ["gemms.csv", "m.toml", to].map(name);
        run_chakram(&[
            "calibrate",
            "--gemm",
            &table,
            "--machine",
            &machine,
            "-o",
            &to,
        ])
    };
    for to in [
        "m.toml",
        "./in/../m.toml",
        "symbolic.toml",
        "hard.toml",
        "gemms.csv",
    ] {
        let output = calibrate(to);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{to}: {error}");
        assert!(error.contains("reads"), "{to}: {error}");
        assert_eq!(std::fs::read(at("m.toml")).unwrap(), machine, "{to}");
        assert_eq!(std::fs::read_to_string(at("gemms.csv")).unwrap(), table);
    }
    assert!(calibrate("new.toml").status.success());
}
