//! Fuzz targets for PyTorch traces. Arbitrary bytes must cause no panic, and readers may lose
//! nothing silently.

use chakram_converters::pytorch::{HostTrace, KinetoTrace, NONE};
use chakram_trace::format::file::decompress_bytes;
use serde_json::Value;

/// Returns the text in `data` as UTF-8. Returns `None` if `data` is compressed and also large or
/// damaged.
fn decompress_and_convert_to_utf8(data: &[u8]) -> Option<Vec<u8>> {
    let text = match decompress_bytes(data) {
        Some(Ok(unpacked)) => (unpacked.len() <= 1 << 20).then_some(unpacked)?,
        Some(Err(_)) => return None,
        None => data.to_vec(),
    };
    let (rest, order): (_, fn([u8; 2]) -> u16) = match &text[..] {
        [0xff, 0xfe, rest @ ..] => (rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => (rest, u16::from_be_bytes),
        [b'{' | b'[', 0, ..] => (&text[..], u16::from_le_bytes),
        [0, b'{' | b'[', ..] => (&text[..], u16::from_be_bytes),
        _ => return Some(text),
    };
    let words = rest.chunks_exact(2).map(|pair| order([pair[0], pair[1]]));
    Some(String::from_utf16_lossy(&words.collect::<Vec<_>>()).into_bytes())
}

/// Returns the number of elements of the array `key`, or of the text itself if the text is an
/// array. Returns `None` if a plain parse rejects the text.
fn count_array_elements(text: &[u8], key: &str) -> Option<usize> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let json: Value = serde_json::from_slice(text).ok()?;
    json.get(key).unwrap_or(&json).as_array().map(Vec::len)
}

/// Reads `data` as a host trace, and checks that no node is lost.
pub fn check_host_trace_loses_no_node(data: &[u8]) {
    let Some(text) = decompress_and_convert_to_utf8(data) else {
        return;
    };
    let trace = match HostTrace::from_bytes(data) {
        Ok(trace) => trace,
        Err(error) => return assert!(error.to_string().contains("try: ")),
    };
    assert_eq!(trace.bytes, text.len() as u64);
    if trace.repairs.repair_count() == 0
        && let Some(count) = count_array_elements(&text, "nodes")
    {
        assert_eq!(trace.nodes.len(), count);
    }
    assert_eq!(trace.records.len(), trace.nodes.len());
    for record in &trace.records {
        for (from, to) in [record.storages_in, record.storages_out] {
            let _ = &trace.storages[from as usize..to as usize];
        }
    }
    for node in &trace.nodes {
        let form = trace.shared_properties_of_node(node);
        for number in [node.name, form.op_schema, form.shapes_in, form.types_in] {
            let _ = trace.texts.get(number);
        }
        assert!(node.args == NONE || trace.args.get(node.args as usize).is_some());
    }
}

/// Reads `data` as a device trace, and checks that no event is lost.
pub fn check_device_trace_loses_no_event(data: &[u8]) {
    let Some(text) = decompress_and_convert_to_utf8(data) else {
        return;
    };
    let trace = match KinetoTrace::from_bytes(data) {
        Ok(trace) => trace,
        Err(error) => return assert!(error.to_string().contains("try: ")),
    };
    assert_eq!(trace.bytes, text.len() as u64);
    let left: u64 = trace.left_out.iter().map(|(_, count)| count).sum();
    let read = (trace.events.len() + trace.python.len()) as u64;
    let seen = read + trace.arrows + left + trace.outside + trace.untimed;
    if trace.repairs.repair_count() == 0
        && let Some(count) = count_array_elements(&text, "traceEvents")
    {
        assert_eq!(seen, count as u64);
    }
    for call in &trace.python {
        let _ = (
            trace.texts.get(call.name),
            &trace.tracks[call.track as usize],
        );
    }
    for event in &trace.events {
        let _ = (
            trace.texts.get(event.name),
            &trace.tracks[event.track as usize],
        );
        assert!(event.details == NONE || trace.details.get(event.details as usize).is_some());
        let args = trace.details_of_event(event).args;
        assert!(args == NONE || trace.args.get(args as usize).is_some());
    }
}
