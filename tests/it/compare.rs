//! Tests one job on several machines from a shell: compares the result with reports of single
//! machines, and checks exit codes and the fields of CSV and JSON.

use super::commands::{
    has_line_of_words, run_chakram, run_for_exit_code, run_for_output, write_two_rank_capture,
};
use serde_json::Value;

const CASE: &str = "traces/data-parallel-8";
const MACHINES: [&str; 3] = ["dgx-a100", "mi300x", "gb200-nvl72"];
/// Number of NPUs of each preset.
const NPUS: [u64; 3] = [8, 8, 72];

/// Returns the arguments of `chakram replay` on all of [`MACHINES`].
fn list_all_machines_replay_arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["replay", CASE];
    args.extend(MACHINES.iter().flat_map(|machine| ["-m", machine]));
    args.extend(["--compute", "roofline"]);
    args.extend(more);
    args
}

fn replay_on_machine<'a>(machine: &'a str, more: &[&'a str]) -> String {
    let args = ["replay", CASE, "-m", machine, "--compute", "roofline"];
    run_for_output(&[&args[..], more].concat())
}

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).expect("it is JSON")
}

fn expect_list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn expect_integer(value: &Value) -> i64 {
    value.as_i64().expect("a whole number")
}

#[test]
fn a_comparison_holds_the_single_reports() {
    let comparison = parse_json(&run_for_output(&list_all_machines_replay_arguments(&[
        "--format", "json",
    ])));
    assert_eq!(comparison["schema"], "chakram.comparison.1");
    assert_eq!(comparison["options"]["compute"], "roofline");
    let mut inputs = Vec::new();
    let (machines, rows) = (&comparison["machines"], &comparison["comparison"]);
    assert_eq!(
        (expect_list(machines).len(), expect_list(rows).len()),
        (3, 3)
    );
    let singles =
        MACHINES.map(|machine| parse_json(&replay_on_machine(machine, &["--format", "json"])));
    for (i, alone) in singles.iter().enumerate() {
        let mut alone = alone.as_object().expect("an object").clone();
        for input in expect_list(&alone["inputs"]) {
            if !inputs.contains(input) {
                inputs.push(input.clone());
            }
        }
        for once in ["tool_version", "options", "inputs"] {
            alone.remove(once);
        }
        assert_eq!(machines[i], Value::Object(alone), "{}", MACHINES[i]);
        assert_eq!(machines[i]["machine"]["npus"], NPUS[i]);
    }
    assert_eq!(comparison["inputs"], Value::Array(inputs), "each once");
    for (row, alone) in expect_list(rows).iter().zip(&singles) {
        assert_eq!(row["baseline"], MACHINES[0]);
        assert_eq!(row["machine"], alone["machine"]["name"]);
        assert_eq!(row["makespan"]["before_ps"], singles[0]["makespan_ps"]);
        assert_eq!(row["makespan"]["after_ps"], alone["makespan_ps"]);
        let parts = row["mean"].as_object().expect("an object");
        let mut sum = 0;
        for (part, change) in parts {
            assert_eq!(change["before_ps"], singles[0]["mean_ps"][part], "{part}");
            assert_eq!(change["after_ps"], alone["mean_ps"][part], "{part}");
            sum += expect_integer(&change["change_ps"]);
        }
        // Each mean is rounded to a picosecond.
        assert!((sum - expect_integer(&row["makespan"]["change_ps"])).abs() <= 5);
        assert_charged_times_add_up_to_communication(row, alone);
    }
}

