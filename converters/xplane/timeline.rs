//! Reads the timelines of devices: the time slices of streams, and the host calls that launched them.

use super::space::{HostProfilePlanes, ProfileEvent, ProfileLine, ProfilePlane, XplaneStatValue};
use chakram_trace::format::{TraceError, TraceErrorLocation};
use std::collections::BTreeMap;

/// Name prefixes of device planes.
const DEVICES: [&str; 2] = ["/device:GPU:", "/device:TPU:"];
/// Name prefix of host planes.
const HOST: &str = "/host:CPU";
/// Name prefix of a GPU's streams.
const STREAM: &str = "Stream #";
/// Name of the line that contains a TPU's operators. Other lines of the plane summarize the
/// operators or overlap them.
const OPERATORS: &str = "XLA Ops";
/// Stat that connects a device event to the call that launched it.
const CORRELATION: &str = "correlation_id";

/// A slice of a stream's time: a whole event, or a part of an event during which no nested event runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct InnermostEventSlice<'a> {
    /// Index of the stream.
    pub stream: u32,
    /// Start of the slice, in ps.
    pub start: i128,
    pub end: i128,
    pub event: ProfileEvent<'a>,
    /// True if the slice covers its whole event.
    pub whole: bool,
    /// Index of the call that launched the event.
    pub launch: Option<u32>,
}

/// A call on a host thread that launched device events.
#[derive(Clone, Debug)]
pub(super) struct HostLaunch {
    /// Index of the thread in the file.
    pub thread: u32,
    pub start: i128,
    pub end: i128,
    pub name: String,
}

/// A device, and the calls that launched its events.
#[derive(Debug)]
pub(super) struct DeviceTimeline<'a> {
    pub plane: ProfilePlane<'a>,
    /// Index of the file among the job's files.
    pub file: usize,
    /// Number of the device in the job; devices are counted host by host.
    pub id: u64,
    /// Number and name of each stream.
    pub streams: Vec<(i64, String)>,
    /// Slices, sorted by start. Slices of one stream do not overlap.
    pub pieces: Vec<InnermostEventSlice<'a>>,
    /// Launching calls, sorted by start. Calls of one thread do not overlap.
    pub launches: Vec<HostLaunch>,
    /// Names of the file's threads.
    pub threads: Vec<String>,
    /// Number of events with a duration above zero.
    pub events: u64,
    /// Number of events whose launching call is known.
    pub linked: u64,
}

impl DeviceTimeline<'_> {
    /// Returns the start of the first event, in ps.
    pub fn first_start(&self) -> Option<i128> {
        let first = self.pieces.first().map(|piece| piece.start);
        let launch = self.launches.first().map(|launch| launch.start);
        first.into_iter().chain(launch).min()
    }

    /// Returns the end of the last event, in ps.
    pub fn last_end(&self) -> Option<i128> {
        let pieces = self.pieces.iter().map(|piece| piece.end);
        pieces.chain(self.launches.iter().map(|l| l.end)).max()
    }

    /// Returns the names of all lanes as metadata attributes. Each stream and each launching thread has a lane.
    pub fn lane_names(&self) -> Vec<(String, String)> {
        let stream = |(number, name): &(i64, String)| (format!("lane.{number}"), name.clone());
        let mut names: Vec<_> = self.streams.iter().map(stream).collect();
        let mut threads: Vec<u32> = self.launches.iter().map(|l| l.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        names.extend(threads.iter().map(|&thread| {
            let name = self.threads[thread as usize].clone();
            (format!("host_lane.{}", thread + 1), name)
        }));
        names
    }
}

/// Launching calls on all threads of a file, by correlation id.
#[derive(Debug, Default)]
pub(super) struct LaunchingHostCalls {
    threads: Vec<String>,
    launches: BTreeMap<u64, HostLaunch>,
}

impl LaunchingHostCalls {
    pub fn new(space: &HostProfilePlanes<'_>) -> Result<Self, TraceError> {
        let mut this = Self::default();
        for plane in space.planes.iter().filter(|p| p.name.starts_with(HOST)) {
            for index in 0..plane.line_count() {
                let line = plane.parse_line(index)?;
                let thread = this.threads.len() as u32;
                this.threads.push(line.name.to_string());
                for event in &line.events {
                    let Some(id) = correlation_id(plane, event)? else {
                        continue;
                    };
                    let launch = HostLaunch {
                        thread,
                        start: event.start,
                        end: event.end,
                        name: plane.name_of_event(event).to_owned(),
                    };
                    // If nested calls have the same id, the innermost call counts as the launch.
                    let length = |launch: &HostLaunch| launch.end - launch.start;
                    match this.launches.get_mut(&id) {
                        Some(other) if length(other) <= length(&launch) => {}
                        Some(other) => *other = launch,
                        None => {
                            this.launches.insert(id, launch);
                        }
                    }
                }
            }
        }
        Ok(this)
    }
}

