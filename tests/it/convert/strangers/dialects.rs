//! Tests versions of the profiler, devices, and events in unusual order or number.

use super::gpu_job::{
    COMPUTE, assert_conversion_refused, assert_job_converts_with_device_time, convert_rank_files,
    generate_rank_files, has_category, sum_kernel_ns, trace_events_mut,
};
use serde_json::{Value, json};

const RANKS: u64 = 2;
const LAYERS: u64 = 3;

/// Rewrites the job's files, and checks the conversion: all device time, all collectives, and the
/// captured end.
fn check_rewritten_job_converts(what: &str, rewrite: impl Fn(&mut Value)) {
    let mut all = generate_rank_files(RANKS, LAYERS);
    all.iter_mut().for_each(rewrite);
    let device = sum_kernel_ns(&all);
    let texts: Vec<String> = all.iter().map(Value::to_string).collect();
    assert_job_converts_with_device_time(what, &texts, device, LAYERS);
}

fn rewrite_each_event(file: &mut Value, rewrite: impl FnMut(&mut Value)) {
    trace_events_mut(file).iter_mut().for_each(rewrite);
}

fn rename_event(event: &mut Value, names: &[(&str, &str)]) {
    let name = event["name"].as_str().unwrap_or_default();
    if let Some((_, new)) = names.iter().find(|(old, _)| *old == name) {
        event["name"] = json!(new);
    }
}

fn replace_event_category(event: &mut Value, categories: &[(&str, &str)]) {
    let found = categories.iter().find(|(old, _)| has_category(event, old));
    if let Some((_, new)) = found {
        event["cat"] = json!(new);
    }
}

fn remove_event_args(event: &mut Value, keys: &[&str]) {
    if let Some(args) = event["args"].as_object_mut() {
        args.retain(|key, _| !keys.contains(&key.as_str()));
    }
}

/// The arguments that PyTorch 2.1 added to collectives.
const SAID: [&str; 9] = [
    "Collective name",
    "dtype",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "Record function id",
];

#[test]
fn old_and_new_versions_convert() {
    check_rewritten_job_converts("as it is", |_| ());
    check_rewritten_job_converts(
        "2021: categories with capitals, whole microseconds since 1970",
        |file| {
            let base = file["baseTimeNanoseconds"].as_f64().unwrap() / 1e3;
            let object = file.as_object_mut().unwrap();
            object.retain(|key, _| key == "traceEvents");
            rewrite_each_event(file, |event| {
                let old = [
                    ("cpu_op", "Operator"),
                    ("user_annotation", "Operator"),
                    ("cuda_runtime", "Runtime"),
                    ("kernel", "Kernel"),
                ];
                replace_event_category(event, &old);
                remove_event_args(event, &SAID);
                event["dur"] = json!(event["dur"].as_f64().unwrap().floor() as u64);
                event["ts"] = json!((base + event["ts"].as_f64().unwrap()) as u64);
                if has_category(event, "Kernel") {
                    let id = event["args"]["External id"].take();
                    event["args"]["external id"] = id;
                }
            });
        },
    );
    check_rewritten_job_converts(
        "2022: the external id of a launch is its correlation",
        |file| {
            rewrite_each_event(file, |event| {
                remove_event_args(event, &SAID);
                if has_category(event, "kernel") || has_category(event, "cuda_runtime") {
                    event["args"]["External id"] = event["args"]["correlation"].clone();
                }
            });
        },
    );
    check_rewritten_job_converts("numbers that are texts", |file| {
        file["baseTimeNanoseconds"] = json!(file["baseTimeNanoseconds"].to_string());
        rewrite_each_event(file, |event| {
            for key in ["pid", "tid", "ts", "dur"] {
                if event[key].is_number() {
                    event[key] = json!(event[key].to_string());
                }
            }
        });
    });
    check_rewritten_job_converts("times of a double since 1970", |file| {
        let base = file["baseTimeNanoseconds"].as_f64().unwrap() / 1e3;
        file.as_object_mut().unwrap().remove("baseTimeNanoseconds");
        rewrite_each_event(file, |event| {
            event["ts"] = json!(base + event["ts"].as_f64().unwrap())
        });
    });
}

