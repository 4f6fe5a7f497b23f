//! Tests public captures whose operators have shapes, so that the times of their kernels on another machine can be
//! predicted.

use super::rig::{
    convert_files, convert_folder, find_integer_attribute, on_host, read_duration_ns, run_program,
    try_convert,
};
use crate::corpus::corpus_path_or_count_skip;
use chakram::convert::ConvertOptions as Conversion;
use std::process::Command;

/// Per mille of the kernels' time for which FLOPs or bytes are known: for captures with operators and shapes, and for a
/// capture whose kernels a graph launched.
#[test]
fn kernels_whose_operators_have_shapes_have_known_flops_or_bytes() {
    let Some(tracelens) = corpus_path_or_count_skip("captures/gpu/tracelens") else {
        return;
    };
    for (file, least) in [
        ("h100/Falconsai_nsfw_image_detection__1016002.json.gz", 990),
        ("h100/gaunernst_bert-small-uncased__1016001.json.gz", 999),
        ("mi300/Falconsai_nsfw_image_detection__1016002.json.gz", 990),
        ("mi300/gaunernst_bert-small-uncased__1016001.json.gz", 999),
        // Tensors are in lists, and their type follows from the kernels' names.
        (
            "h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
            999,
        ),
        (
            "mi300/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
            999,
        ),
        // A kernel launched before the capture began is given the work of other kernels of the same name. Collectives,
        // which take 46 % of the time, have no such work.
        ("mi300/resnet_act_checkpoint.json.gz", 525),
        ("b200_eager.json.gz", 900),
        ("torch_compile_triton.json.gz", 999),
        ("inference/sglang_qwen3_8b_decode.json.gz", 0),
    ] {
        let job = try_convert(&[tracelens.join(file)], &Conversion::default())
            .unwrap_or_else(|e| panic!("{file}: {e}"));
        let (mut all, mut described) = (0, 0);
        for node in &job.traces[0].nodes {
            let work = ["num_ops", "tensor_size"].map(|name| find_integer_attribute(node, name));
            let [Some(flops), Some(bytes)] = work else {
                continue;
            };
            if on_host(node) {
                continue;
            }
            all += read_duration_ns(node);
            described += if flops + bytes > 0 {
                read_duration_ns(node)
            } else {
                0
            };
        }
        println!("{file}: {described} of {all} ns");
        assert!(all > 0, "{file}");
        assert!(
            described * 1000 >= all * least,
            "{file}: {described} of {all} ns"
        );
        // No operator encloses a graph's kernels. If an operator enclosed them, the minimum above
        // would be too low.
        assert!(
            least > 0 || described * 10 < all,
            "{file}: {described} of {all} ns"
        );
    }
}

