//! Compares the program with the plain simulator of `testkit` on random configurations, with and without closed forms.

use super::chance::has_node_without_work;
use super::product;
use crate::commands::run_chakram;
use crate::corpus::sample_every_nth;
use serde_json::Value;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use testkit::astra_sim::{
    self as oracle, create_config_with_overlapping_groups, create_random_config,
};

/// The program's note about jobs that the original never finishes.
const NEVER: &str = "note: the original would never finish this job: ";

/// Returns an error if this note is wrong, because the simulator says that the original finishes, or missing, although
/// only the program finishes.
fn find_wrong_or_missing_note(
    ran: &product::ProgramExitCodeAndFinishTimes,
    original: bool,
    program: bool,
) -> Option<String> {
    match (ran.error.contains(NEVER), original, program) {
        (true, true, _) => Some(format!("a note too many: {}", ran.error)),
        (false, false, true) => Some("no note".to_owned()),
        _ => None,
    }
}

/// Compares the program with the simulator on the configurations of `seeds`.
fn compare_with_simulator(seeds: impl Iterator<Item = u64> + Send) {
    let [equal, finished, answered] = [const { AtomicU64::new(0) }; 3];
    let faults = Mutex::new(Vec::new());
    product::run_on_all_cores(seeds, |seed| {
        let config = create_random_config(seed);
        let expected = oracle::simulate_as_astra_sim(&config);
        let [closed, stepwise] = product::run_with_and_without_closed_forms(&config);
        let done = expected.finish.iter().all(Option::is_some);
        let why = match closed == stepwise {
            true => product::describe_answer_difference(&closed, &expected),
            false => Some(format!("{closed:?}, and step by step {stepwise:?}")),
        };
        let why = why.or(find_wrong_or_missing_note(
            &closed,
            done,
            closed.code == Some(0),
        ));
        // The original never continues after a node that does nothing; the program does.
        let goes_on = !done && closed.code == Some(0) && has_node_without_work(&config);
        match why {
            Some(_) if goes_on && closed == stepwise && closed.error.contains(NEVER) => {
                answered.fetch_add(1, Relaxed);
            }
            None => {
                finished.fetch_add(done.into(), Relaxed);
                equal.fetch_add(1, Relaxed);
            }
            Some(why) => {
                println!("seed {seed}: {why}");
                faults.lock().expect("nobody panics").push(seed);
            }
        }
    });
    let mut faults = faults.into_inner().expect("nobody panics");
    faults.sort_unstable();
    println!("{equal:?} are equal, {finished:?} of them finish; {answered:?} are answered besides");
    assert!(faults.is_empty(), "{} differ: {faults:?}", faults.len());
}

#[test]
fn random_configurations_answer_alike() {
    compare_with_simulator(0..60);
}

/// Compares the program with the simulator on jobs whose NPUs have issued different numbers of collectives. The program
/// also finishes jobs that the original does not finish for this reason alone. If rings run in opposite directions, or
/// if NPUs take chunks in different orders, neither can finish, and the program names the stuck NPUs. Returns how many
/// jobs both finish, how many only the program finishes, and how many are stuck.
fn compare_overlapping_with_simulator(seeds: impl Iterator<Item = u64> + Send) -> [u64; 3] {
    let [finished, answered, stuck, differ] = [const { AtomicU64::new(0) }; 4];
    let faults = Mutex::new(Vec::new());
    product::run_on_all_cores(seeds, |seed| {
        let config = create_config_with_overlapping_groups(seed);
        let original = oracle::simulate_as_astra_sim(&config);
        let apart = oracle::simulate_with_separate_chunk_numbering(&config);
        let done = |answer: &oracle::SimulationAnswer| answer.finish.iter().all(Option::is_some);
        let [closed, stepwise] = product::run_with_and_without_closed_forms(&config);
        let mut why = match closed == stepwise {
            true => product::describe_answer_difference(&closed, &apart),
            false => Some(format!("{closed:?}, and step by step {stepwise:?}")),
        };
        // If NPUs issue collectives with different messages, not all of them wait.
        let disagree = closed.code == Some(2) && closed.error.contains("the ranks disagree on");
        if disagree && closed == stepwise && !done(&apart) {
            why = None;
            differ.fetch_add(1, Relaxed);
        }
        if done(&original) && original != apart {
            why = why.or(Some("the two numberings differ".to_owned()));
        }
        why = why.or(find_wrong_or_missing_note(
            &closed,
            done(&original),
            done(&apart),
        ));
        match (done(&original), done(&apart)) {
            (true, _) => finished.fetch_add(1, Relaxed),
            (false, true) => answered.fetch_add(1, Relaxed),
            (false, false) => stuck.fetch_add(1, Relaxed),
        };
        if let Some(why) = why {
            println!("seed {seed}: {why}");
            faults.lock().expect("nobody panics").push(seed);
        }
    });
    let mut faults = faults.into_inner().expect("nobody panics");
    faults.sort_unstable();
    let counts = [finished, answered, stuck].map(AtomicU64::into_inner);
    println!("finished, answered beyond the original, stuck: {counts:?}; {differ:?} disagree");
    assert!(faults.is_empty(), "{} differ: {faults:?}", faults.len());
    counts
}

