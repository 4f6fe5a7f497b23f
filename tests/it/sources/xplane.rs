//! Tests JAX profiles: compares real profiles with a plain parse, and generated profiles with the
//! known truth.

mod plain;

use super::{TemporaryTestFolder, expect_cli_error, list_file_names, run_for_stdout};
use crate::corpus::corpus_path_or_count_skip;
use chakram::internals::ProtobufMessageBuilder;
use serde_json::Value;

/// A machine of eight NPUs with a lane for every stream.
const MACHINE: &str = r#"
name = "eight"

[npu.one]
memory_bandwidth = "1 TB/s"
memory_latency = "100 ns"
memory_capacity = "80 GB"
lanes = 16
host_lanes = 64

[npu.one.peak]
fp32 = "10 TFLOP/s"

[[dimension]]
name = "wire"
shape = "switch"
size = SIZE
bandwidth = "50 GB/s"
latency = "500 ns"
algorithm = "ring"
"#;

fn run_for_json(args: &[&str]) -> Value {
    let text = run_for_stdout(&[args, &["--format", "json"]].concat());
    serde_json::from_str(&text).expect("it is JSON")
}

fn sum_device_values(summary: &Value, key: &str) -> u64 {
    let devices = summary["devices"].as_array().expect("there are some");
    devices
        .iter()
        .map(|device| device[key].as_u64().expect("a number"))
        .sum()
}

#[test]
fn profiles_keep_the_time_of_their_devices() {
    let Some(corpus) = corpus_path_or_count_skip("captures/xplane") else {
        return;
    };
    let folder = TemporaryTestFolder::new();
    let machine = folder.write_file("machine.toml", MACHINE.replace("SIZE", "8"));
    let mut seen = 0;
    for name in list_file_names(&corpus) {
        let profile = corpus.join(&name);
        let truth = plain::count_device_events_and_busy_time(&profile);
        let job = folder.path("job");
        let path = profile.display().to_string();
        let summary = run_for_json(&["convert", "auto", &path, "-o", &job, "--"]);
        assert_eq!(summary["devices"].as_array().unwrap().len(), 8, "{name}");
        assert_eq!(
            sum_device_values(&summary, "events"),
            truth.events,
            "{name}"
        );
        // In the plain parse, all of these also have a call with the same correlation id.
        assert_eq!(
            sum_device_values(&summary, "linked"),
            truth.linked,
            "{name}"
        );
        assert_eq!(truth.linked, truth.events, "{name}");
        // The start and the end of each event are rounded down to nanoseconds.
        let busy = truth.busy_ps / 1000;
        let kept = sum_device_values(&summary, "kept_ns");
        assert!(
            kept.abs_diff(busy) <= truth.events,
            "{name}: {kept} of {busy}"
        );
        assert!(kept as f64 >= 0.95 * busy as f64);
        // The replay ends when the capture did.
        let report = run_for_json(&["replay", &job, "-m", &machine]);
        let span = summary["span_ns"].as_u64().unwrap();
        assert_eq!(report["makespan_ps"].as_u64(), Some(span * 1000), "{name}");
        seen += 1;
    }
    assert_eq!(seen, 2);
}

fn encode_protobuf_message(make: impl FnOnce(&mut ProtobufMessageBuilder)) -> Vec<u8> {
    let mut message = ProtobufMessageBuilder::default();
    make(&mut message);
    message.as_bytes().to_vec()
}

/// The names of stats, by id.
const STATS: [&str; 6] = [
    "",
    "correlation_id",
    "hlo_op",
    "program_id",
    "Hlo Proto",
    "memcpy_details",
];
/// The names of events, by id.
const EVENTS: [&str; 5] = [
    "",
    "gemm",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "cudaLaunchKernel",
    "MemcpyD2D",
];

struct XplaneEvent(u64, u64, u64, Vec<Vec<u8>>);

fn encode_number_stat(stat: u64, value: u64) -> Vec<u8> {
    encode_protobuf_message(|m| {
        m.append_varint(1, stat);
        m.append_varint(3, value);
    })
}

fn encode_text_stat(stat: u64, value: &str) -> Vec<u8> {
    encode_protobuf_message(|m| {
        m.append_varint(1, stat);
        m.append_bytes(5, value.as_bytes());
    })
}

