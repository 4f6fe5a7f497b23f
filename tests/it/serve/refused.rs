//! Tests rejected scenarios and arrival files: errors name the place, what was found and what was expected.

use super::{parse_scenario_text, serve_and_list_requests_by_id};
use chakram::serve::{
    NoRequestObserver, Platform, RequestServeTimeLimitOption, Scenario, serve_requests,
};
use std::path::Path;

const GOOD: &str = "name = \"good\"
[[model]]
name = \"m\"
preset = \"vgg-16\"
deadline = \"1 s\"
[stream]
arrivals = \"poisson\"
rate = 10.0
[stop]
requests = 5
[policy]
kind = \"priority\"
aging = \"1 ms\"
";

fn parse_refused_scenario_for_error(text: &str) -> String {
    let parsed = Scenario::parse(text, "bad.toml", Path::new("."));
    parsed.expect_err("it is refused").to_string()
}

#[test]
fn wrong_keys_and_values_are_refused() {
    parse_scenario_text(GOOD);
    // Each row has the replaced text, its replacement, and parts of the error.
    let table: &[(&str, &str, &[&str])] = &[
        (
            "vgg-16",
            "vgg16",
            &[
                "bad.toml:4: key `model[0].preset`",
                "did you mean `vgg-16`?",
            ],
        ),
        (
            "rate = 10.0",
            "rate = -10.0",
            &["bad.toml:8: key `stream.rate`", "above 0"],
        ),
        (
            "rate = 10.0",
            "rte = 10.0",
            &["bad.toml:8: key `stream.rte`", "did you mean `rate`?"],
        ),
        (
            "rate = 10.0",
            "bandwidth = \"1 Gbit/s\"",
            &["key `model[0].bytes`", "found nothing"],
        ),
        (
            "\"poisson\"",
            "\"poison\"",
            &["bad.toml:7", "did you mean `poisson`?"],
        ),
        (
            "\"poisson\"",
            "\"bursts\"",
            &["bad.toml:8: key `stream.rate`", "bursts does not use"],
        ),
        (
            "requests = 5",
            "requests = 0",
            &["bad.toml:10: key `stop.requests`"],
        ),
        (
            "requests = 5",
            "requests = 5\nfirst = 6",
            &["bad.toml:11: key `stop.first`", "at most 5"],
        ),
        (
            "requests = 5",
            "",
            &["key `stop.requests`", "or a duration"],
        ),
        (
            "\"priority\"",
            "\"prioriti\"",
            &["did you mean `priority`?"],
        ),
        (
            "aging = \"1 ms\"",
            "aging = \"0 ms\"",
            &["bad.toml:13: key `policy.aging`", "more than zero"],
        ),
        (
            "aging = \"1 ms\"",
            "batch = 4",
            &["key `policy.batch`", "priority does not use"],
        ),
        (
            "deadline = \"1 s\"",
            "sparsity = 1.0",
            &["bad.toml:5: key `model[0].sparsity`", "below 1"],
        ),
        (
            "deadline = \"1 s\"",
            "latency = \"1 ms\"",
            &["key `model[0].latency`", "second source"],
        ),
        (
            "deadline = \"1 s\"",
            "distribution = \"constant\"",
            &["key `model[0].distribution`", "no effect with `preset`"],
        ),
        (
            "preset = \"vgg-16\"",
            "",
            &["key `model[0].preset`", "one of preset, jobs"],
        ),
        (
            "preset = \"vgg-16\"",
            "jobs = [{ tasks = 1, length = 2, after = [0] }]",
            &["jobs[0].after[0]", "none"],
        ),
    ];
    for (from, to, says) in table {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let error = parse_refused_scenario_for_error(&text);
        for part in *says {
            assert!(error.contains(part), "{to}: {error}");
        }
    }
}

