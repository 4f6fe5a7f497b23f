//! Tests that files of different runs, ranks and processes are rejected with both names, that other files in a
//! capture's folder are ignored, and that impossible records are dropped and counted.

use super::rig::{convert_folder, try_convert, write_generated_capture};
use chakram::convert::{
    ConvertOptions as Conversion, KinetoTrace, RankHostAndKineto, convert_in_memory_captures,
};
use std::path::Path;
use testkit::capture::handwritten::{
    HandwrittenEvent, HandwrittenRank, create_all_reduce_operator_and_annotation,
    create_handwritten_event, create_operator_event, create_single_rank,
};
use testkit::capture::{Device, JobParallelism, Options};

fn generate_ddp_capture(seed: u64) -> super::rig::JobCaptureFiles {
    write_generated_capture(&Options {
        seed,
        layers: 2,
        ..Options::new(Device::Cpu, JobParallelism::Ddp, 2)
    })
}

fn check_conversion_error(folder: &Path, parts: &[&str]) {
    let converted = try_convert(&[folder.to_owned()], &Conversion::default());
    let text = converted.err().expect("it is refused").to_string();
    println!("{text}\n");
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

fn copy_file_as(from: &Path, name: &str, to: &Path, as_name: &str) {
    std::fs::copy(from.join(name), to.join(as_name)).unwrap();
}

/// Replaces every occurrence of a text in the file by another text.
fn replace_in_file(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{} has no {from}", path.display());
    std::fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn swapped_host_traces_are_refused() {
    let job = generate_ddp_capture(0);
    let (from, swapped) = (job.folder.path(), tempfile::tempdir().unwrap());
    for (name, as_name) in [
        ("host.0.json", "host.1.json"),
        ("host.1.json", "host.0.json"),
        ("kineto.0.json", "kineto.0.json"),
        ("kineto.1.json", "kineto.1.json"),
    ] {
        copy_file_as(from, name, swapped.path(), as_name);
    }
    check_conversion_error(swapped.path(), &["kineto.0.json", "of process", "swapped"]);
}

/// Returns a job of two ranks with one collective; rank 1 starts `apart` ns later.
fn build_two_rank_capture_texts(apart: i64, host_names: [&str; 2]) -> [(String, String); 2] {
    [0, 1].map(|rank| {
        let start = 1_000_000 + i64::from(rank) * apart;
        let [asks, flight] = create_all_reduce_operator_and_annotation(true, 20, start, 500_000, 2);
        let events = [
            create_operator_event("a", start - 1000, 500, 1),
            asks,
            flight,
            create_operator_event("b", start + 900_000, 10, 9),
        ];
        let rank = HandwrittenRank {
            rank,
            world: 2,
            groups: &[("0", &[0, 1])],
            events: &events,
        };
        let named = format!(
            "\"host_name\": \"{}\", \"traceEvents\"",
            host_names[rank.rank as usize]
        );
        (
            rank.render_host_json(),
            rank.render_kineto_json()
                .replacen("\"traceEvents\"", &named, 1),
        )
    })
}

fn convert_in_memory_discarding_traces(files: &[(String, String)]) -> Result<(), String> {
    let files: Vec<RankHostAndKineto<'_>> = (0..)
        .zip(files)
        .map(|(rank, (host, kineto))| (rank, Some(host.as_bytes()), Some(kineto.as_bytes())))
        .collect();
    let made = convert_in_memory_captures(&files, &Conversion::default());
    made.map(drop).map_err(|error| error.to_string())
}

/// Ranks that were not profiled at the same time are from two runs, whether they share a host or are on hosts whose
/// clocks differ more than real clocks.
#[test]
fn ranks_of_different_runs_are_refused() {
    let second = 1_000_000_000;
    for (apart, hosts, refused) in [
        (100_000, ["a", "a"], false),
        (2 * second, ["a", "a"], true),
        (2 * second, ["a", "b"], false),
        (133 * second, ["a", "b"], true),
    ] {
        let found =
            convert_in_memory_discarding_traces(&build_two_rank_capture_texts(apart, hosts));
        assert_eq!(found.is_err(), refused, "{apart} {hosts:?}: {found:?}");
        if let Err(text) = found {
            assert!(
                text.contains("different runs") && text.contains("rank 1 begins"),
                "{text}"
            );
        }
    }
}

#[test]
fn ranks_that_state_different_or_absurd_job_sizes_are_refused() {
    let job = generate_ddp_capture(0);
    let path = job.folder.path().join("kineto.1.json");
    replace_in_file(&path, "\"world_size\": 2", "\"world_size\": 4");
    check_conversion_error(
        job.folder.path(),
        &[
            "kineto.1.json",
            "a job of 4 ranks",
            "kineto.0.json",
            "a job of 2 ranks",
        ],
    );
    replace_in_file(&path, "\"world_size\": 4", "\"world_size\": 4000000000");
    replace_in_file(
        &job.folder.path().join("kineto.0.json"),
        "\"world_size\": 2",
        "\"world_size\": 4000000000",
    );
    check_conversion_error(job.folder.path(), &["4000000000 ranks", "at most 1048576"]);
}

/// Captures of another process in the folder change nothing. If the processes cannot be
/// distinguished, the error says so.
#[test]
fn kineto_traces_of_another_run_are_left_aside() {
    let (one, other) = (generate_ddp_capture(0), generate_ddp_capture(7));
    let folder = one.folder.path();
    let first = convert_folder(folder);
    for rank in 0..2 {
        let (name, aside) = (
            format!("kineto.{rank}.json"),
            format!("kineto_only.{rank}.json"),
        );
        copy_file_as(other.folder.path(), &name, folder, &aside);
        // Process ids of another run are different.
        let pid = 2000 + rank;
        let path = folder.join(&aside);
        let text = std::fs::read_to_string(&path).unwrap();
        let at = text.find("\"pid\": ").unwrap() + 7;
        let own = &text[at..at + text[at..].find(',').unwrap()];
        std::fs::write(
            &path,
            text.replace(&format!("\"pid\": {own},"), &format!("\"pid\": {pid},")),
        )
        .unwrap();
    }
    assert_eq!(convert_folder(folder).traces, first.traces);
    for rank in 0..2 {
        std::fs::remove_file(folder.join(format!("host.{rank}.json"))).unwrap();
    }
    check_conversion_error(folder, &["states that it is of rank 0", "each rank once"]);
}

/// Windows of the same size begin at different calls. The windows are aligned because collectives
/// end together.
#[test]
fn windows_that_open_at_different_calls_are_aligned() {
    let rank = |rank: u32, calls: std::ops::Range<i64>| {
        let events = calls.flat_map(|call| {
            let start = 1_000_000 + call * 10_000_000 + i64::from(rank) * 20_000;
            let ns = 500_000 - u64::from(rank) * 20_000;
            let id = 10 + call as u64 * 4;
            let [asks, flight] = create_all_reduce_operator_and_annotation(true, 20, start, ns, id);
            [
                asks,
                flight,
                create_operator_event("b", start + 600_000, 10, id + 2),
            ]
        });
        let events: Vec<HandwrittenEvent> = events.collect();
        let rank = HandwrittenRank {
            rank,
            world: 2,
            groups: &[("0", &[0, 1])],
            events: &events,
        };
        (rank.render_host_json(), rank.render_kineto_json())
    };
    let whole = [rank(0, 0..6), rank(1, 0..6)];
    let cut = [rank(0, 1..6), rank(1, 0..4)];
    let convert = |files: &[(String, String)]| {
        let files = (0..).zip(files);
        let files = files
            .map(|(rank, (host, kineto))| (rank, Some(host.as_bytes()), Some(kineto.as_bytes())));
        let files: Vec<RankHostAndKineto<'_>> = files.collect();
        let (_, summary) = convert_in_memory_captures(&files, &Conversion::default()).unwrap();
        let waits: Vec<u64> = summary.ranks.iter().map(|rank| rank.wait_ns).collect();
        let alone: u64 = summary.alone.values().sum();
        (summary.collectives["all-reduce"], waits, alone)
    };
    // Rank 1 is always 20 us late.
    assert_eq!(convert(&whole), (6, vec![120_000, 0], 0));
    assert_eq!(convert(&cut), (3, vec![60_000, 0], 3));
}

/// If ranks split a group, every part has the whole group's name, so its members identify it.
#[test]
fn parts_of_a_split_share_a_name() {
    for (device, style) in [
        (Device::Cuda, JobParallelism::Ddp),
        (Device::Cpu, JobParallelism::Functional),
    ] {
        let options = Options {
            tensor_parallel: 2,
            ..Options::new(device, style, 4)
        };
        let job = write_generated_capture(&options);
        let folder = job.folder.path();
        let first = convert_folder(folder);
        // Groups 1 and 2 are ranks 0 and 1, and ranks 2 and 3.
        for file in [
            "host.2.json",
            "kineto.2.json",
            "host.3.json",
            "kineto.3.json",
        ] {
            let path = folder.join(file);
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text
                .replace("\"2\"", "\"1\"")
                .replace("\\\"2\\\"", "\\\"1\\\"");
            std::fs::write(&path, text).unwrap();
        }
        let split = convert_folder(folder);
        let groups = |job: &super::rig::ConversionResult| {
            let groups = job.summary.groups.iter();
            let mut groups: Vec<_> = groups.map(|g| (g.ranks.clone(), g.collectives)).collect();
            groups.sort();
            groups
        };
        assert_eq!(groups(&split), groups(&first));
        let names = split.summary.groups.iter().map(|group| &*group.name);
        let names: Vec<&str> = names.collect();
        assert!(names.contains(&"1") && names.contains(&"1@2"), "{names:?}");
    }
}

/// Files have the profiler's names, with process and time. The ranks come from the contents of the files, in folders or
/// next to one another.
#[test]
fn files_that_the_profiler_named_are_of_the_ranks_that_they_say() {
    let job = generate_ddp_capture(0);
    let from = job.folder.path();
    let first = convert_folder(from);
    let pid = |name: &str| {
        let text = std::fs::read_to_string(from.join(name)).unwrap();
        let at = text.find("\"pid\": ").unwrap() + 7;
        text[at..at + text[at..].find(',').unwrap()].to_owned()
    };
    let named = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        let (host, kineto) = (format!("host.{rank}.json"), format!("kineto.{rank}.json"));
        let pid = pid(&kineto);
        copy_file_as(
            from,
            &host,
            named.path(),
            &format!("et_{}.json", ["b", "a"][rank]),
        );
        let name = format!("node-07_{pid}.1694128201123456789.pt.trace.json");
        copy_file_as(from, &kineto, named.path(), &name);
    }
    assert_eq!(convert_folder(named.path()).traces, first.traces);
    let folders = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        let folder = folders.path().join(format!("rank{rank}"));
        std::fs::create_dir(&folder).unwrap();
        copy_file_as(from, &format!("host.{rank}.json"), &folder, "et.json");
        copy_file_as(from, &format!("kineto.{rank}.json"), &folder, "trace.json");
    }
    assert_eq!(convert_folder(folders.path()).traces, first.traces);
    // A process id is not a rank, so a single file is rank 0.
    let alone = tempfile::tempdir().unwrap();
    let name = format!(
        "node_{}.1694128201123456789.pt.trace.json",
        pid("kineto.1.json")
    );
    copy_file_as(from, "kineto.1.json", alone.path(), &name);
    let path = alone.path().join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("\"distributedInfo\"", "\"nobody\"", 1)).unwrap();
    let job = convert_folder(alone.path());
    assert_eq!((job.traces[0].rank, job.summary.world), (0, 1));
}