/// The charged times of collectives add up to the communication time and its exposed part. Each mean is rounded to a
/// picosecond.
fn assert_charged_times_add_up_to_communication(row: &Value, alone: &Value) {
    let sum = |keys: [&str; 2]| -> i64 {
        let groups = expect_list(&row["communication"]).iter();
        let sums = groups.map(|group| keys.map(|key| expect_integer(&group["after"][key])));
        sums.flatten().sum()
    };
    let close = |found: i64, expected: &Value| {
        assert!(
            (found - expect_integer(expected)).abs() <= 4,
            "{found} {expected}"
        );
    };
    let under_way = sum(["mean_waiting_ps", "mean_transferring_ps"]);
    close(under_way, &alone["mean_communicating_ps"]);
    let exposed = sum(["mean_exposed_waiting_ps", "mean_exposed_transferring_ps"]);
    close(exposed, &alone["mean_ps"]["communication"]);
}

#[test]
fn threads_change_nothing() {
    for format in ["text", "json", "csv"] {
        let run = |threads| {
            run_for_output(&list_all_machines_replay_arguments(&[
                "--format",
                format,
                "--threads",
                threads,
            ]))
        };
        let one = run("1");
        assert!(["2", "3", "9"].iter().all(|n| run(n) == one), "{format}");
        assert_eq!(
            run_for_output(&list_all_machines_replay_arguments(&["--format", format])),
            one
        );
    }
}

