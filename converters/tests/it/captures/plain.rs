//! Compares traces with a plain parse of whole files that shares no code with the readers.

use chakram_converters::pytorch::{EventCategory, HostTrace, KinetoTrace};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the elements of a list; empty if the value is not a list.
fn array_elements_or_empty(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Formats parsed JSON, which must contain no quotes, as Python's `str` does.
fn format_json_like_python_str(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(format_json_like_python_str).collect();
            format!("[{}]", values.join(", "))
        }
        Value::String(text) => {
            assert!(!text.contains(['\'', '\\', '"']), "{text}");
            format!("'{text}'")
        }
        number => number.to_string(),
    }
}

/// Collects the tensors in a value: lists of six entries whose last entry is a text that names a tensor type.
fn collect_tensors<'v>(value: &'v Value, of: &str, into: &mut Vec<&'v [Value]>) {
    if !of.contains("Tensor(") {
        return;
    }
    match array_elements_or_empty(value) {
        tensor @ [_, _, _, _, _, Value::String(_)] => into.push(tensor),
        values => values
            .iter()
            .for_each(|value| collect_tensors(value, of, into)),
    }
}

/// Returns the storages in order, and the total size of the distinct tensors in bytes.
fn list_storages_and_sum_tensor_bytes(values: &Value, types: &Value) -> (Vec<u64>, u64) {
    let mut found = Vec::new();
    for (value, of) in array_elements_or_empty(values)
        .iter()
        .zip(array_elements_or_empty(types))
    {
        collect_tensors(value, of.as_str().unwrap(), &mut found);
    }
    let number = |v: &Value| v.as_u64().unwrap();
    let storages = found.iter().map(|t| number(&t[1])).filter(|s| *s != 0);
    let sizes: BTreeMap<u64, u64> = found
        .iter()
        .map(|t| (number(&t[0]), number(&t[3]) * number(&t[4])))
        .collect();
    (storages.collect(), sizes.values().sum())
}

/// Compares a host trace with the JSON of its file.
pub fn assert_host_trace_equals_json(trace: &HostTrace, json: &Value) {
    let nodes = array_elements_or_empty(&json["nodes"]);
    assert_eq!(trace.nodes.len(), nodes.len());
    assert_eq!(trace.schema, json["schema"]);
    let mut comms = 0;
    let records = trace.nodes.iter().zip(&trace.records);
    for ((node, record), json) in records.zip(nodes) {
        let fields = json.as_object().unwrap().iter();
        let mut all: BTreeMap<&str, &Value> = fields.map(|(name, v)| (&name[..], v)).collect();
        for attr in array_elements_or_empty(&json["attrs"]) {
            all.insert(attr["name"].as_str().unwrap(), &attr["value"]);
        }
        let text = |number: u32| trace.texts.get(number);
        assert_eq!(text(node.name), *all["name"]);
        let form = trace.shared_properties_of_node(node);
        assert_eq!(text(form.op_schema), *all["op_schema"]);
        assert_eq!(record.id, *all["id"]);
        assert_eq!(
            record.parent,
            **all.get("ctrl_deps").unwrap_or_else(|| &all["parent"])
        );
        assert_eq!(record.rf_id, *all["rf_id"]);
        assert_eq!(record.seq_id, *all["seq_id"]);
        assert_eq!(record.fw_parent, *all["fw_parent"]);
        assert_eq!(form.scope, *all["scope"]);
        assert_eq!(node.tid, *all["tid"]);
        let side = |side: &str, part: &str| {
            let flat = format!("{}_{part}", side.trim_end_matches('s'));
            let nested = all[side].get(part).or_else(|| all.get(&flat[..]).copied());
            nested.unwrap_or(all[side])
        };
        for (name, shapes, types, range, bytes) in [
            (
                "inputs",
                form.shapes_in,
                form.types_in,
                record.storages_in,
                form.bytes_in,
            ),
            (
                "outputs",
                form.shapes_out,
                form.types_out,
                record.storages_out,
                form.bytes_out,
            ),
        ] {
            assert_eq!(
                text(shapes),
                format_json_like_python_str(side(name, "shapes"))
            );
            assert_eq!(
                text(types),
                format_json_like_python_str(side(name, "types"))
            );
            let (storages, expected) =
                list_storages_and_sum_tensor_bytes(side(name, "values"), side(name, "types"));
            assert_eq!(trace.storages[range.0 as usize..range.1 as usize], storages);
            assert_eq!(bytes, expected);
        }
        if let Some(args) = trace.args.get(node.args as usize) {
            comms += 1;
            let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(parse(&args.inputs), *side("inputs", "values"));
            assert_eq!(parse(&args.outputs), *side("outputs", "values"));
            for (key, value) in &args.attrs {
                let same = *all[&key[..]] == *value.as_str() || *all[&key[..]] == parse(value);
                assert!(same, "{key}: {value}");
            }
        }
    }
    assert_eq!(comms, trace.args.len());
}