/// One event long before the profiler's span would make the job two months long.
#[test]
fn events_outside_the_profilers_span_are_dropped() {
    let events = [
        create_operator_event("a", 1_000, 500, 1),
        create_operator_event("b", 2_000, 500, 2),
    ];
    let strange = [
        create_operator_event("a", 1_000, 500, 1),
        create_operator_event("b", 2_000, 500, 2),
        create_operator_event("c", -900_000_000_000, 5, 3),
    ];
    let spanned = |events: &[HandwrittenEvent]| {
        let mut events = events.to_vec();
        events.push(create_handwritten_event(
            "Trace",
            "PyTorch Profiler (0)",
            9,
            0,
            10_000,
            0,
        ));
        let text = create_single_rank(&events).render_kineto_json();
        text.replace(
            "\"baseTimeNanoseconds\": 1000000000",
            "\"baseTimeNanoseconds\": 4000000000000",
        )
    };
    let read =
        |events: &[HandwrittenEvent]| KinetoTrace::from_bytes(spanned(events).as_bytes()).unwrap();
    assert_eq!(read(&events).outside, 0);
    let found = read(&strange);
    assert_eq!((found.outside, found.events.len()), (1, 2));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("trace.json"), spanned(&strange)).unwrap();
    let job = convert_folder(folder.path());
    assert_eq!(job.traces[0].captured_ns(), 1_500);
    let dropped = &job.summary.ranks[0].events_left_out;
    assert!(
        dropped.contains(&("outside the profiler's span".to_owned(), 1)),
        "{dropped:?}"
    );
}

