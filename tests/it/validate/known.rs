//! Tests traces of other tools and of our own: they are sound except for known defects.

use crate::corpus::{
    CaseFiles, corpus_path_or_count_skip, parse_dimension_sizes, parse_rank_of_trace_file,
    unpack_cases_in_memory,
};
use chakram::internals::groups;
use chakram::trace::{DecompressedTraceFile, discover_traces};
use chakram::validate::{
    DefectKind, DefectLog, TraceDefectsAndDigest, ValidateOptions, validate_job,
};
use chakram::workload::EnforcedDependencyKinds;
use std::collections::BTreeMap;
use std::path::Path;

/// Cases with errors, and the kinds of these errors.
const UNSOUND: &[(&str, &str)] = &[
    ("u_R8_groups_nofile", "undeclared-group"),
    ("u_x_cycle", "cycle"),
    ("u_x_dup_id", "duplicate-id"),
    ("u_x_lonely_recv", "unmatched-message"),
    ("u_x_lonely_send", "unmatched-message"),
    ("u_x_missing_file", "missing-rank"),
    ("u_x_truncated", "unreadable"),
];

fn validate_files(files: &[(u32, Vec<u8>)], options: &ValidateOptions) -> DefectLog {
    let traces = files.iter().map(|(rank, contents)| {
        let trace =
            TraceDefectsAndDigest::check_trace(contents, options.dependencies, options.show);
        (*rank, trace)
    });
    let mut traces: Vec<_> = traces.collect();
    traces.sort_by_key(|(rank, _)| *rank);
    let members: Vec<_> = traces.iter().map(|(rank, trace)| (*rank, trace)).collect();
    validate_job(&members, options)
}

fn validate_case(case: &CaseFiles) -> DefectLog {
    let text = |file: &str| {
        let bytes = case.get(file)?;
        Some(std::str::from_utf8(bytes).expect("it is text"))
    };
    let sizes = parse_dimension_sizes(case);
    let options = ValidateOptions::default_options_changed_by(|o| {
        o.ranks = Some(sizes.iter().product());
        o.declared = text("comm.json").map_or_else(Default::default, |text| {
            groups::parse_group_file(text).expect("groups are well formed")
        });
        o.dimensions = Some(sizes);
        o.show = 3;
    });
    let files = case
        .iter()
        .filter_map(|(file, contents)| Some((parse_rank_of_trace_file(file)?, contents.clone())));
    validate_files(&files.collect::<Vec<_>>(), &options)
}

/// Returns the names of the error kinds.
fn list_error_kinds(findings: &DefectLog) -> String {
    let kinds = DefectKind::iter_all().filter(|&kind| {
        findings.count_of_kind(kind) > 0 && kind.severity() == chakram::validate::Severity::Error
    });
    kinds
        .map(DefectKind::stable_name)
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn astra_sim_cases_are_sound_except_the_known_unsound_ones() {
    let Some(cases) = unpack_cases_in_memory() else {
        return;
    };
    let mut unsound = BTreeMap::new();
    for (name, case) in &cases {
        let findings = validate_case(case);
        let kinds = list_error_kinds(&findings);
        if name.contains("_x_") || !kinds.is_empty() {
            println!("{name}: {}", super::format_defects(&findings));
        }
        if !kinds.is_empty() {
            unsound.insert(&name[..], kinds);
        }
    }
    let unsound: Vec<_> = unsound
        .iter()
        .map(|(name, kinds)| (*name, &kinds[..]))
        .collect();
    assert_eq!(unsound, UNSOUND);
}

#[test]
fn a_captured_trace_is_sound_but_for_control_dependencies() {
    let Some(path) = corpus_path_or_count_skip("captures/gpu/chakra_json/chakra.0.et.zst") else {
        return;
    };
    let contents =
        DecompressedTraceFile::open_as_current_schema(&path).expect("the corpus is there");
    let options = ValidateOptions::default_options_changed_by(|o| {
        o.mirror = true;
        o.show = 3;
    });
    let file = [(0, contents.as_slice().to_vec())];
    let findings = validate_files(&file, &options);
    println!("{}", super::format_defects(&findings));
    assert_eq!(list_error_kinds(&findings), "");
    assert_eq!(findings.count_of_kind(DefectKind::ControlCycle), 1);
    assert!(findings.count_of_kind(DefectKind::DanglingControl) > 1000);
    let both = ValidateOptions::default_options_changed_by(|o| {
        *o = options;
        o.dependencies = EnforcedDependencyKinds::Both;
    });
    assert_eq!(
        list_error_kinds(&validate_files(&file, &both)),
        "cycle unreachable"
    );
}

#[test]
fn our_own_cases_are_sound_but_the_one_that_is_stuck() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
    let mut sound = 0;
    for entry in std::fs::read_dir(folder).expect("the cases are there") {
        let path = entry.expect("the folder can be listed").path();
        let Ok(files) = discover_traces(&path) else {
            continue;
        };
        let files = files.iter().map(|file| {
            let contents =
                DecompressedTraceFile::open_as_current_schema(&file.path).expect("it can be read");
            (file.rank, contents.as_slice().to_vec())
        });
        let declared = std::fs::read_to_string(path.join("job.groups.json"));
        let options = ValidateOptions::default_options_changed_by(|o| {
            o.show = 3;
            if let Ok(text) = &declared {
                o.declared = groups::parse_group_file(text).expect("groups are well formed");
            }
        });
        let findings = validate_files(&files.collect::<Vec<_>>(), &options);
        let expected = match path.ends_with("deadlock-2") {
            true => "deadlock",
            false => "",
        };
        println!("{}: {}", path.display(), super::format_defects(&findings));
        assert_eq!(list_error_kinds(&findings), expected, "{}", path.display());
        assert_eq!(
            findings.count_by_severity().warnings,
            0,
            "{}",
            path.display()
        );
        sound += 1;
    }
    assert!(sound >= 4, "{sound} cases");
}

/// For truncated files, and files with lost bytes or flipped bits, the report gives the place of
/// the damage.
#[test]
fn damaged_captures_are_unsound() {
    let Some(path) = corpus_path_or_count_skip("captures/gpu/chakra_json/chakra.0.et.zst") else {
        return;
    };
    let contents =
        DecompressedTraceFile::open_as_current_schema(&path).expect("the corpus is there");
    let whole = contents.as_slice();
    let options = ValidateOptions::default_options_changed_by(|o| {
        o.mirror = true;
        o.show = 1;
    });
    let mut damaged: Vec<(String, Vec<u8>)> = Vec::new();
    for part in 1..=5 {
        let at = whole.len() * part / 6 + part;
        damaged.push((format!("cut at byte {at}"), whole[..at].to_vec()));
    }
    for (from, count) in [(0, 40), (1_000_000, 64), (2_000_000, 4096)] {
        let mut bytes = whole.to_vec();
        bytes[from..from + count].fill(0);
        damaged.push((format!("{count} zeros at byte {from}"), bytes));
    }
    for at in (1..=4).map(|i| i * 600_011) {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 0x80;
        damaged.push((format!("a bit of byte {at}"), bytes));
    }
    for (what, bytes) in damaged {
        let findings = validate_files(&[(0, bytes.clone())], &options);
        println!("{what}: {}", super::format_defects(&findings));
        let graph = chakram::workload::Graph::read_graph(&bytes, 0, EnforcedDependencyKinds::Auto);
        assert_eq!(
            graph.is_err(),
            findings.count_by_severity().errors > 0,
            "{what}"
        );
    }
}
