//! Reads the processes of an Nsight Systems export. A process's events become a [`KinetoTrace`], the
//! form of PyTorch's device traces.

use super::nccl::{NcclCallOrCommInit, NcclCallOrKernelLaunch};
use super::sqlite::{SqliteDatabase, SqliteTable, SqliteValue};
use crate::comm_kernels::{CommKernelNameTable, KernelNameCommunicationHint, UserCommKernelRules};
use crate::pytorch::kineto::{
    EventCategory, KinetoEvent, KinetoTrace, KinetoTrackIdentity, NONE, SharedEventProperties,
};
use chakram_base::units::format_count_with_noun;
use chakram_trace::format::{CollectiveKind, TraceError};
use chakram_trace::graph::{DistinctKeyInterner, StringArenaInterner};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Tables of device work; an export must have at least one of these tables.
const WORK: [&str; 4] = [
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
];
/// Columns with which every row of device work begins.
const WORK_COLUMNS: [&str; 6] = [
    "start",
    "end",
    "deviceId",
    "streamId",
    "correlationId",
    "globalPid",
];
/// Advice for exports without tables of device work.
const TRACE_CUDA: &str = "profile with CUDA and NVTX: nsys profile -t cuda,nvtx COMMAND; then nsys export -t sqlite REPORT.nsys-rep";
/// Event types of NVTX push/pop ranges: 59 with plain text, 70 with any other message.
const PUSHED: [i64; 2] = [59, 70];
/// Each kind of copy, with its CUPTI number.
const COPIES: [(i64, &str); 8] = [
    (1, "Memcpy HtoD"),
    (2, "Memcpy DtoH"),
    (3, "Memcpy HtoA"),
    (4, "Memcpy AtoH"),
    (8, "Memcpy DtoD"),
    (9, "Memcpy HtoH"),
    (10, "Memcpy PtoP"),
    (11, "Memcpy Unified HtoD"),
];
/// Each kind of synchronization, with its CUPTI number and its name in Kineto.
const SYNCS: [(i64, &str); 4] = [
    (1, "Event Sync"),
    (STREAM_WAIT, "Stream Wait Event"),
    (3, "Stream Sync"),
    (4, "Context Sync"),
];
const STREAM_WAIT: i64 = 2;

/// A process of an export, with its events.
#[derive(Debug)]
pub(super) struct ProcessCapture {
    /// Process id.
    pub pid: u64,
    /// Path of the export.
    pub file: PathBuf,
    /// Events of the process.
    pub trace: KinetoTrace,
    /// Devices on which the process ran work.
    pub devices: BTreeSet<i32>,
    /// The process's communicators, each with its name, the process's rank in it, and its number of members.
    pub members: Vec<(String, u32, u32)>,
    /// NCCL calls and kernel launches of each thread, sorted by time.
    pub moments: BTreeMap<u32, Vec<(i64, NcclCallOrKernelLaunch)>>,
    details: DistinctKeyInterner<SharedEventProperties>,
    threads: BTreeMap<u64, u32>,
    streams: BTreeMap<(i32, i64), u32>,
    /// Communication kernels, keyed by correlation id. Each has the index of its event, and the operation in its name.
    kernels: BTreeMap<u64, Vec<(u32, Option<&'static str>)>>,
    /// Records of each CUDA event, keyed by event id: the correlation id and the stream of each record.
    records: BTreeMap<i64, Vec<(u64, i64)>>,
    left_out: BTreeMap<String, u64>,
}

impl ProcessCapture {
    /// Adds communication arguments to a kernel's event.
    pub fn add_arguments_to_event(&mut self, event: u32, arguments: Vec<(String, String)>) {
        let args = self.trace.args.len() as u32;
        self.trace.args.push(arguments);
        let event = &mut self.trace.events[event as usize];
        let details = SharedEventProperties {
            args,
            ..self.details.keys()[event.details as usize]
        };
        event.details = self.details.intern_key(details);
    }

