//! Fuzz targets for all sources except PyTorch. Every target must reject arbitrary bytes or convert
//! them to valid traces.

use chakram_converters::goal::{GoalRankProgram, GoalSchedule};
use chakram_converters::nsys;
use chakram_converters::pytorch::ConvertOptions;
use chakram_converters::simai::{RankGroupGrid, SimaiWorkload};
use chakram_converters::text_workload::TextWorkload;
use chakram_converters::xplane::{DecompressedXplaneFile, XplaneJob, begins_as_xplane};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::file::DecompressedTraceFile;
use chakram_trace::graph::{EnforcedDependencyKinds, Graph};
use std::path::PathBuf;

/// Converts arbitrary bytes. The converter must reject the bytes, or convert them to traces with the expected number of
/// nodes.
pub fn text_workload(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(workload) = TextWorkload::parse(text) else {
        return;
    };
    assert!(TextWorkload::begins_as_text_workload(data));
    for rank in [0, 3] {
        let mut trace = Vec::new();
        workload
            .write_rank(rank, 2, &mut trace)
            .expect("memory takes everything");
        let (graph, _) =
            Graph::read_graph(&trace, rank, EnforcedDependencyKinds::Both).expect("it is sound");
        assert_eq!(graph.nodes().len() as u64, 2 * workload.nodes_per_pass());
    }
}

/// Converts arbitrary bytes. The converter must reject the bytes, or convert them to traces that preserve the devices'
/// time.
pub fn check_xplane_conversion(data: &[u8]) {
    let _ = begins_as_xplane(data);
    let files = [DecompressedXplaneFile {
        path: PathBuf::from("profile"),
        contents: data.to_vec(),
    }];
    let Ok(mut job) = XplaneJob::new(&files) else {
        return;
    };
    for rank in 0..job.rank_count() {
        let Ok(trace) = job.write_rank(rank, Vec::new()) else {
            return;
        };
        Graph::read_graph(&trace, rank, EnforcedDependencyKinds::Both).expect("it is sound");
        let device = job.summary().devices.last().expect("it was written");
        assert_eq!(device.busy_ns, device.kept_ns);
        assert!(device.linked <= device.events);
    }
}

/// Converts arbitrary bytes. The converter must reject the bytes, or convert them to valid traces.
pub fn check_nsys_rejects_or_converts_validly(data: &[u8]) {
    // Several threads of a process may run this function concurrently, so each thread writes its
    // own file.
    let thread = format!("{:?}", std::thread::current().id());
    let number: String = thread.chars().filter(char::is_ascii_digit).collect();
    let name = format!("chakram-nsys-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).expect("there is room");
    let export = folder.join("report.sqlite");
    std::fs::write(&export, data).expect("there is room");
    let trace = |rank: u32| folder.join(format!("job.{rank}.et"));
    let mut files = OutputsAndProtectedInputs::default();
    let converted =
        nsys::convert_exports(&[export], &ConvertOptions::default(), &trace, &mut files);
    if let Ok((summary, written)) = converted {
        files.commit_all().expect("there is room");
        assert_eq!(summary.processes.len(), written.len());
        for (rank, _) in &written {
            let contents = DecompressedTraceFile::open_as_current_schema(&trace(*rank))
                .expect("it was written");
            Graph::read_graph(contents.as_slice(), *rank, EnforcedDependencyKinds::Both)
                .expect("it is sound");
        }
    }
    std::fs::remove_dir_all(&folder).expect("it is there");
}

/// Converts arbitrary bytes. The parser must reject the bytes, or return a schedule. Writing the schedule as text and
/// parsing it must return the same schedule. The traces must have one node per operation. Converting the traces back
/// must produce the same schedule, with resolved begin-dependencies and separate delays.
pub fn check_goal_round_trip(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(schedule) = GoalSchedule::parse(text) else {
        return;
    };
    assert!(GoalSchedule::begins_as_goal(data) || text.len() > 1 << 15);
    let programs = (0..).zip(&schedule.programs).map(|(rank, program)| {
        let (trace, nodes) = schedule.write_rank_as_trace(rank, Vec::new()).ok()?;
        let (graph, binding) =
            Graph::read_graph(&trace, rank, EnforcedDependencyKinds::Both).expect("it is sound");
        assert_eq!(graph.nodes().len() as u64, nodes);
        assert_eq!(nodes, program.operations.len().max(1) as u64);
        Some(
            GoalRankProgram::from_graph(&graph, &binding.peers)
                .expect("it has times and no collectives"),
        )
    });
    // Operations whose dependencies form a cycle have no valid trace.
    let Some(programs) = programs.collect::<Option<Vec<_>>>() else {
        return;
    };
    let written = GoalSchedule { programs };
    let again = GoalSchedule::parse(&written.to_string()).expect("it was written");
    assert_eq!(again.to_string(), written.to_string());
    assert!(again.operation_count() >= schedule.operation_count());
}

/// Converts arbitrary bytes. The converter must reject the bytes, or convert them to traces with the same number of
/// nodes on every rank.
pub fn check_simai_conversion_of_any_bytes(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(workload) = SimaiWorkload::parse(text) else {
        return;
    };
    assert!(SimaiWorkload::begins_as_simai(data));
    let npus = workload.npus.unwrap_or(16);
    let Ok(grid) = RankGroupGrid::new(&workload, npus) else {
        return;
    };
    if npus > 1 << 12 {
        return;
    }
    let mut nodes = None;
    for rank in [0, npus - 1] {
        let written = workload.write_rank(&grid, rank, 2, Vec::new());
        let (trace, count) = written.expect("memory takes everything");
        let (graph, _) =
            Graph::read_graph(&trace, rank, EnforcedDependencyKinds::Both).expect("it is sound");
        assert_eq!(graph.nodes().len() as u64, count);
        assert_eq!(*nodes.get_or_insert(count), count);
    }
}
