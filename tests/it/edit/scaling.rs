//! Compares scaled jobs with jobs that were generated at the target size.

use super::rig::{
    build_attribute, build_count_attribute, build_text_attribute, case_path, decode_trace_nodes,
    encode_trace_file, expect_chakram_error, read_job_traces,
    replay_report_json_without_job_identity, run_chakram_ok,
};
use crate::commands::run_chakram;
use chakram::internals::proto::attribute_proto::Value;
use chakram::internals::proto::{IoInfo, Node};
use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn scaling_a_generated_job_equals_generating_it_at_that_size() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let generate = |ranks: &str, to: &str| {
        let small = ["--layers", "2", "--hidden", "256", "--tokens", "128"];
        let args = ["generate", "data-parallel", "--ranks", ranks, "-o", to];
        run_chakram_ok(&[&args[..], &small].concat());
    };
    let (few, many) = (at("few"), at("many"));
    generate("4", &few);
    generate("24", &many);
    run_chakram_ok(&[
        "scale",
        &few,
        "--grid",
        "dp=4",
        "--to",
        "dp=24",
        "-o",
        &at("scaled"),
    ]);
    assert!(read_job_traces(Path::new(&at("scaled"))) == read_job_traces(Path::new(&many)));
    let machine = "dgx-h100x4";
    let makespan = |traces: &str| {
        replay_report_json_without_job_identity(traces, machine, &[])["makespan_ps"].clone()
    };
    assert_eq!(makespan(&at("scaled")), makespan(&many));
    run_chakram_ok(&[
        "scale",
        &many,
        "--grid",
        "dp=24",
        "--to",
        "dp=4",
        "-o",
        &at("back"),
    ]);
    assert!(read_job_traces(Path::new(&at("back"))) == read_job_traces(Path::new(&few)));
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::metadata(at("scaled.23.et")).unwrap();
        assert_eq!(file.nlink(), 24, "ranks that are alike share a file");
    }
}

/// Ranks that never communicate do not count as data parallelism. Only an explicit option copies such ranks, and it
/// works only for them.
#[test]
fn scaling_ranks_that_never_communicate_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    run_chakram_ok(&[
        "generate",
        "chain",
        "--ranks",
        "1",
        "--nodes",
        "10",
        "-o",
        &at("alone"),
    ]);
    run_chakram_ok(&[
        "generate",
        "collective",
        "all-reduce",
        "--ranks",
        "2",
        "--size",
        "1MB",
        "-o",
        &at("meet"),
    ]);
    for (name, grid, to, exchanges) in [
        ("alone", "dp=1", "dp=8", false),
        ("meet", "dp=2", "dp=8", true),
        // A collective of all ranks becomes a collective of all new ranks.
        ("meet", "dp=1,tp=2", "dp=4", true),
    ] {
        let out = at(&format!("{name}-{to}"));
        let args = [
            "scale",
            &at(name),
            "--grid",
            grid,
            "--to",
            to,
            "-o",
            &out,
            "--format",
            "json",
        ];
        let output = run_chakram(&args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), exchanges, "{name} {grid}: {error}");
        let said = error.contains("no collective and no message goes along `dp`: its 8 ranks");
        assert_eq!(said, !exchanges, "{name} {grid}: {error}");
        let output = run_chakram(&[&args[..], &["--side-by-side"]].concat());
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["exchanges_along"], exchanges, "{name} {grid}");
    }
}

