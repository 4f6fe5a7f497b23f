//! Tests from a shell where groups are placed, what stages can hold, and which roles groups have.

use super::program::run_for_exit_and_text;
use chakram::units::Bytes;
use serde_json::Value;
use std::path::Path;

/// Two pairs of NPUs with 100 GB/s within a pair and 1 GB/s between the pairs.
const PAIRS: &str = r#"
name = "pairs"
[npu.one]
memory_bandwidth = "1000000 GB/s"
memory_latency = "0 ns"
memory_capacity = "1 GB"
lanes = 32
host_lanes = 32
[npu.one.peak]
bf16 = "1000 TFLOP/s"
[[dimension]]
name = "fast"
shape = "switch"
size = 2
bandwidth = "100 GB/s"
latency = "0 ns"
algorithm = "ring"
[[dimension]]
name = "slow"
shape = "switch"
size = 2
bandwidth = "1 GB/s"
latency = "0 ns"
algorithm = "ring"
"#;

const JOB: &str = "generate gpt2-small --tensor 2 --data 2 --batch 2 --tokens 64";

/// Writes the machine file and returns its path.
fn write_machine_file(folder: &Path) -> String {
    let path = folder.join("pairs.toml");
    std::fs::write(&path, PAIRS).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns the exit code, output and errors of `command` with the arguments `more`.
fn run_command_for_exit_and_text(command: &str, more: &[&str]) -> (i32, String, String) {
    let args: Vec<_> = command.split(' ').chain(more.iter().copied()).collect();
    run_for_exit_and_text(&args)
}

fn run_command_for_json(command: &str, more: &[&str]) -> Value {
    let (code, out, error) =
        run_command_for_exit_and_text(command, &[more, &["--format", "json"]].concat());
    assert_eq!((code, &error[..]), (0, ""));
    serde_json::from_str(&out).unwrap()
}

/// For each group, returns its role, its buffers' total bytes, and its transfer time in picoseconds.
fn list_group_roles_bytes_and_times(report: &Value) -> Vec<(String, u64, u64)> {
    let rows = report["collectives"].as_array().unwrap().iter();
    let row = |row: &Value| {
        let role = row["role"].as_str().unwrap().to_owned();
        let bytes = row["buffer_bytes"]["sum"].as_u64().unwrap();
        (role, bytes, row["transfer_ps"].as_u64().unwrap())
    };
    rows.map(row).collect()
}

/// A ring of two sends a whole buffer through each member's port, in two halves, which takes S / B.
/// A picosecond carries 0.1 B on the fast dimension and 0.001 B on the slow one.
#[test]
fn a_map_decides_which_groups_are_slow() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = write_machine_file(folder.path());
    let on = |place: &str| run_command_for_json(JOB, &["--machine", &pairs, "--place", place]);
    let makespan = |report: &Value| report["makespan_ps"].as_u64().unwrap();
    let near = on("tp@fast,dp@slow");
    let far = on("tp@slow,dp@0");
    for (report, tensor, data) in [(&near, 10, 1000), (&far, 1000, 10)] {
        let found = list_group_roles_bytes_and_times(report);
        let roles: Vec<_> = found.iter().map(|(role, ..)| &role[..]).collect();
        assert_eq!(roles.iter().filter(|role| **role == "tensor").count(), 2);
        assert_eq!(roles.iter().filter(|role| **role == "data").count(), 2);
        for (role, bytes, ps) in found {
            let per_byte = if role == "tensor" { tensor } else { data };
            assert_eq!(ps, bytes * per_byte, "{role}");
        }
    }
    assert_ne!(makespan(&near), makespan(&far));
    // Without a map, tensor groups are innermost.
    let plain = run_command_for_json(JOB, &["--machine", &pairs]);
    assert_eq!(makespan(&plain), makespan(&near));
    let order = run_command_for_json(JOB, &["--machine", &pairs, "--order", "dp,tp,pp"]);
    assert_eq!(makespan(&order), makespan(&far));
}

