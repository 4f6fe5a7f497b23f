//! Tests Python steps, modules and calls in a capture: tables of reports, nested slices, and the
//! extraction of one step.

use super::rig::{convert_files, replay_files, run_program};
use crate::commands;
use crate::corpus::{corpus_path_or_count_skip, sample_every_nth};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A capture of two steps on one thread and one stream, times in us:
///
/// ```text
/// main                                  999 ......................................................... 1200
/// ProfilerStep#5                        1000 ........................... 1100   ProfilerStep#6 .. 1180
/// Net_0                                  1010 .............. 1060                1110 ...... 1160
/// Linear_0                                1012 ..... 1045                         1112 .... 1145
/// operator: its launch                     1015 1020 linear  1048 1051 relu  1065 1070 add  1115 1120 linear
/// kernel                                       1030-1070     1070-1080       1085-1110      1130-1165
/// ```
///
/// A second thread runs a module of another model without launching an operator.
fn write_two_step_capture(folder: &Path) {
    let host = |cat: &str, name: &str, tid: u32, (from, to): (u32, u32), args: &str| {
        format!(
            r#"{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": 9, "tid": {tid}, "ts": {from}, "dur": {},
            "args": {{{args}}}}}"#,
            to - from
        )
    };
    let python = |name: &str, span: (u32, u32)| host("python_function", name, 1, span, "");
    let step = |number: u32, span: (u32, u32)| {
        host(
            "user_annotation",
            &format!("ProfilerStep#{number}"),
            1,
            span,
            "",
        )
    };
    let mut events = vec![
        python("train.py(1): main", (999, 1200)),
        step(5, (1000, 1100)),
        // This call starts the step's range, and ends before the range ends.
        python("profiler.py(7): __enter__", (999, 1001)),
        step(6, (1100, 1180)),
        host("python_function", "nn.Module: Other_0", 2, (1000, 1180), ""),
    ];
    for from in [1010, 1110] {
        events.push(python("nn.Module: Net_0", (from, from + 50)));
        events.push(python("nn.Module: Linear_0", (from + 2, from + 35)));
        // This call contains no other recorded calls.
        events.push(python("torch/nn.py(3): check", (from + 2, from + 3)));
    }
    let operators = [
        ("aten::linear", (1015, 1035), 1020, ("gemm", 1030, 1070)),
        ("aten::relu", (1048, 1057), 1051, ("relu", 1070, 1080)),
        ("aten::add", (1065, 1090), 1070, ("add", 1085, 1110)),
        ("aten::linear", (1115, 1140), 1120, ("gemm", 1130, 1165)),
    ];
    for (number, (name, span, launch, (kernel, from, to))) in (1..).zip(operators) {
        let correlation = format!(r#""correlation": {number}"#);
        events.push(host("cpu_op", name, 1, span, ""));
        let call = (launch, launch + 5);
        events.push(host(
            "cuda_runtime",
            "cudaLaunchKernel",
            1,
            call,
            &correlation,
        ));
        events.push(format!(
            r#"{{"ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": 7, "ts": {from}, "dur": {},
            "args": {{"device": 0, "stream": 7, {correlation}}}}}"#,
            to - from
        ));
    }
    let text = format!("{{\"traceEvents\": [{}]}}", events.join(",\n"));
    std::fs::write(folder.join("kineto.0.json"), text).unwrap();
}

