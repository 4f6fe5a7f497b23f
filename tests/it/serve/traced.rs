//! Tests models given as traces: compares how their jobs run on a machine with recurrences that the tests state.

use super::{parse_scenario_text, serve_and_list_requests_by_id};
use chakram::serve::{
    NoRequestObserver, Platform, RequestServeTimeLimitOption, Scenario, serve_requests,
};
use std::path::Path;
use testkit::serving::compute_lindley_waits;

/// Two NPUs with links of 64 GB/s, without latency.
const MACHINE: &str = "name = \"two\"\n[npu.small]\nmemory_bandwidth = \"1 TB/s\"\nmemory_latency = \"0 ns\"\n\
    memory_capacity = \"16 GB\"\nlanes = 8\nhost_lanes = 8\npeak = { bf16 = \"100 TFLOP/s\" }\n\
    [[dimension]]\nname = \"link\"\nshape = \"ring\"\nsize = 2\nbandwidth = \"64 GB/s\"\nlatency = \"0 ns\"\nalgorithm = \"ring\"\n";

const HEAD: &str = "{\"schema\":\"chakram.trace.1\",\"version\":\"0.0.4\"}\n";

/// Returns a kernel with a recorded duration.
fn format_kernel_node(id: u32, after: &str, us: u64) -> String {
    format!(
        "{{\"id\":{id},\"name\":\"kernel\",\"type\":\"COMP_NODE\",\"data_deps\":[{after}],\"duration_micros\":{us},\
         \"attr\":[{{\"name\":\"is_cpu_op\",\"bool_val\":false}}]}}\n"
    )
}

/// Returns half of a message of 64 kB, which takes 1 us at 64 GB/s.
fn format_message_node(id: u32, after: &str, kind: &str, end: &str, peer: u32) -> String {
    format!(
        "{{\"id\":{id},\"name\":\"activations\",\"type\":\"COMM_{kind}_NODE\",\"data_deps\":[{after}],\
         \"attr\":[{{\"name\":\"is_cpu_op\",\"bool_val\":false}},{{\"name\":\"comm_{end}\",\"int32_val\":{peer}}},\
         {{\"name\":\"comm_tag\",\"int32_val\":0}},{{\"name\":\"comm_size\",\"int64_val\":64000}}]}}\n"
    )
}

/// Returns the traces of a pipeline of two stages of 10 us each, and of one rank that takes 7 us,
/// with the machine file in the same folder.
fn write_pipeline_traces_and_machine() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let first = [
        HEAD,
        &format_kernel_node(1, "", 10),
        &format_message_node(2, "1", "SEND", "dst", 1),
    ];
    let second = [
        HEAD,
        &format_message_node(1, "", "RECV", "src", 0),
        &format_kernel_node(2, "1", 10),
    ];
    write("stages/job.0.jsonl", first.concat());
    write("stages/job.1.jsonl", second.concat());
    write(
        "alone/job.0.jsonl",
        [HEAD, &format_kernel_node(1, "", 7)].concat(),
    );
    write("machine.toml", MACHINE.to_owned());
    folder
}

fn load_platform_from_folder(folder: &tempfile::TempDir) -> Platform {
    Platform::load_by_name(folder.path().join("machine.toml").to_str().unwrap()).unwrap()
}

fn build_pipeline_scenario(folder: &tempfile::TempDir, policy: &str, rate: u32) -> Scenario {
    let trace = folder.path().join("stages");
    parse_scenario_text(&format!(
        "name = \"pipeline\"\nseed = 4\n[[model]]\nname = \"m\"\ntrace = {trace:?}\n\
         [stream]\narrivals = \"poisson\"\nrate = {rate}.0\n[stop]\nrequests = 2000\n{policy}"
    ))
}

const US: u64 = 1_000_000;

