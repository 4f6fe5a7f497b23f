//! Tests versions of the profiler, devices, and events in unusual order or number.

use super::gpu_job::{COMPUTE, converted_ranks, device_ns, events, files, hold, is, refused};
use serde_json::{Value, json};

const RANKS: u64 = 2;
const LAYERS: u64 = 3;

/// Rewrites the job's files, and checks the conversion: all device time, all collectives, and the
/// captured end.
fn sound(what: &str, rewrite: impl Fn(&mut Value)) {
    let mut all = files(RANKS, LAYERS);
    all.iter_mut().for_each(rewrite);
    let device = device_ns(&all);
    let texts: Vec<String> = all.iter().map(Value::to_string).collect();
    hold(what, &texts, device, LAYERS);
}

fn each(file: &mut Value, rewrite: impl FnMut(&mut Value)) {
    events(file).iter_mut().for_each(rewrite);
}

fn rename(event: &mut Value, names: &[(&str, &str)]) {
    let name = event["name"].as_str().unwrap_or_default();
    if let Some((_, new)) = names.iter().find(|(old, _)| *old == name) {
        event["name"] = json!(new);
    }
}

fn recategorise(event: &mut Value, categories: &[(&str, &str)]) {
    let found = categories.iter().find(|(old, _)| is(event, old));
    if let Some((_, new)) = found {
        event["cat"] = json!(new);
    }
}

fn without(event: &mut Value, keys: &[&str]) {
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
    sound("as it is", |_| ());
    sound(
        "2021: categories with capitals, whole microseconds since 1970",
        |file| {
            let base = file["baseTimeNanoseconds"].as_f64().unwrap() / 1e3;
            let object = file.as_object_mut().unwrap();
            object.retain(|key, _| key == "traceEvents");
            each(file, |event| {
                let old = [
                    ("cpu_op", "Operator"),
                    ("user_annotation", "Operator"),
                    ("cuda_runtime", "Runtime"),
                    ("kernel", "Kernel"),
                ];
                recategorise(event, &old);
                without(event, &SAID);
                event["dur"] = json!(event["dur"].as_f64().unwrap().floor() as u64);
                event["ts"] = json!((base + event["ts"].as_f64().unwrap()) as u64);
                if is(event, "Kernel") {
                    let id = event["args"]["External id"].take();
                    event["args"]["external id"] = id;
                }
            });
        },
    );
    sound(
        "2022: the external id of a launch is its correlation",
        |file| {
            each(file, |event| {
                without(event, &SAID);
                if is(event, "kernel") || is(event, "cuda_runtime") {
                    event["args"]["External id"] = event["args"]["correlation"].clone();
                }
            });
        },
    );
    sound("numbers that are texts", |file| {
        file["baseTimeNanoseconds"] = json!(file["baseTimeNanoseconds"].to_string());
        each(file, |event| {
            for key in ["pid", "tid", "ts", "dur"] {
                if event[key].is_number() {
                    event[key] = json!(event[key].to_string());
                }
            }
        });
    });
    sound("times of a double since 1970", |file| {
        let base = file["baseTimeNanoseconds"].as_f64().unwrap() / 1e3;
        file.as_object_mut().unwrap().remove("baseTimeNanoseconds");
        each(file, |event| {
            event["ts"] = json!(base + event["ts"].as_f64().unwrap())
        });
    });
}

