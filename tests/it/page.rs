//! Compares the numbers on the HTML page of a report with the JSON of the same replay, in the file
//! and, if a browser is installed, in the rendered document.

use super::commands::run_for_output;
use super::corpus::{corpus_path_or_count_skip, count_test_as_skipped};
use super::files::{Folder, write_text_trace};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// There are three jobs: one has a pipeline, memory, messages and collectives, one comes from a capture, and one has
/// only messages.
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

/// Returns the page of a job, and the report as JSON.
fn write_page_and_report(job: &[&str], folder: &Path) -> (PathBuf, Value) {
    let path = folder.join("page.html");
    let html = path.to_str().expect("the name is text");
    let json = run_for_output(&[job, &["--format", "json", "--html", html]].concat());
    (path, serde_json::from_str(&json).expect("it is JSON"))
}

/// Returns the values of the attribute `name="…"` in a page, and the text after each value.
fn find_attribute_values<'p>(page: &'p str, name: &str) -> Vec<(String, &'p str)> {
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

/// Compares the numbers of a page with the report, and returns their count.
pub fn check_page_numbers_match_report(page: &str, report: &Value) -> usize {
    let paths = find_attribute_values(page, "data-path");
    for (path, behind) in &paths {
        let (value, _) = find_attribute_values(behind, "data-value").swap_remove(0);
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

/// Returns the browser that `CHAKRAM_BROWSER` names, or an installed Chromium.
fn find_browser() -> Option<String> {
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
        count_test_as_skipped("there is no Chromium, and CHAKRAM_BROWSER names no browser like it");
    }
    found
}

/// Returns the page's document after its script ran in the browser.
fn dump_page_document_in_browser(browser: &str, page: &Path, folder: &Path) -> String {
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
        let (path, report) = write_page_and_report(job, folder.path());
        let page = std::fs::read_to_string(path).expect("the page is there");
        let numbers = check_page_numbers_match_report(&page, &report);
        assert!(numbers >= least, "{job:?}: {numbers} numbers");
        // The page loads no resources, and runs only its own script.
        for part in [
            "http:", "https:", "<link", "<img", "src=", "@import", "url(",
        ] {
            assert!(!page.contains(part), "{job:?}: {part}");
        }
        assert_eq!(page.matches("<script").count(), 1, "{job:?}");
    }
}

/// Collapses white space in `text` to single spaces.
fn collapse_whitespace(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the visible words of HTML. Numbers are parts of words, and other elements separate
/// words.
fn extract_visible_words(html: &str) -> String {
    let html = html.replace("</data>", "");
    let mut words = String::new();
    for part in html.split('<') {
        let (tag, rest) = part.split_once('>').unwrap_or(("", part));
        if !tag.starts_with("data") {
            words.push(' ');
        }
        words += rest;
    }
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    let plain = entities
        .iter()
        .fold(words, |words, (entity, c)| words.replace(entity, c));
    collapse_whitespace(&plain)
}

/// Returns the rows of all tables, including headings. Cells do not contain the details below a
/// name.
fn extract_table_rows(page: &str) -> Vec<String> {
    let rows = page.split("<tr").skip(1).map(|row| {
        let row = row.split("</tr>").next().unwrap_or_default();
        let row = &row[row.find('>').map_or(0, |end| end + 1)..];
        let mut cells = String::new();
        let mut rest = row;
        while let Some((cell, below)) = rest.split_once("<small>") {
            cells += cell;
            rest = below.split_once("</small>").map_or("", |(_, rest)| rest);
        }
        extract_visible_words(&(cells + rest))
    });
    rows.collect()
}

/// Returns `true` if `row` begins with `line`, in which `…` matches anything.
fn row_begins_with_pattern(row: &str, line: &str) -> bool {
    let mut rest = row;
    for (i, part) in line.split('…').enumerate() {
        rest = match (i, rest.find(part)) {
            (0, Some(0)) | (1.., Some(_)) => {
                let at = rest.find(part).unwrap_or(0);
                &rest[at + part.len()..]
            }
            _ => return false,
        };
    }
    rest.is_empty() || rest.starts_with(' ')
}

/// Compares a page with the text of the same report, and returns the number of lines. Each sentence of the text is on
/// the page, and each table row is a row of the page.
pub fn check_page_contains_report_text(text: &str, page: &str) -> usize {
    let all = extract_visible_words(page);
    let rows: Vec<String> = extract_table_rows(page)
        .iter()
        .map(|row| row.to_lowercase())
        .collect();
    let mut lines = 0;
    let mut body = text.lines();
    let head = body.next().expect("there is a headline");
    let (_, scope) = head.split_once(": ").expect("it has a title");
    assert!(all.contains(scope), "{scope}");
    for line in body {
        let line = collapse_whitespace(line.trim_start().trim_start_matches("! "));
        // Lines about omitted rows differ between the text and the page.
        if line.is_empty() || line.starts_with('…') || line == "WARNINGS" {
            continue;
        }
        lines += 1;
        let row = line.to_lowercase();
        let found = all.contains(&line) || rows.iter().any(|of| row_begins_with_pattern(of, &row));
        assert!(found, "the page lacks `{line}` of\n{text}");
    }
    lines
}

/// Facts in the JSON that the page must show if the report states them.
const FACTS: [&str; 30] = [
    "/makespan_ps",
    "/ranks",
    "/nodes",
    "/captured_ps",
    "/interval/low_ps",
    "/interval/high_ps",
    "/interval/kernels_by_curves_ps",
    "/interval/follows_ps",
    "/extrapolation/makespan_ps",
    "/extrapolation/error_ps",
    "/profiler/makespan_with_ps",
    "/profiler/without/makespan_ps",
    "/profiler/without/low_ps",
    "/throughput/tokens_per_s",
    "/throughput/samples_per_s",
    "/throughput/mfu",
    "/throughput/hfu",
    "/unknown/0/nodes",
    "/unknown/0/without_time",
    "/memory_accesses/0/bytes",
    "/links/dimensions/0/bytes",
    "/tiles/links_of_machine",
    "/steps/1/time_ps",
    "/npus/0/time_ps/compute",
    "/npus/0/time_ps/idle",
    "/npus/0/captured_ps",
    "/critical_path/slack/0/median_ps",
    "/critical_path/time_ps/host",
    "/mean_ps/compute",
    "/mean_ps/host",
];

/// Compares a job's page with its text and its JSON.
fn check_page_against_text_and_json(job: &[&str], folder: &Path) -> String {
    let html = folder.join("facts.html").display().to_string();
    let text = run_for_output(&[job, &["--html", &html]].concat());
    // If a page is written, the JSON also contains the data of its charts.
    let other = folder.join("other.html").display().to_string();
    let json = run_for_output(&[job, &["--format", "json", "--html", &other]].concat());
    let report: Value = serde_json::from_str(&json).expect("it is JSON");
    let page = std::fs::read_to_string(&html).expect("the page is there");
    assert!(
        check_page_contains_report_text(&text, &page) >= 15,
        "{job:?}"
    );
    check_page_numbers_match_report(&page, &report);
    for fact in FACTS {
        let shown = page.contains(&format!("data-path=\"{fact}\""));
        // A part of the time that occurs on no rank gets no row.
        let known = report.pointer(fact).and_then(Value::as_f64);
        assert!(
            shown || known.is_none_or(|number| number == 0.0),
            "{job:?}: {fact}"
        );
    }
    text
}

/// The pages show captures, a pipeline, jobs that do not fit, kernel launches, tiles, links and loads, each with its
/// warnings.
#[test]
fn pages_have_all_that_the_text_has() {
    let large: &[&str] = &[
        "generate",
        "llama3-70b",
        "--tensor",
        "8",
        "--batch",
        "8",
        "-m",
        "dgx-h100",
    ];
    // Of 19 us, 14 us are host time.
    let host = Folder::new();
    let dispatch = "\"name\":\"dispatch\",\"type\":\"COMP_NODE\",\"duration_micros\":14,\
                    \"attr\":[{\"name\":\"is_cpu_op\",\"bool_val\":true}]";
    let kernel = "\"name\":\"kernel\",\"type\":\"COMP_NODE\",\"duration_micros\":5,\"data_deps\":[1],\
                  \"attr\":[{\"name\":\"is_cpu_op\",\"bool_val\":false}]";
    write_text_trace(&host, "job.0.jsonl", &[dispatch, kernel]);
    let host = host.path().join("job.0.jsonl").display().to_string();
    let jobs: [(&[&str], &[&str]); 10] = [
        (
            &["replay", &host, "-m", "dgx-h100"],
            &["HOST-BOUND  most of the time"],
        ),
        (JOBS[0], &["PREDICTED", "pipeline bubble", "has no effect"]),
        (
            JOBS[1],
            &[
                "CPU CAPTURE",
                "of the wait is for rank",
                "profiler",
                "REPLAY AGAINST CAPTURE",
            ],
        ),
        (JOBS[2], &["messages between ranks"]),
        (
            &["replay", "traces/ddp-resnet18", "--comm", "recorded"],
            &["collectives, as recorded"],
        ),
        (
            &["replay", "traces/tight-2", "--links"],
            &["OUT OF MEMORY", "bottleneck"],
        ),
        (&["replay", "traces/tp-mlp"], &["CRITICAL PATH"]),
        (
            &["replay", "traces/wafer-8", "--links", "--network", "links"],
            &["DIMENSIONS"],
        ),
        (
            large,
            &["OUT OF MEMORY  8 of 8 ranks", "! out of memory: rank 0"],
        ),
        (
            &["replay", "traces/prefetch-4", "--aggregate"],
            &["groups", "LOADS AND STORES"],
        ),
    ];
    let folder = tempfile::tempdir().expect("there is room");
    for (job, said) in jobs {
        let text = check_page_against_text_and_json(job, folder.path());
        for words in said {
            assert!(text.contains(words), "{job:?}: {words} in\n{text}");
        }
    }
}

/// These GPU captures are from other people, and their text reports have many caveats.
#[test]
fn pages_of_captures_have_all_that_the_text_has() {
    for (name, said) in [("dlrm_8gpu", "HOST-BOUND"), ("linear_pair", "profiler")] {
        let Some(capture) = corpus_path_or_count_skip(format!("captures/gpu/{name}")) else {
            return;
        };
        let folder = tempfile::tempdir().expect("there is room");
        let job = folder.path().join("job").display().to_string();
        let capture = capture.display().to_string();
        run_for_output(&["convert", "pytorch", &capture, "-o", &job]);
        let text =
            check_page_against_text_and_json(&["replay", &job, "-m", "dgx-h100"], folder.path());
        assert!(text.contains(said), "{name}: {text}");
    }
}

/// Ranks 64 to 959 of 1,024 do not fit in memory, because each has two micro-batches of eight
/// samples in flight.
#[test]
fn memory_is_by_class_of_ranks_with_the_worst_first() {
    let job = [
        "generate",
        "llama3-405b",
        "--tensor",
        "8",
        "--pipeline",
        "16",
        "--data",
        "8",
        "--batch",
        "128",
        "--micro-batch",
        "8",
        "--sequence-parallel",
        "--zero",
        "1",
        "--split",
        "layers",
        "-m",
        "dgx-h100x128",
    ];
    let folder = tempfile::tempdir().expect("there is room");
    let html = folder.path().join("oom.html").display().to_string();
    let text = run_for_output(&[&job[..], &["--html", &html]].concat());
    assert!(text.contains("OUT OF MEMORY"), "{text}");
    let page = std::fs::read_to_string(&html).expect("the page is there");
    check_page_contains_report_text(&text, &page);
    let (_, memory) = page
        .split_once("<section id=\"memory\">")
        .expect("it has memory");
    let (memory, _) = memory.split_once("</section>").expect("it ends");
    let first = memory.split("<tr").nth(2).expect("there is a row");
    assert!(first.starts_with(" class=\"alarm\""), "{first}");
    assert!(
        extract_visible_words(first).contains(" of 80.0 GB"),
        "{first}"
    );
    // Every rank is in one of memory's rows.
    assert!(memory.contains("-1023<"), "{memory:.3000}");
    assert!(page.len() < 2_000_000, "{}", page.len());
    // The page shows one rank of each stage, which represents 64 ranks with equal work.
    let all = extract_visible_words(&page);
    assert!(
        all.contains("16 of 1,024 ranks are drawn, one for all"),
        "{all:.3000}"
    );
    assert!(all.contains("rank 64 (+63)"), "{all:.3000}");
}

#[test]
fn names_are_escaped_in_the_page() {
    let folder = tempfile::tempdir().expect("there is room");
    let html = folder.path().join("page.html");
    let bad = folder.path().join("<b>&\"x");
    let bad = bad.to_str().expect("the name is text");
    run_for_output(&[
        "generate", "p2p", "ring", "--size", "1MiB", "--ranks", "2", "-o", bad,
    ]);
    let html = html.to_str().expect("the name is text");
    run_for_output(&["replay", bad, "-m", "dgx-h100", "--html", html]);
    let page = std::fs::read_to_string(html).expect("the page is there");
    assert!(
        !page.contains("<b>&\"") && page.contains("&lt;b&gt;&amp;&quot;x"),
        "{page:.300}"
    );
}

#[test]
fn bars_in_a_browser_are_as_long_as_the_times_of_the_report() {
    let Some(browser) = find_browser() else {
        return;
    };
    let folder = tempfile::tempdir().expect("there is room");
    let (path, report) = write_page_and_report(JOBS[0], folder.path());
    let page = std::fs::read_to_string(&path).expect("the page is there");
    // Writes measured sizes into the document, so that the dump shows them.
    let script = "<script>for (const mark of document.querySelectorAll('rect[data-key], data'))\
        mark.setAttribute('data-seen', mark.getBoundingClientRect().width);</script></body>";
    let measured = folder.path().join("measured.html");
    std::fs::write(&measured, page.replace("</body>", script)).expect("there is room");
    let seen = dump_page_document_in_browser(&browser, &measured, folder.path());
    assert!(check_page_numbers_match_report(&seen, &report) >= 80);
    let makespan = report["makespan_ps"].as_f64().expect("it is a number");
    let mut rows: Vec<(String, f64, f64)> = Vec::new();
    for (row, behind) in find_attribute_values(&seen, "data-row") {
        let of = |name| find_attribute_values(behind, name).swap_remove(0).0;
        let (key, value, width) = (of("data-key"), of("data-value"), of("data-seen"));
        let value: f64 = value.parse().expect("it is a number");
        let ranks = report["npus"].as_array().expect("there are ranks");
        let expected = match row.split_once(' ') {
            None => report.pointer(&format!("/mean_ps/{key}")),
            Some((_, format_rank_list)) => {
                let first: usize = format_rank_list.split('-').next().unwrap().parse().unwrap();
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
    // A full bar stands for the makespan, and is as long as the scale.
    let mean: f64 = rows
        .iter()
        .filter(|row| row.0 == "mean")
        .map(|row| row.1)
        .sum();
    assert!((mean - makespan).abs() <= 5.0, "{mean} of {makespan}");
    // Every number is visible on the page.
    let shown = find_attribute_values(&seen, "data-path").into_iter();
    let widths =
        shown.map(|(_, behind)| find_attribute_values(behind, "data-seen").swap_remove(0).0);
    assert!(
        widths
            .into_iter()
            .all(|width| width.parse::<f64>().is_ok_and(|width| width > 0.0))
    );
}

/// A page of several machines shows the interval and the warnings of each machine, and the numbers of the combined
/// document.
#[test]
fn machines_side_by_side_keep_their_caveats() {
    let folder = tempfile::tempdir().expect("there is room");
    let html = folder.path().join("machines.html").display().to_string();
    let job = [
        "replay",
        "traces/ddp-resnet18",
        "-m",
        "dgx-a100",
        "-m",
        "dgx-h100",
        "--compute",
        "roofline",
    ];
    let text = run_for_output(&job);
    let json = run_for_output(&[&job[..], &["--format", "json", "--html", &html]].concat());
    let report: Value = serde_json::from_str(&json).expect("it is JSON");
    let page = std::fs::read_to_string(&html).expect("the page is there");
    assert!(check_page_numbers_match_report(&page, &report) >= 80);
    let all = extract_visible_words(&page);
    for line in text.lines().skip(1).map(collapse_whitespace) {
        let known = line.trim_start_matches("! ").trim_start_matches("WHY ");
        let is_heading = known.starts_with(|c: char| c.is_uppercase());
        assert!(is_heading || all.contains(known), "`{known}` in\n{text}");
    }
    // Each machine has its own charts.
    assert_eq!(page.matches("<h3>Activity by rank</h3>").count(), 2);
    for machine in ["dgx-a100", "dgx-h100"] {
        let alone = run_for_output(
            &[&["replay", "traces/ddp-resnet18", "-m", machine], &job[6..]].concat(),
        );
        let captured = alone.lines().filter(|line| {
            ["PREDICTED", "CPU CAPTURE", "profiler"]
                .iter()
                .any(|lead| line.starts_with(lead))
        });
        let lines: Vec<_> = captured.map(collapse_whitespace).collect();
        assert!(lines.len() >= 2, "{alone}");
        for line in lines.iter().filter(|line| !line.starts_with("profiler")) {
            assert!(all.contains(line), "{machine}: `{line}`");
        }
    }
}

/// The page of two reports has the numbers of their differences.
#[test]
fn differences_of_reports_have_a_page() {
    let folder = tempfile::tempdir().expect("there is room");
    let at = |name: &str| folder.path().join(name).display().to_string();
    for (name, batch) in [("a.json", "16"), ("b.json", "32")] {
        let mut job = JOBS[0].to_vec();
        let place = job.iter().position(|word| *word == "--batch");
        job[place.expect("it has a batch") + 1] = batch;
        let report = run_for_output(&[&job[..], &["--format", "json"]].concat());
        std::fs::write(at(name), report).expect("there is room");
    }
    let html = at("diff.html");
    let json = run_for_output(&[
        "diff",
        &at("a.json"),
        &at("b.json"),
        "--format",
        "json",
        "--html",
        &html,
    ]);
    let diff: Value = serde_json::from_str(&json).expect("it is JSON");
    let page = std::fs::read_to_string(&html).expect("the page is there");
    assert!(check_page_numbers_match_report(&page, &diff) >= 50);
    for pointer in [
        "makespan_ps/before",
        "makespan_ps/after",
        "parts/0/mean_ps/after",
        "parts/0/behind/0/mean_ps/after",
    ] {
        assert!(
            page.contains(&format!("data-path=\"/replays/0/{pointer}\"")),
            "{pointer}"
        );
    }
    let refused = super::commands::run_chakram(&[
        "diff",
        "traces/tight-2",
        "traces/tight-2",
        "--html",
        &html,
    ]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("--html shows reports"), "{error}");
}
