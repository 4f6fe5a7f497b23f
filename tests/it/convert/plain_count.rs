//! Computes times of a Kineto file with a plain parser of the whole file, which shares no code with the reader: device
//! time, host waits for the device, and the time in which neither worked.

use super::rig::read_json_file;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Start and end of intervals, ns.
pub type Intervals = Vec<(i64, i64)>;

/// Events of a file.
pub struct FileBusyAndBlockedIntervals {
    /// Busy intervals of each stream.
    pub streams: BTreeMap<(String, String), Intervals>,
    /// Time in which the host waited for the device inside a call.
    pub blocked: Intervals,
    /// `true` if the file has operators, and not only runtime calls.
    pub operators: bool,
    pub first: i64,
    pub last: i64,
}

/// Sorts intervals, and merges intervals that touch.
pub fn merge_intervals(mut list: Intervals) -> Intervals {
    list.sort_unstable();
    let mut out: Intervals = Vec::new();
    for (from, to) in list {
        match out.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => out.push((from, to)),
        }
    }
    out
}

pub fn total_interval_length(list: &[(i64, i64)]) -> i64 {
    list.iter().map(|(from, to)| to - from).sum()
}

/// Returns the total length of the intersection of two unions, in ns.
pub fn measure_intersection_ns(a: &[(i64, i64)], b: &[(i64, i64)]) -> i64 {
    let (mut i, mut j, mut sum) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        sum += (a[i].1.min(b[j].1) - a[i].0.max(b[j].0)).max(0);
        if a[i].1 < b[j].1 { i += 1 } else { j += 1 }
    }
    sum
}

fn parse_us_as_ns(value: &Value) -> i64 {
    // Whole nanoseconds are parsed from text, because a double would lose digits.
    let text = value.to_string();
    let (us, rest) = text.split_once('.').unwrap_or((&text, ""));
    let rest: i64 = format!("{rest:0<3}")[..3].parse().unwrap();
    us.parse::<i64>().unwrap() * 1000 + rest
}

impl FileBusyAndBlockedIntervals {
    pub fn read_from_file(path: &Path) -> Self {
        let file = read_json_file(path).expect("it is JSON");
        let mut this = Self {
            streams: BTreeMap::new(),
            blocked: Vec::new(),
            operators: false,
            first: i64::MAX,
            last: i64::MIN,
        };
        let mut calls: BTreeMap<u64, (i64, i64)> = BTreeMap::new();
        let mut copies = Vec::new();
        for event in file["traceEvents"].as_array().unwrap() {
            let category = event["cat"].as_str().unwrap_or("");
            let host = ["cpu_op", "user_annotation"].contains(&category)
                || category.ends_with("_runtime")
                || category.ends_with("_driver");
            let device =
                ["kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events"].contains(&category);
            if event["ph"] != "X" || !(host || device) {
                continue;
            }
            this.operators |= category == "cpu_op";
            let from = parse_us_as_ns(&event["ts"]);
            let to = from + parse_us_as_ns(&event["dur"]);
            this.first = this.first.min(from);
            this.last = this.last.max(to);
            let correlation = event["args"]["correlation"].as_u64();
            if device {
                let track = (
                    event["pid"].to_string(),
                    event["args"]["stream"].to_string(),
                );
                this.streams.entry(track).or_default().push((from, to));
                if category == "gpu_memcpy" {
                    copies.push((correlation, from, to));
                }
            } else if category.ends_with("_runtime") || category.ends_with("_driver") {
                calls.insert(correlation.unwrap_or(0), (from, to));
                let name = event["name"].as_str().unwrap();
                if name.contains("Synchronize") {
                    this.blocked.push((from, to));
                }
            }
        }
        for (correlation, from, to) in copies {
            let call = correlation.and_then(|c| calls.get(&c));
            if let Some(call) = call.filter(|call| call.1 >= to) {
                this.blocked.push((from.max(call.0), to));
            }
        }
        for list in this.streams.values_mut() {
            *list = merge_intervals(std::mem::take(list));
        }
        this.blocked = merge_intervals(std::mem::take(&mut this.blocked));
        this
    }

    /// Returns the intervals in which at least one stream was busy.
    pub fn busy_intervals(&self) -> Intervals {
        merge_intervals(self.streams.values().flatten().copied().collect())
    }
}
