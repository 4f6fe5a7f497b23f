//! Tests the settings of a run: the scale of endpoint delays, options that all commands share, traces of ranks outside
//! the network, and messages whose sizes differ between sender and receiver.

use super::golden::build_config_of_one_collective;
use super::product::{self, ProgramExitCodeAndFinishTimes};
use std::path::Path;
use std::process::{Command, Output};
use testkit::astra_sim::config::{
    CollectiveOperation::{AllGather, AllReduce},
    DimensionTopology::{Ring, Switch},
    NetworkModel::Unaware,
    NodeWork, TraceNode, WholeSimulationInput,
};

/// The job is one message of 64 KiB between two NPUs on a switch, with endpoint delays of 1 ns and
/// no collective.
const MESSAGE: &str = "tests/it/astra_sim/message";

fn run_astra_sim_command_in_folder(folder: &Path, program: &[&str], more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chakram"))
        .current_dir(folder)
        .args(program)
        .args([
            "--workload-configuration=w",
            "--system-configuration=s.json",
        ])
        .args([
            "--network-configuration=n.yml",
            "--remote-memory-configuration=m.json",
        ])
        .args(more)
        .output()
        .expect("the program was built")
}

fn run_message_example(more: &[&str]) -> Output {
    run_astra_sim_command_in_folder(Path::new(MESSAGE), &["astra-sim"], more)
}

fn text_from_bytes(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it is text")
}

/// 65,536 B take ⌊65,536 / 53.687⌋ = 1,220 ns over a link, and two latencies of 500 ns. The time is
/// 2,220 ns without contention, and 3,440 ns if the switch stores the whole message before it
/// forwards it. Endpoint delays do not apply to messages.
#[test]
fn scales_without_endpoint_delay_are_accepted_for_messages() {
    for (model, cycles) in [("unaware", 2220), ("aware", 3440)] {
        for scale in ["0.5", "0"] {
            let scale = format!("--injection-scale={scale}");
            let output = run_message_example(&["--network-model", model, &scale]);
            assert_eq!(
                (output.status.code(), text_from_bytes(&output.stderr)),
                (Some(0), "")
            );
            for npu in 0..2 {
                let line = format!("sys[{npu}] finished, {cycles} cycles");
                assert!(
                    text_from_bytes(&output.stdout).contains(&line),
                    "{output:?}"
                );
            }
        }
    }
}

fn run_config_with_options(
    config: &WholeSimulationInput,
    more: &[&str],
) -> ProgramExitCodeAndFinishTimes {
    let folder = tempfile::tempdir().expect("a folder");
    config.write_case(folder.path()).expect("it is written");
    product::run_chakram_astra_sim(folder.path(), &config.command_args(), more)
}

