//! Tests `chakram serve` and `chakram platform` as users see them.

use crate::commands::run_chakram;
use serde_json::Value;
use std::path::Path;

const SCENARIO: &str = "name = \"small\"
seed = 2
[[model]]
name = \"quick\"
latency = \"1 ms\"
class = \"web\"
[[model]]
name = \"slow\"
latency = \"4 ms\"
weight = 0.25
class = \"web\"
[stream]
arrivals = \"poisson\"
rate = 300.0
[stop]
requests = 4000
[policy]
kind = \"first-come\"
";

fn run_for_stdout(args: &[&str]) -> String {
    let output = run_chakram(args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn call_with_scenario_file(then: impl Fn(&str, &Path)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.toml");
    std::fs::write(&path, SCENARIO).unwrap();
    then(path.to_str().unwrap(), folder.path());
}

/// The output names each given setting that changes nothing, with the reason.
#[test]
fn settings_without_effect_are_named() {
    call_with_scenario_file(|scenario, folder| {
        let warnings = |path: &str, args: &[&str]| {
            let args = [&["serve", path, "--format", "json"], args].concat();
            let json: Value = serde_json::from_str(&run_for_stdout(&args)).unwrap();
            json["reports"][0]["warnings"].to_string()
        };
        let none = "has no effect";
        for args in [["--seed", "3"], ["--requests", "3000"], ["--rate", "200"]] {
            let said = warnings(scenario, &args);
            assert!(!said.contains(none), "{args:?}: {said}");
        }
        for args in [["--seed", "2"], ["--requests", "4000"], ["--rate", "300"]] {
            let said = warnings(scenario, &args);
            let expected = format!("{} {none}: the scenario states the same value", args[0]);
            assert!(said.contains(&expected), "{args:?}: {said}");
        }
        // One model arrives at equal intervals for a tenth of a second: 10 requests, at most a
        // millisecond apart.
        let text = "name = \"fixed\"\nseed = 2\n[[model]]\nname = \"quick\"\nlatency = \"1 ms\"\n[stream]\n\
            arrivals = \"periodic\"\nrate = 100.0\n[stop]\nduration = \"100 ms\"\n[policy]\nkind = \"first-come\"\n";
        let fixed = folder.join("fixed.toml");
        std::fs::write(&fixed, text).unwrap();
        let fixed = fixed.to_str().unwrap();
        let seed = warnings(fixed, &["--seed", "7"]);
        assert!(
            seed.contains("--seed has no effect: this run uses no random numbers"),
            "{seed}"
        );
        let requests = warnings(fixed, &["--requests", "1000"]);
        assert!(
            requests.contains(
                "--requests has no effect: the run ends before this number of requests arrives"
            ),
            "{requests}"
        );
    });
    // The warm-up must leave requests to count, as in a file.
    call_with_scenario_file(|_, folder| {
        let warm = folder.join("warm.toml");
        let text = format!("{SCENARIO}[measure]\nwarmup = 400\n");
        std::fs::write(&warm, text).unwrap();
        let warm = warm.to_str().unwrap();
        let output = run_chakram(&["serve", warm, "--requests", "300"]);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            error.contains("found 300, expected more than 400"),
            "{error}"
        );
        run_for_stdout(&["serve", warm, "--requests", "401"]);
    });
    // A share is for searches only.
    call_with_scenario_file(|scenario, _| {
        let output = run_chakram(&["serve", scenario, "--slo", "20 ms", "--attain", "0.9"]);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("--attain has no effect"), "{error}");
        assert!(error.contains("--find-capacity or --plan"), "{error}");
    });
}

