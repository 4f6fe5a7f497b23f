//! Every command that makes a job of a job carries over what its file says.

use super::{Folder, makespan};
use serde_json::Value;

fn read(folder: &Folder, name: &str) -> Value {
    serde_json::from_slice(&folder.read(name)).expect("it is JSON")
}

/// A step of two replicas of two stages of two members, with groups that have roles.
fn training(folder: &Folder) -> u64 {
    let plan = [
        "generate",
        "llama3-8b",
        "--tensor",
        "2",
        "--pipeline",
        "2",
        "--data",
        "2",
    ];
    let plan = [
        &plan[..],
        &["--batch", "8", "-o", "run/job", "-m", "dgx-h100"],
        &ROOFLINE,
    ]
    .concat();
    makespan(folder, &plan)
}

const ROOFLINE: [&str; 2] = ["--compute", "roofline"];

#[test]
fn a_job_of_a_job_is_a_job() {
    let folder = Folder::new();
    let direct = training(&folder);
    let job = read(&folder, "run/job.job.json");
    assert!(
        job["groups"]
            .as_object()
            .is_some_and(|groups| groups.len() > 2)
    );
    assert!(
        job["roles"]
            .as_str()
            .is_some_and(|roles| roles.contains("tensor"))
    );
    let replay = |prefix: &str| {
        let args = [&["replay", prefix, "-m", "dgx-h100"], &ROOFLINE[..]].concat();
        makespan(&folder, &args)
    };
    assert_eq!(replay("run"), direct);
    folder.ok(&["slice", "run", "--from", "0", "-o", "sliced/"]);
    folder.ok(&["anonymise", "run", "--key", "k", "-o", "hidden/"]);
    folder.ok(&["convert", "trace", "run", "-o", "lines/a.jsonl.zst"]);
    for made in ["sliced", "hidden", "lines"] {
        assert_eq!(replay(made), direct, "{made}");
        folder.ok(&["validate", made]);
    }
    for (name, told) in [
        ("sliced/job", true),
        ("lines/a", true),
        ("hidden/job", false),
    ] {
        let made = read(&folder, &format!("{name}.job.json"));
        assert_eq!(made["groups"], job["groups"], "{name}");
        assert_eq!(made["ranks"].as_array().unwrap().len(), 8, "{name}");
        assert_eq!(made["roles"] == job["roles"], told, "{name}");
        assert_eq!(made["machine"] == job["machine"], told, "{name}");
    }
    // In the folder and with the prefix of the job itself, the other form is no other job.
    folder.ok(&["convert", "trace", "run", "-o", "run/job.jsonl"]);
    assert_eq!(read(&folder, "run/job.job.json"), job);
    assert_eq!(replay("run"), direct);
}

/// Groups along data grow; the machine was for eight ranks.
#[test]
fn a_larger_job_has_its_own_groups_and_no_machine() {
    let folder = Folder::new();
    let generate = [
        "generate",
        "collective",
        "all-reduce",
        "--size",
        "1MB",
        "--ranks",
        "4",
    ];
    let generate = [
        &generate[..],
        &["--group", "1,0", "-m", "dgx-h100", "-o", "a/job"],
    ]
    .concat();
    folder.ok(&generate);
    folder.ok(&[
        "scale",
        "a",
        "--grid",
        "dp=2,tp=2",
        "--to",
        "dp=4",
        "-o",
        "b/",
    ]);
    let job = read(&folder, "b/job.job.json");
    assert_eq!(job["ranks"].as_array().unwrap().len(), 8);
    assert_eq!(job["machine"], Value::Null);
    assert_eq!(job["groups"], read(&folder, "b/job.groups.json"));
    folder.ok(&["replay", "b", "-m", "dgx-h100"]);
}

#[test]
fn a_capture_becomes_a_job() {
    let folder = Folder::new();
    folder.capture("cap");
    folder.ok(&["convert", "pytorch", "cap", "-o", "out/", "-z", "zst"]);
    let job = read(&folder, "out/job.job.json");
    for (rank, row) in job["ranks"].as_array().unwrap().iter().enumerate() {
        assert_eq!(row["file"], format!("job.{rank}.et.zst"));
        let file = folder.read(&format!("out/job.{rank}.et.zst"));
        assert_eq!(row["blake3"], blake3::hash(&file).to_hex().as_str());
    }
    folder.ok(&["replay", "out", "-m", "dgx-h100", "--comm", "recorded"]);
}
