//! Tests that every command that makes a job from another copies the job file's contents.

use super::{Folder, replay_makespan};
use serde_json::Value;

fn read_json_file(folder: &Folder, name: &str) -> Value {
    serde_json::from_slice(&folder.read(name)).expect("it is JSON")
}

/// Generates a training step on two replicas of two pipeline stages of two members, with groups
/// that have roles. Returns its makespan.
fn generate_training_job_and_get_makespan(folder: &Folder) -> u64 {
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
    replay_makespan(folder, &plan)
}

const ROOFLINE: [&str; 2] = ["--compute", "roofline"];

#[test]
fn a_job_derived_from_a_job_is_again_a_job() {
    let folder = Folder::new();
    let direct = generate_training_job_and_get_makespan(&folder);
    let job = read_json_file(&folder, "run/job.job.json");
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
        replay_makespan(&folder, &args)
    };
    assert_eq!(replay("run"), direct);
    folder.run_successfully_for_stdout(&["slice", "run", "--from", "0", "-o", "sliced/"]);
    folder.run_successfully_for_stdout(&["anonymise", "run", "--key", "k", "-o", "hidden/"]);
    folder.run_successfully_for_stdout(&["convert", "trace", "run", "-o", "lines/a.jsonl.zst"]);
    for made in ["sliced", "hidden", "lines"] {
        assert_eq!(replay(made), direct, "{made}");
        folder.run_successfully_for_stdout(&["validate", made]);
    }
    for name in ["sliced/job", "lines/a", "hidden/job"] {
        let made = read_json_file(&folder, &format!("{name}.job.json"));
        assert_eq!(made["groups"], job["groups"], "{name}");
        assert_eq!(made["ranks"].as_array().unwrap().len(), 8, "{name}");
        assert_eq!(made["roles"], job["roles"], "{name}");
        assert_eq!(made["machine"], job["machine"], "{name}");
    }
    // The name of the user's own machine file is not copied, and with `--all` no machine is copied.
    let machine = folder.run_successfully_for_stdout(&["machine", "show", "dgx-h100"]);
    folder.write("secret.toml", machine.as_bytes());
    let own = [
        "generate",
        "gpt2-small",
        "--batch",
        "1",
        "-m",
        "secret.toml",
        "-o",
        "own/job",
    ];
    folder.run_successfully_for_stdout(&own);
    for (job, all) in [("own", None), ("run", Some("--all"))] {
        let args = ["anonymise", job, "--key", "k", "-o", "bare/"];
        let said = folder.run_successfully_for_stderr(&[&args[..], all.as_slice()].concat());
        assert!(said.contains("replay the job with --machine"), "{said}");
        assert_eq!(
            read_json_file(&folder, "bare/job.job.json")["machine"],
            Value::Null
        );
    }
    // Traces converted to another form are the same job if they are in the job's own folder and have its prefix.
    folder.run_successfully_for_stdout(&["convert", "trace", "run", "-o", "run/job.jsonl"]);
    assert_eq!(read_json_file(&folder, "run/job.job.json"), job);
    assert_eq!(replay("run"), direct);
}

/// Groups along the data dimension grow, and so does the machine, which has eight NPUs per node.
#[test]
fn scaling_a_job_enlarges_its_groups_and_machine() {
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
    folder.run_successfully_for_stdout(&generate);
    folder.run_successfully_for_stdout(&[
        "scale",
        "a",
        "--grid",
        "dp=2,tp=2",
        "--to",
        "dp=4",
        "--side-by-side",
        "-o",
        "b/",
    ]);
    let job = read_json_file(&folder, "b/job.job.json");
    assert_eq!(job["ranks"].as_array().unwrap().len(), 8);
    assert_eq!(job["machine"], "dgx-h100");
    assert_eq!(job["groups"], read_json_file(&folder, "b/job.groups.json"));
    folder.run_successfully_for_stdout(&["replay", "b"]);
    let larger = |job: &str, to: &str| {
        let args = [
            "scale",
            job,
            "--grid",
            "dp=2,tp=2",
            "--to",
            "dp=32",
            "--side-by-side",
            "-o",
            to,
        ];
        folder.run_successfully_for_stderr(&args)
    };
    let said = larger("a", "c/");
    assert!(
        said.contains("is now dgx-h100x8, which has enough NPUs for 64 ranks"),
        "{said}"
    );
    assert_eq!(
        read_json_file(&folder, "c/job.job.json")["machine"],
        "dgx-h100x8"
    );
    folder.run_successfully_for_stdout(&["replay", "c"]);
    // A machine file does not change.
    let machine = folder.run_successfully_for_stdout(&["machine", "show", "dgx-h100"]);
    folder.write("my.toml", machine.as_bytes());
    let mut own = generate;
    let at = own.iter().position(|arg| *arg == "dgx-h100").unwrap();
    (own[at], own[at + 2]) = ("my.toml", "d/job");
    folder.run_successfully_for_stdout(&own);
    let said = larger("d", "e/");
    assert!(said.contains("is too small for 64 ranks"), "{said}");
    assert_eq!(
        read_json_file(&folder, "e/job.job.json")["machine"],
        "../my.toml"
    );
}

#[test]
fn a_capture_becomes_a_job() {
    let folder = Folder::new();
    folder.write_two_rank_cpu_capture("cap");
    folder.run_successfully_for_stdout(&["convert", "pytorch", "cap", "-o", "out/", "-z", "zst"]);
    let job = read_json_file(&folder, "out/job.job.json");
    for (rank, row) in job["ranks"].as_array().unwrap().iter().enumerate() {
        assert_eq!(row["file"], format!("job.{rank}.et.zst"));
        let file = folder.read(&format!("out/job.{rank}.et.zst"));
        assert_eq!(row["blake3"], blake3::hash(&file).to_hex().as_str());
    }
    folder.run_successfully_for_stdout(&["replay", "out", "-m", "dgx-h100", "--comm", "recorded"]);
}