#[test]
fn other_devices_convert() {
    sound("ROCm", |file| {
        each(file, |event| {
            let names = [
                ("cudaLaunchKernel", "hipExtModuleLaunchKernel"),
                ("cudaDeviceSynchronize", "hipDeviceSynchronize"),
            ];
            rename(event, &names);
            if is(event, "cuda_runtime") {
                event["args"]["stream"] = json!("0x7f3a");
            }
            if is(event, "kernel") {
                (event["pid"], event["args"]["device"]) = (json!(2), json!(2));
            }
        });
    });
    sound("MTIA", |file| {
        let names = [
            ("cuda_runtime", "mtia_runtime"),
            ("kernel", "mtia_ccp_events"),
        ];
        each(file, |event| recategorise(event, &names));
    });
    sound("Ascend", |file| {
        each(file, |event| {
            recategorise(event, &[("cuda_runtime", "privateuse1_runtime")]);
            rename(
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
        rename(event, &names);
        recategorise(event, &[("cuda_runtime", "xpu_runtime")]);
        without(event, &["stream", "device"]);
    };
    sound("XPU", |file| each(file, bare));
    sound("queues with names", |file| {
        each(file, |event| {
            bare(event);
            if is(event, "kernel") {
                event["tid"] = json!(format!("queue {}", event["tid"]));
            }
        });
    });
    let mut all = files(RANKS, LAYERS);
    all.iter_mut().for_each(|file| each(file, bare));
    let texts: Vec<String> = all.iter().map(Value::to_string).collect();
    let job = converted_ranks(&texts).unwrap_or_else(|error| panic!("{error}"));
    assert!(job.summary.ranks.iter().all(|rank| rank.lanes.1 == 2));
}

/// Rewrites a file in the form of Ascend's profiler: a list of events, device tasks and CANN calls
/// without a category, and times as text.
fn trace_view(file: &mut Value) {
    each(file, |event| {
        let name = event["name"].as_str().unwrap_or_default().to_owned();
        let (kernel, call) = (is(event, "kernel"), is(event, "cuda_runtime"));
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
                rename(event, &names);
            }
        }
    });
    let wait = json!({
        "ph": "X", "name": "EVENT_WAIT", "pid": "4_0", "tid": COMPUTE, "ts": "1100.5", "dur": 50.0,
        "args": {"Task Type": "EVENT_WAIT_SQE", "Stream Id": COMPUTE, "connection_id": 4_294_967_295_u64},
    });
    events(file).push(wait);
}

#[test]
fn traces_of_ascend_as_its_profiler_exports_them_convert() {
    let mut all = files(RANKS, LAYERS);
    let device = device_ns(&all);
    all.iter_mut().for_each(trace_view);
    let texts: Vec<String> = all
        .iter()
        .map(|file| file["traceEvents"].to_string())
        .collect();
    let job = hold("trace_view.json", &texts, device, LAYERS);
    assert!(!job.summary.host_computes);
    for rank in &job.summary.ranks {
        assert_eq!((rank.unlaunched, rank.lanes.1), (0, 2));
        assert!(rank.found.device_syncs > 0);
    }
}

/// A device with events of an unknown category must not count as an idle device.
#[test]
fn devices_that_cannot_be_read_are_refused_by_name() {
    let mut all = files(RANKS, LAYERS);
    for file in &mut all {
        each(file, |event| {
            recategorise(
                event,
                &[("kernel", "npu_kernel"), ("cuda_runtime", "npu_api")],
            );
        });
    }
    let texts: Vec<String> = all.iter().map(Value::to_string).collect();
    let parts = ["6 of category `npu_kernel`", "cannot be read", "`kernel`"];
    refused(converted_ranks(&texts), &parts);
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
        let mut all = files(RANKS, LAYERS);
        for file in &mut all {
            each(file, |event| {
                rename(event, &[("cudaDeviceSynchronize", name)])
            });
        }
        let texts: Vec<String> = all.iter().map(Value::to_string).collect();
        let job = converted_ranks(&texts).unwrap();
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
    sound("threads by their names", |file| {
        each(file, |event| {
            let tid = if is(event, "kernel") {
                "stream"
            } else {
                "MainThread"
            };
            event["tid"] = json!(tid);
        });
    });
    sound("threads by their addresses", |file| {
        each(file, |event| {
            if event["pid"].as_u64() >= Some(4000) {
                event["tid"] = json!(-140_245_879_904_065_i64);
            }
        });
    });
    sound("neither process nor thread", |file| {
        each(file, |event| {
            if !is(event, "kernel") {
                let object = event.as_object_mut().unwrap();
                object.retain(|key, _| key != "pid" && key != "tid");
            }
        });
    });
    sound("ids near the end of 64 bits", |file| {
        each(file, |event| {
            for key in ["External id", "correlation"] {
                if let Some(id) = event["args"][key].as_u64() {
                    event["args"][key] = json!(id + (1 << 63));
                }
            }
        });
    });
    sound("arguments that are null", |file| {
        each(file, |event| {
            if is(event, "user_annotation") {
                event["args"] = Value::Null;
            }
        });
    });
    sound("in any order", |file| events(file).reverse());
}

/// Correlation ids are reused after they wrap around, so a kernel belongs to the last launch before it.
#[test]
fn correlations_that_are_used_again_are_told_apart_by_time() {
    let again = |ids: u64| {
        move |file: &mut Value| {
            each(file, |event| {
                if let Some(id) = event["args"]["correlation"].as_u64() {
                    event["args"]["correlation"] = json!(1000 + id % ids);
                }
            });
        }
    };
    // Each layer has two launches, and the final wait follows. With four ids, layers 0 and 2 have
    // the same ids.
    sound("four correlations", again(4));
}

#[test]
fn launches_that_are_missing_or_shared_lose_no_work() {
    sound("no calls of the runtime", |file| {
        events(file).retain(|event| !is(event, "cuda_runtime"));
    });
    sound("a graph of all kernels", |file| {
        let mut first = None;
        events(file).retain_mut(|event| {
            if is(event, "cuda_runtime") && event["name"] == "cudaLaunchKernel" {
                let kept = first.is_none();
                event["name"] = json!("cudaGraphLaunch");
                first.get_or_insert(event["args"]["correlation"].clone());
                return kept;
            }
            if is(event, "kernel") {
                event["args"]["correlation"] = first.clone().unwrap();
                without(event, &["External id"]);
            }
            true
        });
    });
    sound("kernels of four streams", |file| {
        let mut next = 0;
        each(file, |event| {
            if is(event, "kernel") && event["tid"] == COMPUTE {
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
        sound(&format!("without a base, {shift} us"), |file| {
            file.as_object_mut().unwrap().remove("baseTimeNanoseconds");
            each(file, |event| {
                event["ts"] = json!(event["ts"].as_f64().unwrap() + shift)
            });
        });
    }
}

/// An operator that never ended may have any duration, and events far outside the profiler's span
/// were not recorded.
#[test]
fn an_event_that_outlasts_the_profiler_by_far_is_dropped() {
    let mut all = files(RANKS, LAYERS);
    let device = device_ns(&all);
    for file in &mut all {
        let last = events(file).last().unwrap()["ts"].clone();
        events(file).push(json!({
            "ph": "X", "cat": "cpu_op", "name": "aten::item", "pid": 4000, "tid": 9, "ts": last, "dur": 3.15e13,
            "args": {},
        }));
        each(file, |event| {
            if event["tid"] == 9 {
                event["ts"] = json!(1100.0);
            }
        });
    }
    // Both files use the same process id for the wait, so the second rank's events would belong to
    // two ranks.
    events(&mut all[1]).retain(|event| event["tid"] != 9);
    let texts: Vec<String> = all.iter().map(Value::to_string).collect();
    let job = hold("a year", &texts, device, LAYERS);
    let left_out = &job.summary.ranks[0].events_left_out;
    let outside = left_out.iter().find(|(reason, _)| reason.contains("span"));
    assert_eq!(outside.map(|(_, count)| *count), Some(1), "{left_out:?}");
}

/// Scripts merge the files of ranks into one file, in which ranks have the same correlation ids,
/// streams and devices.
#[test]
fn ranks_in_one_file_are_refused() {
    let mut all = files(RANKS, LAYERS);
    let mut other = all.pop().unwrap();
    events(&mut all[0]).append(events(&mut other));
    refused(
        converted_ranks(&[all[0].to_string()]),
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
    let all = files(RANKS, LAYERS);
    let texts: Vec<String> = all.iter().map(Value::to_string).collect();
    let device = device_ns(&all);
    let apart = hold("apart", &texts, device, LAYERS);
    let labelled = |rank: u64, pid: &Value| json!(format!("[TP{rank:02}] {pid}"));
    let offset = |rank: u64, pid: &Value| json!(1_000_000 * rank + pid.as_u64().unwrap_or(0));
    type NameProcess<'a> = &'a dyn Fn(u64, &Value) -> Value;
    let ways: [(&str, NameProcess<'_>); 2] = [("labels", &labelled), ("offsets", &offset)];
    for (what, process) in ways {
        let mut ranks = all.clone().into_iter();
        let mut merged = ranks.next().unwrap();
        for (rank, file) in (1..).zip(ranks.by_ref()) {
            let mut file = file;
            each(&mut file, |event| {
                event["pid"] = process(rank, &event["pid"])
            });
            events(&mut merged).append(events(&mut file));
        }
        let own = all[0]["traceEvents"].as_array().unwrap().len();
        for event in events(&mut merged).iter_mut().take(own) {
            event["pid"] = process(0, &event["pid"]);
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("merged.trace.json"), merged.to_string()).unwrap();
        let job = super::super::rig::convert(folder.path());
        assert_eq!(job.traces, apart.traces, "{what}");
    }
}
