//! Compares generated captures with their truth, and with real captures.

use crate::corpus::corpus_path_or_count_skip;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use testkit::capture::{
    Device, JobParallelism, JobTrueTimes, LaunchOrKernelBound, Options, SimulatedJobCaptureWriter,
    generate_capture,
};

/// A rank's two files.
struct HostAndKinetoFiles {
    host: Value,
    kineto: Value,
}

fn generate_rank_host_and_kineto_json(
    capture: &SimulatedJobCaptureWriter,
    rank: u32,
) -> HostAndKinetoFiles {
    let parsed = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        write(&mut bytes);
        serde_json::from_slice(&bytes).expect("it is JSON")
    };
    HostAndKinetoFiles {
        host: parsed(&|bytes| capture.write_host_trace(rank, bytes).unwrap()),
        kineto: parsed(&|bytes| capture.write_kineto_trace(rank, bytes).unwrap()),
    }
}

fn list_job_options() -> Vec<Options> {
    let new = Options::new;
    vec![
        Options {
            steps: 2,
            clock_skew: 3_000_000,
            ..new(Device::Cpu, JobParallelism::Ddp, 3)
        },
        Options {
            tensor_parallel: 2,
            ..new(Device::Cpu, JobParallelism::Functional, 4)
        },
        Options {
            tensor_parallel: 2,
            ..new(Device::Cpu, JobParallelism::Ddp, 2)
        },
        Options {
            steps: 2,
            ..new(Device::Cpu, JobParallelism::Pipeline, 4)
        },
        new(Device::Cpu, JobParallelism::Ddp, 1),
        Options {
            steps: 2,
            tensor_parallel: 2,
            stragglers: vec![(1, 1500)],
            clock_skew: 3_000_000,
            ..new(Device::Cuda, JobParallelism::Ddp, 4)
        },
        Options {
            bound: LaunchOrKernelBound::Launch,
            ..new(Device::Cuda, JobParallelism::Functional, 2)
        },
    ]
}

/// Returns the start and end in nanoseconds.
fn event_interval_ns(event: &Value) -> (i64, i64) {
    let ns = |key: &str| (event[key].as_f64().unwrap() * 1000.0).round() as i64;
    (ns("ts"), ns("ts") + ns("dur"))
}

fn list_events_in_categories<'v>(kineto: &'v Value, categories: &[&str]) -> Vec<&'v Value> {
    let events = kineto["traceEvents"].as_array().unwrap().iter();
    let wanted = |e: &&Value| {
        e["cat"]
            .as_str()
            .is_some_and(|cat| categories.contains(&cat))
    };
    events.filter(wanted).collect()
}

fn integer_attribute(node: &Value, name: &str) -> u64 {
    let attrs = node["attrs"].as_array().unwrap();
    let found = attrs.iter().find(|attr| attr["name"] == name).unwrap();
    found["value"].as_u64().unwrap_or(u64::MAX)
}

