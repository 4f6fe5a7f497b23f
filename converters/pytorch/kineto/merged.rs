//! Splits a file that merges the traces of several ranks. The processes of the tracks identify the
//! ranks.
//!
//! Merge scripts make process ids unique per rank in one of two ways: they prepend a label, such as
//! SGLang's `[TP00] 4711`, or they add a large multiple that differs between ranks. Different ranks
//! use the same correlation ids, streams and devices, so each rank gets only the events of its own
//! tracks.

use super::{EventCategory, KinetoTrace, KinetoTrackIdentity, NONE, PythonCallEvent};
use std::collections::{BTreeMap, BTreeSet};

/// Minimum difference between the numbers that a merge script added to process ids. Smaller
/// differences are device numbers.
const LEAST_OFFSET: u64 = 100;

impl KinetoTrace {
    /// Returns the traces of the ranks in this file, sorted by rank. Returns the trace of a single process unchanged.
    pub(in crate::pytorch) fn split_ranks(self) -> Vec<Self> {
        let Some(places) = self
            .ranks_of_tracks_by_label()
            .or_else(|| self.ranks_of_tracks_by_offset())
        else {
            return vec![self];
        };
        let ranks: BTreeSet<u32> = places.iter().flatten().map(|place| place.0).collect();
        let first = ranks.first().copied();
        let mut parts: Vec<Self> = Vec::with_capacity(ranks.len());
        for &rank in &ranks {
            // Tracks that belong to no rank, which are the profiler's own, stay with the first rank.
            let own = |track: usize| match &places[track] {
                Some((of, _)) => *of == rank,
                None => Some(rank) == first,
            };
            let mut number = vec![NONE; self.tracks.len()];
            let mut tracks = Vec::new();
            for (i, track) in self.tracks.iter().enumerate().filter(|(i, _)| own(*i)) {
                number[i] = tracks.len() as u32;
                let pid = places[i].as_ref().map_or(&track.pid, |(_, pid)| pid);
                tracks.push(KinetoTrackIdentity {
                    pid: pid.clone(),
                    ..track.clone()
                });
            }
            let events = self.events.iter().filter(|event| own(event.track as usize));
            let events = events.cloned().map(|mut event| {
                event.track = number[event.track as usize];
                event
            });
            let python = self.python.iter().filter(|call| own(call.track as usize));
            let python = python.map(|call| PythonCallEvent {
                track: number[call.track as usize],
                ..*call
            });
            let mut part = Self {
                events: events.collect(),
                python: python.collect(),
                tracks,
                rank: Some(rank),
                details: self.details.clone(),
                texts: self.texts.clone(),
                args: self.args.clone(),
                backend: self.backend.clone(),
                groups: self.groups.clone(),
                host_name: self.host_name.clone(),
                device_names: self.device_names.clone(),
                versions: self.versions.clone(),
                // The file's facts about the job come from the first merged rank's own file. Keep its number of ranks
                // only if it covers all merged ranks.
                world_size: self
                    .world_size
                    .filter(|&world| world as usize >= ranks.len()),
                span: self.span,
                ..Self::default()
            };
            part.with_rf_id = part.events.iter().filter(|event| event.rf_id != 0).count() as u64;
            parts.push(part);
        }
        // The counts apply to the whole file, so assign them only to the first rank.
        if let Some(part) = parts.first_mut() {
            part.arrows = self.arrows;
            part.left_out = self.left_out;
            part.repairs = self.repairs;
            part.bytes = self.bytes;
            part.outside = self.outside;
            part.unread = self.unread;
            part.untimed = self.untimed;
        }
        parts
    }

    /// Returns each track's rank and process, derived from the labels that precede process ids. Returns `None` unless
    /// there are several labels.
    fn ranks_of_tracks_by_label(&self) -> Option<Vec<Option<(u32, String)>>> {
        let split: Vec<Option<(&str, &str)>> =
            self.tracks.iter().map(split_label_from_pid).collect();
        let labels: BTreeSet<(Vec<u32>, &str)> = split
            .iter()
            .flatten()
            .map(|&(label, _)| (label_numbers(label), label))
            .collect();
        if labels.len() < 2 {
            return None;
        }
        // If each label contains just one number, this number is the rank. Labels with several numbers (tensor and data
        // parallelism) are sorted, and get ranks in this order.
        let plain = labels.iter().all(|(numbers, _)| numbers.len() == 1);
        let of_label: BTreeMap<&str, u32> = (0..)
            .zip(&labels)
            .map(|(place, (numbers, label))| (*label, if plain { numbers[0] } else { place }))
            .collect();
        let distinct: BTreeSet<u32> = of_label.values().copied().collect();
        if distinct.len() < labels.len() {
            return None;
        }
        let place = |found: Option<(&str, &str)>| {
            found.map(|(label, pid)| (of_label[label], pid.to_owned()))
        };
        Some(split.into_iter().map(place).collect())
    }

