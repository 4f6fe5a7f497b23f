//! Tests results that follow from the printed parameters of LIGHTSPEED's thesis and of its
//! successor.

use super::{parse_scenario_text, serve_and_list_requests_by_id};
use chakram::serve::{Platform, Scenario, ServeReport};
use std::path::Path;

/// Returns the result of one request of a preset on an idle platform.
fn serve_one_request(preset: &str, tokens: Option<u64>, platform: &str) -> ServeReport {
    let tokens = tokens.map_or(String::new(), |tokens| format!("tokens = {tokens}"));
    let text = format!(
        "name = \"one\"\n[[model]]\nname = \"m\"\npreset = {preset:?}\n{tokens}\n\
         [stream]\narrivals = \"periodic\"\nrate = 1.0\n[stop]\nrequests = 1"
    );
    serve_and_list_requests_by_id(
        &parse_scenario_text(&text),
        Some(&Platform::load_by_name(platform).unwrap()),
    )
    .0
}

const PLATFORMS: [&str; 5] = ["a100x", "brainwave", "a100", "p4", "lightning"];

fn mean_serve_time_us(report: &ServeReport) -> f64 {
    report.row_of_all_models().unwrap().mean.unwrap().value.0 as f64 / 1e6
}

/// The expected times are sums over layers of ceil(tasks / cores) x length / clock, and the
/// datapath latency.
#[test]
fn unloaded_serve_times_follow_from_the_table() {
    let times: [(&str, Option<u64>, [f64; 5]); 3] = [
        (
            "vgg-16",
            None,
            [230.111, 367.421, 1778.767, 2262.091, 774.224],
        ),
        (
            "vgg-19",
            None,
            [287.302, 455.741, 1835.958, 2448.231, 982.391],
        ),
        (
            "gpt2-xl",
            Some(1),
            [384.968, 904.211, 1933.624, 2038.695, 78.139],
        ),
    ];
    for (preset, tokens, expected) in times {
        for (platform, expected) in PLATFORMS.iter().zip(expected) {
            let found = mean_serve_time_us(&serve_one_request(preset, tokens, platform));
            assert!(
                (found - expected).abs() < 1e-3,
                "{preset} on {platform}: {found}"
            );
        }
    }
    // With 34,501 jobs, half a picosecond of rounding in each would be 17 ns. Only one digit is
    // printed.
    let expected = [45_940.3, 107_959.3, 47_489.0, 59_698.5, 8840.5];
    for (platform, expected) in PLATFORMS.iter().zip(expected) {
        let found = mean_serve_time_us(&serve_one_request("chatgpt-star", Some(1), platform));
        assert!((found - expected).abs() < 0.07, "{platform}: {found}");
    }
}

/// The utilization is the busy core time divided by the number of cores times the computation time. For VGG-16 this is
/// 15,470,264,320 multiplications divided by cores times cycles. If the datapath latency counts as well, a P4 has .300.
#[test]
fn utilisation_equals_multiplications_over_available_core_time() {
    let shares = [
        ("a100x", 0.8438),
        ("brainwave", 0.7317),
        ("p4", 0.9509),
        ("lightning", 0.9995),
    ];
    for (platform, expected) in shares {
        let report = serve_one_request("vgg-16", None, platform);
        let row = report.row_of_all_models().unwrap();
        let datapath = row.parts.datapath_ps.0 as f64;
        let compute = row.parts.compute_ps.0 as f64;
        let over_all = report.mean_utilisation();
        let found = over_all * (datapath + compute) / compute;
        assert!((found - expected).abs() < 1e-4, "{platform}: {found}");
        if platform == "p4" {
            assert!((over_all - 0.300).abs() < 5e-4, "{over_all}");
        }
    }
}