#[test]
fn other_devices_convert() {
    check_rewritten_job_converts("ROCm", |file| {
        rewrite_each_event(file, |event| {
            let names = [
                ("cudaLaunchKernel", "hipExtModuleLaunchKernel"),
                ("cudaDeviceSynchronize", "hipDeviceSynchronize"),
            ];
            rename_event(event, &names);
            if has_category(event, "cuda_runtime") {
                event["args"]["stream"] = json!("0x7f3a");
            }
            if has_category(event, "kernel") {
                (event["pid"], event["args"]["device"]) = (json!(2), json!(2));
            }
        });
    });
    check_rewritten_job_converts("MTIA", |file| {
        let names = [
            ("cuda_runtime", "mtia_runtime"),
            ("kernel", "mtia_ccp_events"),
        ];
        rewrite_each_event(file, |event| replace_event_category(event, &names));
    });
    check_rewritten_job_converts("Ascend", |file| {
        rewrite_each_event(file, |event| {
            replace_event_category(event, &[("cuda_runtime", "privateuse1_runtime")]);
            rename_event(
                event,
                &[("cudaDeviceSynchronize", "aclrtSynchronizeDevice")],
            );
        });
    });
}

/// If plug-ins record neither stream nor device, each queue has one track with a number or a name.
#[test]
fn lanes_of_devices_without_streams_are_their_tracks() {
    let bare = |event: &mut Value| {
        let names = [
            ("cudaLaunchKernel", "urEnqueueKernelLaunch"),
            ("cudaDeviceSynchronize", "urQueueFinish"),
        ];
        rename_event(event, &names);
        replace_event_category(event, &[("cuda_runtime", "xpu_runtime")]);
        remove_event_args(event, &["stream", "device"]);
    };
    check_rewritten_job_converts("XPU", |file| rewrite_each_event(file, bare));
    check_rewritten_job_converts("queues with names", |file| {
        rewrite_each_event(file, |event| {
            bare(event);
            if has_category(event, "kernel") {
                event["tid"] = json!(format!("queue {}", event["tid"]));
            }
        });
    });
    let mut all = generate_rank_files(RANKS, LAYERS);
    all.iter_mut()
        .for_each(|file| rewrite_each_event(file, bare));
    let texts: Vec<String> = all.iter().map(Value::to_string).collect();
    let job = convert_rank_files(&texts).unwrap_or_else(|error| panic!("{error}"));
    assert!(job.summary.ranks.iter().all(|rank| rank.lanes.1 == 2));
}

/// Rewrites a file in the form of Ascend's profiler: a list of events, device tasks and CANN calls
/// without a category, and times as text.
fn trace_view(file: &mut Value) {
    rewrite_each_event(file, |event| {
        let name = event["name"].as_str().unwrap_or_default().to_owned();
        let (kernel, call) = (
            has_category(event, "kernel"),
            has_category(event, "cuda_runtime"),
        );
        event["ts"] = json!(event["ts"].to_string());
        if !kernel && !call {
            return;
        }
        event.as_object_mut().unwrap().remove("cat");
        let correlation = event["args"]["correlation"].take();
        let stream = event["args"]["stream"].take();
        event["args"] = json!({"connection_id": correlation});
        match (kernel, name.starts_with("nccl")) {
            (true, false) => {
                event["pid"] = json!("4_0");
                event["args"]["Task Type"] = json!("AI_CORE");
                event["args"]["Stream Id"] = stream;
            }
            (true, true) => {
                event["pid"] = json!("6_0");
                event["name"] = json!("hcom_allReduce__503_0_1");
            }
            _ => {
                event["pid"] = json!("5_0");
                let names = [
                    ("cudaLaunchKernel", "Node@launch"),
                    ("cudaDeviceSynchronize", "AscendCL@aclrtSynchronizeDevice"),
                ];
                rename_event(event, &names);
            }
        }
    });
    let wait = json!({
        "ph": "X", "name": "EVENT_WAIT", "pid": "4_0", "tid": COMPUTE, "ts": "1100.5", "dur": 50.0,
        "args": {"Task Type": "EVENT_WAIT_SQE", "Stream Id": COMPUTE, "connection_id": 4_294_967_295_u64},
    });
    trace_events_mut(file).push(wait);
}

#[test]
fn traces_of_ascend_as_its_profiler_exports_them_convert() {
    let mut all = generate_rank_files(RANKS, LAYERS);
    let device = sum_kernel_ns(&all);
    all.iter_mut().for_each(trace_view);
    let texts: Vec<String> = all
        .iter()
        .map(|file| file["traceEvents"].to_string())
        .collect();
    let job = assert_job_converts_with_device_time("trace_view.json", &texts, device, LAYERS);
    assert!(!job.summary.host_computes);
    for rank in &job.summary.ranks {
        assert_eq!((rank.unlaunched, rank.lanes.1), (0, 2));
        assert!(rank.found.device_syncs > 0);
    }
}