#[test]
fn overlapping_groups_answer_alike() {
    let seeds = sample_every_nth(8, 0..150);
    let few = seeds.len() as u64 / 40;
    let counts = compare_overlapping_with_simulator(seeds.into_iter());
    assert!(counts.iter().all(|&count| count > few), "{counts:?}");
}

/// NPUs that issue two collectives in different orders exchange messages if the messages in a
/// dimension have equal sizes. An all-gather visits the dimensions from outermost to innermost, and
/// a reduce-scatter in the other direction, with equal message sizes in each dimension.
#[test]
fn collectives_issued_in_different_orders_exchange_messages_of_equal_size() {
    let counts = compare_overlapping_with_simulator([5424, 5493, 5857].into_iter());
    assert_eq!(counts[0] + counts[1], 3, "{counts:?}");
}

/// Two NPUs reach a collective at the same instant. Their collective counters differ from a third
/// NPU's counter.
#[test]
fn notes_do_not_depend_on_the_order_at_an_instant() {
    compare_overlapping_with_simulator([5510].into_iter());
}

/// Tests `CHAKRAM_SEEDS` configurations, starting with seed `CHAKRAM_FIRST_SEED`.
#[test]
#[ignore = "takes minutes"]
fn many_overlapping_groups_answer_alike() {
    let first = read_env_number("CHAKRAM_FIRST_SEED", 0);
    let counts =
        compare_overlapping_with_simulator(first..first + read_env_number("CHAKRAM_SEEDS", 3000));
    assert!(counts.iter().all(|&count| count > 3), "{counts:?}");
}

/// Closed forms are used if they are proved, unless the user requests messages. Both give the same answer.
#[test]
fn collectives_that_start_together_are_answered_in_closed_form() {
    let ask = |more: &[&str]| -> Value {
        let files = [
            "astra-sim",
            "--workload-configuration=traces/astra-sim-8/all_reduce",
            "--system-configuration=traces/astra-sim-8/system.json",
            "--network-configuration=traces/astra-sim-8/network.yml",
            "--remote-memory-configuration=traces/astra-sim-8/memory.json",
            "--format=json",
        ];
        let output = run_chakram(&[&files[..], more].concat());
        serde_json::from_slice(&output.stdout).expect("it is JSON")
    };
    // Each of eight NPUs sends four chunks of 2 · 7 messages.
    for (more, closed, messages) in [(&[][..], 1, 0), (&["--stepwise"], 0, 4 * 14 * 8)] {
        let said = ask(more);
        assert_eq!(said["collectives_analytical"], closed, "{more:?}");
        assert_eq!(said["messages"], messages, "{more:?}");
        assert_eq!(said["makespan_ps"], 117_780_000, "{more:?}");
    }
    // In a ring whose links carry one message at a time, each link is free when the next message arrives.
    let aware = ask(&["--network-model=aware"]);
    assert_eq!(aware["collectives_analytical"], 1);
    assert_eq!(aware["makespan_ps"], 117_780_000);
}