/// A kernel or copy launched before the capture began does the same work per time as its namesakes with an operator or
/// known bytes.
#[test]
fn kernels_without_an_operator_get_the_work_of_their_namesakes() {
    let device = |cat: &str, name: &str, (ts, dur): (u32, u32), args: &str| {
        format!(
            r#"{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": 0, "tid": 7, "ts": {ts}, "dur": {dur},
            "args": {{"device": 0, "stream": 7, {args}}}}}"#
        )
    };
    let host = |cat: &str, name: &str, (ts, dur): (u32, u32), args: &str| {
        format!(
            r#"{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": 1, "tid": 1, "ts": {ts}, "dur": {dur},
            "args": {{{args}}}}}"#
        )
    };
    let shapes = r#""Input Dims": [[256], [256]], "Input type": ["float", "float"]"#;
    let events = [
        device("kernel", "add", (0, 20), r#""correlation": 90"#),
        device("kernel", "odd", (20, 5), r#""correlation": 91"#),
        device("gpu_memcpy", "DtoD", (30, 2), r#""correlation": 92"#),
        host("cpu_op", "aten::add", (1, 10), shapes),
        host(
            "cuda_runtime",
            "cudaLaunchKernel",
            (2, 5),
            r#""correlation": 1"#,
        ),
        device("kernel", "add", (40, 10), r#""correlation": 1"#),
        host(
            "cuda_runtime",
            "cudaMemcpyAsync",
            (20, 5),
            r#""correlation": 2"#,
        ),
        device(
            "gpu_memcpy",
            "DtoD",
            (50, 4),
            r#""correlation": 2, "bytes": 4096"#,
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{{\"traceEvents\": [{}]}}", events.join(",\n"));
    std::fs::write(folder.path().join("kineto.0.json"), text).unwrap();
    let job = convert_folder(folder.path());
    let nodes = job.traces[0].nodes.iter();
    let done = nodes.filter_map(|node| {
        let bytes = find_integer_attribute(node, "tensor_size")?;
        Some((node.name.as_str(), read_duration_ns(node) / 1000, bytes))
    });
    // Two inputs and an output of 256 floats are 3,072 bytes, which take 10 us, so 20 us correspond to 6,144 bytes.
    // 4,096 bytes in 4 us correspond to 2,048 bytes in 2 us.
    let expected = [
        ("add", 20, 6144),
        ("odd", 5, 0),
        ("DtoD", 2, 2048),
        ("add", 10, 3072),
        ("DtoD", 4, 4096),
    ];
    let mut done: Vec<_> = done.collect();
    done.sort_by_key(|&(name, time, _)| expected.iter().position(|e| (e.0, e.1) == (name, time)));
    assert_eq!(done, expected);
}

/// Each of three models was captured on both machines. Between vendors, no rate predicts the times of kernels, and the
/// device does not determine the speed of its host. This test therefore requires only two things. The predicted step is
/// at least as close to the measured step as the unchanged capture is, and the interval covers the measured step.
#[test]
fn steps_on_another_makers_device_are_within_their_interval() {
    let Some(tracelens) = corpus_path_or_count_skip("captures/gpu/tracelens") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let sides = [("h100", "dgx-h100"), ("mi300", "mi300x")];
    for model in [
        "Falconsai_nsfw_image_detection__1016002",
        "facebook_timesformer-base-finetuned-k400__1016002",
        "gaunernst_bert-small-uncased__1016001",
    ] {
        let prefix = |side: &str| {
            let name = format!("{model}-{side}");
            folder.path().join(name).display().to_string()
        };
        for (side, _) in sides {
            let file = tracelens.join(format!("{side}/{model}.json.gz"));
            let file = file.display().to_string();
            run_program(&["convert", "pytorch", &file, "-o", &prefix(side)]);
        }
        let replay = |side: &str, machine: &str, more: &[&str]| -> serde_json::Value {
            let prefix = prefix(side);
            let fixed = [
                "replay", &prefix, "-m", machine, "--comm", "recorded", "--format", "json",
            ];
            let text = run_program(&[&fixed[..], more].concat());
            serde_json::from_str(&text).unwrap()
        };
        let makespan = |report: &serde_json::Value| report["makespan_ps"].as_f64().unwrap();
        for [(from, source), (to, machine)] in [sides, [sides[1], sides[0]]] {
            let truth = makespan(&replay(to, machine, &[]));
            let unchanged = makespan(&replay(from, machine, &[])) / truth - 1.0;
            let report = replay(from, machine, &["--recorded-on", source]);
            let error = makespan(&report) / truth - 1.0;
            let end = |name: &str| report["interval"][name].as_f64().unwrap();
            let (low, high) = (end("low_ps"), end("high_ps"));
            println!(
                "{model}, {from} to {to}: {:+.1} %, unchanged {:+.1} %, {:.2} to {:.2} of {:.2} ms",
                100.0 * error,
                100.0 * unchanged,
                low / 1e9,
                high / 1e9,
                truth / 1e9
            );
            assert!(error.abs() <= unchanged.abs() + 1e-9, "{model}: {error}");
            assert!(
                (low..=high).contains(&truth),
                "{model}: {low} {high} {truth}"
            );
        }
    }
}

/// Kernels that were captured on an H100 are scaled to another device of the same vendor, and stay
/// unchanged on the recorded device. The report names the recorded device and the rates used for
/// scaling.
#[test]
fn kernels_are_carried_to_another_device_of_their_maker() {
    let Some(tracelens) = corpus_path_or_count_skip("captures/gpu/tracelens") else {
        return;
    };
    let model = "facebook_timesformer-base-finetuned-k400__1016002";
    let file = tracelens.join(format!("h100/{model}.json.gz"));
    let job = convert_files(&file);
    let folder = job.path().display().to_string();
    let report = |machine: &str, more: &[&str]| {
        let fixed = ["replay", &folder, "-m", machine, "--format", "json"];
        let text = run_program(&[&fixed[..], more].concat());
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    let compute = |report: &serde_json::Value| report["mean_ps"]["compute"].as_f64().unwrap();
    let on_h100 = ["--recorded-on", "dgx-h100"];
    let recorded = report("dgx-h200", &[]);
    assert_eq!(recorded["captured_on"]["preset"], "dgx-h100");
    assert_eq!(recorded["captured_on"]["kernels_stay"], true);
    let carried = report("dgx-h200", &on_h100);
    // Most kernels are limited by the memory bandwidth, which is 4.8 / 3.35 times as high.
    let ratio = compute(&carried) / compute(&recorded);
    assert!((0.69..0.95).contains(&ratio), "{ratio}");
    assert_eq!(
        carried["captured_on"]["kernels_stay"],
        serde_json::Value::Null
    );
    // The capture names the device of this machine.
    let by_capture = report("dgx-h200", &["--recorded-on", "capture"]);
    assert_eq!(by_capture["mean_ps"], carried["mean_ps"]);
    assert_eq!(by_capture["interval"], carried["interval"]);
    assert_eq!(by_capture["options"]["compute"], "recorded-on:capture");
    for on_own in [on_h100, ["--recorded-on", "capture"]] {
        let own = report("dgx-h100", &on_own);
        assert_eq!(compute(&own), compute(&report("dgx-h100", &[])));
    }
    let text = run_program(&["replay", &folder, "-m", "dgx-h200"]);
    assert!(text.contains("--recorded-on capture"), "{text}");
}

/// The kernels of two ranks, 100 us each, are scaled from the device that each capture names. A capture is rejected if
/// it names no device, or a device without a preset. The error states the option that gives the device.
#[test]
fn kernels_are_carried_from_the_devices_that_captures_name() {
    let replay = |devices: [Option<&str>; 2]| {
        let folder = tempfile::tempdir().unwrap();
        for (rank, device) in devices.into_iter().enumerate() {
            let properties = device.map_or(String::new(), |name| {
                format!(r#""deviceProperties": [{{"id": {rank}, "name": "{name}"}}],"#)
            });
            let text = format!(
                r#"{{{properties} "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 2}}, "traceEvents": [
                {{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 0, "dur": 1,
                  "args": {{"correlation": 1}}}},
                {{"ph": "X", "cat": "kernel", "name": "add", "pid": {rank}, "tid": 7, "ts": 1, "dur": 100,
                  "args": {{"device": {rank}, "stream": 7, "correlation": 1}}}}]}}"#
            );
            std::fs::write(folder.path().join(format!("kineto.{rank}.json")), text).unwrap();
        }
        let path = folder.path().display().to_string();
        let job = folder.path().join("job").display().to_string();
        run_program(&["convert", "pytorch", &path, "-o", &job]);
        Command::new(env!("CARGO_BIN_EXE_chakram"))
            .args(["replay", &job, "-m", "dgx-h200", "--format", "json"])
            .args(["--recorded-on", "capture"])
            .output()
            .unwrap()
    };
    let [h100, a100] = ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"];
    let output = replay([Some(h100), Some(a100)]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let compute = |rank: usize| &report["npus"][rank]["time_ps"]["compute"];
    // 10 us are fixed, and 90 us scale with the memory bandwidth: 3.35 and 2.039 TB/s were
    // recorded, and this machine has 4.8 TB/s.
    assert_eq!(compute(0), 72_812_500, "{report}");
    assert_eq!(compute(1), 48_231_250);
    for (device, found) in [
        (
            Some("Tesla P100-SXM2-16GB"),
            "no preset describes the device `Tesla P100-SXM2-16GB`",
        ),
        (None, "a capture of this job names no device"),
    ] {
        let output = replay([Some(h100), device]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(found), "{error}");
        assert!(error.contains("--recorded-on FILE.toml"), "{error}");
    }
}

/// A capture on an H100 has 1 ms of host work before a kernel of 10 us. The host work has an error of 4 % on H100s and
/// of 15 % on other NPUs, whether kernels are scaled or timed by roofline. The error of the launches that a machine's
/// host makes does not apply.
#[test]
fn recorded_host_work_is_least_certain_on_other_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"{"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}, "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 0, "dur": 1000,
          "args": {"External id": 1}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 998, "dur": 1,
          "args": {"correlation": 1, "External id": 1}},
        {"ph": "X", "cat": "kernel", "name": "add", "pid": 0, "tid": 7, "ts": 1000, "dur": 10,
          "args": {"device": 0, "stream": 7, "correlation": 1}}]}"#;
    std::fs::write(folder.path().join("kineto.0.json"), text).unwrap();
    let path = folder.path().display().to_string();
    let job = folder.path().join("job").display().to_string();
    run_program(&["convert", "pytorch", &path, "-o", &job]);
    let replay = |machine: &str, more: &[&str]| {
        let fixed = ["replay", &job, "-m", machine, "--format", "json"];
        let text = run_program(&[&fixed[..], &["--recorded-on", "capture"], more].concat());
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let time = |key: &str| report["interval"][key].as_f64().unwrap();
        // The exponent of the upper end is 1.645 s, where s also contains 5.5 % that all times share.
        let deviation = (time("high_ps") / report["makespan_ps"].as_f64().unwrap()).ln() / 1.645;
        (deviation, report)
    };
    let host = |deviation: f64| (deviation.powi(2) - 0.055_f64.powi(2)).sqrt();
    for (machine, error) in [("dgx-h100", 0.04), ("dgx-h200", 0.15), ("mi300x", 0.15)] {
        let (deviation, report) = replay(machine, &[]);
        let found = host(deviation);
        assert!(
            (found / error - 1.0).abs() < 0.05,
            "{machine}: {found}\n{report}"
        );
    }
    let (_, report) = replay("dgx-h100", &["--set", "machine.host.error=0.02"]);
    let reason = &report["settings"]["without_effect"][0]["reason"];
    assert_eq!(reason, "host work lasts as the traces say", "{report}");
    let (_, report) = replay("dgx-h100", &["--set", "machine.host.error=0.4"]);
    let reason = &report["settings"]["without_effect"][0]["reason"];
    assert_eq!(
        reason, "the run is the same without the setting",
        "{report}"
    );
}

/// The kernels of ResNet ran on a CPU. No curve applies to them, and collectives that last as recorded take no time
/// from curves. Ratios of NPUs' rates do not apply either.
#[test]
fn kernels_of_a_cpu_have_no_curves_and_no_recording_npu() {
    let fixed = ["replay", "traces/ddp-resnet18", "-m", "dgx-h100"];
    let by_curves = [
        "--comm",
        "recorded",
        "--compute",
        "curves",
        "--format",
        "json",
    ];
    let text = run_program(&[&fixed[..], &by_curves].concat());
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["interval"]["measured_collectives_ps"], 0);
    assert_eq!(report["interval"]["at_peaks"], true);
    assert_eq!(report["collectives"][0]["measured"], false);
    assert!(
        text.contains("no curve of the machine applies to them"),
        "{text}"
    );
    let output = Command::new(env!("CARGO_BIN_EXE_chakram"))
        .args(fixed)
        .args(["--recorded-on", "dgx-a100"])
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("the kernels of this job ran on a CPU"),
        "{error}"
    );
}