/// Every number on the page with a path into the JSON equals the value there.
#[test]
fn page_numbers_equal_the_json_values() {
    call_with_scenario_file(|scenario, folder| {
        let page = folder.join("page.html");
        let picture = folder.join("picture.json");
        let args = [
            "serve", scenario, "--slo", "5 ms", "--format", "json", "--html",
        ];
        let rest = [
            page.to_str().unwrap(),
            "--timeline",
            picture.to_str().unwrap(),
        ];
        let json: Value =
            serde_json::from_str(&run_for_stdout(&[&args[..], &rest[..]].concat())).unwrap();
        let report = &json["reports"][0];
        assert_eq!(report["completed"], 4000);
        let page = std::fs::read_to_string(&page).unwrap();
        let mut held = 0;
        for piece in page.split("data-path=\"").skip(1) {
            let (path, rest) = piece.split_once("\" data-value=\"").unwrap();
            let value = rest.split_once('"').unwrap().0;
            let there = json.pointer(path).unwrap_or_else(|| panic!("{path}"));
            let text = there.to_string();
            let same = text == value || there.as_f64() == value.parse::<f64>().ok();
            assert!(same, "{path}: {there} and {value}");
            held += 1;
        }
        assert!(held > 20, "{held}");
        // The chart and the table contain all requests, and each request's parts add up to its serve time.
        let picture: Value =
            serde_json::from_str(&std::fs::read_to_string(&picture).unwrap()).unwrap();
        let events = picture["traceEvents"].as_array().unwrap();
        let begins = |name: &str| {
            let all = events.iter().filter(|event| event["ph"] == "b");
            all.filter(|event| event["name"] == name).count()
        };
        assert_eq!(begins("quick") + begins("slow"), 4000);
        assert_eq!(begins("job 0"), 4000);
        let rows = run_for_stdout(&["serve", scenario, "--format", "csv", "--table", "requests"]);
        let mut sum = 0_u128;
        for row in rows.lines().skip(1) {
            let cells: Vec<&str> = row.split(',').collect();
            let number = |i: usize| cells[i].parse::<u64>().unwrap();
            assert_eq!(number(5), number(4) - number(2));
            assert_eq!(number(5), (6..=9).map(number).sum::<u64>());
            sum += u128::from(number(5));
        }
        assert_eq!(rows.lines().count(), 4001);
        let all = report["rows"].as_array().unwrap().last().unwrap();
        assert_eq!(all["parts"]["serve_ps"], sum.to_string());
        assert_eq!(report["time_in_system_ps"], sum.to_string());
        // Goodput is the fraction of requests that end within 5 ms.
        let within = rows
            .lines()
            .skip(1)
            .filter(|row| row.split(',').nth(5).unwrap().parse::<u64>().unwrap() <= 5_000_000_000);
        assert_eq!(
            all["attained"].as_f64().unwrap(),
            within.count() as f64 / 4000.0
        );
    });
}

/// rho is 0.8 x 1 + 0.2 x 4 = 1.6 ms x rate, so at most 625 requests per second can be served.
#[test]
fn rates_are_swept_and_the_capacity_is_found() {
    call_with_scenario_file(|scenario, folder| {
        let text = run_for_stdout(&["serve", scenario, "--rates", "625,100,1250"]);
        let loads: Vec<&str> = text
            .lines()
            .skip(3)
            .filter_map(|line| line.split_whitespace().nth(1))
            .take(3)
            .collect();
        assert_eq!(loads, ["0.160", "1.000", "2.000"], "{text}");
        assert!(text.contains("where rho is 1 or more"), "{text}");
        let page = folder.join("rates.html");
        let args = [
            "serve",
            scenario,
            "--find-capacity",
            "--slo",
            "20 ms",
            "--attain",
            "0.9",
        ];
        let rest = ["--format", "json", "--html", page.to_str().unwrap()];
        let json: Value =
            serde_json::from_str(&run_for_stdout(&[&args[..], &rest[..]].concat())).unwrap();
        let capacity = &json["sweep"]["capacity"];
        let (rate, more) = (
            capacity["rate_per_s"].as_f64().unwrap(),
            capacity["too_much_per_s"].as_f64().unwrap(),
        );
        assert!(rate < more && more < 625.0 && rate > 300.0, "{capacity}");
        assert!(more / rate < 1.002, "{capacity}");
        for point in json["sweep"]["points"].as_array().unwrap() {
            let rows = point["report"]["rows"].as_array().unwrap();
            let attained = rows.last().unwrap()["attained"].as_f64().unwrap();
            let at = point["rate_per_s"].as_f64().unwrap();
            assert_eq!(attained >= 0.9, at <= rate, "{attained} at {at}");
        }
        assert!(std::fs::read_to_string(&page).unwrap().contains("<circle"));
    });
}

