//! Kernels of public captures that say what they compute, so that another machine can price them.

use super::rig::{attribute, convert, lasts, on_host, try_convert};
use crate::commands::chakram;
use crate::corpus::corpus;
use chakram::convert::ConvertOptions as Conversion;

/// Part of the kernels' time, in per mille, that has FLOPs or bytes: of captures with operators and their shapes, and of
/// one whose kernels a graph launched.
#[test]
fn kernels_whose_operators_have_shapes_are_described() {
    let Some(tracelens) = corpus("captures/gpu/tracelens") else {
        return;
    };
    for (file, least) in [
        ("h100/Falconsai_nsfw_image_detection__1016002.json.gz", 990),
        ("h100/gaunernst_bert-small-uncased__1016001.json.gz", 999),
        ("mi300/Falconsai_nsfw_image_detection__1016002.json.gz", 990),
        ("mi300/gaunernst_bert-small-uncased__1016001.json.gz", 999),
        // With tensors in lists, whose type the kernels' names tell.
        (
            "h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
            999,
        ),
        (
            "mi300/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
            999,
        ),
        // Kernels that were launched before the capture began do what others of their names do; collectives among them, 46 %
        // of the time, do none.
        ("mi300/resnet_act_checkpoint.json.gz", 525),
        ("b200_eager.json.gz", 900),
        ("torch_compile_triton.json.gz", 999),
        ("inference/sglang_qwen3_8b_decode.json.gz", 0),
    ] {
        let job = try_convert(&[tracelens.join(file)], &Conversion::default())
            .unwrap_or_else(|e| panic!("{file}: {e}"));
        let (mut all, mut described) = (0, 0);
        for node in &job.traces[0].nodes {
            let work = ["num_ops", "tensor_size"].map(|name| attribute(node, name));
            let [Some(flops), Some(bytes)] = work else {
                continue;
            };
            if on_host(node) {
                continue;
            }
            all += lasts(node);
            described += if flops + bytes > 0 { lasts(node) } else { 0 };
        }
        println!("{file}: {described} of {all} ns");
        assert!(all > 0, "{file}");
        assert!(
            described * 1000 >= all * least,
            "{file}: {described} of {all} ns"
        );
        // Nothing stands around a graph's kernels: if it did, the least above would be too low.
        assert!(
            least > 0 || described * 10 < all,
            "{file}: {described} of {all} ns"
        );
    }
}

/// What was launched before the capture began does, in its time, what a kernel or copy of its name does that has an operator
/// or bytes.
#[test]
fn kernels_without_an_operator_do_what_their_names_do() {
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
    let job = convert(folder.path());
    let nodes = job.traces[0].nodes.iter();
    let done = nodes.filter_map(|node| {
        let bytes = attribute(node, "tensor_size")?;
        Some((node.name.as_str(), lasts(node) / 1000, bytes))
    });
    // Two inputs and an output of 256 floats in 10 us, 3,072 bytes, are 6,144 in 20; 4,096 bytes in 4 us are 2,048 in 2.
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

/// One model, captured on both machines: its kernels, carried from either to the other, take what they took there within a
/// fifth, where as recorded they are 24 and 32 % off and by roofline at the peaks 65 and 70. Where kernels last some
/// microseconds, software decides: smaller models are further off.
#[test]
fn kernels_are_carried_between_machines() {
    let Some(tracelens) = corpus("captures/gpu/tracelens") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let sides = [("h100", "dgx-h100"), ("mi300", "mi300x")];
    let prefix = |side: &str| folder.path().join(side).display().to_string();
    for (side, _) in sides {
        let file = format!("{side}/facebook_timesformer-base-finetuned-k400__1016002.json.gz");
        let file = tracelens.join(file).display().to_string();
        let made = chakram(&["convert", "pytorch", &file, "-o", &prefix(side)]);
        assert!(made.status.success(), "{made:?}");
    }
    let kernels = |side: &str, machine: &str, more: &[&str]| {
        let prefix = prefix(side);
        let fixed = ["replay", &prefix, "-m", machine, "--format", "json"];
        let made = chakram(&[&fixed[..], more].concat());
        assert!(made.status.success(), "{made:?}");
        let report: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
        assert_eq!(report["kernels"]["kept_recorded"], 0);
        report["mean_ps"]["compute"].as_f64().unwrap()
    };
    for [(from, source), (to, machine)] in [sides, [sides[1], sides[0]]] {
        let truth = kernels(to, machine, &[]);
        let carried = kernels(from, machine, &["--recorded-on", source]);
        let error = carried / truth - 1.0;
        println!("{from} to {to}: {:+.1} %", error * 100.0);
        assert!(error.abs() < 0.2, "{from} to {to}: {error}");
        let recorded = kernels(from, machine, &[]) / truth - 1.0;
        assert!(error.abs() < recorded.abs(), "{from} to {to}: {error}");
    }
}
