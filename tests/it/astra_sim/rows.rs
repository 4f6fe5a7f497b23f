//! Compares the plain simulator and the program with the answers of the original.

use super::product::{self, ProgramExitCodeAndFinishTimes};
use crate::corpus::{CaseFiles, corpus_path_or_count_skip, unpack_cases_in_memory};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Mutex;
use testkit::astra_sim::{load, simulate_as_astra_sim};

/// The original reads more dimensions than its array has, so it answers differently every time.
const BEYOND_MEMORY: &[&str] = &["u_x_5D"];

/// Rows that are rejected by default, but get the original's answer with `--lenient`. Each row has a part of the error.
const LENIENT: &[(&str, &str)] = &[
    (
        "u_x_cycle",
        "a cycle of dependencies: 2 (comp) → 3 (comp) → 2",
    ),
    ("u_x_dup_id", "node 1: a second node with this id"),
    ("u_x_lonely_recv", "rank 1 node 1 `recv` has no partner"),
    ("u_x_lonely_send", "rank 0 node 1 `send` has no partner"),
    ("u_x_truncated", "200 bytes, but only 7 are left"),
    (
        "u_x_typo_key",
        "key `prefered-dataset-splits`: found an unknown key",
    ),
];

/// Rows for which the original gives no answer, or gives different answers from run to run. Each row has the program's
/// exit code and, if the program gives no answer either, a part of the reason.
#[rustfmt::skip]
const OTHERS: &[(&str, i32, &str)] = &[
    ("a_R4S8_ar_1MB_s4", 2, "found 2 dimensions, expected one"),
    ("a_T444_ar_1MB_s4_lbw", 2, "found 3 dimensions, expected one"),
    ("u_R4S8_ar_1MB_s4_ring-ring-ring", 2, "found 3 names, expected one for each of the 2 dimensions"),
    ("u_R8_groups_nofile", 2, "group `1` is not declared"),
    ("u_S12_ar_1MB_s4_doubleBinaryTree", 2, "doubleBinaryTree among 12 members, which is not a power of two"),
    ("u_S12_ar_1MB_s4_halvingDoubling", 2, "halvingDoubling among 12 members, which is not a power of two"),
    ("u_S3_ar_1MB_s4_halvingDoubling", 2, "halvingDoubling among 3 members, which is not a power of two"),
    ("u_S5_ar_1MB_s4_halvingDoubling", 2, "halvingDoubling among 5 members, which is not a power of two"),
    ("u_S8_a2a_1MB_s4_direct_hd_a2a", 2, "halvingDoubling has no all-to-all"),
    ("u_T444_ar_1MB_s4_doubleBinaryTree-doubleBinaryTree-doubleBinaryTree_lbw", 2, "localBWAware needs reduce-scatter and all-gather"),
    ("u_x_5D", 0, ""),
    ("u_x_ag3B", 2, "an all-gather of 3 bytes has chunks of 0 bytes"),
    ("u_x_barrier", 2, "barrier is not supported"),
    ("u_x_barrier_after_comp", 2, "barrier is not supported"),
    ("u_x_comp_nosize", 0, ""),
    ("u_x_missing_file", 2, "wl/wl.3.et: cannot open"),
    ("u_x_noimpl", 2, "the system file has no key `all-reduce-implementation`"),
    ("u_x_nosplits", 2, "key `preferred-dataset-splits`: found nothing"),
    ("u_x_notag", 0, ""),
    ("u_x_reduce", 2, "reduce is not supported"),
];

/// Finish times and exposed communication by NPU.
type FinishAndExposedTimesByNpu = Vec<Option<(u64, i64)>>;

/// Returns the original's last line of results, if the original finished.
fn parse_expected_result(case: &CaseFiles) -> Option<Value> {
    let expected: Value = serde_json::from_slice(&case["expect.json"]).expect("it is JSON");
    let status = expected["status"].as_str().expect("a status");
    (status == "ok" || status.starts_with("SILENT STOP")).then_some(expected)
}

/// Returns the differences, if any, between the original's answer and `ends`.
fn list_answer_differences(expected: &Value, ends: &FinishAndExposedTimesByNpu) -> Vec<String> {
    let mut faults = Vec::new();
    if expected["finish_ns"].is_null() {
        let finish = |end: Option<&Option<(u64, i64)>>| end.copied().flatten().map(|end| end.0);
        let found = [ends.iter().min(), ends.iter().max()].map(finish);
        let expected = ["finish_min_ns", "finish_max_ns"].map(|key| expected[key].as_u64());
        if found != expected {
            faults.push(format!("{found:?} for {expected:?}"));
        }
        return faults;
    }
    for (npu, end) in ends.iter().enumerate() {
        let of = |key: &str| expected[key][npu.to_string()].as_i64();
        let finish = end.map(|(finish, _)| finish as i64);
        if finish != of("finish_ns") {
            faults.push(format!("{npu}: {finish:?} for {:?}", of("finish_ns")));
        }
        let exposed = end.map(|(_, exposed)| exposed);
        if exposed != of("exposed_comm_ns") {
            let expected = of("exposed_comm_ns");
            faults.push(format!("{npu}: exposed {exposed:?} for {expected:?}"));
        }
    }
    faults.truncate(4);
    faults
}