/// Returns the values of `keys` in each row of a report's table, in us.
fn list_report_table_values_us(
    report: &Value,
    table: &str,
    name: &str,
    keys: &[&str],
) -> Vec<(String, Vec<u64>)> {
    let rows = report[table].as_array().into_iter().flatten();
    let rows = rows.map(|row| {
        let name = match &row[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let us = |key: &&str| {
            let value = row[*key].as_u64().unwrap();
            match key.ends_with("_ps") {
                true => {
                    assert_eq!(value % 1_000_000, 0, "{key}");
                    value / 1_000_000
                }
                false => value,
            }
        };
        (name, keys.iter().map(us).collect())
    });
    rows.collect()
}

/// The times of nodes follow from the positions of operators, which precede their launches: linear
/// 1015-1020 and its launch to 1025, relu 1048-1051 and 1056, add 1065-1070 and 1075, linear
/// 1115-1120 and 1125. Each node's delay is the time since the previous node.
#[test]
fn reports_have_the_time_of_steps_and_modules() {
    let folder = tempfile::tempdir().unwrap();
    write_two_step_capture(folder.path());
    let job = convert_files(folder.path());
    let report = replay_files(job.path(), &["-m", "dgx-h100"]);
    assert_eq!(report["makespan_ps"], 180_000_000);
    // Step 5 begins with its range, and ends with the kernel of `add`. It has 40 + 10 + 25 us of
    // kernels. In 30 us before the kernels and 5 us between them, the thread works or a kernel is
    // about to start. Step 6 lasts from 1100 to 1165 us, with 35 us of a kernel. The two steps
    // overlap by 10 us.
    let keys = [
        "ranks",
        "start_ps",
        "time_ps",
        "compute_ps",
        "exposed_communication_ps",
        "communication_ps",
        "host_ps",
        "idle_ps",
    ];
    let steps = list_report_table_values_us(&report, "steps", "step", &keys);
    let expected = [
        ("5".to_owned(), vec![1, 0, 110, 75, 0, 0, 35, 0]),
        ("6".to_owned(), vec![1, 100, 65, 35, 0, 0, 30, 0]),
    ];
    assert_eq!(steps, expected);
    // The times on hosts are as follows. Linear_0 has 15 + 5 + 5 us in step 5 and again, from 1100,
    // in step 6. Net_0's own time is the time of relu: 23 + 3 + 5, after the previous launch. Three
    // times are outside all modules: add (9 + 5 + 5), the start of step 6 (25), and the end of the
    // thread (55).
    let keys = [
        "calls",
        "device_ps",
        "own_device_ps",
        "host_ps",
        "own_host_ps",
    ];
    let modules = list_report_table_values_us(&report, "modules", "path", &keys);
    let expected = [
        ("Net_0".to_owned(), vec![2, 85, 10, 81, 31]),
        ("Net_0/Linear_0".to_owned(), vec![2, 75, 75, 50, 50]),
        (String::new(), vec![0, 25, 25, 99, 99]),
    ];
    assert_eq!(modules, expected);
    let path = job.path().display().to_string();
    let text = run_program(&["replay", &path, "-m", "dgx-h100"]);
    let line = |first: &str| {
        let mut lines = text.lines();
        let line = lines.find(|line| line.trim_start().starts_with(first));
        line.unwrap_or_else(|| panic!("{first} in {text}"))
            .split_whitespace()
            .collect::<Vec<_>>()
    };
    assert_eq!(line("step 6")[2..6], ["100.000", "us", "65.000", "us"]);
    let linear = [
        "1", "2", "75.000", "us", "75.000", "us", "68.2", "%", "50.000", "us",
    ];
    assert_eq!(line("Net_*/Linear_*")[1..], linear);
    let csv = |table: &str| {
        let options = ["-m", "dgx-h100", "--format", "csv", "--table", table];
        run_program(&[&["replay", &path][..], &options].concat())
    };
    assert!(csv("modules").contains("\nNet_0/Linear_0,2,75000000,75000000,50000000,50000000\n"));
    assert!(csv("steps").contains("\n6,1,100000000,65000000,35000000,0,0,0,30000000,0\n"));
    let page = job.path().join("page.html").display().to_string();
    run_program(&["replay", &path, "-m", "dgx-h100", "--html", &page]);
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("data-path=\"/modules/1/own_device_ps\" data-value=\"75000000\""));
    assert!(page.contains("data-path=\"/steps/1/time_ps\" data-value=\"65000000\""));
}

/// A slice on a track: the names of all open slices from the outermost inwards, and the slice's begin and end in us.
type DrawnSliceWithAncestors = (Vec<String>, f64, f64);

/// Slices by track.
type DrawnSlicesByTrack = BTreeMap<u64, Vec<DrawnSliceWithAncestors>>;

/// Arrows by id, each with the track and the time of both ends.
type DrawnArrowEndsById = BTreeMap<u64, Vec<(u64, f64)>>;

