//! Converts profiles of JAX and TensorFlow to one trace per device. Each host has one `xplane.pb`
//! file.
//!
//! A file is an `XSpace` of planes. Each device has a plane with one line per stream. One more plane contains the
//! host's threads, and another the compiled programs (`HloProto`). Fields follow the public `xplane.proto` and
//! `hlo.proto`. Each profile file is stored once in memory, and events borrow from its contents.
//!
//! - `space` parses planes, lines, events and stats;
//! - `timeline` finds the time slices of a device's streams, and the host calls that launched them;
//! - `hlo` finds the programs' collectives and the groups of devices that take part in them;
//! - `calls` matches collectives across devices;
//! - `emit` writes the nodes of the traces.

use chakram_trace::format::file::{DecompressedStream, read_bytes_within_memory_limit};
use chakram_trace::format::write::TraceWriter;
use chakram_trace::format::{TraceError, TraceErrorLocation};
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

mod calls;
mod emit;
mod files;
mod hlo;
mod space;
mod timeline;

pub use files::{begins_as_xplane, find_profiles};

use calls::MatchedAndUnmatchedCollectives;
use hlo::HloModules;
use space::HostProfilePlanes;
use timeline::{DeviceTimeline, LaunchingHostCalls};

/// A profile's path and its contents.
#[derive(Debug)]
pub struct DecompressedXplaneFile {
    /// Path of the file, for error messages.
    pub path: PathBuf,
    /// Decompressed contents.
    pub contents: Vec<u8>,
}

impl DecompressedXplaneFile {
    /// Reads a file, which may be compressed with gzip or zstd.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read or exceeds the memory limit.
    pub fn open_file(path: &Path) -> Result<Self, TraceError> {
        let contents = DecompressedStream::open_path(path)
            .map(|stream| read_bytes_within_memory_limit(stream, 0))?;
        Ok(Self {
            path: path.to_owned(),
            contents: contents.map_err(|source| TraceError::from_io(path, "read", source))?,
        })
    }
}

/// Facts about the conversion of one device.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DeviceConversionSummary {
    /// Rank of the device's trace.
    pub rank: u32,
    /// Name of the device's plane.
    pub device: String,
    /// Number of events with a duration on the device's streams.
    pub events: u64,
    /// Busy time of the device's streams, in ns, summed over streams.
    pub busy_ns: u64,
    /// Busy time that the trace's nodes preserve, in ns: kernels, and collectives with their waiting time.
    pub kept_ns: u64,
    /// Number of host calls that launched events of this device.
    pub launches: u64,
    /// Number of events whose launching call is known.
    pub linked: u64,
    /// Number of events that begin earlier than the call that launches them. They keep their times, but are not linked
    /// to the call.
    pub early: u64,
    /// Number of collectives that were matched across devices.
    pub collectives: u64,
    /// Number of unmatched communication events, which become kernels with their recorded times.
    pub unmatched: u64,
    /// Number of nodes in the trace.
    pub nodes: u64,
}

/// Facts about the conversion of a job.
#[derive(Clone, Debug, Default, Serialize)]
pub struct XplaneConversionSummary {
    /// Time from the first event's start to the last event's end, in ns.
    pub span_ns: u64,
    /// Devices, sorted by rank.
    pub devices: Vec<DeviceConversionSummary>,
    /// Planes and lines that were skipped, each with its number of events. They repeat other planes or lines, or are
    /// not streams.
    pub left_out: Vec<(String, u64)>,
}

/// Profiles of a job's hosts, ready for conversion.
#[derive(Debug)]
pub struct XplaneJob<'a> {
    devices: Vec<DeviceTimeline<'a>>,
    calls: MatchedAndUnmatchedCollectives,
    /// Start of the first event, in ps.
    base: i128,
    summary: XplaneConversionSummary,
}

impl<'a> XplaneJob<'a> {
    /// Reads the profiles of a job's hosts. Devices are numbered host by host, in the order of `files`.
    ///
    /// # Errors
    ///
    /// Fails if a file's bytes are not an `XSpace`, or if a file has no device events.
    pub fn new(files: &'a [DecompressedXplaneFile]) -> Result<Self, TraceError> {
        let mut devices = Vec::new();
        let mut modules = HloModules::default();
        let mut left_out = Vec::new();
        for file in files {
            let named = |error: TraceError| error.in_file(&file.path);
            let space = HostProfilePlanes::parse(&file.contents).map_err(named)?;
            let hosts = LaunchingHostCalls::new(&space).map_err(named)?;
            let first = devices.len() as u64;
            modules.begin_file(first);
            modules.read_programs(&space).map_err(named)?;
            let own = timeline::read_devices(
                space,
                hosts,
                first,
                modules.index_of_file_being_read(),
                &mut left_out,
            );
            devices.extend(own.map_err(named)?);
        }
        let starts = devices.iter().filter_map(DeviceTimeline::first_start);
        let Some(base) = starts.min() else {
            let place = TraceErrorLocation {
                file: files.first().map(|file| file.path.clone()),
                ..TraceErrorLocation::default()
            };
            return Err(TraceError::invalid_at(
                place,
                "a profile without an event on a device",
                "a profile of a run on GPUs or TPUs, taken with jax.profiler or tf.profiler",
            ));
        };
        let ends = devices.iter().filter_map(DeviceTimeline::last_end);
        let end = ends.max().unwrap_or(base);
        if end - base > i128::from(u64::MAX / 2) {
            let days = (end - base) / (86_400 * 1_000_000_000_000);
            return Err(TraceError::invalid_at(
                TraceErrorLocation::default(),
                format!("the first event begins {days} days before the last one ends"),
                "profiles of a single run",
            ));
        }
        let calls = MatchedAndUnmatchedCollectives::new(&devices, &modules);
        Ok(Self {
            devices,
            calls,
            base,
            summary: XplaneConversionSummary {
                span_ns: ns_since(end, base),
                devices: Vec::new(),
                left_out,
            },
        })
    }

    /// Returns the number of ranks.
    pub fn rank_count(&self) -> u32 {
        self.devices.len() as u32
    }

    /// Writes the trace of `rank`, and adds its device to the summary. Must be called in rank
    /// order.
    ///
    /// # Errors
    ///
    /// Fails if writing to `out` fails.
    pub fn write_rank<W: Write>(&mut self, rank: u32, out: W) -> Result<W, TraceError> {
        let device = &self.devices[rank as usize];
        let io = |source: io::Error| TraceError::from_io("", "write", source);
        let lanes = device.lane_names();
        let end = device.last_end().map_or(0, |end| ns_since(end, self.base));
        let metadata = emit::metadata_attributes(rank, self.rank_count(), end, &lanes);
        let mut writer = TraceWriter::start_with_metadata(out, &metadata).map_err(io)?;
        let written = emit::write_device_nodes(device, rank, &self.calls, self.base, &mut writer)?;
        self.summary.devices.push(written);
        Ok(writer.into_unflushed_sink())
    }

    /// Returns the summary of the ranks written so far.
    pub fn summary(&self) -> &XplaneConversionSummary {
        &self.summary
    }
}

/// Returns the time from `base` to a later instant, in ns; both arguments are in ps. Both instants
/// are rounded down, so that adjacent intervals stay adjacent.
fn ns_since(instant: i128, base: i128) -> u64 {
    ((instant - base) / 1000) as u64
}