#[test]
fn what_can_never_be_served_is_refused() {
    let fails = |text: &str, platform: Option<&str>| {
        let platform = platform.map(|name| Platform::load_by_name(name).unwrap());
        let scenario = parse_scenario_text(text);
        serve_requests(
            &scenario,
            platform.as_ref(),
            RequestServeTimeLimitOption::default(),
            &mut NoRequestObserver,
        )
        .expect_err("it is refused")
        .to_string()
    };
    let text = fails(GOOD, None);
    assert!(
        text.starts_with("test.toml:4: key `model[0].preset`")
            && text.contains("need a platform")
            && text.contains("`machine`"),
        "{text}"
    );
    let measured = GOOD.replace("preset = \"vgg-16\"", "measured = true");
    let text = fails(&measured, Some("a100x"));
    assert!(text.contains("no measurement"), "{text}");
    let batches = "kind = \"batching\"\nbatch = 4";
    let text = GOOD.replace("kind = \"priority\"\naging = \"1 ms\"", batches);
    let text = fails(
        &text.replace("preset = \"vgg-16\"", "latency = \"1 ms\""),
        None,
    );
    assert!(text.contains("time of a batch"), "{text}");
}

#[test]
fn wrong_lines_of_arrival_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("arrivals.csv");
    let run = |rows: &str| {
        std::fs::write(&path, rows).unwrap();
        let text = format!(
            "name = \"file\"\n[[model]]\nname = \"alpha\"\nlatency = \"1 us\"\n[[model]]\nname = \"beta\"\nlatency = \"2 us\"\n\
             [stream]\narrivals = \"file\"\nfile = {path:?}"
        );
        let scenario = parse_scenario_text(&text);
        serve_requests(
            &scenario,
            None,
            RequestServeTimeLimitOption::default(),
            &mut NoRequestObserver,
        )
    };
    let error = |rows: &str| run(rows).unwrap_err().to_string();
    let text = error("arrival_us,model\n1,alpha\n5,beta\n4,alpha\n");
    assert!(
        text.contains("arrivals.csv:4: found an arrival at 4.000 us, before the arrival of line 3"),
        "{text}"
    );
    let text = error("arrival_us,model\n1,alpha\n5,bet\n");
    assert!(
        text.contains("arrivals.csv:3") && text.contains("did you mean `beta`?"),
        "{text}"
    );
    let text = error("arrival_us\n-1\n");
    assert!(
        text.contains("arrivals.csv:2") && text.contains("0 or more"),
        "{text}"
    );
    let text = error("time,model\n1,alpha\n");
    assert!(
        text.contains("arrivals.csv:1") && text.contains("arrival_s"),
        "{text}"
    );
    let text = error("arrival_us,model\n1\n");
    assert!(
        text.contains("arrivals.csv:2: found 1 columns, expected 2"),
        "{text}"
    );
    assert_eq!(
        run("arrival_us,model\n1,alpha\n5,beta\n")
            .unwrap()
            .completed,
        2
    );
}

#[test]
fn arrivals_as_objects_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("arrivals.jsonl");
    let rows = "{\"timestamp\": 0, \"input_length\": 3, \"output_length\": 2, \"hash_ids\": [1]}\n\n{\"timestamp\": 2.5}\n";
    std::fs::write(&path, rows).unwrap();
    let text = format!(
        "name = \"file\"\n[[model]]\nname = \"m\"\nlatency = \"1 us\"\n\
         [stream]\narrivals = \"file\"\nfile = {path:?}\nrepeat = 2\nspeed = 2.0"
    );
    let (_, requests) = serve_and_list_requests_by_id(&parse_scenario_text(&text), None);
    // The file ends at 2.5 ms, which is 1.25 ms at double speed, and then repeats from its end.
    let at: Vec<u64> = requests
        .iter()
        .map(|request| request.arrival.0 / 1_000_000)
        .collect();
    assert_eq!(at, [0, 1250, 1250, 2500]);
    assert_eq!(requests[0].tokens, [3, 2]);
}