/// One request at a time takes 10 + 1 + 10 us, and waits as it would at a single server.
#[test]
fn launches_one_at_a_time_wait_as_at_a_single_server() {
    let folder = write_pipeline_traces_and_machine();
    let platform = load_platform_from_folder(&folder);
    let scenario = build_pipeline_scenario(&folder, "[policy]\nkind = \"first-come\"", 30_000);
    let (report, requests) = serve_and_list_requests_by_id(&scenario, Some(&platform));
    let arrivals: Vec<u64> = requests.iter().map(|request| request.arrival.0).collect();
    let waits = compute_lindley_waits(&arrivals, &vec![21 * US; arrivals.len()]);
    for (request, wait) in requests.iter().zip(waits) {
        assert_eq!((request.queue.0, request.compute.0), (wait, 21 * US));
        assert_eq!(request.finished.0, request.arrival.0 + wait + 21 * US);
    }
    assert_eq!(report.rows[0].alone.unwrap().0, 21 * US);
    // The load is 30,000 requests per second of 21 us each.
    assert!((report.offered_load.unwrap() - 0.63).abs() < 1e-12);
    let busy = 2000.0 * 21e-6 / report.window.as_seconds();
    assert!((report.utilisation[0] - busy).abs() < 1e-9);
    let facts = report.platform.unwrap();
    assert_eq!(
        (facts.machine.as_deref(), facts.npus),
        (Some("two"), Some(2))
    );
}

/// Without a limit, requests follow one another through the stages: each stage is free after 10 us, and the message
/// takes 1 us. Request k leaves stage 1 at f(k) = max(arrival, f(k - 1)) + 10, and stage 2 at e(k) = max(f(k) + 1,
/// e(k - 1)) + 10.
#[test]
fn launches_follow_one_another_through_stages() {
    let folder = write_pipeline_traces_and_machine();
    let platform = load_platform_from_folder(&folder);
    let (report, requests) = serve_and_list_requests_by_id(
        &build_pipeline_scenario(&folder, "", 70_000),
        Some(&platform),
    );
    let (mut first, mut end) = (0, 0);
    for request in &requests {
        first = first.max(request.arrival.0) + 10 * US;
        end = end.max(first + US) + 10 * US;
        assert_eq!(request.finished.0, end, "request {}", request.number);
    }
    // The load is 70,000 requests per second of 10 us each; one at a time, they would overload the processor.
    assert!((report.offered_load.unwrap() - 0.7).abs() < 1e-9);
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    // At most two requests are in service: a third is launched when the first has ended.
    let two = build_pipeline_scenario(
        &folder,
        "[policy]\nkind = \"first-come\"\nslots = 2",
        70_000,
    );
    let (_, requests) = serve_and_list_requests_by_id(&two, Some(&platform));
    let (mut firsts, mut ends): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    for (k, request) in requests.iter().enumerate() {
        let slot = k.checked_sub(2).map_or(0, |k| ends[k]);
        let before = |all: &Vec<u64>| all.last().copied().unwrap_or(0);
        firsts.push(before(&firsts).max(slot).max(request.arrival.0) + 10 * US);
        ends.push(before(&ends).max(firsts[k] + US) + 10 * US);
        assert_eq!(request.finished.0, ends[k], "request {k}");
    }
}