    /// Finishes the process's trace; returns the file and the trace.
    pub fn finish_trace(mut self) -> (PathBuf, KinetoTrace) {
        self.trace.details = self.details.into_keys();
        self.trace.left_out = self.left_out.into_iter().collect();
        self.trace.drop_events_with_impossible_times();
        (self.file, self.trace)
    }
}

/// Returns true if the database at `path` has the tables of an Nsight Systems export.
pub(super) fn is_export(path: &Path) -> bool {
    let is_known = |database: SqliteDatabase| {
        let mut tables = WORK.iter().chain(&["NVTX_EVENTS", "StringIds"]);
        tables.any(|name| database.find_table(name).is_some())
    };
    SqliteDatabase::open_database(path).is_ok_and(is_known)
}

/// Reads the processes of the export at `path`, sorted by process id.
///
/// # Errors
///
/// Fails if the file is not an export, is damaged, or has no device work.
pub(super) fn read_process_captures(
    path: &Path,
    kernels: &UserCommKernelRules,
) -> Result<Vec<ProcessCapture>, TraceError> {
    let database = SqliteDatabase::open_database(path)?;
    if !WORK.iter().any(|name| database.find_table(name).is_some()) {
        let known = database.find_table("StringIds").is_some();
        let what = match known {
            true => "an export of Nsight Systems without device work",
            false => "a database that Nsight Systems did not export",
        };
        let found = format!("{what}: it has none of the tables {}", WORK.join(", "));
        return Err(TraceError::invalid_file(path, found, TRACE_CUDA));
    }
    let mut reader = NsysExportReader::new(&database, path, kernels)?;
    reader.read_kernels()?;
    reader.read_copies()?;
    reader.read_memory_sets()?;
    reader.read_graph_launches_as_kernels()?;
    reader.read_runtime_calls()?;
    reader.read_nvtx_ranges()?;
    reader.read_cuda_event_records()?;
    reader.read_syncs()?;
    reader.name_threads()?;
    reader.finish_into_processes_with_device_work()
}

/// State of reading an export.
struct NsysExportReader<'d> {
    database: &'d SqliteDatabase,
    path: &'d Path,
    texts: StringArenaInterner,
    /// Maps each of the export's text ids to the text's index in the trace.
    text_of: BTreeMap<i64, u32>,
    /// For each text, by index: the communication that it describes, if it is the name of a kernel.
    hints: Vec<Option<KernelNameCommunicationHint>>,
    comm_kernels: CommKernelNameTable<'d>,
    /// Start of the profiling session, in ns since 1970.
    base: i64,
    /// True if the rows of device work contain a process id.
    has_processes: bool,
    processes: BTreeMap<u64, ProcessCapture>,
}