/// Returns the slices and the launch arrows of a timeline.
fn list_slices_and_arrows(timeline: &Value) -> (DrawnSlicesByTrack, DrawnArrowEndsById) {
    let mut open: BTreeMap<u64, Vec<(String, f64)>> = BTreeMap::new();
    let (mut slices, mut arrows) = (BTreeMap::new(), BTreeMap::new());
    for event in timeline["traceEvents"].as_array().unwrap() {
        if event["pid"] != 0 {
            continue;
        }
        let (Some(track), Some(at)) = (event["tid"].as_u64(), event["ts"].as_f64()) else {
            continue;
        };
        let name = event["name"].as_str().unwrap();
        let open = open.entry(track).or_default();
        match event["ph"].as_str().unwrap() {
            "B" => open.push((name.to_owned(), at)),
            "E" => {
                let names = open.iter().map(|(name, _)| name.clone()).collect();
                let (opened, from) = open.pop().unwrap();
                assert_eq!(opened, name);
                slices
                    .entry(track)
                    .or_insert_with(Vec::new)
                    .push((names, from, at));
            }
            "s" | "f" if event["cat"] == "launch" => {
                let id = event["id"].as_u64().unwrap();
                arrows.entry(id).or_insert_with(Vec::new).push((track, at));
            }
            _ => {}
        }
    }
    assert!(open.values().all(Vec::is_empty), "{open:?}");
    (slices, arrows)
}

#[test]
fn timelines_nest_launches_in_operators_in_calls_of_python() {
    let folder = tempfile::tempdir().unwrap();
    write_two_step_capture(folder.path());
    let job = convert_files(folder.path());
    let timeline = job.path().join("timeline.json");
    let path = job.path().display().to_string();
    let file = timeline.display().to_string();
    run_program(&["replay", &path, "-m", "dgx-h100", "--timeline", &file]);
    let timeline = serde_json::from_slice(&std::fs::read(&timeline).unwrap()).unwrap();
    let (slices, arrows) = list_slices_and_arrows(&timeline);
    let launches: Vec<&DrawnSliceWithAncestors> = slices
        .values()
        .flatten()
        .filter(|(names, ..)| names.last().is_some_and(|name| name == "cudaLaunchKernel"))
        .collect();
    let around = [
        "train.py(1): main",
        "ProfilerStep#5",
        "nn.Module: Net_0",
        "nn.Module: Linear_0",
        "aten::linear",
        "cudaLaunchKernel",
    ];
    assert_eq!(launches.len(), 4);
    assert_eq!(launches[0].0, around);
    assert_eq!(launches[1].0[..3], around[..3]);
    assert_eq!(launches[1].0[3..], ["aten::relu", "cudaLaunchKernel"]);
    assert_eq!(launches[2].0[2..], ["aten::add", "cudaLaunchKernel"]);
    assert_eq!(launches[3].0[1], "ProfilerStep#6");
    assert_eq!(launches[3].0[2..], around[2..]);
    // A range begins with its first node, and ends with its last node. Times are drawn with a
    // resolution of 1/1024 us.
    let of = |names: &[&str]| {
        let mut all = slices.values().flatten();
        let (_, from, to) = all.find(|(found, ..)| found == names).unwrap();
        [from, to].map(|at| at.round())
    };
    assert_eq!(of(&around[..4]), [15.0, 25.0]);
    assert_eq!(of(&around[..3]), [15.0, 56.0]);
    assert_eq!(of(&around[..2]), [15.0, 75.0]);
    // Each arrow begins where a launch starts, and ends where its kernel starts on the stream's track.
    let mut ends: Vec<[f64; 2]> = Vec::new();
    for ends_of in arrows.values() {
        let [(from, left), (to, entered)] = ends_of[..] else {
            panic!("{ends_of:?}");
        };
        assert_ne!(from, to);
        ends.push([left.round(), entered.round()]);
    }
    ends.sort_by(|a, b| a[0].total_cmp(&b[0]));
    assert_eq!(
        ends,
        [[20.0, 30.0], [51.0, 70.0], [70.0, 85.0], [120.0, 130.0]]
    );
}