/// Compares a device trace with the JSON of its file.
pub fn assert_device_trace_equals_json(trace: &KinetoTrace, json: &Value) {
    let base = json["baseTimeNanoseconds"].as_i64().unwrap_or(0);
    let kept = BTreeMap::from([
        ("cpu_op", EventCategory::CpuOp),
        ("user_annotation", EventCategory::Annotation),
        ("cuda_runtime", EventCategory::Runtime),
        ("cuda_driver", EventCategory::Runtime),
        ("kernel", EventCategory::Kernel),
        ("gpu_memcpy", EventCategory::Copy),
        ("gpu_memset", EventCategory::Set),
        ("cuda_sync", EventCategory::Sync),
        ("mtia_runtime", EventCategory::Runtime),
        ("mtia_ccp_events", EventCategory::Kernel),
    ]);
    let mut events = trace.events.iter();
    let mut python = trace.python.iter();
    let mut arrows = 0;
    let mut left: BTreeMap<String, u64> = BTreeMap::new();
    let mut tracks = BTreeSet::new();
    // Integer times are exact. Floating-point times are off by up to 1 ns near 4·10¹² us, and by up
    // to 125 ns near 10¹⁵ us.
    let near = |ns: i64, us: &Value| match us.as_i64() {
        Some(us) => ns == us * 1000,
        None => (ns as f64 - us.as_f64().unwrap() * 1e3).abs() <= ns as f64 * 3e-16 + 1.0,
    };
    let plain = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    for json in array_elements_or_empty(&json["traceEvents"]) {
        let track = |number: u32| {
            let track = &trace.tracks[number as usize];
            assert_eq!(
                (&track.pid, &track.tid),
                (&plain(&json["pid"]), &plain(&json["tid"]))
            );
        };
        let (ph, cat) = (json["ph"].as_str().unwrap(), json["cat"].as_str());
        match (ph, kept.get(cat.unwrap_or(""))) {
            ("X", Some(category)) => {
                let event = events.next().unwrap();
                assert_eq!(event.category, *category);
                assert_eq!(trace.texts.get(event.name), json["name"]);
                assert!(near(event.start_ns - base, &json["ts"]), "{json}");
                assert!(near(event.duration_ns as i64, &json["dur"]), "{json}");
                track(event.track);
                tracks.insert(event.track);
                let args = &json["args"];
                let number = |key: &str| args[key].as_i64().unwrap_or(0);
                assert_eq!(event.rf_id as i64, number("Record function id"));
                assert_eq!(event.external_id as i64, number("External id"));
                assert_eq!(event.correlation as i64, number("correlation"));
                if let Some(stream) = args["stream"].as_i64() {
                    assert_eq!(trace.details_of_event(event).stream, stream);
                }
                let Some(kept) = trace.args_of_event(event) else {
                    assert!(args.get("Collective name").is_none());
                    continue;
                };
                assert_eq!(kept.len(), args.as_object().map_or(0, Map::len));
                for (key, value) in kept {
                    let json = serde_json::from_str::<Value>(value).ok();
                    assert!(args[key] == *value.as_str() || json.as_ref() == Some(&args[key]));
                }
            }
            ("X", None) if matches!(cat, Some("python_function" | "PythonFunction" | "Python")) => {
                let call = python.next().unwrap();
                assert_eq!(trace.texts.get(call.name), json["name"]);
                assert!(near(call.start_ns - base, &json["ts"]), "{json}");
                assert!(near(call.duration_ns as i64, &json["dur"]), "{json}");
                track(call.track);
                tracks.insert(call.track);
            }
            ("s" | "f", _) if matches!(cat, Some("ac2g" | "async_cpu_to_gpu" | "fwdbwd")) => {
                arrows += 1;
            }
            _ => *left.entry(cat.unwrap_or(ph).to_owned()).or_default() += 1,
        }
    }
    assert!(events.next().is_none() && python.next().is_none());
    assert_eq!(trace.arrows, arrows);
    assert_eq!(trace.left_out, Vec::from_iter(left));
    assert_eq!(tracks.len(), trace.tracks.len());
    let info = &json["distributedInfo"];
    assert_eq!(trace.rank.map(u64::from), info["rank"].as_u64());
    assert_eq!(trace.world_size.map(u64::from), info["world_size"].as_u64());
    assert_eq!(
        trace.groups.len(),
        array_elements_or_empty(&info["pg_config"]).len()
    );
    assert_eq!(
        trace.device_names.len(),
        array_elements_or_empty(&json["deviceProperties"]).len()
    );
}