/// Callback with which a reader processes one row.
type SqliteRowCallback<'t, R> =
    dyn FnMut(&mut R, &[SqliteValue<'_>]) -> Result<(), TraceError> + 't;

/// Fields of an event before it is added to a trace.
struct UnaddedKinetoEventFields<'e> {
    name: &'e str,
    category: EventCategory,
    start: i64,
    duration: u64,
    track: u32,
    correlation: u64,
    details: Option<SharedEventProperties>,
}

impl<'d> NsysExportReader<'d> {
    fn new(
        database: &'d SqliteDatabase,
        path: &'d Path,
        comm_kernels: &'d UserCommKernelRules,
    ) -> Result<Self, TraceError> {
        let work = WORK.iter().filter_map(|name| database.find_table(name));
        let mut this = Self {
            database,
            path,
            texts: StringArenaInterner::default(),
            text_of: BTreeMap::new(),
            hints: Vec::new(),
            comm_kernels: comm_kernels.lookup_table(),
            base: 0,
            has_processes: work.into_iter().all(|table| table.has_column("globalPid")),
            processes: BTreeMap::new(),
        };
        let (texts, text_of) = (&mut this.texts, &mut this.text_of);
        for_each_row(database, "StringIds", &["id", "value"], &mut |row| {
            if let (Some(id), Some(text)) = (row[0].to_integer(), row[1].to_text()) {
                let number = texts
                    .intern_name(&text)
                    .ok_or_else(|| too_many_records_error(path))?;
                text_of.insert(id, number);
            }
            Ok(())
        })?;
        let mut base = None;
        for_each_row(
            database,
            "TARGET_INFO_SESSION_START_TIME",
            &["utcEpochNs"],
            &mut |row| {
                base = base.or(row[0].to_integer());
                Ok(())
            },
        )?;
        // A time beyond the year 2116 must be wrong.
        this.base = base.filter(|base| (0..1 << 61).contains(base)).unwrap_or(0);
        Ok(this)
    }

    /// Calls `take` with each row of the table `name`, if it exists.
    fn for_each_row(
        &mut self,
        name: &str,
        columns: &[&str],
        take: &mut SqliteRowCallback<'_, Self>,
    ) -> Result<(), TraceError> {
        let database = self.database;
        for_each_row(database, name, columns, &mut |row| take(self, row))
    }

    /// Calls `take` with each row of the device-work table `name`, if it exists. A row contains the columns
    /// [`WORK_COLUMNS`], then `more`.
    fn for_each_work_row(
        &mut self,
        name: &str,
        more: &[&str],
        take: &mut SqliteRowCallback<'_, Self>,
    ) -> Result<(), TraceError> {
        self.for_each_row(name, &[&WORK_COLUMNS[..], more].concat(), take)
    }

    /// Returns the process to which a row belongs. The process id is in the global id's bits above the lowest 24.
    fn process_of_row(&mut self, global: SqliteValue<'_>) -> &mut ProcessCapture {
        let key = match self.has_processes {
            true => global.to_integer().map_or(0, |id| id.cast_unsigned() >> 24),
            false => 0,
        };
        let path = self.path;
        self.processes.entry(key).or_insert_with(|| ProcessCapture {
            pid: key & 0xff_ffff,
            file: path.to_owned(),
            trace: KinetoTrace::default(),
            devices: BTreeSet::new(),
            members: Vec::new(),
            moments: BTreeMap::new(),
            details: DistinctKeyInterner::default(),
            threads: BTreeMap::new(),
            streams: BTreeMap::new(),
            kernels: BTreeMap::new(),
            records: BTreeMap::new(),
            left_out: BTreeMap::new(),
        })
    }

    /// Returns when a row's event started and how long it took, by the host's clock. A row without start or duration is
    /// counted as skipped.
    fn host_start_and_duration(
        &mut self,
        row: &[SqliteValue<'_>],
        global: SqliteValue<'_>,
    ) -> Option<(i64, u64)> {
        let base = self.base;
        let span = || {
            let (start, end) = (row[0].to_integer()?, row[1].to_integer()?);
            let duration = u64::try_from(end.checked_sub(start)?).ok()?;
            Some((start.checked_add(base)?, duration))
        };
        let span = span();
        if span.is_none() {
            self.process_of_row(global).trace.untimed += 1;
        }
        span
    }

    /// Adds an event to the process `global`, and returns its index.
    fn push_event(
        &mut self,
        global: SqliteValue<'_>,
        event: UnaddedKinetoEventFields<'_>,
    ) -> Result<u32, TraceError> {
        let path = self.path;
        let process = self.process_of_row(global);
        let trace = &mut process.trace;
        let name = trace.texts.intern_name(event.name);
        let name = name.ok_or_else(|| too_many_records_error(path))?;
        let number = u32::try_from(trace.events.len()).ok();
        let number = number.filter(|number| *number < NONE);
        let number = number.ok_or_else(|| too_many_records_error(path))?;
        let details = event
            .details
            .map_or(NONE, |details| process.details.intern_key(details));
        trace.events.push(KinetoEvent {
            start_ns: event.start,
            duration_ns: event.duration,
            name,
            category: event.category,
            track: event.track,
            details,
            rf_id: 0,
            external_id: 0,
            correlation: event.correlation,
            offset: 0,
        });
        Ok(number)
    }

    /// Adds device work from a row that begins with [`WORK_COLUMNS`].
    fn add_device_work(
        &mut self,
        row: &[SqliteValue<'_>],
        name: &str,
        category: EventCategory,
        bytes: u64,
    ) -> Result<Option<u32>, TraceError> {
        let global = row[5];
        let Some((start, duration)) = self.host_start_and_duration(row, global) else {
            return Ok(None);
        };
        let device = row[2]
            .to_integer()
            .and_then(|device| i32::try_from(device).ok());
        let device = device.unwrap_or(-1);
        let stream = row[3].to_integer().unwrap_or(-1);
        let process = self.process_of_row(global);
        process.devices.insert(device);
        let tracks = &mut process.trace.tracks;
        let track = *process.streams.entry((device, stream)).or_insert_with(|| {
            append_track_and_return_index(
                tracks,
                KinetoTrackIdentity {
                    pid: format!("device {device}"),
                    tid: stream.to_string(),
                    name: format!("stream {stream}"),
                },
            )
        });
        let event = UnaddedKinetoEventFields {
            name,
            category,
            start,
            duration,
            track,
            correlation: row[4].to_unsigned_integer().unwrap_or(0),
            details: Some(build_device_stream_and_bytes_details(device, stream, bytes)),
        };
        self.push_event(global, event).map(Some)
    }

    fn text_index_of_string_id(&self, id: SqliteValue<'_>) -> Option<u32> {
        self.text_of.get(&id.to_integer()?).copied()
    }

    /// Returns the communication that the name at index `name` describes.
    fn communication_hint_of_kernel_name(&mut self, name: u32) -> KernelNameCommunicationHint {
        let index = name as usize;
        if self.hints.len() <= index {
            self.hints.resize(self.texts.len(), None);
        }
        let (texts, kernels) = (&self.texts, &self.comm_kernels);
        *self.hints[index].get_or_insert_with(|| kernels.classify_name(texts.get(name)))
    }

    fn read_kernels(&mut self) -> Result<(), TraceError> {
        let columns = ["demangledName", "shortName", "graphNodeId"];
        self.for_each_work_row(WORK[0], &columns, &mut |this, row| {
            let name = this
                .text_index_of_string_id(row[6])
                .or_else(|| this.text_index_of_string_id(row[7]));
            let shown = name
                .map_or("kernel", |name| this.texts.get(name))
                .to_owned();
            let Some(event) = this.add_device_work(row, &shown, EventCategory::Kernel, 0)? else {
                return Ok(());
            };
            let hint = name.map_or(KernelNameCommunicationHint::Nothing, |name| {
                this.communication_hint_of_kernel_name(name)
            });
            let is_of_graph = row[8].to_unsigned_integer().is_some_and(|node| node > 0);
            if let (KernelNameCommunicationHint::Communicates(kind), false) = (hint, is_of_graph)
                && let Some(correlation) = row[4].to_unsigned_integer()
            {
                let kind = kind.and_then(pytorch_record_name_of_collective);
                let process = this.process_of_row(row[5]);
                let kernels = process.kernels.entry(correlation).or_default();
                kernels.push((event, kind));
            }
            Ok(())
        })
    }

    fn read_copies(&mut self) -> Result<(), TraceError> {
        let columns = ["bytes", "copyKind"];
        self.for_each_work_row(WORK[1], &columns, &mut |this, row| {
            let kind = row[7].to_integer();
            let name = COPIES.iter().find(|(number, _)| Some(*number) == kind);
            let name = name.map_or("Memcpy", |(_, name)| name);
            let bytes = row[6].to_unsigned_integer().unwrap_or(0);
            this.add_device_work(row, name, EventCategory::Copy, bytes)
                .map(drop)
        })
    }

    fn read_memory_sets(&mut self) -> Result<(), TraceError> {
        let columns = ["bytes"];
        self.for_each_work_row(WORK[2], &columns, &mut |this, row| {
            let bytes = row[6].to_unsigned_integer().unwrap_or(0);
            this.add_device_work(row, "Memset (Device)", EventCategory::Set, bytes)
                .map(drop)
        })
    }

    /// Reads launches of CUDA graphs that the profiler traced as a whole. Each becomes one kernel, on the stream that
    /// ran it.
    fn read_graph_launches_as_kernels(&mut self) -> Result<(), TraceError> {
        let columns = ["graphId"];
        self.for_each_work_row(WORK[3], &columns, &mut |this, row| {
            let name = match row[6].to_integer() {
                Some(graph) => format!("CUDA graph {graph}"),
                None => "CUDA graph".to_owned(),
            };
            this.add_device_work(row, &name, EventCategory::Kernel, 0)
                .map(drop)
        })
    }

    /// Returns the track that contains a thread's events. The thread id is in the lowest 24 bits of the thread's global
    /// id.
    fn thread_track(&mut self, global: SqliteValue<'_>) -> u32 {
        let id = global.to_integer().unwrap_or(0).cast_unsigned();
        let process = self.process_of_row(global);
        let pid = process.pid;
        let tracks = &mut process.trace.tracks;
        *process.threads.entry(id).or_insert_with(|| {
            append_track_and_return_index(
                tracks,
                KinetoTrackIdentity {
                    pid: pid.to_string(),
                    tid: (id & 0xff_ffff).to_string(),
                    name: String::new(),
                },
            )
        })
    }

    fn read_runtime_calls(&mut self) -> Result<(), TraceError> {
        let columns = ["start", "end", "globalTid", "correlationId", "nameId"];
        let mut process = None;
        self.for_each_row("CUPTI_ACTIVITY_KIND_RUNTIME", &columns, &mut |this, row| {
            let global = row[2];
            let own = global.to_integer().map(|id| id.cast_unsigned() >> 24);
            if !this.has_processes && *process.get_or_insert(own) != own {
                let found =
                    "the export covers several processes, but its kernels do not state their process";
                let hint = "export with a newer Nsight Systems, whose kernels have `globalPid`";
                return Err(TraceError::invalid_file(this.path, found, hint));
            }
            let Some((start, duration)) = this.host_start_and_duration(row, global) else {
                return Ok(());
            };
            let name = this
                .text_index_of_string_id(row[4])
                .map_or("CUDA call", |name| this.texts.get(name));
            let name = strip_api_version(name).to_owned();
            let correlation = row[3].to_unsigned_integer().unwrap_or(0);
            let track = this.thread_track(global);
            let event = UnaddedKinetoEventFields {
                name: &name,
                category: EventCategory::Runtime,
                start,
                duration,
                track,
                correlation,
                details: None,
            };
            this.push_event(global, event)?;
            let process = this.process_of_row(global);
            let kernels = process.kernels.get(&correlation).into_iter().flatten();
            let launches = kernels.map(|&(event, kind)| (start, NcclCallOrKernelLaunch::Launch(event, kind)));
            let moments = process.moments.entry(track).or_default();
            moments.extend(launches);
            Ok(())
        })
    }

    fn read_nvtx_ranges(&mut self) -> Result<(), TraceError> {
        let columns = [
            "start",
            "end",
            "globalTid",
            "eventType",
            "text",
            "textId",
            "jsonText",
            "jsonTextId",
        ];
        self.for_each_row("NVTX_EVENTS", &columns, &mut |this, row| {
            let global = row[2];
            let id_text = |this: &Self, id| {
                this.text_index_of_string_id(id)
                    .map(|text| this.texts.get(text).to_owned())
            };
            let name = row[4].to_text().map(|text| text.into_owned());
            let name = name.or_else(|| id_text(this, row[5]));
            let json = row[6].to_text().map(|text| text.into_owned());
            let json = json.or_else(|| id_text(this, row[7]));
            let Some(name) = name else {
                return Ok(());
            };
            let said = NcclCallOrCommInit::parse_range(&name, json.as_deref());
            if let Some(NcclCallOrCommInit::Member {
                communicator,
                rank,
                ranks,
            }) = &said
            {
                let members = &mut this.process_of_row(global).members;
                members.push((communicator.clone(), *rank, *ranks));
            }
            // Skip ranges that end on another thread, because they are not nested. Skip marks, because they have no
            // end.
            let kind = row[3].to_integer();
            if kind.is_some_and(|kind| !PUSHED.contains(&kind)) {
                let what = "NVTX marks, and ranges across threads".to_owned();
                *this
                    .process_of_row(global)
                    .left_out
                    .entry(what)
                    .or_default() += 1;
                return Ok(());
            }
            let Some((start, duration)) = this.host_start_and_duration(row, global) else {
                return Ok(());
            };
            let track = this.thread_track(global);
            if let Some(NcclCallOrCommInit::Call(call)) = said {
                let moments = this
                    .process_of_row(global)
                    .moments
                    .entry(track)
                    .or_default();
                moments.push((start, NcclCallOrKernelLaunch::Call(call)));
            }
            let event = UnaddedKinetoEventFields {
                name: &name,
                category: EventCategory::Annotation,
                start,
                duration,
                track,
                correlation: 0,
                details: None,
            };
            this.push_event(global, event).map(drop)
        })
    }

    /// Reads the records of the CUDA events for which streams wait.
    fn read_cuda_event_records(&mut self) -> Result<(), TraceError> {
        let columns = ["correlationId", "streamId", "eventId", "globalPid"];
        self.for_each_row(
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
            &columns,
            &mut |this, row| {
                if let (Some(correlation), Some(stream), Some(event)) = (
                    row[0].to_unsigned_integer(),
                    row[1].to_integer(),
                    row[2].to_integer(),
                ) {
                    let records = &mut this.process_of_row(row[3]).records;
                    records
                        .entry(event)
                        .or_default()
                        .push((correlation, stream));
                }
                Ok(())
            },
        )?;
        let processes = self.processes.values_mut();
        let records = processes.flat_map(|process| process.records.values_mut());
        records.for_each(|records| records.sort_unstable());
        Ok(())
    }

    fn read_syncs(&mut self) -> Result<(), TraceError> {
        let columns = ["syncType", "eventId"];
        let table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION";
        self.for_each_work_row(table, &columns, &mut |this, row| {
            let global = row[5];
            let kind = row[6].to_integer().unwrap_or(0);
            let Some((_, name)) = SYNCS.iter().find(|(number, _)| *number == kind) else {
                return Ok(());
            };
            let Some((start, duration)) = this.host_start_and_duration(row, global) else {
                return Ok(());
            };
            let correlation = row[4].to_unsigned_integer().unwrap_or(0);
            let process = this.process_of_row(global);
            let mut args = NONE;
            let records = row[7]
                .to_integer()
                .and_then(|event| process.records.get(&event));
            let record = records.and_then(|records| {
                let after = records.partition_point(|(of, _)| *of < correlation);
                records.get(after.checked_sub(1)?)
            });
            if let (STREAM_WAIT, Some((record, on))) = (kind, record) {
                args = process.trace.args.len() as u32;
                process.trace.args.push(vec![
                    ("wait_on_stream".to_owned(), on.to_string()),
                    (
                        "wait_on_cuda_event_record_corr_id".to_owned(),
                        record.to_string(),
                    ),
                ]);
            }
            let stream = row[3].to_integer().unwrap_or(-1);
            let track = this.get_or_add_sync_track_of_process(global);
            let event = UnaddedKinetoEventFields {
                name,
                category: EventCategory::Sync,
                start,
                duration,
                track,
                correlation,
                details: Some(SharedEventProperties {
                    args,
                    ..build_device_stream_and_bytes_details(-1, stream, 0)
                }),
            };
            this.push_event(global, event).map(drop)
        })
    }

    /// Returns the track for synchronizations; no work runs on this track.
    fn get_or_add_sync_track_of_process(&mut self, global: SqliteValue<'_>) -> u32 {
        let process = self.process_of_row(global);
        let tracks = &mut process.trace.tracks;
        *process.streams.entry((i32::MIN, 0)).or_insert_with(|| {
            append_track_and_return_index(
                tracks,
                KinetoTrackIdentity {
                    name: "synchronisations".to_owned(),
                    ..KinetoTrackIdentity::default()
                },
            )
        })
    }

    fn name_threads(&mut self) -> Result<(), TraceError> {
        self.for_each_row("ThreadNames", &["nameId", "globalTid"], &mut |this, row| {
            let Some(name) = this
                .text_index_of_string_id(row[0])
                .map(|name| this.texts.get(name).to_owned())
            else {
                return Ok(());
            };
            let id = row[1].to_integer().unwrap_or(0).cast_unsigned();
            let process = this.process_of_row(row[1]);
            if let Some(track) = process.threads.get(&id) {
                let track = &mut process.trace.tracks[*track as usize];
                track.name = format!("thread {} ({name})", track.tid);
            }
            Ok(())
        })
    }

    /// Returns the processes with device work.
    fn finish_into_processes_with_device_work(mut self) -> Result<Vec<ProcessCapture>, TraceError> {
        let mut devices: BTreeMap<i64, String> = BTreeMap::new();
        let mut host = None;
        let database = self.database;
        for_each_row(database, "TARGET_INFO_GPU", &["id", "name"], &mut |row| {
            if let (Some(id), Some(name)) = (row[0].to_integer(), row[1].to_text()) {
                devices.insert(id, name.into_owned());
            }
            Ok(())
        })?;
        let columns = ["name", "value"];
        for_each_row(database, "TARGET_INFO_SYSTEM_ENV", &columns, &mut |row| {
            if row[0].to_text().is_some_and(|name| name == "Hostname") {
                host = row[1].to_text().map(|text| text.into_owned());
            }
            Ok(())
        })?;
        let mut version = None;
        for_each_row(database, "META_DATA_EXPORT", &columns, &mut |row| {
            if row[0]
                .to_text()
                .is_some_and(|name| name == "EXPORT_SCHEMA_VERSION")
            {
                version = row[1].to_text().map(|text| text.into_owned());
            }
            Ok(())
        })?;
        let mut processes = std::mem::take(&mut self.processes);
        processes.retain(|_, process| !process.devices.is_empty());
        if processes.is_empty() {
            let mut rows = 0;
            for table in WORK {
                for_each_row(database, table, &["start"], &mut |_| {
                    rows += 1;
                    Ok(())
                })?;
            }
            return Err(match rows {
                0 => {
                    let found = "the tables of device work are empty";
                    TraceError::invalid_file(self.path, found, TRACE_CUDA)
                }
                _ => {
                    let found = format!(
                        "{} of device work, but none with a start and a later end",
                        format_count_with_noun(rows, "event")
                    );
                    let hint = "export the report again, or profile again if it is damaged";
                    TraceError::invalid_file(self.path, found, hint)
                }
            });
        }
        let count = processes.len() as u64;
        let processes = processes.into_values().map(|mut process| {
            process.trace.device_names = devices.values().cloned().collect();
            process.trace.host_name.clone_from(&host);
            let version = version
                .clone()
                .map(|version| ("nsys_export".to_owned(), version));
            process.trace.versions.extend(version);
            process.trace.bytes = database.file_size_in_bytes() / count;
            process.trace.source = Some("nsys");
            process
        });
        Ok(processes.collect())
    }
}

/// Calls `take` with each row of the table `name`, if it exists.
fn for_each_row(
    database: &SqliteDatabase,
    name: &str,
    columns: &[&str],
    take: &mut dyn FnMut(&[SqliteValue<'_>]) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    let table: Option<&SqliteTable> = database.find_table(name);
    table.map_or(Ok(()), |table| database.for_each_row(table, columns, take))
}

/// Adds a track, and returns its index.
fn append_track_and_return_index(
    tracks: &mut Vec<KinetoTrackIdentity>,
    track: KinetoTrackIdentity,
) -> u32 {
    tracks.push(track);
    tracks.len() as u32 - 1
}

fn too_many_records_error(path: &Path) -> TraceError {
    TraceError::invalid_file(
        path,
        "more events or names than 32-bit indices can address",
        "profile a shorter part of the run",
    )
}

fn build_device_stream_and_bytes_details(
    device: i32,
    stream: i64,
    bytes: u64,
) -> SharedEventProperties {
    SharedEventProperties {
        stream,
        device,
        bytes,
        args: NONE,
        shapes: NONE,
        types: NONE,
        values: NONE,
        bytes_in: 0,
    }
}

/// Returns the name of a call without its API version, such as `cudaLaunchKernel` for
/// `cudaLaunchKernel_v7000`.
fn strip_api_version(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((plain, version))
            if version.len() > 1 && version.bytes().all(|b| b.is_ascii_digit()) =>
        {
            plain
        }
        _ => name,
    }
}

/// Returns the name that PyTorch's records use for a collective, or `None` for kinds that have no name there.
fn pytorch_record_name_of_collective(kind: CollectiveKind) -> Option<&'static str> {
    Some(match kind {
        CollectiveKind::AllReduce => "allreduce",
        CollectiveKind::AllGather => "allgather",
        CollectiveKind::ReduceScatter => "reduce_scatter",
        CollectiveKind::Broadcast => "broadcast",
        CollectiveKind::Reduce => "reduce",
        CollectiveKind::AllToAll => "alltoall",
        _ => return None,
    })
}