/// A plan file gives the same map as numbers do; a dry run shows where groups are placed.
#[test]
fn a_dry_run_says_where_groups_lie() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = write_machine_file(folder.path());
    let plan = folder.path().join("plan.toml");
    std::fs::write(&plan, "place = [\"tp@1\", \"dp:2@0\"]\n").unwrap();
    let dry = [
        "--dry-run",
        "--machine",
        &pairs,
        "--plan",
        plan.to_str().unwrap(),
    ];
    let found = run_command_for_json(JOB, &dry);
    let families = found["placement"]["families"].as_array().unwrap();
    let told: Vec<_> = families
        .iter()
        .map(|family| {
            let along = &family["along"][0];
            let name = along["name"].as_str().unwrap();
            let numbers = ["members", "size", "stride"].map(|key| along[key].as_u64().unwrap());
            assert_eq!(family["along"].as_array().unwrap().len(), 1);
            (
                family["family"].as_str().unwrap(),
                family["count"].as_u64().unwrap(),
                name,
                numbers,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("tensor", 2, "slow", [2, 2, 1]),
            ("data", 2, "fast", [2, 2, 1])
        ]
    );
    let (_, text, _) = run_command_for_exit_and_text(JOB, &dry);
    let line = "\n  tensor             2   2 of 2 slow\n  data               2   2 of 2 fast\n";
    assert!(text.contains(line), "{text}");
    // An order on the command line overrides the file's map, and moving ranks to other NPUs changes where groups are
    // placed.
    let turned = |more: &[&str]| run_command_for_exit_and_text(JOB, &[&dry[..], more].concat()).1;
    assert!(turned(&["--order", "tp,dp,pp"]).contains("2 of 2 fast\n  data"));
    let crossed = ["--machine", &pairs, "--dry-run", "--map", "0,3,1,2"];
    let text = run_command_for_exit_and_text(JOB, &crossed).1;
    assert!(
        text.contains("  tensor             2   2 of 2 fast x 2 of 2 slow; irregular"),
        "{text}"
    );
}

#[test]
fn a_map_that_does_not_fit_the_machine_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = write_machine_file(folder.path());
    for (options, expected) in [
        (
            &["--place", "tp@fast,dp@fast", "--machine", &pairs][..],
            "`place` is tp@fast,dp@fast; expected members along dimension 0 (fast) whose product is at most the \
             2 NPUs of it, not 4",
        ),
        (
            &["--place", "tp@fast,dp@ethernet", "--machine", &pairs],
            "dimensions of the machine, which are 0 (fast, 2 NPUs), 1 (slow, 2 NPUs)",
        ),
        (
            &["--place", "tp@fast,dp@slow", "--dry-run"],
            "expected indices of dimensions, innermost 0; names of dimensions need a machine",
        ),
        (
            &["--place", "tp@0", "--dry-run"],
            "members of dp whose product is its degree, 2",
        ),
        (
            &["--place", "tp=0", "--dry-run"],
            "AXIS:MEMBERS@DIMENSION, for example tp@0",
        ),
        (
            &[
                "--place",
                "tp@0,dp@1",
                "--map",
                "3,2,1,0",
                "--machine",
                &pairs,
            ],
            "--map and place both place ranks",
        ),
        (&["--map", "3,2,1,0", "--dry-run"], "--map is for a machine"),
        (
            &["--pipeline", "2", "--dry-run", "--machine", &pairs],
            "the job has 8 ranks, but machine `pairs` has 4 NPUs",
        ),
    ] {
        let (code, _, error) = run_command_for_exit_and_text(JOB, options);
        // The argument parser rejects text that is not a range.
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(expected), "{error}\n{expected}");
    }
}

/// Half of 124,439,808 parameters at 16 B each take 1.0 GB, more than is left on an NPU of 1 GB after all other memory.
/// With ZeRO 1 two replicas share 12 B of the 16, which leaves 10 B each.
#[test]
fn jobs_that_do_not_fit_in_memory_are_reported_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = write_machine_file(folder.path());
    let dry = ["--dry-run", "--machine", &pairs];
    let small = run_command_for_json(JOB, &[&dry[..], &["--zero", "1"]].concat());
    assert_eq!(small["fits"], true);
    let large = run_command_for_json(JOB, &dry);
    assert_eq!(
        (&large["fits"], &large["stages"][0]["fits"]),
        (&false.into(), &false.into())
    );
    assert_eq!(large["stages"][0]["capacity_bytes"], 1_000_000_000);
    let require = ["--fit", "require"];
    let (code, out, error) = run_command_for_exit_and_text(JOB, &[&dry[..], &require].concat());
    assert_eq!(code, 3);
    assert!(
        out.contains("OUT OF MEMORY  1 of 1 stage needs more than"),
        "{out}"
    );
    assert!(out.contains("  ! stage 0 needs 1.0"), "{out}");
    assert!(
        out.contains("try: --recompute full, --zero 1, --sequence-parallel, more"),
        "{out}"
    );
    assert!(
        error.starts_with("error: out of memory: stage 0 needs 1.0"),
        "{error}"
    );
    // A capacity in the plan overrides the machine's.
    let roomy = ["--capacity", "2 GB"];
    let (code, out, _) = run_command_for_exit_and_text(JOB, &[&dry[..], &require, &roomy].concat());
    assert_eq!(code, 0);
    assert!(out.contains("of 2.0 GB on stage 0, the fullest"), "{out}");
    // In replays, too.
    for (machine, capacity, expected) in [
        (&pairs[..], "2 GB", 0),
        (&pairs, "1 GB", 3),
        (&pairs, "900 MB", 3),
        ("dgx-h100", "900 MB", 3),
    ] {
        let options = ["--machine", machine, "--capacity", capacity];
        let (code, out, error) =
            run_command_for_exit_and_text(JOB, &[&options[..], &require].concat());
        assert_eq!(code, expected, "{machine} {capacity}: {error}");
        let of = format!("of its NPU's {}", capacity.parse::<Bytes>().unwrap());
        assert_eq!(error.contains(&of), code == 3, "{error}");
        // The machine file has the second capacity.
        let same = "has no effect: the run is the same without the setting";
        assert_eq!(out.contains(same), capacity == "1 GB", "{out}");
    }
    let (code, _, error) = run_command_for_exit_and_text(JOB, &[&dry[..1], &require].concat());
    assert_eq!(code, 2);
    assert!(
        error.contains("try: --capacity 80GB, or --machine MACHINE"),
        "{error}"
    );
}