#[test]
fn requests_on_three_cores_take_the_times_computed_by_hand() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/lightspeed");
    let scenario = Scenario::load_file(&folder.join("golden.toml")).unwrap();
    let cores = folder.join("three-cores.toml");
    let cores = Platform::load_by_name(cores.to_str().unwrap()).unwrap();
    let (report, requests) = serve_and_list_requests_by_id(&scenario, Some(&cores));
    let times: Vec<u64> = requests
        .iter()
        .map(|request| request.finished.since(request.arrival).0)
        .collect();
    assert_eq!(times, [24_000, 17_000]);
    // A waits from 20 to 21 for cores 1 and 2, and its jobs take 10 and 3.
    let first = requests[0];
    let parts = [first.datapath, first.queue, first.compute, first.preempted];
    assert_eq!(parts.map(|part| part.0), [10_000, 1000, 13_000, 0]);
    assert_eq!(report.time_in_system_ps.0, 24_000 + 17_000);
}

#[test]
fn a_datapath_latency_adds_itself_on_an_idle_platform() {
    let text = "name = \"one\"\n[[model]]\nname = \"m\"\njobs = [{ tasks = 7, length = 9 }]\n\
                [stream]\narrivals = \"periodic\"\nrate = 1.0\n[stop]\nrequests = 1";
    let at = |datapath: &str| {
        let cores = format!(
            "name = \"p\"\nsource = \"x\"\ncores = 4\nclock = \"1 GHz\"\ndatapath = \"{datapath}\""
        );
        let platform = Platform::parse(&cores, "p").unwrap();
        serve_and_list_requests_by_id(&parse_scenario_text(text), Some(&platform)).1[0]
            .finished
            .0
    };
    assert_eq!(at("344 ns") - at("0 ns"), 344_000);
    // The time is two rounds of 9 cycles.
    assert_eq!(at("0 ns"), 18_000);
}

/// Repeats the successor's experiment, with the load that its printed parameters give on each platform.
#[test]
fn offered_loads_match_the_successor_paper() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/lightspeed");
    let mut scenario = Scenario::load_file(&folder.join("sigcomm23.toml")).unwrap();
    scenario.stop.requests = Some(1);
    scenario.stop.first = None;
    let loads = [
        ("lightning-sigcomm23", 0.423),
        ("brainwave-sigcomm23", 0.984),
        ("a100-sigcomm23", 2.424),
        ("a100x-sigcomm23", 2.424),
    ];
    for (platform, expected) in loads {
        let report = serve_and_list_requests_by_id(
            &scenario,
            Some(&Platform::load_by_name(platform).unwrap()),
        )
        .0;
        let load = report.offered_load.unwrap();
        assert!((load - expected).abs() < 2e-3, "{platform}: {load}");
        let loud = report
            .warnings
            .iter()
            .any(|warning| warning.starts_with("rho is"));
        assert_eq!(loud, load > 1.0, "{platform}: {:?}", report.warnings);
    }
}

/// The results are mean serve times relative to Lightning's, averaged over seeds. Our results do not reproduce the
/// printed values. Brainwave, with a rho of 0.984, is printed as 42, and our seeds give 15.9, from 8.0 to 24.2. The
/// printed 337 and 329 are for overloaded platforms, and so depend on the length of the run.
#[test]
#[ignore = "minutes: cargo test --release --test it serve::lightspeed -- --ignored --nocapture"]
fn mean_serve_times_relative_to_lightning_over_seeds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/lightspeed");
    let mut scenario = Scenario::load_file(&folder.join("sigcomm23.toml")).unwrap();
    let names = ["lightning", "brainwave", "a100", "a100x"].map(|name| format!("{name}-sigcomm23"));
    let mut sums = [0.0; 4];
    for seed in 1..=10 {
        scenario.seed = seed;
        let means = names.each_ref().map(|name| {
            let platform = Platform::load_by_name(name).unwrap();
            mean_serve_time_us(&serve_and_list_requests_by_id(&scenario, Some(&platform)).0)
        });
        for (sum, mean) in sums.iter_mut().zip(means) {
            *sum += mean / means[0] / 10.0;
        }
        println!("seed {seed}: {means:?} us");
    }
    println!("mean of ratios over Lightning: {sums:?}");
    assert!((sums[1] - 15.9).abs() < 0.1, "{sums:?}");
}

/// The requests have 92 million tasks in 34,501 jobs.
#[test]
fn large_requests_are_answered_in_closed_form() {
    let report = serve_one_request("chatgpt-star", Some(1), "lightning");
    assert_eq!(
        report.row_of_model("m").unwrap().multiplications,
        Some(176_738_811_200)
    );
}
