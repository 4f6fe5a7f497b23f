//! Finds traces and captures of other tools in the folder that the variable `CHAKRAM_CORPUS` names. Counts the tests
//! that lack files or a browser, and prints their names when the test process ends.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Name of each skipped test, and the missing data.
static SKIPPED: Mutex<Vec<(&str, String)>> = Mutex::new(Vec::new());

/// Returns a file or folder of the corpus. Without a corpus, returns `None` and counts the calling test as skipped.
pub fn corpus_path_or_count_skip(part: impl AsRef<Path>) -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("CHAKRAM_CORPUS") {
        return Some(Path::new(&folder).join(part));
    }
    count_test_as_skipped("CHAKRAM_CORPUS names no folder with captures and reference answers");
    None
}

/// Returns `true` if the variable `CHAKRAM_WHOLE_CORPUS` requests all cases, which are too many for every build.
pub fn is_whole_corpus_requested() -> bool {
    std::env::var_os("CHAKRAM_WHOLE_CORPUS").is_some()
}

/// Returns every `n`-th case, because all cases take too long for every build. Returns all cases if the variable
/// `CHAKRAM_WHOLE_CORPUS` is set.
pub fn sample_every_nth<T>(n: usize, all: impl IntoIterator<Item = T>) -> Vec<T> {
    let n = if is_whole_corpus_requested() { 1 } else { n };
    all.into_iter().step_by(n).collect()
}

/// Returns one member per list: the first list's member with index `turn`, the second list's member with index `turn +
/// 1`, and so on. Picked this way, a few members show all the differences between members. Returns all members if the
/// variable `CHAKRAM_WHOLE_CORPUS` is set.
pub fn pick_member_of_each_list_by_turn<T>(turn: usize, lists: Vec<Vec<T>>) -> Vec<T> {
    if is_whole_corpus_requested() {
        return lists.into_iter().flatten().collect();
    }
    let one = |(i, mut list): (usize, Vec<T>)| list.swap_remove((turn + i) % list.len());
    lists.into_iter().enumerate().map(one).collect()
}

/// Counts the calling test as skipped because of `missing` data.
pub fn count_test_as_skipped(missing: &'static str) {
    // The test harness names each thread after its test, and ends the process with `exit`, which calls
    // `report_skipped`.
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let mut skipped = SKIPPED.lock().unwrap();
    if skipped.is_empty() {
        // SAFETY: `report_skipped` is a plain function that never unwinds.
        unsafe { libc::atexit(report_skipped) };
    }
    if !skipped.contains(&(missing, test.clone())) {
        skipped.push((missing, test));
    }
}

extern "C" fn report_skipped() {
    if let Ok(mut skipped) = SKIPPED.lock() {
        skipped.sort();
        for of_one in skipped.chunk_by(|a, b| a.0 == b.0) {
            let tests: Vec<_> = of_one.iter().map(|(_, test)| &test[..]).collect();
            eprintln!(
                "\nSKIPPED: {} tests, in whole or in part: {}\n  {}\n",
                tests.len(),
                of_one[0].0,
                tests.join("\n  ")
            );
        }
    }
}

/// Contents of a case's files, by path.
pub type CaseFiles = BTreeMap<String, Vec<u8>>;

/// Returns all cases by name, unpacked in memory. Returns `None` without a corpus.
pub fn unpack_cases_in_memory() -> Option<BTreeMap<String, CaseFiles>> {
    let packed = std::fs::read(corpus_path_or_count_skip("astra-sim/cases.tar.zst")?)
        .expect("the corpus is there");
    let unpacked = zstd::decode_all(&packed[..]).expect("it is zstd");
    let mut cases: BTreeMap<String, CaseFiles> = BTreeMap::new();
    for entry in tar::Archive::new(&unpacked[..])
        .entries()
        .expect("it is tar")
    {
        let mut entry = entry.expect("it is tar");
        let path = entry
            .path()
            .expect("paths are text")
            .to_string_lossy()
            .into_owned();
        let path = path.trim_start_matches("./");
        let Some((case, file)) = path
            .split_once('/')
            .filter(|(_, file)| !file.ends_with('/'))
        else {
            continue;
        };
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("it is tar");
        if !file.is_empty() {
            cases
                .entry(case.to_owned())
                .or_default()
                .insert(file.to_owned(), bytes);
        }
    }
    assert!(cases.len() > 200, "{} cases", cases.len());
    Some(cases)
}

/// Asserts that the results equal the expected results, and prints the differences.
pub fn assert_results_match_expected_parts(
    happened: &BTreeMap<String, String>,
    expected: &[(&str, &str)],
) {
    let expected: BTreeMap<_, _> = expected.iter().copied().collect();
    let mut faults = Vec::new();
    for (name, why) in happened {
        match expected.get(name.as_str()) {
            Some(part) if why.contains(part) => {}
            Some(part) => faults.push(format!("{name}: expected `{part}`, found {why}")),
            None => faults.push(format!("{name}: unexpected: {why}")),
        }
    }
    let fine = expected
        .keys()
        .filter(|name| !happened.contains_key(**name));
    faults.extend(fine.map(|name| format!("{name}: nothing is wrong with it any more")));
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