/// A trace of one rank runs on the NPU of its processor. With one request at a time, it behaves like a model that is
/// given by a latency.
#[test]
fn traces_of_one_rank_go_to_any_npu() {
    let folder = write_pipeline_traces_and_machine();
    let platform = load_platform_from_folder(&folder);
    let trace = folder.path().join("alone");
    let text = format!(
        "name = \"two NPUs\"\nprocessors = 2\n[[model]]\nname = \"trace\"\ntrace = {trace:?}\n\
         [[model]]\nname = \"table\"\nlatency = \"3 us\"\nweight = 0\n\
         [stream]\narrivals = \"bursts\"\nburst = 5\nevery = \"1 s\"\n[stop]\nrequests = 5\n\
         [policy]\nkind = \"first-come\""
    );
    let ends = |text: &str| -> Vec<(u64, u32)> {
        let (_, requests) =
            serve_and_list_requests_by_id(&parse_scenario_text(text), Some(&platform));
        let ends = requests.iter();
        ends.map(|one| (one.finished.0 / US, one.processor))
            .collect()
    };
    assert_eq!(ends(&text), [(7, 0), (7, 1), (14, 0), (14, 1), (21, 0)]);
    // Both NPUs serve both models, so every request ends one service time after its processor
    // became free.
    let mixed = text
        .replace("weight = 0", "weight = 1")
        .replace("= 5", "= 40");
    let (_, requests) =
        serve_and_list_requests_by_id(&parse_scenario_text(&mixed), Some(&platform));
    let mut free = [0_u64; 2];
    for request in &requests {
        let length = [7, 3][request.model as usize];
        let at = free.iter_mut().min().unwrap();
        *at += length;
        assert_eq!(request.finished.0 / US, *at, "request {}", request.number);
    }
    assert!((0..2).all(|model| requests.iter().any(|one| one.model == model)));
}

#[test]
fn what_traces_cannot_do_is_refused() {
    let folder = write_pipeline_traces_and_machine();
    let machine = load_platform_from_folder(&folder);
    let fails = |scenario: &Scenario, platform: Option<&Platform>| {
        let options = RequestServeTimeLimitOption::default();
        let run = serve_requests(scenario, platform, options, &mut NoRequestObserver);
        run.expect_err("it is refused").to_string()
    };
    let policy = |text: &str| build_pipeline_scenario(&folder, text, 1000);
    let none = fails(&policy(""), None);
    assert!(none.contains("needs a machine"), "{none}");
    let lightning = Platform::load_by_name("lightning").unwrap();
    let none = fails(&policy(""), Some(&lightning));
    assert!(none.contains("\"lightning\" has no machine"), "{none}");
    for (text, says) in [
        ("[policy]\nkind = \"batching\"\nbatch = 2", "of one request"),
        (
            "[policy]\nkind = \"shortest-job-first\"\npreemption = \"1 us\"",
            "no job borders",
        ),
    ] {
        let error = fails(&policy(text), Some(&machine));
        assert!(error.contains(says) && error.contains("try:"), "{error}");
    }
    let mut several = policy("");
    several.processors = 2;
    let error = fails(&several, Some(&machine));
    assert!(
        error.contains("2 ranks") && error.contains("2 processors"),
        "{error}"
    );
    let trace = folder.path().join("alone");
    let text = format!(
        "name = \"x\"\nprocessors = 3\n[[model]]\nname = \"a\"\ntrace = {trace:?}\n[[model]]\nname = \"b\"\nlatency = \"1 us\"\n\
         [stream]\narrivals = \"poisson\"\nrate = 1.0\n[stop]\nrequests = 1\n[policy]\nkind = \"first-come\""
    );
    let error = fails(&parse_scenario_text(&text), Some(&machine));
    assert!(error.contains("has 2 NPUs"), "{error}");
    let text = text
        .replace("= 3", "= 1")
        .replace("first-come", "round-robin");
    let error = fails(&parse_scenario_text(&text), Some(&machine));
    assert!(error.contains("one request at a time"), "{error}");
    let text = text.replace("alone", "nowhere");
    let error = Scenario::parse(&text, "bad.toml", Path::new(".")).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("bad.toml:5: key `model[0].trace`"),
        "{error}"
    );
    let platform = "name = \"p\"\nsource = \"x\"\nmachine = \"dgx-h1000\"";
    let error = Platform::parse(platform, "p.toml").unwrap_err().to_string();
    assert!(error.contains("p.toml:3: key `machine`"), "{error}");
    let platform = Platform::parse(&platform.replace("1000", "100"), "p.toml").unwrap();
    assert_eq!(platform.machine.unwrap().topology().npu_count(), 8);
}
