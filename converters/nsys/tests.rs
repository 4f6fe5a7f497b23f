//! Tests the conversion on generated exports with known results.

mod writer;

use super::sqlite::{SqliteDatabase, SqliteValue};
use super::{NcclOrDeviceRankSource, NsysConversionSummary, convert_exports, report};
use crate::pytorch::{ConvertOptions, EventCategory, UserCommKernelRules};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::TraceError;
use std::collections::BTreeMap;
use std::path::Path;
use writer::{SqliteWriter, WrittenSqliteValue};

/// A generator of pseudorandom numbers, with the same sequence in every run.
struct RepeatableRandomGenerator(u64);

impl RepeatableRandomGenerator {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

fn read_table_rows(
    database: &SqliteDatabase,
    table: &str,
    columns: &[&str],
) -> Result<Vec<Vec<WrittenSqliteValue>>, TraceError> {
    let mut found = Vec::new();
    let table = database.find_table(table).expect("it is there");
    database.for_each_row(table, columns, &mut |row| {
        let value = |cell: &SqliteValue<'_>| match cell {
            SqliteValue::Null => WrittenSqliteValue::Null,
            SqliteValue::Integer(number) => WrittenSqliteValue::Integer(*number),
            SqliteValue::Text(..) => WrittenSqliteValue::Text(cell.to_text().unwrap().into_owned()),
            other => panic!("{other:?} was not written"),
        };
        found.push(row.iter().map(value).collect());
        Ok(())
    })?;
    Ok(found)
}

/// Rows of all sizes, in trees with one to four levels, are read back in order. The table's definition also contains
/// comments and constraints, which must not count as columns. The row-id column is stored as null.
#[test]
fn rows_are_read_as_they_were_written() {
    let mut numbers = RepeatableRandomGenerator(7);
    for page in [512, 1024, 4096, 65536] {
        for rows in [0, 1, 40, 3000] {
            let row = |i: u64, numbers: &mut RepeatableRandomGenerator| {
                let length = match numbers.below(20) {
                    0 => numbers.below(3 * page as u64),
                    _ => numbers.below(30),
                };
                let number = (numbers.below(u64::MAX) >> numbers.below(63)).cast_signed();
                vec![
                    WrittenSqliteValue::Null,
                    if numbers.below(5) == 0 {
                        WrittenSqliteValue::Null
                    } else {
                        (-number).into()
                    },
                    WrittenSqliteValue::Text("é".repeat(length as usize / 2) + &i.to_string()),
                ]
            };
            let written: Vec<Vec<WrittenSqliteValue>> =
                (0..rows).map(|i| row(i, &mut numbers)).collect();
            let mut writer = SqliteWriter::default();
            let columns = "id INTEGER NOT NULL PRIMARY KEY, -- its id, (counted), \"from\" 1\n [odd, name] INT, \
                           text TEXT DEFAULT 'a, b', CONSTRAINT one UNIQUE (text), FOREIGN KEY(text) REFERENCES b(c)";
            writer.add_table("empty", "a INT", Vec::new());
            writer.add_table("main", columns, written.clone());
            let database = SqliteDatabase::open_from_memory(writer.encode_file(page)).unwrap();
            let read =
                read_table_rows(&database, "main", &["text", "id", "ODD, NAME", "none"]).unwrap();
            let expected = (1..).zip(&written).map(|(id, row)| {
                vec![
                    row[2].clone(),
                    WrittenSqliteValue::Integer(id),
                    row[1].clone(),
                    WrittenSqliteValue::Null,
                ]
            });
            assert_eq!(read, expected.collect::<Vec<_>>(), "{page} {rows}");
            assert_eq!(
                read_table_rows(&database, "empty", &["a"]).unwrap().len(),
                0
            );
        }
    }
}

