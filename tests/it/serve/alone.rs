//! Tests the time of a single request: one run of its jobs on free cores, and everything that
//! follows from this time.

use super::{
    build_platform_of_picosecond_cores, parse_scenario_text, serve_and_list_requests_by_id,
};
use chakram::serve::{
    Platform, RequestServeTimeLimitOption, ServeReport, compare, find_capacity, serve_requests,
    sweep_rates,
};
use chakram::units::Span;

/// Two independent jobs of 2 tasks x 1000.
const BRANCHES: &str =
    "jobs = [{ tasks = 2, length = 1000, after = [] }, { tasks = 2, length = 1000, after = [] }]";

/// Returns a platform of 4 cores at 1 GHz, where both jobs run concurrently for 1000 cycles of 1
/// ns.
fn build_four_core_platform() -> Platform {
    let text = "name = \"p\"\nsource = \"x\"\ncores = 4\nclock = \"1 GHz\"";
    Platform::parse(text, "p.toml").unwrap()
}

fn format_parallel_branches_scenario(rate: f64, arrivals: &str, rest: &str) -> String {
    format!(
        "name = \"two branches\"\n[[model]]\nname = \"m\"\n{BRANCHES}\n{rest}\n\
         [stream]\narrivals = \"{arrivals}\"\nrate = {rate:.1}\n[stop]\nrequests = 2000\n\
         [policy]\nkind = \"first-come\""
    )
}

fn read_alone_time(report: &ServeReport, model: &str) -> u64 {
    report.row_of_model(model).unwrap().alone.unwrap().0
}

#[test]
fn branches_run_side_by_side() {
    let text = format_parallel_branches_scenario(700_000.0, "periodic", "deadline = \"1500 ns\"");
    let (report, _) = serve_and_list_requests_by_id(
        &parse_scenario_text(&text),
        Some(&build_four_core_platform()),
    );
    assert_eq!(read_alone_time(&report, "m"), 1_000_000);
    // The load is 700,000 requests/s x 4 tasks x 1 us over 4 cores.
    assert!((report.offered_load.unwrap() - 0.7).abs() < 1e-12);
    assert!((report.mean_utilisation() - 0.7).abs() < 1e-3);
    assert_eq!(report.row_of_all_models().unwrap().attained, Some(1.0));
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
}

/// An M/D/1 queue whose server takes 1 us can take nearly a million requests a second.
#[test]
fn capacity_is_near_one_request_per_time_of_a_request_alone() {
    let scenario =
        parse_scenario_text(&format_parallel_branches_scenario(700_000.0, "poisson", ""));
    let cores = build_four_core_platform();
    let options = RequestServeTimeLimitOption::from_serve_time_limit(Some(Span::from_us(10)));
    let at = sweep_rates(&scenario, Some(&cores), options, &[600_000.0]).unwrap();
    assert_eq!(
        at.points[0].report.row_of_all_models().unwrap().attained,
        Some(1.0)
    );
    let found = find_capacity(&scenario, Some(&cores), options, 0.99).unwrap();
    let capacity = found.capacity.unwrap();
    assert!(
        capacity.rate_per_s > 700_000.0 && capacity.too_much_per_s < 1_000_000.0,
        "{capacity:?}"
    );
}

