//! Tests events of every kind, the time formats of all profiler versions, and the effects of damage.

use super::*;
use crate::pytorch::JsonRepairKind;

fn parse_kineto_trace(text: &str) -> KinetoTrace {
    KinetoTrace::from_bytes(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn parse_kineto_trace_to_error_message(text: &str) -> String {
    let error = KinetoTrace::from_bytes(text.as_bytes()).map(|trace| trace.events.len());
    error.expect_err("it is damaged").to_string()
}

/// A trace as PyTorch 2.15 writes it, with blank lines, two events, and metadata before and after
/// the events.
const RECENT: &str = r#"
 {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 5}],

      "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 4, "pg_count": 2, "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 4, "ranks": [0, 1, 2, 3]}]},
      "host_name": "vm",
    "displayTimeUnit": "ms",
    "traceEvents": [

  {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::mm",
    "pid": 24296,
    "tid": 24467,
    "ts": 4313672559973.129,
    "dur": 16433.503
    ,
    "args": {
      "External id": 1138,"Record function id": 501, "Concrete Inputs": [""], "Ev Idx": 528
    }
  },
  {
    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 7,
    "ts": 4313672559974, "dur": 0.001,
    "args": {
      "External id": 1138, "device": 0, "context": 1, "stream": 7, "correlation": 12,
      "Collective name": "allreduce", "In msg nelems": 64, "Process Group Ranks": "[0, 1]"
    }
  },
  {"ph": "X", "cat": "gpu_memcpy", "name": "HtoD", "pid": 0, "tid": 7, "ts": 5, "dur": 1, "args": {"bytes": 4096, "stream": 7}},
  {"ph": "X", "cat": "gpu_memset", "name": "set", "pid": 0, "tid": 7, "ts": 6, "dur": 1, "args": {"bytes": 16}},
  {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 1, "tid": 1, "ts": 7, "dur": 1, "args": {"stream": "0x1f", "correlation": 9, "size": "2560"}},
  {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 7, "ts": 8, "dur": 1, "args": {"cuda_sync_kind": "Stream Sync", "stream": -1}},
  {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 1, "tid": 1, "ts": 9, "dur": 1, "args": {"Input Dims": [[8]]}},
  {"ph": "s", "id": 12, "pid": 1, "tid": 1, "ts": 7.5, "cat": "ac2g", "name": "ac2g"},
  {"ph": "f", "id": 12, "pid": 0, "tid": 7, "ts": 8.5, "cat": "ac2g", "name": "ac2g", "bp": "e"},
  {"ph": "s", "id": 3, "pid": 1, "tid": 1, "ts": 1, "cat": "fwdbwd", "name": "fwdbwd"},
  {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 1, "dur": 4313672600000, "args": {"Op count": 0}},
  {"ph": "X", "cat": "python_function", "name": "f.py(1): f", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {}},
  {"name": "thread_name", "ph": "M", "ts": 1, "pid": 0, "tid": 7, "args": {"name": "stream 7 "}},
  {"name": "thread_name", "ph": "M", "ts": 1, "pid": 0, "tid": "7", "args": {"name": "later"}},
  {"name": "thread_name", "ph": "M", "ts": 1, "pid": 5, "tid": 5, "args": {"name": "unused"}},
  {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 3}
  ],"traceName": "/tmp/x.json",
    "baseTimeNanoseconds": 1790857026000000000 }
"#;

const BASE: i64 = 1_790_857_026_000_000_000;