#[test]
fn text_has_a_column_per_machine_and_the_reasons() {
    let text = run_for_output(&list_all_machines_replay_arguments(&[]));
    let reports = MACHINES.map(|machine| replay_on_machine(machine, &[]));
    let span = |report: &String, line: &str| -> String {
        let line = report
            .lines()
            .find(|found| found.trim_start().starts_with(line));
        let words: Vec<_> = line.expect("it is there").split_whitespace().collect();
        let value = words
            .iter()
            .position(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        let value = value.expect("it has a value");
        words[value..value + 2].join(" ")
    };
    let makespans = reports.each_ref().map(|report| span(report, "MAKESPAN"));
    assert!(
        has_line_of_words(&text, &format!("makespan {}", makespans.join(" "))),
        "{text}"
    );
    for ((machine, makespan), report) in MACHINES.iter().zip(&makespans).zip(&reports).skip(1) {
        let [from, to] = [&makespans[0], makespan].map(|m| {
            let number = m.split(' ').next().expect("a number");
            number.parse::<f64>().expect("in ms")
        });
        let lead = format!("dgx-a100 → {machine}: ");
        let line = text.lines().find_map(|line| line.strip_prefix(&*lead));
        let line = line.expect("it has a reason");
        // All columns are in ms, rounded to a thousandth.
        let shorter = line.split(' ').next().expect("a number");
        let shorter: f64 = shorter.parse().expect("in ms");
        assert!((shorter - (from - to)).abs() < 0.0021, "{line}");
        let faster = format!(", speedup {:.2}x", from / to);
        assert!(line.ends_with(&faster), "{line}");
        let [from, to] = [&reports[0], report].map(|report| span(report, "compute"));
        assert!(text.contains(&format!(": {from} → {to}\n")), "{text}");
    }
    // Five machines still fit in one table, because the widest line has 100 columns.
    let five = run_for_output(
        &[
            &list_all_machines_replay_arguments(&["-m", "dgx-h100"])[..],
            &["-m", "tpu-v4"],
        ]
        .concat(),
    );
    assert!(has_line_of_words(&five, "MEAN OF NPUs tpu-v4"), "{five}");
    for text in [text, five] {
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }
}

/// dgx-a100's 8 NPUs are 0 to 7, so there is no NPU 8.
#[test]
fn a_machine_that_refuses_leaves_the_others() {
    let args = |format| list_all_machines_replay_arguments(&["--map", "8-15", "--format", format]);
    assert_eq!(run_for_exit_code(&args("text")), 2);
    let text = run_chakram(&args("text"));
    let error = String::from_utf8(text.stderr).expect("errors are text");
    assert!(error.starts_with("error: on dgx-a100: "), "{error}");
    assert!(error.contains("\non mi300x: "), "{error}");
    let text = String::from_utf8(text.stdout).expect("reports are text");
    assert!(
        has_line_of_words(&text, "MEAN OF NPUs dgx-a100 mi300x gb200-nvl72"),
        "{text}"
    );
    assert!(
        has_line_of_words(&text, "makespan refused refused 19.111 ms")
            && text.contains("NOT COMPLETED"),
        "{text}"
    );
    assert!(has_line_of_words(&text, "speedup - - 1.00x"), "{text}");

    let json =
        parse_json(&String::from_utf8(run_chakram(&args("json")).stdout).expect("it is text"));
    assert_eq!(json["machines"][0]["failed"]["status"], "refused");
    assert_eq!(json["machines"][0]["machine"]["name"], "dgx-a100");
    let alone = parse_json(&run_for_output(&[
        "replay",
        CASE,
        "-m",
        "gb200-nvl72",
        "--compute",
        "roofline",
        "--map",
        "8-15",
        "--format",
        "json",
    ]));
    assert_eq!(json["machines"][2]["makespan_ps"], alone["makespan_ps"]);
    assert_eq!(expect_list(&json["comparison"]).len(), 1);
    assert_eq!(json["comparison"][0]["baseline"], "gb200-nvl72");

    let csv = String::from_utf8(run_chakram(&args("csv")).stdout).expect("it is text");
    let rows: Vec<Vec<_>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{csv}");
    assert_eq!(rows[1][..4], ["dgx-a100", "8", "refused", ""]);
    assert_eq!(rows[3][2], "completed");
}

#[test]
fn exit_codes_are_those_of_the_replays() {
    let two = ["-m", "dgx-a100", "-m", "dgx-h100"];
    assert_eq!(
        run_for_exit_code(&[&["replay", CASE][..], &two].concat()),
        0
    );
    let stuck = run_chakram(&[&["replay", "traces/deadlock-2"][..], &two].concat());
    assert_eq!(stuck.status.code(), Some(1));
    assert!(stuck.stdout.is_empty(), "there is nothing to compare");
    for bad in [
        &["-m", "dgx-a100"][..],
        &["--timeline", "no.json"],
        &["-m", "no-such-machine"],
        &["--threads", "0"],
        // This job's size follows the machine, so the job would differ between machines.
        &["-m", "gb200-nvl72", "--absent", "mirror"],
    ] {
        assert_eq!(
            run_for_exit_code(&[&["replay", CASE][..], &two, bad].concat()),
            2,
            "{bad:?}"
        );
    }
    let mirror = ["-m", "gb200-nvl72", "--absent", "mirror", "--ranks", "8"];
    assert_eq!(
        run_for_exit_code(&[&["replay", CASE][..], &two, &mirror].concat()),
        0
    );
    assert_eq!(run_for_exit_code(&["replay", CASE, "--threads", "2"]), 2);
    let generate = ["generate", "p2p", "ring", "--ranks", "4", "--size", "1MB"];
    let table = ["-m", "dgx-a100", "--format", "csv", "--table", "compare"];
    assert_eq!(run_for_exit_code(&[&generate[..], &table].concat()), 2);
}

#[test]
fn csv_has_a_row_per_machine_or_the_machine_in_front() {
    let csv = run_for_output(&list_all_machines_replay_arguments(&["--format", "csv"]));
    assert_eq!(
        csv,
        run_for_output(&list_all_machines_replay_arguments(&[
            "--format", "csv", "--table", "compare"
        ]))
    );
    let rows: Vec<Vec<_>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| {
        rows[0]
            .iter()
            .position(|found| *found == name)
            .expect("it is there")
    };
    assert_eq!(rows.len(), 4);
    for ((row, machine), npus) in rows[1..].iter().zip(MACHINES).zip(NPUS) {
        let alone = parse_json(&replay_on_machine(machine, &["--format", "json"]));
        assert_eq!(row[..3], [machine, &npus.to_string(), "completed"]);
        assert_eq!(row[column("makespan_ps")], alone["makespan_ps"].to_string());
        assert_eq!(row[column("baseline")], MACHINES[0]);
        for part in ["compute", "communication", "memory", "host", "idle"] {
            let found = row[column(&format!("{part}_ps"))];
            assert_eq!(found, alone["mean_ps"][part].to_string(), "{part}");
        }
        let [first, own] = [&rows[1], row].map(|row| row[column("makespan_ps")]);
        let [first, own] = [first, own].map(|ps| ps.parse::<f64>().expect("a number"));
        assert_eq!(row[column("speedup")], format!("{:.6}", first / own));
    }
    let one = replay_on_machine(MACHINES[1], &["--format", "csv", "--table", "compare"]);
    assert_eq!(one.lines().count(), 2, "{one}");
    for table in ["npus", "collectives", "operators"] {
        let options = ["--format", "csv", "--table", table];
        let all = run_for_output(&list_all_machines_replay_arguments(&options));
        let mut expected = String::new();
        for machine in MACHINES {
            let alone = replay_on_machine(machine, &options);
            let (header, rows) = alone.split_once('\n').expect("a header");
            if expected.is_empty() {
                expected += &format!("machine,{header}\n");
            }
            rows.lines()
                .for_each(|row| expected += &format!("{machine},{row}\n"));
        }
        assert_eq!(all, expected);
    }
}

/// At half the peak, every kernel takes twice as long; here kernels run one after another on one lane. Other nodes take
/// as long as before.
#[test]
fn efficiency_option_stretches_kernels_and_is_reported() {
    let half = ["--efficiency", "0.5"];
    let reports = [&[][..], &half].map(|more| {
        let more = [more, &["--format", "json"]].concat();
        parse_json(&replay_on_machine("dgx-a100", &more))
    });
    assert_eq!(reports[0]["options"]["efficiency"], 1.0);
    assert_eq!(reports[1]["options"]["efficiency"], 0.5);
    let compute = |i: usize| expect_integer(&reports[i]["mean_ps"]["compute"]);
    assert!(compute(0) > 0);
    assert!((compute(1) - 2 * compute(0)).abs() <= 1);
    let text = replay_on_machine("dgx-a100", &half);
    let basis = " kernels by roofline at 0.5 of the peak\n";
    assert!(text.contains(basis), "{text}");
    let comparison = run_for_output(&list_all_machines_replay_arguments(&half));
    let basis = "kernels by roofline at 0.5 of the peak, communication by the network";
    assert!(has_line_of_words(&comparison, basis), "{comparison}");

    for given in [&["--compute", "roofline", "--efficiency", "1.5"][..], &half] {
        let output = run_chakram(&[&["replay", CASE], given].concat());
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("--efficiency"), "{error}");
    }
    let generated = [
        "generate",
        "chain",
        "--ranks",
        "2",
        "--nodes",
        "9",
        "--efficiency",
        "0.5",
    ];
    assert_eq!(
        run_for_exit_code(&[&generated[..], &["--machine", "dgx-a100"]].concat()),
        2
    );
}