/// Damaged files have pages that refer to themselves or beyond the end of the file, pages of an unknown type, or
/// wrong header values.
#[test]
fn damaged_database_files_fail_with_an_error() {
    let rows: Vec<Vec<WrittenSqliteValue>> = (0..400)
        .map(|i| vec![WrittenSqliteValue::Integer(i), "x".into()])
        .collect();
    let mut writer = SqliteWriter::default();
    writer.add_table("main", "a INT, b TEXT", rows);
    let file = writer.encode_file(512);
    let root = 1 + file.chunks(512).rposition(|page| page[0] == 5).unwrap();
    let said = |file: Vec<u8>| {
        let read = SqliteDatabase::open_from_memory(file)
            .and_then(|database| read_table_rows(&database, "main", &["a"]));
        read.unwrap_err().to_string()
    };
    let with = |at: usize, bytes: &[u8]| {
        let mut file = file.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let at = (root - 1) * 512;
    let last_child = |page: u32| with(at + 8, &page.to_be_bytes());
    // The tree has only 400 rows, but a cycle of pages would make the rows endless.
    for (file, expected) in [
        (last_child(root as u32), "form a cycle"),
        (last_child(9999), "a reference to page 9999"),
        (last_child(0), "a reference to page 0"),
        (
            with(at, &[2]),
            "has type 2, expected 5 (inner) or 13 (leaf)",
        ),
        (with(at + 3, &[255, 255]), "a reference to page"),
        (with(16, &[0, 3]), "pages of 3 bytes"),
        (with(28, &[0, 0, 255, 0]), "it was cut off"),
        (file[..file.len() - 512].to_vec(), "it was cut off"),
        (file[..90].to_vec(), "shorter than the header"),
        (with(0, b"no"), "not a SQLite database"),
    ] {
        let error = said(file);
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// Columns of the generated table of kernels, in arbitrary order.
const KERNEL: &str = "globalPid INT, start INT, end INT, streamId INT, deviceId INT, correlationId INT, shortName INT, demangledName INT";
const COPY: &str = "globalPid INT, start INT, end INT, streamId INT, deviceId INT, correlationId INT, bytes INT, copyKind INT";
const RUNTIME: &str = "nameId INT, start INT, end INT, globalTid INT, correlationId INT";

/// A generated export, with the results that the conversion must produce.
#[derive(Default)]
struct GeneratedExportCase {
    kernels: Vec<Vec<WrittenSqliteValue>>,
    copies: Vec<Vec<WrittenSqliteValue>>,
    calls: Vec<Vec<WrittenSqliteValue>>,
    ranges: Vec<Vec<WrittenSqliteValue>>,
    /// For each stream of each process, the intervals in which it works.
    busy: BTreeMap<(u64, i64), Vec<(i64, i64)>>,
    bytes: u64,
    sized: u64,
    unsized_calls: u64,
    dropped: u64,
}

const NAMES: [&str; 4] = [
    "gemm",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)",
    "cudaLaunchKernel_v7000",
    "cudaMemcpyAsync",
];

impl GeneratedExportCase {
    fn new(seed: u64, processes: u64, events: u64) -> Self {
        let mut numbers = RepeatableRandomGenerator(seed);
        let mut made = Self::default();
        for process in 0..processes {
            let global = ((1_u64 << 56) | ((100 + process) << 24)).cast_signed();
            let thread = global + 9;
            let mut host = 0;
            for i in 0..events {
                let correlation = WrittenSqliteValue::Integer(i as i64 + 1);
                host += 100 + numbers.below(3000) as i64;
                let (kind, stream) = (numbers.below(8), 7 + numbers.below(3) as i64);
                let name = if kind == 0 { 4 } else { 3 };
                made.calls.push(vec![
                    name.into(),
                    host.into(),
                    (host + 90).into(),
                    thread.into(),
                    correlation.clone(),
                ]);
                // Some work starts before the previous work on its stream ends.
                let start = host + 100 + numbers.below(4000) as i64;
                let end = start + numbers.below(6000) as i64;
                let busy = made.busy.entry((process, stream)).or_default();
                if kind > 0 && numbers.below(50) == 0 {
                    made.dropped += 1;
                    continue;
                }
                busy.push((start, end));
                let mut row = vec![
                    global.into(),
                    start.into(),
                    end.into(),
                    stream.into(),
                    (process as i64).into(),
                    correlation,
                ];
                if kind == 0 {
                    let bytes = numbers.below(1 << 20);
                    made.bytes += bytes;
                    row.extend([(bytes as i64).into(), 1.into()]);
                    made.copies.push(row);
                    continue;
                }
                // Only exports with one process have communication kernels, which run on the same streams as other
                // kernels.
                let comm = kind == 1 && processes == 1;
                if comm {
                    let is_sized = numbers.below(2) == 0;
                    let payload = "{\"Message size [bytes]\": 4096}".into();
                    made.ranges.push(vec![
                        (host - 5).into(),
                        (host + 95).into(),
                        thread.into(),
                        59.into(),
                        "ncclAllReduce".into(),
                        if is_sized {
                            payload
                        } else {
                            WrittenSqliteValue::Null
                        },
                    ]);
                    let count = match is_sized {
                        true => &mut made.sized,
                        false => &mut made.unsized_calls,
                    };
                    *count += 1;
                }
                row.extend([WrittenSqliteValue::Null, (if comm { 2 } else { 1 }).into()]);
                made.kernels.push(row);
            }
        }
        made
    }

    fn build_export_file(&self, page: usize) -> Vec<u8> {
        let mut writer = SqliteWriter::default();
        let names = (1..)
            .zip(NAMES)
            .map(|(id, name)| vec![WrittenSqliteValue::Integer(id), name.into()]);
        writer.add_table("StringIds", "id INT, value TEXT", names.collect());
        writer.add_table("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, self.kernels.clone());
        writer.add_table("CUPTI_ACTIVITY_KIND_MEMCPY", COPY, self.copies.clone());
        writer.add_table("CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME, self.calls.clone());
        let ranges = "start INT, end INT, globalTid INT, eventType INT, text TEXT, jsonText TEXT";
        writer.add_table("NVTX_EVENTS", ranges, self.ranges.clone());
        writer.encode_file(page)
    }

    /// Returns how long a process was busy, in ns: for each stream, the time covered by at least
    /// one interval, summed over streams.
    fn sum_busy_time_of_process(&self, process: u64) -> i64 {
        let own = self.busy.iter().filter(|((of, _), _)| *of == process);
        let union = own.map(|(_, intervals)| {
            let mut intervals = intervals.clone();
            intervals.sort_unstable();
            let (mut sum, mut until) = (0, i64::MIN);
            for (start, end) in intervals {
                sum += (end - start.max(until)).max(0);
                until = until.max(end);
            }
            sum
        });
        union.sum()
    }
}

fn convert_export_bytes(folder: &Path, file: &[u8]) -> Result<NsysConversionSummary, TraceError> {
    let path = folder.join("report.sqlite");
    std::fs::write(&path, file).unwrap();
    let mut outputs = OutputsAndProtectedInputs::default();
    let to = |rank: u32| folder.join(format!("job.{rank}.et"));
    let converted = convert_exports(&[path], &ConvertOptions::default(), &to, &mut outputs)?;
    Ok(converted.0)
}

/// The conversion loses no kernel and no bytes, and preserves each stream's busy time (the union of its intervals) to
/// the nanosecond.
#[test]
fn random_exports_convert_without_losing_kernels_bytes_or_stream_busy_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut sized = 0;
    for (seed, page) in (1..=12).zip([512, 1024, 4096, 65536].into_iter().cycle()) {
        let processes = 1 + seed % 3;
        let made = GeneratedExportCase::new(seed, processes, 200 + 40 * seed);
        let path = folder.path().join("report.sqlite");
        let file = made.build_export_file(page);
        std::fs::write(&path, &file).unwrap();
        let read = report::read_process_captures(&path, &UserCommKernelRules::default()).unwrap();
        assert_eq!(read.len() as u64, processes);
        let mut bytes = 0;
        for process in read {
            let (_, trace) = process.finish_trace();
            let copies = trace.events.iter();
            let copies = copies.filter(|event| event.category == EventCategory::Copy);
            bytes += copies
                .map(|event| trace.details_of_event(event).bytes)
                .sum::<u64>();
        }
        assert_eq!(bytes, made.bytes, "{seed}");
        let summary = convert_export_bytes(folder.path(), &file).unwrap();
        assert_eq!(summary.order, NcclOrDeviceRankSource::Devices);
        let ranks = &summary.conversion.ranks;
        let sum = |of: fn(&crate::pytorch::summary::RankConversionSummary) -> u64| -> u64 {
            ranks.iter().map(of).sum()
        };
        let work = (made.kernels.len() + made.copies.len()) as u64;
        assert_eq!(sum(|rank| rank.device), work, "{seed}");
        assert_eq!(sum(|rank| rank.unlaunched), 0, "{seed}");
        assert_eq!(sum(|rank| rank.dropped), made.dropped, "{seed}");
        for (process, rank) in (0..).zip(ranks) {
            let union = made.sum_busy_time_of_process(process);
            assert_eq!(
                rank.device_ns,
                (union as u64, union as u64),
                "{seed} {process}"
            );
        }
        assert_eq!(summary.stated, made.sized, "{seed}");
        assert_eq!(sum(|rank| rank.unsized_calls), made.unsized_calls, "{seed}");
        sized += made.sized;
    }
    assert!(sized > 50, "{sized}");
}

/// In the communicator of the two processes, the second process has rank 0, so the first trace must be that process's.
#[test]
fn ranks_are_those_of_the_largest_communicator() {
    let folder = tempfile::tempdir().unwrap();
    let mut made = GeneratedExportCase::new(5, 2, 50);
    for (process, rank) in [(0_u64, 1), (1, 0)] {
        let thread = ((1_u64 << 56) | ((100 + process) << 24)).cast_signed() + 9;
        let payload = format!(
            "{{\"NCCL communicator ID\": 7, \"No. of ranks\": 2, \"Rank\": {rank}, \"CUDA device\": 0}}"
        );
        made.ranges.push(vec![
            1.into(),
            2.into(),
            thread.into(),
            59.into(),
            "ncclCommInitRank".into(),
            payload.as_str().into(),
        ]);
    }
    let summary = convert_export_bytes(folder.path(), &made.build_export_file(1024)).unwrap();
    assert_eq!(summary.order, NcclOrDeviceRankSource::Nccl);
    let processes: Vec<u64> = summary.processes.iter().map(|(_, pid, _)| *pid).collect();
    assert_eq!(processes, [101, 100]);
    assert_eq!(summary.conversion.world, 2);
    assert_eq!(summary.conversion.groups[0].ranks, [0, 1]);
}

#[test]
fn database_without_device_work_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = SqliteWriter::default();
    writer.add_table(
        "StringIds",
        "id INT, value TEXT",
        vec![vec![1.into(), "x".into()]],
    );
    let said = |file: &[u8]| {
        convert_export_bytes(folder.path(), file)
            .unwrap_err()
            .to_string()
    };
    let error = said(&writer.encode_file(1024));
    for part in [
        "without device work",
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "nsys profile -t cuda,nvtx",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let mut other = SqliteWriter::default();
    other.add_table("users", "id INT", vec![vec![1.into()]]);
    assert!(said(&other.encode_file(1024)).contains("that Nsight Systems did not export"));
    writer.add_table("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, Vec::new());
    assert!(said(&writer.encode_file(1024)).contains("are empty"));
    let mut reversed = SqliteWriter::default();
    let times = "start INT, end INT, globalPid INT";
    let row = vec![20_000.into(), 10_000.into(), 1.into()];
    reversed.add_table("CUPTI_ACTIVITY_KIND_KERNEL", times, vec![row]);
    let error = said(&reversed.encode_file(1024));
    assert!(
        error.contains("1 event of device work, but none with a start and a later end"),
        "{error}"
    );
    // The reader rejects a database whose newest pages are in a separate log.
    let made = GeneratedExportCase::new(3, 1, 20);
    let mut file = made.build_export_file(1024);
    (file[18], file[19]) = (2, 2);
    assert!(convert_export_bytes(folder.path(), &file).is_ok());
    std::fs::write(folder.path().join("report.sqlite-wal"), b"pages").unwrap();
    let error = said(&file);
    assert!(
        error.contains("newest pages are in the write-ahead log"),
        "{error}"
    );
}