/// In text reports, groups with the same role share a row, for jobs from files and for generated jobs.
#[test]
fn reports_sum_groups_up_by_what_they_are_for() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = write_machine_file(folder.path());
    let prefix = folder.path().join("job");
    let prefix = prefix.to_str().unwrap();
    let (code, _, error) = run_command_for_exit_and_text(JOB, &["--output", prefix]);
    assert_eq!((code, &error[..]), (0, ""));
    let groups = format!("{prefix}.groups.json");
    let replay = format!("replay {prefix} --groups {groups} --compute roofline");
    let tables = |text: String| {
        let (_, tables) = text.split_once("\nCOLLECTIVES").expect("it has the table");
        tables.to_owned()
    };
    // The tables must be complete, because a head of another length changes the number of lines.
    let whole = ["--machine", &pairs, "--details"];
    let at_once = tables(run_command_for_exit_and_text(JOB, &whole).1);
    for expected in [
        "\n  all-reduce, tensor ",
        "\n    2 groups of 2: ring 2 (fast)\n",
        "\n  all-reduce, data ",
        "\n    2 groups of 2: ring 2 (slow)\n",
        "\n  tensor, 2 groups of 2 ",
        "\n  of several groups: means of one",
    ] {
        assert!(at_once.contains(expected), "{at_once}\n{expected}");
    }
    assert_eq!(
        tables(run_command_for_exit_and_text(&replay, &whole).1),
        at_once
    );
    let [made, read] =
        [JOB, &replay].map(|command| run_command_for_json(command, &["--machine", &pairs]));
    assert_eq!(made["collectives"], read["collectives"]);
    assert_eq!(made["exposed"], read["exposed"]);
    // A pattern's group has no stated role.
    let other = "generate collective all-reduce --size 1MB --ranks 4 --group 0,1";
    let other = run_command_for_json(other, &["--machine", &pairs]);
    assert_eq!(other["collectives"][0].get("role"), None);
}

#[test]
fn refusals_say_where_and_what_to_try() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.toml");
    std::fs::write(&plan, "data = 2\ntensor = 5\nbatch = 3\n").unwrap();
    let plan = plan.to_str().unwrap();
    let refused = |args: &str| {
        let args: Vec<_> = args.split(' ').collect();
        let (code, _, error) = run_for_exit_and_text(&args);
        assert_eq!(code, 2, "{error}");
        error
    };
    let planned = format!("generate gpt2-small --dry-run --plan {plan}");
    let line =
        "plan.toml:3: key `batch`: found 3, expected a multiple of data x micro_batch, 2 x 1 = 2";
    assert!(refused(&planned).contains(line), "{}", refused(&planned));
    let line = "plan.toml:2: key `tensor`: found 5, expected a divisor of the 12 heads";
    let other = refused(&format!("{planned} --batch 4"));
    assert!(other.contains(line), "{other}");
    // An error about a command-line option names no line of the file.
    let other = refused(&format!("{planned} --batch 5"));
    assert!(other.contains("error: `batch` is 5; expected"), "{other}");
    let unknown = "error: no model is called \"gpt3-175\"; did you mean `gpt3-175b`?\n  try: a preset, which \
                   `chakram model list` names, or a file, whose name ends in .toml or has a / in it\n";
    assert_eq!(refused("model show gpt3-175"), unknown);
    assert_eq!(refused("generate gpt3-175 --dry-run"), unknown);
    let pattern = refused("generate colective --dry-run");
    assert!(pattern.ends_with(
        "\n  or the pattern `collective`, as in `chakram generate collective --help`\n"
    ));
    let machine = refused("generate gpt2-small --dry-run --machine dgx-h10");
    assert!(machine.starts_with(
        "error: no machine is called \"dgx-h10\"; did you mean `dgx-h100`?\n  try: a preset"
    ));
    assert!(!machine.contains("?;"), "{machine}");
}