/// The original aborts if a collective delays a message by 0 ns at time 0.
///
/// A ring of 4 reduces 1 MiB in one chunk, without reductions. Its 6 messages of 2^18 B take ⌊2^18
/// / 53.687 + 500⌋ = 5,382 ns each. With 10 ns before each message and at the end, 7 · 10 ns are
/// added.
#[test]
fn scales_without_endpoint_delay_are_refused_for_collectives_at_time_0() {
    let mut config = build_config_of_one_collective(
        Unaware,
        &[(Ring, 4, 50.0, 500.0)],
        AllReduce,
        &["ring"],
        1 << 20,
    );
    (config.system.splits, config.system.local_mem_bw) = (1, 1e9);
    let finish = |ran: &ProgramExitCodeAndFinishTimes| ran.finish.get(&3).map(|end| end.0);
    assert_eq!(
        finish(&run_config_with_options(&config, &[])),
        Some(6 * 5_382 + 70)
    );
    config.injection_scale = 0.05;
    for more in [
        &[][..],
        &["--stepwise"],
        &["--format=json"],
        &["--explain-quirks"],
    ] {
        let ran = run_config_with_options(&config, more);
        assert_eq!((ran.code, ran.finish.len()), (Some(2), 0), "{ran:?}");
        let why = "key `--injection-scale`: makes of an endpoint delay of 10 ns none, and rank 0 comes to the collective \
                   of its node 1 at time 0";
        assert!(ran.error.contains(why), "{}", ran.error);
    }
    // With the correction, the run does not abort as the original does, so a system file may set the delay to 0.
    let mut said = config.clone();
    said.system.endpoint_delay = Some(0);
    let answered = [
        run_config_with_options(&config, &["--quirks=all,-padding"]),
        run_config_with_options(&said, &[]),
    ];
    for ran in answered {
        assert_eq!(finish(&ran), Some(6 * 5_382), "{ran:?}");
    }
    // Here a kernel runs before the collective.
    let mut late = config.clone();
    for nodes in &mut late.ranks {
        let kernel = TraceNode {
            id: 0,
            micros: 3,
            work: NodeWork::Compute { ops: 1, bytes: 1 },
            ..nodes[0].clone()
        };
        nodes[0].deps = vec![0];
        nodes.insert(0, kernel);
    }
    assert_eq!(
        finish(&run_config_with_options(&late, &[])),
        Some(3_000 + 6 * 5_382)
    );
    // Named groups have endpoint delays of 10 ns at every scale. A gather of 6 among 8 has 5
    // messages of 2^20 B.
    let mut named = build_config_of_one_collective(
        Unaware,
        &[(Switch, 8, 50.0, 500.0)],
        AllGather,
        &["ring"],
        1 << 20,
    );
    (named.system.splits, named.injection_scale) = (1, 0.05);
    named.groups.insert(1, (0..6).collect());
    for nodes in &mut named.ranks {
        if let NodeWork::Collective { group, .. } = &mut nodes[0].work {
            *group = 1;
        }
    }
    named.ranks[6..].iter_mut().for_each(Vec::clear);
    assert_eq!(
        finish(&run_config_with_options(&named, &[])),
        Some(5 * 20_531 + 60)
    );
}

/// Options of all commands work both before and after the command's name.
#[test]
fn general_options_work_before_and_after_the_command_name() {
    let note = "`--comm-scale`: has no effect";
    let said = run_message_example(&["--comm-scale=2"]);
    assert!(text_from_bytes(&said.stderr).contains(note), "{said:?}");
    let quiet = run_message_example(&["--comm-scale=2", "-q"]);
    assert_eq!(
        (text_from_bytes(&quiet.stderr), &quiet.stdout),
        ("", &said.stdout)
    );
    let before = run_astra_sim_command_in_folder(
        Path::new(MESSAGE),
        &["-q", "astra-sim"],
        &["--comm-scale=2", "--what"],
    );
    assert_eq!(
        (text_from_bytes(&before.stderr), &before.stdout),
        ("", &said.stdout)
    );
    let details = run_message_example(&["-v"]);
    for part in [
        "read 2 traces in ",
        "replayed 2 nodes (collectives: 0 analytical, 0 simulated) in ",
    ] {
        assert!(
            text_from_bytes(&details.stderr).contains(part),
            "{details:?}"
        );
    }
    for bound in [&["--max-memory", "1kB"][..], &["--max-memory=1kB", "-q"]] {
        let bounded = run_message_example(bound);
        assert_eq!(
            (bounded.status.code(), text_from_bytes(&bounded.stdout)),
            (Some(2), "")
        );
        // Reading the options alone may take more memory than the bound, before any trace is read.
        let said = text_from_bytes(&bounded.stderr);
        let names = [
            "memory is bounded at 1000 B",
            "more than --max-memory allows",
        ];
        assert!(
            names.iter().any(|bound| said.contains(bound)),
            "{bounded:?}"
        );
    }
    // 32 MiB of zeros compress to a thousandth of their size.
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["s.json", "n.yml", "m.json", "w.1.et"] {
        std::fs::copy(Path::new(MESSAGE).join(name), folder.path().join(name))
            .expect("there is room");
    }
    let packed = zstd::encode_all(&vec![0; 32 << 20][..], 1).expect("memory takes all");
    std::fs::write(folder.path().join("w.0.et"), packed).expect("there is room");
    let refused = |more: &[&str]| {
        text_from_bytes(
            &run_astra_sim_command_in_folder(folder.path(), &["astra-sim"], more).stderr,
        )
        .to_owned()
    };
    assert!(refused(&[]).contains("--max-ratio"), "{}", refused(&[]));
    let wide = refused(&["--max-ratio", "1000000"]);
    assert!(!wide.is_empty() && !wide.contains("--max-ratio"), "{wide}");
}