/// A device with events of an unknown category must not count as an idle device.
#[test]
fn devices_that_cannot_be_read_are_refused_by_name() {
    let mut all = generate_rank_files(RANKS, LAYERS);
    for file in &mut all {
        rewrite_each_event(file, |event| {
            replace_event_category(
                event,
                &[("kernel", "npu_kernel"), ("cuda_runtime", "npu_api")],
            );
        });
    }
    let texts: Vec<String> = all.iter().map(Value::to_string).collect();
    let parts = ["6 of category `npu_kernel`", "cannot be read", "`kernel`"];
    assert_conversion_refused(convert_rank_files(&texts), &parts);
}

/// The host's wait for its device is device time, whatever the call's name. On a network without
/// transfer times, the step is shorter, although the host only waited.
#[test]
fn waits_for_devices_are_known_by_their_calls() {
    for name in [
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize_ptsz",
        "hipStreamSynchronize",
        "urQueueFinish",
        "zeCommandListHostSynchronize",
        "aclrtSynchronizeStream",
    ] {
        let mut all = generate_rank_files(RANKS, LAYERS);
        for file in &mut all {
            rewrite_each_event(file, |event| {
                rename_event(event, &[("cudaDeviceSynchronize", name)])
            });
        }
        let texts: Vec<String> = all.iter().map(Value::to_string).collect();
        let job = convert_rank_files(&texts).unwrap();
        let waits: u64 = job
            .summary
            .ranks
            .iter()
            .map(|rank| rank.found.device_syncs)
            .sum();
        assert_eq!(waits, RANKS, "{name}");
    }
}

#[test]
fn tracks_and_ids_of_any_kind_convert() {
    check_rewritten_job_converts("threads by their names", |file| {
        rewrite_each_event(file, |event| {
            let tid = if has_category(event, "kernel") {
                "stream"
            } else {
                "MainThread"
            };
            event["tid"] = json!(tid);
        });
    });
    check_rewritten_job_converts("threads by their addresses", |file| {
        rewrite_each_event(file, |event| {
            if event["pid"].as_u64() >= Some(4000) {
                event["tid"] = json!(-140_245_879_904_065_i64);
            }
        });
    });
    check_rewritten_job_converts("neither process nor thread", |file| {
        rewrite_each_event(file, |event| {
            if !has_category(event, "kernel") {
                let object = event.as_object_mut().unwrap();
                object.retain(|key, _| key != "pid" && key != "tid");
            }
        });
    });
    check_rewritten_job_converts("ids near the end of 64 bits", |file| {
        rewrite_each_event(file, |event| {
            for key in ["External id", "correlation"] {
                if let Some(id) = event["args"][key].as_u64() {
                    event["args"][key] = json!(id + (1 << 63));
                }
            }
        });
    });
    check_rewritten_job_converts("arguments that are null", |file| {
        rewrite_each_event(file, |event| {
            if has_category(event, "user_annotation") {
                event["args"] = Value::Null;
            }
        });
    });
    check_rewritten_job_converts("in any order", |file| trace_events_mut(file).reverse());
}

/// Correlation ids are reused after they wrap around, so a kernel belongs to the last launch before it.
#[test]
fn correlations_that_are_used_again_are_told_apart_by_time() {
    let again = |ids: u64| {
        move |file: &mut Value| {
            rewrite_each_event(file, |event| {
                if let Some(id) = event["args"]["correlation"].as_u64() {
                    event["args"]["correlation"] = json!(1000 + id % ids);
                }
            });
        }
    };
    // Each layer has two launches, and the final wait follows. With four ids, layers 0 and 2 have
    // the same ids.
    check_rewritten_job_converts("four correlations", again(4));
}

#[test]
fn launches_that_are_missing_or_shared_lose_no_work() {
    check_rewritten_job_converts("no calls of the runtime", |file| {
        trace_events_mut(file).retain(|event| !has_category(event, "cuda_runtime"));
    });
    check_rewritten_job_converts("a graph of all kernels", |file| {
        let mut first = None;
        trace_events_mut(file).retain_mut(|event| {
            if has_category(event, "cuda_runtime") && event["name"] == "cudaLaunchKernel" {
                let kept = first.is_none();
                event["name"] = json!("cudaGraphLaunch");
                first.get_or_insert(event["args"]["correlation"].clone());
                return kept;
            }
            if has_category(event, "kernel") {
                event["args"]["correlation"] = first.clone().unwrap();
                remove_event_args(event, &["External id"]);
            }
            true
        });
    });
    check_rewritten_job_converts("kernels of four streams", |file| {
        let mut next = 0;
        rewrite_each_event(file, |event| {
            if has_category(event, "kernel") && event["tid"] == COMPUTE {
                let stream = [7, 11, 13, 17][next % 4];
                (event["tid"], event["args"]["stream"]) = (json!(stream), json!(stream));
                next += 1;
            }
        });
    });
}