/// Returns the trace of one rank of a job with pipeline, data and tensor parallelism, where rank =
/// (pp·D + dp)·T + tp. A group's name consists of its kind and the other coordinates.
fn build_grid_rank_trace(sizes: [u32; 3], rank: u32) -> Vec<u8> {
    let [pipeline, replicas, tensor] = sizes;
    let at = |pp: u32, dp: u32, tp: u32| (pp * replicas + dp) * tensor + tp;
    let (pp, dp, tp) = (
        rank / tensor / replicas,
        rank / tensor % replicas,
        rank % tensor,
    );
    let groups = [
        (
            format!("tp{pp}.{dp}"),
            (0..tensor).map(|t| at(pp, dp, t)).collect::<Vec<_>>(),
        ),
        (
            format!("dp{pp}.{tp}"),
            (0..replicas).map(|d| at(pp, d, tp)).collect(),
        ),
    ];
    let values: Vec<String> = groups
        .iter()
        .map(|(name, ranks)| format!(r#"{{"pg_name":"{name}","ranks":{ranks:?}}}"#))
        .collect();
    let mut list = vec![Node {
        id: 1,
        name: "## process_group:init ##".into(),
        r#type: 1,
        inputs: Some(IoInfo {
            values: format!("[{}]", values.join(",")),
            ..IoInfo::default()
        }),
        ..Node::default()
    }];
    let mut add = |kind: i32, us: u64, attr| {
        let id = list.len() as u64 + 1;
        list.push(Node {
            id,
            name: format!("n{id}"),
            r#type: kind,
            duration_micros: us,
            data_deps: if id > 2 { vec![id - 1] } else { vec![] },
            attr,
            ..Node::default()
        });
    };
    let rank_of = |name: &str, rank: u32| build_attribute(name, Value::Int32Val(rank as i32));
    if pp > 0 {
        let from = rank_of("comm_src", at(pp - 1, dp, tp));
        add(6, 0, vec![from, build_count_attribute("comm_size", 5000)]);
    }
    add(4, u64::from(10 + pp), vec![]);
    let call = |kind: u64, bytes: u64, name: &str| {
        vec![
            build_count_attribute("comm_type", kind),
            build_count_attribute("comm_size", bytes),
            build_text_attribute("pg_name", name),
        ]
    };
    add(7, 0, call(0, 40_000, &groups[0].0));
    if pp + 1 < pipeline {
        let to = rank_of("comm_dst", at(pp + 1, dp, tp));
        add(5, 0, vec![to, build_count_attribute("comm_size", 5000)]);
    }
    // The sharded weights have 240,000 B. An all-gather has the shard's size, and a reduce-scatter has the size of the
    // whole.
    add(7, 0, call(2, 240_000 / u64::from(replicas), &groups[1].0));
    add(7, 0, call(7, 240_000, &groups[1].0));
    // Messages form a ring along the replicas.
    let next = at(pp, (dp + 1) % replicas, tp);
    let last = at(pp, (dp + replicas - 1) % replicas, tp);
    if replicas > 1 {
        add(
            5,
            0,
            vec![
                rank_of("comm_dst", next),
                build_count_attribute("comm_size", 300),
            ],
        );
        add(
            6,
            0,
            vec![
                rank_of("comm_src", last),
                build_count_attribute("comm_size", 300),
            ],
        );
    }
    add(7, 0, call(0, 64, "0"));
    encode_trace_file(&list)
}

fn write_grid_job(folder: &Path, name: &str, sizes: [u32; 3]) -> String {
    for rank in 0..sizes.iter().product() {
        std::fs::write(
            folder.join(format!("{name}.{rank}.et")),
            build_grid_rank_trace(sizes, rank),
        )
        .unwrap();
    }
    folder.join(name).to_str().unwrap().to_owned()
}

/// Returns a job's nodes, with groups given by their members, not by names.
fn read_nodes_with_groups_given_by_members(prefix: &str) -> Vec<Vec<Node>> {
    let traces = read_job_traces(Path::new(prefix));
    let rank = |trace: &Vec<u8>| {
        let mut list = decode_trace_nodes(trace);
        let inputs = list[0].inputs.take().unwrap();
        let groups = chakram::internals::groups::parse_group_metadata(1, &inputs.values).unwrap();
        let groups: BTreeMap<String, Vec<u32>> = groups.into_iter().collect();
        for node in &mut list {
            for attr in node.attr.iter_mut().filter(|a| a.name == "pg_name") {
                let Some(Value::StringVal(name)) = &mut attr.value else {
                    panic!("{attr:?}")
                };
                if name != "0" {
                    *name = format!("{:?}", groups[name]);
                }
            }
        }
        list
    };
    traces.iter().map(rank).collect()
}

#[test]
fn a_scaled_grid_job_equals_one_written_at_that_size() {
    let folder = tempfile::tempdir().unwrap();
    for (i, (from, to)) in [
        ([2, 3, 2], [2, 8, 2]),
        ([2, 4, 2], [2, 3, 2]),
        ([1, 3, 4], [1, 12, 4]),
        ([2, 5, 1], [2, 4, 1]),
    ]
    .into_iter()
    .enumerate()
    {
        let small = write_grid_job(folder.path(), &format!("small{i}"), from);
        let large = write_grid_job(folder.path(), &format!("large{i}"), to);
        let scaled = folder.path().join(format!("scaled{i}"));
        let scaled = scaled.to_str().unwrap();
        let grid = format!("pp={},dp={},tp={}", from[0], from[1], from[2]);
        let wanted = format!("dp={}", to[1]);
        run_chakram_ok(&[
            "scale", &small, "--grid", &grid, "--to", &wanted, "-o", scaled,
        ]);
        assert_eq!(
            read_nodes_with_groups_given_by_members(scaled),
            read_nodes_with_groups_given_by_members(&large),
            "{from:?} to {to:?}"
        );
        let machine = "dgx-h100x8";
        let times = |traces| {
            let report = replay_report_json_without_job_identity(traces, machine, &[]);
            (report["makespan_ps"].clone(), report["messages"].clone())
        };
        assert_eq!(times(scaled), times(&large), "{from:?} to {to:?}");
    }
}

#[test]
fn captures_scale_and_replay() {
    let folder = tempfile::tempdir().unwrap();
    let capture = case_path("ddp-resnet18");
    let capture = capture.to_str().unwrap();
    for (to, ranks) in [("dp=8", 8), ("dp=1", 1), ("dp=3", 3)] {
        let scaled = folder.path().join(to);
        let scaled = scaled.to_str().unwrap();
        run_chakram_ok(&[
            "scale", capture, "--grid", "dp=2", "--to", to, "-z", "zst", "-o", scaled,
        ]);
        let report =
            replay_report_json_without_job_identity(scaled, "dgx-h100", &["--absent", "refuse"]);
        assert_eq!(report["ranks"], ranks);
        assert_eq!(report["nodes"], 2658 * ranks);
    }
}

#[test]
fn scaling_to_a_grid_that_does_not_fit_the_job_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let traces = write_grid_job(folder.path(), "t", [2, 3, 2]);
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    for (grid, to, why) in [
        (
            "pp=2,dp=3,tp=2",
            "xp=2",
            "the grid has no `xp`; expected one of pp, dp, tp",
        ),
        ("dp=3", "dp=6", "the traces are of ranks 0, 1, 2"),
        (
            "dp=12",
            "dp=24",
            "so its members among 24 ranks are unknown",
        ),
        ("tp=2,dp=6", "tp=4", "send different messages along `tp`"),
        (
            "pp=2,dp=3,tp=2",
            "pp=4",
            "send different messages along `pp`",
        ),
        ("pp=2,dp=3,tp=2", "dp=1", "a message to itself along `dp`"),
        ("dp=0", "dp=1", "is not a dimension"),
    ] {
        let error =
            expect_chakram_error(&["scale", &traces, "--grid", grid, "--to", to, "-o", out]);
        assert!(error.contains(why), "{grid} {to}: {error}");
    }
    let left = std::fs::read_dir(folder.path()).unwrap();
    assert_eq!(left.count(), 12, "nothing appears unless all ranks do");
}