/// The files are encoded as editors save them, and the event categories are from 2021.
#[test]
fn other_encodings_and_old_categories_are_read() {
    let events = [
        create_operator_event("a", 1_000, 500, 1),
        create_operator_event("b", 2_000, 500, 2),
    ];
    let text = create_single_rank(&events).render_kineto_json();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let traces = |bytes: Vec<u8>| {
        std::fs::write(&path, bytes).unwrap();
        convert_folder(folder.path()).traces
    };
    let first = traces(text.clone().into_bytes());
    let marked = [b"\xef\xbb\xbf", text.as_bytes()].concat();
    assert_eq!(traces(marked), first);
    let words = || std::iter::once(0xfeff).chain(text.encode_utf16());
    assert_eq!(traces(words().flat_map(u16::to_le_bytes).collect()), first);
    assert_eq!(traces(words().flat_map(u16::to_be_bytes).collect()), first);
    let old = text.replace("\"cpu_op\"", "\"Operator\"");
    assert_eq!(traces(old.into_bytes()), first);
}

/// A version number in a file name is not a rank.
#[test]
fn versions_in_names_are_no_ranks() {
    let events = [create_operator_event("a", 1_000, 500, 1)];
    let folder = tempfile::tempdir().unwrap();
    let rank = create_single_rank(&events);
    std::fs::write(
        folder.path().join("1.0.2-chakra.0.0.4.json"),
        rank.render_host_json(),
    )
    .unwrap();
    std::fs::write(folder.path().join("trace.json"), rank.render_kineto_json()).unwrap();
    let job = convert_folder(folder.path());
    assert_eq!((job.traces.len(), job.traces[0].rank), (1, 0));
}