/// Checks that both files contain the same operators, and as many as promised.
fn check_operator_ids_match_in_both_files(
    files: &HostAndKinetoFiles,
    truth: &JobTrueTimes,
    rank: usize,
) {
    let ops = list_events_in_categories(&files.kineto, &["cpu_op", "user_annotation"]);
    assert_eq!(ops.len() as u64, truth.ranks[rank].host_ops);
    let number = |e: &&Value| e["args"]["Record function id"].as_u64().unwrap();
    let mut in_kineto: BTreeSet<u64> = ops.iter().map(number).collect();
    assert_eq!(in_kineto.len(), ops.len());
    // These are the roots, and the list of groups.
    in_kineto.extend([0, 1]);
    let nodes = files.host["nodes"].as_array().unwrap();
    let in_host: BTreeSet<u64> = nodes
        .iter()
        .map(|n| integer_attribute(n, "rf_id"))
        .collect();
    assert_eq!(in_host, in_kineto);
    let ids: BTreeSet<u64> = nodes.iter().map(|n| n["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), nodes.len());
    for node in nodes {
        assert!(ids.contains(&node["ctrl_deps"].as_u64().unwrap()), "{node}");
    }
    assert_eq!(nodes.last().unwrap()["id"], 1);
    let mut external = BTreeSet::new();
    for op in &ops {
        assert!(external.insert(op["args"]["External id"].as_u64()), "{op}");
    }
    for (i, op) in ops.iter().enumerate() {
        assert_eq!(op["args"]["Ev Idx"], i, "{op}");
    }
}

/// Checks that operators of a thread nest properly, and that they nest in the host's file as they
/// do in time.
fn check_operators_nest_in_time_and_file(files: &HostAndKinetoFiles, style: JobParallelism) {
    let nodes = files.host["nodes"].as_array().unwrap();
    let by_rf: BTreeMap<u64, &Value> = nodes
        .iter()
        .map(|n| (integer_attribute(n, "rf_id"), n))
        .collect();
    let mut threads: BTreeMap<u64, Vec<(i64, i64, &Value)>> = BTreeMap::new();
    for op in list_events_in_categories(&files.kineto, &["cpu_op", "user_annotation"]) {
        let message = ["gloo:send", "gloo:recv"].contains(&op["name"].as_str().unwrap());
        assert!(!message || style == JobParallelism::Pipeline);
        if !message {
            let (start, end) = event_interval_ns(op);
            let thread = threads.entry(op["tid"].as_u64().unwrap()).or_default();
            thread.push((start, end, op));
        }
    }
    for slices in threads.values_mut() {
        slices.sort_by_key(|(start, end, _)| (*start, -end));
        let mut stack: Vec<(i64, u64)> = Vec::new();
        for (start, end, op) in slices {
            while stack.last().is_some_and(|(until, _)| until < start) {
                stack.pop();
            }
            let node = by_rf[&op["args"]["Record function id"].as_u64().unwrap()];
            assert_eq!(node["name"], op["name"]);
            if let Some((until, parent)) = stack.last() {
                assert!(*end < *until, "{op}");
                assert_eq!(node["ctrl_deps"], *parent, "{op}");
            }
            stack.push((*end, node["id"].as_u64().unwrap()));
        }
    }
}

/// Checks that streams run one kernel at a time, and no kernel before its launch.
fn check_stream_kernels_do_not_overlap(kineto: &Value, truth: &JobTrueTimes, rank: usize) {
    let calls = list_events_in_categories(kineto, &["cuda_runtime"]);
    assert_eq!(calls.len() as u64, truth.ranks[rank].runtime_calls);
    let correlation = |e: &Value| e["args"]["correlation"].as_u64().unwrap();
    let calls: BTreeMap<u64, &Value> = calls.into_iter().map(|e| (correlation(e), e)).collect();
    let count = |category| list_events_in_categories(kineto, &[category]).len() as u64;
    assert_eq!(count("kernel"), truth.ranks[rank].kernels);
    assert_eq!(count("gpu_memcpy"), truth.ranks[rank].copies);
    let mut streams: BTreeMap<u64, Vec<(i64, i64)>> = BTreeMap::new();
    for event in list_events_in_categories(kineto, &["kernel", "gpu_memcpy"]) {
        let (start, end) = event_interval_ns(event);
        let call = calls[&correlation(event)];
        assert!(event_interval_ns(call).1 <= start, "{event}");
        assert_eq!(call["args"]["External id"], event["args"]["External id"]);
        let stream = streams.entry(event["tid"].as_u64().unwrap()).or_default();
        stream.push((start, end));
    }
    for slices in streams.values_mut() {
        slices.sort_unstable();
        for pair in slices.windows(2) {
            assert!(pair[0].1 < pair[1].0, "{pair:?}");
        }
    }
    for wait in list_events_in_categories(kineto, &["cuda_sync"]) {
        if let Some(recorded) = wait["args"]["wait_on_cuda_event_record_corr_id"].as_u64() {
            let recorded = calls[&recorded];
            assert_eq!(recorded["name"], "cudaEventRecord");
            assert!(
                event_interval_ns(recorded).1 <= event_interval_ns(wait).0,
                "{wait}"
            );
        }
    }
}

/// Checks that every flow arrow has one start and one end.
fn check_flow_arrows_have_both_ends(kineto: &Value) {
    let mut ends: BTreeMap<(&str, u64), [u32; 2]> = BTreeMap::new();
    for flow in list_events_in_categories(kineto, &["fwdbwd", "ac2g"]) {
        let key = (flow["cat"].as_str().unwrap(), flow["id"].as_u64().unwrap());
        ends.entry(key).or_default()[usize::from(flow["ph"] == "f")] += 1;
    }
    assert!(!ends.is_empty());
    assert!(ends.values().all(|ends| *ends == [1, 1]), "{ends:?}");
}

/// Checks that the files give the true times for collectives and for the job's span.
fn check_times_match_truth(kineto: &Value, truth: &JobTrueTimes, rank: usize) {
    let known = &truth.ranks[rank];
    let base = kineto["baseTimeNanoseconds"].as_u64().unwrap();
    let zero = (truth.epoch_ns - base) as i64 + known.clock_offset_ns;
    let shown = list_events_in_categories(kineto, &["user_annotation", "kernel"])
        .into_iter()
        .filter(|event| {
            let name = event["name"].as_str().unwrap();
            name.starts_with("gloo:") || name.starts_with("ncclDev")
        });
    let on_clock = |event: &Value| {
        let (start, end) = event_interval_ns(event);
        ((start - zero) as u64, (end - zero) as u64)
    };
    let mut shown: Vec<_> = shown.map(on_clock).collect();
    let members = truth.collectives.iter().flat_map(|c| &c.members);
    let mine = members.filter(|member| member.rank as usize == rank);
    let mut real: Vec<_> = mine.map(|m| (m.start_ns, m.end_ns)).collect();
    shown.sort_unstable();
    real.sort_unstable();
    assert_eq!(shown, real);
    let all = [
        "cpu_op",
        "user_annotation",
        "kernel",
        "gpu_memcpy",
        "cuda_runtime",
        "cuda_sync",
    ];
    let all: Vec<_> = list_events_in_categories(kineto, &all)
        .into_iter()
        .map(on_clock)
        .collect();
    assert_eq!(all.iter().map(|e| e.0).min(), Some(known.first_ns));
    assert_eq!(all.iter().map(|e| e.1).max(), Some(known.last_ns));
    let steps = list_events_in_categories(kineto, &["user_annotation"]).into_iter();
    let steps = steps.filter(|e| e["name"].as_str().unwrap().starts_with("ProfilerStep#"));
    let steps: Vec<_> = steps.map(on_clock).map(|(a, b)| [a, b]).collect();
    assert_eq!(steps, known.steps);
}

/// Checks that the truth is consistent.
fn check_truth_is_consistent(truth: &JobTrueTimes, jitter: u32) {
    let mut seen = BTreeSet::new();
    for meeting in &truth.collectives {
        let members: Vec<u32> = meeting.members.iter().map(|m| m.rank).collect();
        assert_eq!(members, meeting.ranks);
        let key = (
            &meeting.group,
            &meeting.kind,
            &meeting.ranks,
            meeting.sequence,
        );
        assert!(seen.insert(key), "{key:?}");
        let last = meeting.members.iter().map(|m| m.start_ns).max().unwrap();
        let end = meeting.members.iter().map(|m| m.end_ns).min().unwrap();
        for member in &meeting.members {
            assert_eq!(member.start_ns + member.wait_ns, last);
            assert_eq!(last + member.transfer_ns, member.end_ns);
            assert!(member.end_ns - end <= jitter.into());
            if let Some(waited) = member.waited {
                assert!(waited.from_ns < member.end_ns && member.end_ns < waited.until_ns);
            }
        }
    }
}

#[test]
fn host_and_kineto_files_agree_with_the_job_truth() {
    for options in list_job_options() {
        let capture = generate_capture(&options).unwrap();
        let truth = capture.compute_truth();
        check_truth_is_consistent(&truth, options.jitter);
        for rank in 0..options.ranks as usize {
            let files = generate_rank_host_and_kineto_json(&capture, rank as u32);
            check_operator_ids_match_in_both_files(&files, &truth, rank);
            check_operators_nest_in_time_and_file(&files, options.style);
            check_stream_kernels_do_not_overlap(&files.kineto, &truth, rank);
            check_flow_arrows_have_both_ends(&files.kineto);
            check_times_match_truth(&files.kineto, &truth, rank);
        }
        let waiters = truth.collectives.iter().flat_map(|c| &c.members);
        let waited = waiters.filter(|member| member.waited.is_some()).count();
        assert!(waited > 0 || options.ranks == 1);
    }
}

#[test]
fn a_seed_decides_every_byte() {
    let bytes = |seed| {
        let options = Options {
            seed,
            ..Options::new(Device::Cuda, JobParallelism::Ddp, 2)
        };
        let capture = generate_capture(&options).unwrap();
        let mut bytes = Vec::new();
        for rank in 0..2 {
            capture.write_host_trace(rank, &mut bytes).unwrap();
            capture.write_kineto_trace(rank, &mut bytes).unwrap();
        }
        (bytes, capture.compute_truth())
    };
    assert_eq!(bytes(7), bytes(7));
    assert_ne!(bytes(7), bytes(8));
}

/// Returns the type of a JSON value.
fn json_type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn list_json_field_types(value: &Value) -> BTreeMap<String, &'static str> {
    let entries = value.as_object().unwrap().iter();
    entries
        .map(|(key, value)| (key.clone(), json_type_name(value)))
        .collect()
}

fn load_corpus_capture(file: &str) -> Option<Value> {
    let packed = std::fs::read(corpus_path_or_count_skip(format!(
        "captures/{file}.json.zst"
    ))?);
    let text = zstd::decode_all(&packed.expect("the corpus is there")[..]).expect("it is zstd");
    Some(serde_json::from_slice(&text).expect("it is JSON"))
}

/// Returns a node's keys in order, with the names and types of its attributes.
fn list_node_keys_and_attribute_types(node: &Value) -> Vec<String> {
    let mut shape: Vec<String> = node.as_object().unwrap().keys().cloned().collect();
    for side in ["inputs", "outputs"] {
        shape.extend(node[side].as_object().unwrap().keys().cloned());
    }
    for attr in node["attrs"].as_array().unwrap() {
        shape.push(format!(
            "{} {} {}",
            attr["name"],
            attr["type"],
            json_type_name(&attr["value"])
        ));
    }
    shape
}

/// Returns, by operator name, each schema with the number and type of each argument. Lists of any
/// length count as equal.
fn collect_schema_arg_types_by_operator(host: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in host["nodes"].as_array().unwrap() {
        let name = node["name"].as_str().unwrap().to_owned();
        let signatures = found.entry(name).or_default();
        let schema = &node["attrs"][6]["value"];
        for side in ["inputs", "outputs"] {
            let types = node[side]["types"].as_array().unwrap();
            for (i, kind) in types.iter().enumerate() {
                let kind = kind.as_str().unwrap().replace("Int,", "");
                signatures.insert(format!("{schema} {side} {i}/{} {kind}", types.len()));
            }
        }
    }
    found
}

#[test]
fn host_nodes_look_as_pytorch_writes_them() {
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut own = Vec::new();
    let jobs = [
        (JobParallelism::Ddp, "ddp_gpt"),
        (JobParallelism::Pipeline, "pp_1f1b"),
        (JobParallelism::Functional, "tpsp_mlp"),
        (JobParallelism::Functional, "comm_zoo"),
    ];
    for (style, job) in jobs {
        let Some(real) = load_corpus_capture(&format!("pytorch/{job}/host.0")) else {
            return;
        };
        let tensor_parallel = if style == JobParallelism::Pipeline {
            1
        } else {
            2
        };
        let options = Options {
            tensor_parallel,
            ..Options::new(Device::Cpu, style, 4)
        };
        let host = generate_rank_host_and_kineto_json(&generate_capture(&options).unwrap(), 0).host;
        assert_eq!(list_json_field_types(&host), list_json_field_types(&real));
        let shapes = |host: &Value| -> BTreeSet<Vec<String>> {
            let nodes = host["nodes"].as_array().unwrap();
            nodes
                .iter()
                .map(list_node_keys_and_attribute_types)
                .collect()
        };
        assert_eq!(shapes(&host), shapes(&real), "{job}");
        for (name, signatures) in collect_schema_arg_types_by_operator(&real) {
            known.entry(name).or_default().extend(signatures);
        }
        own.push(host);
    }
    // Operators have the same schemas and argument types as in the real capture.
    let mut compared = 0;
    for (name, found) in own.iter().flat_map(collect_schema_arg_types_by_operator) {
        if let Some(known) = known.get(&name) {
            compared += 1;
            assert!(
                found.is_subset(known),
                "{name}: {found:?}, expected {known:?}"
            );
        }
    }
    assert!(compared > 100, "{compared}");
}

/// All the key sets that events have, and all types of arguments, by category and phase.
type EventKeysAndArgumentTypes =
    BTreeMap<(String, String), (BTreeSet<Vec<String>>, BTreeMap<String, &'static str>)>;

fn collect_event_keys_and_argument_types(kineto: &Value) -> EventKeysAndArgumentTypes {
    let mut shapes = EventKeysAndArgumentTypes::new();
    for event in kineto["traceEvents"].as_array().unwrap() {
        let key = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let (keys, args) = shapes.entry((key("cat"), key("ph"))).or_default();
        let mut own: Vec<String> = event.as_object().unwrap().keys().cloned().collect();
        own.sort();
        keys.insert(own);
        if event["args"].is_object() {
            args.extend(list_json_field_types(&event["args"]));
        }
    }
    shapes
}

fn assert_event_keys_and_types_known(
    found: &EventKeysAndArgumentTypes,
    real: &EventKeysAndArgumentTypes,
    newer: &[&str],
    unknown: &[&str],
) {
    for (key, (keys, args)) in found {
        let Some((known, known_args)) = real.get(key) else {
            assert!(unknown.contains(&&*key.0), "{key:?}");
            continue;
        };
        assert!(
            keys.is_subset(known),
            "{key:?}: {keys:?}, expected {known:?}"
        );
        for (name, kind) in args.iter().filter(|(name, _)| !newer.contains(&&***name)) {
            let real = known_args.get(name);
            assert_eq!(real, Some(kind), "{key:?} {name}");
        }
    }
}

#[test]
fn kineto_events_look_as_pytorch_writes_them() {
    for (style, job) in [
        (JobParallelism::Ddp, "ddp_gpt"),
        (JobParallelism::Pipeline, "pp_1f1b"),
    ] {
        let Some(real) = load_corpus_capture(&format!("pytorch/{job}/kineto.0")) else {
            return;
        };
        let capture = generate_capture(&Options::new(Device::Cpu, style, 2)).unwrap();
        let kineto = generate_rank_host_and_kineto_json(&capture, 0).kineto;
        assert_eq!(list_json_field_types(&kineto), list_json_field_types(&real));
        assert_eq!(
            list_json_field_types(&kineto["distributedInfo"]),
            list_json_field_types(&real["distributedInfo"])
        );
        let (found, known) = (
            collect_event_keys_and_argument_types(&kineto),
            collect_event_keys_and_argument_types(&real),
        );
        assert_event_keys_and_types_known(&found, &known, &[], &[]);
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            known.keys().collect::<Vec<_>>(),
            "{job}"
        );
    }
    let Some(nccl) = load_corpus_capture("gpu/hta_misc_kineto/nccl_parser_config.nccl_data") else {
        return;
    };
    let sync = "gpu/hta_misc_kineto/critical_path.cuda_event_sync_multi_stream.event_sync_trace";
    let capture = generate_capture(&Options::new(Device::Cuda, JobParallelism::Ddp, 2)).unwrap();
    let kineto = generate_rank_host_and_kineto_json(&capture, 0).kineto;
    // The real file lacks these features, because it was captured in 2024 without shapes.
    let newer = [
        "Concrete Inputs",
        "Input type",
        "Input Strides",
        "Input Dims",
        "Rank",
        "Seq",
    ];
    let known = collect_event_keys_and_argument_types(&nccl);
    assert_event_keys_and_types_known(
        &collect_event_keys_and_argument_types(&kineto),
        &known,
        &newer,
        &["cuda_sync"],
    );
    let device = |kineto: &Value| list_json_field_types(&kineto["deviceProperties"][0]);
    assert_eq!(device(&kineto), device(&nccl));
    let known = &collect_event_keys_and_argument_types(
        &load_corpus_capture(sync).expect("it is beside the other"),
    )[&("cuda_sync".into(), "X".into())];
    let found = &collect_event_keys_and_argument_types(&kineto)[&("cuda_sync".into(), "X".into())];
    assert_eq!(found.0, known.0);
    assert_eq!(found.1, known.1);
}