fn correlation_id<'a>(
    plane: &ProfilePlane<'a>,
    event: &ProfileEvent<'a>,
) -> Result<Option<u64>, TraceError> {
    let mut id = None;
    plane.for_each_stat_of_event(event, |name, value| {
        if let (CORRELATION, XplaneStatValue::Number(number)) = (name, value) {
            id = Some(number);
        }
    })?;
    Ok(id)
}

/// Returns the devices of a file, by number. `first` is the number of the file's first device
/// within the job. Lines and planes that are not streams are added to `left_out`.
pub(super) fn read_devices<'a>(
    space: HostProfilePlanes<'a>,
    hosts: LaunchingHostCalls,
    first: u64,
    file: usize,
    left_out: &mut Vec<(String, u64)>,
) -> Result<Vec<DeviceTimeline<'a>>, TraceError> {
    let mut numbered: BTreeMap<u64, ProfilePlane<'a>> = BTreeMap::new();
    for plane in space.planes {
        let number = DEVICES
            .iter()
            .find_map(|start| plane.name.strip_prefix(start));
        let Some(number) = number else {
            continue;
        };
        let Ok(number) = number.parse::<u32>() else {
            let events = count_plane_events(&plane)?;
            left_out.push((plane.name.to_string(), events));
            continue;
        };
        if let Some(other) = numbered.get(&u64::from(number)) {
            return Err(TraceError::invalid_at(
                TraceErrorLocation::default(),
                format!(
                    "the planes {} and {} are of the same device",
                    other.name, plane.name
                ),
                "one file for each host, each with the profile of that host alone",
            ));
        }
        numbered.insert(u64::from(number), plane);
    }
    let device = |(number, plane)| read_device(plane, &hosts, first + number, file, left_out);
    numbered.into_iter().map(device).collect()
}

fn count_plane_events(plane: &ProfilePlane<'_>) -> Result<u64, TraceError> {
    let mut events = 0;
    for index in 0..plane.line_count() {
        events += plane.parse_line(index)?.events.len() as u64;
    }
    Ok(events)
}

fn read_device<'a>(
    plane: ProfilePlane<'a>,
    hosts: &LaunchingHostCalls,
    id: u64,
    file: usize,
    left_out: &mut Vec<(String, u64)>,
) -> Result<DeviceTimeline<'a>, TraceError> {
    let lines = (0..plane.line_count()).map(|index| plane.parse_line(index));
    let lines = lines.collect::<Result<Vec<ProfileLine<'a>>, _>>()?;
    let is_stream = |line: &ProfileLine<'a>| line.name.starts_with(STREAM);
    let streams = lines.iter().any(is_stream);
    let mut this = DeviceTimeline {
        plane,
        file,
        id,
        streams: Vec::new(),
        pieces: Vec::new(),
        launches: Vec::new(),
        threads: hosts.threads.clone(),
        events: 0,
        linked: 0,
    };
    // Maps each correlation id of this device's events to the index in `launches` of the call with
    // the same id.
    let mut used: BTreeMap<u64, u32> = BTreeMap::new();
    for line in &lines {
        let own = if streams {
            is_stream(line)
        } else {
            line.name == OPERATORS
        };
        if !own {
            if !line.events.is_empty() {
                let name = format!("{} {}", this.plane.name, line.name);
                left_out.push((name, line.events.len() as u64));
            }
            continue;
        }
        let stream = this.streams.len() as u32;
        let number = stream_number(&line.name).filter(|n| this.streams.iter().all(|(m, _)| m != n));
        // Stream numbers are never negative, so streams without a number get negative ones.
        let number = number.unwrap_or(-1 - i64::from(stream));
        this.streams.push((number, line.name.to_string()));
        this.events += line.events.len() as u64;
        let pieces = cut_into_slices(&line.events);
        for (index, start, end, whole) in pieces {
            let event = line.events[index];
            let id = correlation_id(&this.plane, &event)?;
            let known = id.and_then(|id| Some((id, hosts.launches.get(&id)?)));
            let launch = known.map(|(id, launch)| {
                let next = used.len() as u32;
                *used.entry(id).or_insert_with(|| {
                    this.launches.push(launch.clone());
                    next
                })
            });
            this.pieces.push(InnermostEventSlice {
                stream,
                start,
                end,
                event,
                whole,
                launch,
            });
        }
        for event in &line.events {
            let id = correlation_id(&this.plane, event)?;
            this.linked += u64::from(id.is_some_and(|id| used.contains_key(&id)));
        }
    }
    this.pieces.sort_by_key(|piece| (piece.start, piece.stream));
    sort_and_trim_overlapping_host_calls(&mut this);
    Ok(this)
}