#[test]
fn used_event_categories_are_kept_and_others_counted() {
    let trace = parse_kineto_trace(RECENT);
    let categories: Vec<_> = trace.events.iter().map(|e| e.category).collect();
    use EventCategory::*;
    assert_eq!(
        categories,
        [CpuOp, Kernel, Copy, Set, Runtime, Sync, Annotation]
    );
    let [op, kernel, copy, set, launch, sync, _] = trace.events.as_slice() else {
        unreachable!()
    };
    let of = |event: &KinetoEvent| *trace.details_of_event(event);
    assert_eq!(op.start_ns, BASE + 4_313_672_559_973_129);
    assert_eq!(op.duration_ns, 16_433_503);
    assert_eq!(
        (op.rf_id, op.external_id, of(op).stream, of(op).device),
        (501, 1138, -1, -1)
    );
    assert_eq!((op.details, of(op).args), (NONE, NONE));
    assert_eq!(kernel.start_ns, BASE + 4_313_672_559_974_000);
    assert_eq!((kernel.duration_ns, kernel.correlation), (1, 12));
    assert_eq!((of(kernel).stream, of(kernel).device), (7, 0));
    assert_eq!((of(copy).bytes, of(set).bytes), (4096, 16));
    assert_eq!(
        (of(launch).stream, launch.correlation, of(sync).stream),
        (31, 9, -1)
    );
    let arg = |event: &KinetoEvent, key: &str| {
        let args = trace.args_of_event(event).expect(key);
        args.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone())
    };
    assert_eq!(arg(kernel, "Collective name").unwrap(), "allreduce");
    assert_eq!(arg(kernel, "In msg nelems").unwrap(), "64");
    assert_eq!(arg(kernel, "Process Group Ranks").unwrap(), "[0, 1]");
    assert_eq!(arg(sync, "cuda_sync_kind").unwrap(), "Stream Sync");
    assert_eq!(arg(&trace.events[6], "Input Dims").unwrap(), "[[8]]");
    assert_eq!(trace.args.len(), 3);
    let left: Vec<_> = trace.left_out.iter().map(|(c, n)| (&**c, *n)).collect();
    // Python calls are stored separately and do not count as events.
    assert_eq!(left, [("M", 3), ("Trace", 1), ("i", 1)]);
    assert_eq!(trace.with_rf_id, 1);
    assert_eq!(trace.repairs, JsonRepairs::default());
}

#[test]
fn tracks_and_metadata_are_read() {
    let trace = parse_kineto_trace(RECENT);
    let track = |i: usize| {
        let KinetoTrackIdentity { pid, tid, name } = &trace.tracks[i];
        (&**pid, &**tid, &**name)
    };
    assert_eq!(track(0), ("24296", "24467", ""));
    assert_eq!(track(1), ("0", "7", "stream 7 "));
    assert_eq!(track(2), ("1", "1", ""));
    assert_eq!(trace.tracks.len(), 3);
    assert_eq!(
        (trace.rank, trace.world_size, trace.arrows),
        (Some(1), Some(4), 3)
    );
    assert_eq!(trace.backend.as_deref(), Some("nccl"));
    assert_eq!(trace.host_name.as_deref(), Some("vm"));
    assert_eq!(trace.device_names, ["NVIDIA H100"]);
    assert_eq!(trace.groups[0].ranks, [0, 1, 2, 3]);
    assert_eq!(trace.bytes, RECENT.len() as u64);
}

#[test]
fn older_times_count_from_1970() {
    let event = r#"{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1707417525512283, "dur": 5}"#;
    for text in [
        format!("[{event}]"),
        format!("{{\"traceEvents\": [{event}]}}"),
    ] {
        let trace = parse_kineto_trace(&text);
        assert_eq!(trace.events[0].start_ns, 1_707_417_525_512_283_000);
        assert_eq!(trace.events[0].duration_ns, 5000);
    }
}

#[test]
fn names_that_were_not_escaped_are_repaired() {
    let name = "quote \" backslash / tab \t newline \n end";
    let text = format!(
        "{{\"traceEvents\": [\n  {{\n    \"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"{name}\", \
         \"pid\": 15626, \"tid\": 15626,\n    \"ts\": 1795172032213414, \"dur\": 59,\n    \"args\": {{\n      \
         \"External id\": 193,\"Ev Idx\": 192\n    }}\n  }}]}}"
    );
    let trace = parse_kineto_trace(&text);
    assert_eq!(trace.texts.get(trace.events[0].name), name);
    assert_eq!(
        (trace.repairs.repair_count(), trace.events[0].external_id),
        (1, 193)
    );
    for end in 0..text.len() {
        parse_kineto_trace_to_error_message(&text[..end]);
    }
}

#[test]
fn every_truncation_is_an_error() {
    for end in 0..RECENT.trim_end().len() {
        let error = parse_kineto_trace_to_error_message(&RECENT[..end]);
        assert!(error.contains("byte"), "{end}: {error}");
    }
}

#[test]
fn events_without_a_duration_are_counted_and_left_out() {
    let whole = parse_kineto_trace(RECENT);
    assert_eq!(whole.untimed, 0);
    for (duration, repairs) in [
        ("-1", 0),
        ("null", 0),
        ("18446744073709551615", 0),
        ("NaN", 1),
        ("-Infinity", 1),
    ] {
        let trace = parse_kineto_trace(&RECENT.replacen("16433.503", duration, 1));
        assert_eq!(trace.untimed, 1, "{duration}");
        assert_eq!(trace.events.len() + 1, whole.events.len(), "{duration}");
        assert_eq!(trace.repairs.repair_count(), repairs, "{duration}");
    }
    let trace = parse_kineto_trace(&RECENT.replacen("\"dur\": 16433.503", "\"x\": 5", 1));
    assert_eq!(trace.untimed, 1);
}