#[test]
fn times_near_zero_count_from_the_host_or_the_capture() {
    for shift in [0.0, -1000.0, -1400.0, -1e9] {
        check_rewritten_job_converts(&format!("without a base, {shift} us"), |file| {
            file.as_object_mut().unwrap().remove("baseTimeNanoseconds");
            rewrite_each_event(file, |event| {
                event["ts"] = json!(event["ts"].as_f64().unwrap() + shift)
            });
        });
    }
}

/// An operator that never ended may have any duration, and events far outside the profiler's span
/// were not recorded.
#[test]
fn an_event_that_outlasts_the_profiler_by_far_is_dropped() {
    let mut all = generate_rank_files(RANKS, LAYERS);
    let device = sum_kernel_ns(&all);
    for file in &mut all {
        let last = trace_events_mut(file).last().unwrap()["ts"].clone();
        trace_events_mut(file).push(json!({
            "ph": "X", "cat": "cpu_op", "name": "aten::item", "pid": 4000, "tid": 9, "ts": last, "dur": 3.15e13,
            "args": {},
        }));
        rewrite_each_event(file, |event| {
            if event["tid"] == 9 {
                event["ts"] = json!(1100.0);
            }
        });
    }
    // Both files use the same process id for the wait, so the second rank's events would belong to
    // two ranks.
    trace_events_mut(&mut all[1]).retain(|event| event["tid"] != 9);
    let texts: Vec<String> = all.iter().map(Value::to_string).collect();
    let job = assert_job_converts_with_device_time("a year", &texts, device, LAYERS);
    let left_out = &job.summary.ranks[0].events_left_out;
    let outside = left_out.iter().find(|(reason, _)| reason.contains("span"));
    assert_eq!(outside.map(|(_, count)| *count), Some(1), "{left_out:?}");
}

/// Scripts merge the files of ranks into one file, in which ranks have the same correlation ids,
/// streams and devices.
#[test]
fn ranks_in_one_file_are_refused() {
    let mut all = generate_rank_files(RANKS, LAYERS);
    let mut other = all.pop().unwrap();
    trace_events_mut(&mut all[0]).append(trace_events_mut(&mut other));
    assert_conversion_refused(
        convert_rank_files(&[all[0].to_string()]),
        &[
            "kineto.0.json",
            "processes 4000, 4001",
            "merged",
            "one each",
        ],
    );
}

/// Process labels, as SGLang's script writes them, and offsets of process ids distinguish ranks in one file. The ranks
/// convert just as they do from separate files.
#[test]
fn ranks_in_one_file_that_processes_tell_are_taken_apart() {
    let all = generate_rank_files(RANKS, LAYERS);
    let texts: Vec<String> = all.iter().map(Value::to_string).collect();
    let device = sum_kernel_ns(&all);
    let apart = assert_job_converts_with_device_time("apart", &texts, device, LAYERS);
    let labelled = |rank: u64, pid: &Value| json!(format!("[TP{rank:02}] {pid}"));
    let offset = |rank: u64, pid: &Value| json!(1_000_000 * rank + pid.as_u64().unwrap_or(0));
    type NameProcess<'a> = &'a dyn Fn(u64, &Value) -> Value;
    let ways: [(&str, NameProcess<'_>); 2] = [("labels", &labelled), ("offsets", &offset)];
    for (what, process) in ways {
        let mut ranks = all.clone().into_iter();
        let mut merged = ranks.next().unwrap();
        for (rank, file) in (1..).zip(ranks.by_ref()) {
            let mut file = file;
            rewrite_each_event(&mut file, |event| {
                event["pid"] = process(rank, &event["pid"])
            });
            trace_events_mut(&mut merged).append(trace_events_mut(&mut file));
        }
        let own = all[0]["traceEvents"].as_array().unwrap().len();
        for event in trace_events_mut(&mut merged).iter_mut().take(own) {
            event["pid"] = process(0, &event["pid"]);
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("merged.trace.json"), merged.to_string()).unwrap();
        let job = super::super::rig::convert_folder(folder.path());
        assert_eq!(job.traces, apart.traces, "{what}");
    }
}