    /// Returns each track's rank and process, derived from the offsets that a merge script added.
    /// The script adds one offset per rank, a multiple of a fixed number, to process ids and device
    /// numbers.
    fn ranks_of_tracks_by_offset(&self) -> Option<Vec<Option<(u32, String)>>> {
        let pids: Vec<Option<u64>> = self
            .tracks
            .iter()
            .map(|track| track.pid.parse().ok())
            .collect();
        let of = |wanted: fn(EventCategory) -> bool| -> BTreeSet<u64> {
            let events = self.events.iter().filter(|event| wanted(event.category));
            events
                .filter_map(|event| pids[event.track as usize])
                .collect()
        };
        let processes = of(|category| category == EventCategory::CpuOp);
        let devices = of(EventCategory::is_device_work);
        if processes.len() < 2 || devices.len() != processes.len() {
            return None;
        }
        let sorted: Vec<u64> = devices.iter().copied().collect();
        let step = sorted[1] - sorted[0];
        let even = sorted.windows(2).all(|pair| pair[1] - pair[0] == step);
        if step < LEAST_OFFSET || !even || sorted[0] >= step {
            return None;
        }
        // If each rank uses the device that has the rank's own number, this number is part of the difference, so round
        // the difference down.
        let step = step - step % LEAST_OFFSET;
        let rank = |pid: u64| pid / step;
        let ranks =
            |pids: &BTreeSet<u64>| -> BTreeSet<u64> { pids.iter().map(|&pid| rank(pid)).collect() };
        let all = ranks(&devices);
        if ranks(&processes) != all {
            return None;
        }
        let place = |pid: &Option<u64>| {
            let pid = (*pid)?;
            let rank = u32::try_from(rank(pid))
                .ok()
                .filter(|_| all.contains(&rank(pid)))?;
            Some((rank, (pid % step).to_string()))
        };
        Some(pids.iter().map(place).collect())
    }
}

/// Returns the label before a process id, and the process id.
fn split_label_from_pid(track: &KinetoTrackIdentity) -> Option<(&str, &str)> {
    let (label, pid) = track.pid.strip_prefix('[')?.split_once(']')?;
    (!label_numbers(label).is_empty()).then(|| (label, pid.trim_start()))
}

/// Returns the numbers in a label, in order.
fn label_numbers(label: &str) -> Vec<u32> {
    let parts = label.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a file of merged traces, and splits it. The file has one operator and one kernel for each combination of
    /// a process and a device.
    fn build_and_split_merged_traces(pids: &[[&str; 2]]) -> Vec<KinetoTrace> {
        let events = pids.iter().enumerate().flat_map(|(i, [process, device])| {
            [
                format!(r#"{{"ph": "X", "cat": "cpu_op", "name": "op{i}", "pid": {process}, "tid": 1, "ts": 1, "dur": 9}}"#),
                format!(
                    r#"{{"ph": "X", "cat": "kernel", "name": "k{i}", "pid": {device}, "tid": 7, "ts": 2, "dur": 3,
                    "args": {{"device": 0, "stream": 7, "correlation": 1}}}}"#
                ),
            ]
        });
        let events: Vec<String> = events.collect();
        let text = format!(r#"{{"traceEvents": [{}]}}"#, events.join(","));
        KinetoTrace::from_bytes(text.as_bytes())
            .expect("it is a trace")
            .split_ranks()
    }

    /// Splits a file that `build_and_split_merged_traces` builds, and returns the rank, processes and event names of
    /// each trace.
    fn split_and_list_ranks_pids_event_names(
        pids: &[[&str; 2]],
    ) -> Vec<(Option<u32>, Vec<String>, Vec<String>)> {
        let part = |trace: KinetoTrace| {
            let names = trace
                .events
                .iter()
                .map(|event| trace.texts.get(event.name).to_owned());
            let names = names.collect();
            (
                trace.rank,
                trace.tracks.into_iter().map(|track| track.pid).collect(),
                names,
            )
        };
        build_and_split_merged_traces(pids)
            .into_iter()
            .map(part)
            .collect()
    }

    fn build_expected_parts(
        ranks: [u32; 2],
        processes: [[&str; 2]; 2],
        order: [usize; 2],
    ) -> Vec<(Option<u32>, Vec<String>, Vec<String>)> {
        let part = |i: usize| {
            let names = vec![format!("op{}", order[i]), format!("k{}", order[i])];
            (
                Some(ranks[i]),
                processes[i].map(str::to_owned).to_vec(),
                names,
            )
        };
        vec![part(0), part(1)]
    }

    #[test]
    fn labels_tell_ranks() {
        let labelled = [
            [r#""[TP03] 70""#, r#""[TP03] 0""#],
            [r#""[TP01] 70""#, r#""[TP01] 0""#],
        ];
        assert_eq!(
            split_and_list_ranks_pids_event_names(&labelled),
            build_expected_parts([1, 3], [["70", "0"]; 2], [1, 0])
        );
        // Labels that put data parallelism before tensor parallelism also get ranks in sorted order.
        let two = [
            [r#""[DP01-TP00] 7""#, r#""[DP01-TP00] 0""#],
            [r#""[DP00-TP01] 7""#, r#""[DP00-TP01] 0""#],
        ];
        assert_eq!(
            split_and_list_ranks_pids_event_names(&two),
            build_expected_parts([0, 1], [["7", "0"]; 2], [1, 0])
        );
    }

    #[test]
    fn offsets_of_processes_tell_ranks() {
        let offset = [["4711", "0"], ["1004712", "1000001"]];
        assert_eq!(
            split_and_list_ranks_pids_event_names(&offset),
            build_expected_parts([0, 1], [["4711", "0"], ["4712", "1"]], [0, 1])
        );
    }

    #[test]
    fn traces_of_one_or_of_indistinguishable_ranks_are_not_split() {
        for pids in [
            &[["70", "0"]][..],
            &[["70", "0"], ["71", "0"]],
            &[["70", "0"], ["71", "1"]],
            &[["70", "0"], ["71", "1000000"]],
            &[[r#""[TP00] 70""#, r#""[TP00] 0""#]],
        ] {
            assert_eq!(build_and_split_merged_traces(pids).len(), 1, "{pids:?}");
        }
    }
}