/// Traces of ranks without an NPU in the network are ignored with a note, as in the original.
#[test]
fn traces_without_an_npu_are_ignored_with_a_note() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["s.json", "n.yml", "m.json", "w.0.et", "w.1.et"] {
        std::fs::copy(Path::new(MESSAGE).join(name), folder.path().join(name))
            .expect("there is room");
    }
    assert_eq!(
        text_from_bytes(
            &run_astra_sim_command_in_folder(folder.path(), &["astra-sim"], &[]).stderr
        ),
        ""
    );
    for (rank, count) in [
        (3, "1 trace of another rank, w.3.et, has"),
        (7, "2 traces of other ranks, from w.3.et on, have"),
    ] {
        let more = folder.path().join(format!("w.{rank}.et"));
        std::fs::copy(Path::new(MESSAGE).join("w.1.et"), more).expect("there is room");
        let output = run_astra_sim_command_in_folder(folder.path(), &["astra-sim"], &[]);
        assert_eq!(output.status.code(), Some(0));
        let note = format!(
            "note: n.yml: `npus_count`: has 2 NPUs, fewer than there are traces: {count} no effect, as in the \
             original"
        );
        assert!(
            text_from_bytes(&output.stderr).contains(&note),
            "{output:?}"
        );
        assert!(!text_from_bytes(&output.stdout).contains("sys[2]"));
    }
}

/// Sends and receives share one tag, and some have different sizes on the two sides.
#[test]
fn differing_send_and_receive_sizes_are_reported_as_such() {
    let config = build_config_of_one_collective(
        Unaware,
        &[(Switch, 2, 50.0, 500.0)],
        AllReduce,
        &["ring"],
        1 << 20,
    );
    let node = |id, work| TraceNode {
        id,
        deps: Vec::new(),
        cpu: false,
        micros: 0,
        work,
    };
    let job = |sent: &[u64], received: &[u64]| {
        let mut config = config.clone();
        let sends = (1..).zip(sent).map(|(id, &bytes)| {
            node(
                id,
                NodeWork::Send {
                    dst: 1,
                    bytes,
                    tag: 3,
                },
            )
        });
        let receives = (5..).zip(received);
        let receives = receives.map(|(id, &bytes)| {
            node(
                id,
                NodeWork::Receive {
                    src: 0,
                    bytes,
                    tag: 3,
                },
            )
        });
        config.ranks = vec![sends.collect(), receives.collect()];
        run_config_with_options(&config, &[])
    };
    assert_eq!(
        job(&[10, 20], &[20, 10]).code,
        Some(0),
        "messages are matched by size"
    );
    for (sent, received, (sender, size), (receiver, expected)) in [
        (&[65_536][..], &[65_535][..], (1, 65_536), (5, 65_535)),
        (&[10, 20, 30], &[10, 31, 20], (3, 30), (6, 31)),
        (&[10, 40], &[50, 10, 50], (2, 40), (5, 50)),
    ] {
        let ran = job(sent, received);
        assert_eq!(ran.code, Some(2));
        for part in [
            format!("the sizes of a send and its receive differ: rank 0 node {sender} "),
            format!("sends {size} bytes, and rank 1 node {receiver} "),
            format!("expects {expected}; "),
            "try: give both nodes the same `comm_size`".to_owned(),
        ] {
            assert!(ran.error.contains(&part), "{part:?} in {}", ran.error);
        }
    }
    // A missing message is an error that different sizes do not explain.
    let ran = job(&[10], &[10, 10]);
    assert!(ran.error.contains("has no partner"), "{}", ran.error);
}