#[test]
fn commas_behind_the_last_element_are_skipped() {
    let end = RECENT.rfind(']').expect("the events end");
    let text = format!("{},{}", &RECENT[..end], &RECENT[end..]);
    let close = text.rfind('}').expect("the file ends");
    let text = format!("{},{}", &text[..close], &text[close..]);
    let (one, other) = (parse_kineto_trace(RECENT), parse_kineto_trace(&text));
    assert_eq!(
        (one.events, other.repairs.repair_count()),
        (other.events, 2)
    );
}

#[test]
fn extra_commas_within_values_are_skipped_in_events_and_elsewhere() {
    let device = r#""totalGlobalMem": 5}]"#;
    let event = "\"dur\": 16433.503";
    assert!(RECENT.contains(device) && RECENT.contains(event));
    let text = RECENT.replacen(device, r#""totalGlobalMem": 5, }, ]"#, 1);
    let text = text.replacen(event, &format!("\"list\": [1, [2,],],\n {event}"), 1);
    let (one, other) = (parse_kineto_trace(RECENT), parse_kineto_trace(&text));
    assert_eq!(one.device_names, other.device_names);
    assert_eq!(one.events.len(), other.events.len());
    // Each of the two damaged values needs one repair.
    assert_eq!(other.repairs.repair_count(), 2);
    let listed = other.repairs.listed.iter().map(|repair| {
        assert_eq!(repair.what, JsonRepairKind::Comma);
        assert_eq!(text.as_bytes()[repair.offset as usize], b',');
        repair.text.as_str()
    });
    assert_eq!(listed.collect::<Vec<_>>(), ["}", "]"]);
    // A value may be missing between the two commas, so neither comma is removed.
    let error = parse_kineto_trace_to_error_message(&RECENT.replacen(
        device,
        r#""totalGlobalMem": 5},,]"#,
        1,
    ));
    assert!(error.contains("byte"), "{error}");
}

#[test]
fn without_a_span_what_is_a_day_from_the_rest_is_dropped() {
    let event = |at: u64| {
        format!(
            r#"{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": {at}, "dur": 1}}"#
        )
    };
    // The times, in us, are in 2025, one hour later, ten days later, and in 1970.
    let start = 1_750_000_000_000_000_u64;
    let times = [
        start,
        start + 1,
        start + 3_600_000_000,
        start + 864_000_000_000,
        0,
    ];
    let events: Vec<String> = times.map(event).into();
    let trace = parse_kineto_trace(&format!("[{}]", events.join(",")));
    assert_eq!((trace.events.len(), trace.outside), (3, 2));
}

#[test]
fn damage_is_refused_where_it_stands() {
    let with = |from: &str, to: &str| {
        assert!(RECENT.contains(from), "{from}");
        RECENT.replacen(from, to, 1)
    };
    for (text, part) in [
        (with("16433.503", "\"nan\""), "`dur` is \"nan\""),
        (
            with("4313672559973.129", "1e300"),
            "`ts` is 1e300, expected microseconds within",
        ),
        (
            with("4313672559973.129", "9000000000000000"),
            "is beyond the year 2262",
        ),
        (
            with("\"External id\": 1138,\"", "\"External id\": 1.5,\""),
            "`External id` is 1.5",
        ),
        (
            with("\"ph\": \"X\",\n    \"cat\"", "\"cat\""),
            "an event without `ph`",
        ),
        (with("\"rank\": 1", "\"rank\": -1"), "`rank` is -1"),
        (
            with("1790857026000000000", "1e20"),
            "`baseTimeNanoseconds` is 1e20",
        ),
        (with("aten::mm\"", "aten\\::mm\""), ""),
        ("{\"traceEvents\": [5]}".into(), "record 0, byte 17"),
        ("{\"schema\": 1}".into(), "no `traceEvents`"),
    ] {
        let read = KinetoTrace::from_bytes(text.as_bytes());
        if part.is_empty() {
            // JSON does not define this escape, so the writer cannot have escaped the name.
            assert_eq!(read.unwrap().repairs.repair_count(), 1);
            continue;
        }
        let error = read.map(|t| t.events.len()).expect_err(part).to_string();
        assert!(error.contains(part), "{error}\nlacks {part}");
    }
}