#[test]
fn commands_given_a_step_process_only_that_step() {
    let folder = tempfile::tempdir().unwrap();
    write_two_step_capture(folder.path());
    let job = convert_files(folder.path());
    let path = job.path().display().to_string();
    // Each slice takes as long as in the full replay: 110 and 65 us. Step 5 consists of its range, and three operators,
    // launches and kernels. The declaration of groups is also kept.
    for (step, makespan, nodes) in [("5", 110, 11), ("6", 65, 5)] {
        let report = replay_files(job.path(), &["-m", "dgx-h100", "--step", step]);
        assert_eq!(report["makespan_ps"], makespan * 1_000_000, "{step}");
        assert_eq!(report["nodes"], nodes, "{step}");
        assert_eq!(report["captured_ps"], makespan * 1_000_000, "{step}");
        assert_eq!(report["steps"].as_array().unwrap().len(), 1);
        let sliced = job.path().join(format!("slice{step}/job"));
        let sliced = sliced.display().to_string();
        run_program(&["slice", &path, "--step", step, "-o", &sliced]);
        // A job that is written and read back keeps all nodes.
        let same = [
            "diff",
            &format!("{path}/job"),
            &sliced,
            "--step",
            step,
            "--fail-on",
            "any",
        ];
        run_program(&same);
        let inspected = run_program(&["inspect", &path, "--step", step, "--format", "json"]);
        let inspected: Value = serde_json::from_str(&inspected).unwrap();
        let written = run_program(&["inspect", &sliced, "--format", "json"]);
        let written: Value = serde_json::from_str(&written).unwrap();
        assert_eq!(inspected["ranks"][0]["nodes"], written["ranks"][0]["nodes"]);
        run_program(&["validate", &path, "--step", step]);
        let audit = job.path().join(format!("anonymous{step}/job"));
        let audit = audit.display().to_string();
        run_program(&[
            "anonymise",
            &path,
            "--step",
            step,
            "--key",
            "k",
            "-o",
            &audit,
        ]);
        let report = replay_files(Path::new(&audit), &["-m", "dgx-h100"]);
        assert_eq!(report["makespan_ps"], makespan * 1_000_000, "{step}");
    }
    let machines = [
        "replay", &path, "-m", "dgx-h100", "-m", "mi300x", "--step", "6", "--format", "json",
    ];
    assert!(run_program(&machines).contains("65000000"));
    let output = commands::run_chakram(&["replay", &path, "-m", "dgx-h100", "--step", "9"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("the trace has no step 9") && error.contains("5, 6"),
        "{error}"
    );
}

/// Returns the total time of kernels and copies, in ns, by the module path around their launch. Searches all Python
/// calls for each kernel.
fn device_time_by_module_path(kineto: &Value) -> BTreeMap<String, u64> {
    let ns = |value: &Value| (value.as_f64().unwrap() * 1e3).round() as u64;
    let events = kineto["traceEvents"].as_array().unwrap();
    let of = |wanted: &[&str]| {
        let found = events.iter().filter(|event| {
            let cat = event["cat"].as_str().unwrap_or("");
            event["ph"] == "X" && wanted.contains(&cat)
        });
        found.collect::<Vec<&Value>>()
    };
    let modules = of(&["python_function"]);
    let modules: Vec<&&Value> = modules
        .iter()
        .filter(|event| event["name"].as_str().unwrap().starts_with("nn.Module: "))
        .collect();
    let calls = of(&["cuda_runtime", "cuda_driver", "hip_runtime"]);
    let mut launch = BTreeMap::new();
    for call in calls {
        if let Some(correlation) = call["args"]["correlation"].as_u64() {
            launch.insert(correlation, call);
        }
    }
    let mut sums = BTreeMap::new();
    for work in of(&["kernel", "gpu_memcpy", "gpu_memset"]) {
        let call = work["args"]["correlation"]
            .as_u64()
            .and_then(|id| launch.get(&id));
        let mut around: Vec<(u64, &str)> = Vec::new();
        if let Some(call) = call {
            let at = call["ts"].as_f64().unwrap();
            for module in &modules {
                let from = module["ts"].as_f64().unwrap();
                let to = from + module["dur"].as_f64().unwrap();
                if module["tid"] == call["tid"] && from <= at && at < to {
                    around.push((ns(&module["ts"]), &module["name"].as_str().unwrap()[11..]));
                }
            }
        }
        around.sort_unstable();
        let path: Vec<&str> = around.iter().map(|(_, name)| *name).collect();
        *sums.entry(path.join("/")).or_insert(0) += ns(&work["dur"]);
    }
    sums
}

/// The modules' own times equal these totals. The sum of all rows equals the device time in the table of operators, to
/// the picosecond, and also equals the thread time.
#[test]
fn times_of_modules_sum_to_those_of_operators() {
    let Some(tracelens) = corpus_path_or_count_skip("captures/gpu/tracelens") else {
        return;
    };
    let files = [
        ("h100/gaunernst_bert-small-uncased__1016001", true),
        ("h100/Falconsai_nsfw_image_detection__1016002", true),
        (
            "h100/facebook_timesformer-base-finetuned-k400__1016002",
            true,
        ),
        ("mi300/gaunernst_bert-small-uncased__1016001", true),
        ("mi300/Falconsai_nsfw_image_detection__1016002", true),
        // Overlapping kernels are clipped, and some were launched before the capture.
        ("b200_eager", false),
        ("mi300/resnet_act_checkpoint", false),
        ("inference/vllm_prefilldecode_piecewise", false),
    ];
    for (file, is_plain) in sample_every_nth(3, files) {
        let path = tracelens.join(format!("{file}.json.gz"));
        let job = convert_files(&path);
        let options = ["-m", "dgx-h100", "--absent", "mirror", "--all-operators"];
        let report = replay_files(job.path(), &options);
        let modules = report["modules"]
            .as_array()
            .unwrap_or_else(|| panic!("{file}"));
        assert!(modules.len() > 3, "{file}");
        let sum = |key: &str| -> u64 { modules.iter().map(|row| row[key].as_u64().unwrap()).sum() };
        let mut parts = [0, 0];
        for row in report["operators"].as_array().unwrap() {
            parts[usize::from(row["kind"] == "host")] += row["total_ps"].as_u64().unwrap();
        }
        assert_eq!(sum("own_device_ps"), parts[0], "{file}");
        assert!(sum("own_host_ps") >= parts[1], "{file}");
        // A row's time is its own time plus its direct children's times.
        for row in modules.iter().filter(|row| row["path"] != "") {
            let path = row["path"].as_str().unwrap();
            let inside = modules.iter().filter(|other| {
                let rest = other["path"].as_str().unwrap().strip_prefix(path);
                rest.and_then(|rest| rest.strip_prefix('/'))
                    .is_some_and(|rest| !rest.contains('/'))
            });
            let inside: u64 = inside
                .map(|other| other["device_ps"].as_u64().unwrap())
                .sum();
            let own = row["own_device_ps"].as_u64().unwrap();
            assert_eq!(
                row["device_ps"].as_u64().unwrap(),
                own + inside,
                "{file}: {path}"
            );
        }
        if !is_plain {
            continue;
        }
        let kineto = super::rig::read_json_file(&path).unwrap();
        let mut expected = device_time_by_module_path(&kineto);
        expected.retain(|_, ns| *ns > 0);
        let found = modules.iter().map(|row| {
            let own = row["own_device_ps"].as_u64().unwrap();
            (row["path"].as_str().unwrap().to_owned(), own / 1000)
        });
        let found: BTreeMap<String, u64> = found.filter(|(_, ns)| *ns > 0).collect();
        assert_eq!(found, expected, "{file}");
    }
}

/// The capture has three steps. Each node of a step is in the slice of the step, and the slices together contain all
/// nodes, except nodes outside steps. Each step takes as long as in the full replay.
#[test]
fn sliced_steps_take_as_long_as_in_the_full_replay() {
    let Some(capture) = corpus_path_or_count_skip("captures/pytorch/ddp_resnet18_3steps") else {
        return;
    };
    let job = convert_files(&capture);
    let options = ["-m", "dgx-h100", "--comm", "recorded"];
    let whole = replay_files(job.path(), &options);
    let steps = whole["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 3);
    let mut nodes = 0;
    for row in steps {
        let number = row["step"].to_string();
        let alone = replay_files(job.path(), &[&options[..], &["--step", &number]].concat());
        assert_eq!(alone["makespan_ps"], row["time_ps"], "step {number}");
        assert_eq!(row["ranks"], 2);
        // Every slice has the two declarations of groups.
        nodes += alone["nodes"].as_u64().unwrap() - 2;
        let parts = ["compute", "exposed_communication", "memory", "host", "idle"];
        let parts = parts.map(|part| row[format!("{part}_ps")].as_u64().unwrap());
        // Each of the five values is rounded separately.
        assert!(
            parts
                .iter()
                .sum::<u64>()
                .abs_diff(row["time_ps"].as_u64().unwrap())
                <= 5
        );
    }
    let all = whole["nodes"].as_u64().unwrap() - 2;
    assert!(nodes <= all && nodes * 100 >= all * 99, "{nodes} of {all}");
}
