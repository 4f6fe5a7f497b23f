//! Compares schedules in GOAL with the LogGP formula: a message of `s` bytes takes `s` G to leave its sender, and
//! arrives L after that. Overheads and gaps are zero.

use super::{TemporaryTestFolder, expect_cli_error, run_for_stdout};

/// The machine is a switch of 8 NPUs with G = 0.1 ns and L = 2 x 250 ns.
const MACHINE: &str = r#"
name = "eight"

[npu.one]
memory_bandwidth = "1 TB/s"
memory_latency = "100 ns"
memory_capacity = "80 GB"
lanes = 8
host_lanes = 8

[npu.one.peak]
fp32 = "10 TFLOP/s"

[[dimension]]
name = "wire"
shape = "switch"
size = 8
bandwidth = "10 GB/s"
latency = "250 ns"
algorithm = "ring"
"#;

/// G is in picoseconds per byte, and L is the latency of the two hops that a message takes.
const G: u64 = 100;
const L: u64 = 500_000;

fn replay_goal_makespan_with_round_trip(folder: &TemporaryTestFolder, schedule: &str) -> u64 {
    let machine = folder.write_file("machine.toml", MACHINE);
    let goal = folder.write_file("schedule.goal", schedule);
    let job = folder.path("job");
    run_for_stdout(&["convert", "goal", &goal, "-o", &job]);
    let replayed = |job: &str| {
        let report = run_for_stdout(&["replay", job, "-m", &machine, "--format", "json"]);
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        report["makespan_ps"].as_u64().unwrap()
    };
    let ends = replayed(&job);
    // After it is written and read back, the schedule takes as long as before.
    let (written, again) = (folder.path("again.goal"), folder.path("again"));
    run_for_stdout(&["convert", "goal", &job, "-o", &written]);
    run_for_stdout(&["convert", "goal", &written, "-o", &again]);
    assert_eq!(replayed(&again), ends);
    ends
}

#[test]
fn goal_replays_take_the_times_of_the_formula() {
    let folder = TemporaryTestFolder::new();
    // Five round trips have 3 us of computation on each side: 5 x 2 x (3 us + 4000 G + L).
    let mut ping_pong = String::from("num_ranks 2\n");
    for rank in 0..2 {
        ping_pong += &format!("rank {rank} {{\n");
        let peer = 1 - rank;
        for turn in 0..5 {
            let (receive, calc, send) = (3 * turn, 3 * turn + 1, 3 * turn + 2);
            let exchange = [
                format!("r{receive}: recv 4000b from {peer} tag 1"),
                format!("c{calc}: calc 3000"),
                format!("s{send}: send 4000b to {peer} tag 1"),
                format!("s{send} requires c{calc}"),
            ];
            ping_pong += &exchange.join("\n");
            ping_pong += "\n";
            // Rank 0 sends first, and receives at the end of each round.
            if rank == 0 {
                ping_pong += &format!("r{receive} requires s{send}\n");
                if turn > 0 {
                    ping_pong += &format!("c{calc} requires r{}\n", receive - 3);
                }
            } else {
                ping_pong += &format!("c{calc} requires r{receive}\n");
            }
        }
        ping_pong += "}\n";
    }
    assert_eq!(
        replay_goal_makespan_with_round_trip(&folder, &ping_pong),
        10 * (3_000_000 + 4000 * G + L)
    );
    // In a binomial tree over 8 ranks, three successive hops lead to rank 7, each after its
    // sender's earlier sends. Rank 0 sends to 1, 2 and 4, so rank 4 receives last, at 3 s G + L,
    // and forwards to no rank. Rank 1 has the data after s G + L and sends to 3 and 5; 3 has it
    // after 2 (s G + L), and 7 after 3 (s G + L).
    let size = 1_000_000;
    let tree = [
        "send S to 1\nsend S to 2\nsend S to 4",
        "a: recv S from 0\nb: send S to 3\nc: send S to 5\nb requires a\nc requires a",
        "a: recv S from 0\nb: send S to 6\nb requires a",
        "a: recv S from 1\nb: send S to 7\nb requires a",
        "recv S from 0",
        "recv S from 1",
        "recv S from 2",
        "recv S from 3",
    ];
    let ranks = (0..)
        .zip(tree)
        .map(|(rank, body): (u32, _)| format!("rank {rank} {{\n{body}\n}}\n"));
    let text = format!("num_ranks 8\n{}", ranks.collect::<String>());
    let text = text.replace(" S ", &format!(" {size}b "));
    // Rank 0 sends two more messages after its first, and rank 1 sends one more. Rank 4 has the
    // data at 3 s G + L, rank 5 at 3 s G + 2 L, and rank 7 last, at 3 s G + 3 L.
    assert_eq!(
        replay_goal_makespan_with_round_trip(&folder, &text),
        3 * size * G + 3 * L
    );
}

/// One processor runs one calculation at a time, and two processors run them concurrently. `irequires` waits until a
/// calculation starts, not until it ends.
#[test]
fn goal_processors_run_one_at_a_time_and_irequires_waits_for_starts() {
    let folder = TemporaryTestFolder::new();
    let calculations = |second: u32, relation: &str| {
        format!(
            "num_ranks 1\nrank 0 {{\na: calc 1000\nb: calc 5000 cpu 1\nc: calc 2000 cpu {second}\nb requires a\n\
             c {relation} b\n}}\n"
        )
    };
    // a runs first, followed by b and c, either concurrently or one after the other. With a full dependency c always
    // runs after b.
    assert_eq!(
        replay_goal_makespan_with_round_trip(&folder, &calculations(2, "irequires")),
        6_000_000
    );
    assert_eq!(
        replay_goal_makespan_with_round_trip(&folder, &calculations(1, "irequires")),
        8_000_000
    );
    assert_eq!(
        replay_goal_makespan_with_round_trip(&folder, &calculations(2, "requires")),
        8_000_000
    );
}

#[test]
fn what_goal_cannot_hold_is_refused() {
    let folder = TemporaryTestFolder::new();
    let job = folder.path("job");
    run_for_stdout(&[
        "generate",
        "collective",
        "all-reduce",
        "--size",
        "1MB",
        "--ranks",
        "2",
        "-o",
        &job,
    ]);
    let error = expect_cli_error(&["convert", "goal", &job, "-o", &folder.path("out.goal")]);
    for part in ["rank 0: ", "job: node 1 `", "is a collective", "try: "] {
        assert!(error.contains(part), "{error}");
    }
    let goal = folder.write_file(
        "circle.goal",
        "num_ranks 1\nrank 0 {\na: calc 1\na requires a\n}\n",
    );
    let error = expect_cli_error(&["convert", "goal", &goal, "-o", &folder.path("out")]);
    for part in ["circle.goal", "line 3", "form a cycle"] {
        assert!(error.contains(part), "{error}");
    }
    let goal = folder.write_file(
        "idle.goal",
        "// Made by hand.\n\n/* Twice. */ num_ranks 2\nrank 0 {\ncalc 5\n}\nrank 1 {\n}\n",
    );
    let said = run_for_stdout(&["convert", "auto", &goal, "-o", &folder.path("idle")]);
    assert!(said.contains("1 operation of 2 ranks: 2 nodes"), "{said}");
}