/// Rank 0 arrives after 50 us, and rank 1 after 100 us. Then both all-reduce for 20 us. As
/// recorded, the means over ranks are the same on all machines: 75 us of compute minus the delay of
/// 10 us with which rank 1 starts, 25 us of exposed waiting, and 20 us of exposed transfer.
#[test]
fn waiting_is_told_apart_from_transfer() {
    let folder = tempfile::tempdir().expect("there is room");
    let prefix = write_two_rank_capture(folder.path(), true);
    let options = ["-m", "dgx-a100", "-m", "dgx-h100", "--comm", "recorded"];
    let args = [&["replay", &prefix][..], &options].concat();
    let text = run_for_output(&args);
    for line in [
        "captured 160.000 us (slowest rank 1)",
        "! kernels last equally long on all machines; --compute roofline prices them for each",
        "makespan 120.000 us 120.000 us",
        "vs. capture -25.00 % -25.00 %",
        "exposed communication 45.000 us 37.5 % 45.000 us 37.5 %",
        "waiting for ranks 25.000 us 20.8 % 25.000 us 20.8 %",
        "transfer 20.000 us 16.7 % 20.000 us 16.7 %",
        "dgx-a100 → dgx-h100: the same makespan, 120.000 us",
        "nothing changed: no time of this job depends on the differences between the machines: bandwidth of",
    ] {
        assert!(has_line_of_words(&text, line), "{line:?} in\n{text}");
    }
    // If the network determines the times, the waiting time is the same, but the transfer time differs.
    let args = [&args[..4], &["-m", "dgx-h100", "--format", "json"]].concat();
    let json = parse_json(&run_for_output(&args));
    for side in ["before", "after"] {
        let group = &json["comparison"][1]["communication"][0];
        assert_eq!(group["name"], "all-reduce, all 2 ranks");
        assert_eq!(group[side]["mean_exposed_waiting_ps"], 25_000_000);
        // Rank 0 may send before rank 1 arrives, so it may end first.
        let transfer = expect_integer(&group[side]["transfer_ps"]);
        let exposed = expect_integer(&group[side]["mean_exposed_transferring_ps"]);
        assert!(0 < exposed && exposed <= transfer, "{exposed} {transfer}");
        assert_eq!(group[side]["overlapped_share_of_transfer"], 0.0);
    }
}

