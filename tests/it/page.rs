//! The page of a report: its numbers against the JSON of the same replay, in the file and, where there is a browser, in
//! what the browser makes of it.

use super::commands::answer;
use super::corpus::skipped;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Jobs with a pipeline, memory, messages and collectives; with a capture; and with nothing but messages.
const JOBS: [&[&str]; 3] = [
    &[
        "generate",
        "gpt2-small",
        "-m",
        "dgx-h100",
        "--pipeline",
        "4",
        "--data",
        "2",
        "--batch",
        "16",
        "--micro-batch",
        "1",
    ],
    &["replay", "traces/ddp-resnet18"],
    &[
        "generate", "p2p", "ring", "--size", "1MiB", "--ranks", "4", "-m", "dgx-h100",
    ],
];

/// The page of a job, and the report as JSON.
fn page(job: &[&str], folder: &Path) -> (PathBuf, Value) {
    let path = folder.join("page.html");
    let html = path.to_str().expect("the name is text");
    let json = answer(&[job, &["--format", "json", "--html", html]].concat());
    (path, serde_json::from_str(&json).expect("it is JSON"))
}

/// The values of an attribute `name="…"` of the elements of a page, and what stands behind each.
fn attributes<'p>(page: &'p str, name: &str) -> Vec<(String, &'p str)> {
    let begin = format!("{name}=\"");
    let mut found = Vec::new();
    let mut rest = page;
    while let Some((_, from)) = rest.split_once(&begin) {
        let (value, behind) = from.split_once('"').expect("an attribute ends");
        found.push((value.replace("&quot;", "\"").replace("&amp;", "&"), behind));
        rest = behind;
    }
    found
}

/// Holds the numbers of a page against the report, and returns how many there are.
pub fn check_numbers(page: &str, report: &Value) -> usize {
    let paths = attributes(page, "data-path");
    for (path, behind) in &paths {
        let (value, _) = attributes(behind, "data-value").swap_remove(0);
        let expected = report
            .pointer(path)
            .unwrap_or_else(|| panic!("the JSON has no {path}"));
        match expected.as_u64() {
            Some(whole) => assert_eq!(value, whole.to_string(), "{path}"),
            None => assert_eq!(value.parse::<f64>().ok(), expected.as_f64(), "{path}"),
        }
    }
    paths.len()
}

/// A browser, if there is one: what `CHAKRAM_BROWSER` names, or Chromium under one of its names.
fn browser() -> Option<String> {
    let named = std::env::var("CHAKRAM_BROWSER").ok();
    let known = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ];
    let mut all = named.into_iter().chain(known.map(str::to_owned));
    let found = all.find(|name| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        skipped("there is no Chromium, and CHAKRAM_BROWSER names no browser like it");
    }
    found
}

/// The page as the browser has it after its script.
fn rendered(browser: &str, page: &Path, folder: &Path) -> String {
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--dump-dom",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.join("profile").display()
        ))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("pages are text")
}

#[test]
fn numbers_of_the_page_are_those_of_the_report() {
    for (job, least) in JOBS.iter().zip([80, 40, 15]) {
        let folder = tempfile::tempdir().expect("there is room");
        let (path, report) = page(job, folder.path());
        let page = std::fs::read_to_string(path).expect("the page is there");
        let numbers = check_numbers(&page, &report);
        assert!(numbers >= least, "{job:?}: {numbers} numbers");
        // Nothing is fetched, and nothing runs.
        for part in [
            "http:", "https:", "<script", "<link", "<img", "src=", "@import", "url(",
        ] {
            assert!(!page.contains(part), "{job:?}: {part}");
        }
    }
}

#[test]
fn names_cannot_leave_their_place_in_the_page() {
    let folder = tempfile::tempdir().expect("there is room");
    let html = folder.path().join("page.html");
    let bad = folder.path().join("<b>&\"x");
    let bad = bad.to_str().expect("the name is text");
    answer(&[
        "generate", "p2p", "ring", "--size", "1MiB", "--ranks", "2", "-o", bad,
    ]);
    let html = html.to_str().expect("the name is text");
    answer(&["replay", bad, "-m", "dgx-h100", "--html", html]);
    let page = std::fs::read_to_string(html).expect("the page is there");
    assert!(
        !page.contains("<b>&\"") && page.contains("&lt;b&gt;&amp;&quot;x"),
        "{page:.300}"
    );
}

#[test]
fn bars_in_a_browser_are_as_long_as_the_times_of_the_report() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().expect("there is room");
    let (path, report) = page(JOBS[0], folder.path());
    let page = std::fs::read_to_string(&path).expect("the page is there");
    // Measures are written where the dump shows them.
    let script = "<script>for (const mark of document.querySelectorAll('rect[data-key], data'))\
        mark.setAttribute('data-seen', mark.getBoundingClientRect().width);</script></body>";
    let measured = folder.path().join("measured.html");
    std::fs::write(&measured, page.replace("</body>", script)).expect("there is room");
    let seen = rendered(&browser, &measured, folder.path());
    assert!(check_numbers(&seen, &report) >= 80);
    let makespan = report["makespan_ps"].as_f64().expect("it is a number");
    let mut rows: Vec<(String, f64, f64)> = Vec::new();
    for (row, behind) in attributes(&seen, "data-row") {
        let of = |name| attributes(behind, name).swap_remove(0).0;
        let (key, value, width) = (of("data-key"), of("data-value"), of("data-seen"));
        let value: f64 = value.parse().expect("it is a number");
        let ranks = report["npus"].as_array().expect("there are ranks");
        let expected = match row.split_once(' ') {
            None => report.pointer(&format!("/mean_ps/{key}")),
            Some((_, ranks_of)) => {
                let first: usize = ranks_of.split('-').next().unwrap().parse().unwrap();
                ranks[first].pointer(&format!("/time_ps/{key}"))
            }
        };
        assert_eq!(Some(value), expected.and_then(Value::as_f64), "{row} {key}");
        rows.push((row, value, width.parse().expect("it is a number")));
    }
    assert!(rows.len() >= 4 * 5, "{rows:?}");
    let (_, value, width) = rows
        .iter()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .expect("there are bars");
    assert!(*width > 100.0, "it is drawn at all");
    let scale = width / value;
    for (row, value, width) in &rows {
        assert!(
            (width - value * scale).abs() < 1.0,
            "{row}: {width} pixels for {value} ps"
        );
    }
    // A whole bar is the makespan: as long as the scale says.
    let mean: f64 = rows
        .iter()
        .filter(|row| row.0 == "mean")
        .map(|row| row.1)
        .sum();
    assert!((mean - makespan).abs() <= 5.0, "{mean} of {makespan}");
    // Every number takes place on the page.
    let shown = attributes(&seen, "data-path").into_iter();
    let widths = shown.map(|(_, behind)| attributes(behind, "data-seen").swap_remove(0).0);
    assert!(
        widths
            .into_iter()
            .all(|width| width.parse::<f64>().is_ok_and(|width| width > 0.0))
    );
}