/// Sorts the calls by start, and cuts off each call where the next call on its thread starts.
fn sort_and_trim_overlapping_host_calls(device: &mut DeviceTimeline<'_>) {
    let launches = &mut device.launches;
    let mut order: Vec<u32> = (0..launches.len() as u32).collect();
    order.sort_by_key(|&i| {
        let launch = &launches[i as usize];
        (launch.start, launch.end, launch.thread, i)
    });
    let mut place = vec![0; order.len()];
    for (to, &from) in (0..).zip(&order) {
        place[from as usize] = to;
    }
    let sorted = order.iter().map(|&i| launches[i as usize].clone());
    *launches = sorted.collect();
    let mut next: BTreeMap<u32, i128> = BTreeMap::new();
    for launch in launches.iter_mut().rev() {
        let limit = next.insert(launch.thread, launch.start);
        launch.end = launch
            .end
            .min(limit.unwrap_or(launch.end))
            .max(launch.start);
    }
    for piece in &mut device.pieces {
        piece.launch = piece.launch.map(|launch| place[launch as usize]);
    }
}

/// Parses the number in a name such as `Stream #17(Kernel)`.
fn stream_number(name: &str) -> Option<i64> {
    let rest = name.strip_prefix(STREAM)?;
    let end = rest.find(|c: char| !c.is_ascii_digit());
    let number: i64 = rest[..end.unwrap_or(rest.len())].parse().ok()?;
    Some(number)
}

/// Cuts the events of a line into slices that do not overlap. Each slice consists of its event's index, its start, its
/// end, and a flag that is true if it covers the whole event. Each instant belongs to the running event that started
/// last, so together the slices cover exactly the time that the events cover.
fn cut_into_slices(events: &[ProfileEvent<'_>]) -> Vec<(usize, i128, i128, bool)> {
    let mut order: Vec<usize> = (0..events.len()).collect();
    order.sort_by_key(|&i| (events[i].start, std::cmp::Reverse(events[i].end), i));
    let mut cut = Vec::with_capacity(events.len());
    let mut open: Vec<usize> = Vec::new();
    let mut now = i128::MIN;
    let mut piece = |index: usize, from: i128, to: i128| {
        if from < to {
            let event = &events[index];
            cut.push((index, from, to, (from, to) == (event.start, event.end)));
        }
    };
    let mut close = |open: &mut Vec<usize>, now: &mut i128, until: i128| {
        while let Some(&top) = open.last() {
            if events[top].end > until {
                piece(top, (*now).max(events[top].start), until);
                *now = (*now).max(until);
                return;
            }
            piece(top, (*now).max(events[top].start), events[top].end);
            *now = (*now).max(events[top].end);
            open.pop();
        }
    };
    for index in order {
        close(&mut open, &mut now, events[index].start);
        now = now.max(events[index].start);
        open.push(index);
    }
    close(&mut open, &mut now, i128::MAX);
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts events with these starts and ends into slices: index, start, end, and true if the slice
    /// covers its whole event.
    fn cut_spans_into_slices(times: &[(i128, i128)]) -> Vec<(usize, i128, i128, bool)> {
        let event = |&(start, end): &(i128, i128)| ProfileEvent::with_start_and_end(start, end);
        cut_into_slices(&times.iter().map(event).collect::<Vec<_>>())
    }

    #[test]
    fn events_that_follow_one_another_stay_whole() {
        let cut = cut_spans_into_slices(&[(0, 3), (3, 5), (9, 10)]);
        assert_eq!(cut, [(0, 0, 3, true), (1, 3, 5, true), (2, 9, 10, true)]);
    }

    #[test]
    fn nested_events_cut_those_around_them() {
        // The event from 0 to 10 encloses two others: one from 2 to 4, which itself encloses an event from 3 to 4, and
        // one from 6 to 7.
        let cut = cut_spans_into_slices(&[(0, 10), (2, 4), (3, 4), (6, 7)]);
        let expected = [
            (0, 0, 2, false),
            (1, 2, 3, false),
            (2, 3, 4, true),
            (0, 4, 6, false),
            (3, 6, 7, true),
            (0, 7, 10, false),
        ];
        assert_eq!(cut, expected);
    }

    #[test]
    fn events_that_overlap_keep_their_union() {
        // The event from 3 to 8 interrupts the event from 0 to 5, which does not resume afterwards.
        // Equal events count once.
        assert_eq!(
            cut_spans_into_slices(&[(0, 5), (3, 8)]),
            [(0, 0, 3, false), (1, 3, 8, true)]
        );
        assert_eq!(cut_spans_into_slices(&[(0, 5), (0, 5)]), [(1, 0, 5, true)]);
        let length = |cut: Vec<(usize, i128, i128, bool)>| -> i128 {
            assert!(cut.windows(2).all(|pair| pair[0].2 <= pair[1].1), "{cut:?}");
            cut.iter().map(|(_, start, end, _)| end - start).sum()
        };
        // The union of 0 to 9, 4 to 12, 5 to 6 and 20 to 21 is 13 long.
        assert_eq!(
            length(cut_spans_into_slices(&[(4, 12), (0, 9), (20, 21), (5, 6)])),
            13
        );
    }

    #[test]
    fn streams_have_the_numbers_of_their_names() {
        assert_eq!(stream_number("Stream #17(Kernel)"), Some(17));
        assert_eq!(stream_number("Stream #8"), Some(8));
        assert_eq!(stream_number("Stream #x"), None);
        assert_eq!(stream_number("XLA Ops"), None);
    }
}
