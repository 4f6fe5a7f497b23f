//! Tests anonymised traces: a replay takes as long as before, and an audit finds no names.

use super::rig::{
    build_count_attribute, build_text_attribute, case_path, decode_trace_nodes, encode_trace_file,
    expect_chakram_error, list_corpus_captures, read_job_traces,
    replay_report_json_without_job_identity, run_chakram_ok,
};
use crate::commands::run_chakram;
use crate::corpus::{find_expected_refusal, sample_every_nth};
use chakram::internals::proto::{IoInfo, Node};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Returns the report of a replay, without names.
fn replay_report_without_names(traces: &str, machine: &str, more: &[&str]) -> Vec<Value> {
    let report = replay_report_json_without_job_identity(traces, machine, more);
    let npus = report["npus"].as_array();
    let mut found = vec![report["makespan_ps"].clone(), report["nodes"].clone()];
    found.push(report["messages"].clone());
    found.push(report["captured_ps"].clone());
    assert!(!found[0].is_null() && !found[2].is_null(), "{report}");
    found.extend(npus.into_iter().flatten().cloned());
    found
}

fn audit_leaks(traces: &str) -> (i32, Value) {
    let output = run_chakram(&["audit", "--leaks", traces, "--format", "json"]);
    let found = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code().unwrap(), found)
}

fn anonymise_job(traces: &Path, into: &Path) -> PathBuf {
    let prefix = into.join("hidden");
    let (from, to) = (traces.to_str().unwrap(), prefix.to_str().unwrap());
    run_chakram_ok(&["anonymise", from, "--key", "k", "--all", "-o", to]);
    prefix
}

#[test]
fn anonymised_jobs_replay_as_long_and_leak_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for (name, machine) in [
        ("data-parallel-8", "machine.toml"),
        ("ddp-resnet18", "machine.toml"),
        ("hiermem", "machine.toml"),
    ] {
        let traces = case_path(name);
        let machine = traces.join(machine);
        let machine = machine.to_str().unwrap();
        let after = anonymise_job(&traces, &folder.path().join(name));
        let after = after.to_str().unwrap();
        let before = replay_report_without_names(traces.to_str().unwrap(), machine, &[]);
        assert_eq!(
            before,
            replay_report_without_names(after, machine, &[]),
            "{name}"
        );
        assert_eq!(audit_leaks(after).0, 0, "{name}");
        assert_eq!(
            audit_leaks(traces.to_str().unwrap()).0,
            0,
            "{name}: our own tell nothing"
        );
    }
    for (name, path) in sample_every_nth(12, list_corpus_captures()) {
        if find_expected_refusal(&name).is_some() {
            continue;
        }
        let before = folder.path().join(&name).join("plain");
        let plain = before.to_str().unwrap();
        run_chakram_ok(&["convert", "pytorch", path.to_str().unwrap(), "-o", plain]);
        assert_eq!(
            audit_leaks(plain).0,
            0,
            "{name}: nothing of these tells anything"
        );
        let after = anonymise_job(&before, &folder.path().join(&name));
        let after = after.to_str().unwrap();
        assert_eq!(audit_leaks(after).0, 0, "{name}");
        let comm = ["--comm", "captured"];
        assert_eq!(
            replay_report_without_names(plain, "dgx-h100", &comm),
            replay_report_without_names(after, "dgx-h100", &comm),
            "{name}"
        );
    }
}

#[test]
fn anonymised_names_depend_on_the_key_and_match_the_group_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let collective = Node {
        id: 1,
        name: "secret".into(),
        r#type: 7,
        attr: vec![
            build_count_attribute("comm_type", 0),
            build_count_attribute("comm_size", 64),
            build_text_attribute("pg_name", "mine"),
        ],
        inputs: Some(IoInfo {
            values: "['/home/bob/x']".into(),
            ..IoInfo::default()
        }),
        ..Node::default()
    };
    for rank in 0..2 {
        std::fs::write(
            at(&format!("a.{rank}.et")),
            encode_trace_file(std::slice::from_ref(&collective)),
        )
        .unwrap();
    }
    std::fs::write(at("groups.json"), r#"{"mine": [1, 0]}"#).unwrap();
    std::fs::write(at("key"), "k\n").unwrap();
    let (traces, groups) = (at("a"), at("groups.json"));
    let (code, found) = audit_leaks(&traces);
    assert_eq!(code, 3);
    let found = found["findings"].as_array().unwrap();
    let first = &found[0];
    assert_eq!(first["field"], "inputs.values");
    assert_eq!(
        (&first["kind"], &first["text"]),
        (&"path".into(), &"/home/bob/x".into())
    );
    assert_eq!((&first["record"], &first["node"]), (&1.into(), &1.into()));
    let said = String::from_utf8(run_chakram(&["audit", "--leaks", &traces]).stdout).unwrap();
    assert!(said.contains("USER\n  bob\n"), "{said}");
    let make = |to: &str, key: &[&str]| {
        run_chakram_ok(
            &[
                &["anonymise", &traces, "--groups", &groups, "-o", &at(to)][..],
                key,
            ]
            .concat(),
        );
        read_job_traces(&folder.path().join(to))
    };
    let by_text = make("b", &["--key", "k"]);
    assert_eq!(
        by_text,
        make("c", &["--key-file", &at("key")]),
        "one key, one result"
    );
    assert_ne!(by_text, make("d", &["--key", "other"]));
    let random = make("e", &["--random-key"]);
    assert_ne!(random, make("f", &["--random-key"]));
    assert_eq!(random[0], random[1], "alike on all ranks");
    let kept = make("g", &["--key", "k", "--keep", "sec*"]);
    assert_eq!(decode_trace_nodes(&kept[0])[0].name, "secret");
    let before =
        replay_report_json_without_job_identity(&traces, "dgx-h100", &["--groups", &groups]);
    let after = replay_report_json_without_job_identity(
        &at("b"),
        "dgx-h100",
        &["--groups", &at("b.groups.json")],
    );
    assert_eq!(before["makespan_ps"], after["makespan_ps"]);
    for bad in [&["--key", ""][..], &[], &["--key", "k", "--random-key"]] {
        expect_chakram_error(&[&["anonymise", &traces, "-o", &at("h")][..], bad].concat());
    }
    expect_chakram_error(&["audit", &traces]);
}