/// Returns a plane with lines of events, with times in microseconds.
fn encode_xplane(name: &str, lines: &[(&str, Vec<XplaneEvent>)]) -> Vec<u8> {
    let named = |field, names: &[&str], plane: &mut ProtobufMessageBuilder| {
        for (id, name) in (0..).zip(names).skip(1) {
            let value = encode_protobuf_message(|m| {
                m.append_varint(1, id);
                m.append_bytes(2, name.as_bytes());
            });
            plane.append_bytes(
                field,
                &encode_protobuf_message(|m| {
                    m.append_varint(1, id);
                    m.append_bytes(2, &value);
                }),
            );
        }
    };
    encode_protobuf_message(|m| {
        m.append_bytes(2, name.as_bytes());
        for (name, events) in lines {
            m.append_bytes(
                3,
                &encode_protobuf_message(|m| {
                    m.append_bytes(2, name.as_bytes());
                    m.append_varint(3, 5_000);
                    for XplaneEvent(kind, start, end, stats) in events {
                        m.append_bytes(
                            4,
                            &encode_protobuf_message(|m| {
                                m.append_varint(1, *kind);
                                m.append_varint(2, start * 1_000_000);
                                m.append_varint(3, (end - start) * 1_000_000);
                                stats.iter().for_each(|stat| m.append_bytes(4, stat));
                            }),
                        );
                    }
                }),
            );
        }
        named(4, &EVENTS, m);
        named(5, &STATS, m);
    })
}

/// Returns HLO program 7, which has `all-reduce.1` of 256 f32 in these groups.
fn encode_all_reduce_hlo_program(groups: &[&[u64]]) -> Vec<u8> {
    let shape = encode_protobuf_message(|m| {
        m.append_varint(2, 11);
        m.append_packed(3, &[256]);
    });
    let instruction = encode_protobuf_message(|m| {
        m.append_bytes(1, b"all-reduce.1");
        m.append_bytes(2, b"all-reduce");
        m.append_bytes(3, &shape);
        groups.iter().for_each(|ids| {
            m.append_bytes(49, &encode_protobuf_message(|m| m.append_packed(1, ids)))
        });
    });
    let module = encode_protobuf_message(|m| {
        m.append_bytes(1, b"jit_step");
        m.append_bytes(
            3,
            &encode_protobuf_message(|m| m.append_bytes(2, &instruction)),
        );
    });
    let kind = encode_protobuf_message(|m| {
        m.append_varint(1, 7);
        m.append_bytes(2, b"jit_step(7)");
        m.append_bytes(
            5,
            &encode_protobuf_message(|m| {
                m.append_varint(1, 4);
                m.append_bytes(6, &encode_protobuf_message(|m| m.append_bytes(1, &module)));
            }),
        );
    });
    encode_protobuf_message(|m| {
        m.append_bytes(2, b"/host:metadata");
        m.append_bytes(
            4,
            &encode_protobuf_message(|m| {
                m.append_varint(1, 7);
                m.append_bytes(2, &kind);
            }),
        );
        m.append_bytes(
            5,
            &encode_protobuf_message(|m| {
                m.append_varint(1, 4);
                m.append_bytes(
                    2,
                    &encode_protobuf_message(|m| m.append_bytes(2, b"Hlo Proto")),
                );
            }),
        );
    })
}

fn encode_xspace(planes: &[Vec<u8>]) -> Vec<u8> {
    encode_protobuf_message(|m| planes.iter().for_each(|plane| m.append_bytes(1, plane)))
}

/// Returns a profile with a kernel and an all-reduce on each of two devices. Both all-reduces end
/// at 400 us, and device 1's starts 150 us later.
fn encode_two_device_profile(groups: &[&[u64]], reduces: [bool; 2]) -> Vec<u8> {
    let device = |id: usize, start: u64| {
        let gemm = XplaneEvent(1, 0, start, vec![encode_number_stat(1, 10)]);
        let reduce = XplaneEvent(
            2,
            start,
            400,
            vec![
                encode_text_stat(2, "all-reduce.1"),
                encode_number_stat(3, 7),
            ],
        );
        let mut events = vec![gemm];
        events.extend(reduces[id].then_some(reduce));
        encode_xplane(
            &format!("/device:GPU:{id}"),
            &[
                ("Stream #7(Kernel)", events),
                ("XLA Ops", vec![XplaneEvent(1, 0, 400, vec![])]),
            ],
        )
    };
    encode_xspace(&[
        encode_all_reduce_hlo_program(groups),
        device(0, 100),
        device(1, 250),
    ])
}