/// A row of Triton's analyzer has, in microseconds, 100 + 200 + 30 + 20 + 50 of datapath, 10 in the
/// queue, and 590 of compute.
#[test]
fn measurements_become_a_platform() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let triton = "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,\
                  Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency,Avg latency\n\
                  1,1000,100,200,10,30,590,20,50,990,1000,1010,1020,1001\n";
    std::fs::write(path("perf.csv"), triton).unwrap();
    run_for_stdout(&[
        "platform",
        "import",
        &path("perf.csv"),
        "--name",
        "t4",
        "--model",
        "vgg-16",
        "-o",
        &path("t4.toml"),
    ]);
    let text = std::fs::read_to_string(path("t4.toml")).unwrap();
    assert!(
        text.contains(
            "datapath = \"400000000 ps\"\nqueue = \"10000000 ps\"\ncompute = \"590000000 ps\""
        ),
        "{text}"
    );
    assert!(
        text.contains("# 1.000 us of the total belong to none of these parts"),
        "{text}"
    );
    // A table of any form is averaged: 580 and 620 us of compute for one request, and 1500 us for four.
    let table = "model,platform,batch,compute_us,queue_us,total_ms\nm,p4,1,580,0,1\nm,p4,1,620,0,1\nm,p4,4,1500,100,2\nm,other,4,1,0,2\n";
    std::fs::write(path("any.csv"), table).unwrap();
    run_for_stdout(&[
        "platform",
        "import",
        &path("any.csv"),
        "--name",
        "p4",
        "-o",
        &path("p4.toml"),
    ]);
    let text = std::fs::read_to_string(path("p4.toml")).unwrap();
    assert!(
        text.contains("rows = 2 # averaged; compute times are within 3.3 % of their mean"),
        "{text}"
    );
    // Batches of 2 take 600 + 900 / 3 = 900 us after 400 us of datapath.
    let scenario = "name = \"b\"\n[[model]]\nname = \"m\"\nmeasured = true\n[stream]\narrivals = \"bursts\"\nburst = 2\nevery = \"1 s\"\n\
                    [stop]\nrequests = 2\n[policy]\nkind = \"batching\"\nbatch = 2\nwait = \"1 ms\"";
    std::fs::write(path("b.toml"), scenario).unwrap();
    let rows = run_for_stdout(&[
        "serve",
        &path("b.toml"),
        "--machine",
        &path("p4.toml"),
        "--format",
        "csv",
        "--table",
        "requests",
    ]);
    let first: Vec<&str> = rows.lines().nth(1).unwrap().split(',').collect();
    assert_eq!(
        &first[5..11],
        ["1300000000", "400000000", "0", "900000000", "0", "2"]
    );
    let output = run_chakram(&["platform", "import", &path("any.csv"), "--name", "p5"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2) && error.contains("rows of platform \"p5\""),
        "{error}"
    );
}

/// Several platforms give one table each, and one shared chart with the limit and a curve for each.
#[test]
fn platforms_are_swept_side_by_side() {
    call_with_scenario_file(|scenario, folder| {
        let page = folder.join("rates.html");
        let common = ["serve", scenario, "--rates", "100,400", "--slo", "20 ms"];
        let both = ["--machine", "a100x", "--machine", "p4"];
        let json = ["--format", "json", "--html", page.to_str().unwrap()];
        let json: Value =
            serde_json::from_str(&run_for_stdout(&[&common[..], &both, &json].concat())).unwrap();
        let sweeps = json["sweeps"].as_array().unwrap();
        for (sweep, platform) in sweeps.iter().zip(["a100x", "p4"]) {
            let alone = ["--machine", platform, "--format", "json"];
            let alone: Value =
                serde_json::from_str(&run_for_stdout(&[&common[..], &alone].concat())).unwrap();
            assert_eq!(*sweep, alone["sweep"], "{platform}");
        }
        assert_eq!(sweeps.len(), 2);
        let page = std::fs::read_to_string(page).unwrap();
        // The charts show the mean and the last percentile, each with two curves and the limit.
        assert_eq!(page.matches("<polyline").count(), 4, "{page}");
        assert_eq!(page.matches("limit 20.000 ms").count(), 2);
        let text = run_for_stdout(&[&common[..], &both].concat());
        for platform in ["a100x", "p4"] {
            assert!(text.contains(&format!(" on {platform}")), "{text}");
        }
    });
}

#[test]
fn options_that_do_nothing_are_refused() {
    call_with_scenario_file(|scenario, _| {
        let both = ["--machine", "a100x", "--machine", "p4"];
        for (args, says) in [
            (&["--table", "requests"][..], "--format csv"),
            (
                &[&both[..], &["--timeline", "x.json"]].concat()[..],
                "show one run",
            ),
            (&["--find-capacity"][..], "--slo"),
            (&["--machine", "lightnin"][..], "did you mean `lightning`?"),
            (&["--html", "-"][..], "--html FILE.html"),
            (&["--rate", "-1"][..], "requests per second above 0"),
        ] {
            let output = run_chakram(&[&["serve", scenario], args].concat());
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{args:?}");
            assert!(error.contains(says), "{args:?}: {error}");
        }
    });
}