/// Returns the number of messages of each row, for tables with that column.
fn read_message_counts_of_reference_rows() -> BTreeMap<String, u64> {
    let path = corpus_path_or_count_skip("astra-sim/reference.csv").expect("a folder");
    let table = std::fs::read_to_string(path).unwrap_or_default();
    let mut lines = table.lines();
    let column = lines.next().unwrap_or_default();
    let column = column.split(',').position(|name| name == "messages");
    let row = |line: &str| {
        // Commas between quotes do not separate fields.
        let pieces = line.split('"').enumerate();
        let plain: String = pieces
            .map(|(i, t)| if i % 2 == 0 { t } else { "" })
            .collect();
        let fields: Vec<&str> = plain.split(',').collect();
        let count = fields.get(column?)?.parse().ok()?;
        Some((fields[0].to_owned(), count))
    };
    lines.filter_map(row).collect()
}

#[test]
fn the_oracle_reproduces_every_reference_row() {
    let Some(cases) = unpack_cases_in_memory() else {
        return;
    };
    let messages = read_message_counts_of_reference_rows();
    let (mut equal, mut skipped, mut faults) = (0, 0, Vec::new());
    for (name, case) in &cases {
        let Some(expected) = parse_expected_result(case) else {
            skipped += 1;
            continue;
        };
        if BEYOND_MEMORY.contains(&name.as_str()) {
            continue;
        }
        let answer =
            simulate_as_astra_sim(&load::parse_case_files(&|file| case.get(file).cloned()));
        let ends = answer.finish.iter().zip(&answer.exposed);
        let ends = ends.map(|(finish, exposed)| finish.map(|finish| (finish, *exposed as i64)));
        let mut different = list_answer_differences(&expected, &ends.collect());
        let messages = messages.get(name);
        if messages.is_some_and(|&messages| messages != answer.messages) {
            different.push(format!("{} messages for {messages:?}", answer.messages));
        }
        match different.is_empty() {
            true => equal += 1,
            false => faults.push(format!("{name}: {}", different.join("; "))),
        }
    }
    println!("the messages of {} rows are known", messages.len());
    println!("{equal} rows are equal, {skipped} have no answer");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// Runs the program on a case.
fn run_case(case: &CaseFiles, more: &[&str]) -> ProgramExitCodeAndFinishTimes {
    let folder = tempfile::tempdir().expect("a folder");
    for (file, contents) in case {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("there is room");
        std::fs::write(path, contents).expect("there is room");
    }
    let args = String::from_utf8_lossy(&case["args.txt"]).into_owned();
    let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
    product::run_chakram_astra_sim(folder.path(), &args, more)
}

/// Returns the error in the program's output for a row, if any.
fn find_row_fault(name: &str, case: &CaseFiles) -> Option<String> {
    let refused = |ran: &ProgramExitCodeAndFinishTimes, code: i32, reason: &str| {
        let as_said = ran.code == Some(code) && ran.error.contains(reason);
        (!as_said).then(|| format!("exit {:?} for {code}: {}", ran.code, ran.error))
    };
    let mut ran = run_case(case, &[]);
    let npus = load::parse_case_files(&|file| case.get(file).cloned()).npu_count();
    if let Some((_, code, reason)) = OTHERS.iter().find(|other| other.0 == name) {
        let finished = *code != 0 || (0..npus).all(|npu| ran.finish.contains_key(&npu));
        let unfinished = (!finished).then(|| "not all finish".to_owned());
        return refused(&ran, *code, reason).or(unfinished);
    }
    if let Some((_, reason)) = LENIENT.iter().find(|lenient| lenient.0 == name) {
        if let Some(fault) = refused(&ran, 2, reason) {
            return Some(fault);
        }
        ran = run_case(case, &["--lenient"]);
    }
    let Some(expected) = parse_expected_result(case) else {
        return Some(format!(
            "what is to be expected? exit {:?}: {}",
            ran.code, ran.error
        ));
    };
    let ends: FinishAndExposedTimesByNpu =
        (0..npus).map(|npu| ran.finish.get(&npu).copied()).collect();
    let mut different = list_answer_differences(&expected, &ends);
    let code = if ends.iter().all(Option::is_some) {
        0
    } else {
        1
    };
    different.extend(refused(&ran, code, ""));
    (!different.is_empty()).then(|| different.join("; "))
}

#[test]
fn the_program_reproduces_every_reference_row() {
    let Some(cases) = unpack_cases_in_memory() else {
        return;
    };
    let faults = Mutex::new(Vec::new());
    product::run_on_all_cores(cases.iter(), |(name, case)| {
        if let Some(fault) = find_row_fault(name, case) {
            let mut faults = faults.lock().expect("nobody panics");
            faults.push(format!("{name}: {fault}"));
        }
    });
    let mut faults = faults.into_inner().expect("nobody panics");
    faults.sort();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    for name in OTHERS
        .iter()
        .map(|other| other.0)
        .chain(LENIENT.iter().map(|lenient| lenient.0))
    {
        assert!(cases.contains_key(name), "{name} is no row");
    }
}