/// Ranks 1 and 3 exchange NCCL messages in a group that is not the group of all ranks. The records
/// contain ranks of the job.
#[test]
fn message_ends_are_job_ranks_not_group_ranks() {
    let kineto = |rank: u32, name: &str, other: &str, start: u32| {
        let args = format!(
            r#""Collective name": "{name}", "dtype": "Float", "In msg nelems": 256, "Out msg nelems": 256,
            "Group size": 2, "Process Group Name": "7", "Process Group Ranks": "[1, 3]", {other}"#
        );
        let event = |category: &str, name: &str, tid: u32, at: u32, ns: &str, args: &str| {
            format!(
                r#"{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": {}, "tid": {tid}, "ts": {at}, "dur": {ns},
                "args": {{{args}}}}}"#,
                500 + rank
            )
        };
        let launch = r#""correlation": 9, "cbid": 211"#;
        let kernel = format!(r#""correlation": 9, "stream": 20, "device": 0, {args}"#);
        let events = [
            event("cpu_op", "record_param_comms", 1, start, "20", &args),
            event(
                "cuda_runtime",
                "cudaLaunchKernelExC",
                1,
                start + 5,
                "10",
                launch,
            ),
            event(
                "kernel",
                "ncclDevKernel_SendRecv(ncclDevKernelArgs)",
                20,
                start + 30,
                "100",
                &kernel,
            ),
        ];
        format!(
            r#"{{"distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 4}},
            "traceEvents": [{}]}}"#,
            events.join(",")
        )
    };
    let send = kineto(1, "send", r#""Dst Rank": 3"#, 1_000_000_000);
    let receive = kineto(3, "recv", r#""Src Rank": 1"#, 1_000_000_000);
    let files: [RankHostAndKineto<'_>; 2] = [
        (1, None, Some(send.as_bytes())),
        (3, None, Some(receive.as_bytes())),
    ];
    let (_, summary) = convert_in_memory_captures(&files, &Conversion::default()).unwrap();
    assert_eq!(summary.messages, 1, "{:?}", summary.alone);
}