fn convert_trace_to_json_lines(path: &str) -> Vec<Value> {
    let text = run_for_stdout(&["convert", "trace", path, "-o", &format!("{path}.jsonl")]);
    assert!(text.contains("nodes to"));
    let text = std::fs::read_to_string(format!("{path}.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn find_integer_attribute(node: &Value, name: &str) -> Option<u64> {
    let all = node["attr"].as_array()?;
    let found = all.iter().find(|attribute| attribute["name"] == name)?;
    let value = ["int64_val", "uint64_val"]
        .into_iter()
        .find_map(|key| found.get(key))?;
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

#[test]
fn collectives_wait_for_their_last_member() {
    let folder = TemporaryTestFolder::new();
    let machine = folder.write_file("machine.toml", MACHINE.replace("SIZE", "2"));
    let job = folder.path("job");
    for groups in [&[&[0, 1][..]][..], &[]] {
        let profile = folder.write_file(
            "two.xplane.pb",
            encode_two_device_profile(groups, [true, true]),
        );
        let summary = run_for_json(&["convert", "xplane", &profile, "-o", &job]);
        assert_eq!(
            (
                sum_device_values(&summary, "collectives"),
                sum_device_values(&summary, "unmatched")
            ),
            (2, 0)
        );
        // Summary lines are skipped and reported: 1 event on each device.
        assert_eq!(summary["left_out"][0][0], "/device:GPU:0 XLA Ops");
        // The all-reduce runs from 250 to 400 us; before that, device 0 waits for 150 us.
        for (rank, wait) in [(0, Some(150_000)), (1, None)] {
            let nodes = convert_trace_to_json_lines(&folder.path(&format!("job.{rank}.et")));
            let node = nodes
                .iter()
                .find(|node| node["type"] == "COMM_COLL_NODE")
                .unwrap();
            assert_eq!(node["duration_micros"], 150);
            assert_eq!(find_integer_attribute(node, "comm_size"), Some(1024));
            assert_eq!(find_integer_attribute(node, "comm_type"), Some(0));
            assert_eq!(find_integer_attribute(node, "wait_ns"), wait);
        }
        for comm in ["recorded", "captured"] {
            let report = run_for_json(&["replay", &job, "-m", &machine, "--comm", comm]);
            assert_eq!(report["makespan_ps"], 400_000_000, "{comm}");
        }
    }
}

#[test]
fn communication_that_is_not_matched_keeps_its_time() {
    let folder = TemporaryTestFolder::new();
    let machine = folder.write_file("machine.toml", MACHINE.replace("SIZE", "2"));
    let job = folder.path("job");
    // The cases are a member without the collective, a group with a missing device, and groups with
    // a single member.
    for (groups, reduces, unmatched) in [
        (&[&[0, 1][..]][..], [true, false], 1),
        (&[&[0, 1, 2]], [true, true], 2),
        (&[&[0], &[1]], [true, true], 2),
        (&[&[1]], [true, true], 2),
    ] {
        let profile =
            folder.write_file("two.xplane.pb", encode_two_device_profile(groups, reduces));
        let summary = run_for_json(&["convert", "xplane", &profile, "-o", &job]);
        let counts = (
            sum_device_values(&summary, "collectives"),
            sum_device_values(&summary, "unmatched"),
        );
        assert_eq!(counts, (0, unmatched), "{groups:?}");
        let nodes =
            [0, 1].map(|rank| convert_trace_to_json_lines(&folder.path(&format!("job.{rank}.et"))));
        let is_unknown = |node: &&Value| {
            let attributes = node["attr"].as_array().into_iter().flatten();
            let mut names = attributes.map(|attribute| &attribute["name"]);
            names.any(|name| name == "comm_unknown")
        };
        let unknown = nodes.iter().flatten().filter(is_unknown).count() as u64;
        assert_eq!(unknown, unmatched, "{nodes:?}");
        let report = run_for_json(&["replay", &job, "-m", &machine]);
        assert_eq!(report["makespan_ps"], 400_000_000);
        let said = run_for_stdout(&["convert", "xplane", &profile, "-o", &job]);
        assert!(said.contains("not matched across devices"), "{said}");
    }
}

#[test]
fn kernels_wait_for_the_calls_that_launched_them() {
    let folder = TemporaryTestFolder::new();
    // Two calls of 10 us are at 0 and 20. Kernels are at 15 and 25, the second during its call. A
    // copy is at 40 without a call, and a kernel is recorded before its call.
    let host = encode_xplane(
        "/host:CPU",
        &[(
            "main",
            vec![
                XplaneEvent(3, 0, 10, vec![encode_number_stat(1, 1)]),
                XplaneEvent(3, 20, 30, vec![encode_number_stat(1, 2)]),
                XplaneEvent(3, 90, 95, vec![encode_number_stat(1, 3)]),
                XplaneEvent(3, 96, 99, vec![]),
            ],
        )],
    );
    let device = encode_xplane(
        "/device:GPU:0",
        &[(
            "Stream #1(Kernel)",
            vec![
                XplaneEvent(1, 15, 18, vec![encode_number_stat(1, 1)]),
                XplaneEvent(1, 25, 35, vec![encode_number_stat(1, 2)]),
                XplaneEvent(
                    4,
                    40,
                    50,
                    vec![encode_text_stat(5, "kind:Unknown size:4096 dest:2 async:1")],
                ),
                XplaneEvent(1, 85, 100, vec![encode_number_stat(1, 3)]),
            ],
        )],
    );
    let profile = folder.write_file("one.xplane.pb", encode_xspace(&[host, device]));
    let job = folder.path("job");
    let summary = run_for_json(&["convert", "xplane", &profile, "-o", &job]);
    let device = &summary["devices"][0];
    for (key, value) in [
        ("events", 4),
        ("linked", 3),
        ("launches", 3),
        ("early", 1),
        ("kept_ns", 38_000),
    ] {
        assert_eq!(device[key], value, "{key}");
    }
    let nodes = convert_trace_to_json_lines(&folder.path("job.0.et"));
    let at = |id: u64| nodes.iter().find(|node| node["id"] == id).unwrap();
    // In order of start these are call 2, kernel 3 after it, call 4 after call 2, kernel 5 after
    // kernel 3 and call 2, the copy after kernel 5, kernel 7, and call 8.
    let data = |id: u64| at(id)["data_deps"].as_array().cloned().unwrap_or_default();
    assert_eq!(
        (data(2).len(), data(3), data(4)),
        (0, vec![2.into()], vec![2.into()])
    );
    assert_eq!(data(5), [3, 2].map(Value::from));
    assert_eq!(
        (data(6), data(7), data(8)),
        (vec![5.into()], vec![6.into()], vec![4.into()])
    );
    // Kernel 3 begins 5 us after its call, kernel 5 begins 7 us after kernel 3, and the copy begins
    // 5 us after kernel 5.
    let delays = [3, 5, 6].map(|id| find_integer_attribute(at(id), "delay_ns"));
    assert_eq!(delays, [Some(5_000), Some(7_000), Some(5_000)]);
    assert_eq!(find_integer_attribute(at(6), "tensor_size"), Some(4096));
    let machine = folder.write_file("machine.toml", MACHINE.replace("SIZE", "2"));
    let report = run_for_json(&["replay", &job, "-m", &machine]);
    assert_eq!(report["makespan_ps"], 100_000_000);
}

#[test]
fn files_that_are_no_valid_profile_are_refused() {
    let folder = TemporaryTestFolder::new();
    let output = folder.path("out");
    let profile = encode_two_device_profile(&[], [true, true]);
    for (name, contents, part) in [
        ("cut", &profile[..profile.len() - 9], "bytes, but only"),
        (
            "idle",
            &encode_xspace(&[encode_xplane("/host:CPU", &[])]),
            "without an event on a device",
        ),
        (
            "twice",
            &encode_xspace(&[
                encode_xplane("/device:GPU:0", &[]),
                encode_xplane("/device:TPU:0", &[]),
            ]),
            "of the same device",
        ),
    ] {
        let path = folder.write_file(name, contents);
        let error = expect_cli_error(&["convert", "xplane", &path, "-o", &output]);
        assert!(error.contains(name) && error.contains(part), "{error}");
    }
    let error = expect_cli_error(&["convert", "xplane", &folder.path(""), "-o", &output]);
    assert!(error.contains("without a file *.xplane.pb"), "{error}");
    assert_eq!(folder.names(), ["cut", "idle", "twice"]);
}