/// If links carry one message at a time, the program uses closed forms only if each link has one
/// user at a time. The answers equal a simulation of all messages.
///
/// The numbers are derived by hand for one of the four chunks of 2^18 B, without reductions and
/// with 10 ns at endpoints. A half, a quarter and an eighth of the chunk occupy a link of 53.687
/// B/ns for 2441, 1220 and 610 ns, and arrive after 2941, 1720 and 1110 ns. Halving-doubling on a
/// ring crosses 1, 2 and 4 links and back: 2 (2941 + 2 · 1720 + 4 · 1110) + 6 · 10 + 10 = 21,712.
/// On a switch, it crosses 2 links each time: 4 (2941 + 1720 + 1110) + 70 = 23,154. With `direct`
/// on a switch, seven messages of an eighth leave at intervals of 610 ns, the first at 10, and the
/// last arrives at 10 + 6 · 610 + 2 · 1110 = 5890. The second half starts 10 ns later: 5900 +
/// 5880 + 10 = 11,790.
#[test]
fn links_without_a_second_user_have_closed_forms() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let system = std::fs::read_to_string("traces/astra-sim-8/system.json").expect("it is there");
    for (shape, algorithm, active_chunks, closed) in [
        ("Ring", "ring", 1, 1),
        ("Switch", "ring", 1, 1),
        ("FullyConnected", "ring", 1, 1),
        ("FullyConnected", "direct", 1, 1),
        ("FullyConnected", "direct3", 1, 1),
        ("FullyConnected", "halvingDoubling", 1, 1),
        // In the first cases, each member sends one message at a time, and all messages cross the same number of links.
        // In the other cases, messages follow one another over links that no other member uses.
        ("Ring", "halvingDoubling", 1, 1),
        ("Switch", "halvingDoubling", 1, 1),
        ("Switch", "direct", 1, 1),
        ("Switch", "direct3", 1, 1),
        // Messages of several members or several chunks share a link, or members of a tree have different roles.
        ("Ring", "direct", 1, 0),
        ("Ring", "doubleBinaryTree", 1, 0),
        ("Switch", "direct", 2, 0),
        ("Ring", "ring", 2, 0),
        ("FullyConnected", "direct", 2, 0),
    ] {
        let network = format!(
            "topology: [ {shape} ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"
        );
        std::fs::write(file("network.yml"), network).expect("it is written");
        let active = format!("\"active-chunks-per-dimension\": {active_chunks}");
        let own = system
            .replace("\"active-chunks-per-dimension\": 1", &active)
            .replace("\"local-mem-bw\": 50", "\"local-mem-bw\": 1000000000")
            .replace("\"ring\"", &format!("\"{algorithm}\""));
        // Neither halving-doubling nor trees define an all-to-all.
        let all_to_all = format!("\"all-to-all-implementation\": [\"{algorithm}\"]");
        let own = own.replace(&all_to_all, "\"all-to-all-implementation\": [\"ring\"]");
        std::fs::write(file("system.json"), own).expect("it is written");
        let [fast, slow] = [&[][..], &["--stepwise"]].map(|more: &[&str]| -> Value {
            let system = format!("--system-configuration={}", file("system.json").display());
            let network = format!("--network-configuration={}", file("network.yml").display());
            let files = [
                "astra-sim",
                "--network-model=aware",
                "--workload-configuration=traces/astra-sim-8/all_reduce",
                &system,
                &network,
                "--remote-memory-configuration=traces/astra-sim-8/memory.json",
                "--format=json",
            ];
            let output = run_chakram(&[&files[..], more].concat());
            serde_json::from_slice(&output.stdout).expect("it is JSON")
        });
        let of = format!("{algorithm} on {shape}, {active_chunks}");
        assert_eq!(fast["collectives_analytical"], closed, "{of}");
        assert_eq!(slow["collectives_analytical"], 0, "{of}");
        assert_eq!(fast["npus"], slow["npus"], "{of}");
        assert_eq!(fast["makespan_ps"], slow["makespan_ps"], "{of}");
        let by_hand = match (shape, algorithm, active_chunks) {
            ("Ring", "halvingDoubling", 1) => 21_712,
            ("Switch", "halvingDoubling", 1) => 23_154,
            ("Switch", "direct", 1) => 11_790,
            _ => continue,
        };
        assert_eq!(fast["makespan_ps"], 4 * 1000 * by_hand, "{of}");
    }
}

fn read_env_number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name);
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// Tests `CHAKRAM_SEEDS` configurations, starting with seed `CHAKRAM_FIRST_SEED`.
#[test]
#[ignore = "takes minutes"]
fn many_random_configurations_answer_alike() {
    let first = read_env_number("CHAKRAM_FIRST_SEED", 0);
    compare_with_simulator(first..first + read_env_number("CHAKRAM_SEEDS", 3000));
}

/// Writes the files of the configuration with seed `CHAKRAM_SEED` into the folder `CHAKRAM_FOLDER`,
/// and prints both answers. If `CHAKRAM_OVERLAPPING` is set, the configuration has overlapping
/// collectives.
#[test]
#[ignore = "for looking at one"]
fn writes_and_prints_one_random_configuration() {
    let seed = read_env_number("CHAKRAM_SEED", 0);
    let config = match std::env::var("CHAKRAM_OVERLAPPING") {
        Ok(_) => create_config_with_overlapping_groups(seed),
        Err(_) => create_random_config(seed),
    };
    let folder = std::env::var("CHAKRAM_FOLDER").expect("a folder");
    let folder = std::path::Path::new(&folder);
    config.write_case(folder).expect("it is written");
    println!("{config:#?}");
    println!(
        "{:?}",
        product::run_chakram_astra_sim(folder, &config.command_args(), &[])
    );
    println!("{:?}", oracle::simulate_as_astra_sim(&config));
}
