//! Compares the memory usage of small jobs with results computed by hand.

use super::*;
use serde_json::Value;

/// Builds tensors from their uses: (node, name, bytes, whether the node writes the tensor).
fn build_rank_tensors_from_uses(uses: &[(u64, &str, u64, bool)]) -> RankTensors {
    let mut all = RankTensors::default();
    for &(node, name, bytes, write) in uses {
        let known = all.names.iter().position(|known| known == name);
        let tensor = known.unwrap_or_else(|| {
            all.names.push(name.to_owned());
            all.names.len() - 1
        });
        all.uses.push(TensorUse {
            node,
            tensor: tensor as u32,
            bytes,
            write,
        });
    }
    all
}

/// Builds nodes 0, 1, … from (name, start in ns, end in ns).
fn build_completed_nodes(spans: &[(&'static str, u64, u64)]) -> Vec<CompletedNode<'static>> {
    let ran = spans
        .iter()
        .zip(0..)
        .map(|(&(name, start, end), id)| CompletedNode {
            id,
            name,
            start: Time(start * 1000),
            end: Time(end * 1000),
        });
    ran.collect()
}

/// Builds the tensors of one layer's forward and backward pass: w is a weight, a is an activation, y is a result, and g
/// is a gradient.
fn build_layer_tensors() -> RankTensors {
    build_rank_tensors_from_uses(&[
        (0, "w", 100, false),
        (0, "a", 30, true),
        (1, "a", 30, false),
        (1, "y", 7, true),
        (2, "y", 7, false),
        (2, "w", 100, false),
        (2, "g", 50, true),
    ])
}

const SPANS: [(&str, u64, u64); 3] = [("f", 5, 10), ("loss", 10, 14), ("b", 20, 26)];

#[test]
fn lifetimes_run_from_the_write_to_the_last_read() {
    let tensors = build_layer_tensors();
    let memory =
        TensorLifetimesAndAccesses::compute_lifetimes(&tensors, build_completed_nodes(&SPANS));
    // w exists from 0 to 26, a from 5 to 14, y from 10 to 26, and g from 20 onwards. There are 100 bytes at 0, 130 at
    // 5, 137 at 10, 107 at 14, 157 at 20, and 50 (only g) at 26.
    let usage: Vec<_> = memory
        .usage
        .iter()
        .map(|(at, used)| (at.0 / 1000, *used))
        .collect();
    let expected = [
        (0, 100),
        (5, 130),
        (10, 137),
        (14, 107),
        (20, 157),
        (26, 50),
    ];
    assert_eq!(usage, expected);
    assert_eq!(memory.peak_bytes(), 157);
    assert_eq!(memory.tensors_read_before_written().len(), 0);
}

#[test]
fn freed_memory_is_reusable_at_the_same_time() {
    // a exists from 0 to 10; b, which is never read, exists from 10 onwards. Memory use is 8 bytes before and after 10,
    // and never reaches 16.
    let tensors =
        build_rank_tensors_from_uses(&[(0, "a", 8, true), (1, "a", 8, false), (2, "b", 8, true)]);
    let memory = TensorLifetimesAndAccesses::compute_lifetimes(
        &tensors,
        build_completed_nodes(&[("p", 0, 4), ("q", 4, 10), ("r", 10, 12)]),
    );
    assert_eq!(memory.peak_bytes(), 8);
}

#[test]
fn a_tensor_read_before_its_write_exists_from_the_start() {
    // Node 0 reads w until 4, and node 1 writes w from 2 to 9. Therefore w exists from 0 to 4.
    let tensors = build_rank_tensors_from_uses(&[(0, "w", 8, false), (1, "w", 9, true)]);
    let memory = TensorLifetimesAndAccesses::compute_lifetimes(
        &tensors,
        build_completed_nodes(&[("p", 0, 4), ("q", 2, 9)]),
    );
    assert_eq!(
        memory.tensors_read_before_written().collect::<Vec<_>>(),
        ["w"]
    );
    let usage: Vec<_> = memory.usage.into_iter().collect();
    assert_eq!(usage, [(Time(0), 8), (Time(4000), 0)]);
}

#[test]
fn chrome_trace_has_every_access_and_memory_curve() {
    let tensors = build_layer_tensors();
    let mut out = Vec::new();
    let memory =
        TensorLifetimesAndAccesses::compute_lifetimes(&tensors, build_completed_nodes(&SPANS));
    memory.write_chrome_trace(3, &mut out).unwrap();
    let file: Value = serde_json::from_slice(&out).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let of = |category: &str| {
        let events = events.iter().filter(|event| event["cat"] == category);
        let facts = events.map(|event| {
            let name = event["name"].as_str().unwrap();
            let phase = event["ph"].as_str().unwrap();
            (name, phase, event["ts"].as_f64().unwrap(), &event["pid"])
        });
        facts.collect::<Vec<_>>()
    };
    // No node wrote w. ASTRA-sim reports that w was written in the first 10 ns.
    let (rank, lives) = (Value::from(3), Value::from(1_000_003));
    let writes = of("tensorWrite");
    assert_eq!(writes.len(), 8);
    assert_eq!(writes[0], ("a", "B", 0.005, &rank));
    assert_eq!(writes[7], ("w", "E", 0.01, &rank));
    let reads = of("tensorRead");
    assert_eq!(reads.len(), 8);
    assert_eq!(reads[1], ("w", "E", 0.01, &rank));
    // w, a and y are freed, but g is not.
    let lifetimes = of("tensorLifetime");
    assert_eq!(lifetimes.len(), 7);
    assert_eq!(lifetimes[0], ("w", "B", 0.0, &lives));
    assert_eq!(lifetimes[3], ("a", "E", 0.014, &lives));
    let peak = events.iter().filter(|event| event["ph"] == "C");
    let peak = peak.map(|event| event["args"]["Memory_MB"].as_f64().unwrap());
    // The peak is 157 bytes, in MiB.
    assert_eq!(peak.fold(0.0, f64::max), 157.0 / 1048576.0);
}
