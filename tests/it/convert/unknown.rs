//! What captures leave unsaid stays unknown.

use super::rig::{convert_files, replay_files, run_program};
use crate::corpus::corpus;
use serde_json::Value;

/// Removes from Kineto's events what the profiler writes with shapes only.
fn without_shapes(trace: &mut Value) {
    for event in trace["traceEvents"]
        .as_array_mut()
        .expect("there are events")
    {
        let Some(args) = event["args"].as_object_mut() else {
            continue;
        };
        for key in [
            "Input Dims",
            "Input type",
            "Input Strides",
            "Concrete Inputs",
        ] {
            args.remove(key);
        }
    }
}

/// A capture without shapes: no network changes its collectives, which take what they took.
#[test]
fn collectives_of_unknown_size_keep_their_time() {
    let Some(captures) = corpus("captures/interventions/ddp_accum_2/A") else {
        return;
    };
    let folder = tempfile::tempdir().expect("there is room");
    let capture = folder.path().join("capture");
    std::fs::create_dir(&capture).expect("it is new");
    for rank in 0..2 {
        let file = captures.join(format!("kineto_only.{rank}.json.zst"));
        let file = std::fs::File::open(file).expect("it is there");
        let mut trace: Value =
            serde_json::from_reader(zstd::Decoder::new(file).expect("it is zstd"))
                .expect("it is JSON");
        without_shapes(&mut trace);
        let to = capture.join(format!("kineto.{rank}.json"));
        std::fs::write(to, trace.to_string()).expect("there is room");
    }
    let job = convert_files(&capture);
    let slow = folder.path().join("slow.toml");
    let machine = run_program(&["machine", "show", "dgx-h100"]);
    let slower = machine.replace("450 GB/s", "0.1 GB/s");
    assert_ne!(slower, machine);
    std::fs::write(&slow, slower).expect("there is room");
    let machines = ["dgx-h100", &slow.display().to_string()];
    let [fast, slow] = machines.map(|machine| replay_files(job.path(), &["-m", machine]));
    assert_eq!(fast["makespan_ps"], slow["makespan_ps"]);
    let row = &fast["unknown"][0];
    assert_eq!(row["what"], "communication_size");
    // Two ranks with eight all-reduces each; a barrier has no size.
    assert_eq!(row["nodes"], 16);
    assert_eq!(row["without_time"], 0);
    let makespan = fast["makespan_ps"].as_u64().expect("it is a time") as f64;
    let captured = fast["captured_ps"].as_u64().expect("it is a time") as f64;
    assert!(
        (makespan / captured - 1.0).abs() < 0.01,
        "{makespan} {captured}"
    );
}

/// All 35 kernels and copies of two ranks communicate, 100 us each. 28 say by their names what they do, and nobody says how
/// much; of 7 nothing is known. All keep their time, on any network and by any model of compute.
#[test]
fn kernels_of_communication_without_records_keep_their_time() {
    let Some(folder) = corpus("faults/unsized-collectives") else {
        return;
    };
    let job = convert_files(&folder);
    let models = [["--compute", "recorded"], ["--compute", "roofline"]];
    for compute in models {
        let options = [&["-m", "dgx-h100"], &compute[..]].concat();
        let report = replay_files(job.path(), &options);
        let row = |what: &str| {
            let rows = report["unknown"].as_array().expect("it is a list");
            let row = rows.iter().find(|row| row["what"] == what);
            let row = row.unwrap_or_else(|| panic!("nothing about {what}: {rows:?}"));
            ["nodes", "without_time", "recorded_ps"].map(|key| row[key].as_u64().expect(key))
        };
        // Of two ranks, in ps.
        assert_eq!(row("communication"), [14, 0, 14 * 100_000_000]);
        assert_eq!(row("communication_size"), [56, 0, 56 * 100_000_000]);
        for npu in report["npus"].as_array().expect("it is a list") {
            assert_eq!(npu["time_ps"]["compute"], 0);
            assert_eq!(npu["communicating_ps"], 35 * 100_000_000_u64);
        }
        assert_eq!(report["makespan_ps"], report["captured_ps"]);
    }
}