/// A request takes 1 us alone, so no rate keeps a limit of 900 ns.
#[test]
fn limits_below_the_time_of_a_request_alone_have_no_capacity() {
    let cores = build_four_core_platform();
    let options = RequestServeTimeLimitOption::from_serve_time_limit(Some(Span(900_000)));
    for rate in [100.0, 700_000.0, 5_000_000.0] {
        let scenario = parse_scenario_text(&format_parallel_branches_scenario(rate, "poisson", ""));
        let error = find_capacity(&scenario, Some(&cores), options, 0.99)
            .expect_err("it is refused")
            .to_string();
        for expected in [
            "no rate keeps the limits",
            "found 0.0 % of the requests within their limits, expected 99.0 %",
            "try: longer limits",
        ] {
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}

/// With several slots, a request occupies one for as long as it takes alone, even if it leaves cores idle. With
/// unlimited slots, only its work counts.
#[test]
fn offered_load_counts_cores_and_slots() {
    // Alone, 1 task x 1000 on 4 cores at 1 THz takes 1000 ps and uses a quarter of the cores. At 0.5 requests per 1000
    // ps the load is 0.5 with one slot, 0.25 with two, and 0.125 with more, which is the share of the cores' time.
    let load = |policy: &str| {
        let text = format!(
            "name = \"one task\"\n[[model]]\nname = \"m\"\njobs = [{{ tasks = 1, length = 1000 }}]\n\
             [stream]\narrivals = \"periodic\"\nrate = 5e8\n[stop]\nrequests = 5\n[policy]\n{policy}"
        );
        let (report, _) = serve_and_list_requests_by_id(
            &parse_scenario_text(&text),
            Some(&build_platform_of_picosecond_cores(4)),
        );
        report.offered_load.unwrap()
    };
    let policies = [
        ("kind = \"first-come\"", 0.5),
        ("kind = \"first-come\"\nslots = 2", 0.25),
        ("kind = \"first-come\"\nslots = 8", 0.125),
        ("kind = \"round-robin\"", 0.125),
    ];
    for (policy, expected) in policies {
        assert!((load(policy) - expected).abs() < 1e-12, "{policy}");
    }
}

#[test]
fn the_shortest_is_the_one_that_takes_least_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("arrivals.csv");
    let order = |rows: &str, preemption: &str| {
        std::fs::write(&file, format!("arrival_ns,model\n{rows}")).unwrap();
        let text = format!(
            "name = \"sjf\"\n[[model]]\nname = \"two\"\n{BRANCHES}\n\
             [[model]]\nname = \"one\"\njobs = [{{ tasks = 4, length = 1500 }}]\n\
             [[model]]\nname = \"graph\"\njobs = [{{ tasks = 1, length = 100 }}, {{ tasks = 1, length = 900, after = [0] }},\
             {{ tasks = 1, length = 1300, after = [0] }}, {{ tasks = 1, length = 10, after = [1, 2] }}]\n\
             [stream]\narrivals = \"file\"\nfile = {file:?}\n[policy]\nkind = \"shortest-job-first\"\n{preemption}"
        );
        let (_, found) = serve_and_list_requests_by_id(
            &parse_scenario_text(&text),
            Some(&build_four_core_platform()),
        );
        let ends = found.iter().map(|request| request.finished.0 / 1000);
        ends.collect::<Vec<u64>>()
    };
    // `one` runs from 0 to 1500; then `two`, which takes 1000, goes before the second `one`, which takes 1500.
    assert_eq!(order("0,one\n1,one\n2,two\n", ""), [1500, 4000, 2500]);
    // `graph` takes 100 + 1300 + 10. At 100 it has 1310 left, more than the 1000 of `two`, which
    // preempts it. At 1400 only ten are left, so `two` waits.
    let preemption = "preemption = \"0 ns\"";
    assert_eq!(order("0,graph\n50,two\n", preemption), [2410, 1100]);
    assert_eq!(order("0,graph\n150,two\n", preemption), [1410, 2410]);
    // `one` never overtakes, because its 1500 are more than all of `graph`.
    assert_eq!(order("0,graph\n50,one\n", preemption), [1410, 2910]);
}

#[test]
fn a_platform_too_slow_for_the_deadline_attains_no_requests() {
    let text = "name = \"deadline\"\n[[model]]\nname = \"vgg-16\"\npreset = \"vgg-16\"\ndeadline = \"500 us\"\n\
                [stream]\narrivals = \"poisson\"\nrate = 300.0\n[stop]\nrequests = 200\n[policy]\nkind = \"first-come\"";
    let scenario = parse_scenario_text(text);
    let reports = ["a100x", "p4", "brainwave"].map(|name| {
        let platform = Platform::load_by_name(name).unwrap();
        serve_and_list_requests_by_id(&scenario, Some(&platform)).0
    });
    // Alone, the requests take 230.1, 2262.1 and 367.4 us.
    let attained = reports
        .each_ref()
        .map(|report| report.row_of_all_models().unwrap().attained.unwrap());
    assert!(attained[0] > 0.9 && attained[2] > 0.9, "{attained:?}");
    assert_eq!(attained[1], 0.0);
    let warned = |report: &ServeReport| {
        let says = "model \"vgg-16\": a request without load takes 2.262 ms and should be complete within 500.000 us";
        report.warnings.iter().any(|warning| warning == says)
    };
    assert_eq!(reports.each_ref().map(warned), [false, true, false]);
    let shown = compare::render_platforms_side_by_side(&reports, Default::default());
    let row = |heading: &str| {
        let mut lines = shown.lines().skip_while(|line| !line.starts_with(heading));
        lines.nth(1).unwrap_or_default().to_owned()
    };
    let cells = |line: String| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(cells(row("BY DEADLINE"))[3..5], ["0.0", "%"], "{shown}");
    // A limit given by the caller replaces deadlines.
    let options = RequestServeTimeLimitOption::from_serve_time_limit(Some(Span::from_us(100_000)));
    let all = reports.each_ref().map(|report| {
        let platform = Platform::load_by_name(&report.platform.as_ref().unwrap().name).unwrap();
        serve_requests(
            &scenario,
            Some(&platform),
            options,
            &mut chakram::serve::NoRequestObserver,
        )
        .unwrap()
    });
    let shown = compare::render_platforms_side_by_side(&all, Default::default());
    assert_eq!(shown.matches("100.0 %").count(), 6, "{shown}");
    assert!(shown.contains("WITHIN 100.000 ms"), "{shown}");
}

/// The public simulator of Zhong et al. gives 20,294,060 ns on A100. The largest table has
/// 9,980,333 rows, and four jobs of merged vectors run after the tables. The request takes (9,980,333 + 4 x 2048) /
/// 1.41 GHz + 13,210,000 ns of datapath on A100, and 9,988,525 x 4 ns on Brainwave, whose datapath is 0.
#[test]
fn the_tables_of_dlrm_run_side_by_side() {
    let on = |platform: &str, branches: &str| {
        let text = format!(
            "name = \"one\"\n[[model]]\nname = \"dlrm\"\npreset = \"dlrm\"\ntables = true\nmerge = 2048\n{branches}\n\
             [stream]\narrivals = \"periodic\"\nrate = 1.0\n[stop]\nrequests = 1"
        );
        let platform = Platform::load_by_name(&format!("{platform}-sigcomm23")).unwrap();
        let (report, found) =
            serve_and_list_requests_by_id(&parse_scenario_text(&text), Some(&platform));
        assert_eq!(read_alone_time(&report, "dlrm"), found[0].finished.0);
        found[0].finished.0
    };
    assert_eq!(on("a100", "") / 1000, 20_294_060);
    assert_eq!(on("brainwave", ""), 39_954_100_000);
    // Without parallel branches, there are 39,140,468 rows of the 16 tables with 2048 rows or more,
    // and 17 jobs of merged vectors.
    let in_order = on("brainwave", "branches = \"in-order\"");
    assert_eq!(in_order, (39_140_468 + 17 * 2048) * 4000);
}

#[test]
fn reports_of_token_models_warn_that_batching_is_not_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("steps.csv");
    std::fs::write(&table, "tokens,batch,prefill_ms,step_ms\n100,1,10,2\n").unwrap();
    let text = format!(
        "name = \"llm\"\n[[model]]\nname = \"m\"\nprompt = 100\noutput = 5\n\
         steps = {{ file = {table:?}, tokens = \"tokens\", batch = \"batch\", prefill = \"prefill_ms\", step = \"step_ms\" }}\n\
         [stream]\narrivals = \"periodic\"\nrate = 1.0\n[stop]\nrequests = 3"
    );
    let (report, _) = serve_and_list_requests_by_id(&parse_scenario_text(&text), None);
    // The prompt takes 10 ms, and each of four further tokens takes 2 ms.
    assert_eq!(read_alone_time(&report, "m"), 18_000_000_000);
    let says = |warning: &String| warning.contains("continuous batching is not simulated");
    assert!(report.warnings.iter().any(says), "{:?}", report.warnings);
}