/// The job is a pipeline of four stages on eight NPUs. It runs on two machines, one of which has links ten times as
/// fast. The 48 forward and 48 backward messages carry 1,024 tokens of 768 values in 2 bytes (1.57 MB). They take 3.5
/// us at 450 GB/s and less at 4,500 GB/s, so nearly all the time in receives is the bubble, which does not depend on
/// the rate.
#[test]
fn the_bubble_of_a_pipeline_is_no_transfer() {
    let folder = tempfile::tempdir().expect("there is room");
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let job = at("job/job");
    let plan = "--pipeline 4 --data 2 --batch 16 --micro-batch 1 -o";
    let plan: Vec<_> = plan.split(' ').collect();
    run_for_output(&[&["generate", "gpt2-small"], &plan[..], &[&job]].concat());
    let shown = run_for_output(&["machine", "show", "dgx-h100"]);
    std::fs::write(at("fast.toml"), shown.replace("450 GB", "4500 GB")).unwrap();
    let replay = [
        "replay",
        &at("job"),
        "-m",
        "dgx-h100",
        "-m",
        &at("fast.toml"),
    ];
    let json = parse_json(&run_for_output(
        &[&replay[..], &["--format", "json"]].concat(),
    ));
    let mut bubbles = Vec::new();
    for report in expect_list(&json["machines"]) {
        for npu in expect_list(&report["npus"]) {
            let parts = npu["time_ps"].as_object().expect("parts");
            let sum: i64 = parts.values().map(expect_integer).sum();
            assert_eq!(sum, expect_integer(&report["makespan_ps"]));
        }
        let charged = |key: &str| expect_integer(&report["messages_charged"][key]);
        let mean = |sum: i64| sum / 8_000_000;
        assert!(mean(charged("exposed_transferring_ps")) < 100, "us");
        assert_eq!(charged("bubble_ps"), charged("exposed_waiting_ps"));
        bubbles.push(expect_integer(&report["mean_ps"]["bubble"]));
    }
    assert!(bubbles[0] > 10_000_000_000, "{bubbles:?}");
    // The measured collectives are faster on faster links, so a stage ends a little earlier. The bubble includes the
    // wait of the first stages for the last ones in the all-reduce of the embedding.
    assert!(
        (bubbles[1] - bubbles[0]).abs() < bubbles[0] / 100,
        "{bubbles:?}"
    );
    let text = run_for_output(&replay);
    assert!(
        text.lines()
            .any(|line| line.contains("pipeline bubble") && line.contains("10.788 ms")),
        "{text}"
    );
    let csv = run_for_output(&[&replay[..], &["--format", "csv"]].concat());
    assert!(csv.lines().next().unwrap().contains("bubble_ps"), "{csv}");
}
